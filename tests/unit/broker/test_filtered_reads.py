"""Reads with topic filters through all tiers, and readers that share them: R05, R11, R13, R31 where tables are read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.broker.service import Broker
from icestream.durable.iterator import IteratedBatch, IteratedRow, ShardIterator, next_rows
from icestream.model import envelope
from icestream.model.scan_messages import ScanKind
from icestream.model.shard import ShardKey
from icestream.mqtt.topics import matches
from icestream.observability import metrics
from icestream.readers.data_files import ScanDataFile
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.table_views import TableView
from tests.support.broker_machine import TOPIC, publish, quiet
from tests.support.mqtt_lake import MqttLake, counted_scans
from tests.support.tiers import InProcessScanWorker, TieredMachine

pytestmark = pytest.mark.asyncio
KEY = ShardKey(1, 0)
NATIVE = "default/a"
COUNT = 300
SMALL = 40_000  # bytes of a read: a few messages


def topic_of(number: int) -> str:
    return f"plant/{number % 10}/heat" if number % 3 else f"{number}/a/b"


async def machine_with_history(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cache: RowGroupCacheOptions | None = None
) -> tuple[TieredMachine, Broker]:
    """Messages of which the first two thirds are in the table alone, in row groups of a few messages."""
    monkeypatch.setattr(limits, "CLUSTER_GROUP_BYTES_MIN", 12_000)
    machine = TieredMachine(folder, cache, MqttLake, tail_bytes=0)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(COUNT):
        if number in (COUNT // 3, 2 * COUNT // 3):
            await machine.commit()
            await machine.forget()
        machine.clock.advance(1.0)
        await publish(broker, producer, b"%d " % number + bytes(2_000), keys=[topic_of(number).encode()])
    assert machine.log is not None
    earliest = machine.log.reader.earliest(KEY)
    assert COUNT // 3 < earliest <= 2 * COUNT // 3
    return machine, broker


async def replay(
    broker: Broker, topic_filter: str, start: int = 0, bytes_max: int = limits.ITERATOR_READ_BYTES
) -> tuple[list[IteratedRow], list[IteratedBatch]]:
    iterator, rows, batches = ShardIterator(KEY, start, topic_filter), list[IteratedRow](), list[IteratedBatch]()
    source = broker.storage.shard_stream(KEY)
    while iterator.position < source.visible:
        batch = await next_rows(source, iterator, NATIVE, bytes_max)
        assert batch.iterator.position > iterator.position
        assert all(iterator.position <= row.offset < batch.iterator.position for row in batch.rows)
        iterator = ShardIterator.decode(batch.iterator.encode())  # it may go on elsewhere
        rows += batch.rows
        batches.append(batch)
    return rows, batches


def expected(topic_filter: str, start: int = 0) -> list[int]:
    return [number for number in range(start, COUNT) if matches(topic_filter, topic_of(number))]


@pytest.mark.parametrize("topic_filter", ["plant/7/heat", "plant/+/heat", "plant/#", "+/a/b", "#", "none/#"])
async def test_r13_an_iterator_with_a_filter_reads_all_tiers_without_a_seam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic_filter: str
) -> None:
    _, broker = await machine_with_history(tmp_path, monkeypatch)
    for start in (0, 57):
        rows, batches = await replay(broker, topic_filter, start)
        assert [row.offset for row in rows] == expected(topic_filter, start)
        for row in rows:
            payload = row.block.values(envelope.PAYLOAD)[row.row]
            assert isinstance(payload, bytes)
            assert payload.startswith(b"%d " % row.offset)
            assert row.topic == topic_of(row.offset)
        times = [row.append_time_us for row in rows]
        assert times == sorted(times)
        assert len(set(times)) == len(times), "each message has its own"
        assert not [gap for batch in batches for gap in batch.gaps], "what a filter passes over is not lost"
    await broker.shutdown()


async def test_r31_a_filter_reads_the_row_groups_that_can_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, broker = await machine_with_history(tmp_path, monkeypatch, RowGroupCacheOptions(enabled=False))
    costs = {}
    for topic_filter in ("#", "plant/7/heat", "+/a/b"):
        with counted_scans() as counts:
            await replay(broker, topic_filter)
        costs[topic_filter] = counts[0]
        await asyncio.sleep(0)
    assert costs["plant/7/heat"].read_groups * 3 <= costs["#"].read_groups
    assert costs["plant/7/heat"].skipped_groups >= 2 * costs["plant/7/heat"].read_groups
    assert costs["+/a/b"].read_bytes < costs["#"].read_bytes / 2
    await broker.shutdown()


async def test_r05_a_replay_reads_each_row_group_once_and_the_next_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, broker = await machine_with_history(tmp_path, monkeypatch)
    opened: list[str] = []
    open_file = machine.lake.reader._open

    def counted_open(location: str) -> object:
        opened.append(location)
        return open_file(location)

    for file_format in [machine.lake.reader._format("parquet")]:
        assert file_format is not None
        monkeypatch.setattr(file_format, "_open", counted_open)
    with counted_scans() as counts:
        rows, _ = await replay(broker, "plant/#")
    assert [row.offset for row in rows] == expected("plant/#")
    groups = sum(len(machine.lake.reader.groups(file, view.columns)) for view, file in await files_of(machine))
    assert counts[0].read_groups <= groups, "none twice"
    assert len(opened) <= 2 * len(set(opened)), "its footer once, its row groups once"
    with counted_scans() as again:
        await replay(broker, "plant/#")
    assert (again[0].read_groups, again[0].read_bytes) == (0, 0)
    await broker.shutdown()


async def files_of(machine: TieredMachine) -> list[tuple[TableView, ScanDataFile]]:
    view = await machine.lake.tables.view(1)
    assert view is not None
    return [(view, file) for file in view.files.data]


async def test_r11_requests_do_not_grow_with_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, broker = await machine_with_history(tmp_path, monkeypatch)
    assert machine.scan_worker is not None
    before = len(machine.scan_worker.asked)
    rows, _ = await replay(broker, "plant/#")
    from_table = [row for row in rows if row.offset < 2 * COUNT // 3]
    assert len(machine.scan_worker.asked) - before <= 4 < len(from_table) / 20, "files, and a constant"
    await broker.shutdown()


# --- gaps -------------------------------------------------------------------------------------------------------------


async def test_rows_that_an_engine_removed_are_a_gap_for_a_filter_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, broker = await machine_with_history(tmp_path, monkeypatch)
    await machine.lake.replace([machine.lake.live[1]], "delete", deleted_records=str(COUNT // 3))
    rows, batches = await replay(broker, "plant/#")
    gaps = [(gap.start, gap.end) for batch in batches for gap in batch.gaps]
    assert gaps == [(0, COUNT // 3)]
    assert [row.offset for row in rows] == expected("plant/#", COUNT // 3)
    await broker.shutdown()


# --- readers of the same range ----------------------------------------------------------------------------------------


async def table_requests(machine: TieredMachine) -> int:
    assert machine.scan_worker is not None
    return sum(request.question is ScanKind.READ for request in machine.scan_worker.asked)


@pytest.mark.parametrize("topic_filter", ["#", "plant/#"])
async def test_r05_two_cold_readers_cost_what_one_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic_filter: str
) -> None:
    monkeypatch.setattr(limits, "SCAN_READ_BYTES", SMALL)
    counted: list[tuple[int, int]] = []
    for readers in (1, 2, 5):
        folder = tmp_path / str(readers)
        folder.mkdir()
        machine, broker = await machine_with_history(folder, monkeypatch, RowGroupCacheOptions(enabled=False))
        with counted_scans() as counts:
            replays = await asyncio.gather(*(replay(broker, topic_filter, 0, SMALL) for _ in range(readers)))
        assert [[row.offset for row in rows] for rows, _ in replays] == [expected(topic_filter)] * readers
        counted.append((await table_requests(machine), counts[0].read_bytes))
        await broker.shutdown()
    assert counted[0][0] > 4
    assert counted == [counted[0]] * 3


async def read_in_turns(broker: Broker, lag: int, topic_filter: str = "#") -> None:
    """Two readers, one of which is so many replies behind the other."""
    source = broker.storage.shard_stream(KEY)
    iterators = [ShardIterator(KEY, 0, topic_filter)] * 2
    offsets: list[list[int]] = [[], []]
    for turn in range(COUNT):
        for number in (0, 1):
            iterator = iterators[number]
            if iterator.position < source.visible and (number == 0 or turn >= lag):
                batch = await next_rows(source, iterator, NATIVE, SMALL)
                offsets[number] += [row.offset for row in batch.rows]
                iterators[number] = batch.iterator
    assert offsets == [expected(topic_filter)] * 2


@pytest.mark.parametrize("topic_filter", ["#", "plant/#"])
async def test_r05_a_reader_behind_another_shares_its_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic_filter: str
) -> None:
    monkeypatch.setattr(limits, "SCAN_READ_BYTES", SMALL)
    counted: list[int] = []
    for readers in (1, 2):
        folder = tmp_path / str(readers)
        folder.mkdir()
        machine, broker = await machine_with_history(folder, monkeypatch, RowGroupCacheOptions(enabled=False))
        if readers == 1:
            await replay(broker, topic_filter, 0, SMALL)
        else:
            await read_in_turns(broker, 0, topic_filter)
        counted.append(await table_requests(machine))
        await broker.shutdown()
    assert counted[0] > 4
    assert counted[0] == counted[1]


async def test_r05_a_reader_far_behind_another_costs_no_read_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake process has the row groups."""
    monkeypatch.setattr(limits, "SCAN_READ_BYTES", SMALL)
    machine, broker = await machine_with_history(tmp_path, monkeypatch)
    with counted_scans() as counts:
        await read_in_turns(broker, 3)
    (view, *_), files = zip(*await files_of(machine), strict=True)
    assert counts[0].read_groups == sum(len(machine.lake.reader.groups(file, view.columns)) for file in files)
    await broker.shutdown()


