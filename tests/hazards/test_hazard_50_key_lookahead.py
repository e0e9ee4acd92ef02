"""Hazard 50: the look-ahead of a key-shared subscription is bounded, and a window full of one key is to be seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from icestream import limits
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.dispatch.dispatcher import Pause
from icestream.broker.dispatch.hash_ring import ring_point
from icestream.broker.dispatch.instruction import Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import (
    FailurePolicy,
    PoisonPolicy,
    StartAt,
    SubscriptionStart,
    SubscriptionType,
)
from icestream.observability import metrics
from tests.support.broker_machine import TOPIC, BrokerMachine, publish, quiet, subscribe

WINDOW = limits.KEY_LOOK_AHEAD_MAX


def look_ahead(dispatcher: KeySharedDispatcher, keys: list[bytes], now_ms: int = 0) -> list[Instruction]:
    out: list[Instruction] = []
    while dispatcher.needed_keys[0] < dispatcher.needed_keys[1]:
        start, end = dispatcher.needed_keys
        out += dispatcher.add_keys(start, keys[start:end], now_ms)
        assert dispatcher.lanes.messages <= WINDOW
    return out


def started(keys: list[bytes], policy: FailurePolicy) -> KeySharedDispatcher:
    dispatcher = KeySharedDispatcher(policy, AckedOffsets())
    dispatcher.readable(len(keys), 0)
    dispatcher.join(Credit(1, 10**9), 0)
    return dispatcher


BLOCK = FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.BLOCK)


def test_hazard_50_a_window_full_of_one_blocked_key_pauses_visibly_and_resumes() -> None:
    keys = [b"stuck"] * (2 * WINDOW) + [b"other"]
    dispatcher = started(keys, BLOCK)
    assert [(delivery.start, delivery.end) for delivery in look_ahead(dispatcher, keys)] == [(0, 1)]
    dispatcher.nack([(0, 1)], 0, 0)
    assert dispatcher.pause is Pause.KEYS_WAIT
    assert dispatcher.needed_keys == (WINDOW, WINDOW)
    assert dispatcher.blocked.size == 1
    dispatcher.set_policy(FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DROP), 0)
    offset = 1
    while offset < 2 * WINDOW:
        dispatcher.ack([(offset, offset + 1)], 0, 0)
        look_ahead(dispatcher, keys)
        offset += 1
    assert dispatcher.in_flight.size == 1
    assert dispatcher.ack([(2 * WINDOW, 2 * WINDOW + 1)], 0, 0) == []
    assert dispatcher.acked.position == len(keys)


def test_hazard_50_other_keys_continue_after_a_blocked_one_within_the_window() -> None:
    keys = [b"stuck" if offset % 2 == 0 else b"%d" % offset for offset in range(4 * WINDOW)]
    dispatcher = started(keys, BLOCK)
    out, delivered = look_ahead(dispatcher, keys), set[int]()
    dispatcher.nack([(0, 1)], 0, 0)
    while out:
        delivered |= {offset for delivery in out for offset in range(delivery.start, delivery.end)}
        for delivery in out:
            dispatcher.ack([(delivery.start, delivery.end)], 0, 0)
        out = look_ahead(dispatcher, keys)
    assert delivered == {0, *range(1, 2 * WINDOW, 2)}
    assert dispatcher.pause is Pause.KEYS_WAIT
    assert dispatcher.lanes.messages == WINDOW
    assert len(dispatcher.acked) <= limits.ACKED_RANGES_MAX


def test_hazard_50_a_window_full_of_keys_of_a_slow_consumer_is_reported_when_it_blocks_others() -> None:
    dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
    slow, quick = Credit(1, 10), Credit(2, 10**9)
    dispatcher.join(slow, 0)
    dispatcher.join(quick, 0)
    of_slow, of_quick = (
        next(key for key in map(str, range(1_000)) if owner_of(dispatcher, key) == number) for number in (1, 2)
    )
    keys = [of_slow.encode()] * WINDOW + [of_quick.encode()]
    dispatcher.readable(len(keys), 0)
    assert [delivery.start for delivery in look_ahead(dispatcher, keys)] == [0]
    assert dispatcher.pause is Pause.KEYS_WAIT, "the first is in flight"
    slow.messages = 0
    dispatcher.leave(2, 0)
    dispatcher.nack([(0, 1)], 0, 0)
    dispatcher.tick(10**9)
    assert dispatcher.pause is None, "the slow consumer is alone: no other consumer could take more"
    dispatcher.join(quick, 10**9)
    assert dispatcher.pause is Pause.KEYS_WAIT, "the key waits, and the other's message is beyond the window"
    slow.messages = 1
    assert [delivery.start for delivery in dispatcher.tick(10**9)] == [0]


def owner_of(dispatcher: KeySharedDispatcher, key: str) -> int:
    owner = dispatcher.ring.owner(key.encode(), ring_point(key.encode()))
    assert owner is not None
    return owner.consumer_id


@pytest.mark.parametrize("poison", [PoisonPolicy.DROP, PoisonPolicy.DEAD_LETTER])
def test_hazard_50_a_poison_message_blocks_its_key_only_until_it_is_settled(poison: PoisonPolicy) -> None:
    keys = [b"stuck"] * 3
    dispatcher = started(keys, FailurePolicy(0, poison=poison, dead_letter_topic="/default/dead"))
    look_ahead(dispatcher, keys)
    out = dispatcher.nack([(0, 1)], 0, 0)
    if poison is PoisonPolicy.DEAD_LETTER:
        assert len(out) == 1
        out = dispatcher.settled(0, 1, 0)
    assert [delivery.start for delivery in out][-1] == 1


def singly(out: Sequence[Instruction]) -> list[Instruction]:
    """An instruction for each message."""
    return [
        delivery._replace(start=offset, end=offset + 1)
        for delivery in out
        for offset in range(delivery.start, delivery.end)
    ]


def test_hazard_50_messages_of_a_dead_consumer_are_redelivered_to_others() -> None:
    """Danube counts them as acked. Here they are the first of their keys again, in order."""
    keys = [b"%d" % (offset % 50) for offset in range(500)]
    dispatcher = started(keys, FailurePolicy())
    dispatcher.join(Credit(2, 10**9), 0)
    dispatcher.join(Credit(3, 10**9), 0)
    out, acked, last = singly(look_ahead(dispatcher, keys)), set[int](), dict[bytes, int]()
    for step in range(10_000):
        if step in (60, 90):
            out += singly(dispatcher.leave(3 if step == 60 else 2, 0))
        if not out:
            break
        delivery = out.pop(0)
        if dispatcher.in_flight.within(delivery.start, delivery.end):
            assert last.get(keys[delivery.start], -1) < delivery.start
            last[keys[delivery.start]] = delivery.start
            acked.add(delivery.start)
            out += singly(dispatcher.ack([(delivery.start, delivery.end)], 0, 0))
    assert acked == set(range(500))
    assert dispatcher.acked.position == 500


# --- through the broker ---


@pytest.mark.asyncio
async def test_hazard_50_a_window_full_of_one_blocked_key_is_an_alarm_and_ends_with_a_decision() -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    for _ in range(WINDOW // 512 + 1):
        await publish(broker, producer, *[b"x"] * 512, keys=[b"stuck"] * 512)
    await publish(broker, producer, b"behind", keys=[b"other"])
    reader = await subscribe(broker, kind=SubscriptionType.KEY_SHARED, failure=BLOCK)
    await quiet()
    reader.nack(0)
    alarms_before = metrics.DELIVERY_STANDSTILLS.values.get("keys_wait", 0)
    with capture_logs() as logs:
        await machine.pass_time(limits.STANDSTILL_MS / 1000 + 1)
    (alarm,) = [log for log in logs if log["event"] == "delivery stalled"]
    assert (alarm["reason"], alarm["unacked_from"]) == (Pause.KEYS_WAIT.value, 0)
    assert metrics.DELIVERY_STANDSTILLS.values["keys_wait"] == alarms_before + 1
    assert reader.sink.offsets == [0], "messages behind the window wait"
    await broker.delete_subscription(TOPIC, "s")
    other = await subscribe(broker, "t", SubscriptionType.KEY_SHARED, start=SubscriptionStart(StartAt.OFFSET, 600))
    await quiet()
    assert len(other.sink.received) == 2, "with less of that key before it, the other key is in sight"
