"""Hazard 48, dispatch: acks from before a seek do not move the new cursor, and no position is ever above the end.

That a new subscription's cursor is durable before the answer is tested with the driver.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.broker.dispatch.best_effort import BestEffortDispatcher, KeySharedBestEffortDispatcher
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.instruction import Deliver, Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType

POSITIONS = st.integers(-10, 300) | st.sampled_from([2**62, -(2**62)])
DISPATCHERS = ("exclusive", "shared", "failover", "key-shared", "best effort", "best effort by key")


def dispatcher_of(name: str, acked: AckedOffsets) -> Dispatcher:
    match name:
        case "key-shared":
            return KeySharedDispatcher(FailurePolicy(), acked)
        case "best effort":
            return BestEffortDispatcher(SubscriptionType.SHARED, acked)
        case "best effort by key":
            return KeySharedBestEffortDispatcher(acked)
        case _:
            return Dispatcher(SubscriptionType(name), FailurePolicy(), acked)


def look_ahead(dispatcher: Dispatcher, out: list[Instruction]) -> list[Instruction]:
    while isinstance(dispatcher, KeySharedDispatcher) and dispatcher.needed_keys[0] < dispatcher.needed_keys[1]:
        start, end = dispatcher.needed_keys
        out = out + dispatcher.add_keys(start, [b"%d" % offset for offset in range(start, end)], 0)
    return out


def offsets(instructions: list[Instruction]) -> list[int]:
    delivered = [
        offset
        for instruction in instructions
        if isinstance(instruction, Deliver)
        for offset in range(instruction.start, instruction.end)
    ]
    return sorted(delivered)


@pytest.mark.parametrize("name", DISPATCHERS[:4])
def test_hazard_48_acks_of_deliveries_before_the_seek_do_not_count(name: str) -> None:
    dispatcher = dispatcher_of(name, AckedOffsets())
    dispatcher.readable(10, 0)
    before = dispatcher.generation
    assert offsets(look_ahead(dispatcher, dispatcher.join(Credit(1, 100), 0))) == [*range(10)]
    assert offsets(look_ahead(dispatcher, dispatcher.seek(3, 0))) == [*range(3, 10)]
    dispatcher.ack([(0, 10)], before, 0)
    dispatcher.nack([(0, 10)], before, 0)
    assert (dispatcher.acked.position, dispatcher.acked.ranges, dispatcher.attempts) == (3, [], [])
    dispatcher.ack([(3, 10)], dispatcher.generation, 0)
    assert dispatcher.acked.position == 10


def test_hazard_48_a_seek_back_delivers_acked_and_dead_lettered_messages() -> None:
    dispatcher = Dispatcher(SubscriptionType.SHARED, FailurePolicy(0, poison=PoisonPolicy.DROP), AckedOffsets())
    dispatcher.readable(5, 0)
    dispatcher.join(Credit(1, 100), 0)
    dispatcher.ack([(0, 2), (3, 4)], 0, 0)
    dispatcher.nack([(2, 3), (4, 5)], 0, 0)
    assert dispatcher.acked.position == 5
    assert dispatcher.seek(0, 0) == [Deliver(1, 0, 5, 0)]


def test_hazard_48_deadlines_from_before_the_seek_do_not_fire() -> None:
    dispatcher = Dispatcher(
        SubscriptionType.EXCLUSIVE, FailurePolicy(ack_timeout_ms=100, base_delay_ms=50), AckedOffsets()
    )
    dispatcher.readable(5, 0)
    dispatcher.join(Credit(1, 5), 0)
    dispatcher.nack([(0, 1)], 0, 0)
    dispatcher.seek(5, 10)
    assert dispatcher.wake_ms is None
    assert dispatcher.tick(1_000) == []
    assert dispatcher.unacked == 0


def test_hazard_48_many_seeks_leave_no_state() -> None:
    dispatcher, credit = dispatcher_of("shared", AckedOffsets()), Credit(1, 10**9)
    dispatcher.readable(100, 0)
    dispatcher.join(credit, 0)
    for number in range(1_000):
        dispatcher.seek(number % 90, number)
    member = dispatcher.consumers.get(1)
    assert member is not None
    assert len(member.deliveries) < 50
    assert len(dispatcher.in_flight._heap) < 100
    assert dispatcher.generation == 1_000


@pytest.mark.parametrize("name", DISPATCHERS)
@given(
    position=st.integers(0, 300),
    steps=st.lists(st.tuples(st.sampled_from(["publish", "seek", "restart", "ack"]), POSITIONS), max_size=40),
)
def test_hazard_48_no_message_is_written_below_a_sought_position(
    name: str, position: int, steps: list[tuple[str, int]]
) -> None:
    """Whatever is asked for: a message that is written after it is delivered, never passed by."""
    end = 100
    dispatcher = dispatcher_of(name, AckedOffsets(position).below(end))
    dispatcher.readable(end, 0)
    dispatcher.join(Credit(1, 10**9), 0)
    look_ahead(dispatcher, [])
    for step, number in steps:
        match step:
            case "publish":
                assert max(dispatcher.acked.position, dispatcher.acked.end, dispatcher.next) <= end
                end += 1
                out = look_ahead(dispatcher, dispatcher.readable(end, 0))
                assert offsets(out)[-1:] == [end - 1] or dispatcher.pause is not None
            case "seek":
                look_ahead(dispatcher, dispatcher.seek(number, 0))
            case "ack":
                dispatcher.ack([(number, number + 20)], dispatcher.generation, 0)
            case "restart":
                acked = AckedOffsets(dispatcher.acked.position, dispatcher.acked.ranges).below(end)
                dispatcher = dispatcher_of(name, acked)
                dispatcher.join(Credit(1, 10**9), 0)
                look_ahead(dispatcher, dispatcher.readable(end, 0))
        assert 0 <= dispatcher.acked.position <= dispatcher.next <= end
