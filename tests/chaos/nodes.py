"""The nodes of a chaos run as their parent sees them: processes that are started, killed, stopped and given orders."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.raft.client_port import ClientLink, NodeRefused
from icestream import limits
from tests.support.fork_server import ForkedProcess, fork_server
from tests.support.free_ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT_EVERY_ENTRIES = 200
SNAPSHOT_EVERY_BYTES = 64 * limits.KIB
LOG_FILE_BYTES = 256 * limits.KIB
ANSWER_SECONDS = 1.0
READY_SECONDS = 60.0
AWAY = (OSError, TimeoutError, NodeRefused)


@dataclass
class ChaosMember:
    number: int
    port: int
    client_port: int
    folder: Path
    join: str = ""
    process: ForkedProcess | None = None
    lives: int = 0
    is_stopped: bool = False
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None


class ChaosNodes:
    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        seed: int,
        disk: str = "losing",
        bug: str = "",
        patience_seconds: float = READY_SECONDS,
    ) -> None:
        self.folder = folder
        self._seed = seed
        self._disk = disk
        self._bug = bug
        self._patience_seconds = patience_seconds
        self._ports = free_ports(2 * count)
        self._seeds = [f"127.0.0.1:{port}" for port in self._ports[:count]]
        self.members: dict[int, ChaosMember] = {}
        self.gone: list[ChaosMember] = []
        for number in range(count):
            self._add(number, self._ports[number], self._ports[count + number])

    def _add(self, number: int, port: int, client_port: int, join: str = "") -> ChaosMember:
        member = ChaosMember(number, port, client_port, self.folder / f"node-{number}", join)
        self.members[number] = member
        return member

    def add(self, other: ChaosMember) -> ChaosMember:
        """A new node that joins the others, through this one."""
        number = 1 + max([*self.members, *(member.number for member in self.gone)])
        port, client_port = free_ports(2)
        return self._add(number, port, client_port, f"127.0.0.1:{other.port}")

    @property
    def up(self) -> list[ChaosMember]:
        return [member for member in self.members.values() if member.is_up and not member.is_stopped]

    # --- lives ---

    def start(self, member: ChaosMember) -> None:
        member.lives += 1
        plan = {
            "folder": str(member.folder),
            "port": member.port,
            "client_port": member.client_port,
            "seeds": [] if member.join else self._seeds,
            "join": member.join,
            "disk": self._disk,
            "bug": self._bug,
            "seed": self._seed * 1000 + member.number * 100 + member.lives,
            "snapshot_every_entries": SNAPSHOT_EVERY_ENTRIES,
            "snapshot_every_bytes": SNAPSHOT_EVERY_BYTES,
            "log_file_bytes": LOG_FILE_BYTES,
        }
        self.close_pipes(member)
        member.process = fork_server().start("tests.chaos.node_process:main", [json.dumps(plan)], ROOT)

    def start_missing(self) -> list[int]:
        """Starts the nodes that have ended or were killed; returns their numbers."""
        missing = [member for member in self.members.values() if not member.is_up]
        for member in missing:
            self.start(member)
        return [member.number for member in missing]

    def kill(self, member: ChaosMember) -> None:
        if member.process is not None:
            member.process.kill()
            member.process.wait()
        member.is_stopped = False

    def stop(self, member: ChaosMember) -> None:
        """Stops the process with SIGSTOP: the node stands still without knowing it."""
        if member.process is not None:
            member.process.send_signal(signal.SIGSTOP)
            member.is_stopped = True

    def go_on(self, member: ChaosMember) -> None:
        if member.process is not None:
            member.process.send_signal(signal.SIGCONT)
        member.is_stopped = False

    def forget(self, member: ChaosMember) -> None:
        """Kills a node that is no longer a member; its folder is still checked at the end."""
        self.kill(member)
        self.gone.append(self.members.pop(member.number))

    def order(self, member: ChaosMember, **order: Any) -> None:
        if member.process is not None:
            with contextlib.suppress(BrokenPipeError):
                member.process.stdin.write(json.dumps(order).encode() + b"\n")

    def cut(self, links: Iterable[tuple[ChaosMember, ChaosMember]], *, holds: bool = False) -> None:
        """Exactly these links, each one way; none: all is whole."""
        chosen_links = list(links)
        for member in self.members.values():
            if member.is_up:
                self.order(member, cuts=[to.port for source, to in chosen_links if source is member], holds=holds)

    def close_pipes(self, member: ChaosMember) -> None:
        """Ends the process and saves its output to a file beside its data."""
        process = member.process
        if process is None:
            return
        process.kill()
        process.wait()
        member.folder.mkdir(parents=True, exist_ok=True)
        with (member.folder / "said").open("a") as output:
            output.write(f"--- life {member.lives - 1}, code {process.returncode}\n{process.stderr.read()}")
            output.write(read_all(process.stdout.fileno()))
        process.close()
        member.process = None

    def close(self) -> None:
        for member in (*self.members.values(), *self.gone):
            self.kill(member)
            self.close_pipes(member)

    # --- questions ---

    async def ask(self, member: ChaosMember, method: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Raises one of AWAY."""
        async with asyncio.timeout(seconds):
            link = await ClientLink.connect(member.client_port)
            try:
                return await link.ask(method, *arguments)
            finally:
                link.close()

    async def look(self) -> None:
        """Reads the status of each node; an empty status means that it does not answer."""
        members = list(self.members.values())
        statuses = await asyncio.gather(*(self._status(member) for member in members))
        for member, status in zip(members, statuses, strict=True):
            member.status = status

    async def _status(self, member: ChaosMember) -> dict[str, Any]:
        if not member.is_up or member.is_stopped:
            return {}
        try:
            status: dict[str, Any] = await self.ask(member, "status")
        except AWAY:
            return {}
        return status

    async def leader(self) -> ChaosMember | None:
        await self.look()
        leading = [member for member in self.up if member.status.get("leads")]
        return max(leading, key=lambda member: member.status["term"], default=None)

    async def until(self, is_reached: Callable[[], bool], seconds: float = 0.0) -> None:
        """Asks all of them again and again; starts those that have ended. Raises TimeoutError."""
        async with asyncio.timeout(seconds or self._patience_seconds):
            while True:
                await self.look()
                if is_reached():
                    return
                self.start_missing()
                await asyncio.sleep(0.05)

    async def until_whole(self) -> None:
        """Waits until all nodes are ready, one leads, and all have applied the same entries."""
        await self.until(self._is_whole)

    def _is_whole(self) -> bool:
        statuses = [member.status for member in self.members.values()]
        if not all(status.get("is_ready") for status in statuses):
            return False
        return sum(status["leads"] for status in statuses) == 1 and len({status["applied"] for status in statuses}) == 1


def read_all(fd: int) -> str:
    """The rest of a pipe that has no writer any more."""
    os.set_blocking(fd, False)
    content = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(fd, 65_536):
            content += data
    return content.decode(errors="replace")
