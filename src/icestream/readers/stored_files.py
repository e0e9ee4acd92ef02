"""Files of a table as they lie there, without a look at what they mean. Everything here blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icestream import errors, limits

OpenFile = Callable[[str], Any]  # a location, to something that pyarrow reads. Raises FileNotFoundError


class StoredFiles:
    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file

    def size(self, location: str) -> int | None:
        """In bytes; None: it is not there. Raises TableUnreadable."""
        try:
            with self._open(location) as found:
                return int(found.size())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(location, error) from None

    def read(self, location: str) -> bytes | None:
        """All of a metadata file; None: it is not there. Raises MetadataFileDamaged, TableUnreadable."""
        try:
            with self._open(location) as found:
                if found.size() > limits.CATALOG_DOCUMENT_BYTES_MAX:
                    raise errors.MetadataFileDamaged(f"{location} has {found.size()} bytes: it is no metadata file")
                return bytes(found.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(location, error) from None


def _unreadable(location: str, error: OSError) -> errors.TableUnreadable:
    return errors.TableUnreadable(
        f"this table cannot be read: {location}: {error}", hint="look at its disk and who may read there"
    )
