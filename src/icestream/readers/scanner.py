"""Answers scan requests about topic tables (model/scan_messages.py): the reader's contract of hazard 22.

    order       offsets rise strictly. Duplicates and rows below the position are dropped and counted
    windows     one window of offsets is in memory at a time (offset_windows.py), whatever order the files are in
    erased      rows that were erased are not returned, whatever files hold
    first       rows below the first kept offset are not read, whatever files hold: a retention has removed them
    gaps        committed offsets without a row are reported with the reason (missing_offsets.py)
    replanning  a missing file was compacted or expired: the scan is planned again, up to SCAN_PLANS_MAX times
    no pins     a reader pins no snapshot. The rest of a window that did not fit a response is kept as read-ahead until
                the table has another snapshot, which may have deleted rows
    filters     with topic filters, files and row groups that cannot hold a matching row are not read (topic_filters.py)
                and their offsets are passed over. Missing offsets are reported where no file can hold them, or their
                absence is recorded: elsewhere nothing tells whether an offset is missing or does not match

Rows that are not committed yet are not returned: the broker's log has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream import errors, limits
from icestream.model.scan_messages import MissingRange, RowRange, ScanKind, ScanRequest, ScanResponse, ScanSection
from icestream.observability import metrics
from icestream.readers import missing_offsets
from icestream.readers.data_files import ScanDataFile
from icestream.readers.file_reader import FileReader, concat_rows, no_rows, rows_of_shard, sort_by_offset
from icestream.readers.offset_windows import SpanIndex
from icestream.readers.row_group_index import RowGroupIndex
from icestream.readers.sections import APPEND_TIME, OFFSET, SHARD, int64s, to_sections, to_sparse_sections
from icestream.readers.table_views import TableView, TableViews
from icestream.readers.topic_filters import TopicFilters, filters_of
from icestream.runtime.tasks import Offload


class DecodedWindow(NamedTuple):
    """The rows of a shard with the offsets [start, stop), by offset, without duplicates."""

    rows: Any
    offsets: memoryview  # of these rows
    start: int
    stop: int
    ranges: list[RowRange]  # the positions of some of the rows in their files

    def rest(self, position: int) -> DecodedWindow:
        """Returns the rows from the position on."""
        row = bisect_left(self.offsets, position)
        return DecodedWindow(self.rows.slice(row), self.offsets[row:], position, self.stop, self.ranges)


def decoded_window(rows: Any, start: int, stop: int, ranges: list[RowRange]) -> DecodedWindow:
    """Returns a window whose chunks are combined, so that responses are slices of it without copying the rest."""
    combined = rows.combine_chunks()
    return DecodedWindow(combined, int64s(combined[OFFSET]), start, stop, ranges)


class DecodedWindowKey(NamedTuple):
    """Identifies a window that is kept as read-ahead: it is valid for one snapshot of one table."""

    uuid: str  # of the table
    snapshot_id: int | None
    shard: int
    stop: int
    filters: tuple[str, ...] = ()


class Scanner:
    """Answers scan requests. Each request runs in a thread; the read-ahead is shared by all of them."""

    def __init__(self, tables: TableViews, files: FileReader, offload: Offload) -> None:
        self._tables = tables
        self._files = files
        self._offload = offload
        self._read_ahead: OrderedDict[DecodedWindowKey, DecodedWindow] = OrderedDict()
        self._row_groups = RowGroupIndex(files)

    async def answer(self, request: ScanRequest) -> ScanResponse:
        """Returns the response to a request; an empty one if the topic or the shard has no table.

        Raises TableUnreadable for a table that readers cannot read, InvalidInput for a snapshot that is not known, and
        passes errors of the catalog and the object store.
        """
        view = await self._view(request)
        if view is None:
            return ScanResponse()
        if request.question is ScanKind.SNAPSHOT:
            return ScanResponse(view.end(request.shard), await self._committed_at_snapshot(view, request))
        for _ in range(limits.SCAN_PLANS_MAX):
            if view is None or request.shard not in view.binding.runs:
                return ScanResponse()
            try:
                return await self._offload.run(lambda view=view: self._answer(view, request))  # type: ignore[misc]
            except FileNotFoundError as error:
                # A compaction or expiry removed a file after the view was loaded: the current snapshot has the rows in
                # other files, or not at all. Readers pin no snapshots, so that they never delay an expiry.
                missing_file = error
                view = await self._tables.fresh(request.topic_id)
        raise errors.TableUnreadable(
            f"the table of topic {request.topic} names a file that does not exist: {missing_file}",
            hint=f"`icestream verify {request.topic}` lists what is missing",
        )

    async def _view(self, request: ScanRequest) -> TableView | None:
        """Returns a fresh view for requests by snapshot or beyond the cached view: the client may know more."""
        view = await self._tables.view(request.topic_id)
        # The broker asks for offsets that left its log, so they are committed: a view that ends before them is
        # outdated.
        if view is None or request.question is ScanKind.SNAPSHOT or view.end(request.shard) <= request.value:
            return await self._tables.fresh(request.topic_id)
        return view

    async def _committed_at_snapshot(self, view: TableView, request: ScanRequest) -> int:
        """Returns the committed offset of the shard at a snapshot of the table, or at one that expired recently. Raises
        InvalidInput for any other snapshot."""
        committed = view.committed_at_snapshot(request.value, request.shard)
        if committed is not None:
            return max(committed, view.first(request.shard))
        # Expired snapshots of the recent past are recorded in the metadata store.
        mark = await self._tables.mark(request.topic_id, request.value)
        if mark is None:
            raise errors.InvalidInput(
                f"table {view.identifier} has no snapshot {request.value}, and it is not one of the recently expired",
                hint="start at a time or an offset instead; `icestream lake snapshots` lists the table's snapshots",
            )
        return max(mark.committed.get(request.shard, 0), view.first(request.shard))

    def _answer(self, view: TableView, request: ScanRequest) -> ScanResponse:
        match request.question:
            case ScanKind.READ:
                return self._read(view, request)
            case ScanKind.EARLIEST:
                return ScanResponse(view.end(request.shard), self._earliest(view, request.shard))
            case _:
                return ScanResponse(view.end(request.shard), self._first_at_time(view, request.shard, request.value))

    # --- by offset ---

    def _read(self, view: TableView, request: ScanRequest) -> ScanResponse:
        """Returns the rows from an offset on, up to `bytes_max`, and the reasons for offsets without a row."""
        shard, end = request.shard, view.end(request.shard)
        if request.value >= end:
            return ScanResponse(end, next_offset=request.value)
        filters = filters_of(request.topic_filters, request.topic)
        position = max(request.value, view.first(shard))
        if position >= end:
            return ScanResponse(end, missing=self._missing_from(view, request, [], end, filters), next_offset=end)
        groups_read_before = self._files.groups_read
        key = DecodedWindowKey(
            view.uuid, view.table.current_snapshot_id, shard, 0, filters.filters if filters is not None else ()
        )
        window = self._find_read_ahead(key, end, position)
        window = window or self._next_rows(view, shard, position, filters)
        if window is None:
            missing = self._missing_from(view, request, [], end, filters)
            return ScanResponse(end, missing=missing, next_offset=end)
        # The window may have been decoded for a reader that is behind this one.
        rest = window.rest(position)
        sections = _sections(view, shard, rest.rows, request.bytes_max, filters)
        returned_rows = sum(section.rows for section in sections)
        next_offset = rest.offsets[returned_rows] if returned_rows < len(rest.offsets) else window.stop
        self._keep(key._replace(stop=window.stop), window, is_exhausted=next_offset >= window.stop)
        metrics.SCAN_SENT_BYTES.inc(sum(len(section.body) for section in sections))
        return ScanResponse(
            end,
            sections=sections,
            missing=self._missing_from(view, request, sections, next_offset, filters),
            next_offset=next_offset,
            is_cached=self._files.groups_read == groups_read_before,
            snapshot_id=view.table.current_snapshot_id,
            row_ranges=_overlapping(window.ranges, position, next_offset),
        )

    def _missing_from(
        self,
        view: TableView,
        request: ScanRequest,
        sections: list[ScanSection],
        next_offset: int,
        filters: TopicFilters | None,
    ) -> list[MissingRange]:
        """Returns the offsets from the request's to `next_offset` that are missing, with their reasons."""
        if filters is None:
            gaps = _gaps(request.value, sections, next_offset)
        else:
            gaps = _known_gaps(view, request.shard, request.value, next_offset, sections)
        return _missing(view, request.shard, gaps)

    def _find_read_ahead(self, window_key: DecodedWindowKey, end: int, position: int) -> DecodedWindow | None:
        """Returns a kept window that contains the position and ends before `end`, with the snapshot, shard and filters
        of `window_key`; windows of older snapshots are dropped.

        Any position in the window will do: the client may not have used all of the last response, and other readers may
        be behind.
        """
        for key, window in list(self._read_ahead.items()):  # a copy: other threads modify it
            if key.uuid != window_key.uuid:
                continue
            if key.snapshot_id != window_key.snapshot_id:
                self._read_ahead.pop(key, None)
            elif key._replace(stop=window_key.stop) == window_key and window.start <= position < window.stop <= end:
                return window
        return None

    def _keep(self, key: DecodedWindowKey, window: DecodedWindow, *, is_exhausted: bool) -> None:
        """Keeps a window until its last row was returned, and at most SCAN_KEPT_MAX of them."""
        self._read_ahead.pop(key, None)
        if not is_exhausted:
            self._read_ahead[key] = window
        while len(self._read_ahead) > limits.SCAN_KEPT_MAX:
            self._read_ahead.popitem(last=False)

    def _earliest(self, view: TableView, shard: int) -> int | None:
        window = self._next_rows(view, shard, view.first(shard))
        while window is not None and not len(window.rows):
            window = self._next_rows(view, shard, window.stop)
        return None if window is None else window.offsets[0]

    def _next_rows(
        self, view: TableView, shard: int, position: int, filters: TopicFilters | None = None
    ) -> DecodedWindow | None:
        """Returns the first window with rows at or after the position; None if there is none up to the end.

        A request looks at SCAN_WINDOWS_MAX windows at most. If all are empty, the result is an empty window that tells
        where to continue.
        """
        end = view.end(shard)
        for _ in range(limits.SCAN_WINDOWS_MAX):
            if position >= end:
                return None
            window = self._decode_window(view, shard, position, end, filters)
            if window is None:
                return None
            if len(window.rows):
                return window
            position = window.stop
        # A request must end: thousands of windows whose rows were all deleted would hold the thread of other readers.
        return decoded_window(no_rows(), position, position, []) if position < end else None

    def _decode_window(
        self, view: TableView, shard: int, position: int, end: int, filters: TopicFilters | None
    ) -> DecodedWindow | None:
        """Decodes the next window: first the files are chosen by their bounds, then row groups of these files."""
        shard_files = view.shard_files(shard)
        skipped: list[ScanDataFile] = []
        file_window = shard_files.bounded.next_window(
            position, limits.OFFSET_MAX, is_wanted=_wanted(filters, skipped) if filters is not None else None
        )
        bounded = [span.source for span in file_window.spans] if file_window else []
        files = [*bounded, *shard_files.unbounded]
        # Files without bounds may hold any offset, so they take part in every window.
        stop = min(file_window.stop, end) if file_window else end
        # Those behind the window are met again.
        metrics.SCAN_FILES_SKIPPED.inc(sum((file.offsets.low or 0) < stop for file in skipped))
        groups = SpanIndex(
            span for file in files for span in self._row_groups.spans(view, file, shard, position, filters)
        )
        window = groups.next_window(position, limits.SCAN_WINDOW_BYTES, joined_bytes=limits.SCAN_WINDOW_BYTES)
        if filters is not None:
            window_stop = stop if window is None else min(stop, window.stop)
            self._count_skipped(view, bounded, filters, position, window_stop)
        if window is None or window.start >= stop:
            return decoded_window(no_rows(), position, stop, []) if file_window else None
        stop = min(stop, window.stop)
        # `_deduplicate` keeps the first of several rows with the same offset.
        groups_by_precedence = sorted((span.source for span in window.spans), key=lambda group: group.file.precedence)
        decoded = self._files.decode_together(groups_by_precedence, view.columns)
        parts = [
            self._files.shard_rows(
                group, view.columns, shard, view.files.deletes_of(group.file), window.start, stop, decoded
            )
            for group in groups_by_precedence
        ]
        ranges = sorted((row_range for part in parts for row_range in part.ranges), key=lambda part: part.start)
        rows = _without_erased(_deduplicate([part.rows for part in parts]), view, shard, position, stop)
        return decoded_window(rows if filters is None else filters.select(rows), position, stop, ranges)

    def _count_skipped(
        self, view: TableView, files: list[ScanDataFile], filters: TopicFilters, start: int, stop: int
    ) -> None:
        skipped = sum(self._files.skipped_groups(file, view.columns, filters, start, stop) for file in files)
        metrics.SCAN_GROUPS.labels("skipped").inc(skipped)

    # --- by time ---

    def _first_at_time(self, view: TableView, shard: int, time_us: int) -> int | None:
        """Returns the smallest kept offset in the table whose append time is at least this; None if there is none.

        Times need not rise with offsets (hazard 32), so every file that can hold a smaller offset is searched.
        """
        smallest: int | None = None
        files = sorted(view.files.data, key=lambda file: file.offsets.low or 0)
        for file in files:
            # Sorted by the lowest offset: no later file can have a smaller one.
            if smallest is not None and (file.offsets.low or 0) > smallest:
                break
            if not file.shards.may_hold(shard) or (file.times.high is not None and file.times.high < time_us):
                continue
            if file.offsets.high is not None and file.offsets.high < view.first(shard):
                continue
            offset = self._first_in_file(view, file, shard, time_us)
            smallest = offset if smallest is None or (offset is not None and offset < smallest) else smallest
        end = view.end(shard)
        return smallest if smallest is not None and smallest < end else None

    def _first_in_file(self, view: TableView, file: ScanDataFile, shard: int, time_us: int) -> int | None:
        """Returns the smallest offset of the shard in a file whose append time is at least this; None if there is
        none."""
        offsets: list[int] = []
        deletes = view.files.deletes_of(file)
        for group in self._files.groups(file, view.columns):
            if not group.shards.may_hold(shard) or (group.times.high is not None and group.times.high < time_us):
                continue
            if deletes:
                # Equality deletes may compare any column, so all are read. Without deletes three columns suffice.
                rows = self._files.shard_rows(group, view.columns, shard, deletes, 0, limits.OFFSET_MAX).rows
                if APPEND_TIME not in rows.column_names:
                    continue  # a row without an append time is not found by time
            else:
                rows = self._files.columns(group, view.columns, SHARD, OFFSET, APPEND_TIME)
                rows = rows_of_shard(rows, shard)
            later = rows.filter(pc.greater_equal(rows[APPEND_TIME].cast(pa.int64()), time_us))
            later = later.filter(pc.greater_equal(later[OFFSET], view.first(shard)))
            if len(later):
                offsets.append(pc.min(later[OFFSET]).as_py())
        return min(offsets, default=None)


