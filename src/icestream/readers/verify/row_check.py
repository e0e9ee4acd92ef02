"""What a table holds, by all of its rows. It blocks.

    values     every column of every row is decoded and converted as readers do it, some rows at a time: a damaged page
               is found whichever column it belongs to
    offsets    which offsets are there, a window of them at a time (scan/window.py)

So it holds as much as a reader does, however large the table is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from icestream import errors, limits
from icestream.observability.words import counted
from icestream.readers.data_files import DataFile
from icestream.readers.file_format import decoding
from icestream.readers.file_reader import FileReader, RowGroup
from icestream.readers.offset_windows import OffsetSpan, OffsetWindow, SpanIndex
from icestream.readers.row_group_index import RowGroupIndex
from icestream.readers.sections import check_values
from icestream.readers.table_view import TableView
from icestream.readers.verify.offset_ranges import NONE, ShardOffsets, append_ranges, ranges_of, together, within
from icestream.readers.verify.progress_count import ProgressCount
from icestream.readers.verify.verify_report import Finding, VerifyEvent, Weight, failure

_ROW_BYTES: Final = 24  # shard and offset of a row, and its place in the order


class RowCheck:
    def __init__(self, view: TableView, files: FileReader, progress: ProgressCount) -> None:
        self._view = view
        self._files = files
        self._row_groups = RowGroupIndex(files)
        self._progress = progress
        self._seen = 0  # rows of the topic's shards, those that are there twice, too
        self._damaged: dict[str, str] = {}  # what is wrong with files that cannot be decoded, by their paths
        self._told: set[str] = set()  # paths
        self._is_counted = True  # the rows of every file could be counted

    def values(self, files: Sequence[DataFile]) -> Iterator[VerifyEvent]:
        for file in files:
            try:
                for group in self._files.groups(file, self._view.columns):
                    for rows in self._files.live_batches(group, self._view.columns):
                        with decoding(file.path):
                            check_values(rows)
                        yield self._progress.further(len(rows))
            except errors.TableDamaged as error:
                self._note(file, error)
                yield from self._check_damaged(None)
            except FileNotFoundError as error:
                yield failure("files", f"{error} went while it was read")

    def shard(self, shard: int, files: Sequence[DataFile], held: ShardOffsets) -> Iterator[VerifyEvent]:
        shard_files = [file for file in files if file.shards.may_hold(shard)]
        try:
            spans = SpanIndex(span for file in shard_files for span in self._spans_of(file, shard))
            position = 0
            while (window := spans.next_window(position, limits.SCAN_WINDOW_BYTES)) is not None:
                there, twice = ranges_of(offsets := self._offsets(window, shard))
                append_ranges(held.ranges, there)
                for start, end in twice:
                    yield failure("unique", "there more than once", shard, start, end)
                self._seen += len(offsets)
                yield self._progress.further(len(offsets))
                position = window.stop
            yield from self._check_damaged(shard)
        except errors.TableUnreadable as error:  # deletes that cannot be applied
            yield failure("files", f"consumers cannot read it: {error.message}; {error.hint}", shard)
            yield Finding("dense", Weight.BOUNDS_ONLY, "its offsets were not looked at", shard)
        except FileNotFoundError as error:
            yield failure("files", f"{error} went while it was read", shard)
        else:
            held.is_known = True

    def strays(self, files: Sequence[DataFile]) -> Iterator[Finding]:
        """Behind all shards, where each was read: rows that belong to none."""
        view = self._view
        if not self._is_counted:
            return
        there = sum(
            self._files.live_rows(group, view.columns, view.files.deletes_of(file))
            for file in files
            for group in self._files.groups(file, view.columns)
        )
        if there > self._seen:
            words = counted(there - self._seen, "row")
            yield failure("bounds", f"{words} without a place in this topic: of another shard, or without an offset")

    def _note(self, file: DataFile, error: errors.TableDamaged) -> None:
        self._damaged.setdefault(file.path, error.message)

    def _check_damaged(self, shard: int | None) -> Iterator[Finding]:
        """Each file once. Where its offsets cannot be decoded, its rows count as missing."""
        for path in sorted(self._damaged.keys() - self._told):
            self._told.add(path)
            yield failure("files", self._damaged[path], shard)

    def _spans_of(self, file: DataFile, shard: int) -> list[OffsetSpan[RowGroup]]:
        """Of each row two numbers are held."""
        try:
            spans = self._row_groups.spans(self._view, file, shard, 0)
        except errors.TableDamaged as error:
            self._note(file, error)
            self._is_counted = False
            return []
        return [span._replace(bytes=_ROW_BYTES * span.rows) for span in spans]

    def _offsets(self, window: OffsetWindow[RowGroup], shard: int) -> Any:
        return within(
            together([self._offsets_of(span.source, shard) for span in window.spans]), window.start, window.stop
        )

    def _offsets_of(self, group: RowGroup, shard: int) -> Any:
        view = self._view
        try:
            return self._files.offsets(group, view.columns, shard, view.files.deletes_of(group.file))
        except errors.TableDamaged as error:
            self._note(group.file, error)
            self._is_counted = False
            return NONE
