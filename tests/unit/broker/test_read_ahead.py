"""Read-ahead: a block is read once and handed out from memory, whatever order its messages go out in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from icestream import limits
from icestream.broker.read_ahead import ReadAhead
from icestream.model.shard import ShardKey
from icestream.model.subscription_options import FailurePolicy, SubscriptionType
from icestream.observability import metrics
from icestream.wal.tail import SectionRead
from tests.support.broker_machine import TOPIC, BrokerMachine, SubscriptionReader, publish, quiet, subscribe

pytestmark = pytest.mark.asyncio
KEY = ShardKey(1, 0)


def sections(*starts: int, rows: int = 10, size: int = 100) -> list[SectionRead]:
    return [SectionRead(start, rows, 0, 0, bytes(size)) for start in starts]


def starts_of(sections: list[SectionRead]) -> list[int]:
    return [section.base_offset for section in sections]


async def test_a_block_is_found_from_any_offset_in_it() -> None:
    ahead = ReadAhead(asyncio.get_running_loop())
    ahead.keep(KEY, sections(10, 20, 30))
    assert starts_of(ahead.find(KEY, 10)) == [10, 20, 30]
    assert starts_of(ahead.find(KEY, 29)) == [20, 30]
    assert ahead.find(KEY, 9) == ahead.find(KEY, 40) == ahead.find(ShardKey(1, 1), 15) == []
    ahead.keep(KEY, sections(60))
    ahead.keep(KEY, sections(40, 50, 70))
    assert starts_of(ahead.find(KEY, 45)) == [40, 50], "a block has no hole"
    ahead.keep(KEY, sections(30, 40))
    assert starts_of(ahead.find(KEY, 35)) == [30, 40]
    assert ahead.find(KEY, 15) == ahead.find(KEY, 55) == [], "a newer block takes the place of those that it overlaps"
    ahead.clear()
    assert (len(ahead), ahead.size_bytes) == (0, 0)


async def test_the_cache_is_bounded_in_bytes_and_evicts_the_least_recently_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "READ_AHEAD_BYTES_MAX", 3 * (100 + limits.TAIL_CHUNK_BYTES))
    ahead = ReadAhead(asyncio.get_running_loop())
    for start in (0, 10, 20):
        ahead.keep(KEY, sections(start))
    assert ahead.find(KEY, 5)
    ahead.keep(ShardKey(2, 0), sections(0))
    assert [bool(ahead.find(KEY, offset)) for offset in (5, 15, 25)] == [True, False, True]
    assert ahead.size_bytes <= limits.READ_AHEAD_BYTES_MAX
    ahead.keep(KEY, sections(0, size=10_000))
    assert starts_of(ahead.find(KEY, 0)) == [0], "one that is too large is not kept, and drives nothing out"
    assert len(ahead.find(KEY, 0)[0].body) == 100
    ahead.clear()


async def test_expired_blocks_are_not_found_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_AHEAD_SECONDS_MAX", 0.0)
    ahead = ReadAhead(asyncio.get_running_loop())
    ahead.keep(KEY, sections(0))
    assert ahead.find(KEY, 5) == []
    ahead.keep(KEY, sections(0))
    for _ in range(3):  # a timer that is due runs in the next turn of the loop
        await asyncio.sleep(0)
    assert (len(ahead), ahead.size_bytes) == (0, 0), "its timer has run"


MESSAGES = 600


@pytest.fixture
def forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks do not age, however slow the machine is."""
    monkeypatch.setattr(limits, "READ_AHEAD_SECONDS_MAX", 3_600.0)


async def log_reads(
    kind: SubscriptionType, keys: int, nacks: bool = False, patterns: Sequence[Sequence[str]] = ((), ())
) -> int:
    """The number of log reads that a backlog of three sections outside memory costs until all of it is acked."""
    machine = BrokerMachine(tail_bytes=0)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    for _ in range(3):
        names = [b"%d" % (number % keys) for number in range(MESSAGES // 3)]
        await publish(broker, producer, *[b"x"] * (MESSAGES // 3), keys=names)
    before = metrics.READS.values.get("log", 0)
    failure = FailurePolicy(9, 30_000, 0, 0)
    readers = [
        await subscribe(broker, kind=kind, consumer=f"c{number}", failure=failure, key_patterns=own)
        for number, own in enumerate(patterns)
    ]
    await quiet()
    while reads_of(readers):
        await quiet()
        for reader in readers:
            out = [(offset, attempt) for offset, _, attempt in reader.sink.received]
            reader.sink.received.clear()
            failing = {offset for offset, attempt in out if nacks and not attempt and offset % 3 == 0}
            reader.ack(*[offset for offset, _ in out if offset not in failing])
            reader.nack(*failing)
        await quiet()
    assert readers[0].subscription.lag == 0
    reads = int(metrics.READS.values.get("log", 0) - before)
    await broker.shutdown()
    return reads


def reads_of(readers: list[SubscriptionReader]) -> bool:
    return any(reader.sink.received for reader in readers)


@pytest.mark.usefixtures("forgets_nothing")
@pytest.mark.parametrize("keys", [1, 10])
async def test_a_key_shared_subscription_reads_each_block_of_a_backlog_once(keys: int) -> None:
    assert await log_reads(SubscriptionType.KEY_SHARED, keys) <= 2


@pytest.mark.usefixtures("forgets_nothing")
async def test_consumers_with_key_filters_read_each_block_of_a_backlog_once() -> None:
    patterns = [["0", "1", "2"], ["?"]]
    assert await log_reads(SubscriptionType.KEY_SHARED, 10, patterns=patterns) <= 2


@pytest.mark.usefixtures("forgets_nothing")
async def test_a_shared_subscription_with_redeliveries_reads_each_block_once_for_all_its_consumers() -> None:
    assert await log_reads(SubscriptionType.SHARED, 1, nacks=True) <= 2
