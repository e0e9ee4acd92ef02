"""`icestream verify`: whether a topic's table holds every committed offset once (hazard 38).

    files       every file that the snapshot names is there, with its size and its number of rows
    property    what the table says of itself is what stands beside its pointer (in another catalog: what main's
                snapshots say is not less than what we noted)
    bounds      no row lies behind what was committed
    dense       every offset below committed is a row, or its absence is known: a declared gap of the log, rows that an
                engine removed, a takeover, an offset before the table's first. Each is named
    unique      no offset is there twice
    log         the broker's log goes on where the table ends

Without `deep` it works from manifests and footers: `dense` and `unique` then follow from bounds and counts, and are
told as not looked at where files overlap or hold several shards. `deep` reads the offsets of all rows.

It blocks, and runs beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream import errors
from icestream.catalog.topic.removal import COMMITTED
from icestream.catalog.topic.standing import standing
from icestream.lake.scan import absence
from icestream.lake.scan.absence import Cause
from icestream.lake.scan.data_files import DataFile
from icestream.lake.scan.parquet_files import ParquetFiles
from icestream.lake.scan.sections import int64s
from icestream.lake.scan.table_view import TableView
from icestream.lake.verify.report import Finding, Report, Weight

Ranges = list[tuple[int, int]]


class ShardInLog(NamedTuple):
    """What the broker knows of a shard: where its log begins and ends, and the gaps that it declared."""

    earliest: int
    synced: int
    gaps: Sequence[tuple[int, int, str]] = ()


class Verifier:
    def __init__(
        self, view: TableView, files: ParquetFiles, size_of: Callable[[str], int | None], log: Mapping[int, ShardInLog]
    ) -> None:
        """`size_of`: the bytes of a file; None: it is not there."""
        self._view = view
        self._files = files
        self._size_of = size_of
        self._log = log
        self._findings: list[Finding] = []

    def verify(self, deep: bool, on_file: Callable[[int, int], None] = lambda done, all_: None) -> Report:
        view = self._view
        self._check_property()
        whole = [file for at, file in enumerate(view.files.data) if self._check_file(file, at, on_file)]
        for one in view.files.deletes:
            if self._size_of(one.path) is None:
                self._red("files", f"{one.path} is not there")
        for shard in sorted(view.binding.runs):
            held = self._read(shard, whole) if deep else self._bounds(shard, whole)
            if held is not None:
                self._check_dense(shard, held)
            self._check_log(shard)
        return Report(
            view.binding.topic, f"{view.identifier}", view.table.current_snapshot_id, deep, len(view.files.data),
            self._findings,
        )  # fmt: skip

    def _red(self, check: str, text: str, shard: int | None = None, start: int = 0, end: int = 0) -> None:
        self._findings.append(Finding(check, Weight.WRONG, text, shard, start, end))

    # --- the table and its files ---

    def _check_property(self) -> None:
        if self._view.mirror is not None:
            self._check_mirror(self._view.mirror)
            return
        told = self._view.table.properties.get(COMMITTED)
        try:
            found = msgspec.json.decode(told or "", type=dict[int, int])
        except msgspec.MsgspecError:
            found = None
        if found != self._view.binding.committed():
            known = self._view.binding.committed()
            self._red("property", f"the table says {COMMITTED} {told}, but {known} is committed")

    def _check_mirror(self, mirror: Mapping[int, int]) -> None:
        """In a catalog that is not ours: main's snapshots and our own note. The note may lag until the next round."""
        binding = self._view.binding
        main = standing(self._view.table, self._view.table.current_snapshot_id, binding.topic_id, None)
        if not main.is_known:
            self._red("property", "the history of main is cut off: no snapshot says how far it has come")
        for shard, end in sorted(binding.committed().items()):
            noted, told = mirror.get(shard, 0), main.progress.committed.get(shard, 0)
            if noted > told:
                self._red("property", f"{end} was committed, and main says {told}", shard, told, noted)

    def _check_file(self, file: DataFile, at: int, on_file: Callable[[int, int], None]) -> bool:
        on_file(at + 1, len(self._view.files.data))
        size = self._size_of(file.path)
        if size is None:
            self._red("files", f"{file.path} is not there")
            return False
        if size != file.size_bytes:
            self._red("files", f"{file.path} has {size} bytes, and its manifest says {file.size_bytes}")
            return False
        try:
            rows = sum(group.rows for group in self._files.groups(file, self._view.ids))
        except errors.TableUnreadable as error:
            self._red("files", error.message)
            return False
        if rows != file.rows:
            self._red("files", f"{file.path} has {rows} rows, and its manifest says {file.rows}")
        return True

    # --- offsets ---

    def _read(self, shard: int, files: Sequence[DataFile]) -> Ranges:
        """By the rows themselves."""
        view = self._view
        parts = [pa.array([], pa.int64())]
        for file in files:
            for group in self._files.groups(file, view.ids):
                rows = self._files.offsets(group, view.ids, shard, view.files.deletes_of(file))
                parts += rows.chunks if isinstance(rows, pa.ChunkedArray) else [rows]
        offsets = pa.concat_arrays(parts)
        offsets = offsets.take(pc.sort_indices(offsets))
        values = int64s(offsets)
        held: Ranges = []
        for at in values:
            if held and at < held[-1][1]:
                self._red("unique", f"offset {at} is there twice", shard, at, at + 1)
            elif held and at == held[-1][1]:
                held[-1] = held[-1][0], at + 1
            else:
                held.append((at, at + 1))
        return held

    def _bounds(self, shard: int, files: Sequence[DataFile]) -> Ranges | None:
        """By manifests, where they say enough. None: they do not."""
        mine = [file for file in files if file.shards.may_hold(shard)]
        known = all(file.shards == (shard, shard) and None not in file.offsets for file in mine)
        if not known or self._view.files.deletes:
            self._unlooked(shard, "files hold several shards, lack bounds, or have rows deleted")
            return None
        ranges = sorted((_int(file.offsets.low), _int(file.offsets.high) + 1, file) for file in mine)
        for (low, end, one), (start, high, other) in pairwise(ranges):
            if start < end and one.rows + other.rows > max(end, high) - low:
                self._red("unique", f"{one.path} and {other.path} have more rows than offsets", shard, start, end)
            if start < end:
                self._unlooked(shard, f"{one.path} and {other.path} overlap")
                return None
        for start, end, file in ranges:
            if file.rows > end - start:
                self._red("unique", f"{file.path} has {file.rows} rows in {end - start} offsets", shard, start, end)
        if any(file.rows < end - start for start, end, file in ranges):
            self._unlooked(shard, "files have offsets without a row in between")
            return None
        return [(start, end) for start, end, _ in ranges]

    def _unlooked(self, shard: int, why: str) -> None:
        self._findings.append(
            Finding("dense", Weight.BOUNDS_ONLY, f"{why}: only `--deep` can tell whether rows are missing", shard)
        )

    def _check_dense(self, shard: int, held: Ranges) -> None:
        end = self._view.end(shard)
        if held and held[-1][1] > end:
            start = max(held[-1][0], end)
            self._red("bounds", f"rows behind what was committed, {end}", shard, start, held[-1][1])
        at = 0
        for start, stop in [*held, (end, end)]:
            if at < min(start, end):
                self._explain(shard, at, min(start, end))
            at = max(at, stop)

    def _explain(self, shard: int, start: int, end: int) -> None:
        for piece in self._undeclared(shard, start, end):
            for one in absence.explained(*piece, shard, self._view.binding, self._view.record.removals):
                if one.cause is Cause.UNEXPLAINED:
                    self._red("dense", "rows are missing, and nothing says why", shard, one.start, one.end)
                else:
                    self._known(shard, one.start, one.end, one.reason)

    def _undeclared(self, shard: int, start: int, end: int) -> Ranges:
        """What of it is in no gap that the log has declared; those are named."""
        left: Ranges = []
        at = start
        gaps = self._log[shard].gaps if shard in self._log else ()
        for low, high, reason in sorted(gaps):
            if high <= at or low >= end:
                continue
            if at < low:
                left.append((at, low))
            self._known(shard, max(at, low), min(high, end), f"declared gap: {reason}")
            at = min(high, end)
        return [*left, (at, end)] if at < end else left

    def _known(self, shard: int, start: int, end: int, reason: str) -> None:
        self._findings.append(Finding("dense", Weight.KNOWN, reason, shard, start, end))

    def _check_log(self, shard: int) -> None:
        log = self._log.get(shard)
        end = self._view.end(shard)
        if log is None:
            return
        if log.synced < end:
            self._red("log", f"the log ends at {log.synced}, before what is committed, {end}", shard, log.synced, end)
        elif log.earliest > end:
            for start, stop in self._undeclared(shard, end, log.earliest):
                self._red("log", "neither in the table nor in the log", shard, start, stop)


def _int(value: int | None) -> int:
    assert value is not None
    return value
