"""What the log knows: topics, the offsets of every shard, producers, declared gaps. A function of the records applied.

The appender changes it as it assigns, recovery by applying what it finds; a checkpoint is a picture of it at a synced
LSN. Per shard: committed (`floor`) <= synced <= written <= assigned <= reserved (format.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from icestream import errors, limits
from icestream.model.block import heads_of
from icestream.model.shard import Gap, GapState, ShardKey, Topic
from icestream.wal import notes
from icestream.wal.format import OPTIONAL, SECTION_KINDS_KNOWN, Entry, SectionKind
from icestream.wal.index import ShardIndex
from icestream.wal.producers import Producers


@dataclass(slots=True)
class Usage:
    """Bytes of one topic in the log's files: its quota is measured by this (hazard 8)."""

    held_bytes: int = 0


class Shard:
    """The offsets of one shard, and where its last section stands in the file being written."""

    __slots__ = (
        "append_time_us", "assigned", "blocks", "clock_steps", "entry_file", "entry_position", "epoch", "floor",
        "index", "key", "on_visible", "read_file", "read_position", "reserve_pending", "reserved", "rows",
        "sections_per_point", "synced",
        "topic", "usage", "written",
    )  # fmt: skip

    def __init__(self, topic: Topic, number: int, usage: Usage) -> None:
        self.topic = topic
        self.usage = usage
        self.key = ShardKey(topic.id, number)
        self.epoch = 0
        self.floor = 0
        self.synced = 0
        self.written = 0
        self.assigned = 0
        self.reserved = 0  # the promise that is on disk
        self.reserve_pending = 0  # the promise that is in the log
        self.append_time_us = -(2**63)
        self.clock_steps = 0
        self.entry_file = 0
        self.entry_position = 0
        self.index = ShardIndex(0)  # its part of the index of that file
        self.sections_per_point = float(limits.READ_SECTIONS_MAX)  # of its index, as the last read found it
        self.read_file = 0  # its last section that readers may see
        self.read_position = 0
        self.on_visible: Callable[[], None] | None = None  # told when `written` has moved
        # the section being gathered for the record of this tick
        self.blocks: list[bytes] = []
        self.rows = 0

    def stamp(self, now_us: int) -> int:
        """The append time of a section now: small steps back are clamped, large ones are stored and counted (32)."""
        last = self.append_time_us
        if now_us < last:
            if last - now_us < limits.CLOCK_CLAMP_US:
                return last
            self.clock_steps += 1
        self.append_time_us = now_us
        return now_us


