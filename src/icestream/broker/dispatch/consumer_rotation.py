"""The consumers of one subscription in one shard, and which of them gets the next messages.

    exclusive    the only consumer (a second one is refused before)
    failover     the first to join; when it leaves, the next in order of arrival
    shared       round robin over the consumers with credit

A consumer has one credit for all shards of its subscription. Consumers without credit are taken out of the rotation
until they get some, so a thousand idle consumers cost nothing.

A consumer that takes everything and acks nothing must not fill the in-flight window that all consumers share. So no new
message goes to a consumer that has UNACKED_SHARE times as many as the window has free slots: a greedy consumer leaves a
ninth of the window to the others, also to those that join later. Redeliveries need no slot; they go to a consumer
beyond its share only if no other can take them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from icestream import limits
from icestream.broker.dispatch.timed_runs import InFlightDelivery

if TYPE_CHECKING:
    from icestream.broker.dispatch.key_lanes import KeyLane


class Credit:
    """The number of messages that a consumer still takes, in all shards together. Only the consumer raises it.

    One object is shared by the dispatchers of all shards. A shard that finds it used up calls `wait`, so that new
    credit brings the consumer back into that shard's rotation without a search over all shards.
    """

    __slots__ = ("_messages", "_waiting", "id", "messages_per_key", "unacked_max")

    def __init__(self, consumer_id: int, messages: int = 0) -> None:
        self.id = consumer_id
        self.unacked_max = limits.OFFSET_MAX  # unacked messages of a shard: the bound of a consumer without credits
        self.messages_per_key = 1  # key-shared: how many messages of one key it may have at a time
        self._messages = messages
        self._waiting: list[Callable[[], None]] = []

    @property
    def messages(self) -> int:
        return self._messages

    @messages.setter
    def messages(self, count: int) -> None:
        self._messages = count
        if count > 0 and self._waiting:
            # Replaced before the calls: a rotation that finds the credit used up again registers once more.
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume()

    def spend(self, count: int) -> None:
        self._messages -= count

    def wait(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once there is credit again."""
        self._waiting.append(resume)


class Member:
    """A consumer in one shard."""

    __slots__ = (
        "_sweep_at", "credit", "deliveries", "id", "is_connected", "is_queued", "is_waiting", "lanes", "unacked",
    )  # fmt: skip

    def __init__(self, credit: Credit) -> None:
        self.id = credit.id
        self.credit = credit
        self.is_connected = True
        self.unacked = 0  # messages in flight with it
        self.is_queued = False  # in the queue of the rotation
        self.is_waiting = False  # has no credit, and returns to the queue when it gets some
        self.deliveries: list[InFlightDelivery] = []  # those in flight, and some that are settled
        # Key-shared: the lanes of its keys whose next message can be sent.
        self.lanes: OrderedDict[KeyLane, None] = OrderedDict()
        self._sweep_at = 16  # the number of tracked deliveries at which settled ones are removed

    @property
    def room(self) -> int:
        """How many more unacked messages it may have."""
        return self.credit.unacked_max - self.unacked

    def track(self, delivery: InFlightDelivery) -> None:
        """Remembers a delivery, so that a departure finds the messages of this consumer without a search."""
        self.deliveries.append(delivery)
        # Settled deliveries are removed by a sweep at twice the live ones, not at each ack: constant cost per delivery.
        if len(self.deliveries) > self._sweep_at:
            self.deliveries = [tracked for tracked in self.deliveries if not tracked.is_over]
            self._sweep_at = 2 * len(self.deliveries) + 16


