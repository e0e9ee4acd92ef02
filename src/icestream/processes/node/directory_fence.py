"""The fence of a warehouse directory: which clusters may not use it any more, in `.icestream-fence` (ADR 46).

`icestream cluster force-new-cluster` creates a new cluster from one node. Members of the old cluster may still run or
start again, without knowing of it, and would write the same tables. So the new cluster fences off the old one before it
serves, and every node checks the fence when it starts and every WAREHOUSE_FENCE_LOOK_SECONDS.

    the file    JSON: {"fenced": {id of a cluster: id of the cluster that replaced it}}
    keys        /cluster/superseded/<id of a cluster>: clusters to fence off (cluster/force_new_cluster.py)
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


class DirectoryFence(msgspec.Struct, frozen=True):
    fenced: dict[str, str] = msgspec.field(default_factory=dict)


def read_fence(directory: Path) -> DirectoryFence:
    """Raises ConfigurationError for a file that cannot be read."""
    path = directory / FENCE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=DirectoryFence)
    except FileNotFoundError:
        return DirectoryFence()
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise errors.ConfigurationError(
            f"{path} cannot be read as the fence of a warehouse: {error}",
            hint="restore it from another copy of this directory; it says which clusters may not write here",
        ) from None


def check_fence(fence: DirectoryFence, cluster: str, directory: Path) -> None:
    """Raises ForeignCluster for a node of a cluster that was replaced."""
    successor = fence.fenced.get(cluster)
    if successor is not None:
        raise errors.ForeignCluster(
            f"cluster {cluster} was replaced by cluster {successor} (force-new-cluster), and may not use the warehouse "
            f"{directory} any more",
            hint="start this node with an empty data_dir and `icestream serve --join HOST:PORT`, to join the new one",
        )


def check_rivals(fence: DirectoryFence, superseded: frozenset[str], cluster: str, directory: Path) -> None:
    """Raises ForeignCluster if another cluster has replaced the same old cluster before.

    Two new clusters, created from two members of one old cluster, would write the same tables.
    """
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
    """Fences off these clusters durably; writes nothing if all of them are fenced off. Raises ForeignCluster."""
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
        file.write(msgspec.json.encode(DirectoryFence(fence.fenced | dict.fromkeys(sorted(missing), cluster))))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def enforce_fence(store: NodeStore, location: str, clock: Clock) -> None:
    """Raises the fence and checks it now and while the node runs. Raises ForeignCluster."""
    directory, cluster = Path(location.removeprefix("file:")), store.identity.cluster_id.hex()
    keys = [key for key, _ in await store.list_all(SUPERSEDED_CLUSTERS)]
    superseded = frozenset(key.removeprefix(SUPERSEDED_CLUSTERS) for key in keys)
    await asyncio.to_thread(raise_fence, directory, superseded, cluster)
    store.node.tasks.start(_recheck(store, directory, cluster, clock), "warehouse-fence")


async def _recheck(store: NodeStore, directory: Path, cluster: str, clock: Clock) -> None:
    while True:
        await clock.sleep(limits.WAREHOUSE_FENCE_LOOK_SECONDS)
        try:
            check_fence(await asyncio.to_thread(read_fence, directory), cluster, directory)
        except errors.ForeignCluster as error:
            store.node.fail(error)
            return
        except errors.ConfigurationError:
            continue  # the file is being written, or the share is unreachable: retry
