"""An erasure in a cluster of three brokers as processes: the node of the topic does it, with its own pipeline (ADR
129)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import icestream
from tests.support.serve_process import COMMAND
from tests.support.three_broker_processes import ThreeBrokerProcesses

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
TOPIC = "/default/orders"
ERASE = ("lake", "erase", TOPIC, "--where", "shard = 0 and offset in (2, 5)")
PIPELINE = (
    "--set", "lake.managed=true",
    "--set", "pipeline.managed=true",
    "--set", "storage.iceberg_config.writer_flush_interval_ms=100ms",
)  # fmt: skip


def ran(nodes: ThreeBrokerProcesses, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    """A command over the local socket of a node."""
    socket = nodes.folder / "data" / str(nodes.ports[number]) / "broker.sock"
    command = [*COMMAND, *words, "--broker", str(socket), "--output", "json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def done(nodes: ThreeBrokerProcesses, number: int, *words: str) -> Any:
    result = ran(nodes, number, *words)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_node_of_a_topic_erases_it_and_the_others_name_that_node(tmp_path: Path) -> None:
    with ThreeBrokerProcesses(tmp_path) as nodes:
        nodes.begin(0, *PIPELINE)
        nodes.begin(1)
        nodes.begin(2)
        first, *_ = [nodes.running[number].announcement() for number in range(3)]
        with (
            icestream.connect_sync(first["address"], wait=60, call_timeout=60) as client,
            client.producer(TOPIC) as producer,
        ):
            for number in range(9):
                producer.send(b"%d" % number)
        done(nodes, 0, "lake", "commit-now", "--wait", "120")
        refused = ran(nodes, 1, *ERASE, "--dry-run")
        assert refused.returncode != 0
        assert "is served by node node-1" in refused.stderr
        report = done(nodes, 0, *ERASE, "--history", "rewrite", "--yes")["report"]
        assert (report["erased"], report["node"]) == (2, "node-1")

        nodes.kill(0)
        down = ran(nodes, 1, *ERASE, "--check")
        assert "is down or cannot be reached" in down.stderr
        nodes.begin(0, *PIPELINE).announcement()
        checked = ran(nodes, 0, *ERASE, "--check")
        left = json.loads(checked.stdout)["report"]["left"]
        # Files of before wait for the clean-up.
        assert [place for place in left if not place.startswith(("storage", "metadata"))] == [], checked.stderr
