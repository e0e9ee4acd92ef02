"""A log in a folder and tables to write it into: rounds of the pipeline without a broker, a catalog or a Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.catalog.topic_rules.topic_schema import new_schema
from icestream.model.backlog_messages import Backlog, BacklogFile, BacklogRange, ShardBacklog, TopicBacklog
from icestream.model.task_messages import TopicTaskResult, WrittenFile
from icestream.pipeline.planner import plan_round
from icestream.pipeline.round_plan import RoundBudget, RoundPlan, TableTarget
from icestream.pipeline.task import task_jobs
from icestream.pipeline.task.task_run import WRITTEN, read_bundle, write_handed
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import FileHeader, encode_first_page, log_name
from tests.support.log_bytes import LogBytes

LOG_ID = bytes(range(16))
NOW_US = 1_800_000_000_000_000
UNPARTITIONED = {"spec-id": 0, "fields": []}


@dataclass
class LogInFolder:
    """Log files one after the other; each is whole on disk once it was saved."""

    folder: Path
    files: list[LogBytes] = field(default_factory=list)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    address: str = ""
    gaps: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def new_file(self) -> LogBytes:
        lsn = 1 + sum(len(file.marks) for file in self.files)
        self.files.append(LogBytes(generation=len(self.files) + 1, first_lsn=lsn, ends=self.ends))
        return self.files[-1]

    def append(self, *bodies: tuple[int, int, bytes], **options: int) -> None:
        (self.files[-1] if self.files else self.new_file()).append(*bodies, **options)

    def save(self) -> None:
        for file in self.files:
            header = FileHeader(LOG_ID, file.generation, 0, 0, 0, len(file.data) + RECORDS_START)
            self.path(file).write_bytes(encode_first_page(header) + file.data)

    def path(self, file: LogBytes) -> Path:
        return self.folder / log_name(file.generation)

    def expected(self, topic: int) -> list[dict[str, Any]]:
        rows = [row for file in self.files for row in file.rows.get(topic, [])]
        return sorted(rows, key=lambda row: (row["shard"], row["offset"]))

    def backlog(self, marks_every: int = 1) -> Backlog:
        files = [
            BacklogFile(file.generation, file.end, file.marks[::marks_every], _stretches(file)) for file in self.files
        ]
        topics = []
        for topic in sorted({key[0] for key in self.ends}):
            shards = [
                ShardBacklog(shard, 1, 0, end, self.gaps.get((topic, shard), []))
                for (number, shard), end in sorted(self.ends.items())
                if number == topic
            ]
            rows = sum(shard.synced for shard in shards)
            topics.append(TopicBacklog(topic, f"/default/t{topic}", 1, shards, rows, rows * 100, 0))
        return Backlog(LOG_ID.hex(), str(self.folder), self.address, "", topics, files)

    def plan(
        self,
        tables: Path,
        tasks: int = 1,
        marks_every: int = 1,
        targets: dict[int, TableTarget] | None = None,
        next_offsets: dict[tuple[int, int], int] | None = None,
    ) -> RoundPlan:
        """`next_offsets`: by topic and shard, of tables that have something already."""
        positions: dict[int, dict[int, int]] = {}
        for topic, shard in self.ends:
            positions.setdefault(topic, {})[shard] = (next_offsets or {}).get((topic, shard), 0)
        all_targets = {topic: target_in(tables / f"t{topic}") for topic in positions} | (targets or {})
        return plan_round(
            self.backlog(marks_every), positions, all_targets, RoundBudget(age_due_ms=0, tasks_max=tasks), NOW_US
        )


def _stretches(file: LogBytes) -> list[BacklogRange]:
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for topic, rows in file.rows.items():
        for row in rows:
            key, offset = (topic, row["shard"]), row["offset"]
            start, end = spans.get(key, (offset, offset))
            spans[key] = min(start, offset), max(end, offset + 1)
    return [
        BacklogRange(*key, 1, start, end, (end - start) * 100, RECORDS_START)
        for key, (start, end) in sorted(spans.items())
    ]


def target_in(folder: Path, spec: dict[str, Any] | None = None, **options: Any) -> TableTarget:
    return TableTarget(f"file:{folder}/data", {"schema-id": 3, **new_schema()}, spec or UNPARTITIONED, **options)


def field_id(name: str) -> int:
    return next(int(field["id"]) for field in new_schema()["fields"] if field["name"] == name)


def spec_of(*fields: tuple[str, str]) -> dict[str, Any]:
    """Columns and their transforms."""
    return {
        "spec-id": 1,
        "fields": [
            {"source-id": field_id(column), "field-id": 1000 + number, "name": f"p{number}", "transform": transform}
            for number, (column, transform) in enumerate(fields)
        ],
    }


def write_here(plan: RoundPlan) -> list[TopicTaskResult]:
    """The round in this process: what Spark does with it, without Spark."""
    outputs = [output for bundle in task_jobs.read_jobs(plan) for output in read_bundle(task_jobs.encode(bundle))]
    results = [task_jobs.decode_written(data) for writer, data in outputs if writer == WRITTEN]
    for number, writing in enumerate(task_jobs.write_jobs(plan)):
        handed = [data for writer, data in outputs if writer == number]
        results += write_handed(task_jobs.encode(writing), handed)
    return results


def rows_in(file: WrittenFile) -> list[dict[str, Any]]:
    """Without the nulls, times as numbers."""
    table = pq.read_table(file.location.removeprefix("file:"))
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns[name] = column.to_pylist()
    rows = [{name: values[row] for name, values in columns.items()} for row in range(table.num_rows)]
    return [
        {name: dict(value) if isinstance(value, list) else value for name, value in row.items() if value is not None}
        for row in rows
    ]


def all_rows(files: list[WrittenFile]) -> list[dict[str, Any]]:
    rows = [row for file in files for row in rows_in(file)]
    return sorted(rows, key=lambda row: (row["shard"], row["offset"]))
