"""A broker with its lake process and its pipeline, as a person starts them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.support.lake_run import LakeRun, get, until
from tests.support.serve_process import COMMAND


class PipelineRun:
    """`icestream serve` with everything that belongs to it, on free ports; rounds come at once."""

    def __init__(self, data_dir: Path, *arguments: str, interval: str = "100ms") -> None:
        self.data_dir = data_dir
        self._run = LakeRun(
            data_dir,
            "--set", "pipeline.managed=true",
            "--set", f"storage.iceberg_config.writer_flush_interval_ms={interval}",
            *arguments,
        )  # fmt: skip
        self._run.until_api()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._run.lake_port}"

    def produce(self, topic: str, count: int) -> None:
        """Payloads 0, 1, …"""
        found = re.search(r"native (127\.0\.0\.1:\d+)", self._run.said)
        assert found is not None, self._run.said
        lines = "".join(f"{number}\n" for number in range(count))
        done = subprocess.run(
            [*COMMAND, "produce", topic, "--address", found[1]],
            input=lines,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def health(self) -> str:
        return self._run.health()

    def metrics(self) -> str:
        found = until(lambda: re.search(r"\[\+\] pipeline: listens on port (\d+)", self.health()))
        return get(int(found[1]), "/metrics")[1]

    def icestream(self, *arguments: str) -> Any:
        """What a command answers in JSON."""
        done = subprocess.run(
            [*COMMAND, *arguments, "--output", "json", "--socket", str(self.data_dir / "broker.sock")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def __enter__(self) -> PipelineRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__()
