"""The benchmarks are not part of the suite, but they must at least load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_scenario_of_the_benchmark_loads() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "bench", "--list"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert listed.returncode == 0, listed.stderr
    names = {path.stem for path in (ROOT / "bench" / "scenarios").glob("*.py")} - {"__init__"}
    assert {line.split()[0] for line in listed.stdout.splitlines()} == names


@pytest.mark.parametrize(
    "name",
    [
        "backlog",
        "burst_client",
        "mqtt_clients",
        "care_load",
        "catalog_client",
        "danube_client",
        "paced",
        "python_client",
        "raft.metadata_work",
        "raft.node_process",
        "replay_client",
        "spark_append",
        "watch_table",
    ],
)
def test_the_child_processes_of_the_benchmark_load(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"python -m bench.{name}" in done.stderr
