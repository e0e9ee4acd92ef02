"""The in-memory state of the log: topics, the offsets of every shard, producers, declared gaps.

It is a function of the records applied: the appender changes it as it assigns offsets, recovery by replaying records; a
checkpoint stores it at a synced LSN. Per shard: committed (`floor`) <= synced <= written <= assigned <= reserved
(format.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from icestream import errors, limits
from icestream.model.block import iter_block_heads
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.wal import notes
from icestream.wal.format import OPTIONAL, SECTION_KINDS_KNOWN, SectionEntry, SectionKind
from icestream.wal.index import ShardIndex
from icestream.wal.producer_sequences import ProducerSequences


@dataclass(slots=True)
class Usage:
    """Bytes that one topic has in the log's files above its floors; compared with its quota (hazard 8)."""

    held_bytes: int = 0


class Shard:
    """The offsets of one shard, and the position of its last section in the file being written."""

    __slots__ = (
        "append_time_us", "assigned", "blocks", "clock_steps", "entry_file", "entry_position", "epoch", "floor",
        "index", "key", "on_visible", "read_file", "read_position", "reserve_pending", "reserved", "rows",
        "sections_per_point", "synced",
        "topic", "usage", "written",
    )  # fmt: skip

    def __init__(self, topic: TopicIdentity, number: int, usage: Usage) -> None:
        self.topic = topic
        self.usage = usage
        self.key = ShardKey(topic.id, number)
        self.epoch = 0
        self.floor = 0
        self.synced = 0
        self.written = 0
        self.assigned = 0
        self.reserved = 0  # no offset at or above this was ever assigned: as synced
        self.reserve_pending = 0  # the same, as last written to the log
        self.append_time_us = -(2**63)
        self.clock_steps = 0
        self.entry_file = 0
        self.entry_position = 0
        self.index = ShardIndex(0)  # its part of the index of that file
        self.sections_per_point = float(limits.READ_SECTIONS_MAX)  # of its index, measured by the last read
        self.read_file = 0  # file and position of its last section that readers may see
        self.read_position = 0
        self.on_visible: Callable[[], None] | None = None  # called when `written` has moved
        # The section being gathered for the record of this tick.
        self.blocks: list[bytes] = []
        self.rows = 0

    def stamp(self, now_us: int) -> int:
        """Returns the append time for a section at `now_us`.

        A small step back of the clock is clamped, a large one is stored and counted (hazard 32).
        """
        last = self.append_time_us
        if now_us < last:
            if last - now_us < limits.CLOCK_CLAMP_US:
                return last
            self.clock_steps += 1
        self.append_time_us = now_us
        return now_us


