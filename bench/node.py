"""A broker with its lake process and its pipeline, as a person starts them, and what the scenarios ask of it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import broker, process
from bench.generator import Target
from bench.harness import RunFailed

ROOT = Path(__file__).resolve().parents[1]
READY_SECONDS = 120.0
WRITER = "storage.iceberg_config"


@dataclass(frozen=True)
class Node:
    target: Target
    data_dir: Path
    lake_port: int

    @property
    def catalog(self) -> str:
        return f"http://{process.HOST}:{self.lake_port}"

    def icestream(self, *words: str) -> Any:
        """What a command answers in JSON."""
        command = [str(broker.PROGRAM), *words, "--output", "json", "--broker", str(self.data_dir / "broker.sock")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunFailed(f"{' '.join(words)}: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout)

    def commit_now(self) -> None:
        self.icestream("lake", "commit-now", "--wait", str(int(READY_SECONDS)))

    def change(self, **writer: object) -> None:
        """Settings of the writer, while it runs."""
        for key, value in writer.items():
            self.icestream("config", "set", f"{WRITER}.{key}", str(value))

    def table(self, topic: str) -> Any:
        """Its metadata document, as an engine gets it."""
        with urllib.request.urlopen(f"{self.catalog}/v1/namespaces/default/tables/{topic}", timeout=60) as answer:
            return json.load(answer)["metadata"]

    def verify(self, topic: str) -> Any:
        """The report of `icestream verify --deep`."""
        command = [str(broker.PROGRAM), "verify", topic, "--deep", "--output", "json", "--set"]
        done = subprocess.run([*command, f"ports.lake={self.lake_port}"], capture_output=True, text=True, check=False)
        if not done.stdout:
            raise RunFailed(f"verify {topic}: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout)

    def lake_pid(self) -> int:
        for pid in process.family(self.target.pid):
            if b"icestream.processes.child_main\0lake" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise RunFailed("there is no lake process")

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[None]:
        """One of our own, for a broker that has none: it comes and goes as a scenario wants it. Warm when it begins."""
        words = [str(broker.PROGRAM), "pipeline", "run", "--set", f"data_dir={self.data_dir}", "--set"]
        words += [f"ports.lake={self.lake_port}", "--set", "ports.pipeline_metrics=0"]
        with (self.data_dir.parent / "pipeline.log").open("ab") as log:
            child = subprocess.Popen(words, cwd=self.data_dir.parent, stdout=log, stderr=log)
        try:
            self.warm()
            yield
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def warm(self) -> None:
        """Spark is up and has written something, so that a scenario does not measure its start."""
        for _ in range(3):
            broker.burst(self.target, 1000, topic="warm-up")
            self.commit_now()


@contextlib.contextmanager
def running(
    path: Path,
    mode: str = "always",
    settings: Mapping[str, object] | None = None,
    *,
    has_pipeline: bool = True,
    stops: bool = False,
) -> Iterator[Node]:
    port = process.free_port()
    chosen = {
        "ports.lake": port,
        "ports.pipeline_metrics": 0,
        "pipeline.managed": str(has_pipeline).lower(),
        **(settings or {}),
    }
    with broker.running(path, mode, settings=chosen, has_lake=True, stops=stops) as target:
        found = Node(target, path / "icestream", port)
        _wait_for(found.catalog)
        if has_pipeline:
            found.warm()
        yield found


def _wait_for(url: str) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise RunFailed("the lake process did not come")


class Child:
    """A process of `python -m bench.NAME` that says one document of JSON at its end."""

    def __init__(self, name: str, *words: object) -> None:
        command = [sys.executable, "-m", f"bench.{name}", *map(str, words)]
        self._name = name
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def until_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RunFailed(f"{self._name} did not begin: {self._process.communicate()[1][-500:]}")

    def said(self, seconds: float = 600.0) -> Any:
        try:
            out, failed = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise RunFailed(f"{self._name} did not end in {seconds:g} s") from None
        if self._process.returncode:
            raise RunFailed(f"{self._name}: {(failed.strip() or 'it failed').splitlines()[-1]}")
        return json.loads(out.splitlines()[-1])

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
