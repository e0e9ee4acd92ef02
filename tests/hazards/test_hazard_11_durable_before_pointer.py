"""Hazard 11: what a pointer names is on disk before the pointer moves. A crash leaves the old table or the new one."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import error_codes, errors, limits
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.identifier import Identifier
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from tests.support.metadata_machine import MetadataMachine
from tests.support.tables import NOW_MS, SCHEMA, add, point, snapshot
from tests.support.topic_tables import ENVELOPE, LEASE, TOPIC, TOPIC_ID, appending, claim
from tests.support.warehouse import NS, TABLE, CatalogWorld, files_on

pytestmark = pytest.mark.asyncio

PROPERTY = CommitRequest([], [{"action": "set-properties", "updates": {"a": "b"}}])


def compacted(world: CatalogWorld, location: str) -> CommitRequest:
    """A commit of another engine, whose files were written and never synced."""
    for name in ("metadata/snap-1.avro", "metadata/manifest-1.avro", "data/rows-1.parquet"):
        world.write(f"{location}/{name}", name.encode() * 100)
    added = snapshot(1, **{"manifest-list": f"{location}/metadata/snap-1.avro", "timestamp-ms": NOW_MS})
    return CommitRequest([], [add(added), point("main", 1)])


async def test_hazard_11_files_of_other_engines_are_synced_before_the_pointer_moves() -> None:
    world = CatalogWorld()
    await world.with_table()
    location = (await world.catalog.tables.load(TABLE)).table.location
    await world.catalog.commits.commit(TABLE, compacted(world, location))
    world.disk.power_loss()
    for name in ("metadata/snap-1.avro", "metadata/manifest-1.avro", "data/rows-1.parquet"):
        assert world.disk.content(f"{location}/{name}".removeprefix("file:")) == name.encode() * 100
    assert (await world.another(9).tables.load(TABLE)).table.current_snapshot_id == 1


async def test_hazard_11_one_sync_covers_files_of_engines_and_our_own() -> None:
    world = CatalogWorld()
    await world.with_table()
    location = (await world.catalog.tables.load(TABLE)).table.location
    commit_request = compacted(world, location)
    world.disk.operations.clear()
    await world.catalog.commits.commit(TABLE, commit_request)
    kinds = [kind for kind, _ in world.disk.operations if kind != "write"]
    assert kinds == ["create", "sync_disk", "sync_directory"], "the last one is how the simulated disk syncs names"


@pytest.mark.parametrize(
    "update",
    [
        {"action": "set-properties", "updates": {"a": "b"}},
        {"action": "set-location", "location": "file:/warehouse/elsewhere"},
    ],
)
async def test_hazard_11_a_commit_that_names_no_new_file_syncs_only_its_own(update: dict[str, Any]) -> None:
    world = CatalogWorld()
    await world.with_table()
    world.disk.operations.clear()
    await world.catalog.commits.commit(TABLE, CommitRequest([], [update]))
    kinds = [kind for kind, _ in world.disk.operations if kind != "write"]
    assert kinds == ["create", "sync", "sync_directory"]


async def test_hazard_11_a_round_syncs_its_files_itself() -> None:
    world = CatalogWorld()
    await world.with_table(schema=ENVELOPE)
    await world.store.put("/pipeline/lease", b'{"epoch":5}')
    await world.catalog.topics.bind(TABLE, TOPIC, TOPIC_ID, {0: (0, 0)})
    loaded = await world.catalog.commits.load(TABLE)
    world.disk.operations.clear()
    commit_request = CommitRequest([claim(1, (0, 0, 0, 10))], appending(loaded.state, 9))
    done = await world.catalog.commits.commit(TABLE, commit_request)
    assert done.table.current_snapshot_id == 9
    assert "sync_disk" not in {kind for kind, _ in world.disk.operations}
    assert LEASE == 5


async def test_hazard_11_a_registered_table_is_synced_first() -> None:
    world = CatalogWorld()
    await world.with_table()
    loaded = await world.catalog.tables.load(TABLE)
    await world.catalog.tables.drop(TABLE)
    copy = f"{loaded.table.location}/metadata/00007-copy.metadata.json"
    world.write(copy, loaded.table.encode())
    await world.catalog.tables.register(TABLE, copy)
    world.disk.power_loss()
    assert (await world.another(9).tables.load(TABLE)).location == copy


@pytest.mark.parametrize("path", ["write.data.path", "write.object-storage.path", "write.metadata.path"])
async def test_hazard_11_files_on_another_disk_are_synced_too(path: str) -> None:
    """An engine writes where the table's properties say; that disk has a sync of its own."""
    world = CatalogWorld(mounts_at=("/warehouse/large",))
    await world.with_table(properties={path: "file:/warehouse/large/t"})
    location = (await world.catalog.tables.load(TABLE)).table.location
    world.write("file:/warehouse/large/t/rows-1.parquet", b"rows")
    world.disk.operations.clear()
    await world.catalog.commits.commit(TABLE, compacted(world, location))
    synced = [place for kind, place in world.disk.operations if kind == "sync_disk"]
    assert len(synced) == 2, "each disk once"
    assert {place.startswith("/warehouse/large/") for place in synced} == {True, False}


