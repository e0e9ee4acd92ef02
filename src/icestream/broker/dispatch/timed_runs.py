"""Runs of offsets that each have a time at which something happens to them: deliveries under way, and waits.

    Delivery    what went to a consumer in one moment, until its acks must be there
    Wait        offsets that failed, until they may go out again

Both are shared by whatever is left of their offsets, and know how many of them are gone. Alarms of those with nothing
left stay in the clock until they ring or outnumber the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from icestream.model.run_set import OffsetRun, RunSet


@dataclass(slots=True, eq=False)
class TimedRange:
    """Offsets in [start, end) to which something happens at `due_ms`: all of them, or `picked` of them."""

    start: int
    end: int
    due_ms: int
    gone: int = field(default=0, kw_only=True)  # offsets that were taken out of the runs
    picked: int = field(default=0, kw_only=True)  # how many offsets it has, where there are holes between them

    @property
    def is_over(self) -> bool:
        return self.left == 0

    @property
    def left(self) -> int:
        """How many of its offsets are in the runs."""
        return (self.picked or self.end - self.start) - self.gone

    def lose(self, count: int) -> None:
        """So many of its offsets were taken out of the runs."""
        self.gone += count


class Holder(Protocol):
    """Who has the messages of a delivery."""

    id: int
    held: int  # messages in flight


@dataclass(slots=True, eq=False)
class InFlightDelivery(TimedRange):
    holder: Holder
    attempt: int
    since_ms: int

    @property
    def consumer(self) -> int:
        return self.holder.id

    def lose(self, count: int) -> None:
        self.gone += count
        self.holder.held -= count


@dataclass(slots=True, eq=False)
class RedeliveryDelay(TimedRange):
    attempt: int
    reason: str
    since_ms: int
    asked_ms: int  # the delay that the consumer asked for
    least_ms: int = 0  # whatever the policy says


Value = TypeVar("Value", bound=TimedRange)


class TimedRuns(RunSet[Value]):
    """A RunSet with an alarm clock."""

    __slots__ = ("_alarms", "_number")

    def __init__(self) -> None:
        super().__init__()
        self._alarms: list[tuple[int, int, Value]] = []  # due, number, value: a heap
        self._number = 0

    def put(self, value: Value) -> None:
        self.add(value.start, value.end, value)
        self._set_alarm(value)

    def put_picked(self, value: Value, ranges: Sequence[tuple[int, int]]) -> None:
        """Some offsets of a new value: ranges that rise and do not touch."""
        self.add_all(ranges, value)
        self._set_alarm(value)

    def _set_alarm(self, value: Value) -> None:
        self._number += 1
        heapq.heappush(self._alarms, (value.due_ms, self._number, value))
        if len(self._alarms) > 2 * len(self) + 64:
            self._wind()

    def take(self, start: int, end: int) -> list[OffsetRun[Value]]:
        taken = super().take(start, end)
        for run in taken:
            run.value.lose(run.end - run.start)
        return taken

    def take_offsets(self, offsets: Sequence[int]) -> list[OffsetRun[Value]]:
        taken = super().take_offsets(offsets)
        for run in taken:
            run.value.lose(run.end - run.start)
        return taken

    def take_rest(self, value: Value) -> list[OffsetRun[Value]]:
        """Removes and returns what is left of it. Parts of its offsets may be with others by now."""
        if value.is_over:
            return []
        found = [run for run in self.within(value.start, value.end) if run.value is value]
        return [part for run in found for part in self.take(run.start, run.end)]

    def take_due(self, now_ms: int) -> list[OffsetRun[Value]]:
        """Removes and returns the runs whose time has come, in the order of their times."""
        found: list[OffsetRun[Value]] = []
        while self._alarms and self._alarms[0][0] <= now_ms:
            found += self.take_rest(heapq.heappop(self._alarms)[2])
        return found

    def is_due(self, now_ms: int) -> bool:
        return bool(self._alarms) and self._alarms[0][0] <= now_ms

    @property
    def wake_ms(self) -> int | None:
        """The earliest time of a run."""
        while self._alarms and self._alarms[0][2].is_over:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def retime(self, due_ms: Callable[[Value], int]) -> None:
        """Sets every alarm anew."""
        for _, _, value in self._alarms:
            value.due_ms = due_ms(value)
        self._wind()

    def _wind(self) -> None:
        self._alarms = [(value.due_ms, number, value) for _, number, value in self._alarms if not value.is_over]
        heapq.heapify(self._alarms)

    def clear(self) -> None:
        super().clear()
        for _, _, value in self._alarms:
            value.lose(value.left)
        self._alarms = []
