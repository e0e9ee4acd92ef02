"""One subscription in one shard: which message goes to whom. Pure: events in, instructions out.

Where every message is, and what becomes of it, is the business of ledger.py. Here is who gets what, and when: first
deliveries are in order; what failed comes again when its delay is over, before anything new.

Acks are by offset, whoever sends them: a consumer that answers after its deadline did the work, so the message is not
sent again. Only acks of deliveries before a seek do not count: each delivery carries the `generation` of its time
(hazard 48).

Nothing new goes out while the acked ranges could become too many (hazard 17), too much is unacked, something is blocked
or the rate is reached: `pause` says which. Credit is the number of messages that a consumer still takes; only the
consumer raises it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from icestream import errors, limits
from icestream.broker.dispatch.consumer_rotation import ConsumerRotation, Credit, Member, RoundRobin, SingleActive
from icestream.broker.dispatch.delivery_ledger import FAILED_BEFORE, NACK, DeliveryFailure, DeliveryLedger
from icestream.broker.dispatch.instruction import Deliver, Instruction
from icestream.broker.dispatch.timed_runs import InFlightDelivery
from icestream.broker.rate_limit import Throttle, TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription import FailurePolicy, SubscriptionType


class Pause(Enum):
    """Why nothing new goes out."""

    ACKED_FULL = "too many acked ranges above an unacked message"
    UNACKED_FULL = "too many unacked messages"
    BLOCKED = "a message failed too often and its policy is block"
    KEYS_WAIT = "all messages in sight wait for keys in flight, or for consumers that take no more"
    RATE_REACHED = "the dispatch rate is reached"


class Dispatcher(DeliveryLedger):
    def __init__(
        self,
        kind: SubscriptionType,
        policy: FailurePolicy,
        acked: AckedOffsets,
        attempts: Iterable[tuple[int, int, int]] = (),
        unacked_max: int = limits.UNACKED_MAX_DEFAULT,
        rate: TokenBucket | None = None,
        generation: int = 0,
    ) -> None:
        """`rate`: one bucket for all shards of a subscription, or none."""
        super().__init__(policy, acked, attempts, unacked_max)
        self.kind = kind
        self.generation = generation
        self.kept_below = 0  # what best effort (best_effort.py) does not skip
        self.throttle = Throttle(rate if rate is not None else TokenBucket())
        self.consumers = self._consumers_for(kind)

    def _consumers_for(self, kind: SubscriptionType) -> ConsumerRotation:
        return RoundRobin() if kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED) else SingleActive()

    # --- events: consumers ---

    def join(self, credit: Credit, now_ms: int) -> list[Instruction]:
        """A consumer that is here already comes anew: what it had in flight goes out again."""
        self._remove(credit.id, now_ms)
        self.consumers.join(Member(credit))
        return self._go_on(now_ms)

    def leave(self, consumer_id: int, now_ms: int) -> list[Instruction]:
        """What it had in flight goes to others at once."""
        self._remove(consumer_id, now_ms)
        return self._go_on(now_ms)

    def _remove(self, consumer_id: int, now_ms: int) -> Member | None:
        member = self.consumers.leave(consumer_id)
        for delivery in member.deliveries if member is not None else ():
            for run in self.in_flight.take_rest(delivery):
                self._bring_back(run.start, run.end, DeliveryFailure(delivery.attempt, FAILED_BEFORE))
        return member

    def give_credit(self, consumer_id: int, count: int, now_ms: int) -> list[Instruction]:
        member = self.consumers.get(consumer_id)
        if member is not None:
            member.credit.messages += max(0, count)
        return self._go_on(now_ms)

    def ack(self, ranges: Iterable[tuple[int, int]], generation: int, now_ms: int) -> list[Instruction]:
        """What was not delivered yet cannot be acked."""
        if generation == self.generation:
            for start, end in ranges:
                self._settle(max(start, self.acked.position), min(end, self.next))
        return self._go_on(now_ms)

    def ack_through(self, offset: int, generation: int, now_ms: int) -> list[Instruction]:
        """Cumulative: everything up to `offset` that was delivered. Where several consumers share the messages it would
        ack what others have (hazard 17)."""
        if self.kind not in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            raise errors.InvalidInput(
                f"a subscription of type {self.kind.value} has no cumulative ack", hint="ack the messages one by one"
            )
        return self.ack([(self.acked.position, offset + 1)], generation, now_ms)

    def nack(
        self,
        ranges: Iterable[tuple[int, int]],
        generation: int,
        now_ms: int,
        delay_ms: int = 0,
        consumer_id: int | None = None,
        reason: str = NACK,
    ) -> list[Instruction]:
        """A consumer gives messages back. What is not in flight is not its to give; where `consumer_id` says who it is,
        neither is what another one has by now. `reason`: what their dead letters will say."""
        if generation == self.generation:
            for start, end in ranges:
                for held in self.in_flight.within(start, end):
                    if consumer_id in (None, held.value.consumer):
                        self.in_flight.take(held.start, held.end)
                        self._fail(
                            held.start, held.end, DeliveryFailure(held.value.attempt + 1, reason), now_ms, delay_ms
                        )
        return self._go_on(now_ms)

    # --- events: the log, the clock, the dead letters ---

    def readable(self, end: int, now_ms: int) -> list[Instruction]:
        """Offsets below `end` can be read."""
        self.end = max(self.end, end)
        return self._go_on(now_ms)

    def skip(self, start: int, end: int, now_ms: int) -> list[Instruction]:
        """Offsets [start, end) hold no message, or none that can be read any more: a declared gap."""
        self._settle(max(start, self.acked.position), min(end, self.next))
        self._note_gap(start, end)
        return self._go_on(now_ms)

    def tick(self, now_ms: int) -> list[Instruction]:
        """Time has passed (`wake_ms` says when that is next of interest), or a consumer has more credit."""
        return self._go_on(now_ms)

    def settled(self, start: int, end: int, now_ms: int) -> list[Instruction]:
        """The dead letters of [start, end) are stored."""
        for run in self.settling.take(start, end):
            self._settle(run.start, run.end)
        return self._go_on(now_ms)

    def not_settled(self, start: int, end: int, now_ms: int) -> list[Instruction]:
        """They could not be stored now: again after the longest delay, and not to a consumer."""
        longest_ms, least_ms = self.policy.max_delay_ms, limits.DEAD_LETTER_RETRY_MS_MIN
        for run in self.settling.take(start, end):
            self._delay(run.start, run.end, run.value, now_ms, longest_ms, least_ms)
        return self._go_on(now_ms)

    # --- events: changes ---

    def seek(self, position: int, now_ms: int) -> list[Instruction]:
        """Begins anew at `position`, at most at the end: what was under way belongs to the generation before."""
        self.generation += 1
        self._begin_at(min(max(position, 0), self.end))
        return self._go_on(now_ms)

    def set_policy(self, policy: FailurePolicy, now_ms: int) -> list[Instruction]:
        self.policy = policy
        self._judge_anew(now_ms)
        return self._go_on(now_ms)

    def set_rate(self, messages_per_second: int, now_ms: int) -> list[Instruction]:
        """0: no bound. Of a bucket that shards share, one is enough."""
        self.throttle.bucket.set_rate(messages_per_second)
        return self._go_on(now_ms)

    # --- what is to be seen ---

    @property
    def pause(self) -> Pause | None:
        if self.blocked:
            return Pause.BLOCKED
        if self._under_way >= self.unacked_max:
            return Pause.UNACKED_FULL
        if self._room(self.next) <= 0:
            return Pause.ACKED_FULL
        if self.consumers.are_sated and self.next < self.end:
            return Pause.UNACKED_FULL
        return Pause.RATE_REACHED if self.throttle.wake_ms is not None else None

    @property
    def undelivered(self) -> int:
        """Messages that wait for their first delivery, about: offsets without a message count."""
        return self.end - self.next

    @property
    def wake_ms(self) -> int | None:
        """When something happens by itself: a deadline, the end of a delay, or the rate lets more pass."""
        times = (self.in_flight.wake_ms, self.delayed.wake_ms, self.throttle.wake_ms)
        return min((at for at in times if at is not None), default=None)

    # --- how it goes on ---

    def _go_on(self, now_ms: int) -> list[Instruction]:
        self.throttle.wake_ms = None
        self._expire(now_ms)
        self._deliver_all(now_ms)
        out, self._out = self._out, []
        return out

    def _deliver_all(self, now_ms: int) -> None:
        if self.ready.size:
            self._deliver_ready(now_ms)
        if self.next < self.end:
            self._deliver_new(now_ms)

    def _deliver_ready(self, now_ms: int) -> None:
        while self.ready.size:
            start, end, attempt = self.ready.first()
            free = max(self._room(self.next), 0) + self.ready.size  # it is in flight no more, and will be again
            stop = self._hand_out(start, end, attempt, now_ms, free)
            if stop == start:
                stop = self._hand_out(start, end, attempt, now_ms, limits.OFFSET_MAX)
            if stop == start:
                return
            self.ready.take(start, stop)

    def _deliver_new(self, now_ms: int) -> None:
        while not self.ready.size and not self.blocked.size and (found := self._find_new()) is not None:
            start, end = found
            room = self._room(start)
            end = min(end, start + room)
            if start >= end:
                return
            end, attempt = self._with_failures(start, end) if self._failed.size else (end, 0)
            if attempt > self.policy.max_redelivery_count:
                self._pass(end)
                self._give_up(start, end, DeliveryFailure(attempt, FAILED_BEFORE))
                continue
            stop = self._hand_out(start, end, attempt, now_ms, room)
            self._pass(stop)
            if stop < end or stop >= self.end:
                return

    def _hand_out(self, start: int, end: int, attempt: int, now_ms: int, free: int) -> int:
        """Gives [start, end) to consumers as far as turns, credit, shares and rate allow; where that ended. `free`: how
        many more may be in flight."""
        turn = self.consumers.turn(end - start)
        while start < end and (member := self.consumers.choose(free)) is not None:
            count = min(turn, member.credit.messages, end - start, self.consumers.share(member, free))
            if not self.throttle.is_open:
                count = min(count, self.throttle.allowed(now_ms))
                if not count:
                    break
            self._deliver(member, start, start + count, attempt, now_ms)
            start += count
            free -= count
        return start

    def _deliver(self, member: Member, start: int, end: int, attempt: int, now_ms: int) -> None:
        self.consumers.took(member, end - start)
        self.throttle.spend(end - start)
        delivery = InFlightDelivery(start, end, now_ms + self.policy.ack_timeout_ms, member, attempt, now_ms)
        member.held += end - start
        member.keep(delivery)
        self.in_flight.put(delivery)
        self._out.append(Deliver(member.id, start, end, attempt))
