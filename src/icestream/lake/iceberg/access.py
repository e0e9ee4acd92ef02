"""How clients of the catalog get access to table files in an object store.

    /v1/config   `defaults`: endpoint and options of the store; a client's own settings override them
    a table      `config` and `storage-credentials`: the keys of the store, if the node shares them (`lake.share_keys`)
                 and the client requests them (X-Iceberg-Access-Delegation: vended-credentials). Older clients read
                 `config`, newer ones `storage-credentials`, which also names the locations that the keys apply to
    …/credentials   the same `storage-credentials` for a client that has loaded the table before; no header is needed

The keys are those of the settings, unrestricted: clients get the same access as the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from icestream.catalogs import store_options
from icestream.catalogs.store_options import StoreOptions

HEADER: Final = b"x-iceberg-access-delegation"
_VENDED_CREDENTIALS: Final = "vended-credentials"
_EMPTY_OBJECT: Final = b"{}"
_EMPTY_LIST: Final = b"[]"


class TableAccess(NamedTuple):
    """The access to a table's files that a response grants to one client, as JSON."""

    config: bytes = _EMPTY_OBJECT
    storage_credentials: bytes = _EMPTY_LIST


class Access(NamedTuple):
    defaults: dict[str, str]
    keys: bytes  # JSON, encoded once for all responses
    credentials: bytes = _EMPTY_LIST  # the same as `storage-credentials`

    @classmethod
    def of(cls, store: StoreOptions, is_sharing_keys: bool, roots: Sequence[str] = ()) -> Access:
        """`roots`: locations that the keys apply to, which are the warehouse and other roots of tables."""
        defaults = store_options.public_file_io(store)
        keys = store_options.secret_file_io(store)
        if not is_sharing_keys or not keys:
            return cls(defaults, orjson.dumps(defaults) if is_sharing_keys else _EMPTY_OBJECT)
        config = defaults | keys
        credentials = [{"prefix": f"{root.rstrip('/')}/", "config": config} for root in roots]
        return cls(defaults, orjson.dumps(config), orjson.dumps(credentials))

    def table(self, delegation: str | None) -> TableAccess:
        """The access for a client that sent this value of X-Iceberg-Access-Delegation."""
        mechanisms = [name.strip().lower() for name in (delegation or "").split(",")]
        return TableAccess(self.keys, self.credentials) if _VENDED_CREDENTIALS in mechanisms else NO_TABLE_ACCESS


NO_ACCESS: Final = Access({}, _EMPTY_OBJECT)
NO_TABLE_ACCESS: Final = TableAccess()
