"""The shares of tasks, and copies that run so many at once."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.backup.file_copy import SourceFile, run_bounded, shares_of


@given(st.lists(st.integers(0, 1 << 30), max_size=60), st.integers(1, 9))
def test_every_file_is_in_one_share_and_no_share_is_empty(sizes: list[int], tasks_max: int) -> None:
    files = [SourceFile(f"file:/{number}", "data", size) for number, size in enumerate(sizes)]
    shares = shares_of(files, tasks_max)
    assert sorted(number for share in shares for number in share) == [*range(len(files))]
    assert all(shares)
    assert len(shares) == min(tasks_max, len(files))


def test_shares_differ_by_less_than_the_largest_file() -> None:
    files = [SourceFile("", "data", size << 20) for size in (9, 1, 5, 5, 1, 3, 8, 2)]
    sums = [sum(files[number].size for number in share) for share in shares_of(files, 3)]
    assert max(sums) - min(sums) <= 9 << 20


@pytest.mark.asyncio
async def test_an_error_ends_those_that_wait_and_is_raised_after_those_that_run() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def call(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(0)
        if number == 3:
            raise ValueError(number)
        ended.append(number)

    with pytest.raises(ValueError, match="3"):
        await run_bounded((partial(call, number) for number in range(100)), 4)
    assert len(begun) < 10
    await asyncio.sleep(0)
    assert len(ended) < 10, "nothing runs on"
