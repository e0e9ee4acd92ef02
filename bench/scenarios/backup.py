"""The copy of a backup against a plain parallel copy of the same files, each file synced, four at once.

Ours also hashes each file, names it by its digest, and looks whether its object is there. In one process, by threads,
as backups below `backup.spark_files` files are made; without broker and catalog, whose part does not grow with bytes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench
from icestream import limits
from icestream.backup.backup_target import DirectoryTarget
from icestream.backup.file_copy import FileCopy, SourceFile
from icestream.backup.object_upload import ObjectUpload
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalogs.object_files import open_files
from icestream.catalogs.store_options import StoreOptions
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import ThreadOffload

NAME = "backup"
GOAL = "MB/s of a copy backup ≥ 0.7x a plain parallel copy of the same files"
_MIB = 1 << 20


def measure(bench: Bench) -> list[Row]:
    return [
        row
        for size, count in ((16 * _MIB, 24), (_MIB, 200))
        for row in bench.attempt(NAME, "copy", Goal(at_least=0.7), partial(_measured, bench, size, count))
    ]


def _measured(bench: Bench, size: int, usual: int) -> list[Row]:
    count = int(bench.pick(usual, 8))
    with bench.place("backup-source") as folder:
        files = [folder / f"{number}.parquet" for number in range(count)]
        for file in files:
            file.write_bytes(os.urandom(size))
        sides = {"ours": partial(_ours, files=files), "plain": partial(_plain, files=files)}
        seconds = bench.interleave(bench.rounds(5), sides)
    rates = {side: [count * size / _MIB / sample for sample in samples] for side, samples in seconds.items()}
    return [
        Row(
            NAME,
            f"copy of {count} files of {size // _MIB} MiB, MiB/s",
            ratios(rates["ours"], rates["plain"]),
            Goal(at_least=0.7),
            ours=f"{Figure(rates['ours'])} MiB/s",
            peer=f"{Figure(rates['plain'])} MiB/s",
            peer_version="shutil.copyfile and fsync, 4 threads",
        )
    ]


def _ours(path: Path, files: list[Path]) -> float:
    offload = ThreadOffload("backup", limits.BACKUP_UPLOADS_AT_ONCE)
    target = DirectoryTarget(path / "target", offload)
    upload = ObjectUpload(target, offload, SystemClock(), SystemRandomness())
    copy = FileCopy(upload, WarehouseFiles(file_opener(open_files(StoreOptions()))))
    sources = [SourceFile(f"file:{file}", "data", file.stat().st_size) for file in files]
    started = time.perf_counter()
    asyncio.run(copy.copy(sources, lambda: None))
    taken = time.perf_counter() - started
    offload.close()
    return taken


def _plain(path: Path, files: list[Path]) -> float:
    def copy(file: Path) -> None:
        shutil.copyfile(file, path / file.name)
        with (path / file.name).open("rb") as copied:
            os.fsync(copied.fileno())

    started = time.perf_counter()
    with ThreadPoolExecutor(limits.BACKUP_UPLOADS_AT_ONCE) as pool:
        list(pool.map(copy, files))
    return time.perf_counter() - started