def _sections(
    view: TableView, shard: int, rows: Any, bytes_max: int, filters: TopicFilters | None
) -> list[ScanSection]:
    if not len(rows):
        return []
    if filters is None:
        return to_sections(rows, lambda offset: view.epoch_of(shard, offset), bytes_max)
    return to_sparse_sections(rows, [(run.start, run.epoch) for run in view.binding.runs[shard]], bytes_max)


def _wanted(filters: TopicFilters, skipped: list[ScanDataFile]) -> Callable[[ScanDataFile], bool]:
    """Returns the test whether a file can hold a matching row; files that cannot are added to `skipped`."""

    def is_wanted(file: ScanDataFile) -> bool:
        if filters.may_match(file.levels):
            return True
        skipped.append(file)
        return False

    return is_wanted


def _deduplicate(parts: list[Any]) -> Any:
    """Returns the rows of all parts by offset, each offset once. Of duplicates the row of the first part is kept."""
    rows = sort_by_offset(concat_rows(parts)) if len(parts) > 1 else parts[0]
    last = len(rows) - 1
    if last < 1:
        return rows
    offsets = rows[OFFSET]
    is_new = pc.not_equal(offsets.slice(1), offsets.slice(0, last))
    duplicates = last - (pc.sum(is_new).as_py() or 0)
    if not duplicates:
        return rows
    metrics.READ_DOUBLED.inc(duplicates)
    return rows.filter(pa.chunked_array([pa.array([True]), *is_new.chunks]))


