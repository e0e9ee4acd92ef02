"""Consumers that take several messages of a key at a time: `Credit.messages_per_key`.

one hand     all messages of a key that are in flight are with one consumer, and no more than it asked for
order        first deliveries of a key are in the order of its offsets
failures     while a message that failed is not settled, nothing behind it of its key goes out anew
nothing lost whatever happens, everything is acked in the end
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.hash_ring import ring_point
from icestream.broker.dispatch.instruction import Deliver, Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy

MESSAGES = 60
KEYS = [b"a", b"b", b"c"]


def key_of(offset: int) -> bytes:
    return KEYS[(offset * 7 + offset // 4) % len(KEYS)]


class KeyRunHarness:
    """A dispatcher, the offsets that its consumers have in flight, and the invariants."""

    def __init__(self, per_key: list[int]) -> None:
        self.dispatcher = KeySharedDispatcher(FailurePolicy(1_000, 1_000, 10, 10), AckedOffsets(), look_ahead=25)
        self.per_key = per_key
        self.now_ms = 0
        self.hands: dict[int, int] = {}  # offset: consumer
        self.first_of: dict[bytes, int] = {}  # the highest offset of a key that was delivered
        self.failing: set[int] = set()  # failed, and not acked
        self.acked: set[int] = set()
        self.here: set[int] = set()
        self.follow(self.dispatcher.readable(MESSAGES, 0))
        self.join(0)

    def join(self, consumer: int) -> None:
        if consumer not in self.here:
            self.here.add(consumer)
            credit = Credit(consumer, 10**6)
            credit.messages_per_key = self.per_key[consumer % len(self.per_key)]
            self.follow(self.dispatcher.join(credit, self.now_ms))

    def leave(self, consumer: int) -> None:
        if consumer in self.here and len(self.here) > 1:
            self.here.discard(consumer)
            self.hands = {offset: holder for offset, holder in self.hands.items() if holder != consumer}
            self.follow(self.dispatcher.leave(consumer, self.now_ms))

    def settle(self, consumer: int, choice: int, count: int, is_ack: bool) -> None:
        offsets = sorted(offset for offset, holder in self.hands.items() if holder == consumer)
        chosen = offsets[choice % len(offsets) :][:count] if offsets else []
        for offset in chosen:
            del self.hands[offset]
        ranges = [(offset, offset + 1) for offset in chosen]
        if is_ack:
            self.acked |= set(chosen)
            self.failing -= set(chosen)
            self.follow(self.dispatcher.ack(ranges, 0, self.now_ms))
        else:
            self.failing |= set(chosen)
            self.follow(self.dispatcher.nack(ranges, 0, self.now_ms, consumer_id=consumer))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        due = [run for run in self.dispatcher.in_flight if run.value.due_ms <= self.now_ms]
        late = {offset for offset in self.hands if any(run.start <= offset < run.end for run in due)}
        for offset in late:
            del self.hands[offset]
        self.failing |= late
        self.follow(self.dispatcher.tick(self.now_ms))

    def follow(self, instructions: list[Instruction]) -> None:
        pending = list(instructions)
        while pending or self.dispatcher.needed_keys[0] < self.dispatcher.needed_keys[1]:
            for effect in pending:
                assert isinstance(effect, Deliver)
                for offset in range(effect.start, effect.end):
                    self.check_delivery(effect.consumer, offset, effect.attempt)
            start, end = self.dispatcher.needed_keys
            keys = [key_of(offset) for offset in range(start, end)]
            pending = self.dispatcher.add_keys(start, keys, self.now_ms) if start < end else []

    def check_delivery(self, consumer: int, offset: int, attempt: int) -> None:
        key = key_of(offset)
        with_key = {holder for other, holder in self.hands.items() if key_of(other) == key}
        assert with_key <= {consumer}, f"{key!r} is in two hands"
        earlier = [other for other in self.failing if key_of(other) == key and other < offset]
        assert not earlier, f"{offset} overtakes {earlier}, which failed"
        assert (attempt > 0) == (offset in self.failing)
        if attempt:
            assert not with_key, "it comes again alone"
        elif offset > self.first_of.get(key, -1):
            self.first_of[key] = offset
            missing = [other for other in range(offset) if key_of(other) == key and other not in self.acked]
            assert all(other in self.hands for other in missing), "first deliveries are in order"
        self.hands[offset] = consumer
        count = sum(1 for other in self.hands if key_of(other) == key)
        assert count <= self.per_key[consumer % len(self.per_key)]

    def check_nothing_is_lost(self) -> None:
        for _ in range(10 * MESSAGES):
            if len(self.acked) == MESSAGES:
                break
            for consumer in list(self.here):
                self.settle(consumer, 0, MESSAGES, is_ack=True)
            self.wait(20)
        assert self.dispatcher.acked.position == MESSAGES
        assert (self.dispatcher.lanes.messages, self.dispatcher.lanes.busy) == (0, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "ack", "nack", "wait", "late", "join", "leave"]),
        st.integers(0, 2),
        st.integers(0, 20),
        st.integers(1, 6),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(per_key=st.lists(st.sampled_from([1, 2, 5, 100]), min_size=1, max_size=3), steps=STEPS)
def test_any_history_keeps_keys_in_one_hand_and_in_order(
    per_key: list[int], steps: list[tuple[str, int, int, int]]
) -> None:
    life = KeyRunHarness(per_key)
    for what, consumer, choice, count in steps:
        match what:
            case "ack" | "nack":
                life.settle(consumer, choice, count, is_ack=what == "ack")
            case "wait":
                life.wait(15)
            case "late":
                life.wait(1_000)
            case "join":
                life.join(consumer)
            case "leave":
                life.leave(consumer)
    life.check_nothing_is_lost()


def started(messages: int, per_key: int, *, credit: int = 10**6) -> tuple[KeySharedDispatcher, list[Instruction]]:
    dispatcher = KeySharedDispatcher(FailurePolicy(base_delay_ms=0), AckedOffsets())
    dispatcher.readable(messages, 0)
    taker = Credit(1, credit)
    taker.messages_per_key = per_key
    dispatcher.join(taker, 0)
    return dispatcher, dispatcher.add_keys(0, [b"same"] * messages, 0)


def test_messages_of_one_key_are_delivered_as_one_range() -> None:
    dispatcher, out = started(1_000, 100)
    assert out == [Deliver(1, 0, 100, 0)]
    assert dispatcher.ack([(0, 60)], 0, 0) == [Deliver(1, 100, 160, 0)]


@pytest.mark.parametrize("credit", [1, 7])
def test_credit_bounds_a_run_and_more_of_it_prolongs_the_run(credit: int) -> None:
    dispatcher, out = started(1_000, 100, credit=credit)
    assert out == [Deliver(1, 0, credit, 0)]
    assert dispatcher.give_credit(1, 5, 0) == [Deliver(1, credit, credit + 5, 0)]


def test_a_failed_message_is_redelivered_alone_when_the_rest_of_its_key_is_settled() -> None:
    dispatcher, out = started(10, 4)
    assert out == [Deliver(1, 0, 4, 0)]
    assert dispatcher.nack([(1, 2)], 0, 0) == []
    assert dispatcher.ack([(0, 1), (2, 3)], 0, 0) == []
    assert dispatcher.ack([(3, 4)], 0, 0) == [Deliver(1, 1, 2, 1)]
    assert dispatcher.ack([(1, 2)], 0, 0) == [Deliver(1, 4, 8, 0)]


def test_a_key_moves_to_another_consumer_when_its_deliveries_are_settled() -> None:
    dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
    dispatcher.readable(10, 0)
    for consumer in (1, 2):
        taker = Credit(consumer, 10**6)
        taker.messages_per_key = 4
        dispatcher.join(taker, 0)
    moved = next(key for key in map(str.encode, map(str, range(100))) if owner_of(dispatcher, key) == 2)
    dispatcher.leave(2, 0)
    assert dispatcher.add_keys(0, [moved] * 10, 0) == [Deliver(1, 0, 4, 0)]
    taker = Credit(2, 10**6)
    taker.messages_per_key = 4
    assert dispatcher.join(taker, 0) == []
    assert dispatcher.ack([(0, 3)], 0, 0) == [], "the one before still has a message of it"
    assert dispatcher.ack([(3, 4)], 0, 0) == [Deliver(2, 4, 8, 0)]


def owner_of(dispatcher: KeySharedDispatcher, key: bytes) -> int:
    owner = dispatcher.ring.owner(key, ring_point(key))
    assert owner is not None
    return owner.consumer_id
