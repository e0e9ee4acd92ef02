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
from tests.support.free_ports import free_ports
from tests.support.nursery import NurseryProcess, nursery

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT_EVERY_ENTRIES = 200
SNAPSHOT_EVERY_BYTES = 64 * limits.KIB
LOG_FILE_BYTES = 256 * limits.KIB
ANSWER_SECONDS = 1.0
READY_SECONDS = 60.0
AWAY = (OSError, TimeoutError, NodeRefused)


@dataclass
class Member:
    number: int
    port: int
    client_port: int
    folder: Path
    join: str = ""
    process: NurseryProcess | None = None
    lives: int = 0
    is_stopped: bool = False
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Nodes:
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
        self.members: dict[int, Member] = {}
        self.gone: list[Member] = []
        for number in range(count):
            self._add(number, self._ports[number], self._ports[count + number])

    def _add(self, number: int, port: int, client_port: int, join: str = "") -> Member:
        member = Member(number, port, client_port, self.folder / f"node-{number}", join)
        self.members[number] = member
        return member

    def add(self, other: Member) -> Member:
        """A new node that joins the others, through this one."""
        number = 1 + max([*self.members, *(member.number for member in self.gone)])
        port, client_port = free_ports(2)
        return self._add(number, port, client_port, f"127.0.0.1:{other.port}")

    @property
    def up(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_up and not member.is_stopped]

    # --- lives ---

    def start(self, member: Member) -> None:
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
        member.process = nursery().start("tests.chaos.node_process:main", [json.dumps(plan)], ROOT)

    def start_missing(self) -> list[int]:
        """Those that have ended by themselves or were killed."""
        missing = [member for member in self.members.values() if not member.is_up]
        for member in missing:
            self.start(member)
        return [member.number for member in missing]

    def kill(self, member: Member) -> None:
        if member.process is not None:
            member.process.kill()
            member.process.wait()
        member.is_stopped = False

    def stop(self, member: Member) -> None:
        """It stands still, and does not know it."""
        if member.process is not None:
            member.process.send_signal(signal.SIGSTOP)
            member.is_stopped = True

    def go_on(self, member: Member) -> None:
        if member.process is not None:
            member.process.send_signal(signal.SIGCONT)
        member.is_stopped = False

    def forget(self, member: Member) -> None:
        """It is no node of the cluster any more; what it left is still looked at."""
        self.kill(member)
        self.gone.append(self.members.pop(member.number))

    def order(self, member: Member, **order: Any) -> None:
        if member.process is not None:
            with contextlib.suppress(BrokenPipeError):
                member.process.stdin.write(json.dumps(order).encode() + b"\n")

    def cut(self, links: Iterable[tuple[Member, Member]], *, holds: bool = False) -> None:
        """Exactly these links, each one way; none: all is whole."""
        wanted = list(links)
        for member in self.members.values():
            if member.is_up:
                self.order(member, cuts=[to.port for source, to in wanted if source is member], holds=holds)

    def close_pipes(self, member: Member) -> None:
        """What the process said goes to a file beside its data."""
        process = member.process
        if process is None:
            return
        process.kill()
        process.wait()
        member.folder.mkdir(parents=True, exist_ok=True)
        with (member.folder / "said").open("a") as said:
            said.write(f"--- life {member.lives - 1}, code {process.returncode}\n{process.stderr.read()}")
            said.write(read_all(process.stdout.fileno()))
        process.close()
        member.process = None

    def close(self) -> None:
        for member in (*self.members.values(), *self.gone):
            self.kill(member)
            self.close_pipes(member)

    # --- questions ---

    async def ask(self, member: Member, method: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> Any:
        """Raises one of AWAY."""
        async with asyncio.timeout(seconds):
            link = await ClientLink.connect(member.client_port)
            try:
                return await link.ask(method, *arguments)
            finally:
                link.close()

    async def look(self) -> None:
        """How each of them stands; empty: it does not answer."""
        members = list(self.members.values())
        found = await asyncio.gather(*(self._status(member) for member in members))
        for member, status in zip(members, found, strict=True):
            member.status = status

    async def _status(self, member: Member) -> dict[str, Any]:
        if not member.is_up or member.is_stopped:
            return {}
        try:
            found: dict[str, Any] = await self.ask(member, "status")
        except AWAY:
            return {}
        return found

    async def leader(self) -> Member | None:
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
        """All are up and ready, one leads, all have applied as much."""
        await self.until(self._is_whole)

    def _is_whole(self) -> bool:
        found = [member.status for member in self.members.values()]
        if not all(status.get("is_ready") for status in found):
            return False
        return sum(status["leads"] for status in found) == 1 and len({status["applied"] for status in found}) == 1


def read_all(fd: int) -> str:
    """What is in a pipe that nobody writes to any more."""
    os.set_blocking(fd, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(fd, 65_536):
            found += data
    return found.decode(errors="replace")
