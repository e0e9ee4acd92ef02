"""What is read from /proc about a server and its children."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench import process


def test_a_family_is_a_process_and_all_below_it() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert process.family(child.pid) == [child.pid, grandchild]
        assert {child.pid, grandchild} < set(process.family(os.getpid()))
        child.terminate()
        os.kill(grandchild, 15)


def test_an_ended_process_uses_no_resources() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert process.cpu_seconds([child.pid]) == 0.0


def test_cpu_and_writes_are_measured(tmp_path: Path) -> None:
    me = [os.getpid()]
    cpu, threads, written = process.cpu_seconds(me), process.thread_seconds(me), process.written_bytes(me)
    while process.cpu_seconds(me) == cpu:
        sum(range(10_000))
    assert process.thread_seconds(me) > threads
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(100_000))
        file.flush()
        os.fsync(file.fileno())
    grown = process.written_bytes(me) - written
    assert grown >= 100_000 or not _is_on_disk(tmp_path)
    assert 0 < process.resident_mib(me[0]) <= process.resident_mib(me[0], peak=True)


def _is_on_disk(path: Path) -> bool:
    """True if the path is on a disk: writes to a memory file system are not counted."""
    return (
        subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout != "tmpfs\n"
    )
