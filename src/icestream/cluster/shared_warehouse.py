"""Checks that all nodes of a cluster see the same warehouse, so that all find every table (hazard 27). Pure.

    key /cluster/warehouse    the mark of the directory in which all tables lie, and the name of the node that wrote it

A node whose warehouse is a directory reports its path and the mark in it (server/warehouse_mark.py) when it joins and
at each start. A different mark is a different directory. The same mark at another path is refused too, because
locations of tables are paths. Object stores are not compared.

The leader writes the first mark. While it is the only node, it may switch to another warehouse.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors
from icestream.cluster.members import NodeRecord

WAREHOUSE: Final = "/cluster/warehouse"
MARK_NAME: Final = ".icestream-warehouse"
_WAYS: Final = (
    "set `storage.iceberg_config.warehouse` on all nodes to one directory that all of them see under the same path, or "
    "use an object store (`storage.iceberg_config.object_store`); a warehouse that is moved takes its file "
    f"{MARK_NAME} along"
)


class WarehouseRecord(msgspec.Struct, frozen=True):
    mark: str
    node: str


def encode_warehouse(record: WarehouseRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_warehouse(value: bytes) -> WarehouseRecord:
    try:
        return msgspec.json.decode(value, type=WarehouseRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.MetadataDamaged(f"the record of the warehouse cannot be decoded: {error}") from None


def first_of(leader: NodeRecord, joining: NodeRecord) -> WarehouseRecord:
    """The first mark of a cluster: the leader's, if it has one, because its tables exist already."""
    chosen = leader if leader.warehouse_mark else joining
    return WarehouseRecord(chosen.warehouse_mark, chosen.name)


def check_mark(own: NodeRecord, record: WarehouseRecord) -> None:
    """Raises ConfigurationError for a node that sees another directory than the cluster."""
    if own.warehouse_mark and own.warehouse_mark != record.mark:
        raise errors.ConfigurationError(
            f"{own.name} does not see the warehouse of this cluster: what it finds at {own.warehouse} is another "
            f"directory than that of {record.node}",
            hint=_WAYS,
        )


def check_path(own: NodeRecord, leader: NodeRecord) -> None:
    if own.warehouse and leader.warehouse and own.warehouse != leader.warehouse:
        raise errors.ConfigurationError(
            f"{own.name} has the warehouse of this cluster under another path: {own.warehouse}; {leader.name} has "
            f"{leader.warehouse}, and tables are found by their paths",
            hint=_WAYS,
        )
