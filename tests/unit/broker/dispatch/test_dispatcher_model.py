"""Exclusive, failover and shared subscriptions against an oracle that knows each message (tests/support).

one place     every offset is where the oracle has it, and nowhere else
delivered     until it is acked: in the end, with willing consumers, everything is
order         first deliveries in order; what comes again before what is new
credit        never exceeded, and no consumer with credit waits for a message that could go out
poison        nothing goes out that failed more often than the policy allows
seek          acks of deliveries before it do not count
restart       from what was stored: repeats what was not acked by then, loses nothing
bounds        of every structure, whatever happens
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import Credit, RoundRobin
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.instruction import Instruction
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, RedeliveryBackoff, SubscriptionType
from tests.support.dispatch_oracle import DispatchOracle
from tests.support.hypothesis_effort import HALF, QUARTER

CONSUMERS = st.integers(1, 4)
END = 60
OFFSETS = st.integers(0, END)
POLICIES = st.builds(
    FailurePolicy,
    max_redelivery_count=st.sampled_from([0, 0, 1, 3]),
    ack_timeout_ms=st.sampled_from([1, 50, 1000]),
    base_delay_ms=st.sampled_from([0, 10, 100]),
    max_delay_ms=st.sampled_from([0, 10, 300]),
    backoff=st.sampled_from(RedeliveryBackoff),
    poison=st.sampled_from(PoisonPolicy),
    dead_letter_topic=st.just("/default/dead"),
)


class DispatcherModel(RuleBasedStateMachine):
    kind = SubscriptionType.SHARED
    bounds: ClassVar[pytest.MonkeyPatch]

    @initialize(
        policy=POLICIES,
        unacked_max=st.integers(1, 20),
        ranges_max=st.sampled_from([3, 5, 100]),
        span_max=st.sampled_from([9, 20, 100]),
        end=st.integers(0, 30),
        credit=st.integers(0, 20),
    )
    def begin(
        self, policy: FailurePolicy, unacked_max: int, ranges_max: int, span_max: int, end: int, credit: int
    ) -> None:
        self.bounds.setattr(limits, "ACKED_RANGES_MAX", ranges_max)
        self.bounds.setattr(limits, "ACKED_SPAN_OFFSETS_MAX", span_max)
        self.now = 0
        self.oracle = self.new_oracle(policy, unacked_max)
        self.dispatcher = self.build(AckedOffsets(), [])
        self.credits: dict[int, Credit] = {}
        self.gaps = 0  # each makes one range more than acks can
        self.flush()
        self.publish(end)
        for consumer in (1, 2):
            self.join(consumer, credit)

    def new_oracle(self, policy: FailurePolicy, unacked_max: int) -> DispatchOracle:
        return DispatchOracle(self.kind, policy, unacked_max)

    def build(self, acked: AckedOffsets, attempts: list[tuple[int, int, int]]) -> Dispatcher:
        return Dispatcher(self.kind, self.oracle.policy, acked, attempts, self.oracle.unacked_max)

    def follow(self, instructions: list[Instruction]) -> None:
        self.oracle.expire(self.now)
        self.oracle.follow(instructions, self.now)
        for consumer, credit in self.credits.items():
            assert credit.messages == self.oracle.credit[consumer] >= 0

    # --- consumers ---

    @rule(consumer=CONSUMERS, credit=st.integers(0, 8))
    def join(self, consumer: int, credit: int) -> None:
        """A consumer that is already connected joins again."""
        self.oracle.leave(consumer, self.now)
        self.oracle.credit[consumer] = credit
        self.credits[consumer] = Credit(consumer, credit)
        self.let_in(self.credits[consumer])

    def let_in(self, credit: Credit) -> None:
        self.follow(self.dispatcher.join(credit, self.now))

    @rule(consumer=CONSUMERS)
    def leave(self, consumer: int) -> None:
        self.oracle.leave(consumer, self.now)
        self.credits.pop(consumer, None)
        self.follow(self.dispatcher.leave(consumer, self.now))

    @rule(consumer=CONSUMERS, count=st.integers(1, 8), elsewhere=st.integers(0, 8))
    def give_credit(self, consumer: int, count: int, elsewhere: int) -> None:
        """A consumer gets credit; some of it is used up in other shards."""
        if consumer in self.oracle.credit:
            used = min(self.credits[consumer].messages, elsewhere)
            self.credits[consumer].messages -= used
            self.oracle.credit[consumer] += count - used
        self.follow(self.dispatcher.give_credit(consumer, count, self.now))

    @rule(data=st.data(), whole=st.booleans())
    def ack(self, data: st.DataObject, whole: bool) -> None:
        """Acks offsets in flight, or arbitrary offsets."""
        if self.oracle.held and not whole:
            offset = data.draw(st.sampled_from(sorted(self.oracle.held)))
            pairs = [(offset, offset + 1)]
        else:
            ranges = data.draw(st.lists(st.tuples(OFFSETS, st.integers(1, 6)), max_size=3))
            pairs = [(start, start + count) for start, count in ranges]
        acked = {offset for start, end in pairs for offset in range(start, end)}
        self.oracle.settle(acked & self.oracle.under_way)
        self.follow(self.dispatcher.ack(pairs, self.dispatcher.generation, self.now))

    @precondition(lambda self: self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER))
    @rule(offset=OFFSETS)
    def ack_through(self, offset: int) -> None:
        self.oracle.settle(
            {under_way_offset for under_way_offset in self.oracle.under_way if under_way_offset <= offset}
        )
        self.follow(self.dispatcher.ack_through(offset, self.dispatcher.generation, self.now))

    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, 5, 1000]))
    def nack(self, data: st.DataObject, delay_ms: int) -> None:
        if self.oracle.held:
            start = data.draw(st.sampled_from(sorted(self.oracle.held)))
            end = start + data.draw(st.integers(1, 4))
            for offset in range(start, end):
                if offset in self.oracle.held:
                    self.oracle.fail(offset, self.now, delay_ms)
            self.follow(self.dispatcher.nack([(start, end)], self.dispatcher.generation, self.now, delay_ms))

    @rule()
    def nothing_works(self) -> None:
        """Every consumer fails with all that it has."""
        for offset in list(self.oracle.held):
            self.oracle.fail(offset, self.now)
        self.follow(self.dispatcher.nack([(0, END)], self.dispatcher.generation, self.now))

    @rule(start=OFFSETS, count=st.integers(1, 60), other=st.sampled_from([-1, 1]))
    def answers_of_another_generation_do_not_count(self, start: int, count: int, other: int) -> None:
        generation = self.dispatcher.generation + other
        self.follow(self.dispatcher.ack([(start, start + count)], generation, self.now))
        self.follow(self.dispatcher.nack([(start, start + count)], generation, self.now))

    # --- the log, the clock, the dead letters ---

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        self.oracle.end = min(self.oracle.end + count, END)
        self.follow(self.dispatcher.readable(self.oracle.end, self.now))

    @rule(start=OFFSETS, count=st.integers(1, 5))
    def skip(self, start: int, count: int) -> None:
        """Skips a gap, also one that cannot be read yet: the log knows its gaps before its readers do."""
        self.gaps += 1
        self.oracle.skip(start, start + count)
        self.follow(self.dispatcher.skip(start, start + count, self.now))

    @rule(step_ms=st.sampled_from([1, 10, 100, 2000]))
    def time_passes(self, step_ms: int) -> None:
        self.now += step_ms
        self.follow(self.dispatcher.tick(self.now))

    @precondition(lambda self: self.dispatcher.wake_ms is not None)
    @rule()
    def wake_up(self) -> None:
        assert self.dispatcher.wake_ms is not None
        self.now = max(self.now, self.dispatcher.wake_ms)
        self.follow(self.dispatcher.tick(self.now))

    @precondition(lambda self: self.oracle.settling)
    @rule(data=st.data(), count=st.integers(1, 4), is_stored=st.booleans())
    def dead_letter(self, data: st.DataObject, count: int, is_stored: bool) -> None:
        start = data.draw(st.sampled_from(sorted(self.oracle.settling)))
        offsets = set(range(start, start + count)) & self.oracle.settling
        if is_stored:
            self.oracle.settle(offsets)
            self.follow(self.dispatcher.settled(start, start + count, self.now))
        else:
            for offset in offsets:
                self.oracle.not_settled(offset, self.now)
            self.follow(self.dispatcher.not_settled(start, start + count, self.now))

    # --- changes ---

    @rule(policy=POLICIES)
    def set_policy(self, policy: FailurePolicy) -> None:
        self.oracle.set_policy(policy, self.now)
        self.follow(self.dispatcher.set_policy(policy, self.now))

    @rule(position=st.integers(-5, 70))
    def seek(self, position: int) -> None:
        generation = self.dispatcher.generation
        self.oracle.seek(position)
        self.follow(self.dispatcher.seek(position, self.now))
        assert self.dispatcher.generation == generation + 1
        self.gaps = 0
        self.flush()

    @rule()
    def flush(self) -> None:
        """The cursor is stored."""
        acked = self.dispatcher.acked
        self.stored = acked.position, acked.ranges, self.dispatcher.attempts

    @rule()
    def restart(self) -> None:
        """Everything since the last flush is forgotten, and the consumers are gone."""
        position, ranges, attempts = self.stored
        oracle = self.oracle
        oracle.end = max(oracle.end, position)  # a gap at the end of the log
        oracle.seek(position)
        oracle.acked = {*range(position), *(offset for start, end in ranges for offset in range(start, end))}
        oracle.failures = {offset: count for start, end, count in attempts for offset in range(start, end)}
        oracle.credit.clear()
        self.credits.clear()
        self.dispatcher = self.build(AckedOffsets(position, ranges), attempts)
        self.follow(self.dispatcher.readable(oracle.end, self.now))

    # --- what always holds ---

    @invariant()
    def everything_is_in_its_place(self) -> None:
        self.oracle.check_nothing_is_left_undone()
        self.oracle.check_same_as(self.dispatcher)
        assert self.dispatcher.pause == self.oracle.pause
        self.check_wake_ms()

    def check_wake_ms(self) -> None:
        assert self.dispatcher.wake_ms == self.oracle.wake_ms
        assert self.dispatcher.wake_ms is None or self.dispatcher.wake_ms > self.now, "it would wake up without end"

    @invariant()
    def everything_is_bounded(self) -> None:
        dispatcher, bound = self.dispatcher, self.bound
        assert len(dispatcher.acked) <= limits.ACKED_RANGES_MAX + self.gaps
        assert self.gaps or dispatcher.acked.end - dispatcher.acked.position <= limits.ACKED_SPAN_OFFSETS_MAX
        assert dispatcher.unacked <= bound
        for runs in (
            dispatcher.in_flight,
            dispatcher.delayed,
            dispatcher.ready,
            dispatcher.settling,
            dispatcher.blocked,
        ):
            assert len(runs) <= bound
        for timed in (dispatcher.in_flight, dispatcher.delayed):
            assert len(timed._heap) <= 2 * bound + 64
        for consumer in self.credits:
            member = dispatcher.consumers.get(consumer)
            assert member is not None
            assert len(member.deliveries) <= 2 * bound + 17
            assert len(member.credit._waiting) <= 1
        if isinstance(dispatcher.consumers, RoundRobin):
            assert len(dispatcher.consumers.queue) <= len(self.credits)

    @invariant()
    def what_waits_alike_is_one_run(self) -> None:
        """However often it was looked at."""
        for runs in (self.dispatcher.ready, self.dispatcher.settling, self.dispatcher.blocked):
            ordered = list(runs)
            assert all(left.end < right.start or left.value != right.value for left, right in pairwise(ordered))

    @property
    def bound(self) -> int:
        return self.oracle.unacked_max

    def join_willing(self) -> None:
        self.join(9, 0)

    def look_ahead(self) -> None:
        """For keys."""

    def teardown(self) -> None:
        """Willing consumers and dead letters that can be stored: everything is acked in the end."""
        if not hasattr(self, "oracle"):
            return
        self.set_policy(FailurePolicy(max_redelivery_count=10**6, ack_timeout_ms=10**6, max_delay_ms=10))
        self.join_willing()
        for _ in range(1000):
            if self.oracle.position >= self.oracle.end:
                break
            for consumer in self.credits:
                self.give_credit(consumer, 8, 0)
            self.look_ahead()
            for offset in list(self.oracle.held):
                self.oracle.settle({offset})
                self.follow(self.dispatcher.ack([(offset, offset + 1)], self.dispatcher.generation, self.now))
            for offset in list(self.oracle.settling):
                self.oracle.settle({offset})
                self.follow(self.dispatcher.settled(offset, offset + 1, self.now))
            self.time_passes(10)
            self.everything_is_in_its_place()
        assert self.dispatcher.acked.position >= self.oracle.end


class Exclusive(DispatcherModel):
    kind = SubscriptionType.EXCLUSIVE


class Failover(DispatcherModel):
    kind = SubscriptionType.FAILOVER


@pytest.mark.parametrize(("model", "effort"), [(DispatcherModel, settings()), (Exclusive, QUARTER), (Failover, HALF)])
def test_any_history_of_deliveries_acks_failures_seeks_and_restarts(
    model: type[DispatcherModel], effort: settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.bounds = monkeypatch
    monkeypatch.setattr(limits, "SHARED_TURN_MAX", 3)
    monkeypatch.setattr(limits, "DEAD_LETTER_RETRY_MS_MIN", 20)
    run_state_machine_as_test(model, settings=settings(effort, stateful_step_count=50))
    assert limits.SHARED_TURN_MAX == 3
