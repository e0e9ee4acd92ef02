"""The options of the lake process, and how a broker passes them to its child. Imports nothing of the lake process."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from icestream import limits
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.topic_table_name import fixed_namespace
from icestream.readers.row_group_cache_options import RowGroupCacheOptions

if TYPE_CHECKING:
    from icestream.settings import Settings

# Keys of an object store and of another catalog are passed in the child's environment, which only its own account can
# read; every account can read its command line.
STORE_VARIABLE: Final = "_ICESTREAM_LAKE_STORE"
CATALOG_VARIABLE: Final = "_ICESTREAM_LAKE_CATALOG"
TOKEN_VARIABLE: Final = "_ICESTREAM_LAKE_NODE_TOKEN"
# Identifies the pipeline of this node. Not in Authorization, which carries the catalog's tokens.
NODE_TOKEN_HEADER: Final = "X-Icestream-Node"


@dataclass(frozen=True, slots=True)
class LakeOptions:
    socket: Path  # local socket of its broker
    host: str = "127.0.0.1"
    port: int = 8181  # 0: any free port
    is_child: bool = False  # ends with the process that started it, which holds its stdin open
    warehouse: str = ""  # of the embedded catalog; empty if the tables are in another catalog
    table_roots: tuple[str, ...] = ()  # locations of tables besides the warehouse
    token_file: Path | None = None  # bearer tokens of API and catalog
    is_sharing_keys: bool = False  # whether clients that request the keys of the store get them
    store: StoreOptions = field(default_factory=StoreOptions)  # access to a warehouse in an object store
    cache: RowGroupCacheOptions = field(default_factory=RowGroupCacheOptions)
    # The settings as a document, by which another catalog is opened; empty for the embedded one.
    elsewhere: Mapping[str, Any] = field(default_factory=dict, repr=False)
    log: Path | None = None  # directory of the broker's log
    namespace: str = ""  # of all topics' tables, if the settings fix one
    node_token: str = field(default="", repr=False)  # of this node's pipeline (http.py)
    connections_max: int = limits.API_CONNECTIONS_MAX

    @classmethod
    def of(cls, settings: Settings, socket: Path | None = None) -> LakeOptions:
        lake = settings.lake
        return cls(
            (socket or settings.local_socket).absolute(),
            settings.node.bind_host,
            settings.ports.lake,
            warehouse=settings.storage.iceberg_config.warehouse if settings.catalog_embedded else "",
            table_roots=lake.table_roots,
            token_file=lake.token_file.absolute() if lake.token_file is not None else None,
            is_sharing_keys=lake.share_keys,
            store=StoreOptions.of(settings.storage.iceberg_config.object_store),
            cache=RowGroupCacheOptions(lake.cache_enabled, lake.cache_bytes, lake.cache_ttl_ms),
            elsewhere={} if settings.catalog_embedded else _settings_document(settings),
            log=settings.wal.base_path.absolute(),
            namespace=".".join(fixed_namespace(settings) or ()),
        )

    @property
    def roots(self) -> Sequence[str]:
        """The locations of tables; empty for another catalog, whose tables may be anywhere."""
        return (self.warehouse, *self.table_roots) if self.warehouse else ()

    @property
    def is_local(self) -> bool:
        """Whether all tables are in directories of this machine."""
        roots = (self.warehouse, *self.table_roots)
        return all(root.startswith(("file:", "/")) for root in roots)

    def environment(self) -> Mapping[str, str]:
        """The variables that the broker adds to its environment for the child."""
        store = {} if self.is_local else {STORE_VARIABLE: json.dumps(dataclasses.asdict(self.store))}
        token = {TOKEN_VARIABLE: self.node_token} if self.node_token else {}
        return store | token | ({CATALOG_VARIABLE: json.dumps(self.elsewhere)} if self.elsewhere else {})

    def command(self, log_level: str, log_format: str) -> Sequence[str]:
        """The command by which the broker starts it. -P: files in the working directory must not shadow our modules."""
        return [
            sys.executable, "-P", "-m", "icestream.lake", "--parent", str(os.getpid()), "--socket", str(self.socket),
            "--host", self.host, "--port", str(self.port), "--log-level", log_level, "--log-format", log_format,
            "--warehouse", self.warehouse, *(part for root in self.table_roots for part in ("--table-root", root)),
            *(("--token-file", str(self.token_file)) if self.token_file is not None else ()),
            *(("--share-keys",) if self.is_sharing_keys else ()),
            *self.cache.arguments(),
            *(("--log", str(self.log)) if self.log is not None else ()),
            *(("--namespace", self.namespace) if self.namespace else ()),
        ]  # fmt: skip


def _settings_document(settings: Settings) -> Mapping[str, Any]:
    from icestream.settings.document import as_document

    return as_document(settings) | {"data_dir": str(settings.data_dir.absolute())}


def pop_store_options(environment: MutableMapping[str, str]) -> StoreOptions:
    """The store options that the broker passed. They are removed: processes that the child starts must not get them."""
    return StoreOptions(**json.loads(environment.pop(STORE_VARIABLE, "{}")))


def pop_foreign_settings(environment: MutableMapping[str, str]) -> Mapping[str, Any]:
    """The settings of another catalog that the broker passed; removes them for the same reason."""
    document: Mapping[str, Any] = json.loads(environment.pop(CATALOG_VARIABLE, "{}"))
    return document
