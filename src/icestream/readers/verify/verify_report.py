"""The result of `icestream verify` for one topic, its inputs from the broker, and its progress. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Weight(StrEnum):
    """How serious a finding is."""

    WRONG = "wrong"  # a violation
    KNOWN = "known"  # offsets without a row whose reason is recorded
    BOUNDS_ONLY = "bounds-only"  # not checked: manifests cannot tell, or such rows cannot be read here


class Finding(NamedTuple):
    """One result of a check."""

    check: str  # files, property, bounds, dense, unique, log, readers
    weight: Weight
    text: str
    shard: int | None = None
    start: int = 0  # the offsets [start, end) that the finding is about, if any
    end: int = 0


def failure(check: str, text: str, shard: int | None = None, start: int = 0, end: int = 0) -> Finding:
    """Returns a finding of weight WRONG."""
    return Finding(check, Weight.WRONG, text, shard, start, end)


class VerifyProgress(NamedTuple):
    """How many files, and with `deep` rows, were checked, of how many."""

    done: int
    all: int


VerifyEvent = Finding | VerifyProgress


class VerifyReport(NamedTuple):
    """The findings about one table."""

    topic: str
    table: str
    snapshot_id: int | None
    is_deep: bool
    files: int
    findings: list[Finding]

    @property
    def is_good(self) -> bool:
        return not any(finding.weight is Weight.WRONG for finding in self.findings)

    @property
    def is_complete(self) -> bool:
        """True if everything was checked."""
        return not any(finding.weight is Weight.BOUNDS_ONLY for finding in self.findings)


class ProgressCount:
    """Counts the checks done and those known to remain, which grow while the verifier runs."""

    def __init__(self) -> None:
        self._done = 0
        self._all = 0

    def add_work(self, count: int) -> VerifyProgress:
        self._all += count
        return self._progress()

    def advance(self, count: int) -> VerifyProgress:
        self._done += count
        return self._progress()

    def _progress(self) -> VerifyProgress:
        return VerifyProgress(min(self._done, self._all), self._all)

    def complete(self) -> VerifyProgress:
        return VerifyProgress(self._all, self._all)


class ShardLogState(NamedTuple):
    """What the broker knows about a shard whose table is verified."""

    earliest: int  # the first offset in its log
    synced: int
    gaps: Sequence[tuple[int, int, str]] = ()  # declared gaps: start, end, reason
    stopped: Sequence[tuple[int, str]] = ()  # offsets at which a subscription cannot read the table, and why
