"""Cursors name the snapshot, file and row that their reader read last in the table. Nothing depends on it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.broker import records
from icestream.broker.service import Broker
from icestream.metadata.command import Put
from icestream.readers.file_reader import row_ranges
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from tests.support.broker_machine import TOPIC, SubscriptionReader, publish, quiet, subscribe
from tests.support.tiers import TieredMachine
from tests.support.topic_lake import remove, rows

pytestmark = pytest.mark.asyncio
KEY = records.cursor_key(TOPIC, "s", 0, 1, is_partitioned=False)
MESSAGES, COMMITTED = 60, 40


async def with_history(machine: TieredMachine) -> tuple[Broker, int]:
    """A topic whose first 40 messages are in two files of the table; the id of the table's snapshot."""
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    snapshot_id = 0
    for number in range(MESSAGES):
        if number in (COMMITTED // 2, COMMITTED):
            snapshot_id = await machine.commit()
        machine.clock.advance(1.0)
        await publish(broker, producer, b"%d " % number + bytes(4_000))
    await machine.forget()
    return broker, snapshot_id


async def stored_cursor(machine: TieredMachine, broker: Broker) -> records.CursorRecord:
    await broker.storage.flush_cursors()
    entry = await machine.store.get(KEY)
    assert entry is not None
    return records.decode(records.CursorRecord, KEY, entry.value)


async def until_count(reader: SubscriptionReader, messages: int) -> None:
    for _ in range(200):
        await quiet()
        if len(reader.sink.offsets) == messages:
            return
    raise AssertionError(f"received {len(reader.sink.offsets)} of {messages} messages")


@pytest.mark.parametrize("cache", [RowGroupCacheOptions(), RowGroupCacheOptions(enabled=False)])
async def test_a_cursor_names_the_row_that_was_acked_last(tmp_path: Path, cache: RowGroupCacheOptions) -> None:
    machine = TieredMachine(tmp_path, cache)
    broker, snapshot_id = await with_history(machine)
    reader = await subscribe(broker)
    await until_count(reader, MESSAGES)
    assert reader.sink.offsets == list(range(MESSAGES))
    paths = set()
    for acked in (7, COMMITTED // 2 + 3):
        reader.ack(*range(acked))
        cursor = await stored_cursor(machine, broker)
        assert (cursor.offset, cursor.snapshot_id) == (acked, snapshot_id)
        assert cursor.file_path is not None
        assert cursor.row_offset is not None
        stored = pq.read_table(cursor.file_path.removeprefix("file:"), columns=["offset"])
        assert stored["offset"][cursor.row_offset].as_py() == acked - 1
        paths.add(cursor.file_path)
    assert len(paths) == 2, "of two files"
    reader.ack(*range(MESSAGES))
    cursor = await stored_cursor(machine, broker)
    assert (cursor.offset, cursor.snapshot_id, cursor.file_path, cursor.row_offset) == (MESSAGES, None, None, None)
    await broker.shutdown()


@pytest.mark.parametrize(
    "hints",
    [(1, "file:///gone.parquet", 0), (2**62, "", 2**62), (None, "s3://elsewhere/x", None), (None, None, None)],
)
async def test_a_restart_continues_at_the_offset_whatever_the_hints_contain(
    tmp_path: Path, hints: tuple[int | None, str | None, int | None]
) -> None:
    machine = TieredMachine(tmp_path)
    broker, _ = await with_history(machine)
    reader = await subscribe(broker, credit=10)
    for _ in range(100):
        await quiet()
    reader.ack(*range(10))
    cursor = await stored_cursor(machine, broker)
    await broker.shutdown()
    snapshot_id, file_path, row_offset = hints
    stale = msgspec.structs.replace(cursor, snapshot_id=snapshot_id, file_path=file_path, row_offset=row_offset)
    await machine.store.txn([], [Put(KEY, records.encode(stale))])
    broker = await machine.open_broker()
    reader = await subscribe(broker)
    await until_count(reader, MESSAGES - 10)
    assert reader.sink.offsets == list(range(10, MESSAGES))
    reader.ack(*range(10, 12))
    refreshed = await stored_cursor(machine, broker)
    assert refreshed.offset == 12
    assert refreshed.row_offset == 11, "the hint is of this run"
    await broker.shutdown()


async def test_a_reader_continues_when_the_file_of_its_hint_was_compacted(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker, snapshot_id = await with_history(machine)
    reader = await subscribe(broker, credit=10)
    for _ in range(100):
        await quiet()
    reader.ack(*range(10))
    assert (await stored_cursor(machine, broker)).snapshot_id == snapshot_id
    await broker.shutdown()
    old_files = list(machine.lake.live)
    compacted = await machine.lake.replace([await machine.lake.write(rows(0, COMMITTED))])
    await machine.lake.expire()
    for entry in old_files:
        remove(entry)
    broker = await machine.open_broker()
    reader = await subscribe(broker)
    await until_count(reader, MESSAGES - 10)
    assert reader.sink.offsets == list(range(10, MESSAGES))
    reader.ack(*range(10, 30))
    cursor = await stored_cursor(machine, broker)
    assert (cursor.offset, cursor.snapshot_id, cursor.row_offset) == (30, compacted, 29)
    await broker.shutdown()


places = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=30)


@pytest.mark.parametrize("is_ordered", [True, False])
@given(places, st.integers(0, 12), st.integers(0, 12))
async def test_every_range_of_rows_is_true_and_ordered_files_have_all(
    is_ordered: bool, positions: list[tuple[int, int]], low: int, high: int
) -> None:
    stored = sorted(set(positions)) if is_ordered else positions
    table = pa.table(
        {
            "shard": pa.array([shard for shard, _ in stored], pa.int32()),
            "offset": pa.array([offset for _, offset in stored], pa.int64()),
        }
    )
    ranges = row_ranges(table, "path", 100, 1, low, high)
    named = [(part.start + at, part.first_row + at - 100) for part in ranges for at in range(part.rows)]
    for offset, row in named:
        assert stored[row] == (1, offset)
        assert is_ordered <= (low <= offset < high)
    if is_ordered:
        assert [offset for offset, _ in named] == [at for shard, at in stored if shard == 1 and low <= at < high]
