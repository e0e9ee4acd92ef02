"""Size and bytes of a table's files, without interpreting them. Everything here blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icestream import errors, limits

OpenFile = Callable[[str], Any]  # opens a location for pyarrow; raises FileNotFoundError


class StoredFiles:
    """Looks at files of a table without decoding them."""

    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file

    def size(self, location: str) -> int | None:
        """Returns the size in bytes; None if the file does not exist. Raises TableUnreadable."""
        try:
            with self._open(location) as file:
                return int(file.size())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(location, error) from None

    def read(self, location: str) -> bytes | None:
        """Returns a whole metadata file; None if it does not exist. Raises MetadataFileDamaged, TableUnreadable."""
        try:
            with self._open(location) as file:
                if file.size() > limits.CATALOG_DOCUMENT_BYTES_MAX:
                    raise errors.MetadataFileDamaged(
                        f"{location} has {file.size()} bytes, metadata files have at most "
                        f"{limits.CATALOG_DOCUMENT_BYTES_MAX}"
                    )
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(location, error) from None


def _unreadable(location: str, error: OSError) -> errors.TableUnreadable:
    return errors.TableUnreadable(
        f"this table cannot be read: {location}: {error}", hint="check the disk and the read permissions of the file"
    )
