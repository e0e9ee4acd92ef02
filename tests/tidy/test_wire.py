"""The modules of Danube's messages are what their .proto files give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tidy.tree import ROOT

GENERATE = "import sys; from pathlib import Path; sys.path.insert(0, 'scripts'); import build_wire\n"
GENERATE += "for path in build_wire.generate(Path(sys.argv[1])): print(path)"


def test_the_generated_modules_match_their_sources(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", GENERATE, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = [Path(line) for line in result.stdout.split()]
    assert paths
    different = [
        path.name for path in paths if path.read_bytes() != (ROOT / "src" / path.relative_to(tmp_path)).read_bytes()
    ]
    assert not different, f"run `make wire`: {different}"
