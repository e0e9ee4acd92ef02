"""What of the log is in no table yet, and where it lies (model/backlog.py). It looks at indexes, never at records.

    1  shards    those with something synced above their floor; floor and synced of a topic's shards are frozen together
    2  files     those of spill logs (hazard 8), then the log's, the oldest first, that are not below all floors: what
                 they hold of the frozen offsets, each offset once
    3  ends      where the synced part of each file ends: last, so that every stretch lies before it

Steps 1 and 2 go in slices, with a turn of the loop behind each: a log may have many thousand topics (hazard 18). When
something was spilled meanwhile, all of it is done again.

Topics that the driver names because they stand still are passed over: nothing of them is told but sums, so that files
with nothing else are not counted, and however much one of them has, it hides nobody.

Spill files take at most half of the room for files, so that many stuck topics leave the others theirs. Who gets it goes
around; of a shard of whose spill files not all find room nothing behind is told: it would have a hole before it.

How old the oldest message is that is in no table is known about, without a time for each message: what the floor leaves
behind came after the question that the committed round was planned by. It may be taken for older by one round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream import limits
from icestream.model.backlog import LogFile, PassedOver, ShardBacklog, Stretch, TopicBacklog
from icestream.model.shard import ShardKey, Topic
from icestream.runtime.clock import Clock
from icestream.wal.appender import Appender
from icestream.wal.index import FileIndex
from icestream.wal.state import LogState, Shard
from icestream.wal.summary import FileSummary
from icestream.wal.told_topics import ToldTopics
from icestream.wal.upkeep import Upkeep


class Held(NamedTuple):
    """The topics and files of an answer."""

    topics: list[TopicBacklog]
    files: list[LogFile]
    is_cut: bool
    passed_over: PassedOver


class Lag(NamedTuple):
    """How much waits for its table, and since when the oldest of it does; None when nothing waits."""

    messages: int
    bytes: int
    oldest_us: int | None


class _Age(NamedTuple):
    """Since when the oldest message waits; up to which offset it was asked for last, and when."""

    oldest_us: int
    end: int
    asked_us: int


class _Part(NamedTuple):
    """What a file holds of a shard."""

    key: ShardKey
    first: int
    end: int
    own_bytes: int
    max_time_us: int


@dataclass(slots=True)
class _Gathered:
    """Of the topics that are told: their frozen shards, and what is found of them."""

    shards: dict[ShardKey, ShardBacklog] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)  # by topic
    times: dict[int, int] = field(default_factory=dict)  # of the first file with something of the topic
    files: dict[int, list[Stretch]] = field(default_factory=dict)
    stretches: int = 0


@dataclass(slots=True)
class _Spilled:
    """What of the spill logs is told this time."""

    files: list[FileSummary] = field(default_factory=list)
    hidden: set[ShardKey] = field(default_factory=set)  # shards for whose files there was no room
    is_cut: bool = False


class BacklogReader:
    def __init__(self, state: LogState, appender: Appender, upkeep: Upkeep, clock: Clock) -> None:
        self._state = state
        self._appender = appender
        self._upkeep = upkeep
        self._clock = clock
        self._ages: dict[ShardKey, _Age] = {}
        self._told = ToldTopics()
        self._spill_turn = 0

    async def take(self, files_max: int = limits.BACKLOG_FILES_MAX, passed_over: Set[int] = frozenset()) -> Held:
        """Everything, as far as an answer has room: of the topics that wait longest (told_topics.py), and the oldest
        files with something of them. `passed_over`: topics that stand still, and take no room."""
        while True:
            changes = self._upkeep.spills.changes
            held = await self._take(files_max, passed_over)
            if changes == self._upkeep.spills.changes:
                return held

    async def _take(self, files_max: int, passed_over: Set[int]) -> Held:
        waiting = await self._waiting()
        standing = {topic_id: waiting.pop(topic_id) for topic_id in passed_over & waiting.keys()}
        chosen = self._told.choose(waiting, self._floor_of, self._clock.wall_us())
        gathered = _Gathered()
        for topic_id in chosen:
            gathered.shards.update((shard.key, self._frozen(shard)) for shard in self._shards_of(topic_id))
        await _turn()
        is_cut = not await self._gather_files(gathered, files_max, passed_over)
        files = [
            found
            for number, stretches in gathered.files.items()
            if (found := self._log_file(number, stretches)) is not None
        ]
        topics = [self._topic(self._state.topics[topic_id], waiting[topic_id], gathered) for topic_id in chosen]
        is_cut = is_cut or len(chosen) < len(waiting) or len(files) < len(gathered.files)
        return Held(topics, files, is_cut, await self._sums(standing))

    async def _sums(self, standing: Mapping[int, int]) -> PassedOver:
        rows = held_bytes = 0
        for number, topic_id in enumerate(standing, 1):
            rows += sum(_rows(self._frozen(shard)) for shard in self._shards_of(topic_id))
            held_bytes += self._state.usage[topic_id].held_bytes if topic_id in self._state.usage else 0
            if not number % limits.BACKLOG_SLICE_SHARDS:
                await _turn()
        return PassedOver(rows, held_bytes, min(standing.values(), default=None))

    async def lag(self) -> Lag:
        """For those who watch: it changes nothing. Bytes are those of messages in files that are not done with."""
        messages = 0
        ages_us: list[int] = []
        for number, shard in enumerate(list(self._state.shards.values()), 1):
            if shard.floor < shard.synced and (rows := _rows(self._frozen(shard))):
                messages += rows
                ages_us.append(self._oldest_us(shard))
            if not number % limits.BACKLOG_SLICE_SHARDS:
                await _turn()
        held_bytes = sum(usage.held_bytes for usage in self._state.usage.values()) if messages else 0
        return Lag(messages, held_bytes, min(ages_us, default=None))

    def waiting(self, key: ShardKey) -> int:
        """Messages of one shard that are in no table."""
        shard = self._state.shards.get(key)
        return _rows(self._frozen(shard)) if shard is not None else 0

    # --- shards ---

    async def _waiting(self) -> dict[int, int]:
        """The topics with something to write, and since when their oldest message waits."""
        found: dict[int, int] = {}
        now_us = self._clock.wall_us()
        for number, shard in enumerate(list(self._state.shards.values()), 1):
            if shard.floor < shard.synced and self._state.step_over(shard.key, shard.floor) < shard.synced:
                oldest_us = self._age(shard, now_us)
                found[shard.topic.id] = min(found.get(shard.topic.id, oldest_us), oldest_us)
            else:
                self._ages.pop(shard.key, None)
            if not number % limits.BACKLOG_SLICE_SHARDS:
                await _turn()
        return found

    def _age(self, shard: Shard, now_us: int) -> int:
        oldest_us = min(self._oldest_us(shard), now_us)
        self._ages[shard.key] = _Age(oldest_us, shard.synced, now_us)
        return oldest_us

    def _oldest_us(self, shard: Shard) -> int:
        known = self._ages.get(shard.key)
        if known is None:
            return shard.append_time_us
        return known.asked_us if shard.floor >= known.end else known.oldest_us

    def _shards_of(self, topic_id: int) -> Iterator[Shard]:
        number = 0
        while (shard := self._state.shards.get(ShardKey(topic_id, number))) is not None:
            yield shard
            number += 1

    def _floor_of(self, topic_id: int) -> int:
        return sum(shard.floor for shard in self._shards_of(topic_id))

    def _frozen(self, shard: Shard) -> ShardBacklog:
        # also those below the floor: a retention moves it beyond what is in the table, and who goes on where the table
        # ends must know all that lies between
        gaps = [
            (gap.start, min(gap.end, shard.synced))
            for gap in self._state.gaps.get(shard.key, ())
            if gap.start < shard.synced
        ]
        gaps = sorted(gaps)[-limits.BACKLOG_GAPS_MAX :]
        return ShardBacklog(shard.key.shard, shard.epoch, shard.floor, shard.synced, gaps)

    def _topic(self, topic: Topic, oldest_us: int, gathered: _Gathered) -> TopicBacklog:
        shards = [gathered.shards[shard.key] for shard in self._shards_of(topic.id) if shard.key in gathered.shards]
        oldest_us = min(oldest_us, gathered.times.get(topic.id, oldest_us))
        rows = sum(map(_rows, shards))
        return TopicBacklog(
            topic.id, topic.name, topic.incarnation, shards, rows, gathered.bytes.get(topic.id, 0), oldest_us
        )

    # --- files ---

    async def _gather_files(self, gathered: _Gathered, files_max: int, passed_over: Set[int]) -> bool:
        """Whether that was all."""
        spilled = self._spilled(files_max // 2, passed_over)
        for file in spilled.files:
            found = await _stretches(_sealed_parts(file), gathered, lambda _: 0)
            if found:
                gathered.files[file.number] = found
                gathered.stretches += len(found)

        def spilled_end(key: ShardKey) -> int:
            return 2**63 if key in spilled.hidden else self._upkeep.spills.end(key)

        for number, parts in self._files():
            if isinstance(parts, FileSummary):
                if parts.is_passed(self._upkeep.log_floor):
                    continue
                found = await _stretches(_sealed_parts(parts), gathered, spilled_end)
            else:
                found = await _stretches(_open_parts(parts), gathered, spilled_end)
            if not found:
                continue
            gathered.files[number] = found
            gathered.stretches += len(found)
            if len(gathered.files) >= files_max or gathered.stretches >= limits.BACKLOG_STRETCHES_MAX:
                return False
        return not spilled.is_cut

    def _spilled(self, files_max: int, passed_over: Set[int]) -> _Spilled:
        shards = self._state.shards
        topics: dict[int, list[FileSummary]] = {}
        for file in self._upkeep.spills.files:
            if file.keys[0].topic_id in passed_over:
                continue
            if any(held.end > shards[key].floor for key, held in file.ranges()):
                topics.setdefault(file.keys[0].topic_id, []).append(file)
        turn = self._spill_turn % max(len(topics), 1)
        found = _Spilled()
        for topic_id in [*topics][turn:] + [*topics][:turn]:
            for file in topics[topic_id]:
                if len(found.files) < max(files_max, 1):
                    found.files.append(file)
                else:
                    found.is_cut = True
                    found.hidden.update(file.keys)
        if found.is_cut:
            self._spill_turn += 1
        return found

    def _files(self) -> list[tuple[int, FileSummary | FileIndex]]:
        sealed: list[tuple[int, FileSummary | FileIndex]] = [(file.number, file) for file in self._upkeep.files]
        return sealed + list(self._appender.open_files())

    def _log_file(self, number: int, stretches: list[Stretch]) -> LogFile | None:
        """None for a file that was freed meanwhile: its floors have moved."""
        for file in self._upkeep.files:
            if file.number == number:
                return LogFile(number, file.seal.end_position, file.marks, stretches)
        for file in self._upkeep.spills.files:
            if file.number == number:
                return LogFile(number, file.seal.end_position, file.marks, stretches, spill=True)
        for open_number, index in self._appender.open_files():
            if open_number == number:
                end = self._appender.synced_end(number)
                return LogFile(number, end, [mark for mark in index.marks if mark[0] < end], stretches)
        return None


def _rows(shard: ShardBacklog) -> int:
    inside = sum(max(0, end - max(start, shard.committed)) for start, end in shard.gaps)
    return shard.synced - shard.committed - inside


def _sealed_parts(file: FileSummary) -> Iterator[_Part]:
    for key, held in file.ranges():
        yield _Part(key, *held)


def _open_parts(index: FileIndex) -> Iterator[_Part]:
    for key, held in list(index.shards.items()):
        yield _Part(key, held.first_offset, held.end_offset, held.own_bytes, held.max_time_us)


async def _stretches(
    parts: Iterable[_Part], gathered: _Gathered, spilled_end: Callable[[ShardKey], int]
) -> list[Stretch]:
    """What a file holds of the frozen offsets, and of what is not told of the spill log."""
    found: list[Stretch] = []
    for number, part in enumerate(parts, 1):
        shard = gathered.shards.get(part.key)
        if shard is not None:
            start, end = max(part.first, shard.committed, spilled_end(part.key)), min(part.end, shard.synced)
            if start < end:
                size = part.own_bytes * (end - start) // (part.end - part.first)
                found.append(Stretch(*part.key, shard.epoch, start, end, size))
                topic_id = part.key.topic_id
                gathered.bytes[topic_id] = gathered.bytes.get(topic_id, 0) + size
                gathered.times.setdefault(topic_id, part.max_time_us)
        if not number % limits.BACKLOG_SLICE_SHARDS:
            await _turn()
    return found


async def _turn() -> None:
    await asyncio.sleep(0)
