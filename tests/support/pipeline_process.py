"""A broker with its lake process and its pipeline, as a person starts them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.lake_run import LakeRun, get, until


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

    def health(self) -> str:
        return self._run.health()

    def metrics(self) -> str:
        found = until(lambda: re.search(r"\[\+\] pipeline: listens on port (\d+)", self.health()))
        return get(int(found[1]), "/metrics")[1]

    def icestream(self, *arguments: str) -> Any:
        """What a command answers in JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "icestream.cli.main", *arguments, "--socket", str(self.data_dir / "broker.sock")],
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
