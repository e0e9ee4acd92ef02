"""The files of tables, read piece by piece by the threads of an upload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from icestream import limits


class WarehouseFiles:
    """Reads files by their locations. Every read blocks."""

    def __init__(self, open_file: Callable[[str], Any]) -> None:
        """`open_file`: opens a location for pyarrow (readers/lazy_scanner.py)."""
        self._open = open_file

    def chunks(self, location: str) -> Iterator[bytes]:
        """Raises OSError."""
        with self._open(location) as file:
            while chunk := file.read(limits.BACKUP_CHUNK_BYTES):
                yield bytes(chunk)
