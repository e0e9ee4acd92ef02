"""Explains the offsets below committed that have no row, for all shards of one table. Pure.

Each missing range gets its recorded reason. Where engines removed rows it is often not recorded which, but how many
(`Removal.rows`): more missing rows than all removals took are a loss. Removals without a count explain any number.

Where offsets were not checked, the number of rows must be one that these reasons allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from icestream.catalog.topic_rules.removal import removed_rows_total
from icestream.observability.words import are, counted, were
from icestream.readers import missing_offsets
from icestream.readers.missing_offsets import GapCause
from icestream.readers.table_views import TableView
from icestream.readers.verify.offset_ranges import Ranges
from icestream.readers.verify.verify_report import Finding, ShardLogState, Weight, failure


class DensityCheck:
    """Explains missing offsets, and counts the rows that engines must have removed for that."""

    def __init__(self, view: TableView, log: Mapping[int, ShardLogState]) -> None:
        self._view = view
        self._log = log
        self._suspected = 0  # missing rows that an engine may have removed
        inexact = [removal for removal in view.record.removals if not removal.is_exact]
        self._removed = removed_rows_total(inexact)  # None: a removal without a count

    def check(self, shard: int, ranges: Ranges) -> Iterator[Finding]:
        """Yields a finding for each missing range, and for rows beyond committed. `ranges`: the table's offsets."""
        end = self._view.end(shard)
        for start, stop in ranges:
            if stop > end:
                yield failure("bounds", f"rows at or beyond the committed offset {end}", shard, max(start, end), stop)
        position = 0
        for start, stop in [*ranges, (end, end)]:
            if position < min(start, end):
                yield from self._explain(shard, position, min(start, end))
            position = max(position, stop)

    def check_removed(self) -> Iterator[Finding]:
        """Called after all shards, because engines count the removed rows of the whole table."""
        if self._removed is not None and self._suspected > self._removed:
            missing = f"{counted(self._suspected, 'row')} {are(self._suspected)} missing"
            text = f"{missing} that engines may have removed, but the catalog recorded {self._removed} removed"
            yield failure("dense", text)

    def check_count(self, shards: Sequence[int], rows: int, deleted: int | None) -> Iterator[Finding]:
        """Checks the row count of shards whose offsets were not checked. `rows`: in their files; at most `deleted` of
        them are deleted, None: any number."""
        one_shard = shards[0] if len(shards) == 1 else None
        findings = [pair for shard in shards for pair in self._explained(shard, 0, self._view.end(shard))]
        suspected = sum(finding.end - finding.start for finding, is_exact in findings if not is_exact)
        required = suspected + sum(
            finding.end - finding.start for finding, _ in findings if finding.weight is Weight.WRONG
        )
        # Engines count removed rows, not offsets: that many of the suspected ones may be missing without being a loss.
        excused = suspected if self._removed is None else min(suspected, self._removed)
        if rows < required - excused:
            needed = counted(required - excused, "offset")
            yield failure("dense", f"the files have {counted(rows, 'row')}, but {needed} must have a row", one_shard)
        self._suspected += max(0, min(required - rows, suspected))
        committed = sum(self._view.end(shard) for shard in shards)
        if deleted is not None and rows - deleted > committed:
            ends = f"{counted(committed, 'offset')} {were(committed)} committed"
            yield failure("unique", f"the files have {counted(rows, 'row')}, but only {ends}", one_shard)

    def _explain(self, shard: int, start: int, end: int) -> Iterator[Finding]:
        for finding, is_exact in self._explained(shard, start, end):
            self._suspected += 0 if is_exact else finding.end - finding.start
            yield finding

    def _explained(self, shard: int, start: int, end: int) -> Iterator[tuple[Finding, bool]]:
        """Yields a finding for each part of a missing range, and whether exactly these offsets are recorded."""
        undeclared: Ranges = []
        yield from ((finding, True) for finding in self.declared(shard, start, end, undeclared))
        for part in undeclared:
            removals, first = self._view.record.removals, self._view.first(shard)
            erased = self._view.erased
            for gap in missing_offsets.explain(*part, shard, self._view.binding, removals, first, erased):
                if gap.cause is GapCause.UNEXPLAINED:
                    yield (
                        failure("dense", "rows are missing without a recorded reason", shard, gap.start, gap.end),
                        True,
                    )
                else:
                    yield Finding("dense", Weight.KNOWN, gap.reason, shard, gap.start, gap.end), gap.is_exact

    def declared(self, shard: int, start: int, end: int, undeclared: Ranges) -> Iterator[Finding]:
        """Yields the parts of a missing range that the log declared as gaps; adds the others to `undeclared`."""
        position = start
        gaps = self._log[shard].gaps if shard in self._log else ()
        for low, high, reason in sorted(gaps):
            if high <= position or low >= end:
                continue
            if position < low:
                undeclared.append((position, low))
            reported = max(position, low), min(high, end)
            yield Finding("dense", Weight.KNOWN, f"declared gap: {reason}", shard, *reported)
            position = min(high, end)
        if position < end:
            undeclared.append((position, end))
