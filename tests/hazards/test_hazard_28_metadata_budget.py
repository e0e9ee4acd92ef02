"""Hazard 28: what the metadata store may hold, and that a snapshot of all of it never holds up the loop.

Work is counted, not timed: a slice of a snapshot visits at most 512 keys or 1 MiB, which is about 1 ms.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import open_metadata
from icestream.metadata.snapshot import Frozen, encode_snapshot, load_snapshot
from icestream.metadata.state_machine import Budget, StateMachine
from tests.support.metadata_machine import MetadataMachine, contents, reader_of

MANY = 100_000
A_MILLION = 1_000_000


def filled(count: int) -> StateMachine:
    machine = StateMachine()
    machine.restore(count, 0, ((key(number), Entry(b"v%d" % number, 1, number + 1, 1, 0)) for number in range(count)))
    return machine


def key(number: int) -> str:
    return f"/subscriptions/{number:07d}/cursor"


def check_snapshot_beside_commands(machine: StateMachine, count: int) -> None:
    """Between any two slices a command is applied; no slice does more than it may, and the bytes are of one moment."""
    revision = machine.revision
    frozen = Frozen(machine)
    parts, largest = [], 0
    for number, part in enumerate(frozen.slices()):
        parts.append(part)
        largest = max(largest, len(part))
        changed = key(number * 7919 % count)
        command: cmd.Command = cmd.Delete(changed) if number % 3 else cmd.Put(changed, b"changed beside it")
        machine.apply(cmd.Envelope(cmd.VERSION, b"", 0, 0, command))
    frozen.end()
    assert len(parts) > count // limits.METADATA_SNAPSHOT_SLICE_ENTRIES
    assert frozen.visited_most <= limits.METADATA_SNAPSHOT_SLICE_ENTRIES
    assert largest < limits.METADATA_SNAPSHOT_SLICE_BYTES + limits.METADATA_VALUE_BYTES_MAX + 100 * limits.KIB
    loaded = load_snapshot(reader_of(b"".join(parts)))
    assert loaded.revision == revision < machine.revision
    assert len(loaded.entries) == count
    assert all(entry.value != b"changed beside it" for _, entry in loaded.entries.items())


def test_hazard_28_many_keys_and_a_snapshot_beside_commands() -> None:
    check_snapshot_beside_commands(filled(MANY), MANY)


@pytest.mark.chaos
def test_hazard_28_a_million_keys_and_a_snapshot_beside_commands() -> None:
    machine = filled(A_MILLION)
    answer = machine.apply(cmd.Envelope(cmd.VERSION, b"", 0, 0, cmd.Put("/one more", b""))).answer
    assert isinstance(answer, cmd.Rejected)
    assert answer.code == "metadata_full"
    check_snapshot_beside_commands(machine, A_MILLION)


@pytest.mark.asyncio
async def test_hazard_28_a_node_answers_while_it_writes_its_snapshot(tmp_path: Path) -> None:
    """On a real disk, with its threads: between two slices the loop turns, and commands are applied and answered."""
    store = await open_metadata(tmp_path)
    await store.ready()
    for start in range(0, 20_000, 1_000):
        await store.txn([], [cmd.Put(key(number), bytes(50)) for number in range(start, start + 1_000)])
    taking = asyncio.ensure_future(store.snapshots.take())
    turns = answered = 0
    putting = asyncio.ensure_future(put_many(store))
    while not taking.done():
        await asyncio.sleep(0)
        turns += 1
    answered = (await store.get("/answered")) is not None
    putting.cancel()
    await asyncio.gather(putting, return_exceptions=True)
    await taking
    assert turns > 20_000 // limits.METADATA_SNAPSHOT_SLICE_ENTRIES
    assert answered
    await store.close()
    before = encode_snapshot(store.node.machine)
    store = await open_metadata(tmp_path)
    await store.ready()
    assert store.report.snapshot_index > 0
    assert encode_snapshot(store.node.machine) == before
    await store.close()


async def put_many(store: NodeStore) -> None:
    while True:
        await store.put("/answered", b"")


@pytest.mark.asyncio
async def test_hazard_28_a_full_store_refuses_and_accepts_again_after_deletes() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    store.node.machine._budget = Budget(keys=3)
    for number in range(3):
        await store.put(f"/{number}", b"")
    with pytest.raises(errors.MetadataFull, match="at most 3 fit") as caught:
        await store.put("/3", b"")
    assert caught.value.retryable
    await store.put("/1", b"replaced")
    await store.txn([], [cmd.Delete("/0"), cmd.Put("/3", b"")])
    assert set(await contents(store)) == {"/1", "/2", "/3"}


@pytest.mark.asyncio
async def test_hazard_28_a_value_beyond_its_bound_is_refused() -> None:
    store = await MetadataMachine(log_file_bytes=limits.METADATA_LOG_FILE_BYTES).start()
    await store.put("/largest", bytes(limits.METADATA_VALUE_BYTES_MAX))
    with pytest.raises(errors.InvalidInput, match="limit 65536"):
        await store.put("/too large", bytes(limits.METADATA_VALUE_BYTES_MAX + 1))
    assert await store.revision() == 1
