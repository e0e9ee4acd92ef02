"""When the stream of a Danube consumer ends because its subscription is stalled (broker/stall.py).

Danube's protocol has no event for it: a client learns of a reason only by the status of its stream, which it logs, and
then opens the stream again by itself. So the stream of a consumer that gets nothing ends with the reason and the hint:

    blocked      after DANUBE_BLOCKED_SECONDS
    unreadable   after CLIENT_STALL_SECONDS: the broker retries, and a lake process that starts again takes a few

and again after the same time while the stall lasts. A stream that carries messages of other keys, and one whose client
holds messages that it has not acked, stays: its end would deliver them a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from icestream import errors, limits
from icestream.broker.stall import StallKind

Details = dict[str, object]


class StallWatch:
    def __init__(
        self, where: str, is_holding: Callable[[], bool], end: Callable[[errors.IcestreamError], None]
    ) -> None:
        """`where`: topic and subscription, for the message. `is_holding`: the client has unacked messages. `end`: ends
        the stream with an error."""
        self._where = where
        self._is_holding = is_holding
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._stalls: dict[str, Details] = {}
        self._is_begun = False
        self._has_delivered = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_stalled(self) -> bool:
        return bool(self._stalls)

    def begin(self) -> None:
        """There is a stream."""
        self._is_begun = True
        self._wait()

    def stalled(self, details: Details) -> None:
        self._stalls[str(details.get("kind", ""))] = details
        self._wait()

    def resumed(self, details: Details) -> None:
        self._stalls.pop(str(details.get("kind", "")), None)
        if not self._stalls:
            self.close()

    def delivered(self) -> None:
        self._has_delivered = True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        """An update of a stall does not begin the time anew: a read that fails with varying words is told too."""
        if self._is_begun and self._stalls and self._timer is None:
            self._has_delivered = False
            is_blocked = StallKind.BLOCKED.value in self._stalls
            seconds = limits.DANUBE_BLOCKED_SECONDS if is_blocked else limits.CLIENT_STALL_SECONDS
            self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._has_delivered or self._is_holding():
            self._wait()
        elif self._stalls:
            details = next(iter(self._stalls.values()))
            self._end(
                errors.SubscriptionStalled(
                    f"{self._where} gets no messages from offset {details.get('offset')} on: {details.get('reason')}",
                    hint=str(details.get("hint") or "open the stream again to wait until it is over"),
                    details=details,
                )
            )
