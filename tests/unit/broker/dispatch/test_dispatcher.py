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
from icestream.model.subscription import FailurePolicy, PoisonPolicy, SubscriptionType

EXCLUSIVE, SHARED, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.FAILOVER


def dispatcher_of(kind: SubscriptionType = SHARED, end: int = 0, **policy: int | PoisonPolicy | str) -> Dispatcher:
    found = Dispatcher(kind, FailurePolicy(**policy), AckedOffsets())  # type: ignore[arg-type]
    found.readable(end, 0)
    return found


def sent(instructions: list[Instruction]) -> list[tuple[int, int, int]]:
    assert all(isinstance(one, Deliver) for one in instructions)
    return [(one.consumer, one.start, one.end) for one in instructions if isinstance(one, Deliver)]


# --- turns ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 400))
def test_a_backlog_is_shared_in_equal_parts(consumers: int, count: int) -> None:
    dispatcher = dispatcher_of(end=count)
    dispatcher.join(Credit(0), 0)
    for number in range(1, consumers):
        dispatcher.join(Credit(number), 0)
    got: Counter[int] = Counter()
    for _ in range(count):
        for number in range(consumers):
            for consumer, start, end in sent(dispatcher.give_credit(number, 1, 0)):
                got[consumer] += end - start
    assert sum(got.values()) == count
    assert max(got.values()) - min(got[number] for number in range(consumers)) <= 1


@given(st.integers(1, 12), st.integers(1, 400))
def test_what_comes_at_once_is_shared_in_equal_stretches(consumers: int, count: int) -> None:
    dispatcher = dispatcher_of()
    for number in range(consumers):
        dispatcher.join(Credit(number, 1_000), 0)
    got: Counter[int] = Counter()
    for consumer, start, end in sent(dispatcher.readable(count, 0)):
        got[consumer] += end - start
    turn = max(1, min(limits.SHARED_TURN_MAX, count // consumers))
    assert max(got.values()) - min(got[number] for number in range(consumers)) <= turn


def test_one_with_credit_is_served_whatever_the_others_do() -> None:
    """A hundred consumers that take nothing disturb nobody."""
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


def test_credit_below_0_is_none() -> None:
    dispatcher, credit = dispatcher_of(end=3), Credit(1)
    dispatcher.join(credit, 0)
    assert dispatcher.give_credit(1, -5, 0) == []
    assert credit.messages == 0
    assert sent(dispatcher.give_credit(1, 1, 0)) == [(1, 0, 1)]


def test_credit_for_one_that_is_gone_is_nothing() -> None:
    assert dispatcher_of(end=3).give_credit(7, 5, 0) == []


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_the_first_to_come_keeps_its_place(kind: SubscriptionType) -> None:
    dispatcher = dispatcher_of(kind)
    for number in (5, 3, 9):
        dispatcher.join(Credit(number, 10), 0)
    promoted = [sent(dispatcher.readable(1, 0))]
    promoted += [sent(dispatcher.leave(number, 0)) for number in (5, 3)]
    assert promoted == [[(5, 0, 1)], [(3, 0, 1)], [(9, 0, 1)]]


def test_one_that_comes_again_gets_what_it_had() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=4)
    assert sent(dispatcher.join(Credit(1, 2), 0)) == [(1, 0, 2)]
    assert sent(dispatcher.join(Credit(1, 3), 0)) == [(1, 0, 2), (1, 2, 3)]
    assert len(dispatcher.consumers) == 1


# --- acks -------------------------------------------------------------------------------------------------------------


def test_what_was_not_delivered_cannot_be_acked() -> None:
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


def test_a_nack_may_name_who_gives_back() -> None:
    dispatcher = dispatcher_of(end=2)
    dispatcher.join(Credit(1, 1), 0)
    dispatcher.join(Credit(2, 1), 0)
    dispatcher.nack([(0, 2)], 0, 0, consumer_id=1)
    assert [(run.start, run.end) for run in dispatcher.in_flight] == [(1, 2)]
    assert dispatcher.attempts == [(0, 1, 1)]


def test_what_a_consumer_got_from_another_is_all_taken_back() -> None:
    """Its deliveries lie inside of an older one's."""
    dispatcher = dispatcher_of(end=10, base_delay_ms=0)
    dispatcher.join(Credit(1, 10), 0)
    dispatcher.join(Credit(2, 2), 0)
    dispatcher.nack([(3, 5)], 0, 0)
    assert [run.value.consumer for run in dispatcher.in_flight.within(0, 10)] == [1, 2, 2, 1]
    assert dispatcher.leave(2, 0) == []
    assert [(run.start, run.end) for run in dispatcher.ready] == [(3, 5)]
    assert dispatcher.in_flight.size == 8


def test_a_consumer_that_leaves_is_no_failure() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=1, max_redelivery_count=0)
    for _ in range(20):
        assert sent(dispatcher.join(Credit(1, 1), 0)) == [(1, 0, 1)]
        assert dispatcher.leave(1, 0) == []
    assert dispatcher.attempts == []


