"""The consumers of one subscription in one shard, and whose turn it is.

    exclusive    the only one (a second is refused before it gets here)
    failover     the one that came first; when it leaves, the next in order of arrival
    shared       each in turn, as far as it has credit

A consumer has one credit for all shards of its subscription. Who has none is not looked at until it gets some, so a
thousand idle consumers cost nothing.

One that takes everything and acks nothing must not fill the window that all of them share. So nothing new goes to one
that holds UNACKED_SHARE times what is still free: whoever takes all that he can leaves a ninth of the window to others,
also to those who come later. What comes again needs no room; it goes to such a one only when nobody else can take it.
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
    """Messages that a consumer still takes, in all shards together. Only the consumer raises it."""

    __slots__ = ("_messages", "_waiting", "held_max", "id", "messages_per_key")

    def __init__(self, consumer_id: int, messages: int = 0) -> None:
        self.id = consumer_id
        self.held_max = limits.OFFSET_MAX  # messages of a shard that it holds unacked: for one that gives no credit
        self.messages_per_key = 1  # key-shared: messages of one key that it may have at a time
        self._messages = messages
        self._waiting: list[Callable[[], None]] = []

    @property
    def messages(self) -> int:
        return self._messages

    @messages.setter
    def messages(self, count: int) -> None:
        self._messages = count
        if count > 0 and self._waiting:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume()

    def spend(self, count: int) -> None:
        self._messages -= count

    def wait(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once, when there is credit again."""
        self._waiting.append(resume)


class Member:
    """A consumer as one shard sees it."""

    __slots__ = ("_sweep_at", "credit", "deliveries", "held", "id", "in_turn", "is_here", "lanes", "waits")

    def __init__(self, credit: Credit) -> None:
        self.id = credit.id
        self.credit = credit
        self.is_here = True
        self.held = 0  # messages in flight with it
        self.in_turn = False  # stands in the queue for its turn
        self.waits = False  # has no credit, and comes back to the queue when it gets some
        self.deliveries: list[InFlightDelivery] = []  # those under way, and some that are done
        self.lanes: OrderedDict[KeyLane, None] = OrderedDict()  # key-shared: its keys whose next message can go
        self._sweep_at = 16

    @property
    def room(self) -> int:
        """Messages that it may still hold."""
        return self.credit.held_max - self.held

    def keep(self, delivery: InFlightDelivery) -> None:
        self.deliveries.append(delivery)
        if len(self.deliveries) > self._sweep_at:
            self.deliveries = [one for one in self.deliveries if not one.is_over]
            self._sweep_at = 2 * len(self.deliveries) + 16


class ConsumerRotation:
    """All of them, in order of arrival."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        self.are_sated = False  # some had credit when somebody was last looked for, and all of those held their share

    def join(self, member: Member) -> None:
        self._members[member.id] = member

    def leave(self, consumer_id: int) -> Member | None:
        member = self._members.pop(consumer_id, None)
        if member is not None:
            member.is_here = False
        return member

    def get(self, consumer_id: int) -> Member | None:
        return self._members.get(consumer_id)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def have_credit(self) -> bool:
        """At least one of them."""
        return any(member.credit.messages > 0 for member in self._members.values())

    def turn(self, waiting: int) -> int:
        """How many of the `waiting` messages one consumer gets before it is the next one's turn."""
        return waiting

    def choose(self, free: int) -> Member | None:
        """Who gets the next messages, when so many more may be in flight; it has credit for at least one."""
        raise NotImplementedError

    def share(self, member: Member, free: int) -> int:
        """How many of the `free` ones may go to it."""
        return min(free, member.room)

    def took(self, member: Member, count: int) -> None:
        """The one whose turn it was has got `count` messages."""
        member.credit.spend(count)


class SingleActive(ConsumerRotation):
    """Exclusive and failover: the first to come gets everything."""

    @property
    def active(self) -> Member | None:
        return next(iter(self._members.values()), None)

    def choose(self, free: int) -> Member | None:
        active = self.active
        return active if active is not None and active.credit.messages > 0 and active.room > 0 else None


class QueuedRotation(ConsumerRotation):
    """Those who can take something stand in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: deque[Member] = deque()

    def leave(self, consumer_id: int) -> Member | None:
        member = super().leave(consumer_id)
        if member is not None and member.in_turn:
            self.queue.remove(member)
        return member

    def line_up(self, member: Member) -> None:
        if member.is_here and not member.in_turn and not member.waits:
            member.in_turn = True
            self.queue.append(member)

    def step_out(self, member: Member) -> None:
        """The first in the queue can take nothing now."""
        self.queue.popleft()
        member.in_turn = False

    def wait_for_credit(self, member: Member) -> None:
        self.step_out(member)
        member.waits = True
        member.credit.wait(partial(self._resume, member))

    def _resume(self, member: Member) -> None:
        member.waits = False
        self.line_up(member)

    def took(self, member: Member, count: int) -> None:
        member.credit.spend(count)
        self.queue.rotate(-1)


class RoundRobin(QueuedRotation):
    """Shared: round robin over those with credit. A turn is one message while few wait, and a stretch of them when many
    do: then each consumer still gets its equal part, in fewer and larger pieces."""

    def join(self, member: Member) -> None:
        super().join(member)
        self.line_up(member)

    def turn(self, waiting: int) -> int:
        return max(1, min(limits.SHARED_TURN_MAX, waiting // (len(self.queue) or 1)))

    def choose(self, free: int) -> Member | None:
        passed_by = 0
        while passed_by < len(self.queue):
            member = self.queue[0]
            if member.credit.messages <= 0:
                self.wait_for_credit(member)
            elif self.share(member, free) > 0:
                self.are_sated = False
                return member
            else:
                self.queue.rotate(-1)
                passed_by += 1
        self.are_sated = bool(self.queue)
        return None

    def share(self, member: Member, free: int) -> int:
        """Each message makes `free` one less and what it holds one more."""
        return min(member.room, -((member.held - limits.UNACKED_SHARE * free) // (limits.UNACKED_SHARE + 1)))