def _without_erased(rows: Any, view: TableView, shard: int, start: int, stop: int) -> Any:
    """Returns the rows without those that were erased, whatever brought them back into a file (hazard 80)."""
    erased = view.erased.within(shard, start, stop)
    if not erased or not len(rows):
        return rows
    rows = rows.combine_chunks()
    values = int64s(rows[OFFSET])
    flags = bytearray(len(rows))
    for low, high in erased:
        first, last = bisect_left(values, low), bisect_left(values, high)
        flags[first:last] = b"\x01" * (last - first)
    if 1 not in flags:
        return rows
    is_erased = pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)]).cast(pa.bool_())
    return rows.filter(pc.invert(is_erased))


def _overlapping(ranges: list[RowRange], start: int, end: int) -> list[RowRange]:
    """Returns the last ranges that share an offset with [start, end), as many as a response may have."""
    return [part for part in ranges if part.start < end and part.start + part.rows > start][
        -limits.SCAN_ROW_RANGES_MAX :
    ]


def _gaps(position: int, sections: list[ScanSection], stop: int) -> list[tuple[int, int]]:
    """Returns the ranges of offsets from the position to `stop` that are in no section."""
    ends = [position, *(section.base_offset + section.rows for section in sections)]
    starts = [*(section.base_offset for section in sections), stop]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def _missing(view: TableView, shard: int, gaps: list[tuple[int, int]]) -> list[MissingRange]:
    missing = []
    for start, end in gaps:
        removals, first = view.record.removals, view.first(shard)
        for gap in missing_offsets.explain(start, end, shard, view.binding, removals, first, view.erased):
            metrics.READ_MISSING.labels(gap.cause.value).inc(gap.end - gap.start)
            missing.append(MissingRange(gap.start, gap.end, missing_offsets.GAP_STATES[gap.cause], gap.reason))
    return missing


def _known_gaps(
    view: TableView, shard: int, start: int, end: int, sections: list[ScanSection]
) -> list[tuple[int, int]]:
    """Returns the offsets from `start` to `end` that are missing as far as it is known without looking at all rows:
    those that no file can hold, and those that are recorded."""
    shard_files = view.shard_files(shard)
    uncovered = [] if shard_files.unbounded else shard_files.bounded.uncovered(start, end)
    offsets = [offset for section in sections for offset in memoryview(section.offsets).cast("q")]
    recorded = [
        (gap.start, gap.end)
        for gap in missing_offsets.recorded(
            start, end, shard, view.binding, view.record.removals, view.first(shard), view.erased
        )
        # A row is the better witness: a record may be older than an operation that brought rows back.
        if bisect_left(offsets, gap.start) == bisect_left(offsets, gap.end)
    ]
    gaps: list[tuple[int, int]] = []
    for low, high in sorted(uncovered + recorded):
        if gaps and low <= gaps[-1][1]:
            gaps[-1] = gaps[-1][0], max(gaps[-1][1], high)
        else:
            gaps.append((low, high))
    return gaps
