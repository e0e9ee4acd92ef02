"""One reader over all tiers: memory, log, cache and table. No gap, no repeat, whatever lets go of what when."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream import errors, limits
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.service import Broker, history_starts
from icestream.model.scan_messages import ScanKind, ScanResponse
from icestream.model.shard import GapState, ShardKey
from icestream.model.subscription_options import StartAt, SubscriptionStart, SubscriptionType
from icestream.observability import metrics
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from tests.support.broker_machine import EARLIEST, TOPIC, BrokerMachine, SubscriptionReader, publish, quiet, subscribe
from tests.support.tiers import InProcessScanWorker, TieredMachine
from tests.support.topic_lake import damage, remove

pytestmark = pytest.mark.asyncio
BODY = bytes(4_000)


async def with_history(machine: TieredMachine, count: int = 60, committed: int = 40) -> Broker:
    """Publishes so many messages, the first of which are in the table alone."""
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(count):
        if number == committed:
            await machine.commit()
            await machine.forget()
        machine.clock.advance(1.0)
        await publish(broker, producer, b"%d " % number + BODY, keys=[b"k%d" % number])
    assert machine.log is not None
    earliest = machine.log.reader.earliest(ShardKey(1, 0))
    assert 10 < earliest <= committed, "a part of it is in no log file any more"
    return broker


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload.split()[0]) for payload in payloads]


async def until(machine: TieredMachine, count: int, items: list[object]) -> None:
    for _ in range(200):
        await quiet()
        if len(items) >= count:
            return
    raise AssertionError(f"{len(items)} of {count} came")


@pytest.mark.parametrize("tail_bytes", [0, 100_000])
@pytest.mark.parametrize("cache", [RowGroupCacheOptions(), RowGroupCacheOptions(enabled=False)])
async def test_history_and_tail_have_no_seam(tmp_path: Path, tail_bytes: int, cache: RowGroupCacheOptions) -> None:
    machine = TieredMachine(tmp_path, cache, tail_bytes=tail_bytes)
    broker = await with_history(machine)
    reader = await subscribe(broker)
    await until(machine, 60, reader.sink.received)
    assert numbers(reader.sink.payloads) == list(range(60))
    assert reader.sink.offsets == list(range(60))
    assert not reader.sink.gaps
    await broker.shutdown()


async def test_reads_and_their_intervals_are_counted_by_tier(tmp_path: Path) -> None:
    before = {**metrics.READS.values}
    buckets = interval_buckets()
    machine = TieredMachine(tmp_path, RowGroupCacheOptions(enabled=False), tail_bytes=0)
    broker = await with_history(machine)
    reader = await subscribe(broker)
    await until(machine, 60, reader.sink.received)
    counted = {tier: count - before.get(tier, 0) for tier, count in metrics.READS.values.items()}
    assert counted["table"] >= 1
    assert counted["log"] >= 1
    assert not counted.get("tail", 0) + counted.get("cache", 0), "both are off"
    machine.clock.advance(7.0)
    late = await subscribe(broker, "late")
    await until(machine, 60, late.sink.received)
    intervals = interval_buckets()
    intervals.subtract(buckets)
    assert intervals["log", "+Inf"] >= 2
    assert intervals["log", "0.001"] == intervals["log", "+Inf"], "the clock stood still"
    assert intervals["cache", "+Inf"] == 1, "the reply is remembered for a moment"
    assert (intervals["cache", "5.0"], intervals["cache", "10.0"]) == (0, 1), "after seven seconds"
    await broker.shutdown()


async def test_messages_without_credit_are_cached_and_not_read_again() -> None:
    machine = BrokerMachine(tail_bytes=1)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(60):
        await publish(broker, producer, b"%d " % number + BODY)
    reads = metrics.READS.values.get("log", 0)
    reader = await subscribe(broker, credit=7)
    storage = broker.storage
    assert isinstance(storage, IcebergStorage)
    for count, read in ((7, 1), (14, 1), (21, 2), (28, 2)):  # a read of this log has 14 messages
        await quiet()
        assert numbers(reader.sink.payloads) == list(range(count))
        assert metrics.READS.values["log"] == reads + read
        assert len(storage._read_ahead) == 1, "that of the read before was dropped"
        reader.credit(7)
    reader.leave()
    assert not len(storage._read_ahead)
    await broker.shutdown()


def interval_buckets() -> Counter[tuple[str, str]]:
    """The histogram of the time between reads: (tier, upper bound) and how many are at most that."""
    (family,) = metrics.READ_INTERVALS.collect()
    buckets = (sample for sample in family.samples if sample.name.endswith("_bucket"))
    return Counter({(sample.labels["tier"], sample.labels["le"]): int(sample.value) for sample in buckets})


@pytest.mark.parametrize("kind", SubscriptionType)
async def test_every_type_of_subscription_reads_history(tmp_path: Path, kind: SubscriptionType) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    reader = await subscribe(broker, kind=kind)
    await until(machine, 60, reader.sink.received)
    assert sorted(numbers(reader.sink.payloads)) == list(range(60))
    await broker.shutdown()


async def test_a_reader_whose_file_leaves_the_log_continues_in_the_table(tmp_path: Path) -> None:
    """Hazard 33: the reader does not hold log files, and misses nothing."""
    machine = TieredMachine(tmp_path)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    reader = await subscribe(broker, credit=0)
    delivered_count = 0
    for number in range(90):
        await publish(broker, producer, b"%d " % number + BODY)
        if number % 3 == 0:  # it takes a third of what comes, and falls behind
            reader.credit(1)
            await quiet()
            delivered_count += 1
        if number % 20 == 19:
            await machine.commit()
            await machine.forget()
    assert machine.log is not None
    assert machine.log.reader.earliest(ShardKey(1, 0)) > 40
    reader.credit(100)
    await until(machine, 90, reader.sink.received)
    assert reader.sink.offsets == list(range(90))
    assert not reader.sink.gaps
    await broker.shutdown()


async def test_rows_that_an_engine_deleted_are_gaps_with_their_reason(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    file = machine.lake.live[0]
    deletes = await machine.lake.write_deletes(file, [3, 5, 7, 8])
    await machine.lake.replace([file, deletes], "delete", added_position_deletes="4")
    reader = await subscribe(broker)
    await until(machine, 56, reader.sink.received)
    assert reader.sink.offsets == [at for at in range(60) if at not in (3, 5, 7, 8)]
    reported_gaps = [(gap.start, gap.end, gap.state) for gap in reader.sink.gaps]
    assert reported_gaps == [(3, 4, GapState.DROPPED), (5, 6, GapState.DROPPED), (7, 9, GapState.DROPPED)]
    assert "delete" in reader.sink.gaps[0].reason
    assert reader.consumer.credit_messages == 1_000 - 56, "what does not come costs no credit"
    reader.ack(*reader.sink.offsets)
    assert reader.subscription.delivery(0).dispatcher.acked.position == 60
    await broker.shutdown()


async def test_prefetched_rows_after_a_gap_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    (file,) = machine.lake.live
    first = await machine.lake.write_deletes(file, [5])
    await machine.lake.replace([file, first], "delete", added_position_deletes="1")
    stream = broker.storage.shard_stream(ShardKey(1, 0))
    assert (await stream.read(0, 1)).next_offset == 5
    second = await machine.lake.write_deletes(file, [6, 7])
    await machine.lake.replace([file, first, second], "delete", added_position_deletes="2")
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", -1.0)  # a moment has gone by
    read = await stream.read(5, 1)
    assert read.sections[0].base_offset == 8
    assert (read.gaps[0].start, read.gaps[-1].end) == (5, 8)
    await broker.shutdown()


async def test_a_start_below_the_first_row_is_reported_and_moved_there(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    file = machine.lake.live[0]
    await machine.lake.replace(
        [file, await machine.lake.write_deletes(file, range(6))], "delete", added_position_deletes="6"
    )
    early = await subscribe(broker, "early", start=SubscriptionStart(StartAt.OFFSET, 2))
    await until(machine, 54, early.sink.received)
    assert early.sink.offsets == list(range(6, 60))
    assert [(gap.start, gap.end) for gap in early.sink.gaps] == [(2, 6)]
    first = await subscribe(broker, "first")
    await until(machine, 54, first.sink.received)
    assert (first.sink.offsets, first.sink.gaps) == (list(range(6, 60)), [])
    await broker.shutdown()


async def test_hazard_32_a_start_by_time_finds_its_message_in_any_tier(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    stream = broker.storage.shard_stream(ShardKey(1, 0))
    times: list[int] = []
    at = 0
    while at < 60:
        read = await stream.read(at, 1)
        times += [section.append_time_us for section in read.sections for _ in range(section.rows)]
        at = read.next_offset
    assert len(times) == 60
    for time_us in (0, times[0], times[7], times[39], times[40] - 1, times[41], times[59], times[59] + 1):
        oracle = next((offset for offset, time in enumerate(times) if time >= time_us), 60)
        assert await stream.offset_for_time(time_us) == oracle
    await broker.shutdown()


async def test_hazard_32_times_in_the_table_need_not_rise(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    await machine.open_broker()
    lake = machine.lake
    await lake.bind()
    times = [50, 40, 90, 10, 20, 95, 30, 96]
    rows = [{"shard": 0, "offset": at, "append_time": time, "payload": b""} for at, time in enumerate(times)]
    await lake.round((0, 0, 4), entries=[await lake.write(rows[:4], groups=2)])
    await lake.round((0, 4, 8), entries=[await lake.write(rows[4:])])
    for time_us in range(100):
        oracle = next((offset for offset, time in enumerate(times) if time >= time_us), None)
        assert (await lake.ask(ScanKind.TIME, time_us)).offset == oracle


async def test_a_start_at_a_snapshot_is_after_its_rows(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    snapshots = []
    for number in range(30):
        await publish(broker, producer, b"%d " % number + BODY)
        if number % 10 == 4:
            snapshots.append(await machine.commit())
    compacted = await machine.lake.replace(machine.lake.live)
    for snapshot, first in ((snapshots[0], 5), (snapshots[1], 15), (compacted, 25)):
        reader = await subscribe(broker, f"s{snapshot}", start=SubscriptionStart(StartAt.SNAPSHOT, snapshot))
        await until(machine, 30 - first, reader.sink.received)
        assert reader.sink.offsets == list(range(first, 30))
    with pytest.raises(errors.InvalidInput, match="no snapshot 77") as refused:
        await subscribe(broker, "none", start=SubscriptionStart(StartAt.SNAPSHOT, 77))
    assert "start at a time or an offset" in str(refused.value.hint)
    await machine.lake.expire(snapshots[0], snapshots[1])
    for snapshot, first in ((snapshots[0], 5), (snapshots[1], 15)):
        reader = await subscribe(broker, f"late {snapshot}", start=SubscriptionStart(StartAt.SNAPSHOT, snapshot))
        await until(machine, 30 - first, reader.sink.received)
        assert reader.sink.offsets == list(range(first, 30)), "a job that read it for an hour goes on behind it"
    await broker.shutdown()


@pytest.mark.parametrize("cache", [RowGroupCacheOptions(), RowGroupCacheOptions(enabled=False)])
@pytest.mark.parametrize("kind", SubscriptionType)
async def test_a_subscription_continues_while_the_files_that_it_reads_are_compacted(
    tmp_path: Path, kind: SubscriptionType, cache: RowGroupCacheOptions
) -> None:
    """The files and the snapshots of before are gone each time; offsets are what they were."""
    machine = TieredMachine(tmp_path, cache)
    broker = await with_committed_rounds(machine, rounds=8, each=10)
    reader = await subscribe(broker, kind=kind, credit=7)
    for files, received in ((8, 7), (4, 35), (2, 49), (1, 80)):
        assert len(machine.lake.live) == files
        reader.credit(received - len(reader.sink.received))
        await until(machine, received, reader.sink.received)
        await compact_pairs(machine)
    assert sorted(reader.sink.offsets) == list(range(80)), "each message once"
    assert not reader.sink.gaps
    if kind is SubscriptionType.EXCLUSIVE:
        assert numbers(reader.sink.payloads) == list(range(80))
    await broker.shutdown()


async def with_committed_rounds(machine: TieredMachine, rounds: int, each: int) -> Broker:
    """A table with a file of each round. The log has let go of what it can."""
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(rounds * each):
        await publish(broker, producer, b"%d " % number + BODY, keys=[b"k%d" % number])
        if number % each == each - 1:
            await machine.commit()
    await machine.forget()
    return broker


async def compact_pairs(machine: TieredMachine) -> None:
    """Makes one file of each two neighbours, and removes all that named the former ones."""
    lake, before = machine.lake, machine.lake.live
    rows = [pq.read_table(entry["data_file"]["file_path"].removeprefix("file:")) for entry in before]
    merged = [pa.concat_tables(rows[at : at + 2]) for at in range(0, len(rows), 2)]
    await lake.replace([await lake.write_table(table, pq.write_table) for table in merged])
    await lake.expire()
    for entry in before:
        remove(entry)


async def test_an_unavailable_lake_process_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_AWAY_SECONDS_MAX", 0.01)
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.scan_worker is not None
    assert machine.scan_requests is not None
    machine.scan_worker.leave()
    reader = await subscribe(broker, start=SubscriptionStart(StartAt.OFFSET, 0))
    with pytest.raises(errors.LakeAway):
        await subscribe(broker, "other", start=EARLIEST)  # it waited as long as the reader, and began behind it
    await quiet()
    assert not reader.sink.received
    assert not reader.sink.gaps, "nothing is stepped over"
    machine.scan_worker = InProcessScanWorker(machine.scan_requests, machine.lake)
    await machine.pass_time(limits.READ_RETRY_MS / 1000)
    await until(machine, 60, reader.sink.received)
    assert reader.sink.offsets == list(range(60))
    await broker.shutdown()


@pytest.mark.wrong_tables("consumers cannot read it")
@pytest.mark.parametrize("kind", SubscriptionType)
async def test_an_unreadable_table_ends_the_consumer_with_the_reason(tmp_path: Path, kind: SubscriptionType) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    file = machine.lake.live[0]
    deletes = await machine.lake.write_deletes(file, [1], content=2)
    await machine.lake.replace([file, deletes], "delete", added_equality_deletes="1")
    for expected_events in (["closed"], ["stalled", "closed"]):  # a new consumer gets the reason again
        reader = await subscribe(broker, kind=kind, start=SubscriptionStart(StartAt.OFFSET, 0))
        await quiet()
        assert [event for event in reader.sink.events if event != "active"] == expected_events
        assert not reader.sink.received
    assert machine.scan_worker is not None
    requests_before = len(machine.scan_worker.asked)
    producer = await broker.open_producer(TOPIC, "p2")
    await publish(broker, producer, b"60 ")
    await quiet()
    assert len(machine.scan_worker.asked) == requests_before, "without consumers nothing is read"
    live = await subscribe(broker, "live", kind=kind, start=SubscriptionStart(StartAt.OFFSET, 55))
    await until(machine, 6, live.sink.received)
    assert live.sink.offsets == list(range(55, 61))
    await broker.shutdown()


@pytest.mark.wrong_tables("its file is damaged")
@pytest.mark.parametrize("kind", SubscriptionType)
async def test_a_damaged_file_ends_the_consumer_with_the_reason(tmp_path: Path, kind: SubscriptionType) -> None:
    machine = TieredMachine(tmp_path, RowGroupCacheOptions(enabled=False))
    broker = await with_history(machine)
    damage(machine.lake.live[0], "payload")
    reader = await subscribe(broker, kind=kind, start=SubscriptionStart(StartAt.OFFSET, 0))
    await quiet()
    assert [event for event in reader.sink.events if event != "active"] == ["closed"]
    assert not reader.sink.received
    await broker.shutdown()


async def test_offsets_in_neither_log_nor_table_are_a_gap(tmp_path: Path) -> None:
    """The table was recreated, and the log had freed the messages of the old table."""
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.log is not None
    earliest = machine.log.reader.earliest(ShardKey(1, 0))
    await machine.lake.store.delete("/catalog/topics/1")
    reader = await subscribe(broker, start=SubscriptionStart(StartAt.OFFSET, 0))
    await until(machine, 60 - earliest, reader.sink.received)
    assert reader.sink.offsets == list(range(earliest, 60))
    assert [(gap.start, gap.end, gap.state) for gap in reader.sink.gaps] == [(0, earliest, GapState.LOST)]
    await broker.shutdown()


async def test_scan_requests_are_bounded_and_served_by_the_next_worker(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.scan_worker is not None
    assert machine.scan_requests is not None
    machine.scan_worker.leave()
    request_ids: list[int] = []
    machine.scan_requests.attach_worker(lambda event: request_ids.append(event["asked"][0]))
    asking = [
        asyncio.create_task(machine.scan_requests.request(ScanKind.TIME, str(TOPIC), ShardKey(1, 0), -number))
        for number in range(2 * limits.SCANS_IN_FLIGHT_MAX)
    ]
    await quiet()
    assert len(request_ids) == limits.SCANS_IN_FLIGHT_MAX
    machine.scan_worker = InProcessScanWorker(machine.scan_requests, machine.lake)  # the first one never answered
    assert [response.offset for response in await asyncio.gather(*asking)] == [0] * len(asking)
    await broker.shutdown()


async def test_a_reply_without_a_waiter_is_dropped(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.scan_worker is not None
    assert machine.scan_requests is not None
    events: list[str] = []
    machine.scan_requests.attach_worker(lambda event: events.append(event["event"]))
    asking = asyncio.create_task(machine.scan_requests.request(ScanKind.EARLIEST, str(TOPIC), ShardKey(1, 0)))
    await quiet()
    asking.cancel()
    await quiet()
    assert events == ["asked", "dropped"]
    machine.scan_requests.accept_part(machine.scan_requests._last_number, b"\x80", True)
    await broker.shutdown()


async def test_a_reader_with_little_credit_does_not_request_the_same_rows_again(tmp_path: Path) -> None:
    """An answer has more than it takes at once."""
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.scan_worker is not None
    requests = machine.scan_worker.asked
    reader = await subscribe(broker, credit=1)
    while len(reader.sink.received) < 10:
        await quiet()
        reader.credit(1)
    assert [request.value for request in requests if request.question is ScanKind.READ] == [0]
    await until(machine, 10, reader.sink.received)
    assert numbers(reader.sink.payloads)[:10] == list(range(10))
    await broker.shutdown()


async def test_a_sequential_reader_finds_the_next_reply_prefetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third reply on the reader finds its rows prefetched."""
    for name in ("READ_BYTES_DEFAULT", "SCAN_READ_BYTES"):
        monkeypatch.setattr(limits, name, 3 * len(BODY))
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.scan_worker is not None
    reader = await subscribe(broker, credit=3)
    await until(machine, 3, reader.sink.received)
    reader.credit(1)
    await until(machine, 4, reader.sink.received)
    positions = [request.value for request in machine.scan_worker.asked if request.question is ScanKind.READ]
    assert max(positions) >= len(reader.sink.received), positions
    reader.credit(1000)
    await until(machine, 60, reader.sink.received)
    assert numbers(reader.sink.payloads) == list(range(60))
    await broker.shutdown()


