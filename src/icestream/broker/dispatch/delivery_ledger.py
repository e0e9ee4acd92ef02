"""The state of every message of a subscription in one shard.

Every offset from the cursor's position on is in exactly one state:

    acked        in the cursor                               final
    new          from `next` on                              delivered -> in flight
    in flight    with a consumer, until the ack deadline     acked; nacked or late -> delayed; consumer left -> ready
    delayed      waits for its redelivery delay              -> ready
    ready        is sent before anything new                 delivered -> in flight
    settling     failed too often; its dead letter is        settled -> acked; not possible now -> delayed
                 being written
    blocked      failed too often; an operator must act      acked, seek, or another policy

A failure is a nack or a missed deadline. The departure of a consumer is not a failure: it may never have seen its
messages, and otherwise every message would be poison after a few deployments. A message that failed more often than the
present policy allows never becomes ready: the poison policy is applied.

Offsets without a message count as acked when nothing new is before them, not earlier: far ahead they would be a range
of the cursor, with a hole before it that cannot be closed yet.

Invariants:

    position <= next <= end                  `position` is the cursor's: everything below is acked
    below `next`                             an offset is acked or in exactly one of in flight, delayed, ready,
                                             settling, blocked (key-shared: or waiting in the lane of its key)
    unacked <= unacked_max                   new deliveries stop at it; a lowered bound is reached by acks
    the cursor can always be stored          new deliveries stop before the acked ranges could exceed its bounds
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from icestream.broker.dispatch.instruction import DeadLetter, Dropped, Instruction
from icestream.broker.dispatch.timed_runs import InFlightDelivery, RedeliveryDelay, TimedRuns
from icestream.model.cursor import AckedOffsets
from icestream.model.run_set import RunSet
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy

NACK = "nack"
ACK_TIMEOUT = "ack timeout"
FAILED_BEFORE = "failed too often before"  # before a restart, or under a policy that allowed more failures


class DeliveryFailure(NamedTuple):
    """How often a message has failed, and why it failed last."""

    attempt: int
    reason: str


class DeliveryLedger:
    """The offsets of one subscription in one shard, by state. Dispatchers extend it: they choose consumers."""

    def __init__(
        self, policy: FailurePolicy, acked: AckedOffsets, attempts: Iterable[tuple[int, int, int]], unacked_max: int
    ) -> None:
        """`attempts`: (start, end, failures) of unacked messages, from the stored cursor."""
        self.policy = policy
        self.acked = acked
        self.next = acked.position
        self.end = acked.position  # the end of what can be read
        self.unacked_max = unacked_max
        self.in_flight: TimedRuns[InFlightDelivery] = TimedRuns()
        self.delayed: TimedRuns[RedeliveryDelay] = TimedRuns()
        self.ready: RunSet[int] = RunSet()
        self.settling: RunSet[DeliveryFailure] = RunSet()
        self.blocked: RunSet[DeliveryFailure] = RunSet()
        self._failed: RunSet[int] = RunSet()  # stored failure counts of offsets that are still new
        self._empty: RunSet[None] = RunSet()  # new offsets without a message
        self._gaps: RunSet[None] = RunSet()  # all offsets without a message from the position on
        self._out: list[Instruction] = []
        self.failures = 0  # rises with every failure: the cursor must be stored then
        for start, end, failures in attempts:
            for low, high in acked.missing(start, end):
                self._failed.take(low, high)  # the last one counts if ranges overlap
                self._failed.add(low, high, failures)

    # --- state ---

    @property
    def unacked(self) -> int:
        """The number of messages that were delivered and are not acked."""
        return self._pending

    @property
    def _pending(self) -> int:
        return self.in_flight.size + self.delayed.size + self.ready.size + self.settling.size + self.blocked.size

    @property
    def attempts(self) -> list[tuple[int, int, int]]:
        """(start, end, failures) of unacked messages that failed, to be stored with the cursor (hazard 17)."""
        ranges = [(run.start, run.end, run.value.attempt) for run in self.in_flight if run.value.attempt]
        ranges += [(run.start, run.end, run.value.attempt) for run in self.delayed]
        for poison in (self.settling, self.blocked):
            ranges += [(run.start, run.end, run.value.attempt) for run in poison]
        for waiting in (self.ready, self._failed):
            ranges += [(run.start, run.end, run.value) for run in waiting if run.value]
        return sorted(ranges)

    # --- new messages ---

    def _next_new(self) -> tuple[int, int] | None:
        """The first range of new messages that can be read; moves `next` to its start. None if there is none."""
        # After a restart the cursor has acked ranges above `next`: they are not new.
        unacked = self.acked.first_missing(self.next, self.end)
        if unacked is None:
            self.next = max(self.next, self.end)
            return None
        self.next, end = unacked
        return self.next, min(end, self._empty.first().start) if self._empty.size else end

    def _room(self, start: int) -> int:
        """How many messages may be sent from `start` on.

        Below the end of the acked ranges the cursor sets no bound: those messages close holes.
        """
        pending = self._pending
        room = self.unacked_max - pending
        # A message that closes a hole can only make the cursor smaller. Bounding it as well would be a deadlock: the
        # cursor is full because of the hole, and the hole cannot be closed because the cursor is full.
        return room if start < self.acked.end else min(room, self._acked_room(pending, start))

    def _acked_room(self, unacked: int, start: int) -> int:
        """How many messages may be sent from `start` on without exceeding the bounds of the cursor.

        Offsets without a message do not count: after a crash a gap may be wider than the cursor's bound.
        """
        if self._gaps.size:
            self._gaps.take(0, self.acked.position)  # passed: they do not count any more
            start -= sum(gap.end - gap.start for gap in self._gaps.within(self.acked.position, start))
        return self.acked.room(unacked, start)

    def _with_failures(self, start: int, end: int) -> tuple[int, int]:
        """(end, failures) of the longest prefix of [start, end) that failed equally often before a restart."""
        failed = self._failed.first_within(start, end)
        if failed is None:
            return end, 0
        return (failed.end, failed.value) if failed.start == start else (failed.start, 0)

    def _advance_to(self, end: int) -> None:
        """Moves `next`: offsets below `end` are not new any more."""
        if self._failed.size:
            self._failed.take(self.next, end)
        self.next = end
        if self._empty.size:
            self._skip_empty()

    def _add_gap(self, start: int, end: int) -> None:
        """Records that [start, end) holds no message: delivery skips the new offsets of it."""
        start = max(start, self.acked.position)
        if start >= end:
            return
        # Taken and added: a gap may be declared twice, and a run set holds no overlapping runs.
        self._gaps.take(start, end)
        self._gaps.add(start, end, None)
        for low, high in list(self.acked.missing(max(start, self.next), end)):
            self._failed.take(low, high)
            self._empty.take(low, high)
            self._empty.add(low, high, None)
            self._skip_empty()

    def _skip_empty(self) -> None:
        """Counts offsets without a message as acked, as far as nothing new is before them."""
        while self._empty.size:
            start, end, _ = self._empty.first()
            if self.acked.first_missing(self.next, start) is not None:
                return
            self._empty.take(start, end)
            self.acked.add(start, end)
            self.next = max(self.next, end)

    # --- transitions ---

    def _expire(self, now_ms: int) -> None:
        """Fails messages that missed their ack deadline; makes messages ready after their delay."""
        if self.in_flight.is_due(now_ms):
            for late in self.in_flight.take_due(now_ms):
                self._fail(late.start, late.end, DeliveryFailure(late.value.attempt + 1, ACK_TIMEOUT), now_ms)
        if self.delayed.is_due(now_ms):
            for run in self.delayed.take_due(now_ms):
                self._redeliver(run.start, run.end, DeliveryFailure(run.value.attempt, run.value.reason))

    def _fail(self, start: int, end: int, failure: DeliveryFailure, now_ms: int, requested_ms: int = 0) -> None:
        """Applies a failure: a delay before the redelivery, or the poison policy if it failed too often.

        `requested_ms`: the delay that a nack requested.
        """
        self.failures += 1
        if failure.attempt > self.policy.max_redelivery_count:
            self._apply_poison_policy(start, end, failure)
        else:
            self._delay(start, end, failure, now_ms, requested_ms)

    def _delay(
        self, start: int, end: int, failure: DeliveryFailure, now_ms: int, requested_ms: int, least_ms: int = 0
    ) -> None:
        delay = RedeliveryDelay(start, end, 0, failure.attempt, failure.reason, now_ms, requested_ms, least_ms)
        delay.due_ms = self._delay_end_ms(delay)
        self.delayed.put(delay)

    def _delay_end_ms(self, delay: RedeliveryDelay) -> int:
        return delay.since_ms + max(self.policy.delay_ms(delay.attempt, delay.requested_ms), delay.least_ms)

    def _redeliver(self, start: int, end: int, failure: DeliveryFailure) -> None:
        """Makes messages ready, without a new failure; applies the poison policy to those that failed too often."""
        # Compared again although `_fail` has compared: the policy may have changed during the delay.
        if failure.attempt > self.policy.max_redelivery_count:
            self._apply_poison_policy(start, end, failure)
        else:
            self._make_ready(start, end, failure.attempt)

    def _make_ready(self, start: int, end: int, attempt: int) -> None:
        self.ready.add(start, end, attempt)

    def _apply_poison_policy(self, start: int, end: int, failure: DeliveryFailure) -> None:
        if self.policy.poison is PoisonPolicy.DEAD_LETTER:
            self.settling.add(start, end, failure)
            self._out.append(DeadLetter(start, end, failure.attempt, failure.reason))
        elif self.policy.poison is PoisonPolicy.DROP:
            # `_settle` and not only an ack: the key-shared dispatcher extends it, so that the lane forgets the message.
            self._settle(start, end)
            self._out.append(Dropped(start, end, failure.attempt, failure.reason))
        else:
            self.blocked.add(start, end, failure)

    def _settle(self, start: int, end: int) -> None:
        """Acks [start, end), all of it below `next`, in whatever state it is."""
        if start >= end:
            return
        # Nearly every ack is of messages in flight, and then the other four sets are empty: they are searched only if
        # they hold something.
        if self.in_flight.size:
            self.in_flight.take(start, end)
        if self._pending > self.in_flight.size:
            for runs in (self.delayed, self.ready, self.settling, self.blocked):
                runs.take(start, end)
        self.acked.add(start, end)

    # --- seek and policy ---

    def _begin_at(self, position: int) -> None:
        """Resets the state: everything from `position` on is new, without the failures counted before.

        Messages in flight stay with their consumers, but their acks carry an older generation and are ignored.
        """
        self.acked = AckedOffsets(position)
        self.next = position
        self.in_flight.clear()
        self.delayed.clear()
        self.ready.clear()
        self.settling.clear()
        self.blocked.clear()
        self._failed.clear()
        self._empty.clear()
        self._gaps.clear()

    def _apply_policy(self, now_ms: int) -> None:
        """Applies a changed policy to messages in flight, delayed, ready and blocked."""
        # From when each was delivered or delayed, not from now: a policy that is set again and again must not extend
        # deadlines for ever.
        self.in_flight.retime(lambda delivery: delivery.since_ms + self.policy.ack_timeout_ms)
        self.delayed.retime(self._delay_end_ms)
        for run in list(self.blocked):
            # Through `_fail` with the count unchanged: the new policy may redeliver the message, write its dead letter,
            # drop it, or block it again.
            self.blocked.take(run.start, run.end)
            self._fail(run.start, run.end, run.value, now_ms)
        for poison in [run for run in self.ready if run.value > self.policy.max_redelivery_count]:
            self.ready.take(poison.start, poison.end)
            self._apply_poison_policy(poison.start, poison.end, DeliveryFailure(poison.value, FAILED_BEFORE))
