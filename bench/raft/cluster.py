"""Three nodes on loopback, each a process of its own, for measurements."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.generator import Load, Target, publish
from bench.harness import RunFailed
from bench.process import free_port
from bench.raft.client_port import ClientLink, NodeRefused

ROOT = Path(__file__).resolve().parents[2]
NODES = 3
VALUE_BYTES = 256
READY_SECONDS = 120.0
Found = TypeVar("Found")


@dataclass
class Cluster:
    folder: Path
    snapshot_every_entries: int = 0
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(NODES)])
    client_ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(NODES)])
    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, number: int) -> None:
        plan = {
            "folder": str(self.folder / f"node-{number}"),
            "port": self.ports[number],
            "client_port": self.client_ports[number],
            "seeds": [f"127.0.0.1:{port}" for port in self.ports],
            "snapshot_every_entries": self.snapshot_every_entries,
        }
        words = [sys.executable, "-m", "bench.raft.node_process", json.dumps(plan)]
        with (self.folder / f"node-{number}.log").open("a") as said:
            self.processes[number] = subprocess.Popen(words, cwd=ROOT, stdout=said, stderr=said, text=True)

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes.values()]

    def ask(self, number: int, method: str, *arguments: Any, seconds: float = 10.0) -> Any:
        async def once() -> Any:
            async with asyncio.timeout(seconds):
                link = await ClientLink.connect(self.client_ports[number])
                try:
                    return await link.ask(method, *arguments)
                finally:
                    link.close()

        return asyncio.run(once())

    def status(self, number: int) -> dict[str, Any]:
        """Empty when it does not answer."""
        try:
            found: dict[str, Any] = self.ask(number, "status")
        except (OSError, TimeoutError, NodeRefused):
            return {}
        return found

    def leader(self) -> int:
        """Until all nodes are ready and one leads."""
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            found = {number: self.status(number) for number in self.processes}
            leading = [number for number, status in found.items() if status.get("leads")]
            are_ready = all(status.get("is_ready") and len(status["voters"]) == NODES for status in found.values())
            if are_ready and len(leading) == 1:
                return leading[0]
            time.sleep(0.02)
        raise RunFailed(f"no cluster came together: {found}")

    def load(self, number: int, kind: str, connections: int, in_flight: int, seconds: float) -> Load:
        """Clients in a process of their own: puts or gets of one key, with 256 bytes."""
        target = Target(f"127.0.0.1:{self.client_ports[number]}", self.processes[number].pid)
        given = {"connections": connections, "in_flight": in_flight, "seconds": seconds, "size": VALUE_BYTES}
        return publish(f"store-{kind}", target, **given)

    def work(self, do: Callable[[list[ClientLink]], Awaitable[Found]]) -> Found:
        """With a link to each node that is up."""

        async def linked() -> Found:
            links = [await ClientLink.connect(self.client_ports[number]) for number in self.processes]
            try:
                return await do(links)
            finally:
                for link in links:
                    link.close()

        return asyncio.run(linked())


@contextmanager
def running(folder: Path, snapshot_every_entries: int = 0) -> Iterator[Cluster]:
    cluster = Cluster(folder, snapshot_every_entries)
    try:
        for number in range(NODES):
            cluster.start(number)
        cluster.leader()
        yield cluster
    finally:
        for number in tuple(cluster.processes):
            cluster.kill(number)