async def test_readers_at_different_positions_of_a_shard_do_not_evict_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reader keeps the rest of its last reply and its prefetched next one, as if it were alone."""
    for name in ("READ_BYTES_DEFAULT", "SCAN_READ_BYTES"):
        monkeypatch.setattr(limits, name, 3 * len(BODY))
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine, count=80, committed=70)
    assert machine.scan_worker is not None
    readers = [
        await subscribe(broker, f"r{at}", credit=1, start=SubscriptionStart(StartAt.OFFSET, at)) for at in (0, 31)
    ]
    for _ in range(23):
        for reader in readers:
            reader.credit(1)
            await quiet()
    for reader, at in zip(readers, (0, 31), strict=True):
        assert reader.sink.offsets[:24] == list(range(at, at + 24))
    positions = [request.value for request in machine.scan_worker.asked if request.question is ScanKind.READ]
    assert sorted(positions) == [*range(0, 25, 2), *range(31, 56, 2)], "none twice; 24 and 55 are prefetched only"
    await broker.shutdown()


async def test_hazard_18_a_cold_reader_delays_neither_producers_nor_live_consumers(tmp_path: Path) -> None:
    """Whatever the lake process is doing for it: here nothing, for ever."""
    machine = TieredMachine(tmp_path, tail_bytes=100_000)
    broker = await with_history(machine)
    assert machine.scan_requests is not None
    machine.scan_requests.attach_worker(lambda event: None)
    cold = [
        await subscribe(broker, f"cold-{number}", start=SubscriptionStart(StartAt.OFFSET, 0)) for number in range(20)
    ]
    live = await subscribe(broker, "live", start=SubscriptionStart(StartAt.LATEST))
    producer = await broker.open_producer(TOPIC, "another")
    for number in range(60, 90):
        await publish(broker, producer, b"%d " % number + BODY)
        await quiet()
        assert numbers(live.sink.payloads)[-1] == number, "at once"
    assert not any(reader.sink.received for reader in cold)
    await broker.shutdown()


# --- readers that cannot go on ----------------------------------------------------------------------------------------


def stall_events(reader: SubscriptionReader) -> list[str]:
    """The stall events that the consumer received, each with its reason."""
    return [
        f"{event} {details.get('offset', '')}: {details.get('reason', '')}"
        for event, details in reader.sink.event_details
        if event in ("stalled", "resumed")
    ]


@pytest.mark.parametrize("kind", SubscriptionType)
async def test_a_failing_reader_notifies_its_consumer_and_resumes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    """Readiness and metrics report the stall too, until the fault is gone."""
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.scan_requests is not None

    async def busy(*_: object, **__: object) -> None:
        raise errors.StorageUnavailable("the bucket does not answer", hint="look at it")

    with monkeypatch.context() as patched:
        patched.setattr(machine.scan_requests, "request", busy)
        reader = await subscribe(broker, kind=kind, start=SubscriptionStart(StartAt.OFFSET, 0))
        for _ in range(3):
            await quiet()
            await machine.pass_time(limits.READ_RETRY_MS / 1000)
        assert stall_events(reader) == ["stalled 0: the bucket does not answer"], "told once, retried all the time"
        (check,) = broker.delivery_health.checks()
        assert (check.ok, check.is_needed) == (False, False)
        assert check.reason == "/default/a:s:0: unreadable at offset 0: the bucket does not answer"
        assert metrics.STALLED_READERS.values == {"storage_unavailable": 1}
        other = await subscribe(broker, "other", kind=kind, start=SubscriptionStart(StartAt.OFFSET, 59))
        await until(machine, 1, other.sink.received)
        assert stall_events(other) == [], "it reads the log"
        await broker.delete_subscription(TOPIC, "other")
    await machine.pass_time(limits.READ_RETRY_MS / 1000)
    await until(machine, 60, reader.sink.received)
    assert sorted(reader.sink.offsets) == list(range(60))
    assert stall_events(reader)[1:] == ["resumed : "]
    assert (len(broker.stalled_readers), metrics.STALLED_READERS.values) == (0, {})
    assert list(broker.delivery_health.checks()) == []
    await broker.shutdown()


@pytest.mark.parametrize("kind", SubscriptionType)
async def test_a_slow_read_is_reported_before_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.scan_requests is not None
    gate = asyncio.Event()
    request = machine.scan_requests.request

    async def slow(*arguments: Any, **more: Any) -> ScanResponse:
        await gate.wait()
        return await request(*arguments, **more)

    monkeypatch.setattr(machine.scan_requests, "request", slow)
    reader = await subscribe(broker, kind=kind, start=SubscriptionStart(StartAt.OFFSET, 0))
    await quiet()
    await machine.pass_time(limits.READ_STALLED_MS / 1000 - 0.1)
    assert stall_events(reader) == []
    await machine.pass_time(0.2)
    assert stall_events(reader) == ["stalled 0: a read of stored messages has not returned after 3 s"]
    gate.set()
    await until(machine, 60, reader.sink.received)
    assert stall_events(reader)[1:] == ["resumed : "]
    await broker.shutdown()


@pytest.mark.parametrize("kind", SubscriptionType)
async def test_a_table_that_can_be_read_again_is_noticed_without_a_consumer(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    machine = TieredMachine(tmp_path, RowGroupCacheOptions(enabled=False))
    broker = await with_history(machine)
    (file,) = machine.lake.live
    path = Path(file["data_file"]["file_path"].removeprefix("file:"))
    whole = await asyncio.to_thread(path.read_bytes)
    damage(file, "payload")
    reader = await subscribe(broker, kind=kind, start=SubscriptionStart(StartAt.OFFSET, 0))
    await quiet()
    assert [event for event, _ in reader.sink.event_details if event != "active"] == ["closed"]
    (stalled,) = broker.stalled_readers.of_topic(1)
    assert (stalled.code, stalled.is_transient, stalled.offset) == ("table_damaged", False, 0)
    await machine.pass_time(limits.READ_PROBE_MS / 1000)
    await quiet()
    assert len(broker.stalled_readers) == 1
    await asyncio.to_thread(path.write_bytes, whole)
    await machine.pass_time(limits.READ_PROBE_MS / 1000)
    await quiet()
    assert len(broker.stalled_readers) == 0
    again = await subscribe(broker, kind=kind)
    await until(machine, 60, again.sink.received)
    assert stall_events(again) == []
    await broker.shutdown()


async def test_a_seek_and_the_end_of_a_subscription_end_its_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    assert machine.scan_requests is not None

    async def busy(*_: object, **__: object) -> None:
        raise errors.StorageUnavailable("the bucket does not answer")

    monkeypatch.setattr(machine.scan_requests, "request", busy)
    reader = await subscribe(broker, start=SubscriptionStart(StartAt.OFFSET, 0))
    await quiet()
    await broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 55))
    await machine.pass_time(limits.READ_RETRY_MS / 1000)
    await until(machine, 5, reader.sink.received)
    assert [event.split()[0] for event in stall_events(reader)] == ["stalled", "resumed"]
    assert len(broker.stalled_readers) == 0
    await subscribe(broker, "gone", start=SubscriptionStart(StartAt.OFFSET, 0))
    await quiet()
    assert len(broker.stalled_readers) == 1
    await broker.delete_subscription(TOPIC, "gone")
    assert len(broker.stalled_readers) == 0
    await broker.shutdown()


async def test_history_starts_in_the_table_and_is_unknown_without_it(tmp_path: Path) -> None:
    machine = TieredMachine(tmp_path)
    broker = await with_history(machine)
    streams = [broker.storage.shard_stream(ShardKey(1, 0))]
    assert streams[0].log_start() > 10
    assert await history_starts(streams) == [0]
    assert machine.scan_worker is not None
    machine.scan_worker.leave()
    assert await history_starts(streams, 0.01) == [None]
    await broker.shutdown()
