"""Processes that start in milliseconds: forks of one that has imported everything already.

Nine tenths of the start of a broker are imports, and tests that kill brokers start many. A fork server is a child of
the test process without threads. For each request it forks, and the fork calls the function that the command would have
called, with the same arguments. The fork is an ordinary process with a session of its own, killed by its pid.

The socket between them preserves message boundaries.
    request    {call: "module:function", arguments, directory, environment}, with stdin, stdout and stderr
    replies    {started: pid}, {ended: pid, code}; a code below 0 is the signal that ended the process
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 60.0
MESSAGE_BYTES_MAX = 200_000
# A command of the command line loads what it needs when it is called: that is named here, too (test_fork_server.py).
PRELOADED = (
    "uvloop",
    "icestream.cli.main",
    "icestream.cli.serve",
    "icestream.runtime.loop",
    "icestream.runtime.time_slice",
    "icestream.processes.broker_process",
    "tests.support.writer_load",
    "icestream.runtime.file_access",
)


class ForkServer:
    """The test's end of it. Not for several threads."""

    def __init__(self, *, native: bool) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, "native" if native else "plain"]
        with theirs:
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=theirs)
        self._socket.settimeout(WAIT_SECONDS)
        self._ended: dict[int, int] = {}

    def start(
        self, call: str, arguments: Iterable[str], directory: Path, environment: Mapping[str, str] = os.environ
    ) -> ForkedProcess:
        """Starts a process. Its stderr goes to a file: it never blocks on a pipe that is not read."""
        request = {
            "call": call,
            "arguments": [*arguments],
            "directory": str(directory),
            "environment": {**environment},
        }
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        errors = tempfile.TemporaryFile("w+b", buffering=0)  # noqa: SIM115  # it lives as long as the process
        socket.send_fds(self._socket, [json.dumps(request).encode()], [read_in, write_out, errors.fileno()])
        os.close(read_in)
        os.close(write_out)
        while (started := self._hear().get("started")) is None:
            pass
        # Process ids are reused: the end of an earlier process with this one would be taken for its own.
        self._ended.pop(started, None)
        return ForkedProcess(self, started, write_in, read_out, errors)

    def _hear(self) -> dict[str, Any]:
        message = self._socket.recv(MESSAGE_BYTES_MAX)
        assert message, "the fork server has ended"
        event: dict[str, Any] = json.loads(message)
        if "ended" in event:
            self._ended[event["ended"]] = event["code"]
        return event

    def end_of(self, pid: int, seconds: float) -> int | None:
        """The code with which it ended; None: it has not within that time."""
        deadline = time.monotonic() + seconds
        while pid not in self._ended:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.000_1))
            try:
                self._hear()
            except TimeoutError:
                return None
            finally:
                self._socket.settimeout(WAIT_SECONDS)
        return self._ended[pid]

    def close(self) -> None:
        self._socket.close()
        self._process.wait(WAIT_SECONDS)


@functools.cache
def fork_server(*, native: bool = True) -> ForkServer:
    """The one of this test process; it ends with it. There is another one for processes without the native part."""
    server = ForkServer(native=native)
    atexit.register(server.close)
    return server


class ForkedProcess:
    """The part of `subprocess.Popen` that tests need, under the same names."""

    def __init__(self, home: ForkServer, pid: int, stdin: int, stdout: int, errors: IO[bytes]) -> None:
        self.pid = pid
        self._home = home
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb", buffering=0)
        self.stdout: IO[str] = os.fdopen(stdout, encoding="utf-8")
        self._errors = errors
        self.returncode: int | None = None

    @property
    def stderr(self) -> IO[str]:
        """The stderr of the process until now."""
        size = os.fstat(self._errors.fileno()).st_size
        return io.StringIO(os.pread(self._errors.fileno(), size, 0).decode())

    def poll(self) -> int | None:
        return self._wait(0.0)

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        code = self._wait(timeout)
        assert code is not None, f"process {self.pid} has not ended in {timeout} s"
        return code

    def _wait(self, seconds: float) -> int | None:
        if self.returncode is None:
            self.returncode = self._home.end_of(self.pid, seconds)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and the fork server's word is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def kill_group(self) -> None:
        """SIGKILL for it and for all that it has started; its own first: it may not have made its group yet."""
        self.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float = WAIT_SECONDS) -> tuple[str, str]:
        """Waits for the end of the process; returns the rest of its stdout, and its stderr."""
        out, err = "", ""
        if not self.stdout.closed:
            self.stdin.close()
            out = self._rest_of_stdout(timeout)
            err = self.stderr.read()
        self.wait(timeout)
        self.close()
        return out, err

    def _rest_of_stdout(self, seconds: float) -> str:
        """Up to the end of the pipe, or of the process: something that it has started may hold the pipe open."""
        rest = b""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            while True:
                has_ended = self.poll() is not None
                if selector.select(0.0 if has_ended else 0.5):
                    read = os.read(self.stdout.fileno(), 65_536)
                    rest += read
                    if not read:
                        return rest.decode()
                    deadline = time.monotonic() + seconds
                elif has_ended:
                    return rest.decode()
                elif time.monotonic() > deadline:
                    raise AssertionError(
                        f"process {self.pid} was silent for {seconds} s and has not ended: {_state_of(self.pid)}"
                    )

    def close(self) -> None:
        for pipe in (self.stdin, self.stdout, self._errors):
            pipe.close()


def _state_of(pid: int) -> str:
    """What the kernel says of a process: its state, and where it waits if it is asleep."""
    words = []
    for name in ("stat", "wchan"):
        try:
            words.append(Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8").strip())
        except OSError as error:
            words.append(str(error))
    return ", ".join(words)


# --- the process of the fork server -----------------------------------------------------------------------------------


def main() -> None:
    home = socket.socket(fileno=0)
    if sys.argv[1] == "plain":
        # As on a machine without a native build. Before the first import of icestream.
        sys.modules["icestream_native"] = None  # type: ignore[assignment]
    for module in PRELOADED:
        importlib.import_module(module)
    wakeups, woken = socket.socketpair()
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(home, selectors.EVENT_READ)
        selector.register(wakeups, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wakeups:
                    wakeups.recv(1_000)
                    _tell_ends(home)
                elif not _start(home):
                    return


def _tell_ends(home: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        home.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _start(home: socket.socket) -> bool:
    """Starts the next requested process; False when the client has closed its end."""
    request, pipes, _, _ = socket.recv_fds(home, MESSAGE_BYTES_MAX, 3)
    if not request:
        return False
    pid = os.fork()
    if not pid:
        _live(json.loads(request), pipes)
    for pipe in pipes:
        os.close(pipe)
    home.send(json.dumps({"started": pid}).encode())
    return True


def _live(request: dict[str, Any], pipes: list[int]) -> None:
    """The life of a fork. Does not come back."""
    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
        os.closerange(3, 1_000)
        # the streams of the fork server know what its own files can do; these are pipes
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        faulthandler.enable()
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["icestream", *request["arguments"]]
        module, _, name = request["call"].partition(":")
        code = getattr(importlib.import_module(module), name)() or 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:  # noqa: BLE001  # the end of a process, as of every other: with a traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
