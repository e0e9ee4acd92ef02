"""The state of the log is the result of its records, applied one after the other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model import envelope
from icestream.model.block import ConstantColumn, Numbering, encode_block
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.wal import format as wire
from icestream.wal import notes
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.state import LogState, Shard, Usage

KEY = ShardKey(1, 0)
TOPIC = TopicIdentity(1, "/default/a")


def decoded(sections: list[wire.RecordSection]) -> tuple[list[wire.SectionEntry], Callable[[wire.SectionEntry], bytes]]:
    record = wire.encode_record(wire.RecordKind.DATA, 1, 1, 0, 0, 4096, 8, sections)
    header = wire.decode_header(record, 0, 4096)
    return wire.decode_entries(record, 0, header), lambda entry: record[entry.body_position - 4096 :][
        : entry.body_bytes
    ]


def apply(state: LogState, lsn: int, *sections: wire.RecordSection) -> None:
    state.apply(lsn, *decoded(list(sections)))


def messages(
    key: ShardKey, base: int, rows: int, *, time_us: int = 5, numbering: Numbering | None = None
) -> wire.RecordSection:
    body = encode_block(rows, {envelope.PAYLOAD: ConstantColumn(b"x")}, numbering)
    return wire.RecordSection(*key, wire.SectionKind.MESSAGES, 0, 2, base, time_us, rows, 0, body)


def gap(
    start: int, end: int, reason: str = "unclean stop", state: GapState = GapState.UNUSED, epoch: int = 0
) -> DeclaredGap:
    return DeclaredGap(KEY, start, end, epoch, reason, state)


@pytest.fixture
def state() -> LogState:
    log_state = LogState()
    log_state.declare_topic(TOPIC)
    return log_state


def offsets(shard: Shard) -> tuple[int, int, int, int]:
    return shard.synced, shard.written, shard.assigned, shard.reserved


# --- topics and shards ------------------------------------------------------------------------------------------------


def test_a_topic_id_has_one_meaning(state: LogState) -> None:
    state.declare_topic(TopicIdentity(1, "/default/a"))
    for other in (TopicIdentity(1, "/default/b"), TopicIdentity(1, "/default/a", 2)):
        with pytest.raises(errors.InvalidInput, match="topic id 1"):
            state.declare_topic(other)
    assert state.topics == {1: TOPIC}


def test_a_shard_needs_its_topic(state: LogState) -> None:
    assert state.shard(KEY) is state.shard(ShardKey(1, 0))
    with pytest.raises(errors.UnknownTopic):
        state.shard(ShardKey(2, 0))
    for number in (-1, 2**31):
        with pytest.raises(errors.InvalidInput):
            state.shard(ShardKey(1, number))
    assert list(state.shards) == [KEY]


def test_shards_of_a_topic_share_its_usage(state: LogState) -> None:
    assert state.shard(KEY).usage is state.shard(ShardKey(1, 1)).usage is state.usage[1]


# --- time -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-20_000_000, 20_000_000), max_size=20))
def test_hazard_32_small_steps_back_are_clamped_large_ones_are_kept_and_counted(steps: list[int]) -> None:
    shard = Shard(TOPIC, 0, Usage())
    now = last = 1_700_000_000_000_000
    assert shard.stamp(now) == now
    counted = 0
    for step in steps:
        now += step
        if now >= last:
            expected = now
        elif last - now < limits.CLOCK_CLAMP_US:
            expected = last
        else:
            expected = now
            counted += 1
        assert shard.stamp(now) == expected
        last = expected
    assert (shard.append_time_us, shard.clock_steps) == (last, counted)


@pytest.mark.parametrize(("back_us", "is_clamped"), [(1, True), (4_999_999, True), (5_000_000, False), (10**15, False)])
def test_hazard_32_the_bound_is_five_seconds(back_us: int, is_clamped: bool) -> None:
    shard = Shard(TOPIC, 0, Usage())
    shard.stamp(2 * 10**15)
    assert (shard.stamp(2 * 10**15 - back_us) == 2 * 10**15) == is_clamped


def test_a_shard_accepts_any_first_timestamp() -> None:
    assert Shard(TOPIC, 0, Usage()).stamp(-(2**63)) == -(2**63)


# --- records ----------------------------------------------------------------------------------------------------------


def test_messages_move_all_offsets(state: LogState) -> None:
    apply(state, 7, messages(KEY, 0, 5, time_us=11), messages(ShardKey(1, 1), 0, 2))
    apply(state, 8, messages(KEY, 5, 1, time_us=3))
    shard = state.shard(KEY)
    assert offsets(shard) == (6, 6, 6, 6)
    assert (shard.epoch, shard.append_time_us, state.lsn) == (2, 3, 8)
    assert offsets(state.shard(ShardKey(1, 1))) == (2, 2, 2, 2)


@pytest.mark.parametrize("base", [0, 4, 6, 2**62])
def test_a_hole_between_offsets_is_damage(state: LogState, base: int) -> None:
    apply(state, 1, messages(KEY, 0, 5))
    with pytest.raises(errors.LogDamaged, match="expected 5"):
        apply(state, 2, messages(KEY, base, 1))
    assert state.lsn == 1


@pytest.mark.parametrize(
    "section", [messages(KEY, 0, 1), notes.reserve_section(KEY, 0, 10), notes.gap_section(gap(0, 9))]
)
def test_hazard_04_an_unnamed_topic_id_stops_the_start(section: wire.RecordSection) -> None:
    with pytest.raises(errors.LogDamaged, match="topic id 1 is used, but no record of the log names it"):
        apply(LogState(), 1, section)


def test_hazard_04_the_record_itself_may_name_its_topic() -> None:
    state = LogState()
    apply(state, 1, notes.topic_section(TOPIC), messages(KEY, 0, 3))
    assert (state.topics, state.shard(KEY).assigned) == ({1: TOPIC}, 3)


def test_hazard_03_a_promise_is_kept_and_never_lowered(state: LogState) -> None:
    apply(state, 1, notes.reserve_section(KEY, 0, 1_000), messages(KEY, 0, 5))
    shard = state.shard(KEY)
    assert offsets(shard) == (5, 5, 5, 1_000)
    apply(state, 2, notes.reserve_section(KEY, 0, 500))
    assert (shard.reserved, shard.reserve_pending) == (1_000, 1_000)
    apply(state, 3, messages(KEY, 5, 2_000))
    assert offsets(shard) == (2_005, 2_005, 2_005, 2_005)


def test_hazard_00_messages_continue_after_a_declared_gap(state: LogState) -> None:
    apply(state, 1, messages(KEY, 0, 5))
    apply(state, 2, notes.gap_section(gap(5, 100)))
    assert offsets(state.shard(KEY)) == (100, 100, 100, 100)
    apply(state, 3, messages(KEY, 100, 1))
    assert state.gaps == {KEY: [gap(5, 100)]}
    assert state.shard(KEY).assigned == 101


def test_a_gap_below_the_end_changes_nothing(state: LogState) -> None:
    apply(state, 1, messages(KEY, 0, 50))
    apply(state, 2, notes.gap_section(gap(10, 20, state=GapState.LOST)))
    assert offsets(state.shard(KEY)) == (50, 50, 50, 50)


def test_hazard_07_numbered_blocks_of_a_section_fill_the_windows(state: LogState) -> None:
    """Two producers and an unnumbered batch in one section: each block has the offsets behind the one before it."""
    bodies = [
        encode_block(2, {}, Numbering(7, 1, 40)),
        encode_block(3, {}),
        encode_block(1, {}, Numbering(8, 1, 0)),
    ]
    apply(state, 9, wire.RecordSection(*KEY, wire.SectionKind.MESSAGES, 0, 2, 0, 5, 6, 0, b"".join(bodies)))
    assert state.producers.check(KEY, Numbering(7, 1, 41), 1) == Duplicate(1, 9)
    assert state.producers.check(KEY, Numbering(8, 1, 0), 1) == Duplicate(5, 9)
    assert state.producers.check(KEY, Numbering(7, 1, 42), 1) is None


# 5, 6 and 7 have their names already, and nothing in this version that would do what they say.
@pytest.mark.parametrize("kind", [5, 6, 7, 8, 31, 50, 255])
def test_an_unknown_mandatory_kind_stops_the_start(state: LogState, kind: int) -> None:
    with pytest.raises(errors.FormatUnknown, match=f"kind {kind}"):
        apply(state, 1, wire.RecordSection(1, 0, kind, 0, 0, 0, 0, 0, 0, b"?"))
    apply(state, 2, wire.RecordSection(1, 0, kind, wire.OPTIONAL, 0, 0, 0, 0, 0, b"?"))
    assert state.lsn == 2


def test_a_body_that_is_no_block_is_refused(state: LogState) -> None:
    with pytest.raises(errors.DecodeError):
        apply(state, 1, wire.RecordSection(*KEY, wire.SectionKind.MESSAGES, 0, 2, 0, 5, 6, 0, b"\xff" * 40))


# --- a history --------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["messages", "gap", "reserve"]), st.integers(0, 2), st.integers(1, 9)), max_size=25
)


@given(STEPS)
def test_hazard_00_the_offset_marks_of_a_shard_stay_ordered(steps: list[tuple[str, int, int]]) -> None:
    """Any history: synced = written = assigned <= reserved, each offset is a message or in a gap."""
    state = LogState()
    state.declare_topic(TOPIC)
    ends, promised = dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 0)
    holes: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for lsn, (what, number, size) in enumerate(steps, 1):
        key = ShardKey(1, number)
        start = ends[number]
        if what == "reserve":
            promised[number] = max(promised[number], start + 10 * size)
            section = notes.reserve_section(key, 0, start + 10 * size)
        else:
            ends[number] = start + size
            declared_gap = DeclaredGap(key, start, start + size, 0, "unclean stop", GapState.UNUSED)
            section = messages(key, start, size) if what == "messages" else notes.gap_section(declared_gap)
            holes[number] |= set(range(start, start + size)) if what == "gap" else set()
        apply(state, lsn, section)
        shard = state.shard(key)
        assert offsets(shard) == (*[ends[number]] * 3, max(promised[number], ends[number]))
    for number, missing in holes.items():
        gaps = state.gaps.get(ShardKey(1, number), [])
        assert {offset for entry in gaps for offset in range(entry.start, entry.end)} == missing
        assert all(entry.end < other.start for entry, other in pairwise(gaps))


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_adjacent_equal_gaps_are_merged(state: LogState) -> None:
    for entry in (gap(0, 5), gap(5, 9), gap(9, 10)):
        state.declare_gap(entry)
    assert state.gaps[KEY] == [gap(0, 10)]


@pytest.mark.parametrize(
    "other", [gap(5, 9, reason="else"), gap(5, 9, state=GapState.LOST), gap(5, 9, epoch=1), gap(6, 9)]
)
def test_different_gaps_are_not_merged(state: LogState, other: DeclaredGap) -> None:
    state.declare_gap(gap(0, 5))
    state.declare_gap(other)
    assert state.gaps[KEY] == [gap(0, 5), other]


def test_a_gap_declared_twice_is_listed_once(state: LogState) -> None:
    for _ in range(2):
        state.declare_gap(gap(0, 5))
        state.declare_gap(gap(7, 9))
    assert state.gaps[KEY] == [gap(0, 5), gap(7, 9)]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.booleans()), max_size=8), st.integers(0, 40))
def test_a_reader_steps_over_every_gap(ranges: list[tuple[int, int, bool]], offset: int) -> None:
    state = LogState()
    state.declare_topic(TOPIC)
    for start, size, lost in ranges:
        state.declare_gap(gap(start, start + size, state=GapState.LOST if lost else GapState.UNUSED))
    missing = {number for start, size, _ in ranges for number in range(start, start + size)}
    expected = next(number for number in range(offset, 100) if number not in missing)
    assert state.step_over(KEY, offset) == expected
    gap_there = state.gap_at(KEY, offset)
    assert (gap_there is not None) == (offset in missing)
    assert gap_there is None or gap_there.start <= offset < gap_there.end
    assert state.step_over(ShardKey(1, 1), offset) == offset


@pytest.mark.parametrize("floor", [0, 10, 2 * limits.GAPS_PER_SHARD_MAX])
def test_gaps_above_the_floor_are_never_forgotten(state: LogState, floor: int) -> None:
    state.shard(KEY).floor = floor
    declared = [gap(4 * number, 4 * number + 1) for number in range(limits.GAPS_PER_SHARD_MAX + 5)]
    for entry in declared:
        state.declare_gap(entry)
    remaining: Any = state.gaps[KEY]
    assert [entry for entry in remaining if entry.end > floor] == [entry for entry in declared if entry.end > floor]
    above = sum(entry.end > floor for entry in declared)
    assert len(remaining) <= max(limits.GAPS_PER_SHARD_MAX, above)
