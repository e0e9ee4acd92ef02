"""The two stages of a round, as functions of bytes. Nothing in here knows Spark; nothing raises for what it meets.

read_bundle   reads the ranges of a bundle, once. Topics that are not gathered are written; what it yields is
              (writer, Handed) for those that are, and (WRITTEN, TopicWritten) for the others
write_handed  writes the gathered topics of one writer, from all that was handed to it
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
from icestream.pipeline.rows.log_sections import Sections, joined, nothing, packed, unpacked, wanted_of
from icestream.pipeline.task import job as jobs
from icestream.pipeline.task.collector import Collector

WRITTEN: Final = -1
OpenStore = Callable[[TableTarget], FileStore]


def open_store(target: TableTarget) -> FileStore:
    if target.location.startswith("file:") or "://" not in target.location:
        return FolderStore()
    from icestream.catalogs.factory import open_files
    from icestream.catalogs.store_options import StoreOptions

    options = msgspec.convert(target.storage, StoreOptions)
    return BucketStore(lambda: open_files(options))


def fresh_name() -> str:
    return secrets.token_hex(16)


def read_bundle(
    data: bytes, open_store: OpenStore = open_store, name: Callable[[], str] = fresh_name
) -> Iterator[tuple[int, bytes]]:
    job = jobs.decode_read_job(data)
    writers = {one.plan.topic_id: one.plan.writer for one in job.topics}
    collector = Collector([one for one in job.topics if one.plan.writer is None])
    owner = LogOwner(job.source)
    try:
        for one in job.ranges:
            found, failed = read_range(job.source, one, owner)
            collector.add(one.number, found, failed)
            for handed in _handed(one.number, found, failed, writers):
                yield handed.writer, jobs.encode(handed)
    finally:
        owner.close()
    for written in collector.write(open_store, name):
        yield WRITTEN, jobs.encode(written)


def _handed(
    number: int, found: Sections, failed: dict[int, TaskError], writers: dict[int, int | None]
) -> Iterator[jobs.Handed]:
    for writer in sorted({one for one in writers.values() if one is not None}):
        topics = [topic for topic, by in writers.items() if by == writer]
        mine = found.chosen(np.isin(found.topic_id, topics))
        errors = {topic: failed[topic] for topic in topics if topic in failed}
        if len(mine) or errors:
            yield jobs.Handed(writer, number, packed(mine), errors)


def write_handed(
    data: bytes, handed: Iterable[bytes], open_store: OpenStore = open_store, name: Callable[[], str] = fresh_name
) -> list[TopicTaskResult]:
    collector = Collector(jobs.decode_write_job(data).topics)
    for one in sorted(map(jobs.decode_handed, handed), key=lambda found: found.range_number):
        collector.add(one.range_number, unpacked(one.sections), one.errors)
    return collector.write(open_store, name)


def read_range(source: LogSource, one: LogRange, owner: LogOwner) -> tuple[Sections, dict[int, TaskError]]:
    """The wanted sections of a range, and which topics are not whole in it. What seems damaged is read again from the
    owner before it is believed."""
    place, again = sources_of(source, one.file, owner)
    topics = {wanted.topic_id for wanted in one.wanted}
    data = place.read(one.file, one.start, one.end)
    scanned = None if isinstance(data, TaskError) else scan_range(data, one.start, one.file, one.lsn)
    if scanned is None or not scanned.is_good:
        second = again.read(one.file, one.start, one.end)
        if not isinstance(second, TaskError):
            data, scanned = second, scan_range(second, one.start, one.file, one.lsn)
    if isinstance(data, TaskError) or scanned is None:
        assert isinstance(data, TaskError)
        return nothing(), dict.fromkeys(topics, data)
    parts = [wanted_of(part, one.wanted) for part in scanned.sections]
    parts = [part for part in parts if len(part)]
    whole = parts[0] if len(parts) == 1 else joined(parts) if parts else nothing()
    is_there = scanned.is_good or place.is_there(one.file) or again.is_there(one.file)
    return whole, _failed(scanned, one, topics, is_there=is_there)


def _failed(scanned: RangeScan, one: LogRange, topics: set[int], *, is_there: bool) -> dict[int, TaskError]:
    trouble = TaskErrorKind.DAMAGED if is_there else TaskErrorKind.STALE
    failed: dict[int, TaskError] = {}
    for topic, position in scanned.bad_topics.items():
        if topic in topics:
            failed[topic] = TaskError(trouble, f"log file {one.file}: the section at {position} has a wrong CRC")
    if scanned.bad_from is not None:
        error = TaskError(trouble, f"log file {one.file}: no good record at {scanned.bad_from}")
        failed |= {topic: error for topic in topics if topic not in failed}
    return failed
