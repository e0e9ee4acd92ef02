"""The broker's answer to `subscribe`, and the numbers of shards in others."""

from __future__ import annotations

from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.client.delivered import Identity
from icestream.client.questions import Document
from icestream.rpc import document

_GENERATION_MAX: Final = 2**32 - 1
_NUMBER_MAX: Final = 2**63 - 1
_ACK_TIMEOUT_MS: Final = 30_000


class Joined(NamedTuple):
    handle: int
    identity: Identity
    generations: list[int]  # of each shard
    positions: list[int]  # of each shard: everything below is acked. None where the broker does not say
    ack_timeout_ms: int

    @classmethod
    def of(cls, found: Document) -> Joined:
        """Raises DecodeError."""
        return cls(
            document.number_of(found, "handle", 1, 2**32 - 1),
            Identity(
                document.number_of(found, "subscription_id", 0, _NUMBER_MAX, 0),
                document.number_of(found, "created_ms", 0, _NUMBER_MAX, 0),
            ),
            generations_of(found),
            _numbers(found, "positions", limits.OFFSET_MAX) if "positions" in found else [],
            document.number_of(found, "ack_timeout_ms", 1, _NUMBER_MAX, _ACK_TIMEOUT_MS),
        )


def generations_of(found: Document) -> list[int]:
    return _numbers(found, "generations", _GENERATION_MAX)


def _numbers(found: Document, key: str, most: int) -> list[int]:
    numbers = found.get(key)
    is_list = isinstance(numbers, list) and 0 < len(numbers) <= limits.SHARDS_PER_TOPIC_MAX
    if not is_list or not all(type(number) is int and 0 <= number <= most for number in numbers or ()):
        raise errors.DecodeError(f"{key} are not numbers of shards")
    return list(numbers or ())
