"""The files of tables, read piece by piece by the threads of an upload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from icestream import errors, limits
from icestream.iceberg.location import is_inside, normalize

_PATH_CHARACTERS: Final = 1_000


class WarehouseFiles:
    """Reads files by their locations. Every read blocks."""

    def __init__(self, open_file: Callable[[str], Any], roots: Sequence[str] | None = None) -> None:
        """`open_file`: opens a location for pyarrow (readers/lazy_scanner.py). `roots`: out of which no file of this
        machine is read, for locations that a backup names; None: those of tables, which their catalog has judged."""
        self._open = open_file
        self._roots = None if roots is None else [normalize(root) for root in roots]

    def chunks(self, location: str) -> Iterator[bytes]:
        """Raises OSError, TableUnreadable for a file outside of the roots."""
        path = normalize(location)
        if path.startswith("file:") and not (self._roots is None or any(is_inside(path, root) for root in self._roots)):
            raise errors.TableUnreadable(
                f"the backup names {location[:_PATH_CHARACTERS]!r}, which is not in the warehouse",
                hint="lake.table_roots allows more places",
            )
        with self._open(location) as file:
            while chunk := file.read(limits.BACKUP_CHUNK_BYTES):
                yield bytes(chunk)
