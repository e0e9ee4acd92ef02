"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from icestream.runtime.native import native


def describe(directory: Path) -> dict[str, str]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "file system": _file_system(directory),
        "python": platform.python_version(),
        "uvloop": version("uvloop"),
        "icestream": f"{version('icestream')}, {'native' if native else 'without its native part'}",
    }


def load() -> str:
    """Load averages: above 0.5 somebody else is at work, and the figures say less."""
    return " ".join(f"{run:.2f}" for run in os.getloadavg())


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(directory: Path) -> str:
    """Type and device of the longest mount point above the directory."""
    best = ("", "?", "?")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, point, kind, *_ = line.split()
        if directory.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind, device)
    return f"{best[1]} on {best[2]}"
