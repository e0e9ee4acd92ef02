"""Snapshots of a node: when they are due, what goes when they are stored, and what a failing one costs: nothing."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
from pathlib import Path

import pytest

from icestream import limits
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import open_metadata
from icestream.metadata.snapshot_file import SnapshotWriter, snapshot_index
from icestream.runtime.native import native
from icestream.wal.sink import NativeSink
from tests.support.fake_clock import FakeClock
from tests.support.metadata_machine import MetadataMachine, contents, settle, state_bytes

pytestmark = pytest.mark.asyncio


def names(machine: MetadataMachine, kind: str) -> list[str]:
    return [name for name in machine.disk.names() if name.startswith(kind)]


async def put_some(store: NodeStore, count: int, size: int = 1000) -> None:
    for number in range(count):
        await store.put(f"/{number % 4}", b"%d" % number + bytes(size))
        await settle()


async def test_a_snapshot_is_taken_when_the_log_has_grown_and_covered_files_are_removed() -> None:
    machine = MetadataMachine(snapshot_every_bytes=20 * limits.KIB)
    store = await machine.start()
    await put_some(store, 100)
    assert len(names(machine, "snapshot-")) == limits.METADATA_SNAPSHOTS_KEPT
    assert names(machine, "log-")[0] != "log-0000000000000001.wal"
    assert machine.disk.used_bytes() < 12 * 16 * limits.KIB, "the log does not grow for ever"
    before = state_bytes(store)
    await machine.power_loss()
    store = await machine.start()
    assert store.report.snapshot_index > 50
    assert state_bytes(store) == before


async def test_the_name_of_a_snapshot_contains_its_digest() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await put_some(store, 3)
    await store.snapshots.take()
    (name,) = names(machine, "snapshot-")
    assert snapshot_index(name) == store.node.applied_index == 4
    assert name.endswith(hashlib.sha256(state_bytes(store)).hexdigest())
    assert machine.disk.content(name)[512:] == state_bytes(store)


async def test_covered_entries_are_forgotten_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_COMPACT_SLICE", 10)
    machine = MetadataMachine()
    store = await machine.start()
    await put_some(store, 44, size=0)
    forgotten = [0]
    compact = store.node._core.compact

    def noted(index: int) -> None:
        forgotten.append(index)
        compact(index)

    monkeypatch.setattr(store.node._core, "compact", noted)
    await store.snapshots.take()
    steps = [later - earlier for earlier, later in itertools.pairwise(forgotten)]
    assert max(steps) <= 11
    assert forgotten[-1] == store.node.applied_index == 45
    assert store.node.status()["first"] == 46


async def test_an_unchanged_state_is_one_snapshot() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await put_some(store, 3)
    await store.snapshots.take()
    await store.snapshots.take()
    assert len(names(machine, "snapshot-")) == 1
    await machine.kill()
    assert len(await contents(await machine.start())) == 3


async def test_a_file_covered_only_by_the_newest_snapshot_is_kept() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await put_some(store, 30)
    await store.snapshots.take()
    assert names(machine, "log-")[0] == "log-0000000000000001.wal", "one snapshot alone frees nothing"
    await put_some(store, 30)
    await store.snapshots.take()
    assert names(machine, "log-")[0] != "log-0000000000000001.wal"
    first, newest, older = store.node._log.files[0], *store.node._log.snapshots
    assert older.head.index < first.last_index <= newest.head.index


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory", "remove"])
async def test_a_failed_snapshot_is_harmless_and_the_next_succeeds(operation: str) -> None:
    machine = MetadataMachine(snapshot_every_bytes=20 * limits.KIB)
    store = await machine.start()
    await put_some(store, 40)
    machine.disk.fail(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        await store.snapshots.take()
    assert store.is_ready
    assert names(machine, "snapshot-")
    await put_some(store, 40)
    assert store.report.bad_snapshots == []
    assert [name for name in machine.disk.names() if name.endswith(".tmp")] == []
    before = await contents(store)
    await machine.power_loss()
    assert await contents(await machine.start()) == before


async def test_a_failing_attempt_is_not_repeated_at_every_command() -> None:
    machine = MetadataMachine(snapshot_every_bytes=20 * limits.KIB, log_file_bytes=limits.MIB)
    store = await machine.start()
    machine.disk.operations.clear()
    for _ in range(100):
        machine.disk.fail("rename", errno.EIO)
    await put_some(store, 60)
    attempts = sum(
        operation == "create" and what.startswith("snapshot-") for operation, what in machine.disk.operations
    )
    assert 2 <= attempts <= 15
    assert names(machine, "snapshot-") == []
    machine.disk.heal()
    await put_some(store, 10)
    assert len(names(machine, "snapshot-")) == 1


async def test_commands_are_answered_while_a_snapshot_is_written() -> None:
    machine = MetadataMachine(log_file_bytes=8 * limits.MIB)
    store = await machine.start()
    for start in range(0, 6000, 1000):
        await asyncio.gather(*(store.put(f"/{number:05d}", b"old") for number in range(start, start + 1000)))
    whole = state_bytes(store)
    taking = asyncio.ensure_future(store.snapshots.take())
    answered = 0
    while not taking.done():
        await store.put(f"/{answered * 37 % 4000:05d}", b"new")
        await store.delete(f"/{answered * 41 % 4000:05d}")
        answered += 1
    await taking
    assert answered >= 3
    (name,) = names(machine, "snapshot-")
    assert machine.disk.content(name)[512:] == whole
    before = state_bytes(store)
    await machine.kill()
    assert state_bytes(await machine.start()) == before


async def test_hazard_28_a_snapshot_pauses_as_long_as_it_works_and_writes_in_few_pieces() -> None:
    machine = MetadataMachine(log_file_bytes=8 * limits.MIB)
    machine.clock = clock = FakeClock(auto_advance=True)
    store = await machine.start()
    await asyncio.gather(*(store.put(f"/{number:05d}", b"") for number in range(4 * 512)))
    machine.disk.operations.clear()
    clock.sleeps.clear()
    clock.read_cost_seconds = 0.001
    await store.snapshots.take()
    clock.read_cost_seconds = 0
    assert len(clock.sleeps) >= 5, "its head, four chunks, and the rest"
    assert all(rest >= 0.001 for rest in clock.sleeps)
    writes = [operation for operation in machine.disk.operations if operation[0] == "write"]
    assert len(writes) == 2, "its first page, and everything"
    await store.close()


@pytest.mark.skipif(native is None, reason="without the native part every sync is on the loop")
async def test_hazard_28_no_sync_is_waited_for_while_a_snapshot_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_metadata(tmp_path)
    await store.ready()
    await store.put("/a", b"")
    sink = store.snapshots.log._sink
    assert isinstance(sink, NativeSink)
    seen: list[bool] = []
    add = SnapshotWriter.add

    def noting(self: SnapshotWriter, data: bytes) -> None:
        seen.append(sink.is_disk_busy)
        add(self, data)

    monkeypatch.setattr(SnapshotWriter, "add", noting)
    await store.snapshots.take()
    assert seen == [True]
    assert not sink.is_disk_busy
    await store.close()


async def test_close_cancels_a_snapshot_in_progress() -> None:
    machine = MetadataMachine(snapshot_every_bytes=1)
    store = await machine.start()
    await store.put("/a", b"")
    await store.close()
    machine.disk.power_loss()
    assert await contents(await machine.start()) == {"/a": b""}


async def test_the_core_gets_the_entries_that_it_may_forget() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await put_some(store, 3)
    await store.snapshots.take()
    assert store.snapshots._core.status()["first"] == 5


async def test_a_requested_snapshot_is_retried_although_the_log_does_not_grow() -> None:
    """A new member waits for it, and takes no older one (trap 14)."""
    machine = MetadataMachine(log_file_bytes=limits.MIB)
    store = await machine.start()
    await put_some(store, 5)
    machine.disk.fail("create", errno.ENOSPC)
    store.snapshots.request()
    await settle()
    assert names(machine, "snapshot-") == []
    await put_some(store, 5)
    assert names(machine, "snapshot-") == [], "not at every command"
    machine.clock.advance(limits.METADATA_SNAPSHOT_RETRY_SECONDS)
    await settle()
    assert len(names(machine, "snapshot-")) == 1
