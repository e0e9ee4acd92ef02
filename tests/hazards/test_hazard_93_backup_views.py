"""Hazard 93: views of backups that are live, writable, of a deleted backup, or open to more than today's rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.backup.backup_layout import root_name
from icestream.backup.backup_root import encode_document
from icestream.backup.encryption import BackupKey
from icestream.backup.viewed_backups import ViewedBackups, ViewedTable, ViewedTables
from icestream.catalogs.store_options import StoreOptions
from icestream.iceberg.identifier import Identifier
from icestream.lake.iceberg.routes import ROUTES, VIEW_ROUTES
from tests.support.backup_world import ORDERS, BackupWorld, backup_world
from tests.support.iceberg import IcebergClient
from tests.support.secured_lake import SecuredLake, secured_lake
from tests.support.tables import table

pytestmark = pytest.mark.asyncio
NAME = "20261118T201500Z-3fa9c1d2"
TABLE = "/namespaces/default/tables/orders"


class FixedBackups:
    """A target with one backup whose tables a test names."""

    def __init__(self, tables: dict[Identifier, ViewedTable]) -> None:
        self.tables = tables

    async def find(self, name: str) -> ViewedTables:
        if name != NAME:
            raise errors.UnknownBackup(f"no backup {name}")
        return ViewedTables(NAME, self.tables)

    async def document(self, view: str) -> bytes:
        return table().encode()


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[BackupWorld]:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(10)
        await world.commit(6)
        yield world


def client_of(world: BackupWorld, **more: Any) -> IcebergClient:
    assert world.lake is not None
    return IcebergClient(world.lake.catalog, backups=ViewedBackups(lambda: world.target), **more)


async def test_a_view_shows_the_tables_of_the_backup_under_their_names(world: BackupWorld) -> None:
    root = await world.back_up()
    await world.commit(10)
    assert world.lake is not None
    await world.lake.catalog.namespaces.create(("younger",), {})
    client, view = client_of(world), f"/backup:{root.id}"
    config = await client("GET", f"/config?warehouse=backup:{root.id}")
    assert config["overrides"] == {"prefix": f"backup:{root.id}"}
    assert len(config["endpoints"]) == len(VIEW_ROUTES)
    assert (await client("GET", f"{view}/namespaces"))["namespaces"] == [["default"]]
    assert (await client("GET", f"{view}/namespaces/default"))["namespace"] == ["default"]
    assert (await client.refused("GET", f"{view}/namespaces/younger"))[:2] == (404, "NoSuchNamespaceException")
    names = (await client("GET", f"{view}/namespaces/default/tables"))["identifiers"]
    assert names == [{"namespace": ["default"], "name": "orders"}]
    live, then = await client("GET", TABLE), await client("GET", f"{view}{TABLE}")
    assert then["metadata"]["table-uuid"] != live["metadata"]["table-uuid"]
    assert then["metadata"]["location"] != live["metadata"]["location"]
    assert len(then["metadata"]["snapshots"]) == 1
    assert then["metadata"]["snapshots"][0]["manifest-list"].startswith(world.target.location(f"backups/{root.id}/"))


async def test_latest_is_the_newest_complete_backup_and_gets_its_own_name(world: BackupWorld) -> None:
    client = client_of(world)
    assert (await client.refused("GET", "/config?warehouse=backup:latest"))[:2] == (404, "NoSuchWarehouseException")
    for _ in range(2):
        root = await world.back_up()
        config = await client("GET", "/config?warehouse=backup:latest")
        assert config["overrides"] == {"prefix": f"backup:{root.id}"}
    await world.target.put("backups/29990101T000000Z-00000000/begin.json", b"{}")
    assert (await client("GET", "/config?warehouse=backup:latest"))["overrides"] == {"prefix": f"backup:{root.id}"}


@pytest.mark.parametrize("name", ["", NAME, "x", "../../etc", "Latest", f"{NAME}/x"])
async def test_an_absent_backup_is_no_warehouse(world: BackupWorld, name: str) -> None:
    await world.back_up()
    answer = await client_of(world).refused("GET", f"/config?warehouse=backup:{name}")
    assert answer[:2] == (404, "NoSuchWarehouseException")


async def test_a_node_without_a_target_has_no_such_views(world: BackupWorld) -> None:
    assert world.lake is not None
    client = IcebergClient(world.lake.catalog)
    for path in ("/config?warehouse=backup:latest", f"/backup:latest{TABLE}"):
        status, kind, text = await client.refused("GET", path)
        assert (status, kind, "no backup target" in text) == (404, "NoSuchWarehouseException", True)


async def test_a_deleted_backup_is_gone_although_it_was_read_before(world: BackupWorld) -> None:
    root, client = await world.back_up(), client_of(world)
    path = f"/backup:{root.id}{TABLE}"
    tag = (await client.sent("GET", path)).headers["etag"]
    assert (await client.sent("GET", path, if_none_match=tag)).status == 304
    await world.stored().delete(root.id, now_ms=0)
    assert (await client.refused("GET", path))[:2] == (404, "NoSuchWarehouseException")
    assert (await client.sent("GET", path, if_none_match=tag)).status == 404


async def test_an_encrypted_backup_is_refused_with_the_reason(world: BackupWorld) -> None:
    root = await world.back_up(key=BackupKey(b"k" * 32))
    for name in (root.id, "latest"):
        status, _, text = await client_of(world).refused("GET", f"/config?warehouse=backup:{name}")
        assert (status, text.startswith(f"backup {root.id} is encrypted")) == (400, True)


@pytest.mark.parametrize(("method", "route"), sorted(ROUTES.keys() - VIEW_ROUTES.keys() - {("GET", "/v1/config")}))
async def test_a_view_refuses_everything_but_reads(tmp_path: Path, method: str, route: str) -> None:
    backups = FixedBackups({Identifier(("shop",), "orders"): ViewedTable("/shop/orders", "u", "v")})
    async with secured_lake(tmp_path, None, backups=backups) as lake:
        before = await lake.store.list_all("/"), lake.disk.names()
        path = route.removeprefix("/v1").replace("{namespace}", "shop").replace("{table}", "orders")
        path = f"/v1/backup:{NAME}{path.replace('{view}', 'v')}"
        assert (await lake.ask(method, path, {}, {})).status == 403
        assert (await lake.store.list_all("/"), lake.disk.names()) == before


async def test_a_view_gives_no_keys(tmp_path: Path) -> None:
    store = StoreOptions(kind="s3", access_key_id="id", secret_access_key="canary")
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(1)
        await world.commit(1)
        root = await world.back_up()
        client = client_of(world, store=store, is_sharing_keys=True)
        header: Any = {"x_iceberg_access_delegation": "vended-credentials"}
        assert b"canary" in (await client.sent("GET", TABLE, **header)).body
        assert b"canary" not in (await client.sent("GET", f"/backup:{root.id}{TABLE}", **header)).body
        credentials = await client("GET", f"/backup:{root.id}{TABLE}/credentials")
        assert credentials["storage-credentials"] == []


# --- rights -----------------------------------------------------------------------------------------------------------

TOPIC_RIGHT, TABLE_RIGHT = "describe,table-read on topic:/shop/orders", "describe,table-read on table:/shop/orders"
RULES = {
    "topic": [TOPIC_RIGHT],
    "name": [TABLE_RIGHT],
    "both": [TOPIC_RIGHT, TABLE_RIGHT],
    "describes": ["describe on topic:/shop/orders"],
    "other": ["describe,table-read on topic:/shop/secret"],
}


async def answers(lake: SecuredLake) -> dict[str, int]:
    path = f"/v1/backup:{NAME}/namespaces/shop/tables/orders"
    return {name: (await lake.as_(name, "GET", path)).status for name in (*RULES, "anonymous")}


async def test_a_table_that_still_exists_needs_the_rights_to_its_topic(tmp_path: Path) -> None:
    backups = FixedBackups({})
    async with secured_lake(tmp_path, RULES, backups=backups) as lake:
        uuid = (await lake.catalog.tables.load(Identifier(("shop",), "orders"))).table.uuid
        backups.tables[Identifier(("shop",), "orders")] = ViewedTable("/shop/orders", uuid or "", "v")
        assert await answers(lake) == {
            "topic": 200, "name": 404, "both": 200, "describes": 403, "other": 404, "anonymous": 401,
        }  # fmt: skip
        await lake.change({name: rules for name, rules in RULES.items() if name != "topic"})
        assert (await answers(lake))["topic"] == 404, "the rights are those of today"


async def test_a_topic_that_was_created_anew_does_not_open_the_table_of_the_old_one(tmp_path: Path) -> None:
    """Hazard 117: the name belongs to another topic now."""
    backups = FixedBackups({Identifier(("shop",), "orders"): ViewedTable("/shop/orders", "of-the-old-topic", "v")})
    async with secured_lake(tmp_path, RULES, backups=backups) as lake:
        assert await answers(lake) == {
            "topic": 404, "name": 404, "both": 200, "describes": 404, "other": 404, "anonymous": 401,
        }  # fmt: skip


async def test_a_listing_shows_what_the_caller_may_see_today(tmp_path: Path) -> None:
    names = ("orders", "secret", "gone")
    backups = FixedBackups({Identifier(("shop",), name): ViewedTable(f"/shop/{name}", "x", "v") for name in names})
    everything = ["describe,table-read on topic:/shop/**", "describe,table-read on table:/shop/**"]
    some = ["describe on namespace:/shop", TOPIC_RIGHT, TABLE_RIGHT]
    async with secured_lake(tmp_path, {"all": [*everything, some[0]], "some": some}, backups=backups) as lake:
        path = f"/v1/backup:{NAME}/namespaces/shop/tables"
        for name, shown in (("all", sorted(names)), ("some", ["orders"])):
            listing = (await lake.as_(name, "GET", path)).json["identifiers"]
            assert [entry["name"] for entry in listing] == shown
        paged = (await lake.as_("all", "GET", f"{path}?pageToken=&pageSize=2")).json
        assert [entry["name"] for entry in paged["identifiers"]] == ["gone", "orders"]
        rest = (await lake.as_("all", "GET", f"{path}?pageToken={paged['next-page-token']}&pageSize=2")).json
        assert ([entry["name"] for entry in rest["identifiers"]], rest["next-page-token"]) == (["secret"], None)


async def test_a_caller_without_a_credential_does_not_learn_which_backups_there_are(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, RULES, backups=FixedBackups({})) as lake:
        for name in (NAME, "latest", "20000101T000000Z-00000000"):
            for path in (f"/v1/config?warehouse=backup:{name}", f"/v1/backup:{name}/namespaces"):
                assert (await lake.as_("anonymous", "GET", path)).status == 401
        assert (await lake.as_("topic", "GET", f"/v1/config?warehouse=backup:{NAME}")).status == 200
        assert (await lake.as_("anonymous", "GET", "/v1/config")).status == 200


async def test_a_root_does_not_choose_which_file_is_read(world: BackupWorld) -> None:
    """A target that others may write to must not open the files of this machine."""
    root = await world.back_up()
    secret = world.folder / "secret.json"
    secret.write_bytes(b'{"password": "canary"}')
    (topic,) = root.topics
    assert topic.table is not None
    table_cut = msgspec.structs.replace(topic.table, view="../secret.json")
    forged = msgspec.structs.replace(root, topics=[msgspec.structs.replace(topic, table=table_cut)])
    await world.target.put(root_name(root.id), encode_document(forged))
    answer = await client_of(world).sent("GET", f"/backup:{root.id}{TABLE}")
    assert (answer.status, b"canary" in answer.body) == (200, False)


async def test_indexes_of_views_are_bounded(world: BackupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKUP_VIEW_TABLES_MAX", 4)
    backups = ViewedBackups(lambda: world.target)
    roots = [await world.back_up() for _ in range(4)]
    for root in roots:
        assert str(ORDERS) in {table.topic for table in (await backups.find(root.id)).tables.values()}
    assert list(backups._indexes) == [root.id for root in roots[2:]]
    assert (await backups.find(roots[0].id)).id == roots[0].id
