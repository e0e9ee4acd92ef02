"""Checks all rows of a table, for `icestream verify --deep`. It blocks.

    values     every column of every row is decoded and converted as readers do it, some rows at a time: a damaged page
               is found whichever column it belongs to
    offsets    which offsets exist, one window at a time (offset_windows.py)

So it needs as much memory as a reader does, however large the table is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from icestream import errors, limits
from icestream.observability.words import counted
from icestream.readers.data_files import ScanDataFile
from icestream.readers.file_format import decoding
from icestream.readers.file_reader import FileReader, RowGroup
from icestream.readers.offset_windows import OffsetSpan, OffsetWindow, SpanIndex
from icestream.readers.row_group_index import RowGroupIndex
from icestream.readers.sections import check_values
from icestream.readers.table_views import TableView
from icestream.readers.verify.offset_ranges import (
    NO_OFFSETS,
    ShardOffsetRanges,
    append_ranges,
    concat_offsets,
    offsets_between,
    ranges_of,
)
from icestream.readers.verify.verify_report import Finding, ProgressCount, VerifyEvent, Weight, failure

_ROW_BYTES: Final = 24  # shard and offset of a row, and its index in the sorted order


class RowCheck:
    """Reads all rows of a table, for `deep`: first every value, then the offsets of each shard."""

    def __init__(self, view: TableView, files: FileReader, progress: ProgressCount) -> None:
        self._view = view
        self._files = files
        self._row_groups = RowGroupIndex(files)
        self._progress = progress
        self._checked_rows = 0  # rows of the topic's shards, duplicates included
        self._damaged: dict[str, str] = {}  # the problems of files that cannot be decoded, by path
        self._reported: set[str] = set()  # paths of damaged files
        self._is_complete = True  # the rows of every file could be counted

    def check_values(self, files: Sequence[ScanDataFile]) -> Iterator[VerifyEvent]:
        """Decodes every column of every row."""
        for file in files:
            try:
                for group in self._files.groups(file, self._view.columns):
                    for rows in self._files.live_batches(group, self._view.columns):
                        with decoding(file.path):
                            check_values(rows)
                        yield self._progress.advance(len(rows))
            except errors.TableDamaged as error:
                self._record_damage(file, error)
                yield from self._report_damage(None)
            except FileNotFoundError as error:
                yield failure("files", f"{error} was removed while it was read")

    def check_shard(
        self, shard: int, files: Sequence[ScanDataFile], offsets: ShardOffsetRanges
    ) -> Iterator[VerifyEvent]:
        """Reads the offsets of a shard into `offsets`, and yields duplicates."""
        shard_files = [file for file in files if file.shards.may_hold(shard)]
        try:
            spans = SpanIndex(span for file in shard_files for span in self._spans_of(file, shard))
            position = 0
            window_bytes = limits.SCAN_WINDOW_BYTES
            while (window := spans.next_window(position, window_bytes, joined_bytes=window_bytes)) is not None:
                ranges, duplicates = ranges_of(window_offsets := self._offsets(window, shard))
                append_ranges(offsets.ranges, ranges)
                for start, end in duplicates:
                    yield failure("unique", "offsets occur more than once", shard, start, end)
                self._checked_rows += len(window_offsets)
                yield self._progress.advance(len(window_offsets))
                position = window.stop
            yield from self._report_damage(shard)
        except errors.TableUnreadable as error:  # deletes that cannot be applied
            yield failure("files", f"consumers cannot read it: {error.message}; {error.hint}", shard)
            yield Finding("dense", Weight.BOUNDS_ONLY, "offsets were not checked", shard)
        except FileNotFoundError as error:
            yield failure("files", f"{error} was removed while it was read", shard)
        else:
            offsets.is_known = True

    def find_strays(self, files: Sequence[ScanDataFile]) -> Iterator[Finding]:
        """Yields how many rows belong to no shard of the topic. Called after all shards were read."""
        view = self._view
        if not self._is_complete:
            return
        live_rows = sum(
            self._files.live_rows(group, view.columns, view.files.deletes_of(file))
            for file in files
            for group in self._files.groups(file, view.columns)
        )
        if live_rows > self._checked_rows:
            words = counted(live_rows - self._checked_rows, "row")
            yield failure("bounds", f"{words} outside of this topic: of another shard, or without an offset")

    def _record_damage(self, file: ScanDataFile, error: errors.TableDamaged) -> None:
        self._damaged.setdefault(file.path, error.message)

    def _report_damage(self, shard: int | None) -> Iterator[Finding]:
        """Yields each damaged file once. Where offsets cannot be decoded, the rows of the file count as missing."""
        for path in sorted(self._damaged.keys() - self._reported):
            self._reported.add(path)
            yield failure("files", self._damaged[path], shard)

    def _spans_of(self, file: ScanDataFile, shard: int) -> list[OffsetSpan[RowGroup]]:
        """Returns the row groups of a file with the memory that this check needs: two numbers for each row."""
        try:
            spans = self._row_groups.spans(self._view, file, shard, 0)
        except errors.TableDamaged as error:
            self._record_damage(file, error)
            self._is_complete = False
            return []
        return [span._replace(bytes=_ROW_BYTES * span.rows) for span in spans]

    def _offsets(self, window: OffsetWindow[RowGroup], shard: int) -> Any:
        return offsets_between(
            concat_offsets([self._offsets_of(span.source, shard) for span in window.spans]), window.start, window.stop
        )

    def _offsets_of(self, group: RowGroup, shard: int) -> Any:
        view = self._view
        try:
            return self._files.offsets(group, view.columns, shard, view.files.deletes_of(group.file))
        except errors.TableDamaged as error:
            self._record_damage(group.file, error)
            self._is_complete = False
            return NO_OFFSETS
