"""Checks that all nodes of a cluster see the same warehouse, so that all find every table (hazard 27). Pure.

    key /cluster/warehouse    the mark of the directory in which all tables lie, and the name of the node that wrote it

A node whose warehouse is a directory reports its path and the mark in it (processes/node/warehouse_mark.py) when it
joins and at each start. A different mark is a different directory. The same mark at another path is refused too,
because locations of tables are paths. Object stores are not compared.

The leader writes the first mark. While it is the only node, it may switch to another warehouse.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors
from icestream.cluster.members import NodeRecord

WAREHOUSE: Final = "/cluster/warehouse"
MARK_NAME: Final = ".icestream-warehouse"
_HINT: Final = (
    "set `storage.iceberg_config.warehouse` on all nodes to one directory that all of them see under the same path, or "
    "use an object store (`storage.iceberg_config.object_store`); a warehouse that is moved takes its file "
    f"{MARK_NAME} along"
)


class WarehouseRecord(msgspec.Struct, frozen=True):
    """The mark of the cluster's warehouse, and the node that wrote it."""

    mark: str
    node: str


def encode_warehouse(record: WarehouseRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_warehouse(value: bytes) -> WarehouseRecord:
    try:
        return msgspec.json.decode(value, type=WarehouseRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.MetadataDamaged(f"the record of the warehouse cannot be decoded: {error}") from None


def first_mark(leader: NodeRecord, joining: NodeRecord) -> WarehouseRecord:
    """The first mark of a cluster: the leader's, if it has one, because its tables exist already."""
    chosen = leader if leader.warehouse_mark else joining
    return WarehouseRecord(chosen.warehouse_mark, chosen.name)


def check_mark(node: NodeRecord, record: WarehouseRecord) -> None:
    """Raises ConfigurationError for a node that sees another directory than the cluster."""
    if node.warehouse_mark and node.warehouse_mark != record.mark:
        raise errors.ConfigurationError(
            f"node {node.name} does not see the warehouse of this cluster: {node.warehouse} is not the directory that "
            f"{record.node} uses",
            hint=_HINT,
        )


def check_path(node: NodeRecord, leader: NodeRecord) -> None:
    """Raises ConfigurationError for a node that has the warehouse at another path: locations of tables are paths."""
    if node.warehouse and leader.warehouse and node.warehouse != leader.warehouse:
        raise errors.ConfigurationError(
            f"node {node.name} has the warehouse of this cluster at another path: {node.warehouse}, but {leader.name} "
            f"has it at {leader.warehouse}, and tables are found by their paths",
            hint=_HINT,
        )
