"""`make flink`: Apache Flink at the catalog, installed by the commands of docs/engines.md, in .venv/flink.

Its libraries are not ours, so it has an environment of its own. Some 600 MB come once; `make clean` removes them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Final

from conformance.kit import ROOT, Missing

FOLDER: Final = ROOT / ".venv" / "flink"
TEST: Final = "tests/engines/test_flink.py"


def main() -> int:
    try:
        python = installed()
    except Missing as missing:
        print(f"flink: {missing}", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", TEST]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "ICESTREAM_FLINK": python}, check=False).returncode


def installed() -> str:
    """The Python that has it. The folder counts once everything is in it."""
    if not FOLDER.is_dir():
        if shutil.which("mvn") is None:
            raise Missing("there is no Maven, which fetches Flink's connector: `apt install maven`")
        print("flink: installing Flink 2.1 and Iceberg's connector (600 MB, once)", flush=True)
        coming = FOLDER.with_suffix(".coming")
        shutil.rmtree(coming, ignore_errors=True)
        coming.mkdir(parents=True)
        done = subprocess.run(["sh", "-ec", steps()], cwd=coming, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Missing(f"Flink cannot be installed:\n{(done.stdout + done.stderr)[-2000:]}")
        coming.rename(FOLDER)
    return str(FOLDER / "flink" / "bin" / "python")


def steps() -> str:
    """As the page has them."""
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8").partition("## Flink")[2]
    return re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)[0]


if __name__ == "__main__":
    sys.exit(main())
