"""Detects that a shard of a subscription falls behind although its consumers would take more.

While messages wait, a sample is taken every BEHIND_LOOK_MS. The lag grows if over BEHIND_LOOKS samples in a row

    a consumer had credit for more,
    delivery was not held back by a setting or a stall (a rate, a blocked message, too many unacked ones), and
    more messages waited at the end than at the beginning, and at least BEHIND_MESSAGES_MIN

which means that the broker delivers more slowly than producers publish, or that a key-shared subscription has too few
keys for its consumers. It is logged and counted at most once in STANDSTILL_SAID_EVERY_MS, and shown until the
subscription catches up or its consumers take no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from icestream import limits
from icestream.broker.alarm import Alarm
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.model.subscription_options import SubscriptionType
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("delivery")
_HINT = "more shards or more consumers share the work; `icestream sub describe` shows the lag"
_KEYS_HINT = (
    "a consumer gets one message of a key at a time unless it subscribes with a higher messages_per_key; more keys or "
    "more shards share the work, too; `icestream sub describe` shows the lag"
)


class GrowingLag(NamedTuple):
    """The number of waiting messages of a shard of a subscription, and by how much it grew."""

    waiting: int
    grew_by: int


def growing_lag(samples: list[int]) -> GrowingLag | None:
    """Judges the number of waiting messages of consecutive samples; None if the subscription keeps up. Pure."""
    if len(samples) <= limits.BEHIND_LOOKS or samples[-1] < limits.BEHIND_MESSAGES_MIN or samples[-1] <= samples[0]:
        return None
    return GrowingLag(samples[-1], samples[-1] - samples[0])


class LagMonitor:
    """Samples the waiting messages of one shard of a subscription while there are any."""

    def __init__(
        self, name: str, dispatcher: Dispatcher, clock: Clock, tasks: Tasks, on_growing: Callable[[], None]
    ) -> None:
        """`on_growing` is called when the lag grows; `lag` has it then."""
        self._name = name
        self._on_growing = on_growing
        self._dispatcher = dispatcher
        self._clock = clock
        self._alarm = Alarm(clock, tasks, self._sample)
        self._is_sampling = False
        self._samples: deque[int] = deque(maxlen=limits.BEHIND_LOOKS + 1)
        self._logged_ms: int | None = None
        self.lag: GrowingLag | None = None

    def start(self) -> None:
        """Starts to sample, because messages wait for connected consumers. Does nothing if it samples already."""
        if not self._is_sampling:
            self._is_sampling = True
            self._sample()

    def close(self) -> None:
        self._alarm.close()
        self.lag = None

    def _sample(self) -> None:
        """Takes one sample and judges the last ones; stops sampling when nothing waits or no consumer is connected."""
        dispatcher, now_ms = self._dispatcher, self._clock.monotonic_ns() // 1_000_000
        waiting = dispatcher.undelivered
        if not waiting or not len(dispatcher.consumers):
            self._is_sampling, self.lag = False, None
            self._samples.clear()
            return
        # KEYS_WAIT counts as falling behind: too few keys for the consumers is one of the causes to report. Any other
        # pause is a bound that was set on purpose, or a stall, which the stall detector reports.
        if dispatcher.pause in (None, Pause.KEYS_WAIT) and dispatcher.consumers.have_credit:
            self._samples.append(waiting)
        else:
            self._samples.clear()
        self.lag = growing_lag(list(self._samples))
        if self.lag is not None:
            self._on_growing()
            self._report(self.lag, now_ms)
        self._alarm.set(now_ms + limits.BEHIND_LOOK_MS)

    def _report(self, lag: GrowingLag, now_ms: int) -> None:
        """Logs and counts the growing lag, unless it was reported a short while ago."""
        if self._logged_ms is not None and now_ms - self._logged_ms < limits.STANDSTILL_SAID_EVERY_MS:
            return
        self._logged_ms = now_ms
        metrics.DELIVERY_BEHIND.value += 1
        _log.warning(
            "subscription falls behind although its consumers have credit",
            where=self._name,
            waiting=lag.waiting,
            grew_by=lag.grew_by,
            seconds=limits.BEHIND_LOOKS * limits.BEHIND_LOOK_MS // 1000,
            hint=_KEYS_HINT if self._dispatcher.kind is SubscriptionType.KEY_SHARED else _HINT,
        )
