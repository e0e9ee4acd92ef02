"""What every catalog promises, whatever keeps the tables: our own (in this process, over HTTP), SeaweedFS over REST,
Glue with files in S3, PostgreSQL with local files.

SeaweedFS differs in three answers, none of which harms us: it hands out a table that is created a second time, drops a
namespace that holds namespaces, and lists no tables in one that is not there. It does not register tables as it should,
which is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream import errors
from icestream.catalogs.table_catalog import CommitDone, CommitRefused, LoadedTable, TableCatalog, TableChange
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.processes.configured_catalog import open_catalog
from tests.support.catalog_servers import (
    CATALOG,
    KINDS,
    catalog_of,
    new_name,
    own_catalog,
    seaweed_flags,
    settings_of,
)
from tests.support.fault_proxy import fault_proxy
from tests.support.tables import SCHEMA, add, point

pytestmark = pytest.mark.asyncio

ASKED = {"schema": {**SCHEMA, "schema-id": 0}, "properties": {"owner": "shop"}}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def catalog(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TableCatalog]:
    async with catalog_of(kind, request, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def namespace(catalog: TableCatalog) -> Namespace:
    created = (new_name(),)
    await catalog.create_namespace(created, {"team": "a"})
    return created


@pytest_asyncio.fixture
async def table(catalog: TableCatalog, namespace: Namespace) -> Identifier:
    identifier = Identifier(namespace, "orders")
    await catalog.create(identifier, ASKED)
    return identifier


def appending(table: LoadedTable, number: int) -> TableChange:
    """A snapshot on top of what was found."""
    parent = table.current_snapshot_id
    snapshot = {
        "snapshot-id": number,
        "sequence-number": int(table.metadata["last-sequence-number"]) + 1,
        "timestamp-ms": int(table.metadata["last-updated-ms"]),
        "manifest-list": f"{table.metadata['location']}/metadata/snap-{number}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
        **({"parent-snapshot-id": parent} if parent is not None else {}),
    }
    return TableChange(
        [
            {"type": "assert-table-uuid", "uuid": table.uuid},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent},
        ],
        [add(snapshot), point("main", number)],
    )


def snapshots(table: LoadedTable) -> list[int]:
    return [snapshot["snapshot-id"] for snapshot in table.metadata.get("snapshots") or ()]


async def test_namespaces(catalog: TableCatalog, namespace: Namespace) -> None:
    assert namespace in await catalog.list_namespaces()
    assert (await catalog.load_namespace(namespace))["team"] == "a"
    with pytest.raises(errors.AlreadyExists):
        await catalog.create_namespace(namespace, {})
    await catalog.drop_namespace(namespace)
    assert namespace not in await catalog.list_namespaces()
    with pytest.raises(errors.UnknownNamespace):
        await catalog.load_namespace(namespace)
    with pytest.raises(errors.UnknownNamespace):
        await catalog.drop_namespace(namespace)


async def test_namespaces_in_namespaces(catalog: TableCatalog, namespace: Namespace, kind: str) -> None:
    inner = (*namespace, "eu")
    if kind == "glue":
        with pytest.raises(errors.InvalidInput, match="one level"):
            await catalog.create_namespace(inner, {})
        return
    await catalog.create_namespace(inner, {})
    assert await catalog.list_namespaces(namespace) == [inner]
    if kind != "rest":
        with pytest.raises(errors.NotEmpty):
            await catalog.drop_namespace(namespace)
    await catalog.drop_namespace(inner)
    assert await catalog.list_namespaces(namespace) == []


async def test_a_namespace_with_tables_cannot_be_dropped(catalog: TableCatalog, table: Identifier) -> None:
    with pytest.raises(errors.NotEmpty):
        await catalog.drop_namespace(table.namespace)
    assert await catalog.list_tables(table.namespace) == [table]


async def test_a_table_is_created_loaded_and_dropped(catalog: TableCatalog, table: Identifier, kind: str) -> None:
    loaded = await catalog.load(table)
    assert [field["name"] for field in loaded.metadata["schemas"][0]["fields"]] == ["id", "data", "at"]
    assert loaded.properties["owner"] == "shop"
    assert loaded.current_snapshot_id is None
    if kind != "rest":
        with pytest.raises(errors.AlreadyExists):
            await catalog.create(table, ASKED)
    assert (await catalog.load(table)).uuid == loaded.uuid
    await catalog.drop(table)
    assert await catalog.list_tables(table.namespace) == []
    with pytest.raises(errors.UnknownTable):
        await catalog.load(table)
    with pytest.raises(errors.UnknownTable):
        await catalog.drop(table)


async def test_missing_tables_and_namespaces_are_reported(
    catalog: TableCatalog, namespace: Namespace, kind: str
) -> None:
    nowhere = (new_name(),)
    if kind != "rest":
        with pytest.raises(errors.UnknownNamespace):
            await catalog.list_tables(nowhere)
    with pytest.raises(errors.UnknownTable):
        await catalog.load(Identifier(namespace, "missing"))
    with pytest.raises(errors.UnknownNamespace):
        await catalog.create(Identifier(nowhere, "t"), ASKED)
    with pytest.raises(errors.UnknownTable):
        await catalog.commit(Identifier(namespace, "missing"), TableChange([], []))


async def test_a_table_can_be_renamed(catalog: TableCatalog, table: Identifier) -> None:
    before = await catalog.load(table)
    target = Identifier(table.namespace, "renamed")
    await catalog.rename(table, target)
    assert (await catalog.load(target)).uuid == before.uuid
    assert await catalog.list_tables(table.namespace) == [target]
    with pytest.raises(errors.UnknownTable):
        await catalog.rename(table, Identifier(table.namespace, "third"))


async def test_an_existing_name_is_refused(catalog: TableCatalog, table: Identifier) -> None:
    other = Identifier(table.namespace, "other")
    created = await catalog.create(other, {**ASKED, "properties": {"owner": "other"}})
    with pytest.raises(errors.AlreadyExists):
        await catalog.rename(table, other)
    assert (await catalog.load(other)).uuid == created.uuid
    assert (await catalog.load(table)).uuid != created.uuid


async def test_a_table_is_registered_from_its_metadata_file(
    catalog: TableCatalog, table: Identifier, kind: str
) -> None:
    loaded = await catalog.load(table)
    location = loaded.metadata_location or ""
    other = Identifier(table.namespace, "registered")
    await catalog.check_registers()
    if kind == "rest":
        with pytest.raises(errors.UnexpectedAnswer, match="shows another table"):
            await catalog.register(other, location)
        return
    await catalog.drop(table)
    registered = await catalog.register(other, location)
    assert (registered.uuid, registered.metadata_location) == (loaded.uuid, location)
    assert isinstance(await catalog.commit(other, appending(registered, 11)), CommitDone)
    with pytest.raises(errors.AlreadyExists):
        await catalog.register(other, location)
    assert snapshots(await catalog.load(other)) == [11]
    with pytest.raises(errors.UnknownNamespace):
        await catalog.register(Identifier((new_name(),), "orders"), location)


async def test_a_commit_is_done(catalog: TableCatalog, table: Identifier) -> None:
    loaded = await catalog.load(table)
    outcome = await catalog.commit(table, appending(loaded, 11))
    assert isinstance(outcome, CommitDone)
    assert outcome.table is not None
    assert snapshots(outcome.table) == [11]
    after = await catalog.load(table)
    assert after.current_snapshot_id == 11
    assert isinstance(await catalog.commit(table, appending(after, 12)), CommitDone)
    assert snapshots(await catalog.load(table)) == [11, 12]


async def test_a_stale_commit_is_a_conflict_that_returns_the_table(catalog: TableCatalog, table: Identifier) -> None:
    loaded = await catalog.load(table)
    await catalog.commit(table, appending(loaded, 11))
    outcome = await catalog.commit(table, appending(loaded, 12))
    assert isinstance(outcome, CommitRefused)
    assert outcome.table is not None
    assert snapshots(outcome.table) == [11]
    assert isinstance(await catalog.commit(table, appending(outcome.table, 12)), CommitDone)


async def test_the_same_commit_twice_is_in_the_table_once(catalog: TableCatalog, table: Identifier, kind: str) -> None:
    """A driver that was cut off repeats its commit. Reading back after a conflict finds its own snapshot."""
    change = appending(await catalog.load(table), 11)
    await catalog.commit(table, change)
    again = await catalog.commit(table, change)
    assert isinstance(again, CommitDone if kind in ("rest", "embedded-http") else CommitRefused)
    assert snapshots(await catalog.load(table)) == [11]


async def test_properties_and_schemas_change(catalog: TableCatalog, table: Identifier) -> None:
    updates = [
        {"action": "set-properties", "updates": {"a": "1"}},
        {"action": "remove-properties", "removals": ["owner"]},
    ]
    assert isinstance(await catalog.commit(table, TableChange([], updates)), CommitDone)
    loaded = await catalog.load(table)
    assert loaded.properties["a"] == "1"
    assert "owner" not in loaded.properties
    wider = {**loaded.metadata["schemas"][0], "schema-id": 1}
    wider["fields"] = [*wider["fields"], {"id": 4, "name": "more", "type": "string", "required": False}]
    change = TableChange(
        [{"type": "assert-current-schema-id", "current-schema-id": loaded.metadata["current-schema-id"]}],
        [
            {"action": "add-schema", "schema": wider, "last-column-id": 4},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    )
    assert isinstance(await catalog.commit(table, change), CommitDone)
    now = await catalog.load(table)
    (current,) = [
        schema for schema in now.metadata["schemas"] if schema["schema-id"] == now.metadata["current-schema-id"]
    ]
    assert [field["name"] for field in current["fields"]] == ["id", "data", "at", "more"]


async def test_several_tables_each_have_an_outcome(catalog: TableCatalog, table: Identifier) -> None:
    other = Identifier(table.namespace, "other")
    stale = Identifier(table.namespace, "stale")
    for name in (other, stale):
        await catalog.create(name, ASKED)
    old = await catalog.load(stale)
    await catalog.commit(stale, appending(old, 10))
    changes = {identifier: appending(await catalog.load(identifier), 11) for identifier in (table, other)}
    outcomes = await catalog.commit_all({**changes, stale: appending(old, 11)})
    assert isinstance(outcomes[stale], CommitRefused)
    for name in changes:
        is_done = isinstance(outcomes[name], CommitDone)
        assert is_done or outcomes[name].is_bystander  # type: ignore[union-attr]
        assert snapshots(await catalog.load(name)) == ([11] if is_done else [])
    waiting = {
        identifier: change for identifier, change in changes.items() if not isinstance(outcomes[identifier], CommitDone)
    }
    if waiting:
        again = await catalog.commit_all(waiting)
        assert all(isinstance(outcome, CommitDone) for outcome in again.values())
    for name in changes:
        assert snapshots(await catalog.load(name)) == [11]


async def test_concurrent_commits_are_all_kept(catalog: TableCatalog, table: Identifier) -> None:
    """Three writers with three commits each on one table: every one is there, once."""

    async def write(writer: int) -> None:
        for number in range(3):
            while True:
                outcome = await catalog.commit(table, appending(await catalog.load(table), 100 * writer + number + 1))
                if isinstance(outcome, CommitDone):
                    break
                assert isinstance(outcome, CommitRefused), outcome

    await asyncio.gather(*map(write, range(3)))
    loaded = await catalog.load(table)
    assert sorted(snapshots(loaded)) == [100 * writer + number + 1 for writer in range(3) for number in range(3)]


# --- how a REST catalog is asked --------------------------------------------------------------------------------------


async def test_a_rejected_token_is_fetched_again(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("seaweed_server")
    async with fault_proxy(server.uri, rb"^GET /v1/lake/namespaces") as proxy:
        catalog = open_catalog(settings_of(*seaweed_flags(server, f"http://127.0.0.1:{proxy.port}")))
        proxy.plan("401")
        assert isinstance(await catalog.list_namespaces(), list)
        assert proxy.seen == 2
        await catalog.close()


@pytest.mark.parametrize(
    ("flag", "words"),
    [("credential=icestream:hunter2", "refuses a token"), ("token=hunter2", "Bearer token is invalid")],
)
async def test_rejected_credentials_are_reported_and_never_shown(
    flag: str, words: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("seaweed_server")
    catalog = open_catalog(settings_of(*seaweed_flags(server), f"{CATALOG}.{flag}"))
    with pytest.raises(errors.AccessDenied, match=words) as caught:
        await catalog.list_namespaces()
    assert "hunter2" not in f"{caught.value!r} {caught.value}"
    await catalog.close()


async def test_headers_are_sent_with_every_request(tmp_path: Path) -> None:
    async with own_catalog(tmp_path) as uri, fault_proxy(uri, rb"\r\n[xX]-[tT]enant: red\r\n") as proxy:
        flags = [f"{CATALOG}.uri=http://127.0.0.1:{proxy.port}", f"{CATALOG}.headers=X-Tenant: red"]
        catalog = open_catalog(settings_of(*flags))
        await catalog.list_namespaces()
        assert proxy.seen == 2  # the configuration, and the question
        await catalog.close()


async def test_a_server_that_is_no_catalog_is_reported() -> None:
    catalog = open_catalog(settings_of(f"{CATALOG}.uri=http://127.0.0.1:1", f"{CATALOG}.request_timeout_ms=5000"))
    with pytest.raises(errors.StorageUnavailable, match="cannot be reached"):
        await catalog.list_namespaces()
    await catalog.close()
