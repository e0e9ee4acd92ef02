"""Answers near their readers: what is left of the last one, and the next one. Few of them, and not for long."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors, limits
from icestream.broker.storage import ShardRead
from icestream.broker.table_prefetch import TablePrefetch
from icestream.model.scan import Scanned, Section
from icestream.model.shard import ShardKey
from icestream.wal.tail import SectionRead

pytestmark = pytest.mark.asyncio
KEY = ShardKey(1, 0)


def found(*starts: int, rows: int = 10) -> ShardRead:
    sections = [SectionRead(start, rows, 0, 0, b"") for start in starts]
    return ShardRead(sections, [], starts[-1] + rows)


def starts(rest: ShardRead | None) -> list[int] | None:
    return None if rest is None else [one.base_offset for one in rest.sections]


async def answer(end: int) -> Scanned:
    return Scanned(end)


async def large(size: int) -> Scanned:
    return Scanned(20, sections=[Section(10, 10, 0, 0, bytes(size))])


async def turns() -> None:
    """Until a task that waits for nothing has ended, and whoever follows it knows."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_is_left_of_an_answer_is_told_from_any_place_in_it() -> None:
    near = TablePrefetch()
    near.keep(KEY, 0, found(0, 10, 20))
    assert starts(near.rest(KEY, 0)) == [0, 10, 20]
    assert starts(near.rest(KEY, 15)) == [10, 20], "the section that holds it comes whole"
    assert starts(near.rest(KEY, 20)) == [20]
    assert near.rest(KEY, 30) is None
    assert near.rest(ShardKey(1, 1), 15) is None
    near.keep(KEY, 30, found(30))
    assert near.rest(KEY, 15) is None, "its reader has gone on"


async def test_readers_of_one_shard_leave_each_other_what_is_theirs() -> None:
    near = TablePrefetch()
    near.keep(KEY, 0, found(0, 10))
    near.leave(KEY, 20, [SectionRead(25, 5, 0, 0, b"")])
    near.begin(KEY, 30, 1, answer(1))
    for at in range(1_000, 1_000 + 10 * 3 * limits.SCANS_NEAR_MAX, 10):  # one that is much faster
        taken = near.take(KEY, at, 1)
        assert (taken is None) == (at == 1_000)
        near.keep(KEY, at, found(at))
        near.take_left(KEY, at)
        near.leave(KEY, at + 10, [SectionRead(at + 15, 5, 0, 0, b"")])
        near.begin(KEY, at + 10, 1, answer(at))
        await turns()
    assert starts(near.rest(KEY, 10)) == [10]
    assert near.rest(KEY, 1_000) is None
    assert [one.base_offset for one in near.take_left(KEY, 20) or [] if isinstance(one, SectionRead)] == [25]
    begun = near.take(KEY, 30, 1)
    assert begun is not None
    assert await begun == Scanned(1)
    near.close()


async def test_nothing_is_asked_for_ahead_twice() -> None:
    near = TablePrefetch()
    for has_come in (False, True):
        near.begin(KEY, 30, 1, answer(1))
        if has_come:
            await turns()
        near.begin(KEY, 30, 1, answer(2))
        begun = near.take(KEY, 30, 1)
        assert begun is not None
        assert await begun == Scanned(1)


async def test_the_next_answer_is_for_whoever_asks_for_just_that() -> None:
    near = TablePrefetch()
    near.begin(KEY, 30, 1000, answer(99))
    assert near.take(KEY, 31, 1000) is None
    assert near.take(KEY, 30, 999) is None
    begun = near.take(KEY, 30, 1000)
    assert begun is not None
    assert await begun == Scanned(99)
    assert near.take(KEY, 30, 1000) is None, "once"


async def test_an_error_that_nobody_hears_of_is_no_news_and_whoever_asks_hears_it() -> None:
    async def away() -> Scanned:
        raise errors.LakeAway("it is away")

    near = TablePrefetch()
    near.begin(KEY, 0, 1, away())
    near.begin(KEY, 5, 1, away())
    begun = near.take(KEY, 5, 1)
    assert begun is not None
    with pytest.raises(errors.LakeAway):
        await begun


