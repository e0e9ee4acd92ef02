"""The look-ahead of a key-shared subscription: one lane for each key, with the messages of the key in order.

    waiting      in the lane, oldest first
    pending      in flight, delayed, settling or blocked: one message of a lane, or as many as its consumer takes of a
                 key at a time (`Credit.messages_per_key`), all of them with that consumer
    retried      those pending that failed, or were redelivered. Until they are settled the rest of the lane waits

A lane is free if nothing of it is pending. A free lane with a message is assigned to the consumer that owns its key; so
is a lane of which its consumer may have more messages. Consumers with assigned lanes and credit take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from icestream.broker.dispatch.consumer_rotation import Member, QueuedRotation
from icestream.broker.dispatch.hash_ring import HashRing, KeyOwner, ring_point

# With fewer lanes for each consumer it is cheaper to assign them one by one.
_LANES_MIN: Final = 4


class KeyLane:
    """The messages of one key in the look-ahead, in order of their offsets."""

    __slots__ = (
        "_is_unsorted", "_ring_owner", "_ring_version", "consumer", "distance", "holder", "key", "pending", "point",
        "retried", "waiting",
    )  # fmt: skip

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.point = ring_point(key)
        self.waiting: deque[int] = deque()
        self.pending: dict[int, None] = {}
        self.retried: set[int] = set()
        self.holder: Member | None = None  # the consumer of the last message that became pending
        self._is_unsorted = False
        self.consumer: Member | None = None  # the consumer that it is assigned to
        self.distance = 0  # on the ring, to that consumer's point
        self._ring_owner: KeyOwner | None = None  # cached for `_ring_version`
        self._ring_version = -1

    def owner_in(self, ring: HashRing) -> KeyOwner | None:
        """The owner of its key in the ring."""
        # The ring is searched once for each change of consumers, not for each message.
        if self._ring_version != ring.version:
            self._ring_owner, self._ring_version = ring.owner(self.key, self.point), ring.version
        return self._ring_owner

    @property
    def is_free(self) -> bool:
        """True if its first message can be sent."""
        return not self.pending and bool(self.waiting)

    @property
    def run_room(self) -> int:
        """How many more messages the consumer of its pending ones may have; 0 or less: none until they are settled."""
        holder = self.holder
        # A message may follow pending ones only if the order of the key holds: none of them was retried (the messages
        # behind a failed one wait until it is acked), and it is newer than all of them (one that was put back is not).
        if (
            holder is None
            or self.retried
            or not self.waiting
            or not holder.is_connected
            or self.waiting[0] < self.last_pending
        ):
            return 0
        return holder.credit.messages_per_key - len(self.pending)

    @property
    def last_pending(self) -> int:
        return next(reversed(self.pending))

    def start(self) -> int:
        """Makes the oldest waiting message pending; returns its offset."""
        offset = self.waiting.popleft()
        self.pending[offset] = None
        return offset

    def put_back(self, offset: int) -> None:
        """Makes a pending message wait again. `sort` must follow before the next `start`."""
        del self.pending[offset]
        self.retried.discard(offset)
        # Sorted later, once for all messages of a consumer that left, instead of at each of them.
        self._is_unsorted |= bool(self.waiting) and self.waiting[0] < offset
        self.waiting.appendleft(offset)

    def sort(self) -> None:
        """Sorts the waiting messages after some of them were put back."""
        if self._is_unsorted:
            self.waiting = deque(sorted(self.waiting))
            self._is_unsorted = False


class KeyLanes:
    """All lanes with a message in the look-ahead. Each key is stored once, however many messages it has."""

    def __init__(self) -> None:
        self._by_offset: dict[int, KeyLane] = {}
        self._by_key: dict[bytes, KeyLane] = {}
        self.key_bytes = 0
        self.busy = 0  # lanes with pending messages

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def messages(self) -> int:
        return len(self._by_offset)

    @property
    def sendable(self) -> list[KeyLane]:
        """Lanes of which a message can be sent: to the owner of the key, or to the consumer of its pending ones."""
        return [lane for lane in self._by_key.values() if lane.is_free or lane.consumer is not None]

    def get(self, offset: int) -> KeyLane | None:
        return self._by_offset.get(offset)

    def is_pending(self, offset: int) -> bool:
        lane = self._by_offset.get(offset)
        return lane is not None and offset in lane.pending

    def start(self, lane: KeyLane) -> int:
        """Makes the oldest message of the lane pending; returns its offset."""
        self.busy += not lane.pending
        return lane.start()

    def start_all(self, lanes: Iterable[KeyLane], holder: Member) -> list[int]:
        """Makes the oldest message of each free lane pending with the consumer that the lanes were assigned to.

        Returns the offsets. Equal to `start` for each lane, without a call for each: this is the hot path.
        """
        offsets = []
        for lane in lanes:
            offset = lane.waiting.popleft()
            lane.pending[offset] = None
            lane.holder, lane.consumer = holder, None
            offsets.append(offset)
        self.busy += len(offsets)
        return offsets

    def put_back(self, lane: KeyLane, offset: int) -> None:
        """Makes a pending message of the lane wait again."""
        lane.put_back(offset)
        self.busy -= not lane.pending

    def within(self, start: int, end: int) -> list[int]:
        """The offsets of the look-ahead in [start, end), in order."""
        # By the range or by the look-ahead, whichever is shorter: a cumulative range may be far longer than both.
        if end - start == 1:
            return [start] if start in self._by_offset else []
        if end - start <= len(self._by_offset):
            return [offset for offset in range(start, end) if offset in self._by_offset]
        return sorted(offset for offset in self._by_offset if start <= offset < end)

    def add(self, offset: int, key: bytes) -> KeyLane:
        """Adds a new message to the lane of its key."""
        lane = self._by_key.get(key)
        if lane is None:
            lane = self._by_key[key] = KeyLane(key)
            self.key_bytes += len(key)
        lane.waiting.append(offset)
        self._by_offset[offset] = lane
        return lane

    def forget(self, offset: int) -> KeyLane:
        """Removes a settled message, and its lane if that was its last one."""
        lane = self._by_offset.pop(offset)
        if offset in lane.pending:
            del lane.pending[offset]
            lane.retried.discard(offset)
            self.busy -= not lane.pending
        else:
            lane.waiting.remove(offset)
        if not lane.pending and not lane.waiting:
            del self._by_key[lane.key]
            self.key_bytes -= len(lane.key)
        return lane

    def clear(self) -> None:
        self._by_offset, self._by_key, self.key_bytes, self.busy = {}, {}, 0, 0


class LaneRoundRobin(QueuedRotation):
    """Round robin over the consumers that have credit and an assigned lane."""

    def assign(self, lane: KeyLane, member: Member) -> None:
        """Assigns a lane to a consumer, which takes turns from now on."""
        lane.consumer = member
        member.lanes[lane] = None
        self.enqueue(member)

    def withdraw(self, lane: KeyLane) -> None:
        """Ends the assignment of a lane; its consumer leaves the queue when its turn comes without a lane."""
        if lane.consumer is not None:
            lane.consumer.lanes.pop(lane, None)
            lane.consumer = None

    def choose_lane(self) -> tuple[Member, KeyLane] | None:
        """The next consumer in turn, and the lane assigned to it for the longest time; None if none can take more.

        The counterpart of RoundRobin.choose: there any consumer can take a message, here it needs a lane.
        """
        skipped = 0
        while skipped < len(self.queue):
            member = self.queue[0]
            if not member.lanes:
                self.dequeue(member)
            elif member.credit.messages <= 0:
                self.wait_for_credit(member)
            elif member.room <= 0:
                self.queue.rotate(-1)
                skipped += 1
            else:
                return member, next(iter(member.lanes))
        return None

    def bulk_members(self, messages_max: int) -> list[Member] | None:
        """The consumers that may take all of their lanes at once, because `messages_max` is enough for all of them.

        Then the order of turns does not matter. None if it does, if a consumer takes several messages of a key, or if
        each has few lanes.
        """
        lanes = 0
        for member in self.queue:
            lanes += len(member.lanes)
            if member.credit.messages_per_key > 1:
                return None
        return list(self.queue) if _LANES_MIN * len(self.queue) <= lanes <= messages_max else None

    def take_lanes(self, member: Member) -> list[KeyLane]:
        """Removes and returns as many of the lanes assigned to a consumer as it takes messages."""
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
