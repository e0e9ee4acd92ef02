"""Builds the scanner and verifiers of topic tables. The Parquet reader is imported with the first request: most lake
processes never scan."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream import limits
from icestream.catalog.operations.file_rules import FileRule, refused_file
from icestream.catalogs.object_files import SchemeFiles
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import normalize
from icestream.iceberg.symlink_guard import SymlinkGuard, open_regular
from icestream.iceberg.table_metadata import TableMetadata
from icestream.model.scan_messages import ScanRequest, ScanResponse
from icestream.readers.row_group_cache import NoRowGroupCache, open_row_group_cache
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.stored_files import OpenFile, StoredFiles
from icestream.readers.table_views import TableView, TableViews
from icestream.readers.verify.verify_report import ShardLogState
from icestream.runtime.tasks import ThreadOffload

if TYPE_CHECKING:
    from icestream.readers.scanner import Scanner
    from icestream.readers.verify.verifier import Verifier


class LazyScanner:
    """The scanner of a lake process, created with the first request."""

    def __init__(
        self,
        new_tables: Callable[[], TableViews],
        files: TableFiles,
        cache: RowGroupCacheOptions,
        roots: Sequence[str] = (),
        rule_of: Callable[[TableMetadata], Awaitable[FileRule | None]] | None = None,
    ) -> None:
        """`new_tables` creates table views with an empty cache: `verify` must not rely on what was read before.
        `roots`: locations of tables, out of which no symbolic link leads. `rule_of`: which files of a table are read;
        None: all."""
        self.new_tables = new_tables
        self.tables = new_tables()
        self._open = file_opener(files, roots)
        self._rule_of = rule_of
        self._cache = cache
        self._offload = ThreadOffload("scan", limits.SCAN_THREADS)
        self._scanner: Scanner | None = None

    async def answer(self, request: ScanRequest) -> ScanResponse:
        if self._scanner is None:
            # In a thread: importing the Parquet reader takes long enough to stall the loop.
            await self._offload.run(_import_scanner)
            self._scanner = self._create_scanner()
        return await self._scanner.answer(request)

    def _create_scanner(self) -> Scanner:
        if self._scanner is not None:  # another request created it while the modules were imported
            return self._scanner
        from icestream.readers.file_reader import FileReader
        from icestream.readers.scanner import Scanner

        return Scanner(self.tables, FileReader(self._open, open_row_group_cache(self._cache)), self._offload)

    async def rule_of(self, view: TableView) -> FileRule | None:
        """Returns which files of a table are read; None: all."""
        return None if self._rule_of is None else await self._rule_of(view.table)

    def verifier(self, view: TableView, log: Mapping[int, ShardLogState], rule: FileRule | None = None) -> Verifier:
        """Returns a verifier that shares no cache with readers. Blocks: the Parquet reader may have to be imported."""
        from icestream.readers.file_reader import FileReader
        from icestream.readers.verify.verifier import Verifier

        # It also reads the manifests of snapshots that are not current, which no view has looked at.
        open_file = self._open if rule is None else _refusing(rule, self._open)
        return Verifier(view, FileReader(open_file, NoRowGroupCache()), StoredFiles(open_file), log)

    def close(self) -> None:
        self._offload.close()


def _refusing(rule: FileRule, open_file: OpenFile) -> OpenFile:
    def open_own(location: str) -> Any:
        if rule.refuses(location):
            raise refused_file(location)
        return open_file(location)

    return open_own


def _import_scanner() -> None:
    import icestream.readers.scanner  # noqa: F401


def file_opener(files: TableFiles, roots: Sequence[str] = ()) -> OpenFile:
    """Returns a function that opens a location for pyarrow. It raises FileNotFoundError, and OSError for what is no
    regular file or lies behind a symbolic link out of the roots (hazard 109)."""
    guard = SymlinkGuard(roots)

    def open_file(location: str) -> Any:
        import pyarrow as pa  # type: ignore[import-untyped]

        canonical = normalize(location)
        if canonical.startswith("file:"):
            fd = open_regular(Path(canonical.removeprefix("file:")), guard)
            try:
                # Opened again by its descriptor: the name may lead elsewhere by now.
                return pa.OSFile(f"/proc/self/fd/{fd}", "rb")
            finally:
                os.close(fd)
        assert isinstance(files, SchemeFiles)  # only it has anything but local files
        return pa.PythonFile(files.reader(canonical), "r")

    return open_file
