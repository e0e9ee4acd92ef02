"""Standard streams of a command: readers that close, full disks, closed streams."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.serve_process import COMMAND, WAIT_SECONDS


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """`ICESTREAM` stands for the program; its exit code is the last line of stdout."""
    program = " ".join(f"'{part}'" for part in COMMAND)
    script = f'{command.replace("ICESTREAM", program)}\necho "${{PIPESTATUS[@]}}"'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("ICESTREAM config show >&-", "0"),
        ("ICESTREAM config show 2>&- > /dev/null", "0"),
        ("ICESTREAM produce /default/x --broker 127.0.0.1:1 <&-", "11"),
    ],
)
def test_broken_output_is_not_an_internal_error(command: str, code: str) -> None:
    ran = shell(command)
    assert ("Traceback" in ran.stderr, "Exception" in ran.stderr) == (False, False), ran.stderr
    assert ran.stdout.splitlines()[-1] == code


@pytest.mark.parametrize("command", [("config", "show"), ("config", "reference", "--output", "json"), ("--help",)])
def test_a_closed_output_pipe_ends_silently(command: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [*COMMAND, *command], stdout=writing, stderr=subprocess.PIPE, timeout=WAIT_SECONDS, check=False
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, b"")


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_full_disk_under_the_output_is_reported(form: str) -> None:
    ran = shell(f"ICESTREAM config show --output {form} > /dev/full")
    assert ran.stdout == "1\n"
    assert "cannot write the output: No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_unprintable_characters_are_escaped() -> None:
    ran = shell("PYTHONIOENCODING=ascii ICESTREAM config show --set node.name=a --set data_dir=日本")
    assert ran.stderr == ""
    assert "\\u65e5\\u672c/wal" in ran.stdout
