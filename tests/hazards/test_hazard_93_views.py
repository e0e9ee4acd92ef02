"""Hazard 93: views that are live, writable, or leak keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream.catalogs.store_options import StoreOptions
from icestream.lake.iceberg.lake_views import LIVE_WAREHOUSES, parse_time
from icestream.lake.iceberg.routes import ROUTES, VIEW_ROUTES
from tests.support.iceberg import IcebergClient, IcebergWorld, commit_of
from tests.support.secured_lake import secured_lake
from tests.support.tables import NOW_MS, add, point, snapshot
from tests.support.warehouse import WAREHOUSE

pytestmark = pytest.mark.asyncio

TABLE = "/namespaces/ns/tables/t"
FIRST = f"/at:{NOW_MS + 1_000}"  # when the first of two snapshots was current


@pytest_asyncio.fixture
async def world() -> IcebergWorld:
    """A table with two snapshots, the first of them tagged, and a table without."""
    world = IcebergWorld()
    client = await world.with_one()
    await client("POST", "/namespaces/ns/tables", {"name": "empty", "schema": {"type": "struct", "fields": []}})
    for number in (1, 2):
        world.clock.advance(1.0)
        updates = [add(snapshot(number, number - 1 or None)), point("main", number)]
        await client("POST", TABLE, commit_of(updates))
    await client("POST", TABLE, commit_of([point("release", 1, "tag")]))
    world.clock.advance(10.0)
    return world


@pytest.mark.parametrize(
    "name", ["backup:x", "bakcup:1", "at:", "at:2026-13-01", "at:1x", "at:a/b", "live", "AT:1", "s3://b/c"]
)
async def test_an_unknown_warehouse_is_refused(world: IcebergWorld, name: str) -> None:
    assert (await world.client.refused("GET", f"/config?warehouse={name}"))[:2] == (404, "NoSuchWarehouseException")
    if "/" not in name:
        answer = await world.client.refused("GET", f"/{name}{TABLE}")
        assert answer[:2] == (404, "NoSuchWarehouseException")


@pytest.mark.parametrize("name", [*LIVE_WAREHOUSES, WAREHOUSE, f"{WAREHOUSE.replace('file:/', 'file:///')}/"])
async def test_names_of_the_live_tables_have_no_prefix(world: IcebergWorld, name: str) -> None:
    config = await world.client("GET", f"/config?warehouse={name}")
    assert config["overrides"] == {}
    assert len(config["endpoints"]) == len(ROUTES) - 1


async def test_a_time_in_the_future_is_no_view(world: IcebergWorld) -> None:
    now_ms = world.clock.wall_us() // 1000
    assert (await world.client("GET", f"/config?warehouse=at:{now_ms}"))["overrides"] == {"prefix": f"at:{now_ms}"}
    assert (await world.client.refused("GET", f"/config?warehouse=at:{now_ms + 1}"))[0] == 404


async def test_all_spellings_of_a_time_are_one_view(world: IcebergWorld) -> None:
    spellings = ("2023-11-14T22:13:21Z", "2023-11-14T23:13:21%2B01:00", "2023-11-14T23:13:21+01:00")
    for spelling in (*spellings, "2023-11-14%2022:13:21", str(NOW_MS + 1_000)):
        config = await world.client("GET", f"/config?warehouse=at:{spelling}")
        assert config["overrides"] == {"prefix": FIRST[1:]}
    assert parse_time("2023-11-14") == 1_699_920_000_000
    assert parse_time("99999-01-01") is parse_time("today") is None


async def test_a_view_shows_the_tables_as_they_were(world: IcebergWorld) -> None:
    client = world.client
    live = await client("GET", TABLE)
    for prefix in (FIRST, "/at:release", FIRST.replace(":", "%3A")):
        then = await client("GET", f"{prefix}{TABLE}")
        assert then["metadata"]["current-snapshot-id"] == 1
        assert then["metadata"]["location"] == live["metadata"]["location"]
        assert then["metadata"]["table-uuid"] != live["metadata"]["table-uuid"]
        assert then["metadata-location"] not in world.metadata_files()
        assert (await client.sent("HEAD", f"{prefix}{TABLE}")).status == 204
    assert live["metadata"]["current-snapshot-id"] == 2
    before = f"/at:{NOW_MS - 1}"
    assert (await client("GET", f"{before}/namespaces/ns/tables"))["identifiers"] == []
    assert (await client("GET", f"{before}/namespaces"))["namespaces"] == [["ns"]]
    assert (await client.refused("GET", f"{before}{TABLE}"))[:2] == (404, "NoSuchTableException")
    names = (await client("GET", "/at:release/namespaces/ns/tables"))["identifiers"]
    assert names == [{"namespace": ["ns"], "name": "t"}]
    paged = await client("GET", f"{FIRST}/namespaces/ns/tables?pageToken=&pageSize=1")
    assert [paged["identifiers"][0]["name"], bool(paged["next-page-token"])] == ["empty", True]


async def test_expired_snapshots_are_named_and_not_empty(world: IcebergWorld) -> None:
    await world.client("POST", TABLE, commit_of([{"action": "remove-snapshot-ref", "ref-name": "release"}]))
    await world.client("POST", TABLE, commit_of([{"action": "remove-snapshots", "snapshot-ids": [1]}]))
    status, _, message = await world.client.refused("GET", f"{FIRST}{TABLE}")
    assert (status, "its history begins at 2023-11-14T22:13:22.000" in message) == (404, True)
    names = (await world.client("GET", f"{FIRST}/namespaces/ns/tables"))["identifiers"]
    assert {"namespace": ["ns"], "name": "t"} in names


@pytest.mark.parametrize(("method", "route"), sorted(ROUTES.keys() - VIEW_ROUTES.keys() - {("GET", "/v1/config")}))
async def test_a_view_refuses_everything_but_reads(world: IcebergWorld, method: str, route: str) -> None:
    before = await world.store.list_all("/"), world.disk.names()
    path = route.removeprefix("/v1").replace("{namespace}", "ns").replace("{table}", "t").replace("{view}", "v")
    answer = await world.client.sent(
        method, f"{FIRST}{path}", {}, idempotency_key="01890a5d-ac96-774b-bcce-b302099a8057"
    )
    assert answer.status == 403
    assert (await world.store.list_all("/"), world.disk.names()) == before


async def test_the_prefix_is_part_of_the_etag(world: IcebergWorld) -> None:
    client = world.client
    live = (await client.sent("GET", TABLE)).headers["etag"]
    first = (await client.sent("GET", f"{FIRST}{TABLE}")).headers["etag"]
    tagged = (await client.sent("GET", f"/at:release{TABLE}")).headers["etag"]
    assert len({live, first, tagged}) == 3
    assert (await client.sent("GET", f"{FIRST}{TABLE}", if_none_match=live)).status == 200
    assert (await client.sent("GET", f"{FIRST}{TABLE}", if_none_match=first)).status == 304


async def test_a_view_never_hands_out_the_keys_of_the_node(world: IcebergWorld) -> None:
    store = StoreOptions(kind="s3", access_key_id="id", secret_access_key="canary")
    client = IcebergClient(world.catalog, store=store, is_sharing_keys=True)
    header: Any = {"x_iceberg_access_delegation": "vended-credentials"}
    assert b"canary" in (await client.sent("GET", TABLE, **header)).body
    assert b"canary" not in (await client.sent("GET", f"{FIRST}{TABLE}", **header)).body
    assert (await client("GET", f"{FIRST}{TABLE}/credentials"))["storage-credentials"] == []


async def test_a_view_needs_the_rights_of_today(tmp_path: Path) -> None:
    rules = {"alice": ["describe,table-read on table:/ns/t"], "bob": ["describe on table:/ns/t"]}
    async with secured_lake(tmp_path, rules) as lake:
        prefix = f"/v1/at:{lake.clock.wall_us() // 1000}"
        answers = {
            name: (await lake.as_(name, "GET", f"{prefix}/namespaces/ns/tables/t")).status
            for name in ("alice", "bob", "anonymous")
        }
        assert answers == {"alice": 200, "bob": 403, "anonymous": 401}
        assert (await lake.as_("alice", "GET", f"{prefix}/namespaces/shop/tables/orders")).status == 404
        assert (await lake.as_("alice", "DELETE", f"{prefix}/namespaces/ns/tables/t")).status == 403
