"""`icestream` as a process of its own, on a directory of the test: as a person starts it, or from the nursery."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from icestream.pipeline.driver.effects import VARIABLE as FAULT
from tests.support.nursery import NurseryProcess, nursery

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
)  # fmt: skip


class ServeProcess:
    """`icestream serve`, from its start to its end. Leaves nothing behind."""

    def __init__(self, data_dir: Path, *arguments: str, is_fork: bool = False) -> None:
        """`is_fork`: of a process that has imported everything, for those that start many (nursery.py)."""
        given = ("serve", "--set", f"data_dir={data_dir}", *SMALL, *arguments)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_") or name == FAULT
        }
        environment["PYTHONFAULTHANDLER"] = "1"  # the nursery's forks have it
        self._process: subprocess.Popen[str] | NurseryProcess
        if is_fork:
            self._process = nursery().start("icestream.cli.main:main", given, data_dir.parent, environment)
        else:
            self._process = subprocess.Popen(
                [*COMMAND, *given],
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
        """Everything that it says until it is ready, or until a line begins with `last`. Whoever takes too long ends
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
        """What it says to a program, with `--output json`."""
        line = self._pipe(self._process.stdout).readline()
        assert line, self._pipe(self._process.stderr).read()
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Its exit code, and what it said after the signal."""
        self._process.send_signal(number)
        said, _ = self._process.communicate(timeout=WAIT_SECONDS)
        return self._process.wait(WAIT_SECONDS), said

    def stopped_in_order(self) -> str:
        """After SIGTERM: what was not read yet of its stdout, and all of its stderr."""
        self._process.send_signal(signal.SIGTERM)
        code, out, err = self.end()
        assert code == 0, err
        return out + err

    def end(self) -> tuple[int, str, str]:
        """Its exit code, stdout and stderr, when it ends by itself."""
        out, err = self._process.communicate(timeout=WAIT_SECONDS)
        return self._process.wait(WAIT_SECONDS), out, err

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(ProcessLookupError):  # it has ended since, and the nursery has seen it
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=WAIT_SECONDS)