def test_without_a_delay_it_comes_again_at_once_and_only_once_for_each_credit() -> None:
    dispatcher = dispatcher_of(EXCLUSIVE, end=1, base_delay_ms=0, max_redelivery_count=100)
    dispatcher.join(Credit(1, 3), 0)
    assert dispatcher.nack([(0, 1)], 0, 0) == [Deliver(1, 0, 1, 1)]
    assert dispatcher.nack([(0, 1)], 0, 0) == [Deliver(1, 0, 1, 2)]
    assert dispatcher.nack([(0, 1)], 0, 0) == []
    assert dispatcher.attempts == [(0, 1, 3)]


def test_a_dead_letter_that_cannot_be_stored_is_not_tried_all_the_time() -> None:
    policy = {"max_redelivery_count": 0, "max_delay_ms": 0, "base_delay_ms": 0}
    dispatcher = dispatcher_of(
        EXCLUSIVE, end=1, **policy, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead"
    )
    dispatcher.join(Credit(1, 9), 0)
    assert dispatcher.nack([(0, 1)], 0, 0) == [DeadLetter(0, 1, 1, "nack")]
    assert dispatcher.not_settled(0, 1, 0) == []
    assert dispatcher.wake_ms == limits.DEAD_LETTER_RETRY_MS_MIN
    assert dispatcher.tick(limits.DEAD_LETTER_RETRY_MS_MIN) == [DeadLetter(0, 1, 1, "nack")]


def test_only_what_became_a_dead_letter_is_settled() -> None:
    """A driver that names more than it was told acks nothing that is under way."""
    dispatcher = dispatcher_of(
        EXCLUSIVE, end=5, max_redelivery_count=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead"
    )
    dispatcher.join(Credit(1, 3), 0)
    dispatcher.nack([(1, 2)], 0, 0)
    dispatcher.settled(0, 5, 0)
    assert (dispatcher.acked.position, dispatcher.acked.ranges) == (0, [(1, 2)])
    assert dispatcher.unacked == 2


def test_a_policy_that_allows_less_gives_up_what_comes_back() -> None:
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


def test_failures_far_ahead_do_not_change_what_goes_out_now() -> None:
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), [(500, 501, 2)])
    dispatcher.join(Credit(1, 10), 0)
    assert dispatcher.readable(1_000, 0) == [Deliver(1, 0, 10, 0)]
    assert dispatcher.give_credit(1, 490, 0) == [Deliver(1, 10, 500, 0)]
    assert dispatcher.give_credit(1, 2, 0) == [Deliver(1, 500, 501, 2), Deliver(1, 501, 502, 0)]


# --- bounds and rate --------------------------------------------------------------------------------------------------


def test_what_is_unacked_is_bounded() -> None:
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), unacked_max=10)
    dispatcher.join(Credit(1, 100), 0)
    assert sent(dispatcher.readable(50, 0)) == [(1, 0, 10)]
    assert dispatcher.pause is Pause.UNACKED_FULL
    assert sent(dispatcher.ack([(3, 5)], 0, 0)) == [(1, 10, 12)]


