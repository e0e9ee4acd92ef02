"""One warehouse for all nodes, proved and not believed: a table that one node makes must be there on the others (hazard
27). Pure.

    key /cluster/warehouse    the mark of the directory in which all tables lie, and the name of the node that wrote it

A node whose warehouse is a directory says where it is, and what mark it found there (server/warehouse_mark.py), before
it is let into the cluster and at each start. Another mark is another directory. The same mark at another path is of no
use either: locations of tables are paths. Object stores need no proof, and nodes with one are not compared.

The leader writes the first mark. As long as it has nobody with it, it may begin again with another warehouse.
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
        raise errors.MetadataDamaged(f"the record of the warehouse does not add up: {error}") from None


def first_of(leader: NodeRecord, joining: NodeRecord) -> WarehouseRecord:
    """The leader's own, where it has one: it does not turn out that it is the wrong one."""
    chosen = leader if leader.warehouse_mark else joining
    return WarehouseRecord(chosen.warehouse_mark, chosen.name)


def check_mark(own: NodeRecord, kept: WarehouseRecord) -> None:
    """Raises ConfigurationError for a node that sees another directory than the cluster."""
    if own.warehouse_mark and own.warehouse_mark != kept.mark:
        raise errors.ConfigurationError(
            f"{own.name} does not see the warehouse of this cluster: what it finds at {own.warehouse} is another "
            f"directory than that of {kept.node}",
            hint=_WAYS,
        )


def check_path(own: NodeRecord, leader: NodeRecord) -> None:
    if own.warehouse and leader.warehouse and own.warehouse != leader.warehouse:
        raise errors.ConfigurationError(
            f"{own.name} has the warehouse of this cluster under another path: {own.warehouse}; {leader.name} has "
            f"{leader.warehouse}, and tables are found by their paths",
            hint=_WAYS,
        )
