"""The rules of a dispatcher, one by one. tests/transcripts tells them as stories, the models try them all together."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Dispatcher, Pause
from icestream.broker.dispatch.instruction import DeadLetter, Deliver, Dropped, Instruction
from icestream.broker.rate_limit import TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType

EXCLUSIVE, SHARED, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.FAILOVER


def dispatcher_of(kind: SubscriptionType = SHARED, end: int = 0, **policy: int | PoisonPolicy | str) -> Dispatcher:
    dispatcher = Dispatcher(kind, FailurePolicy(**policy), AckedOffsets())  # type: ignore[arg-type]
    dispatcher.readable(end, 0)
    return dispatcher


def sent(instructions: list[Instruction]) -> list[tuple[int, int, int]]:
    assert all(isinstance(instruction, Deliver) for instruction in instructions)
    return [
        (instruction.consumer, instruction.start, instruction.end)
        for instruction in instructions
        if isinstance(instruction, Deliver)
    ]


# --- turns ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 400))
def test_a_backlog_is_shared_in_equal_parts(consumers: int, count: int) -> None:
    dispatcher = dispatcher_of(end=count)
    dispatcher.join(Credit(0), 0)
    for number in range(1, consumers):
        dispatcher.join(Credit(number), 0)
    rows_by_consumer: Counter[int] = Counter()
    for _ in range(count):
        for number in range(consumers):
            for consumer, start, end in sent(dispatcher.give_credit(number, 1, 0)):
                rows_by_consumer[consumer] += end - start
    assert sum(rows_by_consumer.values()) == count
    assert max(rows_by_consumer.values()) - min(rows_by_consumer[number] for number in range(consumers)) <= 1


@given(st.integers(1, 12), st.integers(1, 400))
def test_a_burst_is_split_evenly(consumers: int, count: int) -> None:
    dispatcher = dispatcher_of()
    for number in range(consumers):
        dispatcher.join(Credit(number, 1_000), 0)
    rows_by_consumer: Counter[int] = Counter()
    for consumer, start, end in sent(dispatcher.readable(count, 0)):
        rows_by_consumer[consumer] += end - start
    turn = max(1, min(limits.SHARED_TURN_MAX, count // consumers))
    assert max(rows_by_consumer.values()) - min(rows_by_consumer[number] for number in range(consumers)) <= turn


def test_a_consumer_with_credit_is_served_whatever_the_others_do() -> None:
    """A hundred consumers without credit do not affect the others."""
    dispatcher = dispatcher_of()
    for number in range(100):
        dispatcher.join(Credit(number), 0)
    dispatcher.join(Credit(100, 1_000), 0)
    for end in range(1, 500):
        assert sent(dispatcher.readable(end, 0)) == [(100, end - 1, end)]


def test_a_credit_counts_in_all_shards_together() -> None:
    credit, shards = Credit(1, 3), [dispatcher_of(end=2), dispatcher_of(end=2)]
    assert [sent(shard.join(credit, 0)) for shard in shards] == [[(1, 0, 2)], [(1, 0, 1)]]
    assert credit.messages == 0
    credit.messages += 5
    assert sent(shards[1].tick(0)) == [(1, 1, 2)]
    assert credit.messages == 4


def test_negative_credit_is_ignored() -> None:
    dispatcher, credit = dispatcher_of(end=3), Credit(1)
    dispatcher.join(credit, 0)
    assert dispatcher.give_credit(1, -5, 0) == []
    assert credit.messages == 0
    assert sent(dispatcher.give_credit(1, 1, 0)) == [(1, 0, 1)]


def test_credit_of_a_departed_consumer_is_ignored() -> None:
    assert dispatcher_of(end=3).give_credit(7, 5, 0) == []


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_consumers_are_promoted_in_order_of_arrival(kind: SubscriptionType) -> None:
    dispatcher = dispatcher_of(kind)
    for number in (5, 3, 9):
        dispatcher.join(Credit(number, 10), 0)
    promoted = [sent(dispatcher.readable(1, 0))]
    promoted += [sent(dispatcher.leave(number, 0)) for number in (5, 3)]
    assert promoted == [[(5, 0, 1)], [(3, 0, 1)], [(9, 0, 1)]]


def test_a_returning_consumer_gets_its_deliveries_again() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=4)
    assert sent(dispatcher.join(Credit(1, 2), 0)) == [(1, 0, 2)]
    assert sent(dispatcher.join(Credit(1, 3), 0)) == [(1, 0, 2), (1, 2, 3)]
    assert len(dispatcher.consumers) == 1


# --- acks -------------------------------------------------------------------------------------------------------------


def test_undelivered_messages_cannot_be_acked() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=10)
    dispatcher.join(Credit(1, 2), 0)
    dispatcher.ack([(-5, 2**62)], 0, 0)
    assert (dispatcher.acked.position, dispatcher.acked.ranges) == (2, [])
    dispatcher.ack_through(2**62, 0, 0)
    assert dispatcher.acked.position == 2


@pytest.mark.parametrize("kind", [SHARED, SubscriptionType.KEY_SHARED])
def test_cumulative_acks_are_for_one_consumer_at_a_time(kind: SubscriptionType) -> None:
    dispatcher = dispatcher_of(kind, end=3)
    dispatcher.join(Credit(1, 3), 0)
    with pytest.raises(errors.InvalidInput, match="cumulative"):
        dispatcher.ack_through(2, 0, 0)
    assert dispatcher.acked.position == 0


def test_a_backlog_of_any_size_is_delivered() -> None:
    dispatcher, credit = dispatcher_of(EXCLUSIVE, end=10**12), Credit(1, 1_000)
    todo = sent(dispatcher.join(credit, 0))
    for _ in range(50):
        (consumer, start, end) = todo[0]
        assert (consumer, end - start) == (1, 1_000)
        credit.messages += 1_000
        todo = sent(dispatcher.ack([(start, end)], 0, 0))
    assert dispatcher.acked.position == 50_000


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_nack_may_name_its_consumer() -> None:
    dispatcher = dispatcher_of(end=2)
    dispatcher.join(Credit(1, 1), 0)
    dispatcher.join(Credit(2, 1), 0)
    dispatcher.nack([(0, 2)], 0, 0, consumer_id=1)
    assert [(run.start, run.end) for run in dispatcher.in_flight] == [(1, 2)]
    assert dispatcher.attempts == [(0, 1, 1)]


def test_redelivered_messages_are_all_taken_back_from_a_departed_consumer() -> None:
    """The redelivered ranges lie inside a range of an older delivery."""
    dispatcher = dispatcher_of(end=10, base_delay_ms=0)
    dispatcher.join(Credit(1, 10), 0)
    dispatcher.join(Credit(2, 2), 0)
    dispatcher.nack([(3, 5)], 0, 0)
    assert [run.value.consumer for run in dispatcher.in_flight.within(0, 10)] == [1, 2, 2, 1]
    assert dispatcher.leave(2, 0) == []
    assert [(run.start, run.end) for run in dispatcher.ready] == [(3, 5)]
    assert dispatcher.in_flight.size == 8


def test_a_departing_consumer_is_not_a_failure() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=1, max_redelivery_count=0)
    for _ in range(20):
        assert sent(dispatcher.join(Credit(1, 1), 0)) == [(1, 0, 1)]
        assert dispatcher.leave(1, 0) == []
    assert dispatcher.attempts == []


def test_without_a_delay_redelivery_is_immediate_and_once_per_credit() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=1, base_delay_ms=0, max_redelivery_count=100)
    dispatcher.join(Credit(1, 3), 0)
    assert dispatcher.nack([(0, 1)], 0, 0) == [Deliver(1, 0, 1, 1)]
    assert dispatcher.nack([(0, 1)], 0, 0) == [Deliver(1, 0, 1, 2)]
    assert dispatcher.nack([(0, 1)], 0, 0) == []
    assert dispatcher.attempts == [(0, 1, 3)]


def test_a_dead_letter_that_cannot_be_stored_is_retried_with_pauses() -> None:
    policy = {"max_redelivery_count": 0, "max_delay_ms": 0, "base_delay_ms": 0}
    dispatcher = dispatcher_of(
        EXCLUSIVE, end=1, **policy, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead"
    )
    dispatcher.join(Credit(1, 9), 0)
    assert dispatcher.nack([(0, 1)], 0, 0) == [DeadLetter(0, 1, 1, "nack")]
    assert dispatcher.not_settled(0, 1, 0) == []
    assert dispatcher.wake_ms == limits.DEAD_LETTER_RETRY_MS_MIN
    assert dispatcher.tick(limits.DEAD_LETTER_RETRY_MS_MIN) == [DeadLetter(0, 1, 1, "nack")]


def test_only_stored_dead_letters_are_settled() -> None:
    """A report that names offsets which were no dead letters acks no message in flight."""
    dispatcher = dispatcher_of(
        EXCLUSIVE, end=5, max_redelivery_count=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead"
    )
    dispatcher.join(Credit(1, 3), 0)
    dispatcher.nack([(1, 2)], 0, 0)
    dispatcher.settled(0, 5, 0)
    assert (dispatcher.acked.position, dispatcher.acked.ranges) == (0, [(1, 2)])
    assert dispatcher.unacked == 2


def test_a_stricter_policy_dead_letters_returned_messages() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=1, base_delay_ms=0)
    dispatcher.join(Credit(1, 2), 0)
    dispatcher.nack([(0, 1)], 0, 0)
    assert dispatcher.set_policy(FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DROP), 0) == []
    assert dispatcher.leave(1, 0) == [Dropped(0, 1, 1, "failed too often before")]
    assert dispatcher.acked.position == 1


def test_stored_failures_that_overlap_do_no_harm() -> None:
    """A cursor that was written by another version, or by hand."""
    attempts = [(0, 10, 1), (5, 7, 2), (3, 6, 3), (100, 200, 1)]
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(1, [(4, 5)]), attempts)
    assert dispatcher.attempts == [(1, 3, 1), (3, 4, 3), (5, 6, 3), (6, 7, 2), (7, 10, 1), (100, 200, 1)]


def test_failures_far_ahead_do_not_affect_current_deliveries() -> None:
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), [(500, 501, 2)])
    dispatcher.join(Credit(1, 10), 0)
    assert dispatcher.readable(1_000, 0) == [Deliver(1, 0, 10, 0)]
    assert dispatcher.give_credit(1, 490, 0) == [Deliver(1, 10, 500, 0)]
    assert dispatcher.give_credit(1, 2, 0) == [Deliver(1, 500, 501, 2), Deliver(1, 501, 502, 0)]


# --- bounds and rate --------------------------------------------------------------------------------------------------


def test_unacked_messages_are_bounded() -> None:
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), unacked_max=10)
    dispatcher.join(Credit(1, 100), 0)
    assert sent(dispatcher.readable(50, 0)) == [(1, 0, 10)]
    assert dispatcher.pause is Pause.UNACKED_FULL
    assert sent(dispatcher.ack([(3, 5)], 0, 0)) == [(1, 10, 12)]


def test_shards_of_a_subscription_share_its_rate() -> None:
    bucket = TokenBucket(100)
    shards = [Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), rate=bucket) for _ in range(3)]
    rows_by_consumer = [0, 0, 0]
    for shard in shards:
        shard.readable(10_000, 0)
        shard.join(Credit(1, 10_000), 0)
    for now in range(0, 10_000, 7):
        for number, shard in enumerate(shards):
            rows_by_consumer[number] += sum(end - start for _, start, end in sent(shard.tick(now)))
    assert 980 <= sum(rows_by_consumer) <= 1_020
    assert min(rows_by_consumer) > 300


def test_the_rate_wakes_only_dispatchers_with_messages() -> None:
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), rate=TokenBucket(10))
    dispatcher.join(Credit(1, 2), 0)
    dispatcher.readable(3, 0)
    assert dispatcher.pause is Pause.RATE_REACHED
    assert dispatcher.wake_ms == 100
    dispatcher.tick(100)
    assert dispatcher.pause is None, "it has no credit: nothing waits for the rate"
    dispatcher.ack([(0, 2)], 0, 100)
    assert dispatcher.wake_ms is None


def test_a_dispatcher_starts_with_the_given_generation() -> None:
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), generation=7)
    dispatcher.join(Credit(1, 5), 0)
    dispatcher.readable(3, 0)
    dispatcher.ack([(0, 3)], 0, 0)
    assert dispatcher.acked.position == 0
    dispatcher.ack([(0, 3)], 7, 0)
    assert dispatcher.acked.position == 3


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_gaps_far_ahead_are_not_stored_as_ranges() -> None:
    """A log with many gaps, skipped when the subscription starts, neither fills the cursor nor stops it."""
    dispatcher = dispatcher_of(EXCLUSIVE)
    for start in range(100, 2_000_000, 400):
        dispatcher.skip(start, start + 200, 0)
    assert dispatcher.acked.ranges == []
    dispatcher.readable(2_000_000, 0)
    assert sent(dispatcher.join(Credit(1, 250), 0)) == [(1, 0, 100), (1, 300, 450)]
    assert dispatcher.acked.ranges == [(100, 300)]


def test_a_gap_at_the_position_moves_it() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE)
    dispatcher.skip(0, 10, 0)
    assert (dispatcher.acked.position, dispatcher.next) == (10, 10)
    dispatcher.skip(5, 20, 0)
    assert dispatcher.acked.position == 20


def test_gaps_that_touch_and_overlap_are_one() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=30)
    for start, end in ((5, 10), (8, 12), (12, 20), (6, 7)):
        dispatcher.skip(start, end, 0)
    assert sent(dispatcher.join(Credit(1, 100), 0)) == [(1, 0, 5), (1, 20, 30)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_gap_wider_than_the_ack_span_blocks_nothing(restarts: bool) -> None:
    """A gap holds no message: the messages behind it are delivered as if it were not there."""
    dispatcher, wide = dispatcher_of(EXCLUSIVE), 3 * limits.ACKED_SPAN_OFFSETS_MAX
    dispatcher.skip(10, wide, 0)
    dispatcher.readable(wide + 10, 0)
    dispatcher.join(Credit(1, 10**9), 0)
    dispatcher.ack([(5, 10), (wide, wide + 5)], 0, 0)
    if restarts:
        dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(0, dispatcher.acked.ranges))
        dispatcher.skip(10, wide, 0)
        dispatcher.readable(wide + 10, 0)
        assert sent(dispatcher.join(Credit(1, 10**9), 0)) == [(1, 0, 5), (1, wide + 5, wide + 10)]
    dispatcher.ack([(wide + 5, wide + 10)], 0, 0)
    out = dispatcher.readable(2 * wide, 0)
    while out:
        out = dispatcher.ack([(effect.start, effect.end) for effect in out], 0, 0)
    assert dispatcher.next == wide + limits.ACKED_SPAN_OFFSETS_MAX - 10
    assert dispatcher.pause is Pause.ACKED_FULL


# --- the window that consumers share ----------------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [1, 3])
def test_consumers_that_never_ack_leave_capacity_for_others(greedy: int) -> None:
    dispatcher = dispatcher_of(SHARED, end=200_000, ack_timeout_ms=limits.FAILURE_POLICY_VALUE_MAX)
    out = [effect for number in range(greedy) for effect in dispatcher.join(Credit(number, 10**6), 0)]
    out += dispatcher.join(Credit(99, 10**6), 0)
    rows_by_consumer = Counter[int]()
    while out:
        fresh: list[Instruction] = []
        for effect in out:
            assert isinstance(effect, Deliver)
            if effect.consumer == 99:
                fresh += dispatcher.ack([(effect.start, effect.end)], 0, 0)
            else:
                rows_by_consumer[effect.consumer] += effect.end - effect.start
        out = fresh
    assert dispatcher.next == 200_000, f"the consumer that acks waits for those that do not: {rows_by_consumer}"
    members = [dispatcher.consumers.get(number) for number in range(greedy)]
    assert [member.unacked for member in members if member is not None] == [
        rows_by_consumer[number] for number in range(greedy)
    ]


@pytest.mark.parametrize("window", [1, 2, 9, 90, 1_000])
def test_a_consumer_that_takes_everything_leaves_a_ninth_for_later_ones(window: int) -> None:
    dispatcher = Dispatcher(SHARED, FailurePolicy(), AckedOffsets(), unacked_max=window)
    dispatcher.readable(10_000, 0)
    dispatcher.join(Credit(1, 10_000), 0)
    first = dispatcher.consumers.get(1)
    assert first is not None
    assert first.unacked == dispatcher.unacked == -(-8 * window // 9)
    assert dispatcher.pause is Pause.UNACKED_FULL
    dispatcher.join(Credit(2, 10_000), 0)
    second = dispatcher.consumers.get(2)
    assert second is not None
    assert second.unacked > 0 or window < 9
    dispatcher.leave(1, 0)
    assert (first.unacked, second.unacked) == (0, dispatcher.unacked), "what it had goes to the other, all of it"


def test_redeliveries_prefer_consumers_with_few_unacked_messages() -> None:
    dispatcher = Dispatcher(SHARED, FailurePolicy(base_delay_ms=0, max_delay_ms=0), AckedOffsets(), unacked_max=10)
    dispatcher.readable(100, 0)
    dispatcher.join(Credit(1, 100), 0)
    dispatcher.join(Credit(2, 0), 0)
    assert sent(dispatcher.nack([(3, 4)], 0, 0)) == [(1, 3, 4)], "the other has no credit"
    assert sent(dispatcher.give_credit(2, 2, 0)) == [(2, 9, 10)]
    assert sent(dispatcher.nack([(4, 5)], 0, 0)) == [(2, 4, 5)]


# --- a consumer that gives no credit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED])
def test_unacked_messages_of_one_consumer_are_bounded(kind: SubscriptionType) -> None:
    dispatcher = dispatcher_of(kind, end=100, base_delay_ms=0)
    credit = Credit(1, 1000)
    credit.unacked_max = 5
    assert sum(end - start for _, start, end in sent(dispatcher.join(credit, 0))) == 5
    assert sent(dispatcher.ack([(1, 3)], 0, 0)) == [(1, 5, 7)]
    credit.unacked_max = 7
    assert sent(dispatcher.tick(0)) == [(1, 7, 9)]
    credit.unacked_max = 2
    assert sent(dispatcher.ack([(0, 1)], 0, 0)) == []
    dispatcher.nack([(3, 9)], 0, 0)
    assert sum(end - start for _, start, end in sent(dispatcher.tick(1))) <= 2
