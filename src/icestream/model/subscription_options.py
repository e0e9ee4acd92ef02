"""What a subscription is: its type, where it starts, and what happens to a message that fails."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

import msgspec

from icestream import errors, limits
from icestream.model.field_metadata import NumberBounds, number_bounds
from icestream.model.topic_name import TopicName


class SubscriptionType(Enum):
    """How the messages of a subscription are distributed over its consumers."""

    EXCLUSIVE = "exclusive"  # one consumer
    SHARED = "shared"  # many, in turn
    FAILOVER = "failover"  # one of many, the others stand by in order of arrival
    KEY_SHARED = "key-shared"  # many, each key with one of them


class DispatchMode(Enum):
    """How a topic's messages reach consumers. Both kinds are stored; only delivery differs (hazard 45)."""

    RELIABLE = "reliable"  # until it is acked
    NON_RELIABLE = "non-reliable"  # at most once, to a consumer that has room at that moment


class StartAt(Enum):
    """Where a new subscription begins."""

    LATEST = "latest"
    EARLIEST = "earliest"
    OFFSET = "offset"
    TIME = "time"
    SNAPSHOT = "snapshot"  # behind what a snapshot of the topic's table holds


@dataclass(frozen=True, slots=True)
class SubscriptionStart:
    """Where a new subscription begins. `value`: an offset, microseconds since 1970, or the id of a snapshot."""

    at: StartAt = StartAt.LATEST
    value: int = 0

    def __post_init__(self) -> None:
        if self.at is StartAt.OFFSET and not 0 <= self.value <= limits.OFFSET_MAX:
            raise errors.InvalidInput(f"offset {self.value} is not between 0 and {limits.OFFSET_MAX}")
        if self.at is StartAt.TIME and not -(2**63) <= self.value < 2**63:
            raise errors.InvalidInput("the time does not fit microseconds since 1970 in 64 bits")
        if self.at is StartAt.SNAPSHOT and not -(2**63) <= self.value < 2**63:
            raise errors.InvalidInput("the id of a snapshot does not fit 64 bits")


class RedeliveryBackoff(Enum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class PoisonPolicy(Enum):
    """What becomes of a message that failed more often than its policy allows."""

    DEAD_LETTER = "dead-letter"  # goes to another topic, and counts as acked
    DROP = "drop"  # counts as acked
    BLOCK = "block"  # nothing new is dispatched (of that key, if keys are shared) until an operator decides


_Limited = Annotated[int, NumberBounds(0, limits.FAILURE_POLICY_VALUE_MAX)]


class FailurePolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The treatment of messages that fail."""

    # Declared once: stored with its subscription as it is, and a part of native calls and of the HTTP API.
    max_redelivery_count: _Limited = 5
    ack_timeout_ms: Annotated[int, NumberBounds(1, limits.FAILURE_POLICY_VALUE_MAX)] = 30_000
    base_delay_ms: _Limited = 1_000
    max_delay_ms: _Limited = 60_000
    backoff: RedeliveryBackoff = RedeliveryBackoff.EXPONENTIAL
    poison: PoisonPolicy = PoisonPolicy.BLOCK
    dead_letter_topic: str | None = None

    def __post_init__(self) -> None:
        for name, bounds in _FAILURE_POLICY_BOUNDS.items():
            value = getattr(self, name)
            if not bounds.low <= value <= bounds.high:
                raise errors.InvalidInput(
                    f"{name} {value} is not between {bounds.low} and {bounds.high}", hint="times are in milliseconds"
                )
        if self.dead_letter_topic is not None:
            TopicName.parse(self.dead_letter_topic)
        elif self.poison is PoisonPolicy.DEAD_LETTER:
            raise errors.InvalidInput("poison policy dead-letter needs a topic", hint="set dead_letter_topic")

    def delay_ms(self, attempt: int, asked_ms: int = 0) -> int:
        """How long a message waits after its `attempt`-th failure (from 1), if its consumer requested `asked_ms`."""
        delay = self.base_delay_ms
        if self.backoff is RedeliveryBackoff.EXPONENTIAL:
            delay <<= min(max(attempt - 1, 0), 32)
        return min(max(delay, asked_ms), self.max_delay_ms)


_FAILURE_POLICY_BOUNDS: Final = number_bounds(FailurePolicy)
