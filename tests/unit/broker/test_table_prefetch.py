"""Answers prefetch their readers: what is left of the last one, and the next one. Few of them, and not for long."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors, limits
from icestream.broker.expiring_cache import FilteredShard
from icestream.broker.storage import FilteredRead, ShardRead
from icestream.broker.table_prefetch import TablePrefetch
from icestream.model.filtered_rows import FilteredSection
from icestream.model.scan_messages import ScanResponse, ScanSection
from icestream.model.shard import ShardKey
from icestream.wal.tail import SectionRead

pytestmark = pytest.mark.asyncio
KEY = ShardKey(1, 0)


def shard_read(*starts: int, rows: int = 10) -> ShardRead:
    sections = [SectionRead(start, rows, 0, 0, b"") for start in starts]
    return ShardRead(sections, [], starts[-1] + rows)


def starts(rest: ShardRead | None) -> list[int] | None:
    return None if rest is None else [section.base_offset for section in rest.sections]


async def answer(end: int) -> ScanResponse:
    return ScanResponse(end)


async def large(size: int) -> ScanResponse:
    return ScanResponse(20, sections=[ScanSection(10, 10, 0, 0, bytes(size))])


async def turns() -> None:
    """Waits until a task that waits for nothing has ended and its callbacks have run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_recent_reply_serves_reads_from_any_offset_in_it() -> None:
    prefetch = TablePrefetch()
    prefetch.remember(KEY, 0, shard_read(0, 10, 20))
    assert starts(prefetch.recent_from(KEY, 0)) == [0, 10, 20]
    assert starts(prefetch.recent_from(KEY, 15)) == [10, 20], "the section that holds it comes whole"
    assert starts(prefetch.recent_from(KEY, 20)) == [20]
    assert prefetch.recent_from(KEY, 30) is None
    assert prefetch.recent_from(ShardKey(1, 1), 15) is None
    prefetch.remember(KEY, 30, shard_read(30))
    assert prefetch.recent_from(KEY, 15) is None, "its reader has gone on"


async def test_a_recent_reply_is_kept_while_another_reader_comes_to_it() -> None:
    """Two readers got the first reply; one goes on, and the other finds what the first one read."""
    prefetch = TablePrefetch()
    for _ in range(2):
        prefetch.remember(KEY, 0, shard_read(0))
    prefetch.remember(KEY, 10, shard_read(10))
    prefetch.remember(KEY, 20, shard_read(20))
    assert starts(prefetch.recent_from(KEY, 10)) == [10], "the second reader is at 10, and at 20 now"
    assert prefetch.recent_from(KEY, 5) is None, "no reader is there any more"
    assert starts(prefetch.recent_from(KEY, 20)) == [20]
    prefetch.remember(KEY, 30, shard_read(30))
    prefetch.remember(KEY, 30, shard_read(30))
    assert [prefetch.recent_from(KEY, offset) for offset in (0, 10, 20)] == [None] * 3, "both are beyond"
    assert starts(prefetch.recent_from(KEY, 30)) == [30]


async def test_a_reader_that_asks_from_the_middle_is_the_same_reader() -> None:
    prefetch = TablePrefetch()
    prefetch.remember(KEY, 0, shard_read(0, 10))
    for _ in range(5):
        assert starts(prefetch.recent_from(KEY, 15)) == [10]
    prefetch.remember(KEY, 20, shard_read(20))
    assert prefetch.recent_from(KEY, 15) is None


async def test_filtered_replies_are_kept_for_the_same_filters() -> None:
    prefetch = TablePrefetch()
    source, other = FilteredShard(1, 0, ("a/#",)), FilteredShard(1, 0, ("b/#",))
    sections = [FilteredSection([3, 7], [0, 0], 0, b""), FilteredSection([20, 40], [0, 0], 0, b"")]
    read = FilteredRead(sections, [], 50)
    prefetch.remember_filtered(source, 2, read)
    assert prefetch.filtered_from(source, 2) == read
    assert prefetch.filtered_from(source, 7) == read
    assert prefetch.filtered_from(source, 8) == FilteredRead(sections[1:], [], 50)
    assert prefetch.filtered_from(source, 45) == FilteredRead([], [], 50), "nothing matches up to there"
    assert prefetch.filtered_from(source, 1) is None
    assert prefetch.filtered_from(source, 50) is None
    assert prefetch.filtered_from(other, 2) is None
    assert prefetch.recent_from(KEY, 3) is None


async def test_readers_of_one_shard_do_not_evict_each_others_replies() -> None:
    prefetch = TablePrefetch()
    prefetch.remember(KEY, 0, shard_read(0, 10))
    prefetch.put_leftover(KEY, 20, [SectionRead(25, 5, 0, 0, b"")])
    prefetch.start(KEY, 30, 1, answer(1))
    for at in range(1_000, 1_000 + 10 * 3 * limits.SCANS_NEAR_MAX, 10):  # one that is much faster
        task = prefetch.take(KEY, at, 1)
        assert (task is None) == (at == 1_000)
        prefetch.remember(KEY, at, shard_read(at))
        prefetch.take_leftover(KEY, at)
        prefetch.put_leftover(KEY, at + 10, [SectionRead(at + 15, 5, 0, 0, b"")])
        prefetch.start(KEY, at + 10, 1, answer(at))
        await turns()
    assert starts(prefetch.recent_from(KEY, 10)) == [10]
    assert prefetch.recent_from(KEY, 1_000) is None
    assert [
        section.base_offset for section in prefetch.take_leftover(KEY, 20) or [] if isinstance(section, SectionRead)
    ] == [25]
    prefetched = prefetch.take(KEY, 30, 1)
    assert prefetched is not None
    assert await prefetched == ScanResponse(1)
    prefetch.clear()