async def test_few_last_ones_are_held_and_the_oldest_go() -> None:
    near, most = TablePrefetch(), limits.SCANS_NEAR_MAX
    for number in range(most + 3):
        near.keep(ShardKey(number, 0), 0, found(0))
    held = [near.rest(ShardKey(number, 0), 0) is not None for number in range(most + 3)]
    assert held == [False] * 3 + [True] * most


@pytest.mark.parametrize("has_come", [False, True])
async def test_few_are_asked_for_ahead_and_no_more_until_one_is_taken(has_come: bool) -> None:
    """Readers take turns: the oldest one is the next that is wanted."""
    near, most = TablePrefetch(), limits.SCANS_NEAR_MAX
    for number in range(most + 3):
        near.begin(ShardKey(number, 0), 10, 1, answer(number))
        if has_come:
            await turns()
    begun = [near.take(ShardKey(number, 0), 10, 1) for number in range(most + 3)]
    assert [one is not None for one in begun] == [True] * most + [False] * 3
    assert [await one for one in begun if one is not None] == [Scanned(number) for number in range(most)]
    near.begin(KEY, 10, 1, answer(1))
    assert near.take(KEY, 10, 1) is not None


async def test_they_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCANS_NEAR_BYTES_MAX", 250)
    near = TablePrefetch()
    for number in range(4):
        near.keep(ShardKey(number, 0), 0, ShardRead([SectionRead(0, 10, 0, 0, bytes(100))], [], 10))
        near.begin(ShardKey(number, 0), 10, 1, large(100))
        await turns()
    assert near.size_bytes == 400
    assert [near.rest(ShardKey(number, 0), 0) is not None for number in range(4)] == [False, False, True, True]
    assert [near.take(ShardKey(number, 0), 10, 1) is not None for number in range(4)] == [False, False, True, True]
    assert near.size_bytes == 200, "what was taken is not held here"
    near.close()
    assert near.size_bytes == 0


async def test_what_is_under_way_ends_with_it() -> None:
    near, ended = TablePrefetch(), asyncio.Event()

    async def hang() -> Scanned:
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()
        return Scanned()

    near.begin(KEY, 0, 1, hang())
    await asyncio.sleep(0)
    near.close()
    async with asyncio.timeout(5):
        assert await ended.wait()


async def test_none_is_older_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    near = TablePrefetch()
    near.keep(KEY, 0, found(0))
    near.begin(KEY, 10, 1, answer(1))
    await turns()
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", -1.0)
    assert near.rest(KEY, 0) is None
    assert near.take(KEY, 10, 1) is None


async def test_one_that_takes_longer_than_a_moment_is_not_old_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", -1.0)
    near, come = TablePrefetch(), asyncio.Event()

    async def slow() -> Scanned:
        await come.wait()
        return Scanned(7)

    near.begin(KEY, 10, 1, slow())
    await turns()
    begun = near.take(KEY, 10, 1)
    assert begun is not None
    come.set()
    assert await begun == Scanned(7)


async def test_what_nobody_comes_for_goes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", 0.01)
    near = TablePrefetch()
    for number in range(3):
        near.keep(ShardKey(number, 0), 0, ShardRead([SectionRead(0, 10, 0, 0, bytes(100))], [], 10))
        near.begin(ShardKey(number, 0), 10, 1, large(100))
        await turns()
    async with asyncio.timeout(5):
        while near.size_bytes:
            await turns()
    monkeypatch.setattr(limits, "SCAN_NEAR_SECONDS_MAX", 100.0)
    assert near.rest(KEY, 0) is None
    assert near.take(KEY, 10, 1) is None
    near.keep(KEY, 0, found(0))
    assert near.rest(KEY, 0) is not None
    near.close()
