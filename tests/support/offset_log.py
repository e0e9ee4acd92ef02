"""A log on paper: records with sections of offsets, no bytes. It tells its backlog to a planner, and reads a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from icestream.model.backlog_messages import Backlog, BacklogFile, BacklogRange, ShardBacklog, TopicBacklog
from icestream.model.task_messages import CoveredRange, TopicTaskResult, WrittenFile
from icestream.pipeline.round_plan import LogRange, RoundPlan, TableTarget

ROW_BYTES = 100
NOW_US = 1_000_000_000_000_000
Key = tuple[int, int]


@dataclass
class OffsetRecord:
    position: int
    lsn: int
    sections: list[tuple[int, int, int, int, int]]  # topic, shard, epoch, start, end


@dataclass
class OffsetLog:
    files: list[list[OffsetRecord]] = field(default_factory=list)
    ends: dict[Key, int] = field(default_factory=dict)
    gaps: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    epochs: dict[Key, int] = field(default_factory=dict)
    lsn: int = 1
    position: int = 4096

    def append(self, sections: list[tuple[int, int, int]], *, new_file: bool) -> None:
        """Sections as topic, shard, rows; no rows: a gap of 3 is declared, 0 rows and a new epoch behind it."""
        if new_file or not self.files:
            self.files.append([])
            self.position = 4096
        record = OffsetRecord(self.position, self.lsn, [])
        for topic, shard, rows in sections:
            key = topic, shard
            start = self.ends.setdefault(key, 0)
            if not rows:
                self.gaps.setdefault(key, []).append((start, start + 3))
                self.ends[key] = start + 3
                continue
            self.ends[key] = start + rows
            record.sections.append((topic, shard, self.epochs.setdefault(key, 1), start, start + rows))
        self.files[-1].append(record)
        self.lsn += 1
        self.position += 64 + ROW_BYTES * sum(rows for *_, rows in sections)

    def end_of(self, number: int) -> int:
        last = self.files[number][-1]
        return last.position + 64 + ROW_BYTES * sum(end - start for *_, start, end in last.sections)

    def backlog(self, oldest_us: dict[int, int], floors: dict[Key, int], marks_every: int = 1) -> Backlog:
        files = []
        for number, records in enumerate(self.files):
            stretches: dict[tuple[int, int, int], BacklogRange] = {}
            for record in records:
                for topic, shard, epoch, start, end in record.sections:
                    if end <= floors.get((topic, shard), 0):
                        continue
                    had = stretches.get((topic, shard, epoch))
                    first, where = (had.start, had.position) if had else (start, record.position)
                    size = (end - first) * ROW_BYTES
                    stretches[topic, shard, epoch] = BacklogRange(topic, shard, epoch, first, end, size, where)
            marks = [(record.position, record.lsn) for record in records[::marks_every]]
            files.append(BacklogFile(number + 1, self.end_of(number), marks, list(stretches.values())))
        topics = []
        shards_of: dict[int, list[Key]] = {}
        for key in sorted(self.ends):
            shards_of.setdefault(key[0], []).append(key)
        for topic, keys in shards_of.items():
            rows = sum(self.ends[key] - floors.get(key, 0) for key in keys)
            shards = [
                ShardBacklog(
                    key[1], self.epochs.get(key, 1), floors.get(key, 0), self.ends[key], self.gaps.get(key, [])
                )
                for key in keys
            ]
            topics.append(
                TopicBacklog(topic, f"/t/{topic}", 1, shards, rows, rows * ROW_BYTES, oldest_us.get(topic, NOW_US))
            )
        return Backlog("log", "/nowhere", "http://127.0.0.1:1", "token", topics, files)

    def read(self, log_range: LogRange) -> dict[int, list[tuple[int, int, int]]]:
        """The contents of a range by topic: (shard, start, end)."""
        stretches: dict[int, list[tuple[int, int, int]]] = {}
        for record in self.files[log_range.file - 1]:
            if not log_range.start <= record.position < log_range.end:
                continue
            for topic, shard, epoch, start, end in record.sections:
                for offset_range in log_range.offsets:
                    if (offset_range.topic_id, offset_range.shard, offset_range.epoch) != (topic, shard, epoch):
                        continue
                    first, last = max(start, offset_range.start), min(end, offset_range.end)
                    if first < last:
                        stretches.setdefault(topic, []).append((shard, first, last))
        return stretches

    def written(self, plan: RoundPlan) -> list[TopicTaskResult]:
        """The task results of a round without errors."""
        writers = {topic.topic_id: topic.writer for topic in plan.topics}
        parts: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for log_range in plan.ranges:
            for topic, stretches in self.read(log_range).items():
                where = log_range.bundle if writers[topic] is None else -1
                parts.setdefault((topic, where), []).extend(stretches)
        return [_task_result(topic, where, stretches) for (topic, where), stretches in parts.items()]


def _task_result(topic: int, where: int, stretches: list[tuple[int, int, int]]) -> TopicTaskResult:
    spans: dict[int, tuple[int, int]] = {}
    for shard, start, end in sorted(stretches):
        spans[shard] = (spans.get(shard, (start, end))[0], end)
    covered = [CoveredRange(shard, *span) for shard, span in spans.items()]
    rows = sum(end - start for _, start, end in stretches)
    return TopicTaskResult(topic, where, covered, [written_file(topic, f"{topic}-{where}", rows, covered)])


def written_file(topic: int, name: str, rows: int, covered: list[CoveredRange]) -> WrittenFile:
    return WrittenFile(topic, name, 1, rows, covered, 0, 0, [], {}, {}, {}, {}, {}, [])


def target(**options: object) -> TableTarget:
    return TableTarget("file:/nowhere", {"schema-id": 0, "fields": []}, {"spec-id": 0, "fields": []}, **options)  # type: ignore[arg-type]


SECTIONS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 1), st.integers(0, 5)),
    min_size=1,
    max_size=4,
    unique_by=lambda section: section[:2],
)


@st.composite
def logs(draw: st.DrawFn) -> OffsetLog:
    log = OffsetLog()
    for sections in draw(st.lists(SECTIONS, min_size=1, max_size=12)):
        log.append(sections, new_file=draw(st.integers(0, 3)) == 0)
    return log
