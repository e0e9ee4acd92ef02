"""A broker with its lake process and its pipeline, as a person starts them."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.lake_run import LakeRun, children_of, get, until
from tests.support.serve_process import COMMAND, SMALL


class PipelineRun:
    """`icestream serve` with everything that belongs to it, on free ports; rounds come at once."""

    def __init__(self, data_dir: Path, *arguments: str, interval: str = "100ms") -> None:
        self.data_dir = data_dir
        self._is_stopped = False
        self._run = LakeRun(
            data_dir,
            "--set", "pipeline.managed=true",
            "--set", f"storage.iceberg_config.writer_flush_interval_ms={interval}",
            *arguments,
        )  # fmt: skip
        with self._run.process.killed_on_failure():
            self._run.until_api()

    @property
    def backups(self) -> Path:
        """The backup target of brokers that have one."""
        return self.data_dir.parent / "backups"

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._run.lake_port}"

    @property
    def address(self) -> str:
        """Of its native port."""
        address = re.search(r"native (127\.0\.0\.1:\d+)", self._run.greeting)
        assert address is not None, self._run.greeting
        return address[1]

    @property
    def mqtt_port(self) -> int:
        """Of a broker that serves MQTT."""
        port = re.search(r"mqtt://127\.0\.0\.1:(\d+)", self._run.greeting)
        assert port is not None, self._run.greeting
        return int(port[1])

    @property
    def pid(self) -> int:
        return self._run.process.pid

    @property
    def driver_pid(self) -> int:
        """Of the broker's own; 0 while there is none."""
        return self._child("pipeline")

    @property
    def lake_pid(self) -> int:
        return until(lambda: self._child("lake"))

    def _child(self, name: str) -> int:
        for child in children_of(self.pid):
            command = _command(child)
            if "icestream.processes.child_main" in command and name in command:
                return child
        return 0

    def stop(self) -> str:
        """In order, verified; all that it and its children said on both streams since the greeting."""
        self.verify()
        self._is_stopped = True
        return self._run.process.stopped_in_order()

    def kill(self) -> None:
        """kill -9 of the broker; its children go with it."""
        self._run.__exit__()

    def produce(self, topic: str, count: int) -> None:
        """Payloads 0, 1, …"""
        lines = "".join(f"{number}\n" for number in range(count))
        done = subprocess.run(
            [*COMMAND, "produce", topic, "--broker", self.address],
            input=lines,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def health(self) -> str:
        return self._run.health()

    def says(self, last: str) -> list[str]:
        """The lines after the greeting, up to the one that begins with `last`."""
        return self._run.process.greeting(120.0, last)

    def metrics(self) -> str:
        health_line = until(lambda: re.search(r"\[\+\] pipeline: listens on port (\d+)", self.health()))
        return get(int(health_line[1]), "/metrics")[1]

    def api(self, path: str) -> Any:
        """The answer of the API of the lake process."""
        status, text = get(self._run.lake_port, f"/api/v1/{path}")
        assert status == 200, text
        return json.loads(text)

    def broker_metrics(self) -> str:
        """The page of the broker's own process."""
        return get(self._run.http_port, "/metrics")[1]

    def reads_by_tier(self) -> dict[str, float]:
        """Of subscriptions, as its metrics count them."""
        text = self.broker_metrics()
        polls = re.findall(r'^icestream_reader_polls_total\{tier="(\w+)"\} (\S+)$', text, flags=re.MULTILINE)
        return {tier: float(count) for tier, count in polls}

    def icestream(self, *arguments: str) -> Any:
        """The JSON output of a command."""
        done = self.command(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refusal(self, *arguments: str) -> str:
        """What a command that fails says."""
        done = self.command(*arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments, "--output", "json", "--broker", str(self.data_dir / "broker.sock")],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def lake(self, *arguments: str) -> Any:
        """`icestream lake …`, of commands that ask the lake process."""
        port = ("--set", f"ports.lake={self._run.lake_port}")
        done = subprocess.run(
            [*COMMAND, "lake", *arguments, "--output", "json", *port], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def second_driver(self) -> Iterator[None]:
        """Another pipeline for the same broker, started by hand."""
        sets = (
            "--set", f"data_dir={self.data_dir}",
            "--set", "storage.iceberg_config.writer_flush_interval_ms=100ms",
            *SMALL,
            "--set", f"ports.lake={self._run.lake_port}",
        )  # fmt: skip
        running = subprocess.Popen([*COMMAND, "pipeline", "run", *sets], cwd=self.data_dir.parent)
        try:
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0

    def __enter__(self) -> PipelineRun:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Verifies the tables, unless the test has failed already (hazard 38)."""
        try:
            if kind is None and not self._is_stopped:
                self.verify()
        finally:
            self._run.__exit__()

    def verified(self, *arguments: str) -> Any:
        """The report of `icestream verify` on one topic."""
        port = ("--set", f"ports.lake={self._run.lake_port}")
        done = subprocess.run(
            [*COMMAND, "verify", *arguments, "--output", "json", *port], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def verify(self) -> None:
        """From all rows of all tables, while it goes on."""
        for bound in self.api("lake/bound")["items"]:
            report = self.api(f"lake/verify?deep=true&topic={bound['topic']}")
            assert report["is_good"], report


def state_of(pid: int) -> str:
    """One letter of the kernel's, behind the name in brackets; none when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
