"""What clients of the catalog are told about the files of its tables, where these lie in an object store.

    /v1/config   `defaults`: where the store is and how it is asked. What a client sets itself counts more
    a table      `config` and `storage-credentials`: the keys of the store, if the node hands them out
                 (`lake.share_keys`) and the client asks for them (X-Iceberg-Access-Delegation: vended-credentials).
                 Older clients read the first, newer ones the second, which also says for which locations they are
    …/credentials   the same `storage-credentials`, for a client that has the table already; that request asks for them

Keys that are handed out are those of the settings, as they are: they open what they open for the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from icestream.catalogs import store_options
from icestream.catalogs.store_options import StoreOptions

HEADER: Final = b"x-iceberg-access-delegation"
_KEYS: Final = "vended-credentials"
_NOTHING: Final = b"{}"
_NONE: Final = b"[]"


class TableAccess(NamedTuple):
    """What the answer about a table tells one client about its files, as JSON."""

    config: bytes = _NOTHING
    storage_credentials: bytes = _NONE


class Access(NamedTuple):
    defaults: dict[str, str]
    keys: bytes  # as JSON, once for all answers
    credentials: bytes = _NONE  # the same in the form of `storage-credentials`

    @classmethod
    def of(cls, store: StoreOptions, is_sharing_keys: bool, roots: Sequence[str] = ()) -> Access:
        """`roots`: locations that the keys open: the warehouse, and where else tables may lie."""
        defaults = store_options.public_file_io(store)
        keys = store_options.secret_file_io(store)
        if not is_sharing_keys or not keys:
            return cls(defaults, orjson.dumps(defaults) if is_sharing_keys else _NOTHING)
        config = defaults | keys
        credentials = [{"prefix": f"{root.rstrip('/')}/", "config": config} for root in roots]
        return cls(defaults, orjson.dumps(config), orjson.dumps(credentials))

    def table(self, delegation: str | None) -> TableAccess:
        """For a client that sent this header."""
        wanted = [name.strip().lower() for name in (delegation or "").split(",")]
        return TableAccess(self.keys, self.credentials) if _KEYS in wanted else NO_TABLE_ACCESS


NO_ACCESS: Final = Access({}, _NOTHING)
NO_TABLE_ACCESS: Final = TableAccess()
