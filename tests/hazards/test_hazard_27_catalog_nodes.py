"""Hazards 27, 10, 11 and 28 as clients see them: several catalogs over one store, files and budgets."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import limits
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.iceberg import IcebergClient, IcebergWorld, commit_of, error_of, set_properties
from tests.support.tables import NOW_MS, SCHEMA, add, point, snapshot

pytestmark = pytest.mark.asyncio

TABLE = "/namespaces/ns/tables/t"


def nodes(world: IcebergWorld, count: int) -> list[IcebergClient]:
    return [IcebergClient(world.another(seed)) for seed in range(10, 10 + count)]


# --- 27 ---------------------------------------------------------------------------------------------------------------


async def test_hazard_27_a_commit_of_one_node_is_served_by_every_node_immediately() -> None:
    """Documents are kept in memory by the name of their file, which the store is asked for each time."""
    world = IcebergWorld()
    await world.with_one()
    clients = nodes(world, 3)
    for number in range(12):
        writer, *readers = clients[number % 3 :] + clients[: number % 3]
        committed = await writer("POST", TABLE, set_properties(n=str(number)))
        for reader in readers:
            assert (await reader("GET", TABLE)) == committed
            tag = (await writer.sent("GET", TABLE)).headers["etag"]
            assert (await reader.sent("GET", TABLE, if_none_match=tag)).status == 304
    renamed = {"source": {"namespace": ["ns"], "name": "t"}, "destination": {"namespace": ["ns"], "name": "u"}}
    await clients[0]("POST", "/tables/rename", renamed)
    for client in clients:
        assert (await client.sent("HEAD", TABLE)).status == 404
        assert (await client.sent("HEAD", "/namespaces/ns/tables/u")).status == 204


async def test_hazard_27_a_commit_through_another_node_conflicts_only_when_the_requirements_do() -> None:
    world = IcebergWorld()
    await world.with_one()
    node, other = nodes(world, 2)
    await other("GET", TABLE)  # what it knows grows old
    needs = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}
    first = commit_of([add(snapshot(1)), point("main", 1)], needs)
    await node("POST", TABLE, first)
    assert (await other.refused("POST", TABLE, commit_of([add(snapshot(2)), point("main", 2)], needs)))[0] == 409
    fresh = {**needs, "snapshot-id": 1}
    await other("POST", TABLE, commit_of([add(snapshot(2, 1)), point("main", 2)], fresh))
    assert [entry["snapshot-id"] for entry in (await node("GET", TABLE))["metadata"]["snapshots"]] == [1, 2]


async def test_hazard_27_an_old_file_that_another_node_removed_is_never_served() -> None:
    world = IcebergWorld()
    client = await world.with_one(
        properties={"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    )
    catalogs = [world.another(seed) for seed in (10, 11)]
    slow, fast = (IcebergClient(catalog) for catalog in catalogs)
    await slow("GET", TABLE)
    for number in range(4):
        await fast("POST", TABLE, set_properties(n=str(number)))
    assert len(world.metadata_files()) == 5
    world.clock.advance(3_600)
    assert [None async for _ in world.cleanup_of(catalogs[1]).work()]
    assert len(world.metadata_files()) == 2
    loaded = await slow("GET", TABLE)
    assert loaded["metadata"]["properties"]["n"] == "3"
    assert loaded == await client("GET", TABLE)


# --- 10 and 11 --------------------------------------------------------------------------------------------------------


async def test_hazard_10_a_transaction_of_200_tables_is_one_revision() -> None:
    world = IcebergWorld()
    client = await world.with_one()
    names = [f"t{number}" for number in range(200)]
    for name in names:
        await client("POST", "/namespaces/ns/tables", {"name": name, "schema": SCHEMA})
    before = await world.store.revision()
    changes = [{"identifier": {"namespace": ["ns"], "name": name}, **set_properties(a="b")} for name in names]
    assert (await client.sent("POST", "/transactions/commit", {"table-changes": changes})).status == 204
    assert await world.store.revision() == before + 1
    many = changes * 3
    for number, change in enumerate(many):
        many[number] = {**change, "identifier": {"namespace": ["ns"], "name": f"x{number}"}}
    status, kind, words = await client.refused("POST", "/transactions/commit", {"table-changes": many})
    assert (status, kind) == (400, "IllegalArgumentException")
    assert str(limits.CATALOG_TRANSACTION_TABLES_MAX) in words


async def test_hazard_11_acknowledged_commits_survive_a_power_loss_with_files_of_engines() -> None:
    world = IcebergWorld()
    client = await world.with_one()
    location = (await client("GET", TABLE))["metadata"]["location"]
    names = ("metadata/snap-1.avro", "metadata/manifest-1.avro", "data/rows-1.parquet")
    for name in names:
        world.write(f"{location}/{name}", name.encode() * 100)
    added = snapshot(1, **{"manifest-list": f"{location}/metadata/snap-1.avro", "timestamp-ms": NOW_MS})
    committed = await client("POST", TABLE, commit_of([add(added), point("main", 1)]))
    world.disk.power_loss()
    after = IcebergClient(world.another(9))
    assert await after("GET", TABLE) == committed
    for name in names:
        assert world.disk.content(f"{location}/{name}".removeprefix("file:")) == name.encode() * 100


async def test_hazard_11_a_full_disk_is_503_and_keeps_the_table() -> None:
    world = IcebergWorld()
    client = await world.with_one()
    before = await client("GET", TABLE)
    world.disk.fail("write", 28)
    answer = await client.sent("POST", TABLE, set_properties(a="b"))
    assert error_of(answer)[:2] == (503, "ServiceUnavailableException")
    world.disk.heal()
    assert await client("GET", TABLE) == before
    await client("POST", TABLE, set_properties(a="b"))


# --- 28 ---------------------------------------------------------------------------------------------------------------


async def test_hazard_28_records_too_large_for_the_metadata_store_are_refused() -> None:
    world = IcebergWorld()
    client = await world.with_one()
    large = {"x": "y" * limits.METADATA_VALUE_BYTES_MAX}
    for path, body in (
        ("/namespaces", {"namespace": ["big"], "properties": large}),
        ("/namespaces/ns/properties", {"updates": large}),
        ("/namespaces", {"namespace": ["x" * 600]}),
        ("/namespaces", {"namespace": ["x"] * (limits.CATALOG_LEVELS_MAX + 1)}),
    ):
        assert (await client.refused("POST", path, body))[0] == 400, path
    assert await client("POST", TABLE, commit_of([{"action": "set-properties", "updates": large}])), (
        "a large document is in a file"
    )
    assert (await client("GET", "/namespaces"))["namespaces"] == [["ns"]]


async def test_hazard_28_a_full_metadata_store_is_503_and_leaves_no_file() -> None:
    store = FaultyStore(SimulatedClock())
    world = IcebergWorld(store=store)
    client = await world.with_one()
    files = world.metadata_files()
    store.refuse = lambda _: True
    requests: list[tuple[str, Any]] = [
        ("/namespaces", {"namespace": ["a"]}),
        ("/namespaces/ns/tables", {"name": "u", "schema": SCHEMA}),
        (TABLE, set_properties(a="b")),
    ]
    for path, body in requests:
        assert (await client.refused("POST", path, body))[:2] == (503, "ServiceUnavailableException")
    assert world.metadata_files() == files
    store.refuse = lambda _: False
    for path, body in requests:
        await client("POST", path, body)