@dataclass(slots=True)
class LogState:
    """Everything that the log knows beside the messages themselves."""

    topics: dict[int, TopicIdentity] = field(default_factory=dict)
    shards: dict[ShardKey, Shard] = field(default_factory=dict)
    usage: dict[int, Usage] = field(default_factory=dict)  # by topic id
    gaps: dict[ShardKey, list[DeclaredGap]] = field(default_factory=dict)
    producers: ProducerSequences = field(default_factory=ProducerSequences)
    lsn: int = 0  # of the last record applied or built

    def declare_topic(self, topic: TopicIdentity) -> None:
        """Assigns a name to a topic id. Raises InvalidInput if the id has another name already.

        A placeholder for a lost name is replaced by the real name, whichever is declared first.
        """
        declared = self.topics.get(topic.id)
        # A placeholder (incarnation 0) never replaces a name.
        if declared is not None and not topic.incarnation:
            return
        if declared is not None and declared.incarnation and declared != topic:
            raise errors.InvalidInput(
                f"topic id {topic.id} is {declared.name!r} (incarnation {declared.incarnation}) in this log",
                hint="ids are never used twice; a topic that is created again gets a new one",
            )
        self.topics[topic.id] = topic
        if declared is not None and declared != topic:
            for key, shard in self.shards.items():
                if key.topic_id == topic.id:
                    shard.topic = topic

    def shard(self, key: ShardKey) -> Shard:
        """The shard, created on first use. Raises UnknownTopic if its topic was not declared."""
        shard = self.shards.get(key)
        if shard is None:
            topic = self.topics.get(key.topic_id)
            if topic is None:
                raise errors.UnknownTopic(f"topic id {key.topic_id} was never declared", hint="declare the topic first")
            if not 0 <= key.shard < 2**31:
                raise errors.InvalidInput(f"shard {key.shard} is not between 0 and 2^31 - 1")
            usage = self.usage.setdefault(topic.id, Usage())
            shard = self.shards[key] = Shard(topic, key.shard, usage)
        return shard

    def declare_gap(self, gap: DeclaredGap) -> None:
        """Adds a gap; merges it with the gap before it if they touch and have the same reason, state and epoch."""
        gaps = self.gaps.setdefault(gap.key, [])
        before = next((at for at, declared in enumerate(gaps) if _continues(declared, gap)), None)
        if before is not None:
            gaps[before] = DeclaredGap(gap.key, gaps[before].start, gap.end, gap.epoch, gap.reason, gap.state)
        elif gap not in gaps:
            gaps.append(gap)
        if len(gaps) > limits.GAPS_PER_SHARD_MAX:
            # Gaps below the floor are accounted for by the table. Those above it, and those of dropped messages, are
            # kept for ever.
            floor = self.shards[gap.key].floor if gap.key in self.shards else 0
            # Dropped messages are not in the table, so nothing else remembers why they are missing.
            self.gaps[gap.key] = [gap for gap in gaps if gap.end > floor or gap.state is GapState.DROPPED]

    def begin_behind(self, gaps: Iterable[DeclaredGap]) -> list[DeclaredGap]:
        """Takes over shards from the log of another node: everything below their gaps is durable elsewhere.

        Returns the gaps that are still to be written; those that this log has already are left out.
        """
        missing = [gap for gap in gaps if self.shard(gap.key).assigned < gap.end]
        for gap in missing:
            shard = self.shard(gap.key)
            shard.floor = max(shard.floor, gap.start)
        return missing

    def gap_at(self, key: ShardKey, offset: int) -> DeclaredGap | None:
        """The declared gap that contains the offset; None if there is none."""
        return next((gap for gap in self.gaps.get(key, ()) if gap.start <= offset < gap.end), None)

    def step_over(self, key: ShardKey, offset: int) -> int:
        """The first offset at or above `offset` that is not inside a declared gap."""
        while (gap := self.gap_at(key, offset)) is not None:
            offset = gap.end
        return offset

    def apply(self, lsn: int, entries: Iterable[SectionEntry], body_of: Callable[[SectionEntry], bytes]) -> None:
        """Replays one record. Its contents count as synced: recovery syncs a copy before the log is used."""
        for entry in entries:
            self._apply_section(lsn, entry, body_of)
        self.lsn = lsn

    def _apply_section(self, lsn: int, entry: SectionEntry, body_of: Callable[[SectionEntry], bytes]) -> None:
        match entry.kind:
            case SectionKind.MESSAGES:
                self._apply_messages(lsn, entry, body_of(entry))
            case SectionKind.TOPIC:
                self.declare_topic(notes.decode_topic(entry, body_of(entry)))
            case SectionKind.RESERVE:
                shard = self._declared_shard(entry)
                shard.reserved = shard.reserve_pending = max(shard.reserved, entry.base_offset)
            case SectionKind.GAP:
                gap = notes.decode_gap(entry, body_of(entry))
                shard = self._declared_shard(entry)
                self.declare_gap(gap)
                # Messages of this range may be in the log of another node: below the gap nothing is to be expected
                # here.
                if shard.assigned < gap.start:  # taken over: the shard was in the log of another node before
                    shard.floor = max(shard.floor, gap.start)
                if shard.assigned < gap.end:
                    _advance(shard, gap.end)
            # Skipping it could drop messages in silence. A newer version marks what an older one may skip as OPTIONAL.
            case kind if kind not in SECTION_KINDS_KNOWN and not entry.flags & OPTIONAL:
                raise errors.FormatUnknown(
                    f"record {lsn} has a section of unknown kind {kind}",
                    hint="use the version of Icestream that wrote it",
                )

    def _apply_messages(self, lsn: int, entry: SectionEntry, body: bytes) -> None:
        shard = self._declared_shard(entry)
        # Every offset is stored once and in order; a jump without a GAP note means that a record in between is missing.
        if entry.base_offset != shard.assigned:
            raise errors.LogDamaged(
                f"record {lsn} holds offsets of {shard.key} from {entry.base_offset}, expected {shard.assigned}",
                hint="icestream wal inspect shows the log; icestream wal repair declares what is missing as a gap",
            )
        _advance(shard, entry.end_offset)
        shard.epoch = entry.epoch
        shard.append_time_us = entry.append_time_us
        offset = entry.base_offset
        for head in iter_block_heads(body):
            if head.numbering:
                self.producers.record(shard.key, head.numbering, head.rows, offset, lsn, entry.append_time_us, lsn)
            offset += head.rows

    def _declared_shard(self, entry: SectionEntry) -> Shard:
        if entry.topic_id not in self.topics:
            raise errors.LogDamaged(
                f"topic id {entry.topic_id} is used, but no record of the log names it",
                hint="the log's topic names are incomplete: icestream wal inspect shows the log",
            )
        return self.shard(ShardKey(entry.topic_id, entry.shard))


def _continues(before: DeclaredGap, gap: DeclaredGap) -> bool:
    return before.end == gap.start and (before.reason, before.state, before.epoch) == (gap.reason, gap.state, gap.epoch)


def _advance(shard: Shard, offset: int) -> None:
    """Moves all marks of a replayed shard to `offset`: what recovery reads counts as synced."""
    shard.assigned = shard.written = shard.synced = offset
    shard.reserved = shard.reserve_pending = max(shard.reserved, offset)
