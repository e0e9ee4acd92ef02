"""The child process of the scenario `start16`: fills a log, dies in it, or starts on it.

python -m bench.backlog fill DIR BYTES ROWS      appends BYTES and stops cleanly
python -m bench.backlog die DIR BYTES ROWS       appends BYTES, fills a file nearly, says "ready", goes on until it
                                                 is killed
python -m bench.backlog start DIR                opens the log, says how long it took, and stops cleanly
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.workload import block, on_loop, opened, options, pipeline, topic
from icestream.model.sync_mode import SyncMode
from icestream.wal.open_log import open_log
from icestream.wal.write_ahead_log import WriteAheadLog


async def _append(log: WriteAheadLog, total: int, rows: int) -> None:
    batch = log.batch(topic(log, 1), block(rows))
    await pipeline(log, batch, max(total // (len(batch.block) + 128), 1))


async def fill(path: Path, total: int, rows: int) -> None:
    async with opened(path, options(mode=SyncMode.NONE, spare_files=0)) as log:
        await _append(log, total, rows)


async def die(path: Path, total: int, rows: int) -> None:
    async with opened(path, options(mode=SyncMode.NONE, spare_files=0)) as log:
        await _append(log, total, rows)
        while not _is_nearly_full(log):
            await _append(log, 2**20, rows)
        print("ready", flush=True)
        while True:
            await _append(log, 2**10, rows)


def _is_nearly_full(log: WriteAheadLog) -> bool:
    """What a start reads and copies after a crash is the unsealed file: the worst that can happen is a full one."""
    file = log.appender.file
    return file is not None and 0.9 * file.capacity < file.position < 0.95 * file.capacity


async def start(path: Path) -> None:
    before = time.perf_counter()
    log = await open_log(path, options(spare_files=0), {})
    took = time.perf_counter() - before
    report = log.report
    answer = {
        "open_seconds": took,
        "rss_mib": _memory("VmRSS"),
        "peak_mib": _memory("VmHWM"),
        "held_gib": log.lifecycle.used_bytes / 2**30,
        "clean": report.clean,
        "files": report.files,
        "scanned_mib": report.bytes_scanned / 2**20,
        "records": report.records_scanned,
    }
    print(json.dumps(answer), flush=True)
    await log.close()


def _memory(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def main(words: list[str]) -> None:
    match words:
        case ["fill", path, total, rows]:
            on_loop(fill(Path(path), int(total), int(rows)))
        case ["die", path, total, rows]:
            on_loop(die(Path(path), int(total), int(rows)))
        case ["start", path]:
            on_loop(start(Path(path)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
