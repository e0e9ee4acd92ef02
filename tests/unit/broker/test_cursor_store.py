"""Cursors: the seed's key and fields, when they are written, and what a crash repeats."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.cursor_store import CursorStore
from icestream.broker.records import CursorRecord, as_steps
from icestream.broker.service import Broker
from icestream.metadata.command import Put
from icestream.metadata.store import MemoryStore
from icestream.model import SyncMode
from icestream.model.subscription_options import FailurePolicy, StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.runtime.clock import SimulatedClock
from tests.support.broker_machine import TOPIC, BrokerMachine, SubscriptionReader, publish, quiet, subscribe
from tests.support.faulty_store import FaultyStore

pytestmark = pytest.mark.asyncio

SEED = "/persistent_storage/iceberg/subscriptions"
SHARED = SubscriptionType.SHARED
PATIENT = FailurePolicy(ack_timeout_ms=10**8)


async def started(machine: BrokerMachine, messages: int = 20, shards: int = 1) -> tuple[Broker, SubscriptionReader]:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC, shards)
    producer = await broker.open_producer(TOPIC, "p")
    await publish(broker, producer, *[b"x"] * messages)
    reader = await subscribe(broker, kind=SHARED, failure=PATIENT)
    await quiet()
    return broker, reader


async def stored(machine: BrokerMachine, key: str = f"{SEED}/s/default/a") -> dict[str, Any]:
    entry = await machine.store.get(key)
    assert entry is not None
    cursor: dict[str, Any] = json.loads(entry.value)
    return cursor


# --- what is written ---


async def test_a_cursor_has_the_seed_s_key_and_fields() -> None:
    machine = BrokerMachine()
    _, reader = await started(machine)
    acked_ms = machine.clock.wall_us() // 1000
    reader.ack(0, 1, 2, 5, 6, 9)
    await machine.pass_time(11)
    cursor = await stored(machine)
    assert set(cursor) >= {"snapshot_id", "file_path", "row_offset", "updated_ms", "offset", "acked"}
    assert (cursor["snapshot_id"], cursor["file_path"], cursor["row_offset"]) == (None, None, None)
    assert (cursor["offset"], cursor["acked"]) == (3, [2, 2, 2, 1]), (
        "below 3, and from there two further two, two further one"
    )
    assert cursor["updated_ms"] == acked_ms + 10_000
    assert (cursor["topic_id"], cursor["epoch"], cursor["generation"]) == (1, 0, 0)


async def test_each_shard_of_a_sharded_topic_has_its_own() -> None:
    machine = BrokerMachine()
    broker, _ = await started(machine, shards=3)
    await broker.create_topic(TopicName("default", "single"))
    await broker.create_subscription(TopicName("default", "single"), "name with spaces", SHARED)
    keys = [key for key, _ in await machine.store.list_all(SEED)]
    assert keys == [
        f"{SEED}/name with spaces/default/single",
        *(f"{SEED}/s/default/a-part-{shard}" for shard in range(3)),
    ]


async def test_the_largest_cursor_fits_a_value_of_the_metadata_store() -> None:
    """4,096 ranges over a million messages, gaps among them, and as many failures as are stored."""
    step = limits.ACKED_SPAN_OFFSETS_MAX // limits.ACKED_RANGES_MAX
    ranges, at = [], 10**15
    for number in range(limits.ACKED_RANGES_MAX + limits.GAPS_PER_SHARD_MAX):
        at += step // 2 if number % 5 else limits.RESERVE_BLOCK_OFFSETS
        ranges.append((at, at + step // 2))
        at += step // 2
    failures = [(end, end + 1, limits.FAILURE_POLICY_VALUE_MAX + 1) for _, end in ranges[: limits.STORED_ATTEMPTS_MAX]]
    acked, attempts = as_steps(10**15, ranges), as_steps(10**15, failures)
    record = CursorRecord(10**13, 10**15, 2**62, 2**31, 10**9, acked, attempts, 2**62, "f" * 500, 2**62)
    assert len(records.encode(record)) < limits.METADATA_VALUE_BYTES_MAX
    assert records.decode(CursorRecord, "key", records.encode(record)) == record
    assert (record.ranges, record.failures) == (ranges, failures)


@pytest.mark.parametrize(
    "damage",
    [{"offset": -1}, {"acked": [1]}, {"acked": [1, 0]}, {"acked": [-1, 5]}, {"attempts": [1, 1]}, {"offset": "x"}],
    ids=str,
)
async def test_a_cursor_that_does_not_add_up_stops_the_start_with_its_key(damage: dict[str, Any]) -> None:
    machine = BrokerMachine()
    broker, _ = await started(machine)
    await broker.shutdown()
    await machine.store.put(f"{SEED}/s/default/a", json.dumps(await stored(machine) | damage).encode())
    with pytest.raises(errors.MetadataDamaged, match="/s/default/a"):
        await machine.open_broker()


# --- when it is written ---


@pytest.mark.parametrize("interval_ms", [500, 10_000])
async def test_a_change_is_written_after_one_interval_and_no_change_is_not(interval_ms: int) -> None:
    machine = BrokerMachine(broker=BrokerOptions(cursor_flush_ms=interval_ms))
    _, reader = await started(machine)
    assert (await stored(machine))["offset"] == 0, "at its creation"
    reader.ack(0)
    machine.clock.advance((interval_ms - 1) / 1000)
    await quiet()
    assert (await stored(machine))["offset"] == 0
    machine.clock.advance(0.001)
    await quiet()
    assert (await stored(machine))["offset"] == 1
    revision = await machine.store.revision()
    await machine.pass_time(60)
    assert await machine.store.revision() == revision


async def test_a_slow_flush_does_not_extend_the_interval() -> None:
    """An ack during a flush is written one interval after the ack, not after the end of the flush."""
    clock, store = SimulatedClock(), MemoryStore()
    slow = asyncio.Event()

    async def settle() -> None:
        await slow.wait()

    book = CursorStore(store, clock, 10_000, settle)
    running = asyncio.ensure_future(book.run())
    source = FakeCursorSource("/c")
    book.mark(source)
    await quiet()
    clock.advance(10)
    await quiet()
    source.offset = 5
    book.mark(source)  # the first flush waits for the disk
    clock.advance(6)
    slow.set()
    await quiet()
    source.offset = 6
    book.mark(source)
    clock.advance(3.9)
    await quiet()
    assert source.written == [5], "its value of that moment"
    clock.advance(0.1)
    await quiet()
    assert source.written == [5, 6]
    running.cancel()


@dataclass
class FakeCursorSource:
    cursor_key: str
    offset: int = 0
    is_deleted: bool = False
    is_partial: bool = False

    def __post_init__(self) -> None:
        self.written: list[int] = []

    def cursor(self) -> CursorRecord:
        self.written.append(self.offset)
        return CursorRecord(0, self.offset, 1, 0)


async def test_a_seek_and_a_stop_write_immediately() -> None:
    machine = BrokerMachine()
    broker, reader = await started(machine)
    await broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 7))
    assert ((await stored(machine))["offset"], (await stored(machine))["generation"]) == (7, 1)
    await quiet()
    reader.ack(7, 8)
    await broker.shutdown()
    assert (await stored(machine))["offset"] == 9


async def test_many_cursors_are_encoded_in_slices_and_written_in_few_transactions() -> None:
    """Thirty thousand subscriptions must not stop the loop for their cursors (hazards 17, 18 and 28)."""
    clock, store = SimulatedClock(), MemoryStore()

    async def settle() -> None:
        """Nothing to wait for."""

    book, turns = CursorStore(store, clock, 10_000, settle), list[int]()
    sources = [FakeCursorSource(f"/c/{number}") for number in range(3_000)]
    for source in sources:
        book.mark(source)
    flushing = asyncio.ensure_future(book.flush())
    while not flushing.done():
        before = sum(len(source.written) for source in sources)
        await asyncio.sleep(0)
        turns.append(sum(len(source.written) for source in sources) - before)
    assert max(turns) <= limits.CURSOR_SLICE
    assert sum(turns) == len(sources)
    assert await store.revision() == 3


async def test_a_cursor_that_cannot_be_written_blocks_no_other() -> None:
    """The metadata store is full: cursors that grow are refused, and the others are written."""
    clock, store = SimulatedClock(), FaultyStore()

    async def settle() -> None:
        """Nothing to wait for."""

    book = CursorStore(store, clock, 10_000, settle)
    sources = [FakeCursorSource(f"/c/{number:04}") for number in range(2_500)]
    store.refuse = lambda command: any(
        isinstance(operation, Put) and operation.key == "/c/0007" for operation in getattr(command, "then", ())
    )
    for source in sources:
        book.mark(source)
    with pytest.raises(errors.MetadataFull):
        await book.flush()
    written = [key for key, _ in await store.list_all("/c/")]
    assert "/c/2499" in written
    assert "/c/0007" not in written
    store.refuse = lambda _: False
    await book.flush()
    assert len(await store.list_all("/c/")) == 2_500, "those that failed are still marked"


@pytest.mark.parametrize("mode", [SyncMode.PERIODIC, SyncMode.NONE])
async def test_a_cursor_never_passes_the_synced_offset(mode: SyncMode) -> None:
    """A message that is acked but not synced may be lost with the power, and must be delivered again (hazard 3)."""
    machine = BrokerMachine(mode=mode)
    broker, reader = await started(machine, messages=3)
    await broker.storage.wait_durable()
    await publish(broker, await broker.open_producer(TOPIC, "p"), b"not", b"synced")
    await quiet()
    reader.ack(0, 2, 3, 4)
    delivery = reader.subscription.delivery(0)
    assert (delivery.stream.synced, delivery.stream.visible) == (3, 5)
    assert (delivery.cursor().offset, delivery.cursor().ranges) == (1, [(2, 3)])
    await broker.storage.wait_durable()
    assert delivery.cursor().ranges == [(2, 5)]


async def test_an_ack_omitted_from_a_write_is_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is written, delivered and acked before the sync in front of it is known to be done."""
    machine = BrokerMachine(mode=SyncMode.NONE)
    broker, reader = await started(machine, messages=3)
    producer, log = await broker.open_producer(TOPIC, "p"), machine.log
    assert log is not None
    sync = log.sync

    async def sync_while_another_comes() -> int:
        monkeypatch.setattr(log, "sync", sync)
        lsn = await sync()
        await publish(broker, producer, b"another")
        await quiet()
        reader.ack(3)
        return lsn

    monkeypatch.setattr(log, "sync", sync_while_another_comes)
    reader.ack(0, 1, 2)
    await machine.pass_time(11)
    assert (await stored(machine))["offset"] == 3, "it is not synced"
    await machine.pass_time(10)
    assert (await stored(machine))["offset"] == 4
    revision = await machine.store.revision()
    await machine.pass_time(60)
    assert await machine.store.revision() == revision, "and then there is nothing to write any more"


# --- what a crash repeats ---


@pytest.mark.parametrize("end", ["kill", "power loss"])
async def test_a_crash_redelivers_acks_of_one_interval_also_after_an_old_message(end: str) -> None:
    machine = BrokerMachine()
    broker, reader = await started(machine, messages=200)
    for offset in range(1, 200):  # 0 is never acked
        reader.ack(offset)
        machine.clock.advance(0.1)
        await quiet()
    await (machine.kill() if end == "kill" else machine.power_loss())
    broker = await machine.open_broker()
    again = await subscribe(broker, kind=SHARED)
    await quiet()
    assert again.sink.offsets[0] == 0
    assert again.sink.offsets[1:] == [*range(200 - len(again.sink.offsets) + 1, 200)]
    assert len(again.sink.offsets) - 1 <= 100, "10 s at ten acks in a second"
