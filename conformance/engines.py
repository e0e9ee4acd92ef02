"""`make flink` and `make trino`: engines that are too large for `make test`, at the catalog of a real broker.

Each is installed once, by the commands of its section in docs/engines.md, into a folder of .venv; a variable tells its
test which one. Their libraries are not ours, so each has an environment of its own. `make clean` removes them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.kit import ROOT, Missing


@dataclass(frozen=True, slots=True)
class PageEngine:
    name: str  # of the target of make, and of the folder
    section: str  # of docs/engines.md, whose first shell block installs the engine
    contents: str  # what that block fetches

    @property
    def folder(self) -> Path:
        return ROOT / ".venv" / self.name

    @property
    def variable(self) -> str:
        """What tells the test the folder."""
        return f"ICESTREAM_{self.name.upper()}"

    @property
    def test(self) -> str:
        return f"tests/engines/test_{self.name}.py"


ENGINES: Final = {
    engine.name: engine
    for engine in (
        PageEngine("flink", "## Flink", "Flink 2.1 and Iceberg's connector (600 MB)"),
        PageEngine("trino", "## Trino", "Trino 476 and Java 25 (900 MB)"),
    )
}


def main(name: str) -> int:
    """The exit code of the engine's test."""
    engine = ENGINES[name]
    try:
        install(engine)
    except Missing as missing:
        print(f"{name}: {missing}", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", engine.test]
    environment = {**os.environ, engine.variable: str(engine.folder)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def install(engine: PageEngine) -> None:
    """Makes the engine's folder, which has its name only once everything is in it. Raises Missing."""
    if engine.folder.is_dir():
        return
    if shutil.which("mvn") is None:
        raise Missing(f"there is no Maven, which fetches {engine.contents}: `apt install maven`")
    print(f"{engine.name}: installing {engine.contents}, once", flush=True)
    coming = engine.folder.with_suffix(".coming")
    shutil.rmtree(coming, ignore_errors=True)
    coming.mkdir(parents=True)
    done = subprocess.run(["sh", "-ec", steps(engine)], cwd=coming, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"{engine.name} cannot be installed:\n{(done.stdout + done.stderr)[-2000:]}")
    coming.rename(engine.folder)


def steps(engine: PageEngine) -> str:
    """The commands that install the engine, as the page has them."""
    section = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8").partition(engine.section)[2]
    return re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
