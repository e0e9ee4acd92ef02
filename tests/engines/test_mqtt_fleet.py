"""The example of docs/mqtt.md, as a process: a fleet of sensors by MQTT, and DuckDB on the table of its messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.pipeline_process import PipelineRun
from tests.tidy.tree import ROOT, read


def test_a_fleet_of_sensors_is_a_table(history: PipelineRun, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, ROOT / "examples/mqtt_fleet.py", "--port", str(history.mqtt_port),
            "--catalog", history.uri, "--sensors", "4", "--readings", "10",
        ],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},  # where DuckDB keeps its extensions
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines() if "elapsed)" not in line]
    assert "It is back, and got the 20 readings that it had missed." in lines
    assert "The table has 40 rows, one for each reading:" in lines
    rows = {tuple(line.split(" | ")[:3]) for line in lines if line.count(" | ") == 3}
    assert rows >= {("berlin", "humidity", "10"), ("oslo", "temperature", "5"), ("porto", "temperature", "5")}
    (route,) = history.icestream("mqtt", "routes")
    assert (route["topic"], route["table"]) == ("/mqtt/messages", ["mqtt", "messages"])
    topics = history.icestream("mqtt", "topics", "--contains", "temp")
    assert [topic["messages"] for topic in topics] == [5, 5, 5, 5]
    # The page shows what the example prints.
    assert all(re.search(rf"^ *{word}", read("docs/mqtt.md"), re.MULTILINE) for word in ("It is back", "The table has"))
