"""Collects the rows of a task's topics range by range, then writes them.

A fault of one topic never affects another: a hole, a damaged section, blocks that cannot be decoded, a table that
cannot be written. The topic keeps the rows before the fault, and its result carries the error (hazard 29).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from icestream import errors
from icestream.model.task_messages import CoveredRange, TaskError, TaskErrorKind, TopicTaskResult
from icestream.pipeline import offset_gaps
from icestream.pipeline.files.file_store import FileStore
from icestream.pipeline.files.topic_files import TopicFiles, write_topic
from icestream.pipeline.round_plan import ShardPlan, TableTarget
from icestream.pipeline.rows.log_sections import Ints, Sections
from icestream.pipeline.rows.topic_rows import Span, TopicRows, topic_rows
from icestream.pipeline.task.task_jobs import TopicJob

Key = tuple[int, int]  # topic id, shard


class Collector:
    """The rows of one task."""

    def __init__(self, topics: Sequence[TopicJob]) -> None:
        self._jobs = {job.plan.topic_id: job for job in topics}
        self._shards = {(job.plan.topic_id, shard.shard): shard for job in topics for shard in job.plan.shards}
        self._rows: dict[int, list[TopicRows]] = {}
        self._starts: dict[Key, int] = {}
        self._ends: dict[Key, int] = {}
        self._range: dict[int, int] = {}
        self._errors: dict[int, TaskError] = {}

    def add(self, range_number: int, sections: Sections, failed: Mapping[int, TaskError]) -> None:
        """Adds the sections of a range; called in the order of ranges. `failed`: errors of topics that are incomplete
        after these sections."""
        # A topic with an error takes no more rows: what follows the error would leave a hole.
        active_ids = [topic_id for topic_id in self._jobs if topic_id not in self._errors]
        selected = sections.select(np.isin(sections.topic_id, active_ids))
        spans, broken = spans_of(selected, self._shards, self._ends)
        for rows, topic_spans in self._decode(selected, spans):
            self._rows.setdefault(rows.topic_id, []).append(rows)
            self._range.setdefault(rows.topic_id, range_number)
            for span in topic_spans:
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

    def _decode(self, sections: Sections, spans: list[Span]) -> list[tuple[TopicRows, list[Span]]]:
        """Decodes all topics together; if that fails, one by one, to find the topic at fault."""
        by_topic: dict[int, list[Span]] = {}
        for span in spans:
            by_topic.setdefault(span.topic_id, []).append(span)
        if not spans:
            return []
        try:
            return [(rows, by_topic[rows.topic_id]) for rows in topic_rows(sections, spans)]
        except errors.DecodeError as error:
            if len(by_topic) == 1:
                self._errors[spans[0].topic_id] = TaskError(TaskErrorKind.FAILED, f"blocks cannot be decoded: {error}")
                return []
        parts = [
            self._decode(sections.select(sections.topic_id == topic_id), topic_spans)
            for topic_id, topic_spans in by_topic.items()
        ]
        return [pair for part in parts for pair in part]

    def write(self, open_store: Callable[[TableTarget], FileStore], name: Callable[[], str]) -> list[TopicTaskResult]:
        """Writes all topics. The files are durable when this returns. `name`: makes a fresh name for each file."""
        stores: dict[int, FileStore] = {}
        topics = sorted({*self._rows, *self._errors})
        written = {topic: self._write(topic, open_store, stores, name) for topic in topics if topic in self._rows}
        failures: dict[str, str] = {}
        for store in stores.values():
            failures |= store.settle()
        for topic, topic_files in written.items():
            reasons = [failures[file.location] for file in topic_files.files if file.location in failures]
            # A file that is not durable must not be committed, and the rows of a topic go together: all its files are
            # withdrawn.
            if reasons:
                self._errors[topic] = TaskError(TaskErrorKind.UNREACHABLE, reasons[0])
                topic_files.files.clear()
        return [self._result(topic, written.get(topic)) for topic in sorted({*topics, *self._errors})]

    def _write(
        self,
        topic_id: int,
        open_store: Callable[[TableTarget], FileStore],
        stores: dict[int, FileStore],
        name: Callable[[], str],
    ) -> TopicFiles:
        """Writes the files of one topic. An error of any kind becomes that of the topic."""
        target = self._jobs[topic_id].target
        try:
            return write_topic(self._rows.pop(topic_id), target, _store(target, open_store, stores), name)
        except errors.IcestreamError as error:
            self._errors[topic_id] = TaskError(TaskErrorKind.FAILED, str(error))
        except Exception as error:  # noqa: BLE001  # one table must not affect the others
            self._errors[topic_id] = TaskError(TaskErrorKind.FAILED, repr(error))
        return TopicFiles([])

    def _result(self, topic_id: int, written: TopicFiles | None) -> TopicTaskResult:
        """Returns the result of a topic: the offsets that its files cover, and its error, if any."""
        files = written.files if written is not None else []
        ends = written.ends if written is not None and files else None
        covered = [
            CoveredRange(shard, start, self._ends[topic, shard] if ends is None else ends[shard])
            for (topic, shard), start in sorted(self._starts.items())
            if topic == topic_id and files and (ends is None or shard in ends)
        ]
        error = self._errors.get(topic_id)
        new_topics = [*written.new_topics] if written is not None else []
        return TopicTaskResult(
            topic_id, self._range.get(topic_id, 0), covered, files, error, ends is not None, new_topics
        )


def _store(
    target: TableTarget, open_store: Callable[[TableTarget], FileStore], stores: dict[int, FileStore]
) -> FileStore:
    """Returns the store of the target; tables with the same storage options share one."""
    # Tables of one catalog usually share their storage: one store, and one sync of its disk, serves all of them.
    key = hash(str(target.storage) + target.location.partition(":")[0])
    if key not in stores:
        stores[key] = open_store(target)
    return stores[key]


def spans_of(
    sections: Sections, shards: Mapping[Key, ShardPlan], ends: Mapping[Key, int]
) -> tuple[list[Span], list[Key]]:
    """Returns the offsets of each shard up to its first hole, by topic and shard, and the shards with a hole.

    `ends`: where the sections of a shard that were read before end. Declared gaps are not holes. A task that reads the
    middle of the log cannot know whether its first offset continues the table: the driver judges that
    (round_judgement.py).
    """
    order = np.lexsort((sections.base, sections.shard, sections.topic_id))
    topic, shard = sections.topic_id[order], sections.shard[order]
    changes = 1 + np.flatnonzero((topic[1:] != topic[:-1]) | (shard[1:] != shard[:-1]))
    bounds = [0, *changes.tolist(), len(order)] if len(order) else []
    spans: list[Span] = []
    broken: list[Key] = []
    for first, stop in pairwise(bounds):
        key = int(topic[first]), int(shard[first])
        base, end = sections.base[order[first:stop]], sections.end[order[first:stop]]
        plan = shards[key]
        start = max(int(base[0]), plan.start)
        if key in ends and start != offset_gaps.past(plan.gaps, ends[key]):
            broken.append(key)
            continue
        last = _last_contiguous(base, end, plan)
        if last < len(base) - 1:
            broken.append(key)
        spans.append(Span(*key, start, min(int(end[last]), plan.end)))
    return spans, broken


def _last_contiguous(base: Ints, end: Ints, plan: ShardPlan) -> int:
    """Returns the index of the last section that continues the first one without a hole."""
    for index in np.flatnonzero(base[1:] != end[:-1]).tolist():
        if offset_gaps.past(plan.gaps, int(end[index])) != base[index + 1]:
            return int(index)
    return len(base) - 1
