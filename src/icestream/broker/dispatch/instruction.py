"""What a dispatcher tells its driver to do."""

from __future__ import annotations

from typing import NamedTuple


class Deliver(NamedTuple):
    """Send offsets [start, end) to a consumer. `attempt`: how many deliveries of them failed before."""

    consumer: int
    start: int
    end: int
    attempt: int


class DeadLetter(NamedTuple):
    """Publish offsets [start, end) to the dead-letter topic, then say `settled`; they failed `attempt` times."""

    start: int
    end: int
    attempt: int
    reason: str


class Dropped(NamedTuple):
    """Offsets [start, end) are given up, as their policy says. They count as acked."""

    start: int
    end: int
    attempt: int
    reason: str


Instruction = Deliver | DeadLetter | Dropped