async def test_prefetch_at_a_position_is_started_once() -> None:
    prefetch = TablePrefetch()
    for has_arrived in (False, True):
        prefetch.start(KEY, 30, 1, answer(1))
        if has_arrived:
            await turns()
        prefetch.start(KEY, 30, 1, answer(2))
        prefetched = prefetch.take(KEY, 30, 1)
        assert prefetched is not None
        assert await prefetched == ScanResponse(1)


async def test_prefetch_is_taken_only_with_the_same_offset_and_size() -> None:
    prefetch = TablePrefetch()
    prefetch.start(KEY, 30, 1000, answer(99))
    assert prefetch.take(KEY, 31, 1000) is None
    assert prefetch.take(KEY, 30, 999) is None
    prefetched = prefetch.take(KEY, 30, 1000)
    assert prefetched is not None
    assert await prefetched == ScanResponse(99)
    assert prefetch.take(KEY, 30, 1000) is None, "once"


async def test_failed_prefetch_raises_for_its_reader_only() -> None:
    async def away() -> ScanResponse:
        raise errors.LakeAway("it is away")

    prefetch = TablePrefetch()
    prefetch.start(KEY, 0, 1, away())
    prefetch.start(KEY, 5, 1, away())
    prefetched = prefetch.take(KEY, 5, 1)
    assert prefetched is not None
    with pytest.raises(errors.LakeAway):
        await prefetched


async def test_recent_replies_are_bounded_and_the_oldest_evicted() -> None:
    prefetch, most = TablePrefetch(), limits.SCANS_NEAR_MAX
    for number in range(most + 3):
        prefetch.remember(ShardKey(number, 0), 0, shard_read(0))
    is_cached = [prefetch.recent_from(ShardKey(number, 0), 0) is not None for number in range(most + 3)]
    assert is_cached == [False] * 3 + [True] * most


@pytest.mark.parametrize("has_arrived", [False, True])
async def test_prefetches_are_bounded_until_one_is_taken(has_arrived: bool) -> None:
    """Readers take turns: the oldest one is the next that is wanted."""
    prefetch, most = TablePrefetch(), limits.SCANS_NEAR_MAX
    for number in range(most + 3):
        prefetch.start(ShardKey(number, 0), 10, 1, answer(number))
        if has_arrived:
            await turns()
    prefetched = [prefetch.take(ShardKey(number, 0), 10, 1) for number in range(most + 3)]
    assert [task is not None for task in prefetched] == [True] * most + [False] * 3
    assert [await task for task in prefetched if task is not None] == [ScanResponse(number) for number in range(most)]
    prefetch.start(KEY, 10, 1, answer(1))
    assert prefetch.take(KEY, 10, 1) is not None


async def test_cached_replies_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCANS_NEAR_BYTES_MAX", 250)
    prefetch = TablePrefetch()
    for number in range(4):
        prefetch.remember(ShardKey(number, 0), 0, ShardRead([SectionRead(0, 10, 0, 0, bytes(100))], [], 10))
        prefetch.start(ShardKey(number, 0), 10, 1, large(100))
        await turns()
    assert prefetch.size_bytes == 400
    assert [prefetch.recent_from(ShardKey(number, 0), 0) is not None for number in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert [prefetch.take(ShardKey(number, 0), 10, 1) is not None for number in range(4)] == [False, False, True, True]
    assert prefetch.size_bytes == 200, "what was taken is not held here"
    prefetch.clear()
    assert prefetch.size_bytes == 0


async def test_close_cancels_prefetches_in_flight() -> None:
    prefetch, ended = TablePrefetch(), asyncio.Event()

    async def hang() -> ScanResponse:
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()
        return ScanResponse()

    prefetch.start(KEY, 0, 1, hang())
    await asyncio.sleep(0)
    prefetch.clear()
    async with asyncio.timeout(5):
        assert await ended.wait()


async def test_expired_replies_are_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    prefetch = TablePrefetch()
    prefetch.remember(KEY, 0, shard_read(0))
    prefetch.start(KEY, 10, 1, answer(1))
    await turns()
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", -1.0)
    assert prefetch.recent_from(KEY, 0) is None
    assert prefetch.take(KEY, 10, 1) is None


async def test_expiry_counts_from_the_arrival_of_a_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", -1.0)
    prefetch, come = TablePrefetch(), asyncio.Event()

    async def slow() -> ScanResponse:
        await come.wait()
        return ScanResponse(7)

    prefetch.start(KEY, 10, 1, slow())
    await turns()
    prefetched = prefetch.take(KEY, 10, 1)
    assert prefetched is not None
    come.set()
    assert await prefetched == ScanResponse(7)


async def test_timer_evicts_expired_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", 0.01)
    prefetch = TablePrefetch()
    for number in range(3):
        prefetch.remember(ShardKey(number, 0), 0, ShardRead([SectionRead(0, 10, 0, 0, bytes(100))], [], 10))
        prefetch.start(ShardKey(number, 0), 10, 1, large(100))
        await turns()
    async with asyncio.timeout(5):
        while prefetch.size_bytes:
            await turns()
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", 100.0)
    assert prefetch.recent_from(KEY, 0) is None
    assert prefetch.take(KEY, 10, 1) is None
    prefetch.remember(KEY, 0, shard_read(0))
    assert prefetch.recent_from(KEY, 0) is not None
    prefetch.clear()
