"""What the lake process is told at its start. Loads nothing of it: a broker only needs to know how to start one."""

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

# Keys of an object store and of another catalog go to the child in its environment, which only its own account can
# read: never in its command.
STORE_VARIABLE: Final = "_ICESTREAM_LAKE_STORE"
CATALOG_VARIABLE: Final = "_ICESTREAM_LAKE_CATALOG"
TOKEN_VARIABLE: Final = "_ICESTREAM_LAKE_NODE_TOKEN"
# The pipeline proves with it that it belongs to this node. Not in Authorization: that is for the catalog's tokens.
NODE_TOKEN_HEADER: Final = "X-Icestream-Node"


@dataclass(frozen=True, slots=True)
class LakeOptions:
    socket: Path  # of the broker that it belongs to
    host: str = "127.0.0.1"
    port: int = 8181  # 0: any that is free
    is_child: bool = False  # it ends with the process that started it, which holds its stdin
    warehouse: str = ""  # of the catalog that is served; none: the tables are in another catalog
    table_roots: tuple[str, ...] = ()  # where tables may lie besides the warehouse
    token_file: Path | None = None  # with the bearer tokens of the catalog
    is_sharing_keys: bool = False  # clients that ask for the keys of the store get them
    store: StoreOptions = field(default_factory=StoreOptions)  # how the warehouse is reached, where it is no directory
    cache: RowGroupCacheOptions = field(default_factory=RowGroupCacheOptions)
    # The settings as a document where the tables are in another catalog, which is opened by them; else nothing.
    elsewhere: Mapping[str, Any] = field(default_factory=dict, repr=False)
    log: Path | None = None  # the folder of the broker's log
    namespace: str = ""  # the one of all tables of topics, if there is one
    node_token: str = field(default="", repr=False)  # of the pipeline of this node (http.py)
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
            elsewhere={} if settings.catalog_embedded else _told(settings),
            log=settings.wal.base_path.absolute(),
            namespace=".".join(fixed_namespace(settings) or ()),
        )

    @property
    def roots(self) -> Sequence[str]:
        """Where tables may lie; nothing is said of those in another catalog."""
        return (self.warehouse, *self.table_roots) if self.warehouse else ()

    @property
    def is_local(self) -> bool:
        """Whether all tables lie in directories of this machine."""
        roots = (self.warehouse, *self.table_roots)
        return all(root.startswith(("file:", "/")) for root in roots)

    def environment(self) -> Mapping[str, str]:
        """What a broker adds to its own for the child."""
        store = {} if self.is_local else {STORE_VARIABLE: json.dumps(dataclasses.asdict(self.store))}
        token = {TOKEN_VARIABLE: self.node_token} if self.node_token else {}
        return store | token | ({CATALOG_VARIABLE: json.dumps(self.elsewhere)} if self.elsewhere else {})

    def command(self, log_level: str, log_format: str) -> Sequence[str]:
        """How a broker starts it. -P: a file in the working directory must not pass for one of our modules."""
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


def _told(settings: Settings) -> Mapping[str, Any]:
    from icestream.settings.document import as_document

    return as_document(settings) | {"data_dir": str(settings.data_dir.absolute())}


def store_from(environment: MutableMapping[str, str]) -> StoreOptions:
    """In the child. It is taken out: nobody whom the child starts shall have it."""
    return StoreOptions(**json.loads(environment.pop(STORE_VARIABLE, "{}")))


def elsewhere_from(environment: MutableMapping[str, str]) -> Mapping[str, Any]:
    """In the child, likewise."""
    found: Mapping[str, Any] = json.loads(environment.pop(CATALOG_VARIABLE, "{}"))
    return found