async def test_hazard_11_one_disk_is_synced_once() -> None:
    world = CatalogWorld()
    await world.with_table(properties={"write.data.path": "file:/warehouse/large/t"})
    world.write("file:/warehouse/large/t/rows-1.parquet", b"rows")
    location = (await world.catalog.tables.load(TABLE)).table.location
    world.disk.operations.clear()
    await world.catalog.commits.commit(TABLE, compacted(world, location))
    assert [kind for kind, _ in world.disk.operations].count("sync_disk") == 1


@pytest.mark.parametrize("path", ["write.data.path", "write.metadata.path", "write.folder-storage.path"])
async def test_hazard_11_data_locations_outside_the_warehouse_are_refused(path: str) -> None:
    world = CatalogWorld()
    properties = {path: "file:/elsewhere"}
    with pytest.raises(errors.InvalidInput, match="outside of the warehouse"):
        await world.with_table(properties=properties)
    await world.with_table()
    with pytest.raises(errors.InvalidInput, match="outside of the warehouse"):
        await world.catalog.commits.commit(
            TABLE, CommitRequest([], [{"action": "set-properties", "updates": properties}])
        )


@pytest.mark.parametrize(("number", "kind"), [(5, errors.PersistentStorageError), (28, errors.DiskFull)])
async def test_hazard_11_a_disk_that_cannot_sync_refuses_the_commit(
    number: int, kind: type[errors.IcestreamError]
) -> None:
    """EIO and ENOSPC of what others wrote: certain, 503, and the table is as it was."""
    world = CatalogWorld()
    await world.with_table()
    before = await world.catalog.tables.load(TABLE)
    world.disk.fail("sync_disk", number)
    with pytest.raises(kind) as refused:
        await world.catalog.commits.commit(TABLE, compacted(world, before.table.location))
    assert error_codes.iceberg_error(refused.value)[0] == 503
    world.disk.heal()
    assert await world.catalog.tables.load(TABLE) == before


async def test_hazard_11_locations_outside_the_warehouse_are_not_touched() -> None:
    world = CatalogWorld()
    await world.with_table()
    added = snapshot(1, **{"manifest-list": "file:/etc/snap.avro", "timestamp-ms": NOW_MS})
    with pytest.raises(errors.InvalidInput, match="outside of the warehouse"):
        await world.catalog.commits.commit(TABLE, CommitRequest([], [add(added), point("main", 1)]))


# --- crashes ----------------------------------------------------------------------------------------------------------


class PowerLossMachine:
    """One machine: the disk of the metadata store, that of the warehouse, and both end together."""

    def __init__(self, seed: int) -> None:
        self.machine = MetadataMachine(seed, log_file_bytes=2**16)
        self.disk = SimulatedDisk(seed)

    async def start(self, seed: int = 1) -> tuple[CatalogWorld, Catalog]:
        world = CatalogWorld(await self.machine.start(), self.disk, seed)
        return world, world.catalog

    async def end(self, how: str) -> None:
        await self.machine.end(how)
        if how == "kill":
            self.disk.kill()
        else:
            self.disk.power_loss()


async def life(computer: PowerLossMachine, completed: list[str]) -> None:
    """One table through its life, commit by commit; what was answered is told."""
    world, catalog = await computer.start()
    await world.with_table()
    completed.append("created")
    await catalog.commits.commit(TABLE, PROPERTY)
    completed.append("changed")
    location = (await catalog.tables.load(TABLE)).table.location
    await catalog.commits.commit(TABLE, compacted(world, location))
    completed.append("compacted")
    await catalog.tables.rename(TABLE, Identifier(NS, "renamed"))
    completed.append("renamed")
    await catalog.tables.drop(Identifier(NS, "renamed"))
    completed.append("dropped")


STATES = ["nothing", "created", "changed", "compacted", "renamed", "dropped"]


