"""The rows of a task's topics, collected range by range, then written.

What is wrong with one topic never touches another one: a hole, a damaged section, blocks that cannot be read, a table
that cannot be written. The topic then keeps what came before it, and says what ended it (hazard 29).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from icestream import errors
from icestream.model.task_messages import CoveredRange, TaskError, TaskErrorKind, TopicTaskResult
from icestream.pipeline.files.file_store import FileStore
from icestream.pipeline.files.topic_files import TopicFiles, write_topic
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.rows.log_sections import Sections
from icestream.pipeline.rows.topic_rows import Span, TopicRows, topic_rows
from icestream.pipeline.task.continuity import Key, spans_of
from icestream.pipeline.task.job import TopicJob


class Collector:
    def __init__(self, topics: Sequence[TopicJob]) -> None:
        self._jobs = {job.plan.topic_id: job for job in topics}
        self._shards = {(job.plan.topic_id, one.shard): one for job in topics for one in job.plan.shards}
        self._rows: dict[int, list[TopicRows]] = {}
        self._starts: dict[Key, int] = {}
        self._ends: dict[Key, int] = {}
        self._range: dict[int, int] = {}
        self._errors: dict[int, TaskError] = {}

    def add(self, range_number: int, found: Sections, failed: Mapping[int, TaskError]) -> None:
        """What one range holds, in the order of ranges. `failed`: topics of which something is missing behind that."""
        mine = found.chosen(np.isin(found.topic_id, [one for one in self._jobs if one not in self._errors]))
        spans, broken = spans_of(mine, self._shards, self._ends)
        for rows, taken in self._decoded(mine, spans):
            self._rows.setdefault(rows.topic_id, []).append(rows)
            self._range.setdefault(rows.topic_id, range_number)
            for span in taken:
                self._starts.setdefault((span.topic_id, span.shard), span.start)
                self._ends[span.topic_id, span.shard] = span.end
        for topic_id, error in failed.items():
            if topic_id in self._jobs:
                self._range.setdefault(topic_id, range_number)
                self._errors.setdefault(topic_id, error)
        for topic_id, shard in broken:
            error = TaskError(
                TaskErrorKind.STALE, f"range {range_number}: offsets of shard {shard} do not follow each other"
            )
            self._errors.setdefault(topic_id, error)

    def _decoded(self, found: Sections, spans: list[Span]) -> list[tuple[TopicRows, list[Span]]]:
        """All topics in one go; where that fails, one by one, to find out which one it is."""
        by_topic: dict[int, list[Span]] = {}
        for span in spans:
            by_topic.setdefault(span.topic_id, []).append(span)
        if not spans:
            return []
        try:
            return [(rows, by_topic[rows.topic_id]) for rows in topic_rows(found, spans)]
        except errors.DecodeError as error:
            if len(by_topic) == 1:
                self._errors[spans[0].topic_id] = TaskError(TaskErrorKind.FAILED, f"blocks cannot be read: {error}")
                return []
        parts = [self._decoded(found.chosen(found.topic_id == topic), mine) for topic, mine in by_topic.items()]
        return [one for part in parts for one in part]

    def write(self, open_store: Callable[[TableTarget], FileStore], name: Callable[[], str]) -> list[TopicTaskResult]:
        """Files are durable when this returns. `name`: a fresh one for each file."""
        stores: dict[int, FileStore] = {}
        topics = sorted({*self._rows, *self._errors})
        written = {topic: self._write(topic, open_store, stores, name) for topic in topics if topic in self._rows}
        failures: dict[str, str] = {}
        for store in stores.values():
            failures |= store.settle()
        for topic, done in written.items():
            lost = [failures[file.location] for file in done.files if file.location in failures]
            if lost:
                self._errors[topic] = TaskError(TaskErrorKind.UNREACHABLE, lost[0])
                done.files.clear()
        return [self._told(topic, written.get(topic)) for topic in sorted({*topics, *self._errors})]

    def _write(
        self,
        topic_id: int,
        open_store: Callable[[TableTarget], FileStore],
        stores: dict[int, FileStore],
        name: Callable[[], str],
    ) -> TopicFiles:
        target = self._jobs[topic_id].target
        try:
            return write_topic(self._rows.pop(topic_id), target, _store(target, open_store, stores), name)
        except errors.IcestreamError as error:
            self._errors[topic_id] = TaskError(TaskErrorKind.FAILED, str(error))
        except Exception as error:  # noqa: BLE001  # one table must not stop the others
            self._errors[topic_id] = TaskError(TaskErrorKind.FAILED, repr(error))
        return TopicFiles([])

    def _told(self, topic_id: int, written: TopicFiles | None) -> TopicTaskResult:
        files = written.files if written is not None else []
        ends = written.ends if written is not None and files else None
        covered = [
            CoveredRange(shard, start, self._ends[topic, shard] if ends is None else ends[shard])
            for (topic, shard), start in sorted(self._starts.items())
            if topic == topic_id and files and (ends is None or shard in ends)
        ]
        error = self._errors.get(topic_id)
        return TopicTaskResult(topic_id, self._range.get(topic_id, 0), covered, files, error, is_cut=ends is not None)


def _store(
    target: TableTarget, open_store: Callable[[TableTarget], FileStore], stores: dict[int, FileStore]
) -> FileStore:
    """One for all tables that are reached in the same way."""
    key = hash(str(target.storage) + target.location.partition(":")[0])
    if key not in stores:
        stores[key] = open_store(target)
    return stores[key]
