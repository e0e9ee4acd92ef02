"""What `icestream verify` finds of one topic. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Weight(StrEnum):
    WRONG = "wrong"  # it must not be
    KNOWN = "known"  # offsets without a row, and the reason is known
    BOUNDS_ONLY = "bounds-only"  # not looked at: manifests cannot tell, or nobody reads such rows here


class Finding(NamedTuple):
    check: str  # files, property, bounds, dense, unique, log, readers
    weight: Weight
    text: str
    shard: int | None = None
    start: int = 0  # offsets [start, end), where it is about some
    end: int = 0


def failure(check: str, text: str, shard: int | None = None, start: int = 0, end: int = 0) -> Finding:
    return Finding(check, Weight.WRONG, text, shard, start, end)


class VerifyProgress(NamedTuple):
    """Files that were looked at and, where rows are read, rows; of how many."""

    done: int
    all: int


VerifyEvent = Finding | VerifyProgress


class VerifyReport(NamedTuple):
    topic: str
    table: str
    snapshot_id: int | None
    is_deep: bool
    files: int
    findings: list[Finding]

    @property
    def is_good(self) -> bool:
        return not any(one.weight is Weight.WRONG for one in self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether everything was looked at."""
        return not any(one.weight is Weight.BOUNDS_ONLY for one in self.findings)
