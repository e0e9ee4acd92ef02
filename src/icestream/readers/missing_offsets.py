"""Why offsets that were committed are no rows: pure. Readers say it in gap events, `verify` in its report.

removed       an engine took rows away, and the catalog knows which (removals beside the pointer, hazard 21)
taken over    between two runs of the shard: the log of a dead owner had them, or nobody (hazard 2)
before        the table got the messages of its topic from a later offset on
unexplained   none of these, as far as the catalog knows. The broker's own declared gaps are not known here
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.offset_run import OffsetRuns
from icestream.catalog.topic_rules.removal import Removals
from icestream.model.shard import GapState


class MissingCause(StrEnum):
    REMOVED = "removed"
    TAKEN_OVER = "taken-over"
    BEFORE = "before"
    UNEXPLAINED = "unexplained"


STATES: Final = {
    MissingCause.REMOVED: GapState.DROPPED,
    MissingCause.TAKEN_OVER: GapState.PENDING,
    MissingCause.BEFORE: GapState.LOST,
    MissingCause.UNEXPLAINED: GapState.LOST,
}


class MissingRange(NamedTuple):
    start: int
    end: int
    cause: MissingCause
    reason: str
    is_exact: bool = True  # False: some offsets of this range are known to be absent, not these


def explain(start: int, end: int, shard: int, binding: Binding, removals: Removals) -> list[MissingRange]:
    """The offsets [start, end) of a shard, cut where the reason is another one. What is known exactly says more."""
    known = _known(shard, binding, removals)
    found: list[MissingRange] = []
    at = start
    while at < end:
        rank, covering = next(
            ((rank, one) for rank, one in enumerate(known) if one.start <= at < one.end),
            (len(known), _unexplained(end)),
        )
        stop = min([min(covering.end, end), *(one.start for one in known[:rank] if at < one.start)])
        found.append(covering._replace(start=at, end=stop))
        at = stop
    return found


def _unexplained(end: int) -> MissingRange:
    return MissingRange(0, end, MissingCause.UNEXPLAINED, "not in the table, and nothing says why")


def _known(shard: int, binding: Binding, removals: Removals) -> list[MissingRange]:
    """The better one first."""
    removed = [
        MissingRange(
            *one.ranges[shard],
            MissingCause.REMOVED,
            f"removed from the table by {one.words}",
            one.is_exact,
        )
        for one in removals
        if shard in one.ranges
    ]
    return sorted([*removed, *_outside_of_runs(binding.runs.get(shard, ()))], key=lambda one: not one.is_exact)


def _outside_of_runs(runs: OffsetRuns) -> list[MissingRange]:
    found = [
        MissingRange(one.next, after.start, MissingCause.TAKEN_OVER, f"of an owner before epoch {after.epoch}")
        for one, after in pairwise(runs)
        if one.next < after.start
    ]
    if runs and runs[0].start:
        found.append(MissingRange(0, runs[0].start, MissingCause.BEFORE, f"the table begins at offset {runs[0].start}"))
    return found
