"""The modes of files that a process makes, by its umask: each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from icestream.runtime.file_access import restrict_files
os.umask(int(sys.argv[2], 8))
restrict_files(sys.argv[1])
os.mkdir("folder")
os.close(os.open("folder/file", os.O_CREAT | os.O_WRONLY, 0o666))
print(oct(os.stat("folder").st_mode & 0o777), oct(os.stat("folder/file").st_mode & 0o777))
"""


@pytest.mark.parametrize(
    ("access", "umask", "modes"),
    [
        ("owner", "022", "0o700 0o600"),
        ("group", "022", "0o750 0o640"),
        ("group", "000", "0o750 0o640"),
        ("all", "022", "0o755 0o644"),
        ("all", "077", "0o700 0o600"),  # what the account forbids stays forbidden
    ],
)
def test_file_modes_follow_the_setting(tmp_path: Path, access: str, umask: str, modes: str) -> None:
    command = [sys.executable, "-c", PROGRAM, access, umask]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == modes