async def state_of(computer: PowerLossMachine) -> str:
    """The state that a fresh start shows; checks that every listed table and every file of it can be read."""
    world, catalog = await computer.start(2)
    try:
        names = (await catalog.tables.list(NS, None, None)).names
    except errors.UnknownNamespace:
        return "nothing"
    assert len(names) <= 1, "under two names"
    if not names:
        return "none"
    table = (await catalog.tables.load(Identifier(NS, names[0]))).table
    for entry in table.snapshots:
        path = entry["manifest-list"].removeprefix("file:")
        assert world.disk.content(path) == b"metadata/snap-1.avro" * 100, "a snapshot whose list is not on disk"
        assert world.disk.content(path.replace("metadata/snap-1.avro", "data/rows-1.parquet"))
    if names == ["renamed"]:
        return "renamed"
    return "compacted" if len(table.snapshots) else "changed" if "a" in table.properties else "created"


@pytest.mark.parametrize("end", ["kill", "power loss"])
@pytest.mark.parametrize("which", ["warehouse", "store"])
async def test_hazard_11_a_crash_at_any_step_leaves_the_old_or_the_new_table(which: str, end: str) -> None:
    whole = PowerLossMachine(0)
    await life(whole, [])
    steps = len((whole.disk if which == "warehouse" else whole.machine.disk).operations)
    seen = set()
    for step in range(steps):
        computer, completed = PowerLossMachine(step), list[str]()
        (computer.disk if which == "warehouse" else computer.machine.disk).crash_after(step)
        assert not await computer.machine.survives(crashing(computer, completed))
        await computer.end(end)
        state = await state_of(computer)
        seen.add(state)
        check(state, completed)
        await computer.end("kill")
    assert {"created", "changed", *(("compacted", "renamed") if which == "store" else ())} <= seen


async def crashing(computer: PowerLossMachine, completed: list[str]) -> None:
    """A crash of the warehouse's disk ends the process like one of the store's."""
    await life(computer, completed)
    raise Crash


def check(state: str, completed: list[str]) -> None:
    """The state is at least the last reported step, and at most one step further."""
    last = STATES.index(completed[-1]) if completed else 0
    possible = STATES[last : last + 2]
    if state == "none":
        assert "dropped" in possible or not completed
    else:
        assert state in possible, (state, completed)


async def test_hazard_11_a_full_disk_refuses_the_commit_and_keeps_the_table() -> None:
    world = CatalogWorld()
    await world.with_table()
    before = await world.catalog.tables.load(TABLE)
    for operation in ("create", "write", "sync", "sync_directory"):
        world.disk.fail(operation, 28)  # ENOSPC
        with pytest.raises(errors.DiskFull):
            await world.catalog.commits.commit(TABLE, PROPERTY)
        world.disk.heal()
        assert await world.catalog.tables.load(TABLE) == before
        assert len(world.metadata_files()) == 1
    world.disk.fail("sync", 5)  # EIO
    with pytest.raises(errors.PersistentStorageError):
        await world.catalog.commits.commit(TABLE, PROPERTY)
    assert (await world.another(9).commits.commit(TABLE, PROPERTY)).table.properties["a"] == "b"
    assert SCHEMA["type"] == "struct"


async def test_hazard_11_many_manifests_share_a_sync_before_they_are_referenced() -> None:
    world = CatalogWorld()
    await world.with_table()
    location = (await world.catalog.tables.load(TABLE)).table.location
    names = [f"{location}/metadata/m{number}.avro" for number in range(limits.FILES_SYNCED_APART_MAX + 1)]
    await files_on(world.disk).create_all([(name, [b"one ", name.encode()]) for name in names])
    world.disk.power_loss()
    contents = [world.disk.content(name.removeprefix("file:")) for name in names]
    assert contents == [b"one " + name.encode() for name in names]


async def test_hazard_11_if_one_of_many_files_exists_none_of_the_others_is_left() -> None:
    world = CatalogWorld()
    await world.with_table()
    location = (await world.catalog.tables.load(TABLE)).table.location
    names = [f"{location}/metadata/m{number}.avro" for number in range(limits.FILES_SYNCED_APART_MAX + 1)]
    await files_on(world.disk).create(names[-1], [b"mine"])
    with pytest.raises(errors.IcestreamError):
        await files_on(world.disk).create_all([(name, [b"theirs"]) for name in names])
    assert [await files_on(world.disk).exists(name) for name in names] == [False] * (len(names) - 1) + [True]
    assert await files_on(world.disk).read(names[-1]) == b"mine"
