"""Files that hold secrets: only their owner may read them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from icestream import errors

_OTHERS: Final = 0o077


def secret_fault(path: Path) -> str:
    """Why a file should not hold a secret, as the end of a sentence that begins with its name; empty if it may. A file
    that cannot be looked at has no fault here: whoever reads it says so."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    return f"can be read by other accounts (mode {stat.S_IMODE(mode):04o})" if mode & _OTHERS else ""


def secret_hint(path: Path) -> str:
    return f"chmod 600 {path}"


def check_secret_file(setting: str, path: Path) -> None:
    """Raises ConfigurationError for a file that other accounts may read."""
    if fault := secret_fault(path):
        raise errors.ConfigurationError(f"{setting}: {path} {fault}", hint=secret_hint(path))
