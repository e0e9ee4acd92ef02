"""Notices a shard of a subscription that falls behind although its consumers would take more.

While messages wait, it is looked at every BEHIND_LOOK_MS. It falls behind when over BEHIND_LOOKS looks in a row

    a consumer had credit for more,
    nothing held delivery back that a person has set or must end (a rate, a blocked message, too many unacked ones), and
    more messages waited at the end than at the beginning, and at least BEHIND_MESSAGES_MIN

which means that the broker does not deliver as fast as producers publish, or that a key-shared subscription has too few
keys for its consumers. It is logged and counted then, at most once in STANDSTILL_SAID_EVERY_MS, and shown until it
catches up or its consumers take no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from icestream import limits
from icestream.broker.alarm import Alarm
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.model.subscription import SubscriptionType
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("delivery")
_HINT = "more shards or more consumers share the work; `icestream sub describe` shows the backlog"
_KEYS_HINT = (
    "a consumer gets one message of a key at a time unless it subscribes with a higher messages_per_key; more keys or "
    "more shards share the work, too; `icestream sub describe` shows the backlog"
)


class GrowingLag(NamedTuple):
    """How far a shard of a subscription is behind, and by how much that grew."""

    waiting: int
    grew_by: int


def growing_lag(waiting: list[int]) -> GrowingLag | None:
    """`waiting`: how many messages waited at each look, all of them with a consumer that would take more; None: it
    keeps up."""
    if len(waiting) <= limits.BEHIND_LOOKS or waiting[-1] < limits.BEHIND_MESSAGES_MIN or waiting[-1] <= waiting[0]:
        return None
    return GrowingLag(waiting[-1], waiting[-1] - waiting[0])


class LagMonitor:
    def __init__(
        self, name: str, dispatcher: Dispatcher, clock: Clock, tasks: Tasks, on_behind: Callable[[], None]
    ) -> None:
        """`on_behind`: it falls behind, and `behind` says how far."""
        self._name = name
        self._on_behind = on_behind
        self._dispatcher = dispatcher
        self._clock = clock
        self._alarm = Alarm(clock, tasks, self._look)
        self._is_watching = False
        self._looks: deque[int] = deque(maxlen=limits.BEHIND_LOOKS + 1)
        self._logged_ms: int | None = None
        self.behind: GrowingLag | None = None

    def watch(self) -> None:
        """Messages wait for consumers that are there: begins to look, if it does not already."""
        if not self._is_watching:
            self._is_watching = True
            self._look()

    def close(self) -> None:
        self._alarm.close()
        self.behind = None

    def _look(self) -> None:
        dispatcher, now_ms = self._dispatcher, self._clock.monotonic_ns() // 1_000_000
        waiting = dispatcher.undelivered
        if not waiting or not len(dispatcher.consumers):
            self._is_watching, self.behind = False, None
            self._looks.clear()
            return
        if dispatcher.pause in (None, Pause.KEYS_WAIT) and dispatcher.consumers.have_credit:
            self._looks.append(waiting)
        else:
            self._looks.clear()
        self.behind = growing_lag(list(self._looks))
        if self.behind is not None:
            self._on_behind()
            self._report(self.behind, now_ms)
        self._alarm.set(now_ms + limits.BEHIND_LOOK_MS)

    def _report(self, behind: GrowingLag, now_ms: int) -> None:
        if self._logged_ms is not None and now_ms - self._logged_ms < limits.STANDSTILL_SAID_EVERY_MS:
            return
        self._logged_ms = now_ms
        metrics.DELIVERY_BEHIND.value += 1
        _log.warning(
            "a subscription falls behind although its consumers would take more",
            where=self._name,
            waiting=behind.waiting,
            grew_by=behind.grew_by,
            seconds=limits.BEHIND_LOOKS * limits.BEHIND_LOOK_MS // 1000,
            hint=_KEYS_HINT if self._dispatcher.kind is SubscriptionType.KEY_SHARED else _HINT,
        )
