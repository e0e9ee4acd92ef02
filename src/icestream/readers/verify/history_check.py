"""Checks files that main does not need but another snapshot does: of a tag, of a branch, or not expired yet.

Time travel and rollbacks need them, so each must exist with its size. Which files these are is in the manifests of all
snapshots; each manifest is read once, those of main not again. Rows are not checked. It blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from icestream import errors, limits
from icestream.iceberg.manifests import decode_entries, decode_manifest_list
from icestream.iceberg.values import Object
from icestream.readers.data_files import files_of
from icestream.readers.stored_files import StoredFiles
from icestream.readers.table_views import TableView
from icestream.readers.verify.verify_report import Finding, ProgressCount, VerifyEvent, Weight, failure

Request = TypeVar("Request")
Result = TypeVar("Result")
_UNREAD: Final = (errors.MetadataFileMissing, errors.MetadataFileDamaged, errors.TableUnreadable)


class NeededFile(NamedTuple):
    """A file that a snapshot outside of main needs."""

    path: str
    snapshot_id: int  # a snapshot that needs it
    size_bytes: int = 0


class HistoryCheck:
    """Checks the files of all snapshots but main's current one."""

    def __init__(self, view: TableView, stored: StoredFiles, progress: ProgressCount) -> None:
        self._view = view
        self._stored = stored
        self._progress = progress
        self._names: dict[int, str] = {}
        for name, reference in view.table.references.items():
            label = f" ({reference.get('type', 'branch')} {name})"
            self._names.setdefault(int(reference["snapshot-id"]), label)

    def check(self) -> Iterator[VerifyEvent]:
        """Yields a finding for each file that an older snapshot, branch or tag needs and that is missing or has another
        size."""
        table = self._view.table
        if all(snapshot["snapshot-id"] == table.current_snapshot_id for snapshot in table.snapshots):
            return
        pool = ThreadPoolExecutor(limits.VERIFY_FILES_AT_ONCE, "verify")
        try:
            manifests: dict[str, NeededFile] = {}
            yield from self._find_manifests(pool, manifests)
            files: dict[str, NeededFile] = {}
            yield from self._find_files(pool, [*manifests.values()], files)
            yield self._progress.add_work(len(files))
            for file, problem in _map_in_batches(pool, self._file_problem, [*files.values()]):
                if problem:
                    yield failure("files", f"{problem}: {self._snapshot_name(file)} needs it")
                yield self._progress.advance(1)
        finally:
            pool.shutdown(cancel_futures=True)

    def _find_manifests(self, pool: ThreadPoolExecutor, manifests: dict[str, NeededFile]) -> Iterator[VerifyEvent]:
        """Adds the manifests that main does not have. Snapshots with a name come first, to be named in findings."""
        main_id = self._view.table.current_snapshot_id
        snapshots = sorted(self._view.table.snapshots, key=lambda snapshot: snapshot["snapshot-id"] not in self._names)
        lists = [
            NeededFile(str(snapshot["manifest-list"]), snapshot["snapshot-id"])
            for snapshot in snapshots
            if snapshot.get("manifest-list")
        ]
        main_paths: set[str] = set()
        yield self._progress.add_work(len(lists))
        for manifest in _inline_manifests(snapshots):
            manifests.setdefault(manifest.path, manifest)
        for manifest_list, (paths, problem) in _map_in_batches(pool, self._read_list, lists):
            if problem:
                yield failure("files", f"{problem}: {self._snapshot_name(manifest_list)} needs it")
            elif manifest_list.snapshot_id == main_id:
                main_paths.update(paths)
            for path in paths:
                manifests.setdefault(path, NeededFile(path, manifest_list.snapshot_id))
            yield self._progress.advance(1)
        # Main's own manifests were read before; a second read would only repeat their findings.
        for path in main_paths:
            manifests.pop(path, None)

    def _find_files(
        self, pool: ThreadPoolExecutor, manifests: Sequence[NeededFile], files: dict[str, NeededFile]
    ) -> Iterator[VerifyEvent]:
        """Adds the live files of the manifests that main does not have, up to VERIFY_OTHER_FILES_MAX."""
        main_files = self._view.files
        main_paths = {file.path for file in main_files.data} | {file.path for file in main_files.deletes}
        skipped = 0
        yield self._progress.add_work(len(manifests))
        for manifest, (manifest_files, problem) in _map_in_batches(pool, self._read_manifest, manifests):
            if problem:
                yield failure("files", f"{problem}: {self._snapshot_name(manifest)} needs it")
            for file in manifest_files:
                if file.path in main_paths or file.path in files:
                    continue
                if len(files) < limits.VERIFY_OTHER_FILES_MAX:
                    files[file.path] = file
                else:
                    skipped += 1
            yield self._progress.advance(1)
        if skipped:
            text = f"checked {len(files)} of the files that older snapshots need, skipped {skipped}"
            yield Finding("files", Weight.BOUNDS_ONLY, text)

    def _snapshot_name(self, file: NeededFile) -> str:
        return f"snapshot {file.snapshot_id}{self._names.get(file.snapshot_id, '')}"

    # --- one file; called by several threads ---

    def _read_list(self, manifest_list: NeededFile) -> tuple[list[str], str]:
        """Returns the manifests of a list, and the problem that kept it from being read, if any."""
        try:
            data = self._read(manifest_list.path)
            return [manifest.path for manifest in decode_manifest_list(manifest_list.path, data)], ""
        except _UNREAD as error:
            return [], error.message

    def _read_manifest(self, manifest: NeededFile) -> tuple[list[NeededFile], str]:
        """Returns the live files of a manifest, and the problem that kept it from being read, if any."""
        try:
            data = self._read(manifest.path)
            files = decode_entries(manifest.path, data, lambda entries: files_of(entries, 0, {}))
            return [NeededFile(file.path, manifest.snapshot_id, file.size_bytes) for file in files], ""
        except _UNREAD as error:
            return [], error.message

    def _read(self, path: str) -> bytes:
        data = self._stored.read(path)
        if data is None:
            raise errors.MetadataFileMissing(f"{path} does not exist")
        return data

    def _file_problem(self, file: NeededFile) -> str:
        """Returns what is wrong with a file: missing, or of another size; empty if nothing is."""
        try:
            size = self._stored.size(file.path)
        except errors.TableUnreadable as error:
            return error.message
        if size is None:
            return f"{file.path} does not exist"
        if size != file.size_bytes:
            return f"{file.path} has {size} bytes, its manifest states {file.size_bytes}"
        return ""


def _inline_manifests(snapshots: Sequence[Object]) -> Iterator[NeededFile]:
    """Yields the manifests that snapshots of old writers name without a manifest list."""
    for snapshot in snapshots:
        for path in () if snapshot.get("manifest-list") else snapshot.get("manifests") or ():
            yield NeededFile(str(path), snapshot["snapshot-id"])


def _map_in_batches(
    pool: ThreadPoolExecutor, function: Callable[[Request], Result], requests: Sequence[Request]
) -> Iterator[tuple[Request, Result]]:
    """Yields each request with its result. Several at a time, because each is a round trip to an object store; in
    batches, because there may be very many."""
    for start in range(0, len(requests), limits.VERIFY_FILES_ASKED):
        batch = requests[start : start + limits.VERIFY_FILES_ASKED]
        yield from zip(batch, pool.map(function, batch), strict=True)
