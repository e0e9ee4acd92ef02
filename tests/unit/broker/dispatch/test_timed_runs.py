"""Runs with an alarm clock: each rings once, at its time, for what is left of it; and the clock stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream.broker.dispatch.timed_runs import TimedRange, TimedRuns

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 40), st.integers(1, 8), st.integers(0, 50)),
        st.tuples(st.just("take"), st.integers(0, 40), st.integers(0, 8), st.just(0)),
        st.tuples(st.just("ring"), st.integers(0, 50), st.just(0), st.just(0)),
        st.tuples(st.just("retime"), st.integers(-5, 5), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_offset_rings_once_and_at_its_time(steps: list[tuple[str, int, int, int]]) -> None:
    runs: TimedRuns[TimedRange] = TimedRuns()
    due: dict[int, int] = {}
    for name, first, count, at in steps:
        if name == "put":
            end = next((offset for offset in range(first, first + count) if offset in due), first + count)
            if first < end:
                runs.put(TimedRange(first, end, at))
                due.update(dict.fromkeys(range(first, end), at))
        elif name == "take":
            taken_offsets = {offset for run in runs.take(first, first + count) for offset in range(run.start, run.end)}
            assert taken_offsets == {offset for offset in due if first <= offset < first + count}
            due = {offset: when for offset, when in due.items() if offset not in taken_offsets}
        elif name == "retime":
            runs.retime(lambda timed, shift=first: timed.due_ms + shift)  # type: ignore[misc]
            due = {offset: when + first for offset, when in due.items()}
        else:
            assert runs.is_due(first) or not any(when <= first for when in due.values())
            rung = [(run.value.due_ms, offset) for run in runs.take_due(first) for offset in range(run.start, run.end)]
            assert sorted(offset for _, offset in rung) == sorted(
                offset for offset, when in due.items() if when <= first
            )
            assert [when for when, _ in rung] == sorted(when for when, _ in rung)
            due = {offset: when for offset, when in due.items() if when > first}
        assert runs.wake_ms == min(due.values(), default=None)
        assert runs.size == len(due)


def test_alarms_of_removed_runs_do_not_accumulate() -> None:
    runs: TimedRuns[TimedRange] = TimedRuns()
    for offset in range(10_000):
        runs.put(TimedRange(offset, offset + 1, 10**9 - offset))
        runs.take(offset, offset + 1)
        assert len(runs._heap) <= 70
    assert runs.wake_ms is None


def test_only_the_remainder_of_a_run_is_taken() -> None:
    """Part of the run was sent again and belongs to another run by now."""
    runs: TimedRuns[TimedRange] = TimedRuns()
    first, second = TimedRange(0, 10, 5), TimedRange(3, 4, 5)
    runs.put(first)
    runs.take(2, 6)
    runs.put(second)
    assert [(run.start, run.end) for run in runs.take_rest(first)] == [(0, 2), (6, 10)]
    assert [(run.start, run.end) for run in runs] == [(3, 4)]
    assert first.is_over
    assert not second.is_over


def test_clearing_removes_everything() -> None:
    runs: TimedRuns[TimedRange] = TimedRuns()
    timed = TimedRange(0, 10, 5)
    runs.put(timed)
    runs.clear()
    assert timed.is_over
    assert runs.wake_ms is None
    assert not runs.take_due(100)
