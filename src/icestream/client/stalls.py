"""StallTracker: stalls of a subscription, as the broker reports them with the events `stalled` and `resumed`.

    blocked      raised immediately: it lasts until an operator or program acts
    unreadable   raised when it has lasted for `stall_timeout` seconds: the broker retries, and a lake process takes
                 some seconds to restart. Raised again after the same time while it lasts

The iteration raises SubscriptionStalled before it continues with buffered messages: with messages of other shards it
might never run dry. The subscription stays open: iterating again waits, and messages are delivered after the stall.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.rpc import document
from icestream.rpc.document import Document
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

UNREADABLE: Final = "unreadable"
_KIND_BYTES_MAX: Final = 64


class Stall(NamedTuple):
    """Messages of a shard are not delivered from `offset` on. `hint`: what ends the stall; may be empty."""

    kind: str
    shard: int
    offset: int
    reason: str
    hint: str


Stall.kind.__doc__ = (
    "`blocked`: a message failed too often under the policy `block`. `unreadable`: stored messages cannot be read."
)
Stall.shard.__doc__ = "The shard whose messages are not delivered."
Stall.offset.__doc__ = "The first offset that is not delivered."
Stall.reason.__doc__ = "Why it is not delivered, as text."
Stall.hint.__doc__ = "What ends the stall; may be empty."


class StallTracker:
    """The stalls of one consumer, and which of them the iteration is to raise."""

    def __init__(self, name: str, timeout: float | None, clock: Clock, tasks: Tasks, wake: Callable[[], None]) -> None:
        """`timeout`: seconds until an unreadable stall is raised; None to raise none. `wake`: called when a stall is to
        be raised."""
        self._name = name
        self._timeout_seconds = timeout
        self._clock = clock
        self._tasks = tasks
        self._wake = wake
        # by kind and shard
        self._stalls: dict[tuple[str, int], Stall] = {}
        self._begin_ns: dict[tuple[str, int], int] = {}
        self._to_raise: dict[tuple[str, int], Stall] = {}

    @property
    def current(self) -> list[Stall]:
        """The stalls that last."""
        return list(self._stalls.values())

    def begin(self, event: Document) -> None:
        """Handles the event `stalled`. Raises DecodeError."""
        stall = _decode_stall(event)
        key = stall.kind, stall.shard
        is_new = key not in self._stalls
        if is_new and len(self._stalls) >= limits.CLIENT_STALLS_MAX:  # the broker is not trusted to send few of them
            return
        self._stalls[key] = stall
        if is_new:
            self._begin_ns[key] = self._clock.monotonic_ns()
        if stall.kind != UNREADABLE:
            self._schedule_raise(key)
        elif is_new and self._timeout_seconds is not None:
            self._tasks.start(self._watch(key, self._timeout_seconds), f"subscription-{self._name}-stall")

    def end(self, event: Document) -> None:
        """Handles the event `resumed`. Raises DecodeError."""
        kind = document.text_of(event, "kind", _KIND_BYTES_MAX, "")
        key = kind, document.number_of(event, "shard", 0, limits.OFFSET_MAX, 0)
        for stalls in (self._stalls, self._begin_ns, self._to_raise):
            stalls.pop(key, None)

    def clear(self) -> None:
        """Forgets all stalls with their connection: the broker reports lasting ones again on the next."""
        for stalls in (self._stalls, self._begin_ns, self._to_raise):
            stalls.clear()

    def check(self) -> None:
        """Raises SubscriptionStalled if there is a stall that has not been raised."""
        if self._to_raise:
            key = next(iter(self._to_raise))
            stall = self._to_raise.pop(key)
            raise errors.SubscriptionStalled(
                f"subscription {self._name} gets no messages of shard {stall.shard} from offset {stall.offset} on: "
                f"{stall.reason}",
                hint=stall.hint or "iterate again to wait until it is over",
                details=stall._asdict(),
            )

    def _schedule_raise(self, key: tuple[str, int]) -> None:
        self._to_raise[key] = self._stalls[key]
        self._wake()

    async def _watch(self, key: tuple[str, int], seconds: float) -> None:
        """Raises one stall again and again, until it is over."""
        begin_ns = self._begin_ns.get(key)
        while True:
            await self._clock.sleep(seconds)
            if begin_ns is None or self._begin_ns.get(key) != begin_ns:
                return  # it is over; a later stall of the same shard has its own watch
            self._schedule_raise(key)


def _decode_stall(event: Document) -> Stall:
    """The stall of an event `stalled`; missing fields have defaults. Raises DecodeError."""
    return Stall(
        document.text_of(event, "kind", _KIND_BYTES_MAX, UNREADABLE),
        document.number_of(event, "shard", 0, limits.OFFSET_MAX, 0),
        document.number_of(event, "offset", 0, limits.OFFSET_MAX, 0),
        document.text_of(event, "reason", limits.ERROR_MESSAGE_BYTES_MAX, ""),
        document.text_of(event, "hint", limits.ERROR_HINT_BYTES_MAX, ""),
    )
