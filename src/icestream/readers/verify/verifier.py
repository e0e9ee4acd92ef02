"""`icestream verify`: whether a topic's table holds every committed offset once (hazard 38).

    files       every file of main exists with the size and row count of its manifest; every file of other snapshots, of
                any tag or branch, exists with its size (history_check.py)
    property    the table's property with the committed offsets equals the record beside its pointer (in another
                catalog: main's snapshots have at least the offsets of our own record)
    bounds      no row is at or beyond the committed offset, or in a shard that the topic does not have
    dense       every offset below committed has a row, or a recorded reason for its absence: a declared gap of the log,
                rows that a retention or an engine removed (not more than it reported: density_check.py), a takeover, an
                offset before the table's first. Each is reported
    unique      no offset has two rows
    log         the broker's log continues where the table ends
    readers     no subscription is stopped at a row that cannot be read

Without `deep` it works from manifests and footers: `dense` and `unique` then follow from bounds (manifest_check.py),
and are reported as not checked where files overlap or hold several shards. `deep` reads every column of all rows, as
readers do (row_check.py): a row that readers cannot read is a violation, too. Where offsets are not checked, rows are
counted.

Findings and progress are reported while it runs. It blocks, and runs off the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from icestream import errors, limits
from icestream.catalog.topic_rules.removal import COMMITTED
from icestream.catalog.topic_rules.snapshot_progress import main_progress
from icestream.iceberg.manifests import EQUALITY_DELETES_CONTENT
from icestream.observability.words import counted
from icestream.readers.data_files import ScanDataFile, ScanDeleteFile
from icestream.readers.file_reader import FileReader
from icestream.readers.stored_files import StoredFiles
from icestream.readers.table_views import TableView
from icestream.readers.verify import manifest_check
from icestream.readers.verify.density_check import DensityCheck
from icestream.readers.verify.history_check import HistoryCheck
from icestream.readers.verify.offset_ranges import Ranges, ShardOffsetRanges
from icestream.readers.verify.row_check import RowCheck
from icestream.readers.verify.verify_report import (
    Finding,
    ProgressCount,
    ShardLogState,
    VerifyEvent,
    VerifyReport,
    Weight,
    failure,
)


class Verifier:
    """Verifies one table at one snapshot; used once."""

    def __init__(
        self, view: TableView, files: FileReader, stored: StoredFiles, log: Mapping[int, ShardLogState]
    ) -> None:
        self._view = view
        self._files = files
        self._stored = stored
        self._log = log
        self._density = DensityCheck(view, log)
        self._progress = ProgressCount()
        self._row_check = RowCheck(view, files, self._progress)

    def verify(self, deep: bool) -> VerifyReport:
        return self.report(deep, [event for event in self.events(deep) if isinstance(event, Finding)])

    def report(self, deep: bool, findings: list[Finding]) -> VerifyReport:
        view = self._view
        table = f"{view.identifier}"
        return VerifyReport(
            view.binding.topic, table, view.table.current_snapshot_id, deep, len(view.files.data), findings
        )

    def events(self, deep: bool) -> Iterator[VerifyEvent]:
        """Yields findings and progress while the table is checked."""
        files = self._view.files
        rows = sum(file.rows for file in files.data) if deep else 0
        # Each row is read twice: for its values and for its offset.
        yield self._progress.add_work(len(files.data) + len(files.deletes) + 2 * rows)
        # Missing and damaged files first: all later checks read only the files that are intact.
        yield from self._check_property()
        readable: list[ScanDataFile] = []
        yield from self._check_files(readable)
        yield from HistoryCheck(self._view, self._stored, self._progress).check()
        if deep:
            yield from self._row_check.check_values(readable)
        yield from self._check_offsets(deep, readable)
        yield from self._density.check_removed()
        yield self._progress.complete()

    def _check_offsets(self, deep: bool, readable: Sequence[ScanDataFile]) -> Iterator[VerifyEvent]:
        """Checks each shard: by its rows with `deep`, else by manifests, and by row counts where manifests prove
        nothing."""
        shards = sorted(self._view.binding.runs)
        unchecked: list[int] = []
        for shard in shards:
            offsets = ShardOffsetRanges([])
            if deep:
                yield from self._row_check.check_shard(shard, readable, offsets)
            else:
                yield from self._check_by_manifests(shard, readable, offsets)
            if offsets.is_known:
                yield from self._density.check(shard, offsets.ranges)
            else:
                unchecked.append(shard)
            yield from self._check_log(shard)
        yield from self._check_counts(unchecked, readable)
        is_fully_read = deep and not unchecked
        # With all rows read, only what the manifests prove is reported here; the rows decide the rest.
        for stray in manifest_check.find_strays(shards, self._view.files):
            if not is_fully_read or stray.weight is Weight.WRONG:
                yield stray
        if is_fully_read:
            yield from self._row_check.find_strays(readable)

    # --- the table and its files ---

    def _check_property(self) -> Iterator[Finding]:
        """Compares the committed offsets in the table's properties with the record beside its pointer."""
        if self._view.mirror is not None:
            yield from self._check_mirror(self._view.mirror)
            return
        text = self._view.table.properties.get(COMMITTED)
        try:
            offsets = msgspec.json.decode(text or "", type=dict[int, int])
        except msgspec.MsgspecError:
            offsets = None
        committed = self._view.binding.committed()
        if offsets != committed:
            yield failure("property", f"property {COMMITTED} of the table is {text}, the catalog records {committed}")

    def _check_mirror(self, mirror: Mapping[int, int]) -> Iterator[Finding]:
        """For a table in another catalog: compares main's snapshots with our own record, which may lag by one round."""
        binding = self._view.binding
        main = main_progress(self._view.table, binding.topic_id, binding.base)
        if not main.is_known:
            yield failure("property", "no snapshot in the history of main states the committed offsets")
        for shard, end in sorted(binding.committed().items()):
            recorded, on_main = mirror.get(shard, 0), main.last_round.committed.get(shard, 0)
            if recorded > on_main:
                text = f"{end} was committed, but main has only {on_main}"
                yield failure("property", text, shard, on_main, recorded)

    def _check_files(self, readable: list[ScanDataFile]) -> Iterator[VerifyEvent]:
        """Adds the files whose rows can be read to `readable`. Several at a time: object stores are slow."""
        files: list[ScanDataFile | ScanDeleteFile] = [*self._view.files.data, *self._view.files.deletes]
        pool = ThreadPoolExecutor(limits.VERIFY_FILES_AT_ONCE, "verify")
        try:
            for file, (is_readable, problem) in zip(files, pool.map(self._check_file, files), strict=True):
                if problem:
                    yield failure("files", problem)
                if is_readable and isinstance(file, ScanDataFile):
                    readable.append(file)
                yield self._progress.advance(1)
        finally:
            pool.shutdown(cancel_futures=True)

    def _check_file(self, file: ScanDataFile | ScanDeleteFile) -> tuple[bool, str]:
        """Returns whether the rows of the file can be read, and its problem, if any."""
        try:
            size = self._stored.size(file.path)
            if size is None:
                return False, f"{file.path} does not exist"
            if size != file.size_bytes:
                return False, f"{file.path} has {size} bytes, its manifest states {file.size_bytes}"
            rows = self._files.rows_in(file, self._view.columns)
        except errors.TableUnreadable as error:
            return False, error.message
        except FileNotFoundError:
            return False, f"{file.path} does not exist"
        difference = f"{file.path} has {counted(rows, 'row')}, its manifest states {file.rows}"
        return True, "" if rows == file.rows else difference

    # --- offsets ---

    def _check_by_manifests(
        self, shard: int, files: Sequence[ScanDataFile], offsets: ShardOffsetRanges
    ) -> Iterator[Finding]:
        has_deletes = bool(self._view.files.deletes)
        return manifest_check.check_shard(shard, _of_shards([shard], files), has_deletes, offsets)

    def _check_counts(self, shards: Sequence[int], files: Sequence[ScanDataFile]) -> Iterator[Finding]:
        """Counts the rows of each shard that has files of its own; the other shards together."""
        alone = [shard for shard in shards if manifest_check.has_one_shard(shard, _of_shards([shard], files))]
        mixed = [shard for shard in shards if shard not in alone]
        deletes = self._view.files.deletes
        # A delete by value may delete any number of rows.
        is_countable = all(delete.content != EQUALITY_DELETES_CONTENT for delete in deletes)
        deleted = sum(delete.rows for delete in deletes) if is_countable else None
        for group in [*([shard] for shard in alone), *([mixed] if mixed else [])]:
            rows = sum(file.rows for file in _of_shards(group, files))
            yield from self._density.check_count(group, rows, deleted)

    def _check_log(self, shard: int) -> Iterator[Finding]:
        """Checks that the log of a shard continues where its table ends, and that no subscription is stopped."""
        log = self._log.get(shard)
        end = self._view.end(shard)
        if log is None:
            return
        for offset, reason in log.stopped:
            yield failure("readers", reason, shard, offset, offset + 1)
        if log.synced < end:
            text = f"the log ends at {log.synced}, below the committed offset {end}"
            yield failure("log", text, shard, log.synced, end)
        elif log.earliest > (start := max(end, self._view.first(shard))):
            undeclared: Ranges = []
            yield from self._density.declared(shard, start, log.earliest, undeclared)
            for start, stop in undeclared:
                yield failure("log", "neither in the table nor in the log", shard, start, stop)


def _of_shards(shards: Sequence[int], files: Sequence[ScanDataFile]) -> list[ScanDataFile]:
    """Returns the files that may have rows of one of the shards."""
    return [file for file in files if any(file.shards.may_hold(shard) for shard in shards)]
