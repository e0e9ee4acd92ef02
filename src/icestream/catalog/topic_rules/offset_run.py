"""Runs: which offsets of a shard are in its table (design 3, hazard 2).

A run is a stretch of a shard's offsets under one shard epoch. Everything in [start, next) is a row of the table or lies
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
    epoch: int
    start: int
    next: int  # the first offset that is not committed
    is_closed: bool = False

    def __post_init__(self) -> None:
        if self.epoch < 0 or not 0 <= self.start <= self.next <= limits.OFFSET_MAX:
            raise errors.InvalidInput(f"no run: epoch {self.epoch}, [{self.start}, {self.next})")


OffsetRuns = tuple[OffsetRun, ...]  # of one shard, the oldest first; the last one is open


def extended(runs: OffsetRuns, end: int) -> OffsetRuns:
    """The open run up to `end`."""
    return (*runs[:-1], msgspec.structs.replace(runs[-1], next=end))


def taken_over(runs: OffsetRuns, epoch: int, start: int) -> OffsetRuns:
    """Another owner from `start` on. The range [old next, start) is a gap: the caller records it in the same step."""
    last = runs[-1]
    if epoch <= last.epoch or start < last.next:
        raise errors.InvalidInput(
            f"a run of epoch {epoch} from {start} cannot follow epoch {last.epoch} up to {last.next}",
            hint="a takeover raises the epoch and begins where the old owner never was",
        )
    closed = msgspec.structs.replace(last, is_closed=True)
    return (*runs[:-1], closed, OffsetRun(epoch, start, start))[-limits.CATALOG_RUNS_PER_SHARD_MAX :]


def resumed(runs: OffsetRuns, epoch: int, at: int) -> OffsetRuns:
    """The shard goes on at `at` under this epoch, wherever it had come to: what lies behind that is forgotten."""
    if any(one.epoch > epoch for one in runs):
        raise errors.InvalidInput(
            f"a shard of epoch {runs[-1].epoch} cannot go on under epoch {epoch}", hint="ask the shard's present owner"
        )
    older = [one for one in runs if one.epoch < epoch and one.start < at]
    closed = [msgspec.structs.replace(one, next=min(one.next, at), is_closed=True) for one in older]
    start = next((one.start for one in runs if one.epoch == epoch and one.start < at), at)
    return (*closed, OffsetRun(epoch, start, at))[-limits.CATALOG_RUNS_PER_SHARD_MAX :]


def check_runs(runs: Sequence[OffsetRun]) -> None:
    """Raises InvalidInput for a list that no history makes."""
    for one, after in pairwise(runs):
        if not one.is_closed or after.epoch <= one.epoch or after.start < one.next:
            raise errors.InvalidInput("the runs of a shard do not follow each other")
    if not runs or runs[-1].is_closed:
        raise errors.InvalidInput("a shard without an open run")
