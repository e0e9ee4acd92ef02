"""What the processes of a server use, read from /proc. A server is a process and all that it started."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

HOST = "127.0.0.1"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def family(pid: int) -> list[int]:
    """The process and everybody below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := _stat(int(path.name))):
            parents.setdefault(int(fields[1]), []).append(int(path.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system, in the hundredths that /proc knows."""
    fields = [found for pid in pids if (found := _stat(pid))]
    return sum(int(field[11]) + int(field[12]) for field in fields) / _TICKS_PER_SECOND


def thread_seconds(pids: Iterable[int]) -> float:
    """The same in nanoseconds, of the threads that are still there: for processes that hardly do anything."""
    threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def written_bytes(pids: Iterable[int]) -> int:
    """Bytes that they made the disk write, or will."""
    return sum(_numbers(pid, "io")["write_bytes"] for pid in pids)


def resident_mib(pid: int, *, peak: bool = False) -> float:
    return _numbers(pid, "status")["VmHWM" if peak else "VmRSS"] / 1024


def _stat(pid: int) -> list[str]:
    """What stands behind the name: state, parent, …; nothing of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _numbers(pid: int, name: str) -> dict[str, int]:
    lines = (line.split(":", 1) for line in Path(f"/proc/{pid}/{name}").read_text().splitlines())
    words = {key: value.split() for key, value in lines}
    return {key: int(value[0]) for key, value in words.items() if value and value[0].isdigit()}
