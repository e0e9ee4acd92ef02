"""Puts the readers of tables together. What reads Parquet is loaded with the first question: most starts of a lake
process see none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from icestream import limits
from icestream.catalogs.object_files import SchemeFiles
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import normalize
from icestream.model.scan_messages import ScanRequest, ScanResponse
from icestream.readers.row_group_cache import NoRowGroupCache, open_row_group_cache
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.stored_files import OpenFile, StoredFiles
from icestream.readers.table_view import TableView
from icestream.readers.table_views import TableViews
from icestream.readers.verify.verify_report import ShardLogState
from icestream.runtime.tasks import ThreadOffload

if TYPE_CHECKING:
    from icestream.readers.scanner import Scanner
    from icestream.readers.verify.verifier import Verifier


class LazyScanner:
    def __init__(self, new_tables: Callable[[], TableViews], files: TableFiles, cache: RowGroupCacheOptions) -> None:
        """`new_tables`: such that know nothing yet: a proof does not rely on what was read before."""
        self.new_tables = new_tables
        self.tables = new_tables()
        self._open = file_opener(files)
        self._cache = cache
        self._offload = ThreadOffload("scan", limits.SCAN_THREADS)
        self._scanner: Scanner | None = None

    async def answer(self, asked: ScanRequest) -> ScanResponse:
        if self._scanner is None:
            await self._offload.run(_load)
            self._scanner = self._scanner_now()
        return await self._scanner.answer(asked)

    def _scanner_now(self) -> Scanner:
        if self._scanner is not None:  # somebody else was faster
            return self._scanner
        from icestream.readers.file_reader import FileReader
        from icestream.readers.scanner import Scanner

        return Scanner(self.tables, FileReader(self._open, open_row_group_cache(self._cache)), self._offload)

    def verifier(self, view: TableView, log: Mapping[int, ShardLogState]) -> Verifier:
        """Blocks: Parquet may have to be loaded. Nothing of what readers have read is believed."""
        from icestream.readers.file_reader import FileReader
        from icestream.readers.verify.verifier import Verifier

        return Verifier(view, FileReader(self._open, NoRowGroupCache()), StoredFiles(self._open), log)

    def close(self) -> None:
        self._offload.close()


def _load() -> None:
    import icestream.readers.scanner  # noqa: F401


def file_opener(files: TableFiles) -> OpenFile:
    """How pyarrow opens a data file. Raises FileNotFoundError."""

    def open_file(location: str) -> Any:
        import pyarrow as pa  # type: ignore[import-untyped]

        place = normalize(location)
        if place.startswith("file:"):
            return pa.OSFile(place.removeprefix("file:"), "rb")
        assert isinstance(files, SchemeFiles)  # only it has anything but local files
        return pa.PythonFile(files.reader(place), "r")

    return open_file
