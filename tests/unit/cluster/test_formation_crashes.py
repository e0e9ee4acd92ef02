"""Formation is killed at every step of every node's disk and run again: one cluster, and no node waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors, limits
from icestream.cluster.cluster_node import ClusterNode, ClusterOptions
from icestream.cluster.members import NodeRecord
from icestream.metadata.open import MetadataOptions, open_on
from icestream.metadata.raft_core import has_raft_core
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.runtime.tasks import InlineOffload
from icestream.wal.sink import InlineSink
from tests.support.free_ports import free_ports

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]
SECONDS = 30.0
# Lock, file, header, zeros, names, the id of the node, then that of its cluster.
STEPS = 14


async def start(disk: SimulatedDisk, port: int, seeds: tuple[str, ...]) -> ClusterNode:
    clock = SystemClock()
    options = MetadataOptions(log_file_bytes=64 * limits.KIB)
    opened = await open_on(disk, clock, SystemRandomness(), InlineSink(), options, lambda name: InlineOffload())
    record = NodeRecord(f"node-{port}", "")
    cluster_options = ClusterOptions(port=port, address=f"127.0.0.1:{port}", seeds=seeds, record=record)
    return await ClusterNode.start(opened, cluster_options, clock, SystemRandomness())


async def start_until_ready(disk: SimulatedDisk, port: int, seeds: tuple[str, ...]) -> tuple[ClusterNode, int]:
    """The node, and how often it had to be started again after a power loss."""
    crashes = 0
    while True:
        node: ClusterNode | None = None
        try:
            node = await start(disk, port, seeds)
            await node.running.ready()
            disk.crash_after(10**9)
            if node.running.stopped is None:
                return node, crashes
            raise node.running.stopped
        except (Crash, errors.LogStopped):
            crashes += 1
            disk.crash_after(10**9)
            if node is not None:
                await node.running.close()
            disk.power_loss()


async def test_a_crash_at_every_step_of_formation_leaves_one_cluster() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)  # a crash in a callback of the loop
    crashes = 0
    for step in range(1, STEPS):
        ports = free_ports(2)
        seeds = tuple(f"127.0.0.1:{port}" for port in ports)
        disks = {port: SimulatedDisk(step) for port in ports}
        disks[ports[0]].crash_after(step)
        async with asyncio.timeout(SECONDS):
            started = await asyncio.gather(*(start_until_ready(disks[port], port, seeds) for port in ports))
            nodes = [node for node, _ in started]
            crashes += sum(count for _, count in started)
            for node in nodes:
                await node.node.until(lambda node=node: len(node.node.members.learners) == 1)  # type: ignore[misc]
        assert len({node.identity.cluster_id for node in nodes}) == 1
        assert len({node.info().founder for node in nodes}) == 1
        for node in nodes:
            await node.running.close()
    assert crashes >= 8
