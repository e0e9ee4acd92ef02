"""Rewrites groups of small files on Spark as compaction does, and says what each took, as JSON.
`scenarios/compaction.py` starts it.

python -m bench.compactions FOLDER FILES ROWS REPEATS ORDER

The files are made here, as ingest writes them: rows of 100 random bytes, each file with its digest. What is measured is
from the jobs to files that are synced and read back. ORDER is a policy of clustering; with one other than `offset` each
row has one of a thousand keys.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from bench.rounds import timed
from icestream.catalog.topic_rules.topic_schema import new_schema
from icestream.pipeline.compaction.group_messages import GroupJob, InputFile, decode_result, encode
from icestream.pipeline.files.file_store import FolderStore
from icestream.pipeline.files.topic_files import write_topic
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.rows.topic_rows import TopicRows
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.pipeline.spark.writer import SparkRuntime, SparkWriter
from icestream.pipeline.spark_setup.spark_install import install_spark
from icestream.processes.pipeline_options import setup_paths
from icestream.settings import load

PAYLOAD_BYTES = 100
GROUPS = 2  # one for each core
KEYS = 1_000


def make_files(folder: Path, files: int, rows: int, *, has_keys: bool = False) -> tuple[TableTarget, list[InputFile]]:
    target = TableTarget(f"file:{folder}/data", {"schema-id": 0, **new_schema()}, {"spec-id": 0, "fields": []})
    inputs: list[InputFile] = []
    store = FolderStore()
    keys = np.random.default_rng(7)
    for number in range(files):
        data = os.urandom(PAYLOAD_BYTES * rows)
        first = number * rows
        times = pa.array(np.arange(first, first + rows), pa.timestamp("us", tz="UTC"))
        columns = {
            "shard": pa.array(np.zeros(rows, np.int32)),
            "offset": pa.array(np.arange(first, first + rows)),
            "append_time": times,
            "publish_time": times,
            "payload": pa.array([data[at : at + PAYLOAD_BYTES] for at in range(0, len(data), PAYLOAD_BYTES)]),
            "producer_name": pa.array(["bench"] * rows).dictionary_encode(),
        }
        if has_keys:
            columns["key"] = pa.array([b"key %05d" % key for key in keys.integers(0, KEYS, rows)])
        written = write_topic([TopicRows(1, columns, rows)], target, store, lambda: uuid.uuid4().hex)
        inputs += [InputFile(file.location, file.rows) for file in written.files]
    failures = store.settle()
    if failures:
        raise RuntimeError(str(failures))
    return target, inputs


def main(words: list[str]) -> None:
    if len(words) != 5:
        sys.exit(__doc__)
    folder, files, rows, repeats, order = Path(words[0]), *map(int, words[1:4]), words[4]
    engine = install_spark(setup_paths(load(None, {}, ()).settings, os.environ), say=lambda _: None)
    # Three, of which a compaction takes two, as the peer does.
    writer = SparkWriter(SparkOptions("local[3]", scratch=folder / "scratch"), lambda: SparkRuntime(engine))
    target, inputs = make_files(folder, files, rows, has_keys=order != "offset")
    size = -(-len(inputs) // GROUPS)
    found: list[dict[str, Any]] = []
    for number in range(repeats + 1):
        epoch = TableTarget(f"file:{folder}/out-{number}", target.schema, target.spec, clustering=order)
        jobs = [
            encode(GroupJob(group, 1, epoch, [], inputs[start : start + size]))
            for group, start in enumerate(range(0, len(inputs), size))
        ]
        results: list[bytes] = []

        def rewrite(jobs: list[bytes] = jobs, results: list[bytes] = results) -> None:
            results.extend(writer.rewrite(jobs))

        found.append(timed(rewrite))
        decoded = [decode_result(result) for result in results]
        if any(result.reason or result.replaced_rows != result.added_rows for result in decoded):
            raise RuntimeError(str([result.reason for result in decoded]))
        if sum(len(result.replaced) for result in decoded) != len(inputs):
            raise RuntimeError("not all files fitted their groups")
        found[-1]["memory"] = max(result.memory_bytes for result in decoded)
        shutil.rmtree(
            folder / f"out-{number}"
        )  # pages of new files are dear in a virtual machine, unless some are free
    writer.close()
    print(json.dumps(found[1:]))  # the first one warms


if __name__ == "__main__":
    main(sys.argv[1:])
