"""The identity of topics and shards, and declared gaps in their offsets."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from icestream import errors, limits


class ShardKey(NamedTuple):
    """The unit of order: one shard of one topic."""

    topic_id: int
    shard: int

    def __str__(self) -> str:
        return f"topic {self.topic_id} shard {self.shard}"


# Ids from here on are the node's own topics of the log: they have no record, no table, and no client reads them.
STATE_TOPIC_ID: Final = 2**62


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Id, name and incarnation of a topic. A topic that is created again keeps its name and gets a new incarnation, id.

    Incarnation 0 marks a placeholder for a topic whose name is lost (`nameless`); real incarnations count from 1.
    """

    id: int
    name: str
    incarnation: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.id < 2**63:
            raise errors.InvalidInput(f"topic id {self.id} is not between 1 and 2^63 - 1")
        if not 0 <= self.incarnation < 2**63:
            raise errors.InvalidInput(f"incarnation {self.incarnation} is not between 0 and 2^63 - 1")
        try:
            size = len(self.name.encode())
        except UnicodeEncodeError:
            raise errors.InvalidInput(f"topic name {reprlib.repr(self.name)} is not valid Unicode") from None
        if not 0 < size <= limits.TOPIC_NAME_BYTES_MAX:
            raise errors.InvalidInput(
                f"topic name has {size} bytes", hint=f"1 to {limits.TOPIC_NAME_BYTES_MAX} bytes of UTF-8 are allowed"
            )

    @property
    def has_table(self) -> bool:
        """False for the node's own topics, whose messages the pipeline must not see."""
        return self.id < STATE_TOPIC_ID

    @classmethod
    def nameless(cls, topic_id: int) -> TopicIdentity:
        """The placeholder for a topic whose name is lost."""
        return cls(topic_id, f"/lost/topic-{topic_id}", 0)


class GapState(IntEnum):
    """Why the offsets in a declared gap have no messages."""

    UNUSED = 1  # never assigned, or assigned to a message that was not synced before a crash
    LOST = 2  # messages that an operator gave up (`icestream wal repair`)
    PENDING = 3  # the tail of a failed owner that may come back (hazard 2)
    MERGED = 4  # such a tail that came back and was appended at new offsets
    DROPPED = 5  # messages removed by the topic's retention (hazard 33) or by an engine that deleted rows (hazard 21)


@dataclass(frozen=True, slots=True)
class DeclaredGap:
    """Offsets [start, end) of a shard without messages, and why. Readers step over it, `verify` accounts for it."""

    key: ShardKey
    start: int
    end: int
    epoch: int
    reason: str
    state: GapState

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= limits.OFFSET_MAX:
            raise errors.InvalidInput(f"gap [{self.start}, {self.end}) is not a range of offsets")
