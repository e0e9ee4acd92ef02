"""The shards of subscriptions that are stalled or fall behind, of the whole broker: the readiness check of delivery.

Deliveries report themselves here when something is wrong with them, so that a health check examines those alone and not
every subscription.
"""

from __future__ import annotations

from collections.abc import Iterator

from icestream import limits
from icestream.broker.lag_monitor import LagMonitor
from icestream.broker.stall import DeliveryStalls
from icestream.observability.health import Check
from icestream.observability.words import counted


class DeliveryHealth:
    """The deliveries of a broker that have reported a problem."""

    def __init__(self) -> None:
        self._deliveries: dict[str, tuple[DeliveryStalls, LagMonitor]] = {}  # the reported ones, by name

    def report(self, name: str, stalls: DeliveryStalls, lag_monitor: LagMonitor) -> None:
        """Adds a delivery that may have a problem; it is examined until it has none."""
        self._deliveries[name] = (stalls, lag_monitor)

    def forget(self, name: str) -> None:
        """Removes a closed delivery."""
        self._deliveries.pop(name, None)

    def problems(self) -> list[str]:
        """A sentence for each stall, then for each delivery that falls behind."""
        stalled: list[str] = []
        lagging: list[str] = []
        for name, (stalls, monitor) in list(self._deliveries.items()):
            stalled += [f"{name}: {stall.kind.value} at offset {stall.offset}: {stall.reason}" for stall in stalls]
            if monitor.lag is not None:
                lagging.append(f"{name}: falls behind, {counted(monitor.lag.waiting, 'message')} waiting")
            # Forgotten when it is examined, not when it recovers: a delivery that recovers tells nothing here.
            if not stalls and monitor.lag is None:
                del self._deliveries[name]
        return stalled + lagging

    def checks(self) -> Iterator[Check]:
        """One failed check for all problems, no check without one. The broker stays ready: other deliveries work."""
        problems = self.problems()
        if not problems:
            return
        listed = "; ".join(problems[: limits.HEALTH_SUBSCRIPTIONS_MAX])
        more = len(problems) - limits.HEALTH_SUBSCRIPTIONS_MAX
        reason = f"{listed}; and {more} more" if more > 0 else listed
        yield Check("subscriptions", False, reason, is_needed=False)
