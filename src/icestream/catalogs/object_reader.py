"""An object as a file object, for libraries that read ranges by themselves. Every read blocks.

Each range is one request, within the store's own timeout, and not retried: a reader of a table resumes from its last
position.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from icestream import errors

if TYPE_CHECKING:
    from obstore.store import ObjectStore

TranslateError = Callable[[str, Exception], errors.IcestreamError]


class ObjectReader(io.RawIOBase):
    """A file object over one object. Its size is read once, when it is opened."""

    def __init__(self, store: ObjectStore, name: str, translate_error: TranslateError) -> None:
        """`translate_error(operation, error)`: returns our error for one of the store. Raises FileNotFoundError."""
        import obstore

        super().__init__()
        self._store = store
        self._name = name
        self._translate_error = translate_error
        self._position = 0
        try:
            self.size_bytes = int(obstore.head(store, name)["size"])
        except FileNotFoundError:
            raise
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            raise translate_error(f"find {name}", error) from None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        import obstore

        # Libraries ask for bytes beyond the end, and object stores refuse such a range.
        available = max(self.size_bytes - self._position, 0)
        length = available if size < 0 else min(size, available)
        if not length:
            return b""
        try:
            data = bytes(obstore.get_range(self._store, self._name, start=self._position, length=length))
        except FileNotFoundError:
            raise
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            raise self._translate_error(f"read {self._name}", error) from None
        self._position += len(data)
        return data
