"""The processes that a broker starts and keeps alive: they never outlive it (hazard 39, runtime/parent*.py).

    starting --it says on which port it listens--> up --it ends--> waiting --after a while--> starting
        └──────────────── it ends ───────────────────────────────────┘
    any of them --stop--> stopped      its stdin is closed, which asks it to stop; after CHILD_STOP_SECONDS it is killed

How long it waits doubles with each failure and begins anew after CHILD_STEADY_SECONDS of good work. The broker waits
for none of this: it serves without its children.

A child says one line on its stdout when it is ready, {"port": …}; what it logs goes to the broker's stderr. One that
cannot run on this machine says {"missing": …} instead: it is not started again, and the broker says so once. One that
cannot be used as it is configured says {"refused": …}, such as a port that another process has: it is started again,
for the port may become free. Later lines tell when all connections of its listener are taken, and when they are no
longer: {"connections": […]}, a RoomState.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence

import msgspec

from icestream import limits
from icestream.observability.health import Check
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.connection_room import RoomState

_log = get_logger("children")


class ReadyLine(msgspec.Struct):
    port: int = 0
    missing: str = ""
    refused: str = ""


class StatusLine(msgspec.Struct):
    connections: RoomState | None = None


def backoff_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row, from 1."""
    return min(limits.CHILD_RETRY_SECONDS_MIN * 2.0 ** min(failures - 1, 30), limits.CHILD_RETRY_SECONDS_MAX)


class ChildProcess:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        clock: Clock,
        environment: Callable[[], Mapping[str, str]] = dict,
        without: str = "",
        *,
        is_refusal_critical: bool = False,
    ) -> None:
        """`environment`: added to our own, asked at each start. `without`: what a broker lacks that cannot have it.
        `is_refusal_critical`: a node whose child refuses its configuration is not ready."""
        self.name = name
        self._environment = environment
        self._without = without
        self._missing = ""
        self._refused = ""
        self._is_refusal_critical = is_refusal_critical
        self.room: RoomState | None = None  # the connections of its listener, as it told last
        self.port = 0
        self.restarts = 0
        self._command = command
        self._clock = clock
        self._process: Process | None = None
        self._creating = asyncio.Lock()
        self._reason = "it is being started"
        self._stopping = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self.port > 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def check(self) -> Check:
        if self.is_up:
            return Check(self.name, True, f"listens on port {self.port}", is_needed=False)
        return Check(self.name, False, self._reason, is_needed=bool(self._refused) and self._is_refusal_critical)

    async def run(self) -> None:
        """Starts it, again and again, until it is stopped."""
        failures = 0
        while not self._stopping.is_set():
            began_ns = self._clock.monotonic_ns()
            ended = await self._live()
            if self._stopping.is_set():
                break
            if self._missing:
                self._reason = self._missing
                _log.warning(self._without or "a child process cannot run", process=self.name, reason=self._missing)
                return
            lived_seconds = (self._clock.monotonic_ns() - began_ns) / 1e9
            failures = 1 if lived_seconds >= limits.CHILD_STEADY_SECONDS else failures + 1
            pause = backoff_seconds(failures)
            self._reason = f"{ended}; it is started again after {pause:g} s"
            _log.warning("a child process ended", process=self.name, reason=ended, again_seconds=pause)
            await self._clock.sleep(pause)
            self.restarts += 1
        self._reason = "it was stopped"

    async def _live(self) -> str:
        """One life of it; how it ended."""
        try:
            # a session of its own: a Ctrl-C at the terminal is the broker's to answer, which then stops it in order
            async with self._creating:
                process = self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=PIPE,
                    stdout=PIPE,
                    start_new_session=True,
                    env={**os.environ, **self._environment()},
                )
        except OSError as error:
            return f"it cannot be started: {error}"
        try:
            await self._listen_to(process)
            code = await process.wait()
            ended = self._refused or f"it ended with code {code}"
        finally:
            self.port = 0
            self.room = None
            self._process = None
            _kill(process)
        return ended

    async def _listen_to(self, process: Process) -> None:
        """Until it says no more. A line that is none of ours is skipped."""
        assert process.stdout is not None
        with contextlib.suppress(ValueError, msgspec.MsgspecError):
            first = await process.stdout.readline()
            said = msgspec.json.decode(first, type=ReadyLine) if first else ReadyLine()
            self.port, self._missing, self._refused = said.port, said.missing, said.refused
            self._reason = self._refused or self._reason
        while True:
            try:
                line = await process.stdout.readline()
                if not line:
                    return
                self.room = msgspec.json.decode(line, type=StatusLine).connections or self.room
            except (ValueError, msgspec.MsgspecError):
                continue

    async def stop(self) -> None:
        """Gone when this returns."""
        self._stopping.set()
        async with self._creating:  # one that is half started could not be told to stop
            process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(limits.CHILD_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            _log.warning("a child process did not stop and is killed", process=self.name)
            _kill(process)
            await process.wait()


def _kill(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
