"""How the command line is called here: by its name, in the folder of a checkout, or where Python is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def program_path() -> str:
    if shutil.which("icestream") is not None:
        return "icestream"
    if Path(".venv/bin/icestream").exists():
        return ".venv/bin/icestream"
    return str(Path(sys.executable).with_name("icestream"))
