"""The messages of a key-shared subscription that are in sight: one lane for each key, in order.

    waiting      in the lane, oldest first
    under way    in flight, delayed, settling or blocked: one of a lane, or as many as its consumer takes of a key at a
                 time (`Credit.messages_per_key`), all of them with that consumer
    held         of those under way: failed, or delivered again. Until they are settled nothing else of the lane goes

A lane is free when nothing of it is under way. A free lane with a message belongs to the consumer that the ring names
and stands in that one's line; so does one of which its consumer may have more. Consumers with something in their line
and credit take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from icestream.broker.dispatch.consumer_rotation import Member, QueuedRotation
from icestream.broker.dispatch.hash_ring import HashRing, KeyOwner, place_of

# Below so many lanes for each consumer it is cheaper to hand out one after the other.
_LANES_MIN: Final = 4


class KeyLane:
    __slots__ = (
        "_is_unsorted", "distance", "held", "holder", "key", "owner", "place", "placed", "placed_in", "under_way",
        "waiting",
    )  # fmt: skip

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.place = place_of(key)
        self.waiting: deque[int] = deque()
        self.under_way: dict[int, None] = {}
        self.held: set[int] = set()
        self.holder: Member | None = None  # who got the last message that went under way
        self._is_unsorted = False
        self.owner: Member | None = None  # in whose line it stands
        self.distance = 0  # from its place to that owner's
        self.placed: KeyOwner | None = None  # what the ring said, in its version `placed_in`
        self.placed_in = -1

    def owner_in(self, ring: HashRing) -> KeyOwner | None:
        """Whose key it is."""
        if self.placed_in != ring.version:
            self.placed, self.placed_in = ring.owner(self.key, self.place), ring.version
        return self.placed

    @property
    def is_free(self) -> bool:
        """Its first message can go."""
        return not self.under_way and bool(self.waiting)

    @property
    def run_room(self) -> int:
        """How many more messages its consumer may have, which has some of them. 0: it must be done with those first."""
        holder = self.holder
        if (
            holder is None
            or self.held
            or not self.waiting
            or not holder.is_here
            or self.waiting[0] < self.last_under_way
        ):
            return 0
        return holder.credit.messages_per_key - len(self.under_way)

    @property
    def last_under_way(self) -> int:
        return next(reversed(self.under_way))

    def start(self) -> int:
        """The oldest message goes under way."""
        offset = self.waiting.popleft()
        self.under_way[offset] = None
        return offset

    def put_back(self, offset: int) -> None:
        """A message that was under way waits again, before those behind it (`sort`)."""
        del self.under_way[offset]
        self.held.discard(offset)
        self._is_unsorted |= bool(self.waiting) and self.waiting[0] < offset
        self.waiting.appendleft(offset)

    def sort(self) -> None:
        """Puts the waiting messages in order after some of them were put back."""
        if self._is_unsorted:
            self.waiting = deque(sorted(self.waiting))
            self._is_unsorted = False


class KeyLanes:
    """All lanes with a message in sight. Keys are held once, however many messages they have."""

    def __init__(self) -> None:
        self._sight: dict[int, KeyLane] = {}  # by offset
        self._by_key: dict[bytes, KeyLane] = {}
        self.key_bytes = 0
        self.busy = 0  # lanes of which something is under way

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def messages(self) -> int:
        return len(self._sight)

    @property
    def open(self) -> list[KeyLane]:
        """Those of which a message can go: to a consumer that the ring names, or to the one that has others of it."""
        return [lane for lane in self._by_key.values() if lane.is_free or lane.owner is not None]

    def get(self, offset: int) -> KeyLane | None:
        return self._sight.get(offset)

    def is_under_way(self, offset: int) -> bool:
        lane = self._sight.get(offset)
        return lane is not None and offset in lane.under_way

    def start(self, lane: KeyLane) -> int:
        """The oldest message of the lane goes under way."""
        self.busy += not lane.under_way
        return lane.start()

    def start_all(self, lanes: Iterable[KeyLane], holder: Member) -> list[int]:
        """The oldest messages of free lanes go under way, to a consumer in whose line they stood."""
        offsets = []
        for lane in lanes:
            offset = lane.waiting.popleft()
            lane.under_way[offset] = None
            lane.holder, lane.owner = holder, None
            offsets.append(offset)
        self.busy += len(offsets)
        return offsets

    def put_back(self, lane: KeyLane, offset: int) -> None:
        """A message of the lane that was under way waits again."""
        lane.put_back(offset)
        self.busy -= not lane.under_way

    def within(self, start: int, end: int) -> list[int]:
        """The offsets in sight in [start, end), in order."""
        if end - start == 1:
            return [start] if start in self._sight else []
        if end - start <= len(self._sight):
            return [offset for offset in range(start, end) if offset in self._sight]
        return sorted(offset for offset in self._sight if start <= offset < end)

    def see(self, offset: int, key: bytes) -> KeyLane:
        lane = self._by_key.get(key)
        if lane is None:
            lane = self._by_key[key] = KeyLane(key)
            self.key_bytes += len(key)
        lane.waiting.append(offset)
        self._sight[offset] = lane
        return lane

    def forget(self, offset: int) -> KeyLane:
        """The message is done with. A lane without messages is gone."""
        lane = self._sight.pop(offset)
        if offset in lane.under_way:
            del lane.under_way[offset]
            lane.held.discard(offset)
            self.busy -= not lane.under_way
        else:
            lane.waiting.remove(offset)
        if not lane.under_way and not lane.waiting:
            del self._by_key[lane.key]
            self.key_bytes -= len(lane.key)
        return lane

    def clear(self) -> None:
        self._sight, self._by_key, self.key_bytes, self.busy = {}, {}, 0, 0


class LaneRoundRobin(QueuedRotation):
    """Round robin over the consumers that have credit and a lane whose first message can go."""

    def give(self, lane: KeyLane, member: Member) -> None:
        lane.owner = member
        member.lanes[lane] = None
        self.line_up(member)

    def withdraw(self, lane: KeyLane) -> None:
        if lane.owner is not None:
            lane.owner.lanes.pop(lane, None)
            lane.owner = None

    def choose_lane(self) -> tuple[Member, KeyLane] | None:
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

    def waiting_lanes(self, messages_max: int) -> list[Member] | None:
        """The consumers whose turn it is, where all of their lanes together are no more than `messages_max` messages:
        then turns do not matter. None: they do, a consumer takes several messages of a key, or each has few lanes."""
        lanes = 0
        for member in self.queue:
            lanes += len(member.lanes)
            if member.credit.messages_per_key > 1:
                return None
        return list(self.queue) if _LANES_MIN * len(self.queue) <= lanes <= messages_max else None

    def take_lanes(self, member: Member) -> list[KeyLane]:
        """Lanes of a consumer, as many as it takes messages; they stand in its line no more."""
        count = max(min(len(member.lanes), member.credit.messages, member.room), 0)
        lanes = list(islice(member.lanes, count))
        if count == len(member.lanes):
            member.lanes.clear()
        else:
            for lane in lanes:
                del member.lanes[lane]
        return lanes

    def clear(self) -> None:
        for member in self._members.values():
            member.lanes.clear()
