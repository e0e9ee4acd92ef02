"""Where every message of a subscription is, in one shard, and what becomes of it.

Every offset from the cursor's position on is in exactly one place:

    acked        in the cursor                              for good
    new          from `next` on                             delivered -> in flight
    in flight    with a consumer, until a deadline          acked; nacked or late -> delayed; consumer gone -> ready
    delayed      waits for its time                         -> ready
    ready        goes out before anything new               delivered -> in flight
    settling     failed too often; a dead letter is made    settled -> acked; not possible now -> delayed
    blocked      failed too often; somebody must decide     acked, seek, or another policy

A failure is a nack or a missed deadline. A consumer that goes away is none: what it had was perhaps never looked at,
and after a few deployments every message would be poison. Nothing becomes ready that failed more often than the policy
of the moment allows: it is given up, as the policy says.

What holds no message counts as acked when nothing new is in front of it, not earlier: far ahead it would be a range in
the cursor, with a hole before it that nobody can close yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from icestream.broker.dispatch.instruction import DeadLetter, Dropped, Instruction
from icestream.broker.dispatch.timed_runs import InFlightDelivery, RedeliveryDelay, TimedRuns
from icestream.model.cursor import AckedOffsets
from icestream.model.run_set import RunSet
from icestream.model.subscription import FailurePolicy, PoisonPolicy

NACK = "nack"
ACK_TIMEOUT = "ack timeout"
FAILED_BEFORE = "failed too often before"  # before a restart, or under a policy that allowed more


class DeliveryFailure(NamedTuple):
    attempt: int
    reason: str


class DeliveryLedger:
    def __init__(
        self, policy: FailurePolicy, acked: AckedOffsets, attempts: Iterable[tuple[int, int, int]], unacked_max: int
    ) -> None:
        """`attempts`: (start, end, failures) of unacked messages, as they were stored with the cursor."""
        self.policy = policy
        self.acked = acked
        self.next = acked.position
        self.end = acked.position  # what may be read
        self.unacked_max = unacked_max
        self.in_flight: TimedRuns[InFlightDelivery] = TimedRuns()
        self.delayed: TimedRuns[RedeliveryDelay] = TimedRuns()
        self.ready: RunSet[int] = RunSet()
        self.settling: RunSet[DeliveryFailure] = RunSet()
        self.blocked: RunSet[DeliveryFailure] = RunSet()
        self._failed: RunSet[int] = RunSet()  # failures that are known of offsets that are still new
        self._empty: RunSet[None] = RunSet()  # offsets that are still new and hold no message
        self._gaps: RunSet[None] = RunSet()  # offsets from the position on that hold no message, acked or not
        self._out: list[Instruction] = []
        self.failures = 0  # noted so far: when it moves, the stored cursor knows too little
        for start, end, failures in attempts:
            for low, high in acked.missing(start, end):
                self._failed.take(low, high)
                self._failed.add(low, high, failures)

    # --- what is to be seen ---

    @property
    def unacked(self) -> int:
        """Messages that were delivered and are not acked."""
        return self._under_way

    @property
    def _under_way(self) -> int:
        return self.in_flight.size + self.delayed.size + self.ready.size + self.settling.size + self.blocked.size

    @property
    def attempts(self) -> list[tuple[int, int, int]]:
        """(start, end, failures) of unacked messages that failed, to be stored with the cursor (hazard 17)."""
        found = [(run.start, run.end, run.value.attempt) for run in self.in_flight if run.value.attempt]
        found += [(run.start, run.end, run.value.attempt) for run in self.delayed]
        for given_up in (self.settling, self.blocked):
            found += [(run.start, run.end, run.value.attempt) for run in given_up]
        for waiting in (self.ready, self._failed):
            found += [(run.start, run.end, run.value) for run in waiting if run.value]
        return sorted(found)

    # --- what is new ---

    def _find_new(self) -> tuple[int, int] | None:
        """The first messages that can be read and are new. Moves `next` there."""
        found = self.acked.first_missing(self.next, self.end)
        if found is None:
            self.next = max(self.next, self.end)
            return None
        self.next, end = found
        return self.next, min(end, self._empty.first().start) if self._empty.size else end

    def _room(self, start: int) -> int:
        """How many messages may go out from `start` on. Holes of a stored cursor may in any case: they must close."""
        under_way = self._under_way
        room = self.unacked_max - under_way
        return room if start < self.acked.end else min(room, self._acked_room(under_way, start))

    def _acked_room(self, unacked: int, start: int) -> int:
        """The same, as far as the cursor is concerned. What holds no message does not count: after a crash a gap may be
        wider than everything that may lie between a hole and what is acked."""
        if self._gaps.size:
            self._gaps.take(0, self.acked.position)
            start -= sum(gap.end - gap.start for gap in self._gaps.within(self.acked.position, start))
        return self.acked.room(unacked, start)

    def _with_failures(self, start: int, end: int) -> tuple[int, int]:
        """The front of [start, end) that failed equally often before a restart: where it ends, and how often."""
        known = self._failed.first_within(start, end)
        if known is None:
            return end, 0
        return (known.end, known.value) if known.start == start else (known.start, 0)

    def _pass(self, end: int) -> None:
        """What lies below `end` is not new any more."""
        if self._failed.size:
            self._failed.take(self.next, end)
        self.next = end
        if self._empty.size:
            self._step_over_empty()

    def _note_gap(self, start: int, end: int) -> None:
        """[start, end) holds no message: wherever it is new, delivery steps over it."""
        start = max(start, self.acked.position)
        if start >= end:
            return
        self._gaps.take(start, end)
        self._gaps.add(start, end, None)
        for low, high in list(self.acked.missing(max(start, self.next), end)):
            self._failed.take(low, high)
            self._empty.take(low, high)
            self._empty.add(low, high, None)
            self._step_over_empty()

    def _step_over_empty(self) -> None:
        while self._empty.size:
            start, end, _ = self._empty.first()
            if self.acked.first_missing(self.next, start) is not None:
                return
            self._empty.take(start, end)
            self.acked.add(start, end)
            self.next = max(self.next, end)

    # --- what becomes of messages ---

    def _expire(self, now_ms: int) -> None:
        if self.in_flight.is_due(now_ms):
            for late in self.in_flight.take_due(now_ms):
                self._fail(late.start, late.end, DeliveryFailure(late.value.attempt + 1, ACK_TIMEOUT), now_ms)
        if self.delayed.is_due(now_ms):
            for rested in self.delayed.take_due(now_ms):
                self._bring_back(rested.start, rested.end, DeliveryFailure(rested.value.attempt, rested.value.reason))

    def _fail(self, start: int, end: int, failure: DeliveryFailure, now_ms: int, asked_ms: int = 0) -> None:
        self.failures += 1
        if failure.attempt > self.policy.max_redelivery_count:
            self._give_up(start, end, failure)
        else:
            self._delay(start, end, failure, now_ms, asked_ms)

    def _delay(
        self, start: int, end: int, failure: DeliveryFailure, now_ms: int, asked_ms: int, least_ms: int = 0
    ) -> None:
        wait = RedeliveryDelay(start, end, 0, failure.attempt, failure.reason, now_ms, asked_ms, least_ms)
        wait.due_ms = self._rested_ms(wait)
        self.delayed.put(wait)

    def _rested_ms(self, wait: RedeliveryDelay) -> int:
        return wait.since_ms + max(self.policy.delay_ms(wait.attempt, wait.asked_ms), wait.least_ms)

    def _bring_back(self, start: int, end: int, failure: DeliveryFailure) -> None:
        if failure.attempt > self.policy.max_redelivery_count:
            self._give_up(start, end, failure)
        else:
            self._make_ready(start, end, failure.attempt)

    def _make_ready(self, start: int, end: int, attempt: int) -> None:
        self.ready.add(start, end, attempt)

    def _give_up(self, start: int, end: int, failure: DeliveryFailure) -> None:
        if self.policy.poison is PoisonPolicy.DEAD_LETTER:
            self.settling.add(start, end, failure)
            self._out.append(DeadLetter(start, end, failure.attempt, failure.reason))
        elif self.policy.poison is PoisonPolicy.DROP:
            self._settle(start, end)
            self._out.append(Dropped(start, end, failure.attempt, failure.reason))
        else:
            self.blocked.add(start, end, failure)

    def _settle(self, start: int, end: int) -> None:
        """[start, end), all of it below `next`, is done with, wherever it is."""
        if start >= end:
            return
        if self.in_flight.size:
            self.in_flight.take(start, end)
        if self._under_way > self.in_flight.size:
            for runs in (self.delayed, self.ready, self.settling, self.blocked):
                runs.take(start, end)
        self.acked.add(start, end)

    # --- changes ---

    def _begin_at(self, position: int) -> None:
        """Everything from `position` on is new, and nothing is known of it."""
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

    def _judge_anew(self, now_ms: int) -> None:
        """The policy has changed: it counts for what is under way, waits or is blocked too."""
        self.in_flight.retime(lambda delivery: delivery.since_ms + self.policy.ack_timeout_ms)
        self.delayed.retime(self._rested_ms)
        for run in list(self.blocked):
            self.blocked.take(run.start, run.end)
            self._fail(run.start, run.end, run.value, now_ms)
        for waiting in [run for run in self.ready if run.value > self.policy.max_redelivery_count]:
            self.ready.take(waiting.start, waiting.end)
            self._give_up(waiting.start, waiting.end, DeliveryFailure(waiting.value, FAILED_BEFORE))
