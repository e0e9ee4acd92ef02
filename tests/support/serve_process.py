"""`icestream` as a process of its own, on a directory of the test: as a person starts it, or from the fork server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from icestream.pipeline.driver.effects import VARIABLE as FAULT
from tests.support.fork_server import ForkedProcess, fork_server

WAIT_SECONDS = 30.0
SILENT_SECONDS = 60.0  # before a start is asked what it is waiting for
READY = "Stop with Ctrl-C."
COMMAND = (sys.executable, "-c", "from icestream.cli.main import main; main()")
# Small files, and none zeroed in the background: what is tested here is the process, not its disk.
SMALL = (
    "--set", "storage.iceberg_config.wal.max_file_size=64KiB",
    "--set", "storage.iceberg_config.wal.max_message_bytes=8000",
    "--set", "storage.iceberg_config.wal.spare_files=0",
    "--set", "storage.iceberg_config.wal.ballast=0",
    "--set", "ports.native=0",
    "--set", "ports.broker_http=0",
    "--set", "ports.lake=0",
    "--set", "lake.managed=false",
    "--set", "pipeline.managed=false",
    "--set", "ports.pipeline_metrics=0",
    "--set", "danube.enable=false",
    "--set", "ports.danube=0",
    "--set", "ports.danube_admin=0",
    "--set", "mqtt.enable=false",
    "--set", "ports.mqtt=0",
    "--set", "ports.mqtt_ws=0",
)  # fmt: skip


class ServeProcess:
    """`icestream serve`, from its start to its end. Leaves nothing behind."""

    def __init__(self, data_dir: Path, *arguments: str, is_fork: bool = False) -> None:
        """`is_fork`: of a process that has imported everything, for those that start many (fork server.py)."""
        command_arguments = ("serve", "--set", f"data_dir={data_dir}", *SMALL, *arguments)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_") or name == FAULT
        }
        environment["PYTHONFAULTHANDLER"] = "1"  # the fork server's forks have it
        self._process: subprocess.Popen[str] | ForkedProcess
        if is_fork:
            self._process = fork_server().start(
                "icestream.cli.main:main", command_arguments, data_dir.parent, environment
            )
        else:
            self._process = subprocess.Popen(
                [*COMMAND, *command_arguments],
                cwd=data_dir.parent,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def greeting(self, silent_seconds: float = SILENT_SECONDS, last: str = READY) -> list[str]:
        """The lines that it prints until it is ready, or until one begins with `last`. A process that is too slow ends
        with the stacks of its threads."""
        lines = []
        ending = threading.Timer(silent_seconds, os.kill, (self._process.pid, signal.SIGABRT))
        ending.start()
        try:
            for line in self._pipe(self._process.stdout):
                lines.append(line.rstrip("\n"))
                if lines[-1].startswith(last):
                    return lines
        finally:
            ending.cancel()
        raise AssertionError(f"it ended before it was ready: {lines} {self._pipe(self._process.stderr).read()}")

    def announcement(self) -> Any:
        """The start announcement for programs, printed with `--output json`."""
        line = self._pipe(self._process.stdout).readline()
        assert line, self._pipe(self._process.stderr).read()
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Stops the process; returns its exit code and what it printed after the signal."""
        self._process.send_signal(number)
        printed, _ = self._process.communicate(timeout=WAIT_SECONDS)
        return self._process.wait(WAIT_SECONDS), printed

    def stopped_in_order(self) -> str:
        """After SIGTERM: what was not read yet of its stdout, and all of its stderr."""
        self._process.send_signal(signal.SIGTERM)
        code, out, err = self.end()
        assert code == 0, err
        return out + err

    def end(self) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of a process that ends by itself."""
        out, err = self._process.communicate(timeout=WAIT_SECONDS)
        return self._process.wait(WAIT_SECONDS), out, err

    @contextlib.contextmanager
    def killed_on_failure(self) -> Iterator[None]:
        """For a constructor that waits for the process: if it raises, there is no object whose `__exit__` could end the
        process, and its `Popen` would complain in a later test, when it is collected with the traceback."""
        try:
            yield
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(ProcessLookupError):  # it has ended since, and the fork server has seen it
                os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.communicate(timeout=WAIT_SECONDS)
        finally:
            self._process.wait(WAIT_SECONDS)  # also where a child of it holds the pipes open
