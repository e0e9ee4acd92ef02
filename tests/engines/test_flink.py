"""Flink at the catalog: the commands of docs/engines.md, with a Flink that was installed as the page says.

Not part of `make test`: it is as large as Spark. `make flink` installs it by the page's own commands, and runs this.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.lake_run import LakeRun, get
from tests.tidy.tree import read

VARIABLE = "ICESTREAM_FLINK"
USUAL = "http://127.0.0.1:8181"
SECONDS_MAX = 600


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"no {VARIABLE}, a folder with apache-flink: make flink")
@pytest.mark.timeout(SECONDS_MAX + 60)
def test_flink_creates_writes_and_reads_a_table(tmp_path: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", read("docs/engines.md"), flags=re.DOTALL)[-1]
    with LakeRun(tmp_path / "data") as broker:
        broker.until_api()
        done = subprocess.run(
            [
                Path(os.environ[VARIABLE], "flink/bin/python"),
                "-c",
                program.replace(USUAL, f"http://127.0.0.1:{broker.lake_port}"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.splitlines()[-1] == "['/shop']"
        assert '"total-records":"2"' in get(broker.lake_port, "/v1/namespaces/demo/tables/clicks")[1]
