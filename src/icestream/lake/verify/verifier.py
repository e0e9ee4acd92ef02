"""`icestream verify`: whether a topic's table holds every committed offset once (hazard 38).

    files       every file that the snapshot names is there, with its size and its number of rows
    property    what the table says of itself is what stands beside its pointer (in another catalog: what main's
                snapshots say is not less than what we noted)
    bounds      no row lies behind what was committed
    dense       every offset below committed is a row, or its absence is known: a declared gap of the log, rows that an
                engine removed (not more than it took: density.py), a takeover, an offset before the table's first.
                Each is named
    unique      no offset is there twice
    log         the broker's log goes on where the table ends

Without `deep` it works from manifests and footers: `dense` and `unique` then follow from bounds and counts, and are
told as not looked at where files overlap or hold several shards. `deep` reads the offsets of all rows, a window of
offsets at a time (scan/window.py), so that it holds as much as a reader does, however large the table is.

What it finds is told one by one, with how far it has come in between. It blocks, and runs beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgspec

from icestream import errors, limits
from icestream.catalog.topic.removal import COMMITTED
from icestream.catalog.topic.standing import main_standing
from icestream.lake.scan.data_files import DataFile, DeleteFile
from icestream.lake.scan.group_units import GroupUnits
from icestream.lake.scan.parquet_files import Group, ParquetFiles
from icestream.lake.scan.table_view import TableView
from icestream.lake.scan.window import Unit, Units, Window
from icestream.lake.verify.density import Density
from icestream.lake.verify.offsets import Ranges, ranges_of, together, with_ranges, within
from icestream.lake.verify.report import Finding, Progress, Report, Weight, red
from icestream.lake.verify.shard_in_log import ShardInLog

Told = Finding | Progress
_ROW_BYTES: Final = 24  # shard and offset of a row, and its place in the order


@dataclass
class Held:
    """The offsets of a shard that the table holds."""

    ranges: Ranges
    is_known: bool = False


class Verifier:
    def __init__(
        self, view: TableView, files: ParquetFiles, size_of: Callable[[str], int | None], log: Mapping[int, ShardInLog]
    ) -> None:
        """`size_of`: the bytes of a file; None: it is not there. Called by several threads."""
        self._view = view
        self._files = files
        self._units = GroupUnits(files)
        self._size_of = size_of
        self._log = log
        self._density = Density(view, log)
        self._done = 0
        self._all = 0

    def verify(self, deep: bool) -> Report:
        return self.report(deep, [one for one in self.told(deep) if isinstance(one, Finding)])

    def report(self, deep: bool, findings: list[Finding]) -> Report:
        view = self._view
        table = f"{view.identifier}"
        return Report(view.binding.topic, table, view.table.current_snapshot_id, deep, len(view.files.data), findings)

    def told(self, deep: bool) -> Iterator[Told]:
        view = self._view
        self._all = len(view.files.data) + len(view.files.deletes)
        if deep:
            self._all += sum(file.rows for file in view.files.data)
        yield Progress(0, self._all)
        yield from self._check_property()
        whole: list[DataFile] = []
        yield from self._check_files(whole)
        for shard in sorted(view.binding.runs):
            held = Held([])
            yield from self._read(shard, whole, held) if deep else self._bounds(shard, whole, held)
            if held.is_known:
                yield from self._density.check(shard, held.ranges)
            yield from self._check_log(shard)
        yield from self._density.check_removed()
        yield Progress(self._all, self._all)

    # --- the table and its files ---

    def _check_property(self) -> Iterator[Finding]:
        if self._view.mirror is not None:
            yield from self._check_mirror(self._view.mirror)
            return
        told = self._view.table.properties.get(COMMITTED)
        try:
            found = msgspec.json.decode(told or "", type=dict[int, int])
        except msgspec.MsgspecError:
            found = None
        known = self._view.binding.committed()
        if found != known:
            yield red("property", f"the table says {COMMITTED} {told}, but {known} is committed")

    def _check_mirror(self, mirror: Mapping[int, int]) -> Iterator[Finding]:
        """In a catalog that is not ours: main's snapshots and our own note. The note may lag until the next round."""
        binding = self._view.binding
        main = main_standing(self._view.table, binding.topic_id, binding.base)
        if not main.is_known:
            yield red("property", "the history of main is cut off: no snapshot says how far it has come")
        for shard, end in sorted(binding.committed().items()):
            noted, told = mirror.get(shard, 0), main.progress.committed.get(shard, 0)
            if noted > told:
                yield red("property", f"{end} was committed, and main says {told}", shard, told, noted)

    def _check_files(self, whole: list[DataFile]) -> Iterator[Told]:
        """Several at a time: in an object store each is a wait for its answers."""
        files: list[DataFile | DeleteFile] = [*self._view.files.data, *self._view.files.deletes]
        pool = ThreadPoolExecutor(limits.VERIFY_FILES_AT_ONCE, "verify")
        try:
            for file, (is_whole, wrong) in zip(files, pool.map(self._check_file, files), strict=True):
                if wrong:
                    yield red("files", wrong)
                if is_whole and isinstance(file, DataFile):
                    whole.append(file)
                yield self._further(1)
        finally:
            pool.shutdown(cancel_futures=True)

    def _check_file(self, file: DataFile | DeleteFile) -> tuple[bool, str]:
        """Whether its rows can be looked at, and what is wrong with it."""
        size = self._size_of(file.path)
        if size is None:
            return False, f"{file.path} is not there"
        if size != file.size_bytes:
            return False, f"{file.path} has {size} bytes, and its manifest says {file.size_bytes}"
        try:
            rows = self._files.rows_in(file, self._view.ids)
        except errors.TableUnreadable as error:
            return False, error.message
        except FileNotFoundError:
            return False, f"{file.path} is not there"
        return True, "" if rows == file.rows else f"{file.path} has {rows} rows, and its manifest says {file.rows}"

    def _further(self, more: int) -> Progress:
        self._done += more
        return Progress(min(self._done, self._all), self._all)

    # --- offsets ---

    def _read(self, shard: int, files: Sequence[DataFile], held: Held) -> Iterator[Told]:
        """By the rows themselves, window by window."""
        mine = [file for file in files if file.shards.may_hold(shard)]
        try:
            units = Units(unit for file in mine for unit in self._units_of(file, shard))
            position = 0
            while (window := units.next_window(position, limits.SCAN_WINDOW_BYTES)) is not None:
                there, twice = ranges_of(offsets := self._offsets(window, shard))
                with_ranges(held.ranges, there)
                for start, end in twice:
                    yield red("unique", "there more than once", shard, start, end)
                yield self._further(len(offsets))
                position = window.stop
        except errors.TableUnreadable as error:  # what somebody deleted by values, mostly
            yield Finding("dense", Weight.BOUNDS_ONLY, f"{error.message}; {error.hint}", shard)
        except FileNotFoundError as error:
            yield red("files", f"{error} went while it was read", shard)
        else:
            held.is_known = True

    def _units_of(self, file: DataFile, shard: int) -> list[Unit[Group]]:
        """Of each row two numbers are held."""
        found = self._units.of_file(self._view, file, shard, 0)
        return [unit._replace(bytes=_ROW_BYTES * unit.rows) for unit in found]

    def _offsets(self, window: Window[Group], shard: int) -> Any:
        view = self._view
        found = [
            self._files.offsets(unit.what, view.ids, shard, view.files.deletes_of(unit.what.file))
            for unit in window.units
        ]
        return within(together(found), window.start, window.stop)

    def _bounds(self, shard: int, files: Sequence[DataFile], held: Held) -> Iterator[Told]:
        """By manifests, where they say enough."""
        mine = [file for file in files if file.shards.may_hold(shard)]
        known = all(file.shards == (shard, shard) and None not in file.offsets for file in mine)
        if not known or self._view.files.deletes:
            yield _unlooked(shard, "files hold several shards, lack bounds, or have rows deleted")
            return
        ranges = sorted((_int(file.offsets.low), _int(file.offsets.high) + 1, file) for file in mine)
        for (low, end, one), (start, high, other) in pairwise(ranges):
            if start < end and one.rows + other.rows > max(end, high) - low:
                yield red("unique", f"{one.path} and {other.path} have more rows than offsets", shard, start, end)
            if start < end:
                yield _unlooked(shard, f"{one.path} and {other.path} overlap")
                return
        for start, end, file in ranges:
            if file.rows > end - start:
                yield red("unique", f"{file.path} has {file.rows} rows in {end - start} offsets", shard, start, end)
        if any(file.rows < end - start for start, end, file in ranges):
            yield _unlooked(shard, "files have offsets without a row in between")
            return
        with_ranges(held.ranges, [(start, end) for start, end, _ in ranges])
        held.is_known = True

    def _check_log(self, shard: int) -> Iterator[Finding]:
        log = self._log.get(shard)
        end = self._view.end(shard)
        if log is None:
            return
        if log.synced < end:
            text = f"the log ends at {log.synced}, before what is committed, {end}"
            yield red("log", text, shard, log.synced, end)
        elif log.earliest > end:
            left: Ranges = []
            yield from self._density.declared(shard, end, log.earliest, left)
            for start, stop in left:
                yield red("log", "neither in the table nor in the log", shard, start, stop)


def _unlooked(shard: int, why: str) -> Finding:
    text = f"{why}: only `--deep` can tell whether rows are missing"
    return Finding("dense", Weight.BOUNDS_ONLY, text, shard)


def _int(value: int | None) -> int:
    assert value is not None
    return value
