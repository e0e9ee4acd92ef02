"""Runs of offsets with a due time: deliveries in flight, and delays before redelivery.

    InFlightDelivery   offsets sent to a consumer in one moment, due at the ack deadline
    RedeliveryDelay    offsets that failed, due when they may be sent again

One value is shared by all runs that remain of its offsets, and counts how many were removed. Heap entries of values
without remaining offsets stay in the heap until they are due or outnumber the others: an ack costs no search in the
heap, and the heap stays at most about twice as large as the runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from icestream.model.run_set import RunSet, ValueRun


@dataclass(slots=True, eq=False)
class TimedRange:
    """Offsets in [start, end) that are due at `due_ms`: all of them, or `picked` of them."""

    start: int
    end: int
    due_ms: int
    removed: int = field(default=0, kw_only=True)  # offsets that were removed from the runs
    picked: int = field(default=0, kw_only=True)  # the number of its offsets, if there are holes between them

    @property
    def is_over(self) -> bool:
        return self.remaining == 0

    @property
    def remaining(self) -> int:
        """The number of its offsets that are still in the runs."""
        return (self.picked or self.end - self.start) - self.removed

    def remove(self, count: int) -> None:
        """Accounts for offsets that were removed from the runs."""
        self.removed += count


class Holder(Protocol):
    """The consumer that has the messages of a delivery."""

    id: int
    unacked: int  # messages in flight


@dataclass(slots=True, eq=False)
class InFlightDelivery(TimedRange):
    """Offsets that were sent to a consumer in one moment; due at the ack deadline."""

    holder: Holder
    attempt: int  # how many deliveries of these messages have failed before
    since_ms: int

    @property
    def consumer(self) -> int:
        return self.holder.id

    def remove(self, count: int) -> None:
        # Every way out of flight (ack, nack, deadline, seek) passes here, so the consumer's count cannot drift.
        self.removed += count
        self.holder.unacked -= count


@dataclass(slots=True, eq=False)
class RedeliveryDelay(TimedRange):
    """Offsets that failed in one moment; due when they may be sent again. Keeps what a changed policy computes from."""

    attempt: int
    reason: str
    since_ms: int
    requested_ms: int  # the delay that the consumer requested
    least_ms: int = 0  # a minimum, whatever the policy says


Value = TypeVar("Value", bound=TimedRange)


class TimedRuns(RunSet[Value]):
    """A RunSet whose values have due times."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, int, Value]] = []  # due time, insertion number, value
        self._number = 0

    def put(self, value: Value) -> None:
        self.add(value.start, value.end, value)
        self._push(value)

    def put_picked(self, value: Value, ranges: Sequence[tuple[int, int]]) -> None:
        """Adds some offsets of a new value: rising ranges that do not touch."""
        self.add_all(ranges, value)
        self._push(value)

    def _push(self, value: Value) -> None:
        self._number += 1  # breaks ties: values have no order
        heapq.heappush(self._heap, (value.due_ms, self._number, value))
        # 64: small heaps are not worth a rebuild.
        if len(self._heap) > 2 * len(self) + 64:
            self._rebuild_heap()

    def take(self, start: int, end: int) -> list[ValueRun[Value]]:
        runs = super().take(start, end)
        for run in runs:
            run.value.remove(run.end - run.start)
        return runs

    def take_offsets(self, offsets: Sequence[int]) -> list[ValueRun[Value]]:
        runs = super().take_offsets(offsets)
        for run in runs:
            run.value.remove(run.end - run.start)
        return runs

    def take_rest(self, value: Value) -> list[ValueRun[Value]]:
        """Removes and returns the remaining runs of a value. Other values may have some of its offsets by now."""
        if value.is_over:
            return []
        runs = [run for run in self.within(value.start, value.end) if run.value is value]
        return [part for run in runs for part in self.take(run.start, run.end)]

    def take_due(self, now_ms: int) -> list[ValueRun[Value]]:
        """Removes and returns the runs that are due, in the order of their due times."""
        runs: list[ValueRun[Value]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            runs += self.take_rest(heapq.heappop(self._heap)[2])
        return runs

    def is_due(self, now_ms: int) -> bool:
        return bool(self._heap) and self._heap[0][0] <= now_ms

    @property
    def wake_ms(self) -> int | None:
        """The earliest due time; None if there is none."""
        while self._heap and self._heap[0][2].is_over:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def retime(self, due_ms: Callable[[Value], int]) -> None:
        """Recomputes every due time."""
        for _, _, value in self._heap:
            value.due_ms = due_ms(value)
        self._rebuild_heap()

    def _rebuild_heap(self) -> None:
        self._heap = [(value.due_ms, number, value) for _, number, value in self._heap if not value.is_over]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        super().clear()
        for _, _, value in self._heap:  # the consumers' counts of unacked messages follow
            value.remove(value.remaining)
        self._heap = []
