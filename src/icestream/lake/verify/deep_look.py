"""Which offsets a table holds, by all of its rows: a window of offsets at a time (scan/window.py), so that it holds as
much as a reader does, however large the table is. It blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from icestream import errors, limits
from icestream.lake.scan.data_files import DataFile
from icestream.lake.scan.group_units import GroupUnits
from icestream.lake.scan.parquet_files import Group, ParquetFiles
from icestream.lake.scan.table_view import TableView
from icestream.lake.scan.window import Unit, Units, Window
from icestream.lake.verify.offsets import NONE, Held, ranges_of, together, with_ranges, within
from icestream.lake.verify.progress_count import ProgressCount
from icestream.lake.verify.report import Finding, Told, Weight, red
from icestream.observability.words import counted

_ROW_BYTES: Final = 24  # shard and offset of a row, and its place in the order


class DeepLook:
    def __init__(self, view: TableView, files: ParquetFiles, progress: ProgressCount) -> None:
        self._view = view
        self._files = files
        self._units = GroupUnits(files)
        self._progress = progress
        self._seen = 0  # rows of the topic's shards, those that are there twice, too
        self._damaged: set[str] = set()  # what is wrong with files that cannot be decoded
        self._told: set[str] = set()

    def shard(self, shard: int, files: Sequence[DataFile], held: Held) -> Iterator[Told]:
        mine = [file for file in files if file.shards.may_hold(shard)]
        try:
            units = Units(unit for file in mine for unit in self._units_of(file, shard))
            position = 0
            while (window := units.next_window(position, limits.SCAN_WINDOW_BYTES)) is not None:
                there, twice = ranges_of(offsets := self._offsets(window, shard))
                with_ranges(held.ranges, there)
                for start, end in twice:
                    yield red("unique", "there more than once", shard, start, end)
                self._seen += len(offsets)
                yield self._progress.further(len(offsets))
                position = window.stop
            yield from self._check_damaged(shard)
        except errors.TableUnreadable as error:  # what somebody deleted by values, mostly
            yield Finding("dense", Weight.BOUNDS_ONLY, f"{error.message}; {error.hint}", shard)
        except FileNotFoundError as error:
            yield red("files", f"{error} went while it was read", shard)
        else:
            held.is_known = True

    def strays(self, files: Sequence[DataFile]) -> Iterator[Finding]:
        """Behind all shards, where each was read: rows that belong to none."""
        view = self._view
        if self._damaged:
            return
        there = sum(
            self._files.live_rows(group, view.files.deletes_of(file))
            for file in files
            for group in self._files.groups(file, view.ids)
        )
        if there > self._seen:
            words = counted(there - self._seen, "row")
            yield red("bounds", f"{words} without a place in this topic: of another shard, or without an offset")

    def _check_damaged(self, shard: int) -> Iterator[Finding]:
        """Each file once; its rows count as missing."""
        for wrong in sorted(self._damaged - self._told):
            self._told.add(wrong)
            yield red("files", wrong, shard)

    def _units_of(self, file: DataFile, shard: int) -> list[Unit[Group]]:
        """Of each row two numbers are held."""
        try:
            found = self._units.of_file(self._view, file, shard, 0)
        except errors.TableDamaged as error:
            self._damaged.add(error.message)
            return []
        return [unit._replace(bytes=_ROW_BYTES * unit.rows) for unit in found]

    def _offsets(self, window: Window[Group], shard: int) -> Any:
        return within(
            together([self._offsets_of(unit.what, shard) for unit in window.units]), window.start, window.stop
        )

    def _offsets_of(self, group: Group, shard: int) -> Any:
        view = self._view
        try:
            return self._files.offsets(group, view.ids, shard, view.files.deletes_of(group.file))
        except errors.TableDamaged as error:
            self._damaged.add(error.message)
            return NONE
