"""What compaction does for queries, and what planning it costs, as JSON. `scenarios/tablecare.py` starts it.

python -m bench.table_care FOLDER FILES ROWS TABLES REPEATS

    before     FILES files of ROWS rows, as ingest writes them
    after      the same rows as compaction leaves them
    one load   as many rows, written at once

DuckDB and Spark read the Parquet files of each by name: neither plans by manifests, which is measured by itself. Each
query runs once unmeasured.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from bench.compactions import make_files
from bench.spark_append import session
from icestream.iceberg import avro
from icestream.iceberg.manifests import decode_entries, manifest_layout, new_entry
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.compaction.compaction_plan import CandidateFile, CompactionRule, plan_groups
from icestream.pipeline.compaction.group_messages import GroupJob, InputFile, decode_result, encode
from icestream.pipeline.compaction.group_rewrite import rewrite_group
from icestream.pipeline.files.file_store import FolderStore
from icestream.pipeline.round_plan import TableTarget

FILES_PER_TABLE = 64
QUERIES = {
    "scan": "SELECT count(*), sum(octet_length(payload)) FROM {rows}",
    "offset": 'SELECT payload FROM {rows} WHERE "offset" = 777',
}


def path_of(location: str) -> str:
    return location.removeprefix("file:")


def compacted(target: TableTarget, inputs: list[InputFile]) -> list[WrittenFile]:
    job = GroupJob(0, 1, target, [], inputs)
    result = decode_result(rewrite_group(encode(job), lambda _: FolderStore(), lambda: uuid.uuid4().hex))
    if result.reason or len(result.replaced) != len(inputs):
        raise RuntimeError(result.reason or f"{len(result.replaced)} of {len(inputs)} files fitted")
    return result.files


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def plan_tables(target: TableTarget, files: Sequence[WrittenFile], tables: int) -> float:
    """Seconds to decode a manifest of each table, and to plan them all."""
    layout = manifest_layout(target.schema, target.spec)
    entries = [new_entry(layout, file, 1, 1).encode() for file in files]
    manifest = b"".join(avro.encode_file(layout.header, entries, bytes(16)))
    ids = {field["name"]: field["id"] for field in target.schema["fields"]}

    def number(bounds: dict[int, bytes], column: str) -> int:
        return int.from_bytes(bounds[ids[column]], "little", signed=True)

    def plan() -> None:
        for _ in range(tables):
            written = [entry.as_written_file(layout) for entry in decode_entries("manifest", manifest, list)]
            candidates = [
                CandidateFile(
                    file.location,
                    file.rows,
                    file.size_bytes,
                    (),
                    number(file.lower_bounds, "append_time"),
                    number(file.upper_bounds, "append_time"),
                    number(file.lower_bounds, "offset"),
                )
                for file in written
            ]
            if not plan_groups(candidates, CompactionRule(), 10**15):
                raise RuntimeError("nothing was planned")

    return seconds_of(plan)


def main(words: list[str]) -> None:
    if len(words) != 5:
        sys.exit(__doc__)
    folder, files, rows, tables, repeats = Path(words[0]), *map(int, words[1:])
    target, inputs = make_files(folder, files, rows)
    before = [path_of(file.location) for file in inputs]
    after = compacted(TableTarget(f"file:{folder}/after", target.schema, target.spec), inputs)
    _, load = make_files(folder / "load", 1, files * rows)
    sides = {
        "before": before,
        "after": [path_of(file.location) for file in after],
        "one load": [path_of(file.location) for file in load],
    }
    found: dict[str, Any] = {"files": {side: len(paths) for side, paths in sides.items()}, "queries": {}}
    sample = compacted(TableTarget(f"file:{folder}/sample", target.schema, target.spec), inputs[:2]) * FILES_PER_TABLE
    found["plan"] = [plan_tables(target, sample[:FILES_PER_TABLE], tables) for _ in range(repeats)]
    spark = session(folder)
    with duckdb.connect() as connection:
        for side, paths in sides.items():
            spark.read.parquet(*paths).createOrReplaceTempView("rows")
            for name, query in QUERIES.items():
                by_duckdb = query.format(rows=f"read_parquet({paths})")
                by_spark = query.format(rows="rows").replace('"', "`")
                for engine, run in (
                    ("DuckDB", lambda text=by_duckdb: connection.execute(text).fetchall()),
                    ("Spark", lambda text=by_spark: spark.sql(text).collect()),
                ):
                    samples = [seconds_of(run) for _ in range(repeats + 1)][1:]
                    found["queries"][f"{engine}, {name}, {side}"] = samples
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
