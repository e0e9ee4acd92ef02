"""The places of a listener: which connection is closed when another one arrives and all places are taken. Pure.

    SILENT       nothing complete was received yet: no head, no greeting           closed first, the oldest
    IDLE         between requests, or without open consumers and producers         closed next, the longest idle
    RECEIVING    a request has begun and is not complete                           closed last, the oldest
    BUSY         a request is being answered, or consumers and producers are open  never closed for another one

So a connection that sends requests always finds a place while any other connection does not. When all are BUSY, a new
one is refused.

Where clients have accounts, a connection is a *stranger* until it has proved a credential (`recognise`), for ever if it
has none. Strangers have a part of the places, STRANGERS_SHARE, and are closed for each other only; the rest is for the
others. So a flood of connections without a credential closes no connection that has one, and keeps none from coming
(hazard 120).

When all places are taken by busy connections, `reserve` places beyond the capacity accept new connections that can
prove that they belong to this node: the listener decides that when the first request is complete (`is_reserved`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

Connection = TypeVar("Connection")
CROWDED_SHARE: Final = 0.95
STRANGERS_SHARE: Final = 0.25


class Standing(Enum):
    """In the order in which connections are closed."""

    SILENT = auto()
    IDLE = auto()
    RECEIVING = auto()
    BUSY = auto()


class Admission(NamedTuple, Generic[Connection]):
    """Whether a connection got a place, and which one must be closed for it."""

    is_admitted: bool
    evicted: Connection | None = None  # must be closed now
    is_reserved: bool = False  # admitted into the reserve


class RoomState(NamedTuple):
    """The places of a listener, for metrics and readiness; `open` and `busy` are now, the rest since the start."""

    listener: str
    capacity: int
    open: int
    busy: int
    evicted: int
    refused: int

    @property
    def is_crowded(self) -> bool:
        """Whether the room is nearly full.

        Not "full": free places are taken at once, so a check rarely sees all of them taken.
        """
        return self.open >= CROWDED_SHARE * self.capacity

    @property
    def is_refusing(self) -> bool:
        """Whether a new connection would be refused."""
        return self.busy >= self.capacity


class _PlaceKind(Enum):
    """Which places a connection may have."""

    KNOWN = auto()
    STRANGER = auto()
    RESERVED = auto()


class ConnectionRoom(Generic[Connection]):
    """The places of one listener."""

    def __init__(self, listener: str, capacity: int, reserve: int = 0) -> None:
        """`listener`: the name in metrics and readiness."""
        self._listener = listener
        self._capacity = capacity
        self._reserve = reserve
        self._strangers_max = max(int(capacity * STRANGERS_SHARE), 1)
        # In each, the connection first that has had the standing longest.
        self._connections: dict[tuple[_PlaceKind, Standing], dict[Connection, None]] = {
            (group, standing): {} for group in _PlaceKind for standing in Standing
        }
        self._places: dict[Connection, tuple[_PlaceKind, Standing]] = {}
        self._counts = dict.fromkeys(_PlaceKind, 0)
        self.evicted = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def state(self) -> RoomState:
        busy = sum(len(self._connections[group, Standing.BUSY]) for group in _PlaceKind)
        return RoomState(self._listener, self._capacity, len(self), busy, self.evicted, self.refused)

    def admit(self, connection: Connection, *, is_stranger: bool = False) -> Admission[Connection]:
        """Admits a connection as SILENT, or refuses it. The caller closes the evicted one, which has left the room.

        `is_stranger`: clients have accounts, and this one has not proved a credential.
        """
        group = _PlaceKind.STRANGER if is_stranger else _PlaceKind.KNOWN
        has_place = not is_stranger or self._counts[_PlaceKind.STRANGER] < self._strangers_max
        if has_place and len(self) - self._counts[_PlaceKind.RESERVED] < self._capacity:
            self._put(connection, group, Standing.SILENT)
            return Admission(True)
        evicted = self._least_useful(_PlaceKind.STRANGER)
        if evicted is None and has_place:
            evicted = self._least_useful(_PlaceKind.KNOWN)
        if evicted is None and self._reserve:
            group = _PlaceKind.RESERVED
            if self._counts[group] >= self._reserve:
                evicted = self._least_useful(group)
        if evicted is None and (group is not _PlaceKind.RESERVED or self._counts[group] >= self._reserve):
            self.refused += 1
            return Admission(False)
        self._evict(evicted)
        self._put(connection, group, Standing.SILENT)
        return Admission(True, evicted, group is _PlaceKind.RESERVED)

    def recognise(self, connection: Connection) -> Connection | None:
        """A stranger has proved a credential. Returns the connection that must be closed for it, and has left the room.

        While all connections that are no strangers are busy, it stays one.
        """
        group, standing = self._places.get(connection, (None, Standing.SILENT))
        if group is not _PlaceKind.STRANGER:
            return None
        evicted = None
        if self._counts[_PlaceKind.KNOWN] >= self._capacity - self._strangers_max:
            evicted = self._least_useful(_PlaceKind.KNOWN)
            if evicted is None:
                return None
        self._evict(evicted)
        self.leave(connection)
        self._put(connection, _PlaceKind.KNOWN, standing)
        return evicted

    def move(self, connection: Connection, standing: Standing) -> None:
        """Changes the standing of a connection; it becomes the last of that standing to be closed."""
        place = self._places.get(connection)
        if place is not None:
            self.leave(connection)
            self._put(connection, place[0], standing)

    def leave(self, connection: Connection) -> None:
        """Frees the place of a connection."""
        place = self._places.pop(connection, None)
        if place is not None:
            del self._connections[place][connection]
            self._counts[place[0]] -= 1

    def _put(self, connection: Connection, group: _PlaceKind, standing: Standing) -> None:
        self._places[connection] = group, standing
        self._connections[group, standing][connection] = None
        self._counts[group] += 1

    def _evict(self, connection: Connection | None) -> None:
        if connection is not None:
            self.leave(connection)
            self.evicted += 1

    def _least_useful(self, group: _PlaceKind) -> Connection | None:
        """The first of a group to be closed; None if all of them are busy."""
        for standing in (Standing.SILENT, Standing.IDLE, Standing.RECEIVING):
            if connections := self._connections[group, standing]:
                return next(iter(connections))
        return None
