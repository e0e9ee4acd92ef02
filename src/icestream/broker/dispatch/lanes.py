"""The messages of a key-shared subscription that are in sight: one lane for each key, in order.

    waiting      in the lane, oldest first
    under way    at most one of a lane: in flight, delayed, settling or blocked

A lane is free when nothing of it is under way. A free lane with a message belongs to the consumer that the ring names
and stands in that one's line; consumers with something in their line and credit take turns.
"""

from __future__ import annotations

from collections import deque

from icestream.broker.dispatch.consumers import Member, Queueing
from icestream.broker.dispatch.ring import place_of


class Lane:
    __slots__ = ("distance", "key", "owner", "place", "under_way", "waiting")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.place = place_of(key)
        self.waiting: deque[int] = deque()
        self.under_way: int | None = None
        self.owner: Member | None = None  # in whose line it stands
        self.distance = 0  # from its place to that owner's

    @property
    def is_free(self) -> bool:
        """Its first message can go."""
        return self.under_way is None and bool(self.waiting)

    def start(self) -> int:
        """The oldest message goes under way."""
        self.under_way = self.waiting.popleft()
        return self.under_way

    def put_back(self) -> None:
        """The message that was under way waits again, before the others."""
        assert self.under_way is not None
        self.waiting.appendleft(self.under_way)
        self.under_way = None


class Lanes:
    """All lanes with a message in sight. Keys are held once, however many messages they have."""

    def __init__(self) -> None:
        self._sight: dict[int, Lane] = {}  # by offset
        self._by_key: dict[bytes, Lane] = {}
        self.key_bytes = 0

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def messages(self) -> int:
        return len(self._sight)

    @property
    def free(self) -> list[Lane]:
        return [lane for lane in self._by_key.values() if lane.is_free]

    def get(self, offset: int) -> Lane | None:
        return self._sight.get(offset)

    def is_under_way(self, offset: int) -> bool:
        lane = self._sight.get(offset)
        return lane is not None and lane.under_way == offset

    def within(self, start: int, end: int) -> list[int]:
        """The offsets in sight in [start, end), in order."""
        if end - start == 1:
            return [start] if start in self._sight else []
        if end - start <= len(self._sight):
            return [offset for offset in range(start, end) if offset in self._sight]
        return sorted(offset for offset in self._sight if start <= offset < end)

    def see(self, offset: int, key: bytes) -> Lane:
        lane = self._by_key.get(key)
        if lane is None:
            lane = self._by_key[key] = Lane(key)
            self.key_bytes += len(key)
        lane.waiting.append(offset)
        self._sight[offset] = lane
        return lane

    def forget(self, offset: int) -> Lane:
        """The message is done with. A lane without messages is gone."""
        lane = self._sight.pop(offset)
        if lane.under_way == offset:
            lane.under_way = None
        else:
            lane.waiting.remove(offset)
        if lane.under_way is None and not lane.waiting:
            del self._by_key[lane.key]
            self.key_bytes -= len(lane.key)
        return lane

    def clear(self) -> None:
        self._sight, self._by_key, self.key_bytes = {}, {}, 0


class LaneTurns(Queueing):
    """Round robin over the consumers that have credit and a lane whose first message can go."""

    def give(self, lane: Lane, member: Member) -> None:
        lane.owner = member
        member.lanes[lane] = None
        self.line_up(member)

    def withdraw(self, lane: Lane) -> None:
        if lane.owner is not None:
            lane.owner.lanes.pop(lane, None)
            lane.owner = None

    def choose_lane(self) -> tuple[Member, Lane] | None:
        passed_by = 0
        while passed_by < len(self.queue):
            member = self.queue[0]
            if not member.lanes:
                self.step_out(member)
            elif member.credit.messages <= 0:
                self.wait_for_credit(member)
            elif member.room <= 0:
                self.queue.rotate(-1)
                passed_by += 1
            else:
                return member, next(iter(member.lanes))
        return None

    def clear(self) -> None:
        for member in self._members.values():
            member.lanes.clear()
