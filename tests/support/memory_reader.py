"""Reads a whole table in a process of its own, and says how much memory that took."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from icestream.model.scan_messages import ScanKind
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.sections import TYPES
from tests.support.topic_lake import TopicLake

KIB = 1024


def peak_bytes() -> int:
    """Of this program alone: what getrusage says begins with the process that started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (candidate for candidate in lines if candidate.startswith("VmHWM:"))
    return int(line.split()[1]) * KIB


async def read(folder: Path, files: list[dict[str, Any]], end: int) -> dict[str, Any]:
    """`files`: path, rows, first and last offset of each."""
    lake = TopicLake(folder, cache=RowGroupCacheOptions(enabled=False))
    await lake.bind()
    numbers = {field["name"]: field["id"] for field in (await lake.table()).current_schema["fields"]}
    entries = []
    for file in files:
        ends = {"shard": [0, 0], "offset": [file["first"], file["last"]]}
        bounds = pa.table({name: pa.array(values, TYPES[name]) for name, values in ends.items()})
        entries.append(lake._entry(file["path"], bounds, numbers, record_count=file["rows"]))
    await lake.round((0, 0, end), entries=entries)
    await lake.ask(ScanKind.SNAPSHOT, 10_001)  # everything that is loaded once, is
    gc.collect()
    before, position, size = peak_bytes(), 0, 0
    while position < end:
        answer = await lake.ask(ScanKind.READ, position)
        assert not answer.missing, answer.missing
        assert sum(section.rows for section in answer.sections) == answer.next_offset - position
        size += sum(len(section.body) for section in answer.sections)
        position = answer.next_offset
    return {"rows": position, "bytes": size, "grown_bytes": peak_bytes() - before}


def main() -> None:
    folder, files, end = sys.argv[1:]
    print(json.dumps(asyncio.run(read(Path(folder), json.loads(files), int(end)))))
