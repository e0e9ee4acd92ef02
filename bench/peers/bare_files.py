"""The same bytes without a log: what the disk and the kernel alone can do.

The loops are Python around single system calls. Written in C, the loop of `synced_writes` has the same p50 within the
noise (132 to 147 us in C, 137 to 151 us in Python, five runs in turn), so nothing is gained by a compiler.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from icestream import limits

VERSION = f"Linux {platform.release()}"


def zeroed(path: Path, size: int) -> int:
    """A file of zeros that is on disk: its descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    zeros = bytes(limits.MIB)
    for position in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - position], position)
    os.fsync(fd)
    return fd


def synced_writes(fd: int, size: int, count: int, start: int = 4096) -> list[int]:
    """Nanoseconds of each of `count` writes of `size` bytes, one behind the other, each with its fdatasync."""
    now, pwrite, fdatasync = time.perf_counter_ns, os.pwrite, os.fdatasync
    data = os.urandom(size)
    found: list[int] = []
    for position in range(start, start + size * count, size):
        before = now()
        pwrite(fd, data, position)
        fdatasync(fd)
        found.append(now() - before)
    return found


def sequential_write(path: Path, total: int, per_sync: int) -> float:
    """Seconds to write `total` bytes into one growing file with an fdatasync after each `per_sync` bytes."""
    data = os.urandom(limits.MIB) * -(-per_sync // limits.MIB)
    view = memoryview(data)[:per_sync]
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        started = time.perf_counter()
        position = 0
        while position < total:
            done = 0
            while done < per_sync:
                done += os.pwrite(fd, view[done:], position + done)
            os.fdatasync(fd)
            position += per_sync
        return time.perf_counter() - started
    finally:
        os.close(fd)


def read_through(paths: list[Path], chunk_bytes: int) -> tuple[int, float]:
    """Bytes and seconds of reading the files from end to end, each chunk into a `bytes` of its own."""
    total = 0
    started = time.perf_counter()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            position = 0
            while data := os.pread(fd, chunk_bytes, position):
                position += len(data)
            total += position
        finally:
            os.close(fd)
    return total, time.perf_counter() - started