def test_shards_of_a_subscription_share_its_rate() -> None:
    bucket = TokenBucket(100)
    shards = [Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), rate=bucket) for _ in range(3)]
    got = [0, 0, 0]
    for shard in shards:
        shard.readable(10_000, 0)
        shard.join(Credit(1, 10_000), 0)
    for now in range(0, 10_000, 7):
        for number, shard in enumerate(shards):
            got[number] += sum(end - start for _, start, end in sent(shard.tick(now)))
    assert 980 <= sum(got) <= 1_020
    assert min(got) > 300


def test_the_rate_wakes_only_who_has_something_to_send() -> None:
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), rate=TokenBucket(10))
    dispatcher.join(Credit(1, 2), 0)
    dispatcher.readable(3, 0)
    assert dispatcher.pause is Pause.RATE_REACHED
    assert dispatcher.wake_ms == 100
    dispatcher.tick(100)
    assert dispatcher.pause is None, "it has no credit: nothing waits for the rate"
    dispatcher.ack([(0, 2)], 0, 100)
    assert dispatcher.wake_ms is None


def test_a_dispatcher_begins_in_the_generation_that_it_is_told() -> None:
    dispatcher = Dispatcher(EXCLUSIVE, FailurePolicy(), AckedOffsets(), generation=7)
    dispatcher.join(Credit(1, 5), 0)
    dispatcher.readable(3, 0)
    dispatcher.ack([(0, 3)], 0, 0)
    assert dispatcher.acked.position == 0
    dispatcher.ack([(0, 3)], 7, 0)
    assert dispatcher.acked.position == 3


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_gaps_far_ahead_are_no_ranges() -> None:
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
def test_a_gap_that_is_wider_than_the_span_of_acks_holds_nothing_back(restarts: bool) -> None:
    """It holds no message; of what lies behind it as many go out as without it."""
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
        out = dispatcher.ack([(one.start, one.end) for one in out], 0, 0)
    assert dispatcher.next == wide + limits.ACKED_SPAN_OFFSETS_MAX - 10
    assert dispatcher.pause is Pause.ACKED_FULL


# --- the window that consumers share ----------------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [1, 3])
def test_consumers_that_take_everything_and_ack_nothing_leave_room_for_the_others(greedy: int) -> None:
    dispatcher = dispatcher_of(SHARED, end=200_000, ack_timeout_ms=limits.FAILURE_POLICY_VALUE_MAX)
    out = [one for number in range(greedy) for one in dispatcher.join(Credit(number, 10**6), 0)]
    out += dispatcher.join(Credit(99, 10**6), 0)
    held = Counter[int]()
    while out:
        fresh: list[Instruction] = []
        for one in out:
            assert isinstance(one, Deliver)
            if one.consumer == 99:
                fresh += dispatcher.ack([(one.start, one.end)], 0, 0)
            else:
                held[one.consumer] += one.end - one.start
        out = fresh
    assert dispatcher.next == 200_000, f"the one who works waits for those who do not: {held}"
    members = [dispatcher.consumers.get(number) for number in range(greedy)]
    assert [member.unacked for member in members if member is not None] == [held[number] for number in range(greedy)]


@pytest.mark.parametrize("window", [1, 2, 9, 90, 1_000])
def test_whoever_takes_all_leaves_a_ninth_to_who_comes_later(window: int) -> None:
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


def test_what_comes_again_goes_to_one_who_holds_little_and_if_there_is_none_to_anybody() -> None:
    dispatcher = Dispatcher(SHARED, FailurePolicy(base_delay_ms=0, max_delay_ms=0), AckedOffsets(), unacked_max=10)
    dispatcher.readable(100, 0)
    dispatcher.join(Credit(1, 100), 0)
    dispatcher.join(Credit(2, 0), 0)
    assert sent(dispatcher.nack([(3, 4)], 0, 0)) == [(1, 3, 4)], "the other has no credit"
    assert sent(dispatcher.give_credit(2, 2, 0)) == [(2, 9, 10)]
    assert sent(dispatcher.nack([(4, 5)], 0, 0)) == [(2, 4, 5)]


# --- a consumer that gives no credit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED])
def test_one_holds_no_more_than_it_may(kind: SubscriptionType) -> None:
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
