"""Runs rounds of the pipeline on Spark and says what each took, as JSON. `scenarios/pipeline.py` starts it.

The log is made here: records of one block each, topics in turn, payloads of 100 random bytes. What is measured is from
the plan to files that are synced. `bare`: the same rows, read and decoded by the same code, written by PyArrow alone in
this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.process import cpu_seconds, family
from icestream.catalog.topic_rules.topic_schema import new_schema
from icestream.model import envelope
from icestream.model.backlog_messages import Backlog, BacklogFile, BacklogRange, ShardBacklog, TopicBacklog
from icestream.model.block import ConstantColumn, encode_block
from icestream.pipeline.planner import plan_round
from icestream.pipeline.round_judgement import judge_round
from icestream.pipeline.round_plan import RoundBudget, RoundPlan, TableTarget
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.pipeline.spark.writer import SparkRuntime, SparkWriter
from icestream.pipeline.spark_setup.spark_install import install_spark
from icestream.pipeline.task import task_jobs
from icestream.pipeline.task.task_run import read_bundle
from icestream.processes.pipeline_options import setup_paths
from icestream.settings import load
from icestream.wal.format import RECORDS_START, RecordKind, RecordSection, SectionKind, encode_record
from icestream.wal.log_file import FileHeader, encode_first_page, log_name

LOG_ID = bytes(16)
PAYLOAD_BYTES = 100
MARK_EVERY = 8


def make_log(folder: Path, topics: int, rows: int, rows_per_block: int) -> Backlog:
    """`rows` of each topic."""
    folder.mkdir()
    marks: list[tuple[int, int]] = []
    position, lsn = RECORDS_START, 0
    with (folder / log_name(1)).open("wb") as file:
        file.write(encode_first_page(FileHeader(LOG_ID, 1, 0, 0, 0, 0)))
        for base in range(0, rows, rows_per_block):
            for topic in range(1, topics + 1):
                lsn += 1
                data = os.urandom(PAYLOAD_BYTES * rows_per_block)
                payloads = [data[at : at + PAYLOAD_BYTES] for at in range(0, len(data), PAYLOAD_BYTES)]
                columns = {
                    envelope.PAYLOAD: payloads,
                    envelope.PUBLISH_TIME: ConstantColumn(lsn),
                    envelope.PRODUCER_NAME: ConstantColumn("bench"),
                }
                body = encode_block(rows_per_block, columns)
                section = RecordSection(topic, 0, SectionKind.MESSAGES, 0, 1, base, lsn, rows_per_block, 0, body)
                record = encode_record(RecordKind.DATA, lsn, 1, lsn - 1, lsn, position, 8, [section])
                if lsn % MARK_EVERY == 1:
                    marks.append((position, lsn))
                position += file.write(record)
    told = [
        TopicBacklog(number, f"/t/{number}", 1, [ShardBacklog(0, 1, 0, rows)], rows, 0, 0)
        for number in range(1, topics + 1)
    ]
    stretches = [
        BacklogRange(number, 0, 1, 0, rows, rows * PAYLOAD_BYTES, RECORDS_START) for number in range(1, topics + 1)
    ]
    return Backlog(LOG_ID.hex(), str(folder), "", "", told, [BacklogFile(1, position, marks, stretches)])


def plan_of(backlog: Backlog, tables: Path, tasks: int) -> RoundPlan:
    ids = [topic.topic_id for topic in backlog.topics]
    schema, spec = {"schema-id": 0, **new_schema()}, {"spec-id": 0, "fields": []}
    targets = {topic_id: TableTarget(f"file:{tables}/{topic_id}/data", schema, spec) for topic_id in ids}
    budget = RoundBudget(age_due_ms=0, tasks_max=tasks, task_bytes_max=2**40)
    return plan_round(backlog, {topic_id: {0: 0} for topic_id in ids}, targets, budget, 1)


def bare(plan: RoundPlan) -> None:
    """The tasks of a plan that gathers nothing, in this process."""
    for one in task_jobs.read_jobs(plan):
        for _, told in read_bundle(task_jobs.encode(one)):
            assert task_jobs.decode_written(told).error is None


def timed(run: Callable[[], object]) -> dict[str, float]:
    cpu, start = cpu_seconds(family(os.getpid())), time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "cpu": cpu_seconds(family(os.getpid())) - cpu}


def main(folder: Path, rows: int, repeats: int, *names: str) -> None:
    """`names`: of those logs alone; else of all, and bare."""
    engine = install_spark(setup_paths(load(None, {}, ()).settings, os.environ), say=lambda _: None)
    writer = SparkWriter(SparkOptions("local[2]", scratch=folder / "scratch"), lambda: SparkRuntime(engine))
    sizes = {"small": (1, 1000, 1000), "topics": (200, 500, 50), "one": (1, 100_000, 50), "large": (1, rows, 1000)}
    logs = {name: make_log(folder / name, *size) for name, size in sizes.items() if not names or name in names}
    found: dict[str, Any] = {name: [] for name in (*logs, "bare")}

    def write(plan: RoundPlan) -> None:
        assert all(run.is_complete for run in judge_round(plan, writer.write(plan)))

    for number in range(repeats + 1):
        for name, backlog in logs.items():
            plan = plan_of(backlog, folder / f"tables-{name}-{number}", 2)
            found[name].append(timed(lambda plan=plan: write(plan)))  # type: ignore[misc]
        if not names:
            plan = plan_of(logs["large"], folder / f"tables-bare-{number}", 1)
            found["bare"].append(timed(lambda plan=plan: bare(plan)))  # type: ignore[misc]
    writer.close()
    print(json.dumps({name: runs[1:] for name, runs in found.items()}))  # the first of each warms


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
