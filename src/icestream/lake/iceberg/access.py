"""How clients of the catalog get access to table files in an object store.

    /v1/config   `defaults`: endpoint and options of the store; a client's own settings override them
    a table      `config` and `storage-credentials`: the keys of the store, if the node shares them (`lake.share_keys`)
                 and the client requests them (X-Iceberg-Access-Delegation: vended-credentials). Older clients read
                 `config`, newer ones `storage-credentials`, which also names the locations that the keys apply to
    …/credentials   the same `storage-credentials` for a client that has loaded the table before; no header is needed

The keys are those of the settings, unrestricted: clients get the same access as the broker. That is for brokers without
accounts; with accounts a client gets access to one table (delegated_access.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from icestream.catalogs import store_options
from icestream.catalogs.store_options import StoreOptions

if TYPE_CHECKING:
    from icestream.lake.iceberg.delegated_access import DelegatedAccess

HEADER: Final = b"x-iceberg-access-delegation"
VENDED_CREDENTIALS: Final = "vended-credentials"
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
    delegated: DelegatedAccess | None = None  # with accounts; None: the store has no such access

    @classmethod
    def of(
        cls,
        store: StoreOptions,
        is_sharing_keys: bool,
        roots: Sequence[str] = (),
        delegated: DelegatedAccess | None = None,
    ) -> Access:
        """`roots`: locations that the keys apply to, which are the warehouse and other roots of tables."""
        defaults = store_options.public_file_io(store)
        keys = store_options.secret_file_io(store)
        if not is_sharing_keys or not keys:
            keys_config = orjson.dumps(defaults) if is_sharing_keys else _EMPTY_OBJECT
            return cls(defaults, keys_config, delegated=delegated)
        config = defaults | keys
        credentials = [{"prefix": f"{root.rstrip('/')}/", "config": config} for root in roots]
        return cls(defaults, orjson.dumps(config), orjson.dumps(credentials), delegated)

    def table(self, delegation: str | None) -> TableAccess:
        """The access for a client that sent this value of X-Iceberg-Access-Delegation."""
        is_asked = VENDED_CREDENTIALS in mechanisms(delegation)
        return TableAccess(self.keys, self.credentials) if is_asked else NO_TABLE_ACCESS


def mechanisms(delegation: str | None) -> list[str]:
    """Returns the mechanisms that a client accepts, by its header X-Iceberg-Access-Delegation."""
    return [name.strip().lower() for name in (delegation or "").split(",")]


NO_ACCESS: Final = Access({}, _EMPTY_OBJECT)
NO_TABLE_ACCESS: Final = TableAccess()
