"""One node of the metadata store in a process of its own: the real one, on a disk, clock and links that can be broken.

    python -m tests.chaos.node_process '{"folder": "…", "port": 7650, "client_port": 7750, "seeds": […], …}'

On stdin come orders, one JSON document a line, for what cannot be done to a process from outside:
    {"cuts": [ports], "holds": bool}   {"disk": {"slow_seconds", "failing", "full"}}   {"step_clock": seconds}

Beside its data it keeps evidence that outlives a kill -9, one JSON array a line:
    votes    ["boot", term, vote]: what a start found; ["granted", term, to]: promised to a candidate
    hashes   [index, SHA-256]: of its state at a snapshot
It ends by itself, with what stopped it, when the node stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.raft.client_port import ClientPort
from icestream import errors
from icestream.cluster.cluster_node import ClusterNode, ClusterOptions
from icestream.cluster.members import NodeRecord
from icestream.cluster.node_info import to_document
from icestream.metadata import eraftpb
from icestream.metadata.core import RaftMessage
from icestream.metadata.open import MetadataOptions, OpenedMetadata, open_directory, open_on
from icestream.runtime.clock import SystemClock
from icestream.runtime.loop import loop_factory
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import ThreadOffload
from tests.chaos.bugs import BUGS
from tests.chaos.cuts import Cuts, make_links_cuttable
from tests.chaos.losing_disk import DiskFaults, ThreadSink, UnsyncedLossDirectory
from tests.support.fake_clock import FakeClock

VOTE_RESPONSE, REJECT_FIELD, TERM_FIELD = 6, 10, 4


class Evidence:
    """Lines that are in the kernel when `note` returns."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def note(self, *values: Any) -> None:
        os.write(self._fd, json.dumps(values).encode() + b"\n")


class NodeProcess:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._folder = Path(plan["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clock = FakeClock(SystemClock())
        self._cuts = Cuts()
        self._faults = DiskFaults()
        self._votes = Evidence(self._folder / "votes")
        self._hashes = Evidence(self._folder / "hashes")
        self._stopped = asyncio.Event()
        self._node: ClusterNode | None = None

    async def run(self) -> None:
        make_links_cuttable(self._cuts)
        note_votes(self._votes)
        await self._hear_orders()
        if self._plan.get("bug"):
            BUGS[self._plan["bug"]](self._faults)
        opened = await self._open()
        state = opened._recovered.state
        self._votes.note("boot", state.term, state.vote)
        address = f"127.0.0.1:{self._plan['port']}"
        options = ClusterOptions(
            port=self._plan["port"],
            address=address,
            seeds=tuple(self._plan["seeds"]),
            join=self._plan.get("join", ""),
            record=NodeRecord(f"node-{self._plan['port']}", ""),
        )
        self._node = node = await ClusterNode.start(opened, options, self._clock, SystemRandomness())
        node.node.on_stop = self._stops
        self._note_hashes(node)
        port = ClientPort(node.running, joins_reads=False)
        port.methods |= {"status": self._status, "call": self._call}
        await port.listen(self._plan["client_port"])
        print("ready", flush=True)
        if node.running.stopped is not None:
            self._stops(node.running.stopped)
        await self._stopped.wait()

    async def _open(self) -> OpenedMetadata:
        plan = self._plan
        names = ("log_file_bytes", "snapshot_every_bytes", "snapshot_every_entries")
        options = MetadataOptions(**{name: plan[name] for name in names})
        if plan["disk"] == "native":
            return await open_directory(self._folder / "data", self._clock, options)
        directory = UnsyncedLossDirectory(self._folder / "data", self._faults, plan["seed"])
        return await open_on(directory, self._clock, SystemRandomness(), ThreadSink(), options, ThreadOffload)

    def _note_hashes(self, node: ClusterNode) -> None:
        on_taken = node.running.snapshots.on_taken

        def note(index: int, digest: bytes) -> None:
            self._hashes.note(index, digest.hex())
            on_taken(index, digest)

        node.running.snapshots.on_taken = note

    def _stops(self, error: errors.IcestreamError) -> None:
        print(f"stopped: {error}", flush=True)
        self._stopped.set()

    # --- what is asked ---

    async def _status(self) -> dict[str, Any]:
        assert self._node is not None
        node = self._node.node
        status = to_document(self._node.info())
        ticker = self._node.ticker
        status |= {
            "leads": node.leads,
            "is_ready": node.is_ready,
            "installs": node.installs.count,
            "lost": self._cuts.lost,
            "compared": self._node.comparison.hashes.compared,
            "drift_seconds_max": ticker.drift_seconds_max if ticker else 0.0,
        }
        return status

    async def _call(self, method: str, arguments: dict[str, Any]) -> Any:
        assert self._node is not None
        return await self._node.calls[method](arguments)

    async def _hear_orders(self) -> None:
        loop = asyncio.get_running_loop()
        orders = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)

        async def hear() -> None:
            while line := await orders.readline():
                self._run_order(json.loads(line))

        self._orders = loop.create_task(hear())

    def _run_order(self, order: dict[str, Any]) -> None:
        if "cuts" in order:
            self._cuts.set(set(order["cuts"]), holds=order["holds"])
        for name, value in order.get("disk", {}).items():
            setattr(self._faults, name, value)
        self._clock.step(order.get("step_clock", 0))


def note_votes(votes: Evidence) -> None:
    """Records each vote when its message is sent."""
    send: Callable[[ClusterNode, list[RaftMessage]], None] = ClusterNode._send

    def noting(self: ClusterNode, messages: list[RaftMessage]) -> None:
        for message in messages:
            if eraftpb.message_kind(message.data) == VOTE_RESPONSE:
                fields = dict(eraftpb._fields(message.data))
                if not fields.get(REJECT_FIELD):
                    votes.note("granted", fields[TERM_FIELD], message.to)
        send(self, messages)

    ClusterNode._send = noting


def main() -> None:
    plan = json.loads(sys.argv[1])

    async def live() -> None:
        await NodeProcess(plan).run()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            runner.run(live())
        finally:
            sys.stdout.flush()
            os._exit(3)  # as a crash would: nothing is closed


if __name__ == "__main__":
    main()