class ConsumerRotation:
    """All consumers of a subscription in one shard, in order of arrival. Subclasses choose the next one."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        self.are_all_at_share = False  # at the last choice every consumer with credit had its share of the window

    def join(self, member: Member) -> None:
        self._members[member.id] = member

    def leave(self, consumer_id: int) -> Member | None:
        """Removes a consumer and returns it; None if it is not present."""
        member = self._members.pop(consumer_id, None)
        if member is not None:
            # A callback of its credit may still refer to it: it must not be queued again.
            member.is_connected = False
        return member

    def get(self, consumer_id: int) -> Member | None:
        return self._members.get(consumer_id)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def have_credit(self) -> bool:
        """True if at least one consumer has credit."""
        return any(member.credit.messages > 0 for member in self._members.values())

    def turn_size(self, waiting: int) -> int:
        """How many of the `waiting` messages one consumer gets before the next one's turn."""
        return waiting

    def choose(self, free: int) -> Member | None:
        """The consumer that gets the next messages if `free` more may be in flight; None if none can take one."""
        # Not abstract: in a key-shared subscription the key decides, so its rotation never chooses (key_shared.py).
        raise NotImplementedError

    def share(self, member: Member, free: int) -> int:
        """How many of the `free` slots may go to this consumer."""
        return min(free, member.room)

    def on_delivered(self, member: Member, count: int) -> None:
        """Accounts for `count` messages that were sent to the chosen consumer."""
        member.credit.spend(count)


class SingleActive(ConsumerRotation):
    """Exclusive and failover: the first to join gets everything."""

    @property
    def active(self) -> Member | None:
        """The consumer that gets everything; None without consumers."""
        return next(iter(self._members.values()), None)

    def choose(self, free: int) -> Member | None:
        active = self.active
        return active if active is not None and active.credit.messages > 0 and active.room > 0 else None


class QueuedRotation(ConsumerRotation):
    """The consumers that can take messages are in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: deque[Member] = deque()

    def leave(self, consumer_id: int) -> Member | None:
        member = super().leave(consumer_id)
        if member is not None and member.is_queued:
            self.queue.remove(member)
        return member

    def enqueue(self, member: Member) -> None:
        """Adds a consumer to the end of the queue, unless it is there, waits for credit, or has left."""
        if member.is_connected and not member.is_queued and not member.is_waiting:
            member.is_queued = True
            self.queue.append(member)

    def dequeue(self, member: Member) -> None:
        """Removes the first consumer of the queue, because it can take nothing now."""
        self.queue.popleft()
        member.is_queued = False

    def wait_for_credit(self, member: Member) -> None:
        """Takes the first consumer out of the queue until it gets credit."""
        self.dequeue(member)
        member.is_waiting = True
        member.credit.wait(partial(self._resume, member))

    def _resume(self, member: Member) -> None:
        member.is_waiting = False
        self.enqueue(member)

    def on_delivered(self, member: Member, count: int) -> None:
        member.credit.spend(count)
        self.queue.rotate(-1)


class RoundRobin(QueuedRotation):
    """Shared: round robin over the consumers with credit.

    A turn is one message while few wait, and a range of them when many do: each consumer still gets an equal part, in
    fewer and larger pieces.
    """

    def join(self, member: Member) -> None:
        super().join(member)
        self.enqueue(member)

    def turn_size(self, waiting: int) -> int:
        # Bounded, so that one consumer does not take a long backlog in one piece while others are about to join.
        return max(1, min(limits.SHARED_TURN_MAX, waiting // (len(self.queue) or 1)))

    def choose(self, free: int) -> Member | None:
        skipped = 0
        while skipped < len(self.queue):
            member = self.queue[0]
            if member.credit.messages <= 0:
                self.wait_for_credit(member)
            elif self.share(member, free) > 0:
                self.are_all_at_share = False
                return member  # stays first: `on_delivered` rotates the queue
            else:  # at its share: unlike credit, a share changes with every ack, so the consumer stays in the queue
                self.queue.rotate(-1)
                skipped += 1
        self.are_all_at_share = bool(self.queue)
        return None

    def share(self, member: Member, free: int) -> int:
        """How many of the `free` slots may go to this consumer, so that it stays within its share of the window.

        A message may be sent while unacked < UNACKED_SHARE * free. Each one makes `free` one less and the consumer's
        unacked messages one more, so n of them may be sent if unacked + n - 1 < UNACKED_SHARE * (free - n + 1).
        """
        return min(member.room, -((member.unacked - limits.UNACKED_SHARE * free) // (limits.UNACKED_SHARE + 1)))
