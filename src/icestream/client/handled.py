"""What became of the messages of one shard, as far as this consumer knows. Pure; ranges of offsets, none per message.

    waiting   came, and was not handed out yet       handed out -> handed; given up with its connection -> forgotten
    handed    the application has it                 acked -> acked; nacked -> forgotten: it is to come again
    acked     for good

A broker delivers again whatever it does not know as acked: after a lost connection, after a crash that took the newest
acks with it, after a time-out. What was acked here is never handed out again, it is acked again; a copy that waits when
the message is acked is dropped. What waits is not put in a second time. What was handed out is handed out again (at
least once), unless the subscription deduplicates.

All of it belongs to one generation of the shard: a seek asks for everything anew (hazard 48).
"""

from __future__ import annotations

from typing import NamedTuple

from icestream import limits
from icestream.model.run_set import RunSet


class Arrived(NamedTuple):
    """What is to be handed out, what is to be acked again, and whether all of it is behind what came before."""

    fresh: list[tuple[int, int]]
    acked: list[tuple[int, int]]
    may_be_copies: bool  # it is not


class Handled:
    def __init__(self, generation: int, *, deduplicates: bool) -> None:
        self.generation = generation
        self._deduplicates = deduplicates
        self._waiting: RunSet[None] = RunSet()
        self._handed: RunSet[None] = RunSet()  # stays empty where nothing is deduplicated
        self._acked: RunSet[None] = RunSet()
        self._end = 0  # behind all that came

    def arrived(self, start: int, end: int) -> Arrived:
        """Messages came; what is fresh of them waits from now on."""
        fresh, acked = [(start, end)], self._within(self._acked, start, end)
        for known in (self._acked, self._handed, self._waiting):
            if known.size and known.first_within(start, end) is not None:
                fresh = [piece for low, high in fresh for piece in _without(known, low, high)]
        for low, high in fresh:
            self._waiting.add(low, high, None)
        may_be_copies = start < self._end
        self._end = max(self._end, end)
        return Arrived(fresh, acked, may_be_copies)

    @staticmethod
    def _within(runs: RunSet[None], start: int, end: int) -> list[tuple[int, int]]:
        return [(run.start, run.end) for run in runs.within(start, end)] if runs.size else []

    def given_up(self, start: int, end: int) -> None:
        """They waited, and are not handed out."""
        self._waiting.take(start, end)

    def handed_out(self, start: int, end: int) -> None:
        self._waiting.take(start, end)
        if self._deduplicates:
            _add(self._handed, start, end)

    def acked(self, start: int, end: int) -> None:
        """A copy of them does not wait any more."""
        self._waiting.take(start, end)
        if self._handed.size:
            self._handed.take(start, end)
        _add(self._acked, start, end)

    def nacked(self, start: int, end: int) -> None:
        """They are asked for again."""
        if self._handed.size:
            self._handed.take(start, end)

    @property
    def ranges(self) -> int:
        return len(self._acked) + len(self._handed)


def _add(runs: RunSet[None], start: int, end: int) -> None:
    runs.take(start, end)
    runs.add(start, end, None)
    while len(runs) > limits.CLIENT_HANDLED_RANGES_MAX:
        lowest = runs.first()  # the least likely to come again
        runs.take(lowest.start, lowest.end)


def _without(runs: RunSet[None], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) that are in no run."""
    found: list[tuple[int, int]] = []
    for run in runs.within(start, end):
        if start < run.start:
            found.append((start, run.start))
        start = run.end
    if start < end:
        found.append((start, end))
    return found
