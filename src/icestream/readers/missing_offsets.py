"""Explains why committed offsets have no row in the table, for gap events of readers and for `verify`. Pure.

retention     the topic does not keep them: they lie below its first kept offset (hazard 86)
erased        an erasure removed exactly these (hazard 81)
removed       an engine removed rows, and the catalog recorded which (removals beside the pointer, hazard 21)
taken over    between two runs of the shard: only the log of the previous owner had them, if at all (hazard 2)
before        the table receives the messages of its topic from a later offset on
unexplained   none of these, as far as the catalog knows. The broker's own declared gaps are not known here
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.offset_run import OffsetRuns
from icestream.catalog.topic_rules.removal import Removals
from icestream.model.erased_offsets import NOTHING_ERASED, ErasedOffsets
from icestream.model.shard import GapState

ERASED_REASON: Final = "erased"


class GapCause(StrEnum):
    """Why offsets have no row; the head of the module explains each."""

    RETENTION = "retention"
    ERASED = "erased"
    REMOVED = "removed"
    TAKEN_OVER = "taken-over"
    BEFORE = "before"
    UNEXPLAINED = "unexplained"


GAP_STATES: Final = {
    GapCause.RETENTION: GapState.DROPPED,
    GapCause.ERASED: GapState.DROPPED,
    GapCause.REMOVED: GapState.DROPPED,
    GapCause.TAKEN_OVER: GapState.PENDING,
    GapCause.BEFORE: GapState.LOST,
    GapCause.UNEXPLAINED: GapState.LOST,
}


class ExplainedGap(NamedTuple):
    """The offsets [start, end) of a shard without a row, and the reason."""

    start: int
    end: int
    cause: GapCause
    reason: str
    is_exact: bool = True  # False: some offsets of this range are missing, but it is not recorded which


def explain(
    start: int,
    end: int,
    shard: int,
    binding: Binding,
    removals: Removals,
    first: int = 0,
    erased: ErasedOffsets = NOTHING_ERASED,
) -> list[ExplainedGap]:
    """Splits the missing offsets [start, end) of a shard by cause. Exact explanations take precedence, the retention
    before all others, then erasures. `first`: the first kept offset of the shard."""
    gaps: list[ExplainedGap] = []
    position = start
    # One pass: an erasure may have a hundred thousand ranges.
    for low, high in erased.within(shard, max(start, first), end):
        gaps += _explain_unerased(position, low, shard, binding, removals, first)
        gaps.append(ExplainedGap(low, high, GapCause.ERASED, ERASED_REASON))
        position = high
    return gaps + _explain_unerased(position, end, shard, binding, removals, first)


def _explain_unerased(
    start: int, end: int, shard: int, binding: Binding, removals: Removals, first: int
) -> list[ExplainedGap]:
    if start >= end:
        return []
    explanations = _explanations(shard, binding, removals)
    if first:
        explanations.insert(0, ExplainedGap(0, first, GapCause.RETENTION, "removed by the topic's retention"))
    gaps: list[ExplainedGap] = []
    position = start
    while position < end:
        rank, covering = next(
            ((rank, gap) for rank, gap in enumerate(explanations) if gap.start <= position < gap.end),
            (len(explanations), _unexplained(end)),
        )
        # An explanation ends early where one of higher precedence begins.
        stop = min([min(covering.end, end), *(gap.start for gap in explanations[:rank] if position < gap.start)])
        gaps.append(covering._replace(start=position, end=stop))
        position = stop
    return gaps


def recorded(
    start: int,
    end: int,
    shard: int,
    binding: Binding,
    removals: Removals,
    first: int = 0,
    erased: ErasedOffsets = NOTHING_ERASED,
) -> list[ExplainedGap]:
    """Returns those of the offsets [start, end) that are missing by a record, whatever rows there are: for readers that
    do not look at all rows."""
    gaps = explain(start, end, shard, binding, removals, first, erased)
    return [gap for gap in gaps if gap.cause is not GapCause.UNEXPLAINED and gap.is_exact]


def _unexplained(end: int) -> ExplainedGap:
    return ExplainedGap(0, end, GapCause.UNEXPLAINED, "not in the table, without a recorded reason")


def _explanations(shard: int, binding: Binding, removals: Removals) -> list[ExplainedGap]:
    """Returns all recorded reasons, exact ones first."""
    removed = [
        ExplainedGap(
            *removal.ranges[shard], GapCause.REMOVED, f"removed from the table by {removal.words}", removal.is_exact
        )
        for removal in removals
        if shard in removal.ranges
    ]
    # Exact explanations first: an inexact one only says that some rows of a wide range are missing.
    return sorted([*removed, *_gaps_between_runs(binding.runs.get(shard, ()))], key=lambda gap: not gap.is_exact)


def _gaps_between_runs(runs: OffsetRuns) -> list[ExplainedGap]:
    """Returns the offsets between the runs of a shard, and those before its first run."""
    gaps = [
        ExplainedGap(
            run.next, after.start, GapCause.TAKEN_OVER, f"only in the log of an owner before shard epoch {after.epoch}"
        )
        for run, after in pairwise(runs)
        if run.next < after.start
    ]
    if runs and runs[0].start:
        gaps.append(ExplainedGap(0, runs[0].start, GapCause.BEFORE, f"the table begins at offset {runs[0].start}"))
    return gaps
