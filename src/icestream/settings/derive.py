"""Defaults that follow from other keys.

They are directories below `data_dir`, the two `warehouse` keys, the catalog's address, and whether there are a lake
process and a pipeline. They are filled into the plain mapping before it is validated, so that a finished tree has no
"unset" left in it and `config show` prints what really applies. A value of the wrong type is left for validation to
refuse: here it is treated as not set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

DATA_DIR_DEFAULT: Final = "icestream-data"
BIND_HOST_DEFAULT: Final = "127.0.0.1"
LAKE_PORT_DEFAULT: Final = 8181

_ICEBERG: Final = "storage.iceberg_config"
_IN_MEMORY: Final = ("memory", "InMemory")
_WILDCARDS: Final = ("0.0.0.0", "::")


def with_derived_defaults(explicit: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the mapping with every derived key that it does not set."""
    tree = _copy(explicit)
    data_dir = Path(_text(tree, "data_dir") or DATA_DIR_DEFAULT)
    _fill(tree, f"{_ICEBERG}.wal.base_path", str(data_dir / "wal"))
    _fill(tree, "meta_store.data_dir", str(data_dir / "raft"))
    _fill(tree, "lake.managed", _text(tree, "storage.type") not in _IN_MEMORY)
    _fill(tree, "pipeline.managed", _text(tree, "storage.type") not in _IN_MEMORY)
    _fill_catalog(tree)
    _fill_locations(tree, data_dir)
    return tree


def _fill_catalog(tree: dict[str, Any]) -> None:
    """Fills the type, address and region of the catalog."""
    # An address without a type names a server elsewhere: the embedded catalog is where nothing is named.
    _fill(tree, f"{_ICEBERG}.catalog.type", "rest" if _text(tree, f"{_ICEBERG}.catalog.uri") else "embedded")
    if _text(tree, f"{_ICEBERG}.catalog.type") == "embedded":
        _fill(tree, f"{_ICEBERG}.catalog.uri", _own_uri(tree))
    _fill(tree, f"{_ICEBERG}.catalog.region", _text(tree, f"{_ICEBERG}.object_store.region"))


def _fill_locations(tree: dict[str, Any], data_dir: Path) -> None:
    """Fills the directory of a local store and both `warehouse` keys; each follows from any other that is set."""
    store = _text(tree, f"{_ICEBERG}.object_store.type") or "local"
    warehouse = _text(tree, f"{_ICEBERG}.warehouse") or _text(tree, f"{_ICEBERG}.catalog.warehouse")
    if store == "local":
        _fill(tree, f"{_ICEBERG}.object_store.path", _directory_of(warehouse) or str(data_dir / "warehouse"))
    # Explicitly none: so it stays when a derived tree, which has a `warehouse`, is read again by a child process.
    is_none = (_at(tree, f"{_ICEBERG}.catalog") or {}).get("warehouse", "") is None
    is_set = warehouse is not None and not is_none
    warehouse = warehouse or _store_root(tree, store, data_dir)
    if is_set or _text(tree, f"{_ICEBERG}.catalog.type") != "rest":  # another server has a default of its own
        _fill(tree, f"{_ICEBERG}.catalog.warehouse", _text(tree, f"{_ICEBERG}.warehouse") or warehouse)
    _fill(tree, f"{_ICEBERG}.warehouse", warehouse)


def _directory_of(warehouse: str | None) -> str | None:
    """The directory of a location: `file:/a`, `file:///a` and `/a` are the same; None for another scheme."""
    path = (warehouse or "").removeprefix("file:")
    return "/" + path.lstrip("/") if path.startswith("/") else None


def _store_root(tree: dict[str, Any], store: str, data_dir: Path) -> str:
    """The location of an object store's root: the warehouse where none is set."""
    # Placeholders for a bucket or account that is not set: validation refuses the tree, and names the key.
    bucket = _text(tree, f"{_ICEBERG}.object_store.bucket") or "bucket"
    if store in ("s3", "gcs"):
        return f"{'s3' if store == 's3' else 'gs'}://{bucket}/"
    if store == "azure":
        account = _text(tree, f"{_ICEBERG}.object_store.account_name") or "account"
        return f"abfss://{bucket}@{account}.dfs.core.windows.net/"
    if store == "memory":
        return "memory://warehouse/"
    path = _text(tree, f"{_ICEBERG}.object_store.path") or data_dir / "warehouse"
    # Without `..`, but with symbolic links: a link may be moved to another disk, the tables keep its name.
    return f"file:{os.path.abspath(path)}"  # noqa: PTH100


def _own_uri(tree: dict[str, Any]) -> str:
    """The address of the embedded catalog, in this node's own lake process."""
    port = _at(tree, "ports.lake")
    return lake_uri(
        _text(tree, "node.bind_host") or BIND_HOST_DEFAULT,
        port if isinstance(port, int) else LAKE_PORT_DEFAULT,
        is_tls=_has_lake_tls(tree),
    )


def _has_lake_tls(tree: dict[str, Any]) -> bool:
    has_certificate = bool(_text(tree, "tls.certificate") or _text(tree, "tls.lake.certificate"))
    return has_certificate and _at(tree, "tls.lake.enable") is not False


def lake_uri(bind_host: str, port: int, *, is_tls: bool = False) -> str:
    """The address of a node's lake process on its own machine."""
    host = BIND_HOST_DEFAULT if bind_host in _WILDCARDS else bind_host
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _copy(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, dict) else value for name, value in section.items()}


def _at(tree: dict[str, Any], path: str) -> Any:
    """The value at a dotted path; None if it is not set."""
    value: Any = tree
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(tree: dict[str, Any], path: str) -> str | None:
    """The text at a dotted path; None if it is not set, empty, or no text."""
    value = _at(tree, path)
    return str(value) if isinstance(value, str | Path) and str(value) else None


def _fill(tree: dict[str, Any], path: str, value: object) -> None:
    """Sets the value at a dotted path unless there is one."""
    *sections, name = path.split(".")
    for section in sections:
        child = tree.setdefault(section, {})
        if not isinstance(child, dict):
            return  # not a section: validation says so, or it is a finished one
        tree = child
    if tree.get(name) is None:
        tree[name] = value
