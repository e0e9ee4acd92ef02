"""Builds the backlog for the pipeline: which offsets are not in a table yet, and which files contain them.

The messages are in model/backlog_messages.py. The reader uses file indexes only, never records.

    1  shards    those with synced offsets above their floor; floor and synced of a topic's shards are frozen together
    2  files     spill files (hazard 8) first, then log files that are not below all floors, oldest first: the ranges of
                 the frozen offsets that each contains, each offset once
    3  ends      where the synced part of each file ends; read last, so that every range lies before it

Steps 1 and 2 run in slices, with an iteration of the event loop after each, because a log may have many thousand topics
(hazard 18). If something was spilled meanwhile, everything is computed again.

Topics that the driver skips because they make no progress (`passed_over`) are reported as sums only. Files without
other topics are left out, so a skipped topic hides no other, however large its backlog is.

Spill files take at most half of the room for files, in rotation, so that many stuck topics leave room for the others.
If not all spill files of a shard fit, nothing after them is reported: it would have a hole before it.

The age of the oldest uncommitted message is an estimate: everything above the new floor arrived after the request that
planned the last committed round. It overestimates the age by at most one round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream import limits
from icestream.model.backlog_messages import BacklogFile, BacklogRange, PassedOver, ShardBacklog, TopicBacklog
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.runtime.clock import Clock
from icestream.wal.appender import Appender
from icestream.wal.backlog_fairness import BacklogFairness
from icestream.wal.file_lifecycle import FileLifecycle
from icestream.wal.file_summary import FileSummary
from icestream.wal.index import FileIndex
from icestream.wal.state import LogState, Shard


class BacklogSnapshot(NamedTuple):
    """The topics and files of one answer. `is_cut`: there is more than fits the answer."""

    topics: list[TopicBacklog]
    files: list[BacklogFile]
    is_cut: bool
    passed_over: PassedOver


class Lag(NamedTuple):
    """How much is not committed to a table, and the append time of the oldest of it; None if nothing waits."""

    messages: int
    bytes: int
    oldest_us: int | None


class _AgeEstimate(NamedTuple):
    """The estimated age of a shard's oldest uncommitted message, and the last request that it is based on."""

    oldest_us: int
    requested_end: int  # the synced offset at the last request
    requested_us: int


class _ShardPart(NamedTuple):
    """What a file contains of a shard."""

    key: ShardKey
    first: int
    end: int
    own_bytes: int
    max_time_us: int


@dataclass(slots=True)
class _Collection:
    """The frozen shards of the reported topics, and the ranges collected for them so far."""

    shards: dict[ShardKey, ShardBacklog] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)  # by topic id
    times: dict[int, int] = field(default_factory=dict)  # by topic id: of the first file that contains it
    files: dict[int, list[BacklogRange]] = field(default_factory=dict)
    range_count: int = 0


@dataclass(slots=True)
class _SpillSelection:
    """The spill files that this answer has room for."""

    files: list[FileSummary] = field(default_factory=list)
    hidden: set[ShardKey] = field(default_factory=set)  # shards whose spill files did not all fit
    is_cut: bool = False


