"""The processes that a broker starts and keeps alive: they never outlive it (hazard 39, runtime/parent*.py).

    starting --it says on which port it listens--> up --it ends--> waiting --after a while--> starting
        └──────────────── it ends ───────────────────────────────────┘
    any of them --stop--> stopped      its stdin is closed, which asks it to stop; after CHILD_STOP_SECONDS it is killed

How long it waits doubles with each failure and begins anew after CHILD_STEADY_SECONDS of good work. The broker waits
for none of this: it serves without its children.

A child says one line on its stdout when it is ready, {"port": …}; what it logs goes to the broker's stderr. One that
cannot run on this machine says {"missing": …} instead: it is not started again, and the broker says so once.
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

_log = get_logger("children")


class Ready(msgspec.Struct):
    port: int = 0
    missing: str = ""


def backoff_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row, from 1."""
    return min(limits.CHILD_RETRY_SECONDS_MIN * 2.0 ** min(failures - 1, 30), limits.CHILD_RETRY_SECONDS_MAX)


class Child:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        clock: Clock,
        environment: Callable[[], Mapping[str, str]] = dict,
        without: str = "",
    ) -> None:
        """`environment`: added to our own, asked at each start. `without`: what a broker lacks that cannot have it."""
        self.name = name
        self._environment = environment
        self._without = without
        self._missing = ""
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
        reason = f"listens on port {self.port}" if self.is_up else self._reason
        return Check(self.name, self.is_up, reason, is_needed=False)

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
        finally:
            self.port = 0
            self._process = None
            _kill(process)
        return f"it ended with code {code}"

    async def _listen_to(self, process: Process) -> None:
        """Until it says no more. Only its first line is of interest."""
        assert process.stdout is not None
        with contextlib.suppress(ValueError, msgspec.MsgspecError):
            first = await process.stdout.readline()
            said = msgspec.json.decode(first, type=Ready) if first else Ready()
            self.port, self._missing = said.port, said.missing
        while await process.stdout.read(limits.CHILD_READ_BYTES):
            pass

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
