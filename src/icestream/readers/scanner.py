"""Answers questions about the tables of topics (model/scan_messages.py): the reader's contract of hazard 22.

    order      offsets rise strictly. What is doubled, or stands below the position, is dropped and counted
    windows    one window of offsets is held at a time (window.py), whatever order the files are in
    absence    offsets below the end of the table that are no rows are told, with the reason (absence.py)
    moving     a file that is gone was compacted or expired away: the table is planned again, SCAN_PLANS_MAX times
    no pins    nothing of a snapshot is held for a reader. What of a window did not fit an answer is kept for whoever
               goes on there, until the table has another snapshot: that one may have rows deleted

A row that has not been committed yet is not told: the broker's log has it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream import errors, limits
from icestream.model.scan_messages import MissingRange, ScanKind, ScanRequest, ScanResponse, ScanSection
from icestream.observability import metrics
from icestream.readers import missing_offsets
from icestream.readers.data_files import DataFile
from icestream.readers.file_reader import FileReader, empty, in_order, of_shard, together
from icestream.readers.offset_windows import SpanIndex
from icestream.readers.row_group_index import RowGroupIndex
from icestream.readers.sections import APPEND_TIME, OFFSET, SHARD, int64s, to_sections
from icestream.readers.table_view import TableView
from icestream.readers.table_views import TableViews
from icestream.runtime.tasks import Offload


class DecodedWindow(NamedTuple):
    """Rows of a shard, in order, each once: everything that the table has of the offsets [start, stop)."""

    rows: Any
    offsets: memoryview  # of these rows
    start: int
    stop: int

    def rest(self, position: int) -> DecodedWindow:
        """From there on."""
        at = bisect_left(self.offsets, position)
        return DecodedWindow(self.rows.slice(at), self.offsets[at:], position, self.stop)


def decoded_window(rows: Any, start: int, stop: int) -> DecodedWindow:
    """In one piece: answers are cut out of it without a look at what lies behind them."""
    whole = rows.combine_chunks()
    return DecodedWindow(whole, int64s(whole[OFFSET]), start, stop)


class DecodedWindowKey(NamedTuple):
    uuid: str  # of the table
    snapshot_id: int | None
    shard: int
    stop: int


class Scanner:
    def __init__(self, tables: TableViews, files: FileReader, offload: Offload) -> None:
        self._tables = tables
        self._files = files
        self._offload = offload
        self._kept: OrderedDict[DecodedWindowKey, DecodedWindow] = OrderedDict()
        self._units = RowGroupIndex(files)

    async def answer(self, asked: ScanRequest) -> ScanResponse:
        """Raises TableUnreadable, or what kept it from reading."""
        view = await self._view(asked)
        if view is None:
            return ScanResponse()
        if asked.question is ScanKind.SNAPSHOT:
            return ScanResponse(view.end(asked.shard), await self._behind_snapshot(view, asked))
        for _ in range(limits.SCAN_PLANS_MAX):
            if view is None or asked.shard not in view.binding.runs:
                return ScanResponse()
            try:
                return await self._offload.run(lambda view=view: self._answer(view, asked))  # type: ignore[misc]
            except FileNotFoundError as error:
                missing = error
                view = await self._tables.fresh(asked.topic_id)
        raise errors.TableUnreadable(
            f"the table of topic {asked.topic} names a file that is not there: {missing}",
            hint=f"`icestream verify {asked.topic}` says what is missing",
        )

    async def _view(self, asked: ScanRequest) -> TableView | None:
        """Whoever asks for what is not in it yet, or for a snapshot, may know more than we do."""
        found = await self._tables.view(asked.topic_id)
        if found is None or asked.question is ScanKind.SNAPSHOT or found.end(asked.shard) <= asked.value:
            return await self._tables.fresh(asked.topic_id)
        return found

    async def _behind_snapshot(self, view: TableView, asked: ScanRequest) -> int:
        if (found := view.behind_snapshot(asked.value, asked.shard)) is not None:
            return found
        mark = await self._tables.mark(asked.topic_id, asked.value)
        if mark is None:
            raise errors.InvalidInput(
                f"table {view.identifier} has no snapshot {asked.value}, and it is none of its last ones that expired",
                hint="start at a time or an offset instead; `icestream lake snapshots` lists those that it has",
            )
        return mark.committed.get(asked.shard, 0)

    def _answer(self, view: TableView, asked: ScanRequest) -> ScanResponse:
        match asked.question:
            case ScanKind.READ:
                return self._read(view, asked)
            case ScanKind.EARLIEST:
                return ScanResponse(view.end(asked.shard), self._earliest(view, asked.shard))
            case _:
                return ScanResponse(view.end(asked.shard), self._first_at_time(view, asked.shard, asked.value))

    # --- by offset ---

    def _read(self, view: TableView, asked: ScanRequest) -> ScanResponse:
        shard, end = asked.shard, view.end(asked.shard)
        if asked.value >= end:
            return ScanResponse(end, next_offset=asked.value)
        before = self._files.groups_read
        found = self._kept_at(view, shard, asked.value) or self._first(view, shard, asked.value)
        if found is None:
            return ScanResponse(end, missing=_missing(view, shard, [(asked.value, end)]), next_offset=end)
        here = found.rest(asked.value)
        sections = _sections(here.rows, lambda at: view.epoch_of(shard, at), asked.bytes_max)
        told = sum(section.rows for section in sections)
        next_offset = here.offsets[told] if told < len(here.offsets) else found.stop
        holes = _holes(asked.value, sections, next_offset)
        key = DecodedWindowKey(view.uuid, view.table.current_snapshot_id, shard, found.stop)
        self._keep(key, found, is_over=next_offset >= found.stop)
        return ScanResponse(
            end,
            sections=sections,
            missing=_missing(view, shard, holes),
            next_offset=next_offset,
            is_cached=self._files.groups_read == before,
        )

    def _kept_at(self, view: TableView, shard: int, position: int) -> DecodedWindow | None:
        """Of any place in it: whoever was told of it may have had no use for all of that, and others may be behind."""
        end, snapshot_id = view.end(shard), view.table.current_snapshot_id
        for key, found in list(self._kept.items()):  # another thread may be at it
            if key.uuid != view.uuid:
                continue
            if key.snapshot_id != snapshot_id:
                self._kept.pop(key, None)
            elif key.shard == shard and found.start <= position < found.stop <= end:
                return found
        return None

    def _keep(self, key: DecodedWindowKey, found: DecodedWindow, *, is_over: bool) -> None:
        """As long as somebody is in it, and no more than a few."""
        self._kept.pop(key, None)
        if not is_over:
            self._kept[key] = found
        while len(self._kept) > limits.SCAN_KEPT_MAX:
            self._kept.popitem(last=False)

    def _earliest(self, view: TableView, shard: int) -> int | None:
        found = self._first(view, shard, 0)
        while found is not None and not len(found.rows):
            found = self._first(view, shard, found.stop)
        return None if found is None else found.offsets[0]

    def _first(self, view: TableView, shard: int, position: int) -> DecodedWindow | None:
        """The next rows from a position on. None: there are none up to the end."""
        end = view.end(shard)
        for _ in range(limits.SCAN_WINDOWS_MAX):
            if position >= end:
                return None
            found = self._window(view, shard, position, end)
            if found is None:
                return None
            if len(found.rows):
                return found
            position = found.stop
        return decoded_window(empty(), position, position) if position < end else None

    def _window(self, view: TableView, shard: int, position: int, end: int) -> DecodedWindow | None:
        shelf = view.shelf(shard)
        window = shelf.bounded.next_window(position, limits.OFFSET_MAX)
        files = [*(unit.what for unit in window.units), *shelf.loose] if window else shelf.loose
        stop = min(window.stop, end) if window else end
        groups = SpanIndex(unit for file in files for unit in self._units.of_file(view, file, shard, position))
        inner = groups.next_window(position, limits.SCAN_WINDOW_BYTES)
        if inner is None or inner.start >= stop:
            return decoded_window(empty(), position, stop) if window else None
        stop = min(stop, inner.stop)
        groups_here = sorted((unit.what for unit in inner.units), key=lambda group: group.file.precedence)
        parts = [
            self._files.shard_rows(group, view.columns, shard, view.files.deletes_of(group.file), inner.start, stop)
            for group in groups_here
        ]
        return decoded_window(_once(parts), position, stop)

    # --- by time ---

    def _first_at_time(self, view: TableView, shard: int, time_us: int) -> int | None:
        """The smallest offset whose append time is at least this. Times need not rise with offsets (hazard 32), so
        every file counts that can have an earlier one than what was found."""
        best: int | None = None
        files = sorted(view.files.data, key=lambda file: file.offsets.low or 0)
        for file in files:
            if best is not None and (file.offsets.low or 0) > best:
                break
            if not file.shards.may_hold(shard) or (file.times.high is not None and file.times.high < time_us):
                continue
            found = self._first_in_file(view, file, shard, time_us)
            best = found if best is None or (found is not None and found < best) else best
        end = view.end(shard)
        return best if best is not None and best < end else None

    def _first_in_file(self, view: TableView, file: DataFile, shard: int, time_us: int) -> int | None:
        found: list[int] = []
        deletes = view.files.deletes_of(file)
        for group in self._files.groups(file, view.columns):
            if not group.shards.may_hold(shard) or (group.times.high is not None and group.times.high < time_us):
                continue
            if deletes:
                rows = self._files.shard_rows(group, view.columns, shard, deletes, 0, limits.OFFSET_MAX)
                if APPEND_TIME not in rows.column_names:  # they have no time, so none of them is at it or later
                    continue
            else:
                rows = self._files.columns(group, view.columns, SHARD, OFFSET, APPEND_TIME)
                rows = of_shard(rows, shard)
            later = rows.filter(pc.greater_equal(rows[APPEND_TIME].cast(pa.int64()), time_us))
            if len(later):
                found.append(pc.min(later[OFFSET]).as_py())
        return min(found, default=None)


def _sections(rows: Any, epoch_of: Callable[[int], int], bytes_max: int) -> list[ScanSection]:
    return to_sections(rows, epoch_of, bytes_max) if len(rows) else []


def _once(parts: list[Any]) -> Any:
    """Together, in order, each offset once: of several rows the one of the first part that has it."""
    rows = in_order(together(parts)) if len(parts) > 1 else parts[0]
    last = len(rows) - 1
    if last < 1:
        return rows
    offsets = rows[OFFSET]
    is_new = pc.not_equal(offsets.slice(1), offsets.slice(0, last))
    doubled = last - (pc.sum(is_new).as_py() or 0)
    if not doubled:
        return rows
    metrics.READ_DOUBLED.inc(doubled)
    return rows.filter(pa.chunked_array([pa.array([True]), *is_new.chunks]))


def _holes(position: int, sections: list[ScanSection], stop: int) -> list[tuple[int, int]]:
    """The offsets from a position to `stop` that are in no section."""
    ends = [position, *(section.base_offset + section.rows for section in sections)]
    starts = [*(section.base_offset for section in sections), stop]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def _missing(view: TableView, shard: int, holes: list[tuple[int, int]]) -> list[MissingRange]:
    found = []
    for start, end in holes:
        for one in missing_offsets.explain(start, end, shard, view.binding, view.record.removals):
            metrics.READ_MISSING.labels(one.cause.value).inc(one.end - one.start)
            found.append(MissingRange(one.start, one.end, missing_offsets.STATES[one.cause], one.reason))
    return found
