"""Where the value of a secret setting comes from: the value itself, or a reference to it.

    file:PATH         the first line of a file that only its owner may read (0600)
    env:NAME          an environment variable
    command:COMMAND   the first line that a command prints; it is not run by a shell

A reference may stand anywhere, also on a command line, which every account of the machine can read; a secret itself may
not stand there. A settings file with a secret in it must be readable by its owner only.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Final

from icestream import limits

PREFIXES: Final = ("file:", "env:", "command:")
_OTHERS: Final = 0o077


def is_reference(value: object) -> bool:
    return isinstance(value, str) and value.startswith(PREFIXES)


def resolve(reference: str) -> str:
    """The secret. Raises ValueError with the reason, which contains no part of it."""
    kind, _, place = reference.partition(":")
    secret = {"file": _from_file, "env": _from_environment, "command": _from_command}[kind](place)
    if not secret:
        raise ValueError(f"is empty: {kind}:{place}")
    return secret


def secret_fault(path: Path) -> str:
    """Why a file should not hold a secret, as the end of a sentence that begins with its name; empty if it may. A file
    that cannot be looked at has no fault here: the code that reads it reports that."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    return mode_fault(mode)


def mode_fault(mode: int) -> str:
    """Why a file of this mode should not hold a secret; empty if it may. The mode of a pipe or a terminal says nothing
    about what is read from it."""
    if not stat.S_ISREG(mode) or not mode & _OTHERS:
        return ""
    return f"can be read by other accounts (mode {stat.S_IMODE(mode):04o})"


def _from_file(place: str) -> str:
    path = Path(place)
    if fault := secret_fault(path):
        raise ValueError(f"{path} {fault}; chmod 600 {path}")
    try:
        with path.open("rb") as file:
            return _first_line(file.read(limits.SECRET_FILE_BYTES_MAX))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _from_environment(place: str) -> str:
    return os.environ.get(place, "")


def _from_command(place: str) -> str:
    try:
        words = shlex.split(place)
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
            timeout=limits.SECRET_COMMAND_SECONDS_MAX,
        )  # fmt: skip
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"the command cannot be run: {type(error).__name__}") from None
    if done.returncode:
        raise ValueError(f"the command ended with exit code {done.returncode}")
    return _first_line(done.stdout[: limits.SECRET_FILE_BYTES_MAX])


def _first_line(data: bytes) -> str:
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError("is not text") from None
    return lines[0].strip() if lines else ""
