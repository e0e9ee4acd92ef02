"""Non-reliable dispatch against a simple oracle (hazard 45).

once       every message that can be read is delivered or skipped, exactly once, in order
skipped    only when no consumer that could get it had credit; never because of a rate
history    what was there before the start or the seek waits while no consumer has credit
cursor     follows: nothing is in flight, nothing comes again, whatever is acked or nacked
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from icestream.broker.dispatch.best_effort import BestEffortDispatcher, KeySharedBestEffortDispatcher
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.hash_ring import KeyFilter, ring_point
from icestream.broker.dispatch.instruction import Deliver, Dropped, Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.broker.rate_limit import TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, SubscriptionType

KEYS = [b"a", b"b", b"ab", b"c"]
FILTERS = {1: (), 2: ("a*",), 3: ("b",)}


def key_of(offset: int) -> bytes:
    return KEYS[offset * 7 // 3 % len(KEYS)]


class BestEffortModel(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from(SubscriptionType), rate=st.sampled_from([0, 0, 10, 1000]), position=st.integers(0, 5),
        kept_below=st.integers(0, 15),
    )  # fmt: skip
    def begin(self, kind: SubscriptionType, rate: int, position: int, kept_below: int) -> None:
        self.kept_below = kept_below
        self.kind, self.rate = kind, rate
        self.now, self.end, self.next = 0, position, position
        self.empty: set[int] = set()
        self.credits: dict[int, Credit] = {}
        self.left: dict[int, int] = {}  # credit, by the oracle's count
        self.passed: list[int] = []  # when each delivery was
        if kind is SubscriptionType.KEY_SHARED:
            self.dispatcher: Dispatcher = KeySharedBestEffortDispatcher(
                AckedOffsets(position), 7, TokenBucket(rate), kept_below=kept_below
            )
        else:
            self.dispatcher = BestEffortDispatcher(
                kind, AckedOffsets(position), TokenBucket(rate), kept_below=kept_below
            )

    def follow(self, instructions: list[Instruction]) -> None:
        self.judge(instructions)
        while isinstance(self.dispatcher, KeySharedDispatcher):
            start, end = self.dispatcher.needed_keys
            if start >= end:
                break
            assert end <= self.end
            self.judge(self.dispatcher.add_keys(start, [key_of(offset) for offset in range(start, end)], self.now))
            has_gone_on = self.dispatcher.next > start
            assert has_gone_on or self.dispatcher.wake_ms is not None or self.is_kept(self.next)

    def judge(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            for offset in range(instruction.start, instruction.end):
                self.step_over()
                assert offset == self.next, "in order, and each once"
                self.next += 1
                takers = self.takers(offset)
                match instruction:
                    case Deliver(consumer, _, _, attempt):
                        assert attempt == 0
                        assert consumer in takers
                        self.left[consumer] -= 1
                        self.passed.append(self.now)
                    case Dropped():
                        assert not takers, f"{offset} was skipped although {takers} had room"
                        assert not self.is_kept(offset), f"{offset} was there before"
        self.step_over()

    def is_kept(self, offset: int) -> bool:
        able = list(self.left.values())
        if self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            able = able[:1]
        return offset < self.kept_below and not any(able)

    def step_over(self) -> None:
        while self.next in self.empty:
            self.next += 1

    def takers(self, offset: int) -> list[int]:
        able = list(self.left)
        if self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            able = able[:1]
        elif self.kind is SubscriptionType.KEY_SHARED:
            assert isinstance(self.dispatcher, KeySharedDispatcher)
            owner = self.dispatcher.ring.owner(key_of(offset), ring_point(key_of(offset)))
            able = [owner.consumer_id] if owner is not None else []
        return [consumer for consumer in able if self.left[consumer] > 0]

    @rule(consumer=st.sampled_from(sorted(FILTERS)), credit=st.integers(0, 30))
    def join(self, consumer: int, credit: int) -> None:
        self.left.pop(consumer, None)
        self.left[consumer] = credit
        self.credits[consumer] = Credit(consumer, credit)
        if isinstance(self.dispatcher, KeySharedDispatcher):
            keys = KeyFilter(FILTERS[consumer])
            self.follow(self.dispatcher.join_with(self.credits[consumer], keys, self.now))
        else:
            self.follow(self.dispatcher.join(self.credits[consumer], self.now))

    @rule(consumer=st.sampled_from(sorted(FILTERS)))
    def leave(self, consumer: int) -> None:
        self.left.pop(consumer, None)
        self.credits.pop(consumer, None)
        self.follow(self.dispatcher.leave(consumer, self.now))

    @rule(consumer=st.sampled_from(sorted(FILTERS)), count=st.integers(1, 20))
    def give_credit(self, consumer: int, count: int) -> None:
        if consumer in self.left:
            self.left[consumer] += count
        self.follow(self.dispatcher.give_credit(consumer, count, self.now))

    @rule(count=st.integers(1, 20))
    def publish(self, count: int) -> None:
        self.end += count
        self.follow(self.dispatcher.readable(self.end, self.now))

    @rule(ahead=st.integers(-10, 10), count=st.integers(1, 5))
    def skip(self, ahead: int, count: int) -> None:
        start = max(0, self.next + ahead)
        self.empty |= set(range(max(start, self.next), start + count))
        self.follow(self.dispatcher.skip(start, start + count, self.now))

    @rule(start=st.integers(0, 50), count=st.integers(1, 20))
    def answers_mean_nothing(self, start: int, count: int) -> None:
        ranges, generation = [(start, start + count)], self.dispatcher.generation
        self.follow(self.dispatcher.ack(ranges, generation, self.now))
        self.follow(self.dispatcher.nack(ranges, generation, self.now))
        self.follow(self.dispatcher.settled(start, start + count, self.now))
        self.follow(self.dispatcher.not_settled(start, start + count, self.now))
        self.follow(self.dispatcher.set_policy(FailurePolicy(max_redelivery_count=0), self.now))

    @rule(step_ms=st.sampled_from([1, 10, 100, 5000]))
    def time_passes(self, step_ms: int) -> None:
        self.now += step_ms
        self.follow(self.dispatcher.tick(self.now))

    @rule(position=st.integers(0, 60))
    def seek(self, position: int) -> None:
        self.next = min(position, self.dispatcher.end)
        self.kept_below = self.dispatcher.end
        self.empty.clear()
        self.follow(self.dispatcher.seek(position, self.now))

    @invariant()
    def the_cursor_follows(self) -> None:
        dispatcher = self.dispatcher
        assert dispatcher.acked.position == dispatcher.next == max(self.next, dispatcher.next)
        assert dispatcher.acked.ranges == []
        assert dispatcher.attempts == []
        assert dispatcher.unacked == 0
        assert {consumer: credit.messages for consumer, credit in self.credits.items()} == self.left

    @invariant()
    def nothing_is_left_but_for_a_rate_and_history(self) -> None:
        self.step_over()
        is_done = self.next >= self.end or self.is_kept(self.next)
        assert is_done or self.rate
        assert is_done or self.dispatcher.wake_ms is not None
        assert self.dispatcher.wake_ms is None or self.dispatcher.wake_ms > self.now

    @invariant()
    def the_rate_holds(self) -> None:
        if self.rate:
            recent = [when for when in self.passed if when > self.now - 1000]
            assert len(recent) <= self.rate + 2 * max(1, self.rate // 10)


def test_any_history_of_non_reliable_delivery() -> None:
    run_state_machine_as_test(BestEffortModel, settings=settings(stateful_step_count=40))
    assert BestEffortModel.TestCase is not None
