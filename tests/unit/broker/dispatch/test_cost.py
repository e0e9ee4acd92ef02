"""What an event costs, counted in calls and not in time: work per range, and none for consumers that only stand by.

Each case is run at a size and at four times that size. What must not depend on it costs the same; what goes through all
of them once costs four times as much, and never sixteen.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.hash_ring import KeyFilter
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import FailurePolicy, SubscriptionType


def calls(work: Callable[[], object]) -> int:
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # finalisers of others are not what it costs
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def check_constant(cost: Callable[[int], int], size: int) -> None:
    small, large = cost(size), cost(4 * size)
    assert large <= 1.2 * small + 20, f"{small} calls at {size}, {large} at {4 * size}"


def check_linear(cost: Callable[[int], int], size: int) -> None:
    small, large = cost(size), cost(4 * size)
    assert large <= 5 * small + 100, f"{small} calls at {size}, {large} at {4 * size}"


def shared(consumers: int, credit: int = 0) -> Dispatcher:
    dispatcher = Dispatcher(SubscriptionType.SHARED, FailurePolicy(), AckedOffsets())
    for number in range(consumers):
        dispatcher.join(Credit(number, credit), 0)
    return dispatcher


def test_the_cost_is_independent_of_the_size_of_a_range() -> None:
    def cost(size: int) -> int:
        dispatcher = Dispatcher(SubscriptionType.EXCLUSIVE, FailurePolicy(), AckedOffsets())
        dispatcher.join(Credit(1, size), 0)
        return calls(lambda: dispatcher.readable(size, 0)) + calls(lambda: dispatcher.ack([(0, size)], 0, 0))

    check_constant(cost, 1_000)


def test_consumers_without_credit_cost_nothing() -> None:
    def cost(size: int) -> int:
        dispatcher = shared(size)
        dispatcher.join(Credit(-1, 10**6), 0)
        dispatcher.readable(1, 0)  # now it knows which consumers have no credit
        return calls(lambda: [dispatcher.readable(end, 0) for end in range(2, 200)])

    check_constant(cost, 250)


def test_credit_for_one_of_many_costs_the_same() -> None:
    def cost(size: int) -> int:
        dispatcher = shared(size)
        dispatcher.readable(1_000, 0)
        return calls(lambda: [dispatcher.give_credit(7, 1, 0) for _ in range(100)])

    check_constant(cost, 250)


def test_a_round_over_many_consumers_costs_one_step_each() -> None:
    def cost(size: int) -> int:
        dispatcher = shared(size, 10)
        return calls(lambda: dispatcher.readable(size, 0))

    check_linear(cost, 250)


def test_a_consumer_death_costs_as_much_as_its_deliveries() -> None:
    def cost(size: int) -> int:
        dispatcher = shared(size, 4)
        for end in range(1, 4 * size + 2):
            dispatcher.readable(end, 0)  # with the last one no consumer has credit any more
        return calls(lambda: dispatcher.leave(3, 0))

    check_constant(cost, 250)


def test_the_cost_of_single_acks_after_a_hole_is_independent_of_the_number_of_ranges() -> None:
    def cost(size: int) -> int:
        dispatcher = shared(1, 10**6)
        dispatcher.readable(2 * size + 200, 0)
        dispatcher.ack([(offset, offset + 1) for offset in range(1, 2 * size, 2)], 0, 0)
        assert len(dispatcher.acked) == size
        return calls(lambda: [dispatcher.ack([(2 * size + step, 2 * size + step + 1)], 0, 0) for step in range(100)])

    check_constant(cost, 900)


def test_a_batch_of_acks_costs_one_step_for_each_range() -> None:
    def cost(size: int) -> int:
        dispatcher = shared(1, 10**6)
        dispatcher.readable(2 * size, 0)
        ranges = [(offset, offset + 1) for offset in range(1, 2 * size, 2)]
        return calls(lambda: dispatcher.ack(ranges, 0, 0))

    check_linear(cost, 900)


def test_many_simultaneous_deadlines_cost_one_step_each() -> None:
    def cost(size: int) -> int:
        dispatcher = shared(10, 10**6)
        for end in range(1, size + 1):
            dispatcher.readable(end, end)
        return calls(lambda: dispatcher.tick(10**6))

    check_linear(cost, 1_000)


def test_the_next_wake_up_is_free_for_any_fragmentation() -> None:
    def cost(size: int) -> int:
        dispatcher = shared(1, 10**6)
        dispatcher.readable(size, 0)
        dispatcher.ack([(offset, offset + 1) for offset in range(1, size, 2)], 0, 0)
        return calls(lambda: [dispatcher.wake_ms for _ in range(100)])

    check_constant(cost, 1_000)


def test_the_cost_of_an_ack_is_independent_of_the_lane_length() -> None:
    def cost(size: int) -> int:
        dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
        dispatcher.readable(size, 0)
        dispatcher.join(Credit(1, 10**6), 0)
        dispatcher.add_keys(0, [b"same"] * size, 0)
        return calls(lambda: [dispatcher.ack([(offset, offset + 1)], 0, 0) for offset in range(100)])

    check_constant(cost, 1_000)


def test_idle_key_consumers_cost_nothing() -> None:
    def cost(size: int) -> int:
        dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
        for number in range(size):
            dispatcher.join(Credit(number, 10), 0)
        dispatcher.readable(100, 0)
        return calls(lambda: dispatcher.add_keys(0, [b"%d" % number for number in range(100)], 0))

    check_constant(cost, 50)


def test_each_distinct_filter_is_evaluated_once() -> None:
    def cost(size: int) -> int:
        dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
        for number in range(size):
            dispatcher.join_with(Credit(number, 10), KeyFilter(["a*"]), 0)
        dispatcher.readable(100, 0)
        return calls(lambda: dispatcher.add_keys(0, [b"b%d" % number for number in range(100)], 0))

    check_constant(cost, 50)
