"""Which clusters may not use a warehouse any more: `.icestream-fence` in it, where it is a directory (ADR 46).

`icestream cluster force-new-cluster` makes a new cluster out of one node. The members of the old one may still run, or
start again, and know nothing of it: they would write the same tables. So the new cluster fences the old one before it
serves anything, and a node looks at the fence when it starts and every WAREHOUSE_FENCE_LOOK_SECONDS.

    the file    a document in JSON: {"fenced": {id of a cluster: id of the one that replaced it}}
    keys        /cluster/superseded/<id of a cluster>: what the new cluster fences (cluster/force_new_cluster.py)
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.cluster.members import SUPERSEDED_CLUSTERS
from icestream.metadata.node_store import NodeStore
from icestream.runtime.clock import Clock

FENCE_NAME: Final = ".icestream-fence"


class WarehouseFence(msgspec.Struct, frozen=True):
    fenced: dict[str, str] = msgspec.field(default_factory=dict)


def read_fence(directory: Path) -> WarehouseFence:
    """Raises ConfigurationError for a file that cannot be read."""
    path = directory / FENCE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=WarehouseFence)
    except FileNotFoundError:
        return WarehouseFence()
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise errors.ConfigurationError(
            f"{path} cannot be read as the fence of a warehouse: {error}",
            hint="restore it from another copy of this directory; it says which clusters may not write here",
        ) from None


def check_fence(fence: WarehouseFence, cluster: str, directory: Path) -> None:
    """Raises ForeignCluster for a node of a cluster that was replaced."""
    successor = fence.fenced.get(cluster)
    if successor is not None:
        raise errors.ForeignCluster(
            f"cluster {cluster} was replaced by cluster {successor} (force-new-cluster), and may not use the warehouse "
            f"{directory} any more",
            hint="start this node with an empty data_dir and `icestream serve --join HOST:PORT`, to join the new one",
        )


def check_rivals(fence: WarehouseFence, superseded: frozenset[str], cluster: str, directory: Path) -> None:
    """Raises ForeignCluster for a cluster of which a part was made into another cluster before: two of them, made of
    two members of the same old cluster, would write the same tables."""
    for replaced in sorted(superseded & fence.fenced.keys()):
        successor = fence.fenced[replaced]
        if successor != cluster and successor not in superseded:
            raise errors.ForeignCluster(
                f"cluster {cluster} may not use the warehouse {directory}: cluster {replaced}, which it replaced, was "
                f"replaced by cluster {successor} before (force-new-cluster)",
                hint="start this node with an empty data_dir and `icestream serve --join HOST:PORT`, to join the other "
                f"one; or, where cluster {successor} is gone for good, remove {replaced} from {directory / FENCE_NAME}",
            )


def raise_fence(directory: Path, superseded: frozenset[str], cluster: str) -> None:
    """Fences these clusters, synced. Nothing is written when all of them are. Raises ForeignCluster."""
    fence = read_fence(directory)
    check_fence(fence, cluster, directory)
    check_rivals(fence, superseded, cluster, directory)
    missing = superseded - fence.fenced.keys()
    if not missing:
        return
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FENCE_NAME
    temporary = directory / f"{FENCE_NAME}.{cluster}.tmp"
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(WarehouseFence(fence.fenced | dict.fromkeys(sorted(missing), cluster))))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


async def enforce_fence(store: NodeStore, location: str, clock: Clock) -> None:
    """Before anything is served, and from then on while the node runs. Raises ForeignCluster."""
    directory, cluster = Path(location.removeprefix("file:")), store.identity.cluster_id.hex()
    keys = [key for key, _ in await store.list_all(SUPERSEDED_CLUSTERS)]
    superseded = frozenset(key.removeprefix(SUPERSEDED_CLUSTERS) for key in keys)
    await asyncio.to_thread(raise_fence, directory, superseded, cluster)
    store.node.tasks.start(_watch(store, directory, cluster, clock), "warehouse-fence")


async def _watch(store: NodeStore, directory: Path, cluster: str, clock: Clock) -> None:
    while True:
        await clock.sleep(limits.WAREHOUSE_FENCE_LOOK_SECONDS)
        try:
            check_fence(await asyncio.to_thread(read_fence, directory), cluster, directory)
        except errors.ForeignCluster as error:
            store.node.fail(error)
            return
        except errors.ConfigurationError:
            continue  # it is being written, or the share is away: looked at again
