"""The rules of a key-shared dispatcher that the model (test_key_shared_model.py) is too small for."""

from __future__ import annotations

from collections import Counter

import pytest

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Pause
from icestream.broker.dispatch.hash_ring import KeyFilter
from icestream.broker.dispatch.instruction import DeadLetter, Deliver, Dropped, Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.broker.rate_limit import TokenBucket
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy

DROP = FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DROP)


def look_ahead(dispatcher: KeySharedDispatcher, keys: list[bytes], now_ms: int = 0) -> list[Instruction]:
    """Shows keys as long as some are wanted."""
    out: list[Instruction] = []
    while dispatcher.needed_keys[0] < dispatcher.needed_keys[1]:
        start, end = dispatcher.needed_keys
        out += dispatcher.add_keys(start, keys[start:end], now_ms)
        assert dispatcher.needed_keys[0] > start
    return out


def started(keys: list[bytes], *, credit: int = 10**6, policy: FailurePolicy | None = None) -> KeySharedDispatcher:
    dispatcher = KeySharedDispatcher(policy or FailurePolicy(), AckedOffsets())
    dispatcher.readable(len(keys), 0)
    dispatcher.join(Credit(1, credit), 0)
    return dispatcher


def count(out: list[Instruction]) -> int:
    """Messages that go to consumers."""
    return sum(effect.end - effect.start for effect in out if isinstance(effect, Deliver))


def test_a_thousand_keys_are_delivered_together() -> None:
    keys = [b"%d" % (number % 1_000) for number in range(5_000)]
    dispatcher = started(keys)
    assert count(look_ahead(dispatcher, keys)) == 1_000
    assert dispatcher.unacked == 1_000


