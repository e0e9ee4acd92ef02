"""Why offsets below committed are no rows, of all shards of one table. Pure.

An absence is named by what is known of it. Where engines removed rows nobody knows which, but how many is known
(`Removal.rows`): more of them than all removals took is a loss, and red. Removals that nobody counted explain any.

Where offsets are not looked at, the number of rows has to be one that these reasons allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from icestream.catalog.topic_rules.removal import removed_rows_total
from icestream.observability.words import are, counted, were
from icestream.readers import missing_offsets
from icestream.readers.missing_offsets import GapCause
from icestream.readers.table_view import TableView
from icestream.readers.verify.offset_ranges import Ranges
from icestream.readers.verify.shard_in_log import ShardLogState
from icestream.readers.verify.verify_report import Finding, Weight, failure


class DensityCheck:
    def __init__(self, view: TableView, log: Mapping[int, ShardLogState]) -> None:
        self._view = view
        self._log = log
        self._suspected = 0  # rows that are missing, and that an engine may have removed
        loose = [one for one in view.record.removals if not one.is_exact]
        self._removed = removed_rows_total(loose)

    def check(self, shard: int, held: Ranges) -> Iterator[Finding]:
        """`held`: the offsets that the table has, in order."""
        end = self._view.end(shard)
        for start, stop in held:
            if stop > end:
                yield failure("bounds", f"rows behind what was committed, {end}", shard, max(start, end), stop)
        at = 0
        for start, stop in [*held, (end, end)]:
            if at < min(start, end):
                yield from self._explain(shard, at, min(start, end))
            at = max(at, stop)

    def check_removed(self) -> Iterator[Finding]:
        """Behind all shards: engines count rows of the table."""
        if self._removed is not None and self._suspected > self._removed:
            missing = f"{counted(self._suspected, 'row')} {are(self._suspected)} missing"
            text = f"{missing} that engines may have removed, but they removed {self._removed}"
            yield failure("dense", text)

    def check_count(self, shards: Sequence[int], rows: int, deleted: int | None) -> Iterator[Finding]:
        """Of shards whose offsets are not looked at. `rows`: in their files; of these not more than `deleted` are
        deleted, None: any number."""
        one_shard = shards[0] if len(shards) == 1 else None
        found = [one for shard in shards for one in self._explained(shard, 0, self._view.end(shard))]
        suspected = sum(one.end - one.start for one, is_exact in found if not is_exact)
        wanted = suspected + sum(one.end - one.start for one, _ in found if one.weight is Weight.WRONG)
        excused = suspected if self._removed is None else min(suspected, self._removed)
        if rows < wanted - excused:
            needed = counted(wanted - excused, "offset")
            yield failure("dense", f"the files have {counted(rows, 'row')}, and {needed} must be there", one_shard)
        self._suspected += max(0, min(wanted - rows, suspected))
        committed = sum(self._view.end(shard) for shard in shards)
        if deleted is not None and rows - deleted > committed:
            ends = f"{counted(committed, 'offset')} {were(committed)} committed"
            yield failure("unique", f"the files have {counted(rows, 'row')}, and {ends}", one_shard)

    def _explain(self, shard: int, start: int, end: int) -> Iterator[Finding]:
        for one, is_exact in self._explained(shard, start, end):
            self._suspected += 0 if is_exact else one.end - one.start
            yield one

    def _explained(self, shard: int, start: int, end: int) -> Iterator[tuple[Finding, bool]]:
        """What stands for each offset that is no row, and whether exactly these are known."""
        left: Ranges = []
        yield from ((one, True) for one in self.declared(shard, start, end, left))
        for piece in left:
            for one in missing_offsets.explain(*piece, shard, self._view.binding, self._view.record.removals):
                if one.cause is GapCause.UNEXPLAINED:
                    yield failure("dense", "rows are missing, and nothing says why", shard, one.start, one.end), True
                else:
                    yield Finding("dense", Weight.KNOWN, one.reason, shard, one.start, one.end), one.is_exact

    def declared(self, shard: int, start: int, end: int, left: Ranges) -> Iterator[Finding]:
        """Names what of it is in gaps that the log has declared; `left` gets what is in none."""
        at = start
        gaps = self._log[shard].gaps if shard in self._log else ()
        for low, high, reason in sorted(gaps):
            if high <= at or low >= end:
                continue
            if at < low:
                left.append((at, low))
            yield Finding("dense", Weight.KNOWN, f"declared gap: {reason}", shard, max(at, low), min(high, end))
            at = min(high, end)
        if at < end:
            left.append((at, end))
