"""Notes: the small section bodies in a record besides messages, about a topic or a shard.

TOPIC    i64 incarnation, then the name in UTF-8. Entry: topic_id; the rest 0.
RESERVE  empty. Entry: topic_id, shard, epoch; base_offset is the reservation: nothing at or above it was assigned.
GAP      i64 end, u8 state (GapState), 7 zero bytes, then the reason in UTF-8. Entry: base_offset is the start.
"""

from __future__ import annotations

import struct

from icestream import errors
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.wal.format import RecordSection, SectionEntry, SectionKind

_TOPIC = struct.Struct("<q")
_GAP = struct.Struct("<qB7x")


def topic_section(topic: TopicIdentity) -> RecordSection:
    """The TOPIC note of a topic."""
    body = _TOPIC.pack(topic.incarnation) + topic.name.encode()
    return RecordSection(topic.id, 0, SectionKind.TOPIC, 0, 0, 0, 0, 0, 0, body)


def decode_topic(entry: SectionEntry, body: bytes) -> TopicIdentity:
    """Decodes a TOPIC note. Raises DecodeError."""
    try:
        (incarnation,) = _TOPIC.unpack_from(body)
        return TopicIdentity(entry.topic_id, body[_TOPIC.size :].decode(), incarnation)
    except (struct.error, UnicodeDecodeError, errors.InvalidInput) as error:
        raise errors.DecodeError(f"topic note of topic {entry.topic_id}: {error}") from None


def reserve_section(key: ShardKey, epoch: int, reserved: int) -> RecordSection:
    """The RESERVE note: nothing at or above `reserved` was assigned."""
    return RecordSection(key.topic_id, key.shard, SectionKind.RESERVE, 0, epoch, reserved, 0, 0, 0, b"")


def gap_section(gap: DeclaredGap) -> RecordSection:
    """The GAP note of a declared gap."""
    body = _GAP.pack(gap.end, gap.state) + gap.reason.encode()
    return RecordSection(gap.key.topic_id, gap.key.shard, SectionKind.GAP, 0, gap.epoch, gap.start, 0, 0, 0, body)


def decode_gap(entry: SectionEntry, body: bytes) -> DeclaredGap:
    """Decodes a GAP note. Raises DecodeError."""
    try:
        end, state = _GAP.unpack_from(body)
        key = ShardKey(entry.topic_id, entry.shard)
        return DeclaredGap(key, entry.base_offset, end, entry.epoch, body[_GAP.size :].decode(), GapState(state))
    except (struct.error, UnicodeDecodeError, ValueError, errors.InvalidInput) as error:
        raise errors.DecodeError(f"gap note of topic {entry.topic_id} shard {entry.shard}: {error}") from None
