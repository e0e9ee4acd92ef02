"""The health of components as a list of checks, and what follows for the readiness of the node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from icestream.runtime.connection_room import RoomState

# The listeners of producers and consumers, by their names in metrics.
MESSAGE_LISTENERS: Final = frozenset({"native", "danube", "mqtt", "mqtt_ws"})


class Check(NamedTuple):
    """The state of one component. `is_needed`: a node on which it fails is not ready; else it is only shown."""

    name: str
    ok: bool
    reason: str = ""
    is_needed: bool = True

    @property
    def line(self) -> str:
        """The check as a line of `/readyz?verbose`: + ok, - failed, ! failed but not needed."""
        mark = "+" if self.ok else "-" if self.is_needed else "!"
        return f"[{mark}] {self.name}: {self.reason or 'ok'}"


def failure(checks: Iterable[Check]) -> Check | None:
    """The first needed component that fails; None if the node is ready."""
    return next((check for check in checks if check.is_needed and not check.ok), None)


def warnings(checks: Iterable[Check]) -> list[Check]:
    """The components that fail and do not make the node unready."""
    return [check for check in checks if not check.ok and not check.is_needed]


def connections_check(rooms: Iterable[RoomState]) -> Check:
    """The check `connections`: fails while a listener has hardly any connection slots left.

    Needed if a listener for messages refuses connections, because another node would serve those clients.
    """
    crowded = [room for room in rooms if room.is_crowded]
    is_needed = any(room.is_refusing and room.listener in MESSAGE_LISTENERS for room in crowded)
    return Check("connections", not crowded, "; ".join(map(_room_text, crowded)), is_needed)


def _room_text(room: RoomState) -> str:
    if room.is_refusing:
        return f"{room.listener}: all {room.capacity} are busy, new ones are refused ({room.refused} so far)"
    counts = f"{room.open} of {room.capacity} are open"
    return f"{room.listener}: {counts}, silent and idle ones are closed to make room ({room.evicted} so far)"
