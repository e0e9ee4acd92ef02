"""The instructions of a dispatcher to its driver (shard_delivery.py)."""

from __future__ import annotations

from typing import NamedTuple


class Deliver(NamedTuple):
    """Send offsets [start, end) to a consumer. `attempt`: how many of their deliveries have failed."""

    consumer: int
    start: int
    end: int
    attempt: int


class DeadLetter(NamedTuple):
    """Publish offsets [start, end) to the dead-letter topic, then call `settled`. They failed `attempt` times."""

    start: int
    end: int
    attempt: int
    reason: str


class Dropped(NamedTuple):
    """Count offsets [start, end) as dropped, as the policy says. They are acked already."""

    start: int
    end: int
    attempt: int
    reason: str


Instruction = Deliver | DeadLetter | Dropped
