"""What clients of the catalog are told about the files of its tables, where these lie in an object store.

    /v1/config   `defaults`: where the store is and how it is asked. What a client sets itself counts more
    a table      `config`: the keys of the store, if the node hands them out (`lake.share_keys`) and the client asks for
                 them (X-Iceberg-Access-Delegation: vended-credentials)

Keys that are handed out are those of the settings, as they are: they open what they open for the broker.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from icestream.warehouse import store_options
from icestream.warehouse.store_options import StoreOptions

HEADER: Final = b"x-iceberg-access-delegation"
_KEYS: Final = "vended-credentials"
_NOTHING: Final = b"{}"


class Access(NamedTuple):
    defaults: dict[str, str]
    keys: bytes  # as JSON, once for all answers

    @classmethod
    def of(cls, store: StoreOptions, is_sharing_keys: bool) -> Access:
        defaults = store_options.told(store)
        return cls(defaults, orjson.dumps(defaults | store_options.keys(store)) if is_sharing_keys else _NOTHING)

    def config(self, delegation: str | None) -> bytes:
        """Of a table, for a client that sent this header."""
        asked = [one.strip().lower() for one in (delegation or "").split(",")]
        return self.keys if _KEYS in asked else _NOTHING


NO_ACCESS: Final = Access({}, _NOTHING)
