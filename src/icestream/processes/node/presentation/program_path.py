"""The command by which a user starts `icestream` here: its name, a path in the checkout, or beside Python."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def program_path() -> str:
    """The shortest command that works in this directory."""
    if shutil.which("icestream") is not None:
        return "icestream"
    if Path(".venv/bin/icestream").exists():
        return ".venv/bin/icestream"
    return str(Path(sys.executable).with_name("icestream"))
