"""The dispatcher of one subscription in one shard: which message goes to which consumer. Pure: events in, instructions
out.

delivery_ledger.py has the state of every message; this module decides which consumer gets which messages, and when.
First deliveries are in order; failed messages are redelivered after their delay, before anything new.

    event                      effect on the messages (states: delivery_ledger.py)
    join, give_credit          new and ready messages may go to the consumer
    leave                      its messages in flight -> ready, without a failure
    ack, ack_through           below `next`, in any state -> acked
    nack                       in flight -> delayed, or the poison policy
    readable                   the end moves up: there are more new messages
    skip                       offsets without a message -> acked
    tick                       missed ack deadlines -> delayed, ended delays -> ready
    settled, not_settled       settling -> acked, or delayed
    seek                       all offsets from the position on -> new; the generation rises
    set_policy, set_rate       deadlines, delays and the rate are computed again

    instruction                the driver (shard_delivery.py)
    Deliver                    sends the offsets to the consumer
    DeadLetter                 publishes the messages, then calls `settled` or `not_settled`
    Dropped                    counts the messages

Every event ends in `_dispatch`, which returns the instructions. So the caller never has to ask whether an event made
something deliverable.

Acks are by offset, whichever consumer sends them: a consumer that acks after its deadline has done the work, so the
message is not redelivered. Only acks of deliveries before a seek are ignored: each delivery carries its `generation`
(hazard 48).

Nothing new is sent while the acked ranges could become too many (hazard 17), too much is unacked, a message is blocked
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
from icestream.model.subscription_options import FailurePolicy, SubscriptionType


class Pause(Enum):
    """Why nothing new is sent."""

    ACKED_FULL = "too many acked ranges above an unacked message"
    UNACKED_FULL = "too many unacked messages"
    BLOCKED = "a message failed too often and its policy is block"
    KEYS_WAIT = "all messages in the look-ahead wait for keys in flight, or for consumers without credit"
    RATE_REACHED = "the dispatch rate is reached"


class Dispatcher(DeliveryLedger):
    """Reliable dispatch of exclusive, failover and shared subscriptions; the base of the other dispatchers."""

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
        """`rate`: the bucket that all shards of the subscription share; None for no rate."""
        super().__init__(policy, acked, attempts, unacked_max)
        self.kind = kind
        self.generation = generation
        self.kept_below = 0  # best effort (best_effort.py): offsets below it are not skipped
        self.throttle = Throttle(rate if rate is not None else TokenBucket())
        self.consumers = self._consumers_for(kind)

    def _consumers_for(self, kind: SubscriptionType) -> ConsumerRotation:
        return RoundRobin() if kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED) else SingleActive()

    # --- events: consumers ---

    def join(self, credit: Credit, now_ms: int) -> list[Instruction]:
        """Adds a consumer. If it is present already, its messages in flight are redelivered."""
        # A consumer that connects again keeps its id, so the former one may still hold messages under it.
        self._remove(credit.id, now_ms)
        self.consumers.join(Member(credit))
        return self._dispatch(now_ms)

    def leave(self, consumer_id: int, now_ms: int) -> list[Instruction]:
        """Removes a consumer; its messages in flight are redelivered at once."""
        self._remove(consumer_id, now_ms)
        return self._dispatch(now_ms)

    def _remove(self, consumer_id: int, now_ms: int) -> Member | None:
        """Removes a consumer and makes its messages in flight ready; returns it, None if it is not present."""
        member = self.consumers.leave(consumer_id)
        for delivery in member.deliveries if member is not None else ():
            for run in self.in_flight.take_rest(delivery):
                # The same attempt, not the next: a departure is not a failure of the message. The poison policy can
                # apply nevertheless, if the policy allows fewer failures than when the message was delivered.
                self._redeliver(run.start, run.end, DeliveryFailure(delivery.attempt, FAILED_BEFORE))
        return member

    def give_credit(self, consumer_id: int, count: int, now_ms: int) -> list[Instruction]:
        member = self.consumers.get(consumer_id)
        if member is not None:
            member.credit.messages += max(0, count)
        return self._dispatch(now_ms)

    def ack(self, ranges: Iterable[tuple[int, int]], generation: int, now_ms: int) -> list[Instruction]:
        """Acks ranges of offsets; those that were not delivered yet are ignored."""
        if generation == self.generation:
            for start, end in ranges:
                # Cut at `next`: an ack of offsets that were never delivered (hazard 17) must not move the cursor.
                self._settle(max(start, self.acked.position), min(end, self.next))
        return self._dispatch(now_ms)

    def ack_through(self, offset: int, generation: int, now_ms: int) -> list[Instruction]:
        """Acks everything up to `offset` that was delivered (cumulative ack).

        Raises InvalidInput if several consumers share the messages: it would ack those of others (hazard 17).
        """
        if self.kind not in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            raise errors.InvalidInput(
                f"a subscription of type {self.kind.value} does not allow cumulative acks",
                hint="ack the messages one by one",
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
        """Fails messages in flight; `consumer_id`: only those of this consumer. `reason`: for their dead letters."""
        if generation == self.generation:
            for start, end in ranges:
                # Messages that are delayed or ready already have their failure: a second nack does not count.
                for delivery in self.in_flight.within(start, end):
                    if consumer_id in (None, delivery.value.consumer):
                        self.in_flight.take(delivery.start, delivery.end)
                        self._fail(
                            delivery.start,
                            delivery.end,
                            DeliveryFailure(delivery.value.attempt + 1, reason),
                            now_ms,
                            delay_ms,
                        )
        return self._dispatch(now_ms)

    # --- events: the log, the clock, the dead letters ---

    def readable(self, end: int, now_ms: int) -> list[Instruction]:
        """Extends the readable offsets to `end`; a lower end than the present one is ignored."""
        self.end = max(self.end, end)
        return self._dispatch(now_ms)

    def skip(self, start: int, end: int, now_ms: int) -> list[Instruction]:
        """Skips a declared gap: [start, end) holds no message that can be read."""
        self._settle(max(start, self.acked.position), min(end, self.next))
        self._add_gap(start, end)
        return self._dispatch(now_ms)

    def tick(self, now_ms: int) -> list[Instruction]:
        """Dispatches after time has passed (see `wake_ms`), or a consumer has more credit."""
        return self._dispatch(now_ms)

    def settled(self, start: int, end: int, now_ms: int) -> list[Instruction]:
        """The dead letters of [start, end) are stored."""
        for run in self.settling.take(start, end):
            self._settle(run.start, run.end)
        return self._dispatch(now_ms)

    def not_settled(self, start: int, end: int, now_ms: int) -> list[Instruction]:
        """The dead letters of [start, end) could not be stored: retried after the longest delay, not redelivered."""
        longest_ms, least_ms = self.policy.max_delay_ms, limits.DEAD_LETTER_RETRY_MS_MIN
        for run in self.settling.take(start, end):
            self._delay(run.start, run.end, run.value, now_ms, longest_ms, least_ms)
        return self._dispatch(now_ms)

    # --- events: seek, policy, rate ---

    def seek(self, position: int, now_ms: int) -> list[Instruction]:
        """Restarts at `position`, at most at the end. Acks of earlier deliveries are ignored from now on."""
        self.generation += 1
        # At most at the end: the next message must not be stored below a cursor.
        self._begin_at(min(max(position, 0), self.end))
        return self._dispatch(now_ms)

    def set_policy(self, policy: FailurePolicy, now_ms: int) -> list[Instruction]:
        """Replaces the failure policy; it applies at once to messages that were delivered before."""
        self.policy = policy
        self._apply_policy(now_ms)
        return self._dispatch(now_ms)

    def set_rate(self, messages_per_second: int, now_ms: int) -> list[Instruction]:
        """Sets the rate of the bucket that all shards share; 0 for no rate."""
        self.throttle.bucket.set_rate(messages_per_second)
        return self._dispatch(now_ms)

    # --- state ---

    @property
    def pause(self) -> Pause | None:
        """Why nothing new is sent; None if only messages or credit are lacking.

        The reason that an operator has to act on comes first, one that ends by itself last.
        """
        if self.blocked:
            return Pause.BLOCKED
        if self._pending >= self.unacked_max:
            return Pause.UNACKED_FULL
        if self._room(self.next) <= 0:
            return Pause.ACKED_FULL
        if self.consumers.are_all_at_share and self.next < self.end:
            return Pause.UNACKED_FULL
        return Pause.RATE_REACHED if self.throttle.wake_ms is not None else None

    @property
    def undelivered(self) -> int:
        """About how many messages wait for their first delivery; offsets without a message count too."""
        return self.end - self.next

    @property
    def wake_ms(self) -> int | None:
        """When `tick` is due: an ack deadline, the end of a delay, or tokens of the rate. None if never."""
        due_ms = self.in_flight.wake_ms
        if not self.delayed.size and self.throttle.wake_ms is None:  # nearly always
            return due_ms
        times = (due_ms, self.delayed.wake_ms, self.throttle.wake_ms)
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    # --- dispatch ---

    def _dispatch(self, now_ms: int) -> list[Instruction]:
        """Brings every state up to `now_ms`, assigns what can be assigned, and returns the instructions."""
        self.throttle.wake_ms = None
        # Before any delivery: a message at the end of its delay goes before everything new.
        self._expire(now_ms)
        self._deliver_all(now_ms)
        instructions, self._out = self._out, []
        return instructions

    def _deliver_all(self, now_ms: int) -> None:
        if self.ready.size:
            self._deliver_ready(now_ms)
        if self.next < self.end:
            self._deliver_new(now_ms)

    def _deliver_ready(self, now_ms: int) -> None:
        """Redelivers, lowest offset first, until no consumer can take a message."""
        while self.ready.size:
            start, end, attempt = self.ready.first()
            # A redelivery reuses its slot of the in-flight window, so the window bounds new messages only: a full
            # window must not keep failed messages from being sent again.
            free = max(self._room(self.next), 0) + self.ready.size
            stop = self._assign(start, end, attempt, now_ms, free)
            if stop == start:  # all consumers with credit are at their share: redeliver to one of them
                stop = self._assign(start, end, attempt, now_ms, limits.OFFSET_MAX)
            if stop == start:
                return
            self.ready.take(start, stop)

    def _deliver_new(self, now_ms: int) -> None:
        """Delivers new messages in order, as far as the in-flight window and the consumers allow."""
        # Not past messages that are ready, because a redelivery goes first, and not while a message is blocked: the
        # policy `block` promises that nothing after it is delivered.
        while not self.ready.size and not self.blocked.size and (new := self._next_new()) is not None:
            start, end = new
            room = self._room(start)
            end = min(end, start + room)
            if start >= end:
                return
            end, attempt = self._with_failures(start, end) if self._failed.size else (end, 0)
            if attempt > self.policy.max_redelivery_count:  # it failed too often before a restart: it is not sent again
                self._advance_to(end)
                self._apply_poison_policy(start, end, DeliveryFailure(attempt, FAILED_BEFORE))
                continue
            stop = self._assign(start, end, attempt, now_ms, room)
            self._advance_to(stop)
            if stop < end or stop >= self.end:  # no consumer can take more, or nothing more can be read
                return

    def _assign(self, start: int, end: int, attempt: int, now_ms: int, free: int) -> int:
        """Assigns [start, end) to consumers as far as turns, credit, shares and rate allow; returns where it stopped.

        `free`: how many more messages may be in flight.
        """
        # Computed once for the range: all consumers get equally large pieces of it.
        turn_size = self.consumers.turn_size(end - start)
        while start < end and (member := self.consumers.choose(free)) is not None:
            count = min(turn_size, member.credit.messages, end - start, self.consumers.share(member, free))
            if not self.throttle.is_open:
                count = min(count, self.throttle.allowed(now_ms))
                if not count:
                    break
            self._deliver(member, start, start + count, attempt, now_ms)
            start += count
            free -= count
        return start

    def _deliver(self, member: Member, start: int, end: int, attempt: int, now_ms: int) -> None:
        """Puts [start, end) in flight with a consumer and emits the instruction."""
        self.consumers.on_delivered(member, end - start)
        self.throttle.spend(end - start)
        delivery = InFlightDelivery(start, end, now_ms + self.policy.ack_timeout_ms, member, attempt, now_ms)
        member.unacked += end - start
        member.track(delivery)
        self.in_flight.put(delivery)
        self._out.append(Deliver(member.id, start, end, attempt))
