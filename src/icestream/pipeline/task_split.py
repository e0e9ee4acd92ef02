"""Which task reads what: the bytes of the log that a round needs, cut at marks into bundles of about the same size, one
for each task.

A bundle is a stretch of the log, so that a topic's rows in it follow each other and become one file. A small topic that
lies in several bundles is gathered: its rows go through a shuffle to one writer (fewer, larger files). If there is more
work in files than in bytes, all small topics are gathered, so that the second stage shares out the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from icestream import limits
from icestream.model.backlog_messages import BacklogFile
from icestream.pipeline.round_plan import LogRange, OffsetRange, TopicPlan
from icestream.pipeline.topic_share import Piece


class TaskSplit(NamedTuple):
    """Which task reads and writes what."""

    topics: list[TopicPlan]
    ranges: list[LogRange]
    bundles: int
    writers: int


class _Cut(NamedTuple):
    """The bytes between two marks of a file."""

    file: int  # its index in the order of files
    lsn: int
    start: int
    end: int


def split(
    files: Sequence[BacklogFile], pieces: Sequence[Piece], topics: Sequence[TopicPlan], tasks_max: int
) -> TaskSplit:
    """Splits the bytes of a round into bundles, one for each task, and assigns small topics to writers."""
    cuts = _cuts(files, pieces)
    read_bytes = sum(cut.end - cut.start for cut in cuts)
    # A file costs about as much as so many bytes: a thousand tiny topics are work for several tasks too.
    tasks = _task_count(read_bytes + limits.ROUND_FILE_COST_BYTES * len(topics), tasks_max)
    offsets_by_file: dict[int, list[OffsetRange]] = {}
    for piece in pieces:
        offsets_by_file.setdefault(piece.file, []).append(piece.offsets)
    ranges = _ranges(files, cuts, read_bytes, tasks, offsets_by_file)
    bundles = 1 + max((log_range.bundle for log_range in ranges), default=-1)
    assigned = _assign_writers(topics, ranges, bundles, tasks)
    writers = 1 + max((topic.writer for topic in assigned if topic.writer is not None), default=-1)
    return TaskSplit(assigned, ranges, bundles, writers)


def _task_count(cost_bytes: int, tasks_max: int) -> int:
    return max(1, min(tasks_max, -(-cost_bytes // limits.ROUND_TASK_BYTES_MIN)))


def _cuts(files: Sequence[BacklogFile], pieces: Sequence[Piece]) -> list[_Cut]:
    """Returns the cuts of each file that is read, from the mark before its first needed record to its end."""
    first_positions: dict[int, int] = {}
    for piece in pieces:
        first_positions[piece.file] = min(first_positions.get(piece.file, piece.position), piece.position)
    cuts: list[_Cut] = []
    for index in sorted(first_positions):
        marks = files[index].marks
        # A scan can only begin at a record, and marks are the known beginnings: from the last one at or before the
        # piece.
        begin = max(bisect_right(marks, first_positions[index], key=lambda mark: mark[0]) - 1, 0)
        ends = [position for position, _ in marks[begin + 1 :]] + [files[index].end]
        cuts += [
            _Cut(index, lsn, start, end) for (start, lsn), end in zip(marks[begin:], ends, strict=True) if start < end
        ]
    return cuts


def _ranges(
    files: Sequence[BacklogFile],
    cuts: Sequence[_Cut],
    read_bytes: int,
    tasks: int,
    offsets_by_file: dict[int, list[OffsetRange]],
) -> list[LogRange]:
    """Assigns cuts to bundles: each bundle gets about the same number of bytes, by the middle of each cut."""
    ranges: list[LogRange] = []
    bytes_before = bundle = last_share = 0
    for cut in cuts:
        size = cut.end - cut.start
        # The bundle in which the middle of this cut lies, if all bytes were divided evenly among the tasks.
        share = min(tasks - 1, (2 * bytes_before + size) * tasks // (2 * read_bytes))
        bundle += ranges != [] and share > last_share
        last_share, bytes_before = share, bytes_before + size
        last = ranges[-1] if ranges else None
        number = files[cut.file].number
        if last is not None and last.bundle == bundle and last.file == number:
            ranges[-1] = msgspec.structs.replace(last, end=cut.end)
        else:
            offsets = offsets_by_file[cut.file]
            ranges.append(LogRange(len(ranges), bundle, number, cut.lsn, cut.start, cut.end, offsets))
    return ranges


def _assign_writers(
    topics: Sequence[TopicPlan], ranges: Sequence[LogRange], bundles: int, tasks: int
) -> list[TopicPlan]:
    """Gathers small topics: each goes to the writer with the least work."""
    bundles_by_topic: dict[int, set[int]] = {}
    for log_range in ranges:
        for offsets in log_range.offsets:
            bundles_by_topic.setdefault(offsets.topic_id, set()).add(log_range.bundle)
    small = [
        topic
        for topic in topics
        if topic.bytes <= limits.ROUND_GATHER_BYTES_MAX
        and (len(bundles_by_topic[topic.topic_id]) > 1 or bundles < tasks)
    ]
    # A shuffle for a single topic would only move its rows.
    if bundles < tasks and len(small) <= 1:
        return list(topics)
    load = [0] * tasks
    writers: dict[int, int] = {}
    # The largest first, each to the writer with the least work: simple, and close to the best balance.
    for topic in sorted(small, key=lambda topic: (-topic.bytes, topic.topic_id)):
        writer = load.index(min(load))
        load[writer] += topic.bytes + limits.ROUND_FILE_COST_BYTES
        writers[topic.topic_id] = writer
    return [msgspec.structs.replace(topic, writer=writers.get(topic.topic_id)) for topic in topics]
