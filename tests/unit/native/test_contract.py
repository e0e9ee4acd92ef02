"""A native extension of other sources is not used: its functions may mean something else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from icestream.runtime.native import CONTRACT

ROOT = Path(__file__).parents[3]
ASK = "from icestream.runtime.native import native; print(native)"


def loaded(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "icestream_native.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", ASK],
        env={"PYTHONPATH": f"{folder}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_another_contract_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    # 9 handed over one object for all shards of a group, where the log now takes a body for each (ADR 105).
    for source in ("", "CONTRACT = 9", f"CONTRACT = {CONTRACT + 1}"):
        ran = loaded(tmp_path, source)
        assert ran.stdout == "None\n"
        assert "make native" in ran.stderr


def test_the_same_contract_is_accepted(tmp_path: Path) -> None:
    ran = loaded(tmp_path, f"CONTRACT = {CONTRACT}")
    assert "icestream_native" in ran.stdout
    assert ran.stderr == ""


def test_both_sides_name_the_same() -> None:
    source = (ROOT / "native" / "src" / "lib.rs").read_text()
    assert re.findall(r"const CONTRACT: u32 = (\d+);", source) == [str(CONTRACT)]
