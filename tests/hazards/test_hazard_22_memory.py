"""Hazard 22: a reader holds 256 MiB at most, whatever others made of the table: row groups of any size, every file
spanning all offsets, values that a few KiB of dictionary decode to hundreds of megabytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.catalog.topic_rules import topic_schema
from icestream.readers.sections import TYPES

MIB = 1024 * 1024
CAP_BYTES = 256 * MIB


def write(path: Path, offsets: list[int], payload: Callable[[int], bytes], *, dictionary: bool) -> dict[str, Any]:
    """One row group, made in pieces: the test itself shall need little."""
    ids = {field["name"]: field["id"] for field in topic_schema.new_schema()["fields"]}
    names = ("shard", "offset", "append_time", "payload")
    schema = pa.schema(
        [pa.field(name, TYPES[name], metadata={b"PARQUET:field_id": b"%d" % ids[name]}) for name in names]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [[0] * len(offsets), offsets, [0] * len(offsets), [payload(at) for at in offsets]]
    columns = [pa.array(value, TYPES[name]) for name, value in zip(names, values, strict=True)]
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=dictionary) as writer:
        writer.write_table(pa.table(columns, schema), row_group_size=len(offsets))
    assert pq.read_metadata(path).num_row_groups == 1
    return {"path": f"file:{path}", "rows": len(offsets), "first": min(offsets), "last": max(offsets)}


def read(folder: Path, files: list[dict[str, Any]], end: int) -> dict[str, Any]:
    program = "from tests.support.memory_reader import main; main()"
    arguments = [str(folder / "warehouse"), json.dumps(files), str(end)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=root, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(done.stdout)
    assert measured["rows"] == end
    return measured


@pytest.mark.parametrize("shape", ["sorted", "repeated"])
def test_hazard_22_a_reader_stays_within_its_memory_bound(tmp_path: Path, shape: str) -> None:
    if shape == "sorted":  # three files of 100 MiB in one row group each, by something else than the offset
        end, size = 30_000, 10_000
        offsets = [sorted(range(part, end, 3), key=lambda at: at % 101) for part in range(3)]
        files = [
            write(tmp_path / f"{part}.parquet", some, lambda at: b"%08d" % at * (size // 8), dictionary=False)
            for part, some in enumerate(offsets)
        ]
    else:  # 300 MiB of seven different messages
        end, size = 30_000, 10_000
        files = [write(tmp_path / "one.parquet", list(range(end)), lambda at: b"%d" % (at % 7) * size, dictionary=True)]
        assert Path(files[0]["path"].removeprefix("file:")).stat().st_size < MIB
    measured = read(tmp_path, files, end)
    assert measured["bytes"] >= end * size
    assert measured["grown_bytes"] < CAP_BYTES, f"{measured['grown_bytes'] / MIB:.0f} MiB"
