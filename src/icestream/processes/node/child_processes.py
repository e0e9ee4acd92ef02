"""The child processes of a broker: started, restarted, and never left behind (hazard 39, runtime/parent_pipe.py).

    starting --reports its port--> up --ends--> waiting --after a backoff--> starting
        └──────────────── ends ───────────────────────┘
    any of them --stop--> stopped      its stdin is closed, which asks it to stop; after CHILD_STOP_SECONDS it is killed

The backoff doubles with each failure and is reset after CHILD_STEADY_SECONDS of running. The broker does not wait for
its children: it serves without them.

A child writes one line to its stdout when it is ready: {"port": …}. Its log messages go to the broker's stderr. A child
that cannot run on this machine writes {"missing": …} instead: it is not restarted, and the broker logs it once. A child
with a configuration that cannot be used, such as a port that another process has, writes {"refused": …}: it is
restarted, because the port may become free. Later lines report when all connections of its listener are taken, and when
they are no longer: {"connections": […]}, a RoomState.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Collection, Sequence

import msgspec

from icestream import limits
from icestream.observability.health import Check
from icestream.observability.log import get_logger
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.child_variables import child_variables
from icestream.runtime.clock import Clock
from icestream.runtime.connection_room import RoomState

_log = get_logger("children")


class ReadyLine(msgspec.Struct):
    """The first line of a child: the port on which it listens, or why it cannot run."""

    port: int = 0
    missing: str = ""
    refused: str = ""


class StatusLine(msgspec.Struct):
    """Any later line of a child."""

    connections: RoomState | None = None


class ChildProcess:
    """One child process: `run` starts it again and again, until `stop`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        clock: Clock,
        first_line: Callable[[], bytes] = bytes,
        missing_message: str = "",
        *,
        is_refusal_critical: bool = False,
        variables: Collection[str] = (),
    ) -> None:
        """`first_line` is called at each start, and written to the stdin of the child: its settings. `missing_message`
        is the log message if the child cannot run here. `is_refusal_critical`: while the child refuses its
        configuration, the node is not ready. `variables`: that it gets beside the listed ones."""
        self.name = name
        self._first_line = first_line
        self._variables = variables
        self._missing_message = missing_message
        self._missing = ""
        self._refused = ""
        self._is_refusal_critical = is_refusal_critical
        self.room: RoomState | None = None  # the connections of its listener, as last reported
        self.port = 0
        self.restarts = 0
        self._command = command
        self._clock = clock
        self._process: Process | None = None
        self._creating = asyncio.Lock()  # held while the process is created: `stop` needs its stdin
        self._reason = "starting"
        self._stopping = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self.port > 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def check(self) -> Check:
        """The readiness check: informational, unless the child refuses its configuration and that is critical."""
        if self.is_up:
            return Check(self.name, True, f"listens on port {self.port}", is_needed=False)
        return Check(self.name, False, self._reason, is_needed=bool(self._refused) and self._is_refusal_critical)

    async def run(self) -> None:
        """Runs the child and restarts it, until `stop`."""
        failures = 0
        while not self._stopping.is_set():
            began_ns = self._clock.monotonic_ns()
            end_reason = await self._run_once()
            if self._stopping.is_set():
                break
            if self._missing:
                self._reason = self._missing
                _log.warning(
                    self._missing_message or "child process cannot run on this machine",
                    process=self.name,
                    reason=self._missing,
                )
                return
            lived_seconds = (self._clock.monotonic_ns() - began_ns) / 1e9
            failures = 1 if lived_seconds >= limits.CHILD_STEADY_SECONDS else failures + 1
            pause = backoff_seconds(failures, limits.CHILD_RETRY_SECONDS_MIN, limits.CHILD_RETRY_SECONDS_MAX)
            self._reason = f"{end_reason}; next start in {pause:g} s"
            _log.warning("child process ended", process=self.name, reason=end_reason, restart_seconds=pause)
            await self._clock.sleep(pause)
            self.restarts += 1
        self._reason = "stopped"

    async def _run_once(self) -> str:
        """Runs the child until it ends; returns why it ended."""
        try:
            # A session of its own: Ctrl-C at the terminal reaches only the broker, which stops its children in order.
            async with self._creating:
                process = self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=PIPE,
                    stdout=PIPE,
                    start_new_session=True,
                    env=child_variables(os.environ, self._variables),
                )
                assert process.stdin is not None
                process.stdin.write(self._first_line())
        except OSError as error:
            return f"cannot be started: {error}"
        try:
            await self._read_status_lines(process)
            code = await process.wait()
            end_reason = self._refused or f"ended with exit code {code}"
        finally:
            self.port = 0
            self.room = None
            self._process = None
            _kill(process)
        return end_reason

    async def _read_status_lines(self, process: Process) -> None:
        """Reads the stdout of the child until its end; lines of another form are skipped."""
        assert process.stdout is not None
        with contextlib.suppress(ValueError, msgspec.MsgspecError):
            first = await process.stdout.readline()
            ready = msgspec.json.decode(first, type=ReadyLine) if first else ReadyLine()
            self.port, self._missing, self._refused = ready.port, ready.missing, ready.refused
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
        """Asks the child to stop, kills it after CHILD_STOP_SECONDS, and returns when it has ended."""
        self._stopping.set()
        async with self._creating:  # wait for a process that is being created: it has no stdin to close yet
            process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(limits.CHILD_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            _log.warning("killing a child process that did not stop in time", process=self.name)
            _kill(process)
            await process.wait()


def _kill(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
