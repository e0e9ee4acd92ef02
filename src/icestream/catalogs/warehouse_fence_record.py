"""The fence of a warehouse in an object store: which cluster was replaced, and by which (ADR 48). Pure.

    object   {warehouse}/.icestream-fence/{id of a cluster}    JSON: {"successor": id of the cluster that replaced it}

Each replaced cluster has an object, written once on the condition that it does not exist (`If-None-Match: *`), a
promise on which every metadata file relies, too. A warehouse directory has one file for all instead
(processes/node/directory_fence.py), replaced by a rename.

The broker process has no access to object stores. Its lake process and its pipeline read the fence
(warehouse_fence.py): they get FenceTerms from the broker, and return a FenceReport, over the local socket.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from icestream import errors
from icestream.catalogs.store_options import SCHEMES

FENCE_FOLDER: Final = ".icestream-fence"


class FenceRecord(msgspec.Struct, frozen=True):
    """The content of an object of the fence."""

    successor: str


class FenceTerms(msgspec.Struct, frozen=True):
    """The cluster of a node, and those that it replaced; `cluster` is empty for a broker in memory."""

    cluster: str = ""
    superseded: list[str] = []


class FenceReport(msgspec.Struct, frozen=True):
    """The outcome of a look at the fence on behalf of `cluster`.

    `replaced`, `successor`: the node is fenced off, because its own cluster, or one that it replaced, was replaced by
    another cluster. `failure`: why the fence could not be read."""

    cluster: str = ""
    replaced: str = ""
    successor: str = ""
    failure: str = ""


def is_object_location(location: str) -> bool:
    return SCHEMES.get(location.partition("://")[0].lower()) in ("s3", "gcs", "azure")


def is_rival(successor: str, terms: FenceTerms) -> bool:
    """True if the cluster that replaced one of `terms.superseded` is neither this one nor replaced by it."""
    return successor != terms.cluster and successor not in terms.superseded


def encode_record(successor: str) -> bytes:
    return msgspec.json.encode(FenceRecord(successor))


def decode_record(data: bytes, location: str) -> FenceRecord:
    """Raises ConfigurationError."""
    try:
        return msgspec.json.decode(data, type=FenceRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.ConfigurationError(
            f"{location} cannot be read as the fence of a warehouse: {error}",
            hint="restore an earlier version of it; it names the cluster that may not write here",
        ) from None


def object_location(warehouse: str, cluster: str) -> str:
    """Returns the location of the object that fences a cluster."""
    return f"{warehouse.rstrip('/')}/{FENCE_FOLDER}/{cluster}"


def replaced_error(report: FenceReport, warehouse: str, removable: Collection[str] = ()) -> errors.ForeignCluster:
    """Returns the error that stops a node with this report. `removable`: further places that record the replacement."""
    if report.replaced == report.cluster:
        message = (
            f"cluster {report.cluster} was replaced by cluster {report.successor} (force-new-cluster), and may not use "
            f"the warehouse {warehouse} any more"
        )
    else:
        message = (
            f"cluster {report.cluster} may not use the warehouse {warehouse}: cluster {report.replaced}, which it "
            f"replaced, was replaced by cluster {report.successor} before (force-new-cluster)"
        )
    traces = " and ".join([object_location(warehouse, report.replaced), *removable])
    return errors.ForeignCluster(
        message,
        hint="start this node with an empty data_dir and `icestream serve --join HOST:PORT`, to join the other one; "
        f"or, where cluster {report.successor} is gone for good, remove {traces}",
    )
