"""`icestream verify`: whether a topic's table holds every committed offset once (hazard 38).

    files       every file that main names is there, with its size and its number of rows; every file that another
                snapshot names, whichever tag or branch leads to it, is there with its size (other_snapshots.py)
    property    what the table says of itself is what stands beside its pointer (in another catalog: what main's
                snapshots say is not less than what we noted)
    bounds      no row lies behind what was committed, or in a shard that the topic does not have
    dense       every offset below committed is a row, or its absence is known: a declared gap of the log, rows that an
                engine removed (not more than it took: density.py), a takeover, an offset before the table's first.
                Each is named
    unique      no offset is there twice
    log         the broker's log goes on where the table ends
    readers     no subscription has come to a row that cannot be read

Without `deep` it works from manifests and footers: `dense` and `unique` then follow from bounds (shallow_look.py), and
are told as not looked at where files overlap or hold several shards. `deep` reads every column of all rows, as readers
do (deep_look.py): what they cannot read is wrong, too. Where offsets are not looked at, the rows are counted.

What it finds is told one by one, with how far it has come in between. It blocks, and runs beside the loop.
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
from icestream.readers.data_files import DataFile, DeleteFile
from icestream.readers.file_reader import FileReader
from icestream.readers.stored_files import StoredFiles
from icestream.readers.table_view import TableView
from icestream.readers.verify import manifest_check
from icestream.readers.verify.density_check import DensityCheck
from icestream.readers.verify.history_check import HistoryCheck
from icestream.readers.verify.offset_ranges import Ranges, ShardOffsets
from icestream.readers.verify.progress_count import ProgressCount
from icestream.readers.verify.row_check import RowCheck
from icestream.readers.verify.shard_in_log import ShardLogState
from icestream.readers.verify.verify_report import Finding, VerifyEvent, VerifyReport, Weight, failure


class Verifier:
    def __init__(
        self, view: TableView, files: FileReader, stored: StoredFiles, log: Mapping[int, ShardLogState]
    ) -> None:
        self._view = view
        self._files = files
        self._stored = stored
        self._log = log
        self._density = DensityCheck(view, log)
        self._progress = ProgressCount()
        self._deep = RowCheck(view, files, self._progress)

    def verify(self, deep: bool) -> VerifyReport:
        return self.report(deep, [one for one in self.told(deep) if isinstance(one, Finding)])

    def report(self, deep: bool, findings: list[Finding]) -> VerifyReport:
        view = self._view
        table = f"{view.identifier}"
        return VerifyReport(
            view.binding.topic, table, view.table.current_snapshot_id, deep, len(view.files.data), findings
        )

    def told(self, deep: bool) -> Iterator[VerifyEvent]:
        named = self._view.files
        rows = sum(file.rows for file in named.data) if deep else 0
        yield self._progress.more(len(named.data) + len(named.deletes) + 2 * rows)
        yield from self._check_property()
        whole: list[DataFile] = []
        yield from self._check_files(whole)
        yield from HistoryCheck(self._view, self._stored, self._progress).told()
        if deep:
            yield from self._deep.values(whole)
        yield from self._check_offsets(deep, whole)
        yield from self._density.check_removed()
        yield self._progress.end()

    def _check_offsets(self, deep: bool, whole: Sequence[DataFile]) -> Iterator[VerifyEvent]:
        shards = sorted(self._view.binding.runs)
        unlooked: list[int] = []
        for shard in shards:
            held = ShardOffsets([])
            yield from self._deep.shard(shard, whole, held) if deep else self._shallow(shard, whole, held)
            if held.is_known:
                yield from self._density.check(shard, held.ranges)
            else:
                unlooked.append(shard)
            yield from self._check_log(shard)
        yield from self._check_counts(unlooked, whole)
        is_read = deep and not unlooked
        for stray in manifest_check.strays(shards, self._view.files):
            if not is_read or stray.weight is Weight.WRONG:
                yield stray
        if is_read:
            yield from self._deep.strays(whole)

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
            yield failure("property", f"the table says {COMMITTED} {told}, but {known} is committed")

    def _check_mirror(self, mirror: Mapping[int, int]) -> Iterator[Finding]:
        """In a catalog that is not ours: main's snapshots and our own note. The note may lag until the next round."""
        binding = self._view.binding
        main = main_progress(self._view.table, binding.topic_id, binding.base)
        if not main.is_known:
            yield failure("property", "the history of main is cut off: no snapshot says how far it has come")
        for shard, end in sorted(binding.committed().items()):
            noted, told = mirror.get(shard, 0), main.last_round.committed.get(shard, 0)
            if noted > told:
                yield failure("property", f"{end} was committed, and main says {told}", shard, told, noted)

    def _check_files(self, whole: list[DataFile]) -> Iterator[VerifyEvent]:
        """Several at a time: in an object store each is a wait for its answers."""
        files: list[DataFile | DeleteFile] = [*self._view.files.data, *self._view.files.deletes]
        pool = ThreadPoolExecutor(limits.VERIFY_FILES_AT_ONCE, "verify")
        try:
            for file, (is_whole, wrong) in zip(files, pool.map(self._check_file, files), strict=True):
                if wrong:
                    yield failure("files", wrong)
                if is_whole and isinstance(file, DataFile):
                    whole.append(file)
                yield self._progress.further(1)
        finally:
            pool.shutdown(cancel_futures=True)

    def _check_file(self, file: DataFile | DeleteFile) -> tuple[bool, str]:
        """Whether its rows can be looked at, and what is wrong with it."""
        try:
            size = self._stored.size(file.path)
            if size is None:
                return False, f"{file.path} is not there"
            if size != file.size_bytes:
                return False, f"{file.path} has {size} bytes, and its manifest says {file.size_bytes}"
            rows = self._files.rows_in(file, self._view.columns)
        except errors.TableUnreadable as error:
            return False, error.message
        except FileNotFoundError:
            return False, f"{file.path} is not there"
        difference = f"{file.path} has {counted(rows, 'row')}, and its manifest says {file.rows}"
        return True, "" if rows == file.rows else difference

    # --- offsets ---

    def _shallow(self, shard: int, files: Sequence[DataFile], held: ShardOffsets) -> Iterator[Finding]:
        return manifest_check.look(shard, _of_shards([shard], files), bool(self._view.files.deletes), held)

    def _check_counts(self, shards: Sequence[int], files: Sequence[DataFile]) -> Iterator[Finding]:
        """Each shard that has files of its own; the others together."""
        alone = [shard for shard in shards if manifest_check.is_alone(shard, _of_shards([shard], files))]
        mixed = [shard for shard in shards if shard not in alone]
        deletes = self._view.files.deletes
        is_counted = all(one.content != EQUALITY_DELETES_CONTENT for one in deletes)
        deleted = sum(one.rows for one in deletes) if is_counted else None
        for some in [*([shard] for shard in alone), *([mixed] if mixed else [])]:
            rows = sum(file.rows for file in _of_shards(some, files))
            yield from self._density.check_count(some, rows, deleted)

    def _check_log(self, shard: int) -> Iterator[Finding]:
        log = self._log.get(shard)
        end = self._view.end(shard)
        if log is None:
            return
        for offset, reason in log.stopped:
            yield failure("readers", reason, shard, offset, offset + 1)
        if log.synced < end:
            text = f"the log ends at {log.synced}, before what is committed, {end}"
            yield failure("log", text, shard, log.synced, end)
        elif log.earliest > end:
            left: Ranges = []
            yield from self._density.declared(shard, end, log.earliest, left)
            for start, stop in left:
                yield failure("log", "neither in the table nor in the log", shard, start, stop)


def _of_shards(shards: Sequence[int], files: Sequence[DataFile]) -> list[DataFile]:
    """Those that may have rows of one of them."""
    return [file for file in files if any(file.shards.may_hold(shard) for shard in shards)]