def test_deliveries_of_one_moment_are_merged_by_offset() -> None:
    keys = [b"%d" % (number // 2) for number in range(200)]
    dispatcher = started(keys)
    out = look_ahead(dispatcher, keys)
    assert out == [Deliver(1, offset, offset + 1, 0) for offset in range(0, 200, 2)]
    assert len({run.value for run in dispatcher.in_flight}) == 1
    again = dispatcher.ack([(0, 100)], 0, 0)
    assert again == [Deliver(1, offset, offset + 1, 0) for offset in range(1, 100, 2)]
    assert dispatcher.leave(1, 0) == []
    assert dispatcher.in_flight.size == 0
    assert dispatcher.unacked == 100


def test_consumers_alternate_under_a_rate_limit() -> None:
    keys = [b"%d" % number for number in range(1_000)]
    dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets(), rate=TokenBucket(1_000))
    dispatcher.readable(len(keys), 0)
    for number in range(4):
        dispatcher.join(Credit(number, 1_000), 0)
    rows_by_consumer = Counter[int]()
    for effect in look_ahead(dispatcher, keys):
        assert isinstance(effect, Deliver)
        rows_by_consumer[effect.consumer] += effect.end - effect.start
    assert sum(rows_by_consumer.values()) == 100
    assert set(rows_by_consumer.values()) == {25}
    assert dispatcher.pause is Pause.RATE_REACHED
    assert dispatcher.wake_ms == 10


def test_large_keys_are_bounded_by_their_bytes() -> None:
    keys = [b"%d" % number + bytes(limits.MIB) for number in range(100)]
    dispatcher = started(keys, credit=0)
    look_ahead(dispatcher, keys)
    assert dispatcher.lanes.messages == 16
    assert dispatcher.lanes.key_bytes < limits.KEY_LOOK_AHEAD_BYTES_MAX + 2 * limits.MIB
    out = dispatcher.give_credit(1, 100, 0)
    assert count(out) == 16
    for effect in out:
        dispatcher.ack([(effect.start, effect.end)], 0, 0)
    assert dispatcher.lanes.key_bytes == 0
    assert count(look_ahead(dispatcher, keys)) == 16


def test_a_large_key_is_stored_once() -> None:
    keys = [bytes(limits.MIB)] * 1_000
    dispatcher = started(keys)
    look_ahead(dispatcher, keys)
    assert dispatcher.lanes.messages == 1_000
    assert dispatcher.lanes.key_bytes == limits.MIB


def test_many_poisoned_messages_of_one_key_after_a_restart() -> None:
    """Poisoned messages are dropped one after the other as their key reaches them, not recursively."""
    keys = [b"same"] * 4_000
    dispatcher = KeySharedDispatcher(DROP, AckedOffsets(), [(0, 4_000, 1)])
    dispatcher.readable(4_000, 0)
    dispatcher.join(Credit(1, 10), 0)
    out = look_ahead(dispatcher, keys)
    assert len(out) == 4_000
    assert {type(effect) for effect in out} == {Dropped}
    assert dispatcher.acked.position == 4_000


def test_a_poison_message_after_a_restart_waits_for_earlier_messages() -> None:
    keys = [b"same"] * 3
    policy = FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead")
    dispatcher = KeySharedDispatcher(policy, AckedOffsets(), [(1, 2, 1)])
    dispatcher.readable(3, 0)
    dispatcher.join(Credit(1, 10), 0)
    assert look_ahead(dispatcher, keys) == [Deliver(1, 0, 1, 0)]
    assert dispatcher.attempts == [(1, 2, 1)]
    assert dispatcher.ack([(0, 1)], 0, 0) == [DeadLetter(1, 2, 1, "failed too often before")]
    assert dispatcher.settled(1, 2, 0) == [Deliver(1, 2, 3, 0)]


def test_a_stricter_policy_dead_letters_waiting_messages() -> None:
    dispatcher = started([b"a", b"a"], credit=1, policy=FailurePolicy(base_delay_ms=0))
    assert look_ahead(dispatcher, [b"a", b"a"]) == [Deliver(1, 0, 1, 0)]
    assert dispatcher.nack([(0, 1)], 0, 0) == []
    assert dispatcher.set_policy(DROP, 0) == [Dropped(0, 1, 1, "failed too often before")]
    assert dispatcher.give_credit(1, 1, 0) == [Deliver(1, 1, 2, 0)]


def test_a_wide_ack_acks_only_delivered_messages() -> None:
    keys = [b"a", b"a", b"b", b"a"]
    dispatcher = started(keys)
    look_ahead(dispatcher, keys)
    assert dispatcher.ack([(-10, 2**62)], 0, 0) == [Deliver(1, 1, 2, 0)]
    assert (dispatcher.acked.position, dispatcher.acked.ranges) == (1, [(2, 3)])


def test_unreadable_messages_leave_their_lane() -> None:
    keys = [b"a"] * 10
    dispatcher = started(keys)
    look_ahead(dispatcher, keys)
    assert dispatcher.skip(2, 5, 0) == []
    assert dispatcher.skip(0, 1, 0) == [Deliver(1, 1, 2, 0)]
    assert dispatcher.ack([(1, 2)], 0, 0) == [Deliver(1, 5, 6, 0)]


def test_a_gap_before_the_look_ahead_is_skipped() -> None:
    dispatcher = started([b"a"] * 10)
    dispatcher.skip(0, 4, 0)
    assert dispatcher.needed_keys == (4, 10)
    dispatcher.skip(6, 8, 0)
    assert dispatcher.needed_keys == (4, 6)
    assert count(dispatcher.add_keys(4, [b"a", b"b"], 0)) == 2
    assert dispatcher.needed_keys == (8, 10)


def test_no_look_ahead_without_a_consumer() -> None:
    dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
    dispatcher.readable(10, 0)
    assert dispatcher.needed_keys == (0, 0)


@pytest.mark.parametrize("patterns", [["nobody"], ["no*", "n?"]])
def test_a_backlog_that_no_consumer_accepts_is_skipped_quickly(patterns: list[str]) -> None:
    """After the grace, one look-ahead after the other, without waiting again."""
    keys = [b"%d" % number for number in range(20_000)]
    dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
    dispatcher.readable(len(keys), 0)
    dispatcher.join_with(Credit(1, 10), KeyFilter(patterns), 0)
    assert look_ahead(dispatcher, keys) == []
    assert dispatcher.pause is Pause.KEYS_WAIT
    assert dispatcher.wake_ms == limits.KEY_UNWANTED_GRACE_MS
    now = limits.KEY_UNWANTED_GRACE_MS
    out = dispatcher.tick(now) + look_ahead(dispatcher, keys, now)
    assert sum(effect.end - effect.start for effect in out if isinstance(effect, Dropped)) == 20_000
    assert len(out) <= 6, "neighbours are one instruction"
    assert dispatcher.acked.position == 20_000


def test_one_consumer_is_bounded_and_does_not_block_keys_of_others() -> None:
    dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
    credits_ = [Credit(number, 1000) for number in (1, 2)]
    credits_[0].unacked_max = 2
    for credit in credits_:
        dispatcher.join(credit, 0)
    dispatcher.readable(40, 0)
    keys = [b"key-%d" % number for number in range(40)]
    consumers = [key.consumer for key in dispatcher.add_keys(0, keys, 0) if isinstance(key, Deliver)]
    assert consumers.count(1) == 2
    assert consumers.count(2) > 2
    (mine,) = [effect for effect in dispatcher.ack([(0, 40)], 0, 0) if isinstance(effect, Deliver)][:1]
    assert mine.consumer == 1
