"""One node of the metadata store with a port for clients.

    python -m bench.raft.node_process '{"folder": "…", "port": 7650, "client_port": 7750, "seeds": […]}'

It says "ready" when clients can come. `stalls` gives the longest time for which the loop did not turn since it was last
asked, in seconds: by the clock; without the time in which it waited for a core, because the machine ran others;
and of the loop's own work alone. The second is what the node is to blame for: work, locks, disks.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.raft.client_port import ClientPort
from icestream.cluster.cluster_node import ClusterNode, ClusterOptions
from icestream.cluster.members import NodeRecord
from icestream.cluster.node_info import to_document
from icestream.metadata.open import MetadataOptions, open_directory
from icestream.runtime.clock import SystemClock
from icestream.runtime.garbage import calm_collector
from icestream.runtime.loop import loop_factory
from icestream.runtime.randomness import SystemRandomness

LOOK_SECONDS = 0.001


class StallWatch:
    """Looks as often as it can, and notes how late it was."""

    def __init__(self) -> None:
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._longest = (0.0, 0.0, 0.0)
        self._seen = (0, 0, 0)
        self.is_on = False

    def take(self) -> tuple[float, float, float]:
        found, self._longest = self._longest, (0.0, 0.0, 0.0)
        if not self.is_on:
            self.is_on = True
            self._seen = self._now()
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        return found

    def _now(self) -> tuple[int, int, int]:
        """The clock, this thread's work, its waits for a core; in nanoseconds."""
        worked, waited, _ = os.pread(self._schedule, 64, 0).split()
        return time.monotonic_ns(), int(worked), int(waited)

    def _look(self) -> None:
        now = self._now()
        wall, worked, waited = ((new - old) / 1e9 for new, old in zip(now, self._seen, strict=True))
        late = wall - LOOK_SECONDS
        wall_max, held_max, worked_max = self._longest
        self._longest = max(wall_max, late), max(held_max, late - waited), max(worked_max, worked)
        self._seen = now
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)


async def live(plan: dict[str, Any]) -> None:
    clock = SystemClock()
    options = MetadataOptions(snapshot_every_entries=plan.get("snapshot_every_entries", 0))
    opened = await open_directory(Path(plan["folder"]), clock, options)
    address = f"127.0.0.1:{plan['port']}"
    given = ClusterOptions(
        port=plan["port"], address=address, seeds=tuple(plan["seeds"]), record=NodeRecord(address, "")
    )
    node = await ClusterNode.start(opened, given, clock, SystemRandomness())
    stopped = asyncio.Event()
    node.node.on_stop = lambda _: stopped.set()
    stalls = StallWatch()

    async def status() -> dict[str, Any]:
        return to_document(node.info()) | {"leads": node.node.leads, "is_ready": node.node.is_ready}

    async def call(method: str, arguments: dict[str, Any]) -> Any:
        return await node.calls[method](arguments)

    async def take_stalls() -> Any:
        return stalls.take()

    port = ClientPort(node.running)
    port.methods |= {"status": status, "call": call, "stalls": take_stalls}
    await port.listen(plan["client_port"])
    calm_collector()
    print("ready", flush=True)
    await stopped.wait()
    sys.exit(f"the node stopped: {node.running.stopped}")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(live(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
