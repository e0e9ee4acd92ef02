"""Three brokers of one cluster, each a process of its own, on loopback."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, Self

from tests.support.free_ports import free_ports
from tests.support.serve_process import ServeProcess

COUNT = 3


class ThreeBrokerProcesses:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports(COUNT)
        (self._native,) = free_ports(1, (10, 20))  # the others listen 10 and 20 above
        self.seeds = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.running: dict[int, ServeProcess] = {}

    def begin(self, number: int, *arguments: str) -> ServeProcess:
        """Without waiting for it: alone it waits for the others."""
        seeds = ("--set", f"meta_store.seed_nodes={self.seeds}", "--raft-port", str(self.ports[number]))
        process = ServeProcess(self.folder / "data", *seeds, *self._rest(), *arguments, is_fork=True)
        self.running[number] = process
        return process

    def _rest(self) -> tuple[str, ...]:
        return ("--set", f"ports.native={self._native}", "--output", "json")

    def start_all(self) -> list[dict[str, Any]]:
        """Starts all nodes; returns the announcement of each."""
        for number in range(COUNT):
            self.begin(number)
        return [self.running[number].announcement() for number in range(COUNT)]

    def kill(self, number: int) -> None:
        self.running.pop(number).stop(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.__exit__()
