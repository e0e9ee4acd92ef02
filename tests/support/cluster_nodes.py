"""Nodes of a cluster in one process: real directories, real sockets on loopback, real clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from icestream import errors
from icestream.cluster.cluster_node import ClusterNode, ClusterOptions
from icestream.cluster.members import NODES, NodeRecord
from icestream.cluster.rejoin import Predecessor
from icestream.cluster.tls import PeerCertificates, PeerTls
from icestream.cluster.wire import id_text
from icestream.metadata.open import MetadataOptions, open_directory
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.free_ports import free_ports

SECONDS = 30.0
Certified = tuple[str, Callable[[str], PeerTls]]


class ClusterNodes:
    def __init__(
        self, folder: Path, count: int, tls: PeerTls | None = None, certified: Certified | None = None
    ) -> None:
        """`certified`: the name of the cluster in certificates, and the certificate of each node."""
        self.folder = folder
        self._tls = tls
        self._certified = certified
        self.ports = free_ports(count)
        self.seeds = tuple(f"127.0.0.1:{port}" for port in self.ports)
        self.nodes: dict[int, ClusterNode] = {}
        self.certificates: dict[int, PeerCertificates | None] = {}

    async def start(
        self,
        number: int,
        *,
        join: str = "",
        join_token: str = "",
        seeds: tuple[str, ...] | None = None,
        predecessor: Predecessor | None = None,
    ) -> ClusterNode:
        """Returns when the node is of a cluster."""
        clock = SystemClock()
        name = f"node-{self.ports[number]}"
        tls = self._tls if self._certified is None else self._certified[1](name)
        certificates = None if tls is None else PeerCertificates(tls)
        self.certificates[number] = certificates
        opened = await open_directory(self.folder / str(number), clock, MetadataOptions())
        options = ClusterOptions(
            port=self.ports[number],
            address=self.seeds[number],
            seeds=() if join else (self.seeds if seeds is None else seeds),
            join=join,
            join_token=join_token,
            predecessor=predecessor,
            record=NodeRecord(name, ""),
            certificates=certificates,
            certified_cluster="" if self._certified is None else self._certified[0],
        )
        node = await ClusterNode.start(opened, options, clock, SystemRandomness())
        self.nodes[number] = node
        return node

    async def start_all(self) -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(self.start(number) for number in range(len(self.ports))))
            await asyncio.gather(*(node.running.ready() for node in self.nodes.values()))

    async def until_voters(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            for node in self.nodes.values():
                await node.node.until(lambda node=node: len(node.node.members.voters) == count)  # type: ignore[misc]

    async def until_recorded(self) -> None:
        """Waits until each node has the record of each other one: where accounts are on, messages count by it."""
        keys = [NODES + id_text(node.id) for node in self.nodes.values()]
        async with asyncio.timeout(SECONDS):
            for node in self.nodes.values():
                await node.node.until(lambda node=node: None not in map(node.node.machine.get, keys))  # type: ignore[misc]

    async def hand_over_to(self, node: ClusterNode) -> None:
        """Hands the lead over, again if an attempt fails: a voter may drop the first messages of a new member."""
        while not node.node.leads:
            for leader in [leader for leader in self.nodes.values() if leader.node.leads]:
                with contextlib.suppress(errors.IcestreamError):
                    await leader.calls["Transfer"]({"node": id_text(node.id)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await node.node.until(lambda: node.node.leads)

    @property
    def leader(self) -> ClusterNode:
        return next(node for node in self.nodes.values() if node.node.leads)

    @property
    def followers(self) -> list[ClusterNode]:
        return [node for node in self.nodes.values() if not node.node.leads]

    async def stop(self, number: int) -> None:
        await self.nodes.pop(number).running.close()

    async def close(self) -> None:
        for number in tuple(self.nodes):
            await self.stop(number)