class BacklogReader:
    """Computes backlog answers and the lag of one log; keeps the age estimates between requests."""

    def __init__(self, state: LogState, appender: Appender, lifecycle: FileLifecycle, clock: Clock) -> None:
        self._state = state
        self._appender = appender
        self._lifecycle = lifecycle
        self._clock = clock
        self._ages: dict[ShardKey, _AgeEstimate] = {}
        self._fairness = BacklogFairness()
        self._spill_rotation = 0

    async def snapshot(
        self, files_max: int = limits.BACKLOG_FILES_MAX, passed_over: Set[int] = frozenset()
    ) -> BacklogSnapshot:
        """Everything uncommitted, as far as an answer has room: the longest waiting topics and their oldest files.

        `passed_over`: ids of topics without progress, which are reported as sums only.
        """
        while True:
            # A spill between two slices would put the same offsets into a log file and a spill file, or into neither.
            changes = self._lifecycle.spills.changes
            snapshot = await self._snapshot(files_max, passed_over)
            if changes == self._lifecycle.spills.changes:
                return snapshot

    async def _snapshot(self, files_max: int, passed_over: Set[int]) -> BacklogSnapshot:
        waiting = await self._waiting_topics()
        skipped = {topic_id: waiting.pop(topic_id) for topic_id in passed_over & waiting.keys()}
        chosen = self._fairness.choose(waiting, self._floor_of, self._clock.wall_us())
        collection = _Collection()
        for topic_id in chosen:
            # All shards of a topic without an await in between: a commit must see one consistent state of the topic.
            collection.shards.update((shard.key, self._freeze(shard)) for shard in self._shards_of(topic_id))
        await _yield_to_loop()
        is_cut = not await self._collect_files(collection, files_max, passed_over)
        # Last, as the module says: a file's synced end only grows, so it lies behind every range that was collected
        # before.
        files = [
            file
            for number, ranges in collection.files.items()
            if (file := self._backlog_file(number, ranges)) is not None
        ]
        topics = [
            self._topic_backlog(self._state.topics[topic_id], waiting[topic_id], collection) for topic_id in chosen
        ]
        is_cut = is_cut or len(chosen) < len(waiting) or len(files) < len(collection.files)
        return BacklogSnapshot(topics, files, is_cut, await self._sum_skipped(skipped))

    async def _sum_skipped(self, skipped: Mapping[int, int]) -> PassedOver:
        rows = held_bytes = 0
        for number, topic_id in enumerate(skipped, 1):
            rows += sum(self._rows(shard.key, shard.floor, shard.synced) for shard in self._shards_of(topic_id))
            held_bytes += self._state.usage[topic_id].held_bytes if topic_id in self._state.usage else 0
            if not number % limits.BACKLOG_SLICE_SHARDS:
                await _yield_to_loop()
        return PassedOver(rows, held_bytes, min(skipped.values(), default=None))

    async def lag(self) -> Lag:
        """The lag of all topics, for metrics: does not change the age estimates.

        The bytes are those of messages in files that are still needed.
        """
        messages = 0
        ages_us: list[int] = []
        for number, shard in enumerate(list(self._state.shards.values()), 1):
            if shard.topic.has_table and (rows := self._rows(shard.key, shard.floor, shard.synced)):
                messages += rows
                ages_us.append(self._oldest_us(shard))
            if not number % limits.BACKLOG_SLICE_SHARDS:
                await _yield_to_loop()
        held_bytes = sum(usage.held_bytes for usage in self._state.usage.values()) if messages else 0
        return Lag(messages, held_bytes, min(ages_us, default=None))

    def uncommitted_count(self, key: ShardKey) -> int:
        """The number of messages of one shard that are not in a table."""
        shard = self._state.shards.get(key)
        return self._rows(key, shard.floor, shard.synced) if shard is not None else 0

    # --- shards ---

    async def _waiting_topics(self) -> dict[int, int]:
        """The ids of topics with uncommitted messages, and the append time of the oldest of each."""
        oldest_by_topic: dict[int, int] = {}
        now_us = self._clock.wall_us()
        for number, shard in enumerate(list(self._state.shards.values()), 1):
            # A shard that has only gaps behind its floor has nothing to commit.
            has_rest = shard.topic.has_table and shard.floor < shard.synced
            if has_rest and self._state.step_over(shard.key, shard.floor) < shard.synced:
                oldest_us = self._update_age(shard, now_us)
                oldest_by_topic[shard.topic.id] = min(oldest_by_topic.get(shard.topic.id, oldest_us), oldest_us)
            else:
                self._ages.pop(shard.key, None)
            if not number % limits.BACKLOG_SLICE_SHARDS:
                await _yield_to_loop()
        return oldest_by_topic

    def _update_age(self, shard: Shard, now_us: int) -> int:
        # Never in the future: an append time from a clock that was set back would make the age negative (hazard 32).
        oldest_us = min(self._oldest_us(shard), now_us)
        self._ages[shard.key] = _AgeEstimate(oldest_us, shard.synced, now_us)
        return oldest_us

    def _oldest_us(self, shard: Shard) -> int:
        estimate = self._ages.get(shard.key)
        # First request since the start: the last append is the only known time. It underestimates the age, once.
        if estimate is None:
            return shard.append_time_us
        # Everything of the last request is committed: what remains arrived after that request.
        return estimate.requested_us if shard.floor >= estimate.requested_end else estimate.oldest_us

    def _shards_of(self, topic_id: int) -> Iterator[Shard]:
        number = 0
        while (shard := self._state.shards.get(ShardKey(topic_id, number))) is not None:
            yield shard
            number += 1

    def _floor_of(self, topic_id: int) -> int:
        return sum(shard.floor for shard in self._shards_of(topic_id))

    def _freeze(self, shard: Shard) -> ShardBacklog:
        gaps = _listed_gaps(self._gaps(shard.key, shard.synced), shard.floor)
        return ShardBacklog(shard.key.shard, shard.epoch, shard.floor, shard.synced, gaps)

    def _gaps(self, key: ShardKey, synced: int) -> list[tuple[int, int]]:
        """The declared gaps of a shard below `synced`, by rising offsets."""
        gaps = self._state.gaps.get(key, ())
        return sorted((gap.start, min(gap.end, synced)) for gap in gaps if gap.start < synced)

    def _rows(self, key: ShardKey, committed: int, synced: int) -> int:
        """The uncommitted messages of a shard: its offsets without those in gaps, also in gaps that are not listed."""
        if committed >= synced:
            return 0
        gap_offsets = sum(max(0, end - max(start, committed)) for start, end in self._gaps(key, synced))
        return synced - committed - gap_offsets

    def _topic_backlog(self, topic: TopicIdentity, oldest_us: int, collection: _Collection) -> TopicBacklog:
        frozen = collection.shards
        shards = [frozen[shard.key] for shard in self._shards_of(topic.id) if shard.key in frozen]
        oldest_us = min(oldest_us, collection.times.get(topic.id, oldest_us))
        rows = sum(self._rows(ShardKey(topic.id, shard.shard), shard.committed, shard.synced) for shard in shards)
        return TopicBacklog(
            topic.id, topic.name, topic.incarnation, shards, rows, collection.bytes.get(topic.id, 0), oldest_us
        )

    # --- files ---

    async def _collect_files(self, collection: _Collection, files_max: int, passed_over: Set[int]) -> bool:
        """Adds the files and their ranges to the collection; returns whether all of them fit."""
        selection = self._select_spill_files(files_max // 2, passed_over)
        for file in selection.files:
            ranges = await _collect_ranges(_sealed_parts(file), collection, lambda _: 0)
            if ranges:
                collection.files[file.number] = ranges
                collection.range_count += len(ranges)

        def spilled_end(key: ShardKey) -> int:
            # A shard with hidden spill files is left out entirely: what follows would have a hole before it.
            return 2**63 if key in selection.hidden else self._lifecycle.spills.end(key)

        for number, contents in self._files():
            if isinstance(contents, FileSummary):
                if contents.is_passed(self._lifecycle.log_floor):
                    continue
                ranges = await _collect_ranges(_sealed_parts(contents), collection, spilled_end)
            else:
                ranges = await _collect_ranges(_open_parts(contents), collection, spilled_end)
            if not ranges:
                continue
            collection.files[number] = ranges
            collection.range_count += len(ranges)
            # The oldest files are first, so a cut answer still has what every topic must commit next.
            if len(collection.files) >= files_max or collection.range_count >= limits.BACKLOG_STRETCHES_MAX:
                return False
        return not selection.is_cut

    def _select_spill_files(self, files_max: int, passed_over: Set[int]) -> _SpillSelection:
        shards = self._state.shards
        topics: dict[int, list[FileSummary]] = {}
        for file in self._lifecycle.spills.files:
            if file.keys[0].topic_id in passed_over:
                continue
            if any(file_range.end > shards[key].floor for key, file_range in file.ranges()):
                topics.setdefault(file.keys[0].topic_id, []).append(file)
        # Another topic first after each answer that was cut: else the spill files of the last topics would never be
        # told of.
        start = self._spill_rotation % max(len(topics), 1)
        selection = _SpillSelection()
        for topic_id in [*topics][start:] + [*topics][:start]:
            for file in topics[topic_id]:
                if len(selection.files) < max(files_max, 1):
                    selection.files.append(file)
                else:
                    selection.is_cut = True
                    selection.hidden.update(file.keys)
        if selection.is_cut:
            self._spill_rotation += 1
        return selection

    def _files(self) -> list[tuple[int, FileSummary | FileIndex]]:
        sealed: list[tuple[int, FileSummary | FileIndex]] = [(file.number, file) for file in self._lifecycle.files]
        return sealed + list(self._appender.open_files())

    def _backlog_file(self, number: int, ranges: list[BacklogRange]) -> BacklogFile | None:
        """None for a file that was freed meanwhile, because its floors have moved."""
        for file in self._lifecycle.files:
            if file.number == number:
                return BacklogFile(number, file.seal.end_position, file.marks, ranges)
        for file in self._lifecycle.spills.files:
            if file.number == number:
                return BacklogFile(number, file.seal.end_position, file.marks, ranges, spill=True)
        for open_number, index in self._appender.open_files():
            if open_number == number:
                end = self._appender.synced_end(number)
                return BacklogFile(number, end, [mark for mark in index.marks if mark[0] < end], ranges)
        return None


def _listed_gaps(gaps: list[tuple[int, int]], floor: int) -> list[tuple[int, int]]:
    """The gaps that an answer lists. `gaps`: by rising offsets.

    Gaps below the floor are included: a retention moves the floor beyond the end of the table, and the pipeline, which
    continues at the end of the table, must know every gap in between. Where not all fit, adjacent ones are merged, and
    those that the table meets next are listed: a round goes as far as they allow, and the next one lists what follows.
    The newest ones would leave a hole before them, and the topic would never be written.
    """
    if len(gaps) <= limits.BACKLOG_GAPS_MAX:
        return gaps
    merged: list[tuple[int, int]] = []
    for start, end in gaps:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    passed = sum(end < floor for _, end in merged)
    first = max(0, min(passed, len(merged) - limits.BACKLOG_GAPS_MAX))
    return merged[first : first + limits.BACKLOG_GAPS_MAX]


def _sealed_parts(file: FileSummary) -> Iterator[_ShardPart]:
    for key, file_range in file.ranges():
        yield _ShardPart(key, *file_range)


def _open_parts(index: FileIndex) -> Iterator[_ShardPart]:
    for key, shard in list(index.shards.items()):
        yield _ShardPart(key, shard.first_offset, shard.end_offset, shard.own_bytes, shard.max_time_us)


async def _collect_ranges(
    parts: Iterable[_ShardPart], collection: _Collection, spilled_end: Callable[[ShardKey], int]
) -> list[BacklogRange]:
    """The ranges of the frozen offsets that a file contains and that spill files do not. Adds up bytes and times."""
    ranges: list[BacklogRange] = []
    for number, part in enumerate(parts, 1):
        shard = collection.shards.get(part.key)
        if shard is not None:
            start, end = max(part.first, shard.committed, spilled_end(part.key)), min(part.end, shard.synced)
            if start < end:
                # In proportion: the index knows the bytes of a shard in a file, not those of each message.
                size = part.own_bytes * (end - start) // (part.end - part.first)
                ranges.append(BacklogRange(*part.key, shard.epoch, start, end, size))
                topic_id = part.key.topic_id
                collection.bytes[topic_id] = collection.bytes.get(topic_id, 0) + size
                collection.times.setdefault(topic_id, part.max_time_us)
        if not number % limits.BACKLOG_SLICE_SHARDS:
            await _yield_to_loop()
    return ranges


async def _yield_to_loop() -> None:
    """Lets other tasks run between two slices."""
    await asyncio.sleep(0)
