"""What keeps messages of a subscription from coming, as the broker tells it: the events `stalled` and `resumed`.

    blocked      raised at once: it lasts until a person or program acts
    unreadable   raised when it has lasted for `stall_timeout` seconds: the broker retries, and a lake process that
                 starts again takes a few. Raised again after the same time while it lasts

The iteration raises SubscriptionStalled before it goes on with the next messages that came: other shards may never let
it run dry. The subscription stays open: to iterate again is to wait on, and messages come once the stall is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.client.questions import Document
from icestream.rpc import document
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

UNREADABLE: Final = "unreadable"
_KIND_BYTES_MAX: Final = 64


class Stall(NamedTuple):
    """Messages of a shard are not delivered from `offset` on. `hint`: what ends it; may be empty."""

    kind: str
    shard: int
    offset: int
    reason: str
    hint: str


Stall.kind.__doc__ = (
    "`blocked`: a message failed too often under the policy `block`. `unreadable`: stored messages cannot be read."
)
Stall.shard.__doc__ = "The shard whose messages do not come."
Stall.offset.__doc__ = "The first offset that is not delivered."
Stall.reason.__doc__ = "Why it is not delivered, in words."
Stall.hint.__doc__ = "What ends the stall; may be empty."


class Stalls:
    def __init__(self, name: str, timeout: float | None, clock: Clock, tasks: Tasks, wake: Callable[[], None]) -> None:
        """`timeout`: seconds until an unreadable stall is raised; None: never. `wake`: there is something to raise."""
        self._name = name
        self._seconds = timeout
        self._clock = clock
        self._tasks = tasks
        self._wake = wake
        self._by_place: dict[tuple[str, int], Stall] = {}
        self._begun_ns: dict[tuple[str, int], int] = {}
        self._raised: dict[tuple[str, int], Stall] = {}  # that wait to be raised

    @property
    def now(self) -> list[Stall]:
        return list(self._by_place.values())

    def begin(self, event: Document) -> None:
        stall = _stall(event)
        place = stall.kind, stall.shard
        is_new = place not in self._by_place
        if is_new and len(self._by_place) >= limits.CLIENT_STALLS_MAX:
            return
        self._by_place[place] = stall
        if is_new:
            self._begun_ns[place] = self._clock.monotonic_ns()
        if stall.kind != UNREADABLE:
            self._raise(place)
        elif is_new and self._seconds is not None:
            self._tasks.start(self._watch(place, self._seconds), f"subscription-{self._name}-stall")

    def end(self, event: Document) -> None:
        kind = document.text_of(event, "kind", _KIND_BYTES_MAX, "")
        place = kind, document.number_of(event, "shard", 0, limits.OFFSET_MAX, 0)
        for stalls in (self._by_place, self._begun_ns, self._raised):
            stalls.pop(place, None)

    def clear(self) -> None:
        """The connection is lost or closed: the next one tells what lasts."""
        for stalls in (self._by_place, self._begun_ns, self._raised):
            stalls.clear()

    def check(self) -> None:
        """Raises SubscriptionStalled when there is a stall that has not been raised."""
        if self._raised:
            place = next(iter(self._raised))
            stall = self._raised.pop(place)
            raise errors.SubscriptionStalled(
                f"subscription {self._name} gets no messages of shard {stall.shard} from offset {stall.offset} on: "
                f"{stall.reason}",
                hint=stall.hint or "iterate again to wait until it is over",
                details=stall._asdict(),
            )

    def _raise(self, place: tuple[str, int]) -> None:
        self._raised[place] = self._by_place[place]
        self._wake()

    async def _watch(self, place: tuple[str, int], seconds: float) -> None:
        """Of one stall, until it is over."""
        begun_ns = self._begun_ns.get(place)
        while True:
            await self._clock.sleep(seconds)
            if begun_ns is None or self._begun_ns.get(place) != begun_ns:
                return  # over; another one may have begun, with a watch of its own
            self._raise(place)


def _stall(event: Document) -> Stall:
    return Stall(
        document.text_of(event, "kind", _KIND_BYTES_MAX, UNREADABLE),
        document.number_of(event, "shard", 0, limits.OFFSET_MAX, 0),
        document.number_of(event, "offset", 0, limits.OFFSET_MAX, 0),
        document.text_of(event, "reason", limits.ERROR_MESSAGE_BYTES_MAX, ""),
        document.text_of(event, "hint", limits.ERROR_HINT_BYTES_MAX, ""),
    )
