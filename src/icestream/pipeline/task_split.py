"""Who reads what: the wanted bytes of the log, cut at marks into bundles of about the same size, one for each task.

A bundle is a stretch of the log, so that a topic's rows in it follow each other and become one file. A topic that lies
in several bundles and is small is gathered: its rows go through a shuffle to one writer (fewer, larger files). Where
there are more files than bytes to share out, all small topics are, so that the second stage shares out the files.
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


class Split(NamedTuple):
    topics: list[TopicPlan]
    ranges: list[LogRange]
    bundles: int
    writers: int


class _Cut(NamedTuple):
    """Bytes between two marks."""

    place: int
    lsn: int
    start: int
    end: int


def split(files: Sequence[BacklogFile], pieces: Sequence[Piece], topics: Sequence[TopicPlan], tasks_max: int) -> Split:
    cuts = _cuts(files, pieces)
    read_bytes = sum(cut.end - cut.start for cut in cuts)
    tasks = _tasks(read_bytes + limits.ROUND_FILE_COST_BYTES * len(topics), tasks_max)
    wanted: dict[int, list[OffsetRange]] = {}
    for piece in pieces:
        wanted.setdefault(piece.file, []).append(piece.wanted)
    ranges = _ranges(files, cuts, read_bytes, tasks, wanted)
    bundles = 1 + max((one.bundle for one in ranges), default=-1)
    placed = _gather(topics, ranges, bundles, tasks)
    writers = 1 + max((one.writer for one in placed if one.writer is not None), default=-1)
    return Split(placed, ranges, bundles, writers)


def _tasks(cost_bytes: int, tasks_max: int) -> int:
    return max(1, min(tasks_max, -(-cost_bytes // limits.ROUND_TASK_BYTES_MIN)))


def _cuts(files: Sequence[BacklogFile], pieces: Sequence[Piece]) -> list[_Cut]:
    """Each file that is wanted, from the mark before its first wanted record to its end."""
    first: dict[int, int] = {}
    for piece in pieces:
        first[piece.file] = min(first.get(piece.file, piece.position), piece.position)
    cuts: list[_Cut] = []
    for place in sorted(first):
        marks = files[place].marks
        begin = max(bisect_right(marks, first[place], key=lambda mark: mark[0]) - 1, 0)
        ends = [position for position, _ in marks[begin + 1 :]] + [files[place].end]
        cuts += [_Cut(place, lsn, at, end) for (at, lsn), end in zip(marks[begin:], ends, strict=True) if at < end]
    return cuts


def _ranges(
    files: Sequence[BacklogFile],
    cuts: Sequence[_Cut],
    read_bytes: int,
    tasks: int,
    wanted: dict[int, list[OffsetRange]],
) -> list[LogRange]:
    """Goes to the next bundle where the middle of a cut lies behind the present one's share of all bytes."""
    ranges: list[LogRange] = []
    before = bundle = share = 0
    for cut in cuts:
        size = cut.end - cut.start
        place = min(tasks - 1, (2 * before + size) * tasks // (2 * read_bytes))
        bundle += ranges != [] and place > share
        share, before = place, before + size
        last = ranges[-1] if ranges else None
        if last is not None and last.bundle == bundle and last.file == files[cut.place].number:
            ranges[-1] = msgspec.structs.replace(last, end=cut.end)
        else:
            number = files[cut.place].number
            ranges.append(LogRange(len(ranges), bundle, number, cut.lsn, cut.start, cut.end, wanted[cut.place]))
    return ranges


def _gather(topics: Sequence[TopicPlan], ranges: Sequence[LogRange], bundles: int, tasks: int) -> list[TopicPlan]:
    seen: dict[int, set[int]] = {}
    for one in ranges:
        for wanted in one.wanted:
            seen.setdefault(wanted.topic_id, set()).add(one.bundle)
    small = [
        topic
        for topic in topics
        if topic.bytes <= limits.ROUND_GATHER_BYTES_MAX and (len(seen[topic.topic_id]) > 1 or bundles < tasks)
    ]
    if bundles < tasks and len(small) <= 1:
        return list(topics)
    load = [0] * tasks
    writers: dict[int, int] = {}
    for topic in sorted(small, key=lambda one: (-one.bytes, one.topic_id)):
        writer = load.index(min(load))
        load[writer] += topic.bytes + limits.ROUND_FILE_COST_BYTES
        writers[topic.topic_id] = writer
    return [msgspec.structs.replace(topic, writer=writers.get(topic.topic_id)) for topic in topics]
