"""Hazard 10: promises over many keys. A crash at any step of a transaction of 200 keys leaves all of it or nothing."""

from __future__ import annotations

import asyncio

import pytest

from icestream.metadata import command as cmd
from icestream.metadata.node_store import NodeStore
from icestream.metadata.store import MemoryStore
from icestream.metadata.watch import Changes
from tests.support.held_sink import HeldSink
from tests.support.metadata_machine import MetadataMachine, contents, settle, turn

pytestmark = pytest.mark.asyncio

TABLES = [f"/tables/{number:03d}" for number in range(200)]
LEASE = "/leases/pipeline"


async def prepare(store: NodeStore) -> None:
    await store.txn([], [cmd.Put(key, b"old") for key in TABLES])
    await store.put(LEASE, b"driver 1")


async def commit(store: NodeStore) -> cmd.Done:
    """A commit over 200 tables: every pointer as it was read, and the lease still held."""
    compare: list[cmd.Compare] = [cmd.HasValue(key, b"old") for key in TABLES]
    return await store.txn([*compare, cmd.HasValue(LEASE, b"driver 1")], [cmd.Put(key, b"new") for key in TABLES])


async def rename(store: NodeStore) -> cmd.Done:
    return await store.txn([cmd.Absent("/renamed")], [cmd.Delete(TABLES[0]), cmd.Put("/renamed", b"old")])


async def all_steps(machine: MetadataMachine, completed: list[str]) -> None:
    store = await machine.start()
    await prepare(store)
    completed.append("prepared")
    assert (await rename(store)).held
    completed.append("renamed")
    await store.put(TABLES[0], b"old")
    assert (await commit(store)).held
    completed.append("committed")
    await store.snapshots.take()


@pytest.mark.parametrize("end", ["kill", "power loss"])
async def test_hazard_10_a_crash_at_any_step_is_all_or_nothing(end: str) -> None:
    whole = MetadataMachine(log_file_bytes=2**17)
    await all_steps(whole, [])
    steps = len(whole.disk.operations)
    assert steps > 15
    outcomes = set()
    for step in range(steps):
        machine, completed = MetadataMachine(seed=step, log_file_bytes=2**17), list[str]()
        machine.disk.crash_after(step)
        assert not await machine.survives(all_steps(machine, completed))
        await (machine.kill() if end == "kill" else machine.power_loss())
        stored = await contents(await machine.start())
        outcomes.add(check(stored, completed))
        await machine.kill()
    assert {"nothing", "prepared", "renamed", "committed"} <= outcomes


def check(stored: dict[str, bytes], completed: list[str]) -> str:
    """The last step that is stored; every step that was reported is stored."""
    values = [stored.get(key) for key in TABLES]
    assert len(set(values[1:])) == 1, "some tables are committed and some are not"
    assert (values[0] is None) or ("/renamed" in stored) or values[1] == b"old"
    is_renamed = "/renamed" in stored
    assert not (is_renamed and values[0] == b"old" and "renamed" not in completed and values[1] != b"old")
    state = "committed" if values[1] == b"new" else "renamed" if is_renamed else "prepared" if values[1] else "nothing"
    order = ["nothing", "prepared", "renamed", "committed"]
    assert order.index(state) >= (order.index(completed[-1]) if completed else 0)
    return state


async def test_hazard_10_a_renamed_table_always_has_exactly_one_name() -> None:
    """A reader that looks at any moment, also between write and sync, sees one of both."""
    machine, sink = MetadataMachine(log_file_bytes=2**17), HeldSink()
    store = await machine.open(sink)
    await turn(store, sink)
    preparing = asyncio.ensure_future(prepare(store))
    while not preparing.done():
        await turn(store, sink)
    renaming = asyncio.ensure_future(rename(store))
    looks = []
    while not renaming.done():
        looks.append((await store.get(TABLES[0]) is not None, await store.get("/renamed") is not None))
        await turn(store, sink, 1)
    looks.append((await store.get(TABLES[0]) is not None, await store.get("/renamed") is not None))
    assert set(looks) == {(True, False), (False, True)}


async def test_hazard_10_a_lease_that_ended_between_plan_and_commit_refuses() -> None:
    store = await MetadataMachine(log_file_bytes=2**17).start()
    await prepare(store)
    await store.put(LEASE, b"driver 2")
    assert (await commit(store)).held is False
    assert (await store.get(TABLES[7])).value == b"old"  # type: ignore[union-attr]


async def test_hazard_10_a_watch_delivers_a_transaction_as_one_event() -> None:
    store = await MetadataMachine(log_file_bytes=2**17).start()
    await prepare(store)
    watch = store.watch("/tables/", await store.revision())
    await commit(store)
    changes = await anext(watch)
    assert isinstance(changes, Changes)
    assert sorted(event.key for event in changes.events) == TABLES
    assert {event.revision for event in changes.events} == {changes.revision}


async def test_hazard_10_two_concurrent_commits_are_serialized() -> None:
    for store in (MemoryStore(), await MetadataMachine(log_file_bytes=2**17).start()):
        await prepare(store)  # type: ignore[arg-type]
        first, second = await asyncio.gather(commit(store), commit(store))  # type: ignore[arg-type]
        assert [first.held, second.held].count(True) == 1
        await settle()
