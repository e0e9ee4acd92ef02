"""RunSet against a plain dictionary of offsets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from icestream.model.run_set import RunSet, ValueRun

OFFSETS = st.integers(0, 40)
COUNTS = st.integers(0, 15)


class RunSetModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.runs: RunSet[str] = RunSet()
        self.values: dict[int, str] = {}

    @rule(start=OFFSETS, count=st.integers(1, 15), value=st.sampled_from("ab"))
    def add(self, start: int, count: int, value: str) -> None:
        """Adds the free offsets at the front of the stretch."""
        offsets = []
        for offset in range(start, start + count):
            if offset in self.values:
                break
            offsets.append(offset)
        if offsets:
            self.runs.add(offsets[0], offsets[-1] + 1, value)
            self.values.update(dict.fromkeys(offsets, value))

    @precondition(lambda self: self.values)
    @rule(start=OFFSETS, count=st.integers(1, 15), value=st.sampled_from("ab"))
    def what_overlaps_is_refused(self, start: int, count: int, value: str) -> None:
        if any(offset in self.values for offset in range(start, start + count)):
            with pytest.raises(AssertionError, match="overlap"):
                self.runs.add(start, start + count, value)

    @rule(start=OFFSETS, count=COUNTS)
    def take(self, start: int, count: int) -> None:
        expected = self.between(start, start + count)
        assert flat(self.runs.within(start, start + count)) == expected
        first = self.runs.first_within(start, start + count)
        assert first == next(iter(self.runs.within(start, start + count)), None)
        assert flat(self.runs.take(start, start + count)) == expected
        for offset, _ in expected:
            del self.values[offset]

    @rule()
    def clear(self) -> None:
        self.runs.clear()
        self.values = {}

    def between(self, start: int, end: int) -> list[tuple[int, str]]:
        return sorted((offset, value) for offset, value in self.values.items() if start <= offset < end)

    @invariant()
    def holds_the_same(self) -> None:
        assert flat(list(self.runs)) == sorted(self.values.items())
        assert self.runs.size == len(self.values)
        assert bool(self.runs) == bool(self.values)
        assert len(self.runs) == len(list(self.runs))
        if self.values:
            assert self.runs.first().start == min(self.values)

    @invariant()
    def neighbours_with_equal_values_are_one_run(self) -> None:
        for left, right in pairwise(self.runs):
            assert left.end < right.start or left.value != right.value


def flat(runs: list[ValueRun[str]]) -> list[tuple[int, str]]:
    return [(offset, run.value) for run in runs for offset in range(run.start, run.end)]


def test_any_history_of_runs() -> None:
    run_state_machine_as_test(RunSetModel)
    assert RunSetModel.TestCase is not None


def test_a_large_range_costs_one_run() -> None:
    runs: RunSet[int] = RunSet()
    runs.add(0, 2**62, 7)
    assert runs.take(10, 2**61) == [ValueRun(10, 2**61, 7)]
    assert list(runs) == [ValueRun(0, 10, 7), ValueRun(2**61, 2**62, 7)]


def test_values_compared_by_identity_are_not_merged() -> None:
    runs: RunSet[object] = RunSet()
    runs.add(0, 1, object())
    runs.add(1, 2, object())
    assert len(runs) == 2


@given(st.integers(0, 5), st.integers(0, 5))
def test_an_empty_range_is_refused(start: int, less: int) -> None:
    with pytest.raises(AssertionError):
        RunSet[int]().add(start, start - less, 1)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=80),
    st.sets(st.integers(0, 300), min_size=1, max_size=60),
    st.integers(1, 9),
)
def test_bulk_operations_equal_single_ones(steps: list[tuple[int, int]], offsets: set[int], parts: int) -> None:
    at, ranges = 0, list[tuple[int, int]]()
    for hole, rows in steps:
        ranges.append((at + hole, at + hole + rows))
        at += hole + rows
    at_once, singly = RunSet[int](), RunSet[int]()
    for part in range(parts):
        at_once.add_all(ranges[part::parts], part)
        for start, end in ranges[part::parts]:
            singly.add(start, end, part)
    assert list(at_once) == list(singly)
    runs = at_once.take_offsets(sorted(offsets))
    assert runs == [run for offset in sorted(offsets) for run in singly.take(offset, offset + 1)]
    assert (list(at_once), at_once.size) == (list(singly), singly.size)
    assert at_once.take_offsets([]) == []