async def test_a_reader_that_leaves_does_not_take_the_reply_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, broker = await machine_with_history(tmp_path, monkeypatch)
    assert machine.scan_requests is not None
    assert machine.scan_worker is not None
    shared_before = metrics.READS_SHARED.value
    machine.scan_worker.leave()
    events: list[str] = []
    machine.scan_requests.attach_worker(lambda event: events.append(event["event"]))
    source = broker.storage.shard_stream(KEY)
    readers = [asyncio.create_task(source.read_matching(0, 1_000, ["plant/#"])) for _ in range(3)]
    await quiet()
    assert events == ["asked"]
    assert metrics.READS_SHARED.value - shared_before == 2
    readers[0].cancel()
    await quiet()
    assert events == ["asked"]
    machine.scan_worker = InProcessScanWorker(machine.scan_requests, machine.lake)
    reads = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(reads[0], asyncio.CancelledError)
    assert reads[1] == reads[2]
    await broker.shutdown()


async def test_a_request_without_readers_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, broker = await machine_with_history(tmp_path, monkeypatch)
    assert machine.scan_requests is not None
    assert machine.scan_worker is not None
    machine.scan_worker.leave()
    events: list[str] = []
    machine.scan_requests.attach_worker(lambda event: events.append(event["event"]))
    source = broker.storage.shard_stream(KEY)
    readers = [asyncio.create_task(source.read(0, 1_000)) for _ in range(2)]
    await quiet()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await quiet()
    assert events == ["asked", "dropped"]
    await broker.shutdown()


