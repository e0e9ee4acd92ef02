"""Files that main does not need, and another snapshot does: of a tag, of a branch, of one that has not expired yet.
Time travel and a rollback need them, so each has to be there.

Which files these are stands in the manifests of all snapshots; each manifest is read once, and those of main not again.
Their rows are not looked at. It blocks.
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
from icestream.readers.table_view import TableView
from icestream.readers.verify.progress_count import ProgressCount
from icestream.readers.verify.verify_report import Finding, VerifyEvent, Weight, failure

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
_UNREAD: Final = (errors.MetadataFileMissing, errors.MetadataFileDamaged, errors.TableUnreadable)


class NeededFile(NamedTuple):
    path: str
    snapshot_id: int  # one that needs it
    size_bytes: int = 0


class HistoryCheck:
    def __init__(self, view: TableView, stored: StoredFiles, progress: ProgressCount) -> None:
        self._view = view
        self._stored = stored
        self._progress = progress
        self._names: dict[int, str] = {}
        for name, one in view.table.references.items():
            self._names.setdefault(int(one["snapshot-id"]), f" ({one.get('type', 'branch')} {name})")

    def told(self) -> Iterator[VerifyEvent]:
        if all(one["snapshot-id"] == self._view.table.current_snapshot_id for one in self._view.table.snapshots):
            return
        pool = ThreadPoolExecutor(limits.VERIFY_FILES_AT_ONCE, "verify")
        try:
            manifests: dict[str, NeededFile] = {}
            yield from self._manifests(pool, manifests)
            files: dict[str, NeededFile] = {}
            yield from self._files(pool, [*manifests.values()], files)
            yield self._progress.more(len(files))
            for one, wrong in _each(pool, self._wrong_with, [*files.values()]):
                if wrong:
                    yield failure("files", f"{wrong}: {self._words(one)} needs it")
                yield self._progress.further(1)
        finally:
            pool.shutdown(cancel_futures=True)

    def _manifests(self, pool: ThreadPoolExecutor, found: dict[str, NeededFile]) -> Iterator[VerifyEvent]:
        """Those that main does not have."""
        main = self._view.table.current_snapshot_id
        named = sorted(self._view.table.snapshots, key=lambda one: one["snapshot-id"] not in self._names)
        lists = [NeededFile(str(one["manifest-list"]), one["snapshot-id"]) for one in named if one.get("manifest-list")]
        of_main: set[str] = set()
        yield self._progress.more(len(lists))
        for one in _inline(named):
            found.setdefault(one.path, one)
        for one, (paths, wrong) in _each(pool, self._listed, lists):
            if wrong:
                yield failure("files", f"{wrong}: {self._words(one)} needs it")
            elif one.snapshot_id == main:
                of_main.update(paths)
            for path in paths:
                found.setdefault(path, NeededFile(path, one.snapshot_id))
            yield self._progress.further(1)
        for path in of_main:
            found.pop(path, None)

    def _files(
        self, pool: ThreadPoolExecutor, manifests: Sequence[NeededFile], found: dict[str, NeededFile]
    ) -> Iterator[VerifyEvent]:
        named = self._view.files
        of_main = {file.path for file in named.data} | {file.path for file in named.deletes}
        left_out = 0
        yield self._progress.more(len(manifests))
        for one, (files, wrong) in _each(pool, self._named, manifests):
            if wrong:
                yield failure("files", f"{wrong}: {self._words(one)} needs it")
            for file in files:
                if file.path in of_main or file.path in found:
                    continue
                if len(found) < limits.VERIFY_OTHER_FILES_MAX:
                    found[file.path] = file
                else:
                    left_out += 1
            yield self._progress.further(1)
        if left_out:
            text = f"only {len(found)} of the files that older snapshots need were looked for, and {left_out} not"
            yield Finding("files", Weight.BOUNDS_ONLY, text)

    def _words(self, one: NeededFile) -> str:
        return f"snapshot {one.snapshot_id}{self._names.get(one.snapshot_id, '')}"

    # --- one file; by several threads ---

    def _listed(self, one: NeededFile) -> tuple[list[str], str]:
        try:
            return [manifest.path for manifest in decode_manifest_list(one.path, self._read(one.path))], ""
        except _UNREAD as error:
            return [], error.message

    def _named(self, one: NeededFile) -> tuple[list[NeededFile], str]:
        try:
            data = self._read(one.path)
            files = decode_entries(one.path, data, lambda entries: files_of(entries, 0, {}))
            return [NeededFile(file.path, one.snapshot_id, file.size_bytes) for file in files], ""
        except _UNREAD as error:
            return [], error.message

    def _read(self, path: str) -> bytes:
        data = self._stored.read(path)
        if data is None:
            raise errors.MetadataFileMissing(f"{path} is not there")
        return data

    def _wrong_with(self, one: NeededFile) -> str:
        try:
            size = self._stored.size(one.path)
        except errors.TableUnreadable as error:
            return error.message
        if size is None:
            return f"{one.path} is not there"
        return "" if size == one.size_bytes else f"{one.path} has {size} bytes, and its manifest says {one.size_bytes}"


def _inline(snapshots: Sequence[Object]) -> Iterator[NeededFile]:
    """Manifests that a snapshot of an old writer names by itself."""
    for one in snapshots:
        for path in () if one.get("manifest-list") else one.get("manifests") or ():
            yield NeededFile(str(path), one["snapshot-id"])


def _each(
    pool: ThreadPoolExecutor, answer: Callable[[Asked], Answer], asked: Sequence[Asked]
) -> Iterator[tuple[Asked, Answer]]:
    """Several at a time: in an object store each is a wait. Not all at once: there may be very many."""
    for at in range(0, len(asked), limits.VERIFY_FILES_ASKED):
        some = asked[at : at + limits.VERIFY_FILES_ASKED]
        yield from zip(some, pool.map(answer, some), strict=True)