@dataclass(slots=True)
class LogState:
    topics: dict[int, Topic] = field(default_factory=dict)
    shards: dict[ShardKey, Shard] = field(default_factory=dict)
    usage: dict[int, Usage] = field(default_factory=dict)  # by topic id
    gaps: dict[ShardKey, list[Gap]] = field(default_factory=dict)
    producers: Producers = field(default_factory=Producers)
    lsn: int = 0  # of the last record applied or built

    def declare(self, topic: Topic) -> None:
        """Names a topic id. A stand-in for a lost name gives way to the name, whichever comes first."""
        known = self.topics.get(topic.id)
        if known is not None and not topic.incarnation:
            return
        if known is not None and known.incarnation and known != topic:
            raise errors.InvalidInput(
                f"topic id {topic.id} is {known.name!r} (incarnation {known.incarnation}) in this log",
                hint="ids are never used twice; a topic that is created again gets a new one",
            )
        self.topics[topic.id] = topic
        if known is not None and known != topic:
            for key, shard in self.shards.items():
                if key.topic_id == topic.id:
                    shard.topic = topic

    def shard(self, key: ShardKey) -> Shard:
        """The shard, made on first use. The topic must be declared."""
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

    def declare_gap(self, gap: Gap) -> None:
        """Adds a gap, merged with the one that it continues when they say the same."""
        gaps = self.gaps.setdefault(gap.key, [])
        before = next((at for at, known in enumerate(gaps) if _continues(known, gap)), None)
        if before is not None:
            gaps[before] = Gap(gap.key, gaps[before].start, gap.end, gap.epoch, gap.reason, gap.state)
        elif gap not in gaps:
            gaps.append(gap)
        if len(gaps) > limits.GAPS_PER_SHARD_MAX:
            # what lies below the floor is accounted for elsewhere by now; what lies above it, and what was dropped, is
            # never forgotten
            floor = self.shards[gap.key].floor if gap.key in self.shards else 0
            self.gaps[gap.key] = [gap for gap in gaps if gap.end > floor or gap.state is GapState.DROPPED]

    def begin_behind(self, gaps: Iterable[Gap]) -> list[Gap]:
        """Shards that were in the log of another node: what lies below a gap is durable elsewhere. The gaps that are to
        be written; those of shards that are there already are not."""
        missing = [gap for gap in gaps if self.shard(gap.key).assigned < gap.end]
        for gap in missing:
            shard = self.shard(gap.key)
            shard.floor = max(shard.floor, gap.start)
        return missing

    def gap_at(self, key: ShardKey, offset: int) -> Gap | None:
        return next((gap for gap in self.gaps.get(key, ()) if gap.start <= offset < gap.end), None)

    def step_over(self, key: ShardKey, offset: int) -> int:
        """The first offset from here on that is not inside a declared gap."""
        while (gap := self.gap_at(key, offset)) is not None:
            offset = gap.end
        return offset

    def apply(self, lsn: int, entries: Iterable[Entry], body_of: Callable[[Entry], bytes]) -> None:
        """One record that was found in the log. Everything it says counts as synced: recovery makes it so first."""
        for entry in entries:
            self._apply_section(lsn, entry, body_of)
        self.lsn = lsn

    def _apply_section(self, lsn: int, entry: Entry, body_of: Callable[[Entry], bytes]) -> None:
        match entry.kind:
            case SectionKind.MESSAGES:
                self._apply_messages(lsn, entry, body_of(entry))
            case SectionKind.TOPIC:
                self.declare(notes.decode_topic(entry, body_of(entry)))
            case SectionKind.RESERVE:
                shard = self._known_shard(entry)
                shard.reserved = shard.reserve_pending = max(shard.reserved, entry.base_offset)
            case SectionKind.GAP:
                gap = notes.decode_gap(entry, body_of(entry))
                shard = self._known_shard(entry)
                self.declare_gap(gap)
                if shard.assigned < gap.start:  # the shard was in the log of another node until then
                    shard.floor = max(shard.floor, gap.start)
                if shard.assigned < gap.end:
                    _advance(shard, gap.end)
            case kind if kind not in SECTION_KINDS_KNOWN and not entry.flags & OPTIONAL:
                raise errors.FormatUnknown(
                    f"record {lsn} has a section of kind {kind}", hint="use the version of Icestream that wrote it"
                )

    def _apply_messages(self, lsn: int, entry: Entry, body: bytes) -> None:
        shard = self._known_shard(entry)
        if entry.base_offset != shard.assigned:
            raise errors.LogDamaged(
                f"record {lsn} holds offsets of {shard.key} from {entry.base_offset}, expected {shard.assigned}",
                hint="icestream wal inspect shows the log; icestream wal repair declares what is missing as a gap",
            )
        _advance(shard, entry.end_offset)
        shard.epoch = entry.epoch
        shard.append_time_us = entry.append_time_us
        offset = entry.base_offset
        for head in heads_of(body):
            if head.numbering:
                self.producers.record(shard.key, head.numbering, head.rows, offset, lsn, entry.append_time_us, lsn)
            offset += head.rows

    def _known_shard(self, entry: Entry) -> Shard:
        if entry.topic_id not in self.topics:
            raise errors.LogDamaged(
                f"topic id {entry.topic_id} is used but nowhere named",
                hint="the log's dictionary is incomplete: icestream wal inspect shows the log",
            )
        return self.shard(ShardKey(entry.topic_id, entry.shard))


def _continues(before: Gap, gap: Gap) -> bool:
    return before.end == gap.start and (before.reason, before.state, before.epoch) == (gap.reason, gap.state, gap.epoch)


def _advance(shard: Shard, offset: int) -> None:
    shard.assigned = shard.written = shard.synced = offset
    shard.reserved = shard.reserve_pending = max(shard.reserved, offset)
