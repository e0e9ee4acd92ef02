"""Acked against a plain set of offsets, and the proof that its room keeps its bounds (hazard 17)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model.cursor import AckedOffsets

PAIRS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), max_size=30)


def offsets(acked: AckedOffsets) -> set[int]:
    return {*range(acked.position), *(offset for start, end in acked.ranges for offset in range(start, end))}


def holes(acked_offsets: set[int], start: int, end: int) -> list[int]:
    return [offset for offset in range(start, end) if offset not in acked_offsets]


@given(st.integers(0, 20), PAIRS, st.integers(0, 70), st.integers(0, 70))
def test_a_cursor_equals_a_plain_set(position: int, pairs: list[tuple[int, int]], start: int, end: int) -> None:
    acked, acked_offsets = AckedOffsets(position), set(range(position))
    for first, count in pairs:
        acked.add(first, first + count)
        acked_offsets |= set(range(first, first + count))
        assert offsets(acked) == acked_offsets
        assert acked.position == next(offset for offset in range(100) if offset not in acked_offsets)
        assert len(acked) == len(acked.ranges)
        assert acked.end == max([*acked_offsets, position - 1]) + 1
    assert [offset in acked for offset in range(80)] == [offset in acked_offsets for offset in range(80)]
    missing = list(acked.missing(start, end))
    assert [offset for low, high in missing for offset in range(low, high)] == holes(acked_offsets, start, end)
    assert acked.first_missing(start, end) == next(iter(missing), None)
    assert acked.hole == ((acked.position, acked.ranges[0][0]) if acked.ranges else None)


@given(st.integers(0, 20), PAIRS)
def test_ranges_are_apart_and_above_the_position(position: int, pairs: list[tuple[int, int]]) -> None:
    acked = AckedOffsets(position)
    for first, count in pairs:
        acked.add(first, first + count)
    last = acked.position
    for start, end in acked.ranges:
        assert last < start < end
        last = end


@given(st.integers(0, 20), PAIRS, st.integers(0, 60))
def test_a_cut_cursor_keeps_only_offsets_below(position: int, pairs: list[tuple[int, int]], end: int) -> None:
    acked = AckedOffsets(position, [(start, start + count) for start, count in pairs if count])
    before = offsets(acked)
    assert offsets(acked.below(end)) == {offset for offset in before if offset < end}
    assert offsets(acked) == before


@given(st.integers(0, 20), PAIRS)
def test_a_stored_cursor_round_trips(position: int, pairs: list[tuple[int, int]]) -> None:
    acked = AckedOffsets(position, [(start, start + count) for start, count in pairs if count])
    again = AckedOffsets(acked.position, acked.ranges)
    assert (again.position, again.ranges) == (acked.position, acked.ranges)


# --- bounds -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.just("deliver"), st.integers(0, 200)), max_size=200))
@example(["deliver", *range(1, 200, 2)])
@example([step for number in range(100) for step in ("deliver", number)])
def test_hazard_17_the_ranges_stay_bounded_for_any_acks(steps: list[str | int]) -> None:
    """Sends out as much as there is room for, and acks anything that is out, in any order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ACKED_RANGES_MAX", 4)
        patch.setattr(limits, "ACKED_SPAN_OFFSETS_MAX", 30)
        acked, out, end = AckedOffsets(), set[int](), 0
        for step in steps:
            if step == "deliver":
                room = acked.room(len(out), end)
                out |= set(range(end, end + room))
                end += room
            elif out:
                offset = sorted(out)[int(step) % len(out)]
                out.discard(offset)
                acked.add(offset, offset + 1)
            assert len(acked) <= 4
            assert acked.end - acked.position <= 30


def test_hazard_17_there_is_room_again_as_soon_as_a_hole_closes() -> None:
    acked = AckedOffsets(0, [(offset, offset + 1) for offset in range(1, 2 * limits.ACKED_RANGES_MAX, 2)])
    assert len(acked) == limits.ACKED_RANGES_MAX
    assert acked.room(limits.ACKED_RANGES_MAX, acked.end) == 0
    acked.add(0, 1)
    assert acked.room(limits.ACKED_RANGES_MAX - 1, acked.end) > 0


def test_hazard_17_a_span_that_is_full_has_no_room() -> None:
    assert AckedOffsets(0).room(1, limits.ACKED_SPAN_OFFSETS_MAX - 1) == 1
    assert AckedOffsets(0).room(1, limits.ACKED_SPAN_OFFSETS_MAX) == 0
    assert AckedOffsets(0).room(1, limits.ACKED_SPAN_OFFSETS_MAX + 5) == 0


@pytest.mark.parametrize("position", [-1, limits.OFFSET_MAX + 1])
def test_positions_outside_the_log_are_refused(position: int) -> None:
    with pytest.raises(errors.InvalidInput, match="position"):
        AckedOffsets(position)


@pytest.mark.parametrize("pair", [(5, 5), (6, 5), (-1, 3), (0, limits.OFFSET_MAX + 1)])
def test_invalid_ranges_are_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(errors.InvalidInput, match="range"):
        AckedOffsets(0, [pair])
