"""What a subscription is asked for, and the gaps that it tells of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from icestream import errors, limits
from icestream.client.questions import Document
from icestream.client.whence import Whence, arguments_of
from icestream.model.shard import GapState
from icestream.model.subscription import SubscriptionType
from icestream.model.topic_name import TopicName, check_name

TypeName = Literal["exclusive", "shared", "failover", "key-shared"]


class Gap(NamedTuple):
    """Offsets [start, end) of a shard that hold no message, and why."""

    shard: int
    start: int
    end: int
    state: GapState
    reason: str


Gap.shard.__doc__ = "The shard of the topic."
Gap.start.__doc__ = "The first offset that holds no message."
Gap.end.__doc__ = "The offset behind the last one that holds no message."
Gap.state.__doc__ = "What is known of the offsets: never used, lost, dropped by a retention, …"
Gap.reason.__doc__ = "Why there is no message, in words."


# Types of subscriptions whose consumers get messages that do not follow one another.
_SHARING: Final = (SubscriptionType.SHARED.value, SubscriptionType.KEY_SHARED.value)


@dataclass(frozen=True, slots=True)
class SubscriptionAsked:
    """What `Client.subscribe` was asked for."""

    topic: str
    subscription: str
    type: TypeName
    start: Whence
    consumer: str | None
    prefetch: int | None  # None: as many as suit how they are taken
    buffer_bytes: int
    take_timeout: float | None
    dedup: bool
    key_patterns: tuple[str, ...]
    failure: dict[str, Any] | None
    messages_per_key: int = 1
    stall_timeout: float | None = None

    def __post_init__(self) -> None:
        TopicName.parse(self.topic)
        check_name("subscription", self.subscription)
        types = [kind.value for kind in SubscriptionType]
        if self.type not in types:
            raise errors.InvalidInput(
                f"{self.type!r} is not a type of subscriptions", hint=f"there are {', '.join(types)}"
            )
        if self.key_patterns and self.type != SubscriptionType.KEY_SHARED.value:
            raise errors.InvalidInput(
                f"key_patterns have no meaning for a subscription that is {self.type}", hint='type="key-shared"'
            )
        if self.messages_per_key != 1 and self.type != SubscriptionType.KEY_SHARED.value:
            raise errors.InvalidInput(
                f"messages_per_key has no meaning for a subscription that is {self.type}", hint='type="key-shared"'
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        if self.prefetch is not None and (type(self.prefetch) is not int or not 0 < self.prefetch <= limits.CREDIT_MAX):
            raise errors.InvalidInput(f"prefetch={self.prefetch!r}", hint=f"1 to {limits.CREDIT_MAX} messages")
        of_key = self.messages_per_key
        if type(of_key) is not int or not 0 < of_key <= limits.MESSAGES_PER_KEY_MAX:
            raise errors.InvalidInput(
                f"messages_per_key={of_key!r}", hint=f"1 to {limits.MESSAGES_PER_KEY_MAX} messages"
            )
        if type(self.buffer_bytes) is not int or self.buffer_bytes < 1:
            raise errors.InvalidInput(f"buffer_bytes={self.buffer_bytes!r}", hint="at least one byte")
        if self.take_timeout is not None and not _is_above_0(self.take_timeout):
            raise errors.InvalidInput(f"take_timeout={self.take_timeout!r}", hint="it is in seconds, above 0")
        if self.stall_timeout is not None and not _is_above_0(self.stall_timeout):
            raise errors.InvalidInput(f"stall_timeout={self.stall_timeout!r}", hint="it is in seconds, above 0")

    def arguments(self, consumer: str) -> Document:
        found: Document = {"topic": self.topic, "subscription": self.subscription, "consumer": consumer}
        found |= {"type": self.type, "key_patterns": list(self.key_patterns), **arguments_of(self.start)}
        if self.type in _SHARING:
            found["picks"] = True
        if self.messages_per_key > 1:
            found["messages_per_key"] = self.messages_per_key
        return found if self.failure is None else {**found, "failure": self.failure}


def _is_above_0(found: object) -> bool:
    return isinstance(found, int | float) and found > 0
