"""The `subscribe` call: its request, from the arguments of `Client.subscribe`, and its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from icestream import errors, limits
from icestream.client.start_position import StartPosition, start_arguments
from icestream.model.subscription_options import SubscriptionType
from icestream.model.topic_name import TopicName, check_name
from icestream.rpc import document
from icestream.rpc.document import Document

TypeName = Literal["exclusive", "shared", "failover", "key-shared"]
# Types whose consumers get messages with holes between their offsets, so PICK frames are useful for them.
_SHARED_TYPES: Final = (SubscriptionType.SHARED.value, SubscriptionType.KEY_SHARED.value)
_GENERATION_MAX: Final = 2**32 - 1
_INT64_MAX: Final = 2**63 - 1
_ACK_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """The arguments of `Client.subscribe`, checked."""

    topic: str
    subscription: str
    type: TypeName
    start: StartPosition
    consumer: str | None
    prefetch: int | None  # None: chosen by the way in which messages are taken
    buffer_bytes: int
    take_timeout: float | None
    dedup: bool
    key_patterns: tuple[str, ...]
    failure: dict[str, Any] | None
    messages_per_key: int = 1
    stall_timeout: float | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        TopicName.parse(self.topic)
        check_name("subscription", self.subscription)
        types = [kind.value for kind in SubscriptionType]
        if self.type not in types:
            raise errors.InvalidInput(f"unknown subscription type {self.type!r}", hint=f"use one of {', '.join(types)}")
        if self.key_patterns and self.type != SubscriptionType.KEY_SHARED.value:
            raise errors.InvalidInput(
                f"key_patterns do not apply to a subscription of type {self.type}", hint='type="key-shared"'
            )
        if self.messages_per_key != 1 and self.type != SubscriptionType.KEY_SHARED.value:
            raise errors.InvalidInput(
                f"messages_per_key does not apply to a subscription of type {self.type}", hint='type="key-shared"'
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        """Raises InvalidInput for numbers out of their bounds."""
        if self.prefetch is not None and (type(self.prefetch) is not int or not 0 < self.prefetch <= limits.CREDIT_MAX):
            raise errors.InvalidInput(f"prefetch={self.prefetch!r}", hint=f"1 to {limits.CREDIT_MAX} messages")
        per_key = self.messages_per_key
        if type(per_key) is not int or not 0 < per_key <= limits.MESSAGES_PER_KEY_MAX:
            raise errors.InvalidInput(
                f"messages_per_key={per_key!r}", hint=f"1 to {limits.MESSAGES_PER_KEY_MAX} messages"
            )
        if type(self.buffer_bytes) is not int or self.buffer_bytes < 1:
            raise errors.InvalidInput(f"buffer_bytes={self.buffer_bytes!r}", hint="at least one byte")
        if self.take_timeout is not None and not _is_positive(self.take_timeout):
            raise errors.InvalidInput(f"take_timeout={self.take_timeout!r}", hint="it is in seconds, above 0")
        if self.stall_timeout is not None and not _is_positive(self.stall_timeout):
            raise errors.InvalidInput(f"stall_timeout={self.stall_timeout!r}", hint="it is in seconds, above 0")

    def arguments(self, consumer: str) -> Document:
        """Returns the arguments of the call, for a consumer of this name. Raises InvalidInput."""
        arguments: Document = {"topic": self.topic, "subscription": self.subscription, "consumer": consumer}
        arguments |= {"type": self.type, "key_patterns": list(self.key_patterns), **start_arguments(self.start)}
        if self.type in _SHARED_TYPES:
            arguments["picks"] = True
        if self.messages_per_key > 1:
            arguments["messages_per_key"] = self.messages_per_key
        return arguments if self.failure is None else {**arguments, "failure": self.failure}


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


class SubscriptionIdentity(NamedTuple):
    """Identifies a subscription: one that is deleted and created again under the same name is another one."""

    id: int
    created_ms: int


class SubscribeReply(NamedTuple):
    """The broker's reply to `subscribe`."""

    handle: int
    identity: SubscriptionIdentity
    generations: list[int]  # of each shard
    positions: list[int]  # of each shard: everything below is acked. Empty if the broker does not report them
    ack_timeout_ms: int

    @classmethod
    def decode(cls, reply: Document) -> SubscribeReply:
        """Decodes the reply. Raises DecodeError."""
        return cls(
            document.number_of(reply, "handle", 1, 2**32 - 1),
            SubscriptionIdentity(
                document.number_of(reply, "subscription_id", 0, _INT64_MAX, 0),
                document.number_of(reply, "created_ms", 0, _INT64_MAX, 0),
            ),
            shard_generations(reply),
            _shard_numbers(reply, "positions", limits.OFFSET_MAX) if "positions" in reply else [],
            document.number_of(reply, "ack_timeout_ms", 1, _INT64_MAX, _ACK_TIMEOUT_MS),
        )


def shard_generations(reply: Document) -> list[int]:
    """Returns the generation of each shard from a reply to `subscribe` or `seek`. Raises DecodeError."""
    return _shard_numbers(reply, "generations", _GENERATION_MAX)


def _shard_numbers(reply: Document, key: str, number_max: int) -> list[int]:
    """A number for each shard, 0 to `number_max`. Raises DecodeError."""
    numbers = reply.get(key)
    is_list = isinstance(numbers, list) and 0 < len(numbers) <= limits.SHARDS_PER_TOPIC_MAX
    if not is_list or not all(type(number) is int and 0 <= number <= number_max for number in numbers or ()):
        raise errors.DecodeError(f"{key} is not a list of one number per shard, 0 to {number_max}")
    return list(numbers or ())
