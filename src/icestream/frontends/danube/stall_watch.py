"""Ends the stream of a Danube consumer whose subscription is stalled (broker/stall.py).

Danube's protocol has no event for a stall: a client sees a reason only in the status of its stream, which it logs
before it reopens the stream by itself. So the stream of a consumer that gets no messages ends with reason and hint:

    blocked      after DANUBE_BLOCKED_SECONDS
    unreadable   after CLIENT_STALL_SECONDS, because the broker retries, and a restart of the lake process takes a few

and again after the same time while the stall lasts. A stream that carries messages of other keys stays open, and so
does one whose client has unacked messages: its end would cause their redelivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from icestream import errors, limits
from icestream.broker.stall import StallKind

Details = dict[str, object]


class StallWatch:
    """The stalls of one consumer, and the timer that ends its stream."""

    def __init__(
        self, subject: str, has_unacked: Callable[[], bool], end_stream: Callable[[errors.IcestreamError], None]
    ) -> None:
        """`subject`: subscription and topic, for the error. `has_unacked`: True if the client has unacked messages."""
        self._subject = subject
        self._has_unacked = has_unacked
        self._end_stream = end_stream
        self._loop = asyncio.get_running_loop()
        self._stalls: dict[str, Details] = {}
        self._has_stream = False
        self._has_delivered = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_stalled(self) -> bool:
        """True while a stall lasts."""
        return bool(self._stalls)

    def begin(self) -> None:
        """Called when the consumer has a stream."""
        self._has_stream = True
        self._schedule()

    def stalled(self, details: Details) -> None:
        """Handles the broker's event `stalled`: a new stall, or other details of a present one."""
        self._stalls[str(details.get("kind", ""))] = details
        self._schedule()

    def resumed(self, details: Details) -> None:
        """Handles the broker's event `resumed`."""
        self._stalls.pop(str(details.get("kind", "")), None)
        if not self._stalls:
            self.close()

    def delivered(self) -> None:
        """Notes that messages were sent: the stream is of use, and is not ended at the next timeout."""
        self._has_delivered = True

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Starts the timer, unless it runs: an update of a stall, such as another error text, does not restart it."""
        if self._has_stream and self._stalls and self._timer is None:
            self._has_delivered = False
            is_blocked = StallKind.BLOCKED.value in self._stalls
            seconds = limits.DANUBE_BLOCKED_SECONDS if is_blocked else limits.CLIENT_STALL_SECONDS
            self._timer = self._loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        """Ends the stream, unless it has carried messages or its end would cause redeliveries."""
        self._timer = None
        if self._has_delivered or self._has_unacked():  # looked at again after the same time
            self._schedule()
        elif self._stalls:
            details = next(iter(self._stalls.values()))
            self._end_stream(
                errors.SubscriptionStalled(
                    f"{self._subject} is stalled at offset {details.get('offset')}: {details.get('reason')}",
                    hint=str(details.get("hint") or "open the stream again to wait for the end of the stall"),
                    details=details,
                )
            )