async def test_an_error_is_raised_for_every_reader_and_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, broker = await machine_with_history(tmp_path, monkeypatch)
    scanner = machine.lake.scanner
    answer = scanner.answer

    async def fail(_: object) -> None:
        await asyncio.sleep(0)
        raise errors.StorageUnavailable("the object store is away")

    monkeypatch.setattr(scanner, "answer", fail)
    source = broker.storage.shard_stream(KEY)
    reads = await asyncio.gather(*(source.read_matching(0, 1_000, ["a"]) for _ in range(2)), return_exceptions=True)
    assert [type(read) for read in reads] == [errors.StorageUnavailable] * 2
    monkeypatch.setattr(scanner, "answer", answer)
    assert (await source.read_matching(0, 1_000, ["a"])).next_offset > 0
    await broker.shutdown()


async def test_a_filtered_read_is_never_served_to_a_reader_without_the_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, broker = await machine_with_history(tmp_path, monkeypatch)
    filters = ["plant/#", "+/a/b", "#", "plant/7/heat"]
    replays = await asyncio.gather(*(replay(broker, topic_filter) for topic_filter in filters * 2))
    assert [[row.offset for row in rows] for rows, _ in replays] == [*map(expected, filters * 2)]
    await broker.shutdown()


async def test_a_prefetched_reply_is_for_readers_with_its_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCAN_READ_BYTES", SMALL)
    machine, broker = await machine_with_history(tmp_path, monkeypatch)
    source, iterator = broker.storage.shard_stream(KEY), ShardIterator(KEY, 0, "plant/#")
    for _ in range(3):
        iterator = (await next_rows(source, iterator, NATIVE, SMALL)).iterator
    await quiet()
    assert machine.scan_worker is not None
    assert machine.scan_worker.asked[-1].value == iterator.position, "the next reply is there"
    rows = (await next_rows(source, ShardIterator(KEY, iterator.position, "#"), NATIVE, SMALL)).rows
    assert [row.offset for row in rows][:3] == list(range(iterator.position, iterator.position + 3))
    await broker.shutdown()
