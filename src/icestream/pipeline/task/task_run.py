"""The two stages of a round, as functions of bytes. No function imports Spark or raises for damaged or missing data.

read_bundle   reads the ranges of a bundle, once. Writes the topics that are not gathered; yields (writer, Handed) for
              gathered topics, and (WRITTEN, TopicTaskResult) for the others
write_handed  writes the gathered topics of one writer, from everything that was handed to it
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec
import numpy as np

from icestream.model.task_messages import TaskError, TaskErrorKind, TopicTaskResult
from icestream.pipeline.files.file_store import BucketStore, FileStore, FolderStore
from icestream.pipeline.log_bytes.log_sources import LogOwner, sources_of
from icestream.pipeline.log_bytes.range_scan import RangeScan, scan_range
from icestream.pipeline.round_plan import LogRange, LogSource, TableTarget
from icestream.pipeline.rows.log_sections import Sections, join, no_sections, pack, select_offsets, unpack
from icestream.pipeline.task import task_jobs as jobs
from icestream.pipeline.task.collector import Collector

WRITTEN: Final = -1
OpenStore = Callable[[TableTarget], FileStore]


def open_store(target: TableTarget) -> FileStore:
    if target.location.startswith("file:") or "://" not in target.location:
        return FolderStore()
    from icestream.catalogs.object_files import open_files
    from icestream.catalogs.store_options import StoreOptions

    options = msgspec.convert(target.storage, StoreOptions)
    return BucketStore(lambda: open_files(options))


def fresh_name() -> str:
    return secrets.token_hex(16)


def read_bundle(
    data: bytes, open_store: OpenStore = open_store, name: Callable[[], str] = fresh_name
) -> Iterator[tuple[int, bytes]]:
    """The first stage: reads the ranges of a bundle, hands on the rows of gathered topics, and writes the others."""
    job = jobs.decode_read_job(data)
    writers = {topic.plan.topic_id: topic.plan.writer for topic in job.topics}
    collector = Collector([topic for topic in job.topics if topic.plan.writer is None])
    owner = LogOwner(job.source)
    try:
        for log_range in job.ranges:
            sections, failed = read_range(job.source, log_range, owner)
            collector.add(log_range.number, sections, failed)
            for handed in _sections_by_writer(log_range.number, sections, failed, writers):
                yield handed.writer, jobs.encode(handed)
    finally:
        owner.close()
    for written in collector.write(open_store, name):
        yield WRITTEN, jobs.encode(written)


def _sections_by_writer(
    range_number: int, sections: Sections, failed: dict[int, TaskError], writers: dict[int, int | None]
) -> Iterator[jobs.Handed]:
    """Yields the sections of a range for each writer, with the errors of its topics."""
    for writer in sorted({writer for writer in writers.values() if writer is not None}):
        topics = [topic_id for topic_id, topic_writer in writers.items() if topic_writer == writer]
        selected = sections.select(np.isin(sections.topic_id, topics))
        errors = {topic_id: failed[topic_id] for topic_id in topics if topic_id in failed}
        if len(selected) or errors:
            yield jobs.Handed(writer, range_number, pack(selected), errors)


def write_handed(
    data: bytes, handed: Iterable[bytes], open_store: OpenStore = open_store, name: Callable[[], str] = fresh_name
) -> list[TopicTaskResult]:
    collector = Collector(jobs.decode_write_job(data).topics)
    for message in sorted(map(jobs.decode_handed, handed), key=lambda message: message.range_number):
        collector.add(message.range_number, unpack(message.sections), message.errors)
    return collector.write(open_store, name)


def read_range(source: LogSource, log_range: LogRange, owner: LogOwner) -> tuple[Sections, dict[int, TaskError]]:
    """Returns the sections of a range that the round needs, and the errors of topics that are incomplete in it. What
    seems damaged is read again from the broker that owns the log, because a copy may be stale."""
    first, fallback = sources_of(source, log_range.file, owner)
    number, start, end = log_range.file, log_range.start, log_range.end
    topics = {offsets.topic_id for offsets in log_range.offsets}
    data = first.read(number, start, end)
    scanned = None if isinstance(data, TaskError) else scan_range(data, start, number, log_range.lsn)
    # The file may have been recycled or half copied while it was read. The broker reads it under the lease of the
    # round.
    if scanned is None or not scanned.is_good:
        second_data = fallback.read(number, start, end)
        if not isinstance(second_data, TaskError):
            data, scanned = second_data, scan_range(second_data, start, number, log_range.lsn)
    if isinstance(data, TaskError) or scanned is None:
        assert isinstance(data, TaskError)
        return no_sections(), dict.fromkeys(topics, data)
    parts = [select_offsets(part, log_range.offsets) for part in scanned.sections]
    parts = [part for part in parts if len(part)]
    sections = parts[0] if len(parts) == 1 else join(parts) if parts else no_sections()
    file_exists = scanned.is_good or first.has_file(number) or fallback.has_file(number)
    return sections, _topic_errors(scanned, log_range, topics, file_exists=file_exists)


def _topic_errors(
    scanned: RangeScan, log_range: LogRange, topics: set[int], *, file_exists: bool
) -> dict[int, TaskError]:
    """Returns the errors of topics that a damaged or recycled range affects."""
    # A file that was recycled meanwhile has records of another generation: that is no damage.
    trouble = TaskErrorKind.DAMAGED if file_exists else TaskErrorKind.STALE
    failed: dict[int, TaskError] = {}
    for topic, position in scanned.bad_topics.items():
        if topic in topics:
            failed[topic] = TaskError(trouble, f"log file {log_range.file}: the section at {position} has a wrong CRC")
    if scanned.bad_from is not None:
        error = TaskError(trouble, f"log file {log_range.file}: no good record at {scanned.bad_from}")
        failed |= {topic: error for topic in topics if topic not in failed}
    return failed
