"""The parent's side of a writer process: what it says, line by line, and its end."""

from __future__ import annotations

import json
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.fork_server import fork_server
from tests.support.writer_plan import WriterPlan

WAIT_SECONDS = 60.0

Line = list[Any]


class ChildProcess:
    """A writer process in a process group of its own. `close` leaves nothing of it behind."""

    def __init__(self, plan: WriterPlan) -> None:
        self.plan = plan
        home = fork_server(native=plan.native)
        self._process = home.start("tests.support.writer_process:main", [plan.to_json()], Path.cwd())
        self._out = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._lines: deque[bytes] = deque()
        self._rest = b""  # of a line whose end has not come yet
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self, seconds: float = WAIT_SECONDS) -> Iterator[Line]:
        """The lines that the process prints within that time; ends earlier when it closes its stdout."""
        deadline = time.monotonic() + seconds
        while True:
            while self._lines:
                yield json.loads(self._lines.popleft())
            if self._ended or not self._receive(deadline - time.monotonic()):
                return

    def _receive(self, seconds: float) -> bool:
        if not self._selector.select(max(seconds, 0)):
            return False
        received = os.read(self._out, 1 << 20)
        self._ended = not received
        *whole, self._rest = (self._rest + received).split(b"\n")
        self._lines.extend(whole)
        return seconds > 0

    def wait_for(self, kind: str, hear: Callable[[Line], None] = lambda _: None) -> Line:
        """The first line of this kind; `hear` gets it and all before it."""
        for line in self.lines():
            hear(line)
            if line[0] == kind:
                return line
            assert line[0] != "failed", line[1]
        raise AssertionError(f"the process ended or was silent for {WAIT_SECONDS} s: no {kind!r} came")

    def kill(self) -> list[Line]:
        """Kills the process with SIGKILL. Returns its output that was not read yet."""
        self._process.kill()
        self._process.wait()
        return list(self.lines())

    def stop(self, hear: Callable[[Line], None] = lambda _: None) -> None:
        """Ends it in order."""
        self._process.stdin.write(b"stop\n")
        self.wait_for("closed", hear)
        assert self._process.wait(WAIT_SECONDS) == 0

    def wait(self) -> int:
        return self._process.wait(WAIT_SECONDS)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill_group()
            self._process.wait()
        self._selector.close()
        self._process.close()
