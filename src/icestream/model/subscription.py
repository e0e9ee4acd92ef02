"""What a subscription is: its type, where it starts, and what happens to a message that fails."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from icestream import errors, limits
from icestream.model.topic_name import TopicName


class SubscriptionType(Enum):
    EXCLUSIVE = "exclusive"  # one consumer
    SHARED = "shared"  # many, in turn
    FAILOVER = "failover"  # one of many, the others stand by in order of arrival
    KEY_SHARED = "key-shared"  # many, each key with one of them


class DispatchMode(Enum):
    """How a topic's messages reach consumers. Both kinds are stored; only delivery differs (hazard 45)."""

    RELIABLE = "reliable"  # until it is acked
    NON_RELIABLE = "non-reliable"  # once, to whoever has room at that moment


class StartAt(Enum):
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
    BLOCK = "block"  # nothing new is dispatched (of that key, where keys are shared) until somebody decides


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    max_redelivery_count: int = 5
    ack_timeout_ms: int = 30_000
    base_delay_ms: int = 1_000
    max_delay_ms: int = 60_000
    backoff: RedeliveryBackoff = RedeliveryBackoff.EXPONENTIAL
    poison: PoisonPolicy = PoisonPolicy.BLOCK
    dead_letter_topic: str | None = None

    def __post_init__(self) -> None:
        for name, value, low in (
            ("max_redelivery_count", self.max_redelivery_count, 0),
            ("ack_timeout_ms", self.ack_timeout_ms, 1),
            ("base_delay_ms", self.base_delay_ms, 0),
            ("max_delay_ms", self.max_delay_ms, 0),
        ):
            if not low <= value <= limits.FAILURE_POLICY_VALUE_MAX:
                raise errors.InvalidInput(
                    f"{name} {value} is not between {low} and {limits.FAILURE_POLICY_VALUE_MAX}",
                    hint="times are in milliseconds",
                )
        if self.dead_letter_topic is not None:
            TopicName.parse(self.dead_letter_topic)
        elif self.poison is PoisonPolicy.DEAD_LETTER:
            raise errors.InvalidInput("poison policy dead-letter needs a topic", hint="set dead_letter_topic")

    def delay_ms(self, attempt: int, asked_ms: int = 0) -> int:
        """How long a message waits after its `attempt`-th failure (from 1), when its consumer asked for `asked_ms`."""
        delay = self.base_delay_ms
        if self.backoff is RedeliveryBackoff.EXPONENTIAL:
            delay <<= min(max(attempt - 1, 0), 32)
        return min(max(delay, asked_ms), self.max_delay_ms)
