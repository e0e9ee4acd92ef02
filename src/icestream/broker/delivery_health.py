"""The shards of subscriptions that are stalled or fall behind, of the whole broker: what readiness shows of delivery.

Deliveries report themselves here when something is wrong with them, so that a health check looks at those alone and not
at every subscription.
"""

from __future__ import annotations

from collections.abc import Iterator

from icestream import limits
from icestream.broker.lag_monitor import LagMonitor
from icestream.broker.stall import DeliveryStalls
from icestream.observability.health import Check
from icestream.observability.words import counted


class DeliveryHealth:
    def __init__(self) -> None:
        self._deliveries: dict[str, tuple[DeliveryStalls, LagMonitor]] = {}  # by name; those that were reported

    def report(self, name: str, stalls: DeliveryStalls, behind: LagMonitor) -> None:
        """Something may be wrong with this delivery; it is looked at until it is well again."""
        self._deliveries[name] = (stalls, behind)

    def forget(self, name: str) -> None:
        """The delivery is closed."""
        self._deliveries.pop(name, None)

    def faults(self) -> list[str]:
        """A sentence for each stall, then for each delivery that falls behind."""
        stalled: list[str] = []
        late: list[str] = []
        for name, (stalls, falling) in list(self._deliveries.items()):
            stalled += [f"{name}: {stall.kind.value} at offset {stall.offset}: {stall.reason}" for stall in stalls]
            if falling.behind is not None:
                late.append(f"{name}: falls behind, {counted(falling.behind.waiting, 'message')} wait")
            if not stalls and falling.behind is None:
                del self._deliveries[name]
        return stalled + late

    def checks(self) -> Iterator[Check]:
        """One row for all of them, which is not needed for serving: the others go on. None where all are well."""
        faults = self.faults()
        if not faults:
            return
        shown = "; ".join(faults[: limits.HEALTH_SUBSCRIPTIONS_MAX])
        more = len(faults) - limits.HEALTH_SUBSCRIPTIONS_MAX
        reason = f"{shown}; and {more} more" if more > 0 else shown
        yield Check("subscriptions", False, reason, is_needed=False)
