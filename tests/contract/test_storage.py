"""The storage facade: what IcebergStorage on a simulated disk and MemoryStorage promise alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from icestream import errors
from icestream.broker import records
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.records import CursorRecord, as_steps
from icestream.broker.storage import PersistentStorage
from icestream.durable.iterator import section_blocks
from icestream.metadata.command import Absent, Delete, Put
from icestream.model import SyncMode, envelope
from icestream.model.block import Numbering, encode_block, iter_blocks
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.model.subscription_options import DispatchMode
from icestream.model.topic_name import TopicName
from icestream.wal.admission import Quota
from icestream.wal.appender import Placed, Result
from icestream.wal.producer_sequences import Duplicate
from tests.support.broker_machine import BrokerMachine, quiet

pytestmark = pytest.mark.asyncio

NAME = TopicName("default", "a")
A0, A1 = ShardKey(1, 0), ShardKey(1, 1)
KEY = records.cursor_key(NAME, "s", 0, 2)


@pytest.fixture(params=["log", "log-periodic", "memory"])
def machine(request: pytest.FixtureRequest) -> BrokerMachine:
    mode = SyncMode.PERIODIC if request.param == "log-periodic" else SyncMode.ALWAYS
    return BrokerMachine(mode=mode, in_memory=request.param == "memory")


@pytest_asyncio.fixture
async def storage(machine: BrokerMachine) -> AsyncIterator[PersistentStorage]:
    storage = await machine.open_storage()
    record = records.TopicRecord(1, 2, DispatchMode.RELIABLE, 0, "node")
    await machine.store.put(records.topic_key(NAME), records.encode(record))
    storage.declare_topic(TopicIdentity(1, str(NAME)), 2)
    yield storage
    await storage.shutdown()


@dataclass
class CursorSource:
    """A cursor that a test moves by hand."""

    offset: int = 0
    acked: list[tuple[int, int]] = field(default_factory=list)
    is_deleted: bool = False
    is_partial: bool = False
    reads: int = 0
    cursor_key: str = KEY

    def delete(self) -> None:
        self.is_deleted = True

    def cursor(self) -> CursorRecord:
        self.reads += 1
        return CursorRecord(0, self.offset, 1, 0, 3, as_steps(self.offset, self.acked))


def block(*payloads: bytes, numbering: Numbering | None = None) -> bytes:
    return encode_block(len(payloads), {envelope.PAYLOAD: payloads}, numbering)


async def store(
    storage: PersistentStorage, key: ShardKey, *payloads: bytes, numbering: Numbering | None = None
) -> Result:
    (result,) = await storage.store_messages(key, block(*payloads, numbering=numbering))
    return result


async def read_all(storage: PersistentStorage, key: ShardKey, offset: int = 0) -> dict[int, bytes]:
    stream = (await storage.create_subscription_stream("default", "a", "s")).shards[key.shard]
    stored_payloads: dict[int, bytes] = {}
    while offset < stream.visible:
        result = await stream.read(offset, 1)
        assert result.next_offset > offset
        for section in result.sections:
            payloads = [value for block in iter_blocks(section.body) for value in block.values(envelope.PAYLOAD)]
            for at, payload in enumerate(payloads, section.base_offset):
                if at >= offset:
                    assert isinstance(payload, bytes)
                    stored_payloads[at] = payload
        offset = result.next_offset
    return stored_payloads


# --- in ---


async def test_offsets_of_a_shard_are_dense_and_ordered_independently_of_other_shards(
    storage: PersistentStorage,
) -> None:
    sent = [storage.store_messages((A0, A1)[at % 2], block(b"%d" % at, b"x")) for at in range(8)]
    answers = [await request for request in sent]
    assert [answer[0][0] for answer in answers if isinstance(answer[0], Placed)] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert await read_all(storage, A0) == {0: b"0", 1: b"x", 2: b"2", 3: b"x", 4: b"4", 5: b"x", 6: b"6", 7: b"x"}
    assert await read_all(storage, A1, 5) == {5: b"x", 6: b"7", 7: b"x"}


async def test_r17_a_repeated_numbered_batch_returns_the_original_offsets(storage: PersistentStorage) -> None:
    storage.open_producer(7, 1)
    first = await store(storage, A0, b"a", b"b", numbering=Numbering(7, 1, 0))
    again = await store(storage, A0, b"a", b"b", numbering=Numbering(7, 1, 0))
    assert isinstance(first, Placed)
    assert isinstance(again, Duplicate)
    assert (first.base_offset, again.base_offset) == (0, 0)
    assert storage.last_sequence(A0, 7) == 1
    assert storage.last_sequence(A1, 7) is None
    assert storage.recent_batches(A0, 7) == [(0, 2, 0)]
    assert await read_all(storage, A0) == {0: b"a", 1: b"b"}


async def test_numbers_of_older_epochs_are_distinguished(storage: PersistentStorage) -> None:
    """A process that starts again and counts from 0 must not take the numbers of the one before for its own."""
    storage.open_producer(7, 1)
    await store(storage, A0, b"a", b"b", numbering=Numbering(7, 1, 0))
    storage.open_producer(7, 2)
    assert (storage.last_sequence(A0, 7), storage.last_sequence(A0, 7, 2)) == (1, None)
    assert storage.recent_batches(A0, 7, 2) == []
    await store(storage, A0, b"c", numbering=Numbering(7, 2, 0))
    assert (storage.last_sequence(A0, 7), storage.last_sequence(A0, 7, 2)) == (0, 0)
    assert storage.recent_batches(A0, 7, 2) == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("numbering", "refusal"),
    [
        (Numbering(7, 2, 5), errors.OutOfOrderSequence),
        (Numbering(7, 1, 1), errors.ProducerFenced),
        (Numbering(8, 1, 0), errors.UnknownProducer),
    ],
)
async def test_a_batch_with_wrong_numbers_is_refused_and_not_stored(
    storage: PersistentStorage, numbering: Numbering, refusal: type[errors.IcestreamError]
) -> None:
    storage.open_producer(7, 1)
    await store(storage, A0, b"a", numbering=Numbering(7, 1, 0))
    storage.open_producer(7, 2)
    await store(storage, A0, b"b", numbering=Numbering(7, 2, 1))
    assert isinstance(await store(storage, A0, b"c", numbering=numbering), refusal)
    assert await read_all(storage, A0) == {0: b"a", 1: b"b"}


async def test_invalid_batches_are_refused_with_the_same_error(machine: BrokerMachine) -> None:
    refusals: list[list[str]] = []
    for in_memory in (False, True):
        machine.in_memory = in_memory
        storage = await machine.open_storage()
        storage.declare_topic(TopicIdentity(1, str(NAME)), 1)
        large = [block(bytes(200_000)), block(bytes(16_000), bytes(16_000)), block(b"a") + bytes(8), b"", b"short"]
        refusals.append([])
        for bad in large:
            with pytest.raises(errors.IcestreamError) as raised:
                storage.store_messages(A0, bad)
            refusals[-1].append(f"{type(raised.value).__name__}: {raised.value}")
        with pytest.raises(errors.UnknownTopic) as unknown:
            storage.store_messages(ShardKey(1, 1), block(b"a"))
        refusals[-1].append(str(unknown.value))
        await storage.shutdown()
    assert refusals[0] == refusals[1]


async def test_batch_sizes_are_reported_exactly(storage: PersistentStorage) -> None:
    empty = len(block(b"", b""))
    largest = block(b"", bytes(storage.batch_bytes_max - empty))
    assert len(largest) == storage.batch_bytes_max
    (result,) = await storage.store_messages(A0, largest)
    assert isinstance(result, Placed)
    with pytest.raises(errors.MessageTooLarge):
        storage.store_messages(A0, block(b"", bytes(storage.batch_bytes_max - empty + 8)))


async def test_a_forgotten_topic_refuses_appends(storage: PersistentStorage) -> None:
    await store(storage, A0, b"a")
    under_way = storage.store_messages(A1, block(b"b"))
    await storage.forget_topic(1, 2)
    assert isinstance((await under_way)[0], Placed), "an accepted append is stored"
    for key in (A0, A1):
        with pytest.raises(errors.UnknownTopic):
            storage.store_messages(key, block(b"c"))
    await storage.forget_topic(1, 2)
    await storage.forget_topic(99, 3)


async def test_a_closed_storage_refuses_appends(storage: PersistentStorage) -> None:
    await store(storage, A0, b"a")
    await storage.shutdown()
    with pytest.raises(errors.LogClosed):
        storage.store_messages(A0, block(b"b"))


async def fill(storage: PersistentStorage, size: int) -> None:
    for _ in range(200):
        await storage.store_messages(A0, block(bytes(size)))


async def test_temporary_failures_are_errors_of_the_storage_facade() -> None:
    """Seed 000 has one name for it. What the caller got wrong is InvalidInput, as everywhere."""
    machine = BrokerMachine()
    storage = await machine.open_storage()
    assert isinstance(storage, IcebergStorage)
    storage.declare_topic(TopicIdentity(1, str(NAME)), 1)
    seen: set[type[errors.IcestreamError]] = set()
    for quota in (Quota(2**30, 3_000), Quota(12_000, 2**30)):
        storage.log.quota = quota
        with pytest.raises(errors.PersistentStorageError) as full:
            await fill(storage, 1_000)
        seen.add(type(full.value))
    storage.log.quota = Quota(2**30, 2**30)
    machine.disk.capacity = 0
    with pytest.raises(errors.PersistentStorageError) as full:
        await fill(storage, 7_000)
    seen.add(type(full.value))
    assert seen == {errors.TopicQuotaReached, errors.NodeQuotaReached, errors.DiskFull}
    await storage.shutdown()


async def test_waiters_are_notified_when_there_is_room(storage: PersistentStorage) -> None:
    assert storage.has_room(1000)
    await asyncio.wait_for(storage.wait_for_room(1000), 5)


# --- out ---


async def test_a_stream_starts_empty_and_follows_appends(storage: PersistentStorage) -> None:
    shards, cursors = await storage.create_subscription_stream("default", "a", "s")
    visible_ends: list[int] = []
    shards[0].follow(lambda: visible_ends.append(shards[0].visible))
    assert cursors == [None, None]
    assert [(shard.key, shard.visible, shard.log_start(), list(shard.gaps())) for shard in shards] == [
        (A0, 0, 0, []),
        (A1, 0, 0, []),
    ]
    assert shards[0].read_hot(0, 1000) == []
    await store(storage, A0, b"a", b"b")
    await store(storage, A1, b"c")
    await quiet()
    assert visible_ends == [2]
    await storage.wait_durable()
    assert shards[0].synced == 2


async def test_a_stopped_follower_is_not_notified(storage: PersistentStorage) -> None:
    stream = (await storage.create_subscription_stream("default", "a", "s")).shards[0]
    notified: list[str] = []

    def first() -> None:
        notified.append("first")

    def second() -> None:
        notified.append("second")

    stream.follow(first)
    stream.follow(second)
    stream.unfollow(first)
    await store(storage, A0, b"a")
    await quiet()
    stream.unfollow(second)
    await store(storage, A0, b"b")
    await quiet()
    assert notified == ["second"]


async def test_reads_return_whole_sections_and_at_least_one(storage: PersistentStorage) -> None:
    for at in range(5):
        await store(storage, A0, b"%d" % at * 100, b"%d" % at * 100)
    stream = (await storage.create_subscription_stream("default", "a", "s")).shards[0]
    size = len(block(b"0" * 100, b"0" * 100))
    for sections in (stream.read_hot(3, 2 * size), (await stream.read(3, 2 * size)).sections):
        assert [(section.base_offset, section.rows) for section in sections] == [(2, 2), (4, 2)]
    assert [section.base_offset for section in stream.read_hot(9, 1)] == [8]
    assert (await stream.read(10, 1)).sections == []
    assert (await stream.read(10, 1)).next_offset == 10


@pytest.mark.parametrize("filters", [(), ("a/#",), ("a/b", "+/c")])
async def test_reads_with_filters_have_every_row_that_matches(
    storage: PersistentStorage, filters: tuple[str, ...]
) -> None:
    """They may have more, and end where they say."""
    for at in range(5):
        await store(storage, A0, b"%d" % at * 100, b"%d" % at * 100)
    stream = storage.shard_stream(A0)
    position, offsets = 3, list[int]()
    while position < stream.visible:
        read = await stream.read_matching(position, 100, filters)
        assert not read.gaps
        assert position < read.next_offset <= stream.visible
        for _, block_offsets, times in section_blocks(read.sections):
            assert len(block_offsets) == len(times)
            offsets += [offset for offset in block_offsets if position <= offset < read.next_offset]
        position = read.next_offset
    assert offsets == list(range(3, 10)), "neither memory nor log is ordered by topics"


async def test_r19_offsets_by_time_include_that_time_and_use_the_clock_of_the_broker(
    machine: BrokerMachine, storage: PersistentStorage
) -> None:
    stream = (await storage.create_subscription_stream("default", "a", "s")).shards[0]
    times = []
    for step in (0.0, 10.0, -3.0, 20.0):
        if step >= 0:
            machine.clock.advance(step)
        else:
            machine.clock.step(step)  # a small step back is not one: the section gets the time of the one before
        times.append(machine.clock.wall_us())
        await store(storage, A0, b"x", b"y")
    append_times = [section.append_time_us for section in (await stream.read(0, 10**6)).sections]
    assert append_times == [times[0], times[1], times[1], times[3]]
    starts = {times[0] - 1: 0, times[0]: 0, times[0] + 1: 2, times[1]: 2, times[1] + 1: 6, times[3] + 1: 8}
    assert {time: await stream.offset_for_time(time) for time in starts} == starts


async def test_an_unknown_topic_has_no_stream(storage: PersistentStorage) -> None:
    with pytest.raises(errors.UnknownTopic):
        await storage.create_subscription_stream("default", "b", "s")


# --- cursors ---


async def stored(machine: BrokerMachine, key: str = KEY) -> CursorRecord | None:
    entry = await machine.store.get(key)
    return records.decode(CursorRecord, key, entry.value) if entry else None


async def test_a_changed_cursor_is_written_once_an_interval_with_its_value_of_that_moment(
    machine: BrokerMachine, storage: PersistentStorage
) -> None:
    source = CursorSource()
    for offset in range(1, 100):
        source.offset = offset
        storage.update_subscription_cursor(source)
    await quiet()
    assert await stored(machine) is None
    await machine.pass_time(10)
    cursor = await stored(machine)
    assert cursor is not None
    assert (cursor.offset, source.reads) == (99, 1)
    revision = await machine.store.revision()
    await machine.pass_time(60)
    assert await machine.store.revision() == revision, "nothing changed: nothing is written"


async def test_a_stored_cursor_is_restored_for_its_topic_only(
    machine: BrokerMachine, storage: PersistentStorage
) -> None:
    source = CursorSource(offset=5, acked=[(7, 9), (12, 13)])
    assert await storage.write_cursors([source])
    cursors = (await storage.create_subscription_stream("default", "a", "s")).cursors
    assert cursors[0] is not None
    assert (cursors[0].offset, cursors[0].ranges, cursors[0].generation) == (5, [(7, 9), (12, 13)], 3)
    assert cursors[1] is None
    record = records.TopicRecord(2, 2, DispatchMode.RELIABLE, 0, "node")
    await machine.store.put(records.topic_key(NAME), records.encode(record))
    storage.declare_topic(TopicIdentity(2, str(NAME), 2), 2)
    assert (await storage.create_subscription_stream("default", "a", "s")).cursors == [None, None]


async def test_cursors_are_written_in_one_transaction_with_related_records(
    machine: BrokerMachine, storage: PersistentStorage
) -> None:
    other = records.cursor_key(NAME, "s", 1, 2)
    sources = [CursorSource(offset=1), CursorSource(offset=2, cursor_key=other)]
    before = await machine.store.revision()
    assert await storage.write_cursors(sources, [Absent("/x")], [Put("/x", b"1")])
    assert await machine.store.revision() == before + 1
    assert not await storage.write_cursors([CursorSource(offset=9)], [Absent("/x")], [Put("/x", b"2")])
    cursors = await stored(machine), await stored(machine, other)
    assert [cursor.offset for cursor in cursors if cursor is not None] == [1, 2]


async def test_more_cursors_than_fit_one_transaction_are_written_in_several(
    machine: BrokerMachine, storage: PersistentStorage
) -> None:
    acked = [(at, at + 1) for at in range(100, 8000, 2)]
    sources = [CursorSource(1, acked, cursor_key=f"/äöü/{number}") for number in range(120)]
    for source in sources:
        storage.update_subscription_cursor(source)
    await storage.flush_cursors()
    cursors = [await stored(machine, source.cursor_key) for source in sources]
    assert all(cursor is not None and cursor.ranges == acked for cursor in cursors)


async def test_a_deleted_cursor_is_not_written_again(machine: BrokerMachine, storage: PersistentStorage) -> None:
    source = CursorSource(offset=1)
    await storage.write_cursors([source])
    await machine.store.put("/record", b"")
    source.offset = 2
    storage.update_subscription_cursor(source)
    flushing = asyncio.ensure_future(storage.flush_cursors())
    writing = asyncio.ensure_future(storage.write_cursors([source]))
    deleting = asyncio.ensure_future(storage.delete_cursors([KEY], [Delete("/record")], source.delete))
    late = asyncio.ensure_future(storage.write_cursors([source]))
    await asyncio.gather(deleting, flushing, writing, late)
    storage.update_subscription_cursor(source)
    await storage.flush_cursors()
    assert await stored(machine) is None
    assert await machine.store.get("/record") is None


async def test_cursors_that_could_not_be_written_are_written_later(
    machine: BrokerMachine, storage: PersistentStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CursorSource(offset=4)
    with monkeypatch.context() as patched:

        async def refuse(*arguments: object) -> None:
            raise errors.NotReady("no leader")

        patched.setattr(machine.store, "txn", refuse)
        storage.update_subscription_cursor(source)
        await machine.pass_time(25)
        with pytest.raises(errors.NotReady):
            await storage.write_cursors([source])
    assert await stored(machine) is None
    await machine.pass_time(10)
    cursor = await stored(machine)
    assert cursor is not None
    assert cursor.offset == 4


async def test_a_shutdown_writes_the_cursors(machine: BrokerMachine, storage: PersistentStorage) -> None:
    storage.update_subscription_cursor(CursorSource(offset=8))
    await storage.shutdown()
    cursor = await stored(machine)
    assert cursor is not None
    assert cursor.offset == 8
