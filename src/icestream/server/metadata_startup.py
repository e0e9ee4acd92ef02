"""The metadata store of a node as the settings want it: on its own, or with the others of its cluster.

    no seed nodes, and a log that knows no others    on its own, ready at once; nobody is listened to
    seed nodes, or `--join`                          listens at `ports.raft`, and is ready when there is a leader
    neither, but a log that knows others             the same: a node does not forget its cluster

A node with others proves that its warehouse is theirs before it is let in, and before it is ready (hazard 27).

Whoever waits for other nodes can be stopped at any moment.
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
from icestream.cluster.tls import PeerTls
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions, new_node_id, open_directory, start_alone
from icestream.metadata.raft_core import has_raft_core
from icestream.metadata.solo_core import SoloCore
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.server.advertised import advertised_address
from icestream.server.fence_monitor import check_fenced_note
from icestream.server.warehouse_fence import enforce_fence
from icestream.server.warehouse_mark import read_or_create_mark, warehouse_directory
from icestream.settings import Settings
from icestream.settings.seed_place import place_of

Answer = TypeVar("Answer")
Stop = asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class OpenedStore:
    store: NodeStore
    cluster: ClusterNode | None = None


async def open_store(settings: Settings, join: str = "", stop: Stop | None = None) -> OpenedStore:
    """Ready to be used. Raises ShuttingDown when `stop` comes while it waits for others."""
    wants_others = bool(settings.meta_store.seed_nodes or join)
    predecessor = read_predecessor(settings.meta_store.data_dir)
    if predecessor is not None and not wants_others:
        raise errors.ConfigurationError(
            "this node left its metadata log to join its cluster anew, and does not know where that is",
            hint="start it with `meta_store.seed_nodes`, or with --join HOST:PORT, the Raft port of another node",
        )
    if wants_others:
        check_raft_available()
    options_of_cluster = _options(settings, place_of(settings), join)  # refused before anything is opened
    options_of_cluster = dataclasses.replace(options_of_cluster, predecessor=predecessor)
    randomness, clock = SystemRandomness(), SystemClock()
    options = MetadataOptions(node_id=new_node_id(randomness))
    opened = await open_directory(settings.meta_store.data_dir, clock, options)
    if not (wants_others or opened.knows_others):
        store = await start_alone(opened, options, randomness, SoloCore)
        try:
            await store.ready()
            await _keep_fence(settings, store)
        except BaseException:
            await store.close()
            raise
        return OpenedStore(store)
    try:
        check_raft_available()
        options_of_cluster = await _with_warehouse(options_of_cluster, settings)
    except BaseException:
        await opened.close()
        raise
    cluster = await _unless(stop, ClusterNode.start(opened, options_of_cluster, clock, randomness))
    try:
        await _unless(stop, cluster.running.ready())
        await _unless(stop, cluster.check_warehouse())
        await _keep_fence(settings, cluster.running)
    except BaseException:
        await cluster.running.close()
        raise
    if predecessor is not None:
        forget_predecessor(settings.meta_store.data_dir)  # the state of the cluster has it
    return OpenedStore(cluster.running, cluster)


async def _keep_fence(settings: Settings, store: NodeStore) -> None:
    """Raises ForeignCluster for a node of a cluster that was replaced. The fence in an object store is read by the lake
    process and the pipeline, once they run (fence_monitor.py)."""
    check_fenced_note(settings, store)
    location = warehouse_directory(settings)
    if location:
        await enforce_fence(store, location, SystemClock())


def check_raft_available() -> None:
    """Raises MissingPart on a machine without the native part."""
    if not has_raft_core():
        raise errors.MissingPart(
            "several nodes need the native part, which is not here",
            hint="install Rust (for example with rustup), then: make native",
        )


async def _with_warehouse(options: ClusterOptions, settings: Settings) -> ClusterOptions:
    """With what this node sees of the warehouse, where that is a directory: the others must see the same."""
    location = warehouse_directory(settings)
    if not location:
        return options
    mark = await read_or_create_mark(location, SystemClock(), SystemRandomness())
    record = msgspec.structs.replace(options.record, warehouse=location, warehouse_mark=mark)
    return dataclasses.replace(options, record=record)


def node_record(settings: Settings, native_port: int, danube_url: str) -> NodeRecord:
    """What the cluster knows of this node, but its Raft address. A port that is not known yet is left out."""
    lake = settings.ports.lake if settings.lake.managed else 0
    return NodeRecord(
        settings.node.name,
        "",
        advertised_address(settings, native_port) if native_port else "",
        danube_url,
        f"http://{advertised_address(settings, lake)}" if lake else "",
    )


def _options(settings: Settings, place: str, join: str) -> ClusterOptions:
    danube = settings.danube
    scheme = "https" if danube.tls_certificate is not None else "http"
    port = settings.ports.danube if danube.enable else 0
    url = f"{scheme}://{advertised_address(settings, port, danube.advertised_host)}" if port else ""
    tls = _tls(settings)
    return ClusterOptions(
        bind_host=settings.node.bind_host,
        port=settings.ports.raft,
        address=place or advertised_address(settings, settings.ports.raft),
        seeds=settings.meta_store.seed_nodes,
        join=join,
        record=node_record(settings, settings.ports.native, url),
        server_context=None if tls is None else tls.server_context(),
        client_context=None if tls is None else tls.client_context(),
    )


def _tls(settings: Settings) -> PeerTls | None:
    given = settings.meta_store
    if given.tls_certificate is None or given.tls_key is None or given.tls_authority is None:
        return None
    return PeerTls(given.tls_certificate, given.tls_key, given.tls_authority)


async def _unless(stop: Stop | None, work: Coroutine[Any, Any, Answer]) -> Answer:
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
        raise errors.ShuttingDown("the node was stopped while it waited for the others")
    return task.result()
