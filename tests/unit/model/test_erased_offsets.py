"""Erased offsets: exact sets of ranges, and a side file that is what it says or is refused."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.model.erased_offsets import ErasedOffsets, decode_erased, encode_erased, ranges_of

OFFSETS = st.dictionaries(st.integers(0, 3), st.sets(st.integers(0, 40)), max_size=3)


def _erased(offsets: dict[int, set[int]]) -> ErasedOffsets:
    return ErasedOffsets({shard: ranges_of(numbers) for shard, numbers in offsets.items()})


@given(OFFSETS, OFFSETS, st.integers(0, 3), st.integers(0, 45), st.integers(0, 45))
def test_erased_offsets_are_a_set(
    first: dict[int, set[int]], second: dict[int, set[int]], shard: int, start: int, end: int
) -> None:
    both = _erased(first).plus(_erased(second))
    expected = first.get(shard, set()) | second.get(shard, set())
    found = [offset for low, high in both.within(shard, start, end) for offset in range(low, high)]
    assert found == sorted(offset for offset in expected if start <= offset < end)
    assert both.offset_count == sum(len(first.get(n, set()) | second.get(n, set())) for n in {*first, *second})
    assert decode_erased(encode_erased(both)) == both


def test_every_seventh_of_a_million_takes_few_bytes() -> None:
    erased = _erased({0: set(range(0, 1_000_000, 7))})
    assert erased.range_count == 142_858
    assert len(encode_erased(erased)) < 4_096


@given(st.binary(max_size=64))
def test_a_damaged_side_file_is_refused(data: bytes) -> None:
    good = encode_erased(_erased({0: {1, 2, 9}}))
    for damaged in (data, good[:-1], good + b"\0", good[: 9 + len(data) % 5] + data):
        if damaged == good:
            continue
        with pytest.raises(errors.DecodeError):
            decode_erased(damaged)


@pytest.mark.parametrize("numbers", [[1], [0, 0], [5, 1, 0, 1], [-1, 2], [1, -1], [2**63, 1]])
def test_ranges_that_are_no_disjoint_rising_ranges_are_refused(numbers: list[int]) -> None:
    data = b"ICEERASE\x01" + zlib.compress(msgspec.msgpack.encode({0: numbers}))
    with pytest.raises(errors.DecodeError):
        decode_erased(data)
