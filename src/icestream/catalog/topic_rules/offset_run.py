"""Offset runs: which offsets of a shard are in its table (design 3, hazard 2). Pure.

A run is a range of a shard's offsets under one shard epoch. Everything in [start, next) is a row of the table or lies
in a declared gap. One run of a shard is open, the last; a commit extends it at `next`. A takeover closes it where it is
and opens another at a start that the old owner can never have reached; what lies between is a gap.

    epoch 0   [0 ───────────── 1000)                                closed: its owner died with 1000..1999 in its log
    epoch 1                            [4096 ─────── 5000)          open: the next commit begins at 5000
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from icestream import errors, limits


class OffsetRun(msgspec.Struct, frozen=True, array_like=True):
    """Committed offsets [start, next) of a shard under one epoch. Raises InvalidInput for a range that is none."""

    epoch: int
    start: int
    next: int  # the first offset that is not committed
    is_closed: bool = False

    def __post_init__(self) -> None:
        if self.epoch < 0 or not 0 <= self.start <= self.next <= limits.OFFSET_MAX:
            raise errors.InvalidInput(f"invalid run: epoch {self.epoch}, offsets [{self.start}, {self.next})")


OffsetRuns = tuple[OffsetRun, ...]  # of one shard, the oldest first; the last one is open


def extended(runs: OffsetRuns, end: int) -> OffsetRuns:
    """The runs after a commit: the open one ends at `end`."""
    return (*runs[:-1], msgspec.structs.replace(runs[-1], next=end))


def taken_over(runs: OffsetRuns, epoch: int, start: int) -> OffsetRuns:
    """The runs after another owner took over at `start`. The range [old next, start) is a gap, which the caller records
    in the same transaction."""
    last = runs[-1]
    if epoch <= last.epoch or start < last.next:
        raise errors.InvalidInput(
            f"a run of epoch {epoch} from {start} cannot follow epoch {last.epoch} up to {last.next}",
            hint="a takeover raises the epoch and begins beyond what the old owner may have assigned",
        )
    # The oldest runs are dropped: a commit needs the last one, older ones only explain gaps to readers.
    closed = msgspec.structs.replace(last, is_closed=True)
    return (*runs[:-1], closed, OffsetRun(epoch, start, start))[-limits.CATALOG_RUNS_PER_SHARD_MAX :]


def resumed(runs: OffsetRuns, epoch: int, offset: int) -> OffsetRuns:
    """The runs of a shard that resumes at `offset` under this epoch. What lies beyond `offset` is dropped."""
    if any(run.epoch > epoch for run in runs):
        raise errors.InvalidInput(
            f"a shard of epoch {runs[-1].epoch} cannot resume under epoch {epoch}",
            hint="ask the present owner of the shard",
        )
    older = [run for run in runs if run.epoch < epoch and run.start < offset]
    closed = [msgspec.structs.replace(run, next=min(run.next, offset), is_closed=True) for run in older]
    start = next((run.start for run in runs if run.epoch == epoch and run.start < offset), offset)
    return (*closed, OffsetRun(epoch, start, offset))[-limits.CATALOG_RUNS_PER_SHARD_MAX :]


def check_runs(runs: Sequence[OffsetRun]) -> None:
    """Raises InvalidInput for runs that do not follow each other, or without an open one at the end."""
    for run, after in pairwise(runs):
        if not run.is_closed or after.epoch <= run.epoch or after.start < run.next:
            raise errors.InvalidInput("the runs of a shard do not follow each other")
    if not runs or runs[-1].is_closed:
        raise errors.InvalidInput("a shard without an open run")
