"""Why offsets below committed are no rows, of all shards of one table. Pure.

An absence is named by what is known of it. Where engines removed rows nobody knows which, but how many is known
(`Removal.rows`): more of them than all removals took is a loss, and red. Removals that nobody counted explain any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from icestream.catalog.topic.removal import rows_of_all
from icestream.lake.scan import absence
from icestream.lake.scan.absence import Cause
from icestream.lake.scan.table_view import TableView
from icestream.lake.verify.offsets import Ranges
from icestream.lake.verify.report import Finding, Weight, red
from icestream.lake.verify.shard_in_log import ShardInLog


class Density:
    def __init__(self, view: TableView, log: Mapping[int, ShardInLog]) -> None:
        self._view = view
        self._log = log
        self._suspected = 0  # rows that are missing, and that an engine may have removed
        loose = [one for one in view.record.removals if not one.is_exact]
        self._removed = rows_of_all(loose)

    def check(self, shard: int, held: Ranges) -> Iterator[Finding]:
        """`held`: the offsets that the table has, in order."""
        end = self._view.end(shard)
        for start, stop in held:
            if stop > end:
                yield red("bounds", f"rows behind what was committed, {end}", shard, max(start, end), stop)
        at = 0
        for start, stop in [*held, (end, end)]:
            if at < min(start, end):
                yield from self._explain(shard, at, min(start, end))
            at = max(at, stop)

    def check_removed(self) -> Iterator[Finding]:
        """Behind all shards: engines count rows of the table."""
        if self._removed is not None and self._suspected > self._removed:
            text = f"{self._suspected} rows are missing that engines may have removed, but they removed {self._removed}"
            yield red("dense", text)

    def _explain(self, shard: int, start: int, end: int) -> Iterator[Finding]:
        left: Ranges = []
        yield from self.declared(shard, start, end, left)
        for piece in left:
            for one in absence.explained(*piece, shard, self._view.binding, self._view.record.removals):
                if one.cause is Cause.UNEXPLAINED:
                    yield red("dense", "rows are missing, and nothing says why", shard, one.start, one.end)
                    continue
                self._suspected += 0 if one.is_exact else one.end - one.start
                yield Finding("dense", Weight.KNOWN, one.reason, shard, one.start, one.end)

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
