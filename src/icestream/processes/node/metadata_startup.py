"""Opens the metadata store of a node according to its settings: for a single node, or as a member of a cluster.

    no seed nodes, and a metadata log without other members    a single node: ready at once, no Raft listener
    seed nodes, or `--join`                                    listens at `ports.raft`; ready when there is a leader
    neither, but a metadata log with other members             the same: a node does not forget its cluster

A member proves that its warehouse is the cluster's before it is admitted and before it is ready (hazard 27). The wait
for other nodes can be interrupted at any moment.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from icestream import errors
from icestream.cluster.cluster_node import ClusterNode, ClusterOptions
from icestream.cluster.members import NodeRecord
from icestream.cluster.rejoin import forget_predecessor, read_predecessor
from icestream.cluster.tls import PeerCertificates
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions, new_node_id, open_directory, start_alone
from icestream.metadata.raft_core import has_raft_core
from icestream.metadata.solo_core import SoloCore
from icestream.processes.node.directory_fence import enforce_fence
from icestream.processes.node.fence_monitor import check_fenced_note
from icestream.processes.node.warehouse_mark import read_or_create_mark, warehouse_directory
from icestream.runtime.advertised_address import advertised_address
from icestream.runtime.clock import SystemClock
from icestream.runtime.listener_tls import tls_files
from icestream.runtime.randomness import SystemRandomness
from icestream.settings import Settings
from icestream.settings.seed_place import own_seed_address

Result = TypeVar("Result")
Stop = asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class OpenedStore:
    store: NodeStore
    cluster: ClusterNode | None = None


async def open_store(
    settings: Settings, join: str = "", stop: Stop | None = None, certificates: PeerCertificates | None = None
) -> OpenedStore:
    """Returns the store once it is ready. Raises ShuttingDown if `stop` is set while it waits for other nodes.

    `certificates`: those of the Raft port; None for plain text.
    """
    wants_cluster = bool(settings.meta_store.seed_nodes or join)
    predecessor = read_predecessor(settings.meta_store.data_dir)
    if predecessor is not None and not wants_cluster:
        raise errors.ConfigurationError(
            "this node gave up its metadata log to rejoin its cluster, and no address of the cluster is configured",
            hint="start it with `meta_store.seed_nodes`, or with --join HOST:PORT, the Raft port of another node",
        )
    if wants_cluster:
        check_raft_available()
    cluster_options = _cluster_options(
        settings, own_seed_address(settings), join, certificates
    )  # raises before anything is opened
    cluster_options = dataclasses.replace(cluster_options, predecessor=predecessor)
    randomness, clock = SystemRandomness(), SystemClock()
    options = MetadataOptions(node_id=new_node_id(randomness))
    opened = await open_directory(settings.meta_store.data_dir, clock, options)
    if not (wants_cluster or opened.knows_others):
        store = await start_alone(opened, options, randomness, SoloCore)
        try:
            await store.ready()
            await _enforce_fences(settings, store)
        except BaseException:
            await store.close()
            raise
        return OpenedStore(store)
    try:
        check_raft_available()
        cluster_options = await _add_warehouse_mark(cluster_options, settings)
    except BaseException:
        await opened.close()
        raise
    cluster = await _unless_stopped(stop, ClusterNode.start(opened, cluster_options, clock, randomness))
    try:
        await _unless_stopped(stop, cluster.running.ready())
        await _unless_stopped(stop, cluster.check_warehouse())
        await _enforce_fences(settings, cluster.running)
    except BaseException:
        await cluster.running.close()
        raise
    if predecessor is not None:
        forget_predecessor(settings.meta_store.data_dir)  # recorded in the state of the cluster now
    return OpenedStore(cluster.running, cluster)


async def _enforce_fences(settings: Settings, store: NodeStore) -> None:
    """Raises ForeignCluster for a node of a cluster that was replaced.

    The fence in an object store is read by the lake process and the pipeline, once they run (fence_monitor.py).
    """
    check_fenced_note(settings, store)
    location = warehouse_directory(settings)
    if location:
        await enforce_fence(store, location, SystemClock())


def check_raft_available() -> None:
    """Raises MissingPart without the native part, which contains Raft."""
    if not has_raft_core():
        raise errors.MissingPart(
            "a cluster needs the native part, which is not installed",
            hint="install Rust (for example with rustup), then: make native",
        )


async def _add_warehouse_mark(options: ClusterOptions, settings: Settings) -> ClusterOptions:
    """Adds the mark of the warehouse directory to the node record: all members must see the same mark."""
    location = warehouse_directory(settings)
    if not location:
        return options
    mark = await read_or_create_mark(location, SystemClock(), SystemRandomness())
    record = msgspec.structs.replace(options.record, warehouse=location, warehouse_mark=mark)
    return dataclasses.replace(options, record=record)


def node_record(
    settings: Settings, native_port: int, danube_url: str, mqtt_port: int = 0, mqtt_ws_port: int = 0
) -> NodeRecord:
    """The node record for the cluster, without the Raft address. A port that is not open yet is left out."""
    lake = settings.ports.lake if settings.lake.managed else 0
    return NodeRecord(
        settings.node.name,
        "",
        advertised_address(settings, native_port) if native_port else "",
        danube_url,
        f"{_scheme(settings, 'lake')}://{advertised_address(settings, lake)}" if lake else "",
        mqtt=advertised_address(settings, mqtt_port) if mqtt_port else "",
        mqtt_ws=advertised_address(settings, mqtt_ws_port) if mqtt_ws_port else "",
    )


def _cluster_options(
    settings: Settings, seed_address: str, join: str, certificates: PeerCertificates | None
) -> ClusterOptions:
    danube = settings.danube
    port = settings.ports.danube if danube.enable else 0
    url = (
        f"{_scheme(settings, 'danube')}://{advertised_address(settings, port, danube.advertised_host)}" if port else ""
    )
    return ClusterOptions(
        bind_host=settings.node.bind_host,
        port=settings.ports.raft,
        address=seed_address or advertised_address(settings, settings.ports.raft),
        seeds=settings.meta_store.seed_nodes,
        join=join,
        join_token=settings.meta_store.join_token.get_secret_value() if settings.meta_store.join_token else "",
        record=node_record(
            settings,
            settings.ports.native,
            url,
            settings.ports.mqtt if settings.mqtt.enable else 0,
            settings.ports.mqtt_ws if settings.mqtt.enable else 0,
        ),
        certificates=certificates,
        certified_cluster=settings.meta_store.tls_cluster or "",
    )


def _scheme(settings: Settings, listener: str) -> str:
    return "http" if tls_files(settings, listener) is None else "https"


async def _unless_stopped(stop: Stop | None, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. Raises ShuttingDown if `stop` is set first; the work is cancelled."""
    if stop is None:
        return await work
    task = asyncio.ensure_future(work)
    waits: list[asyncio.Future[Any]] = [task, stop]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        raise errors.ShuttingDown("the node was stopped while it waited for other nodes")
    return task.result()
