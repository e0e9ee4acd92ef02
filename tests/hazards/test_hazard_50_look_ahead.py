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
from icestream.model.subscription import FailurePolicy, PoisonPolicy, StartAt, SubscriptionStart, SubscriptionType
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


def test_hazard_50_a_window_full_of_one_blocked_key_pauses_visibly_and_goes_on() -> None:
    keys = [b"stuck"] * (2 * WINDOW) + [b"other"]
    dispatcher = started(keys, BLOCK)
    assert [(one.start, one.end) for one in look_ahead(dispatcher, keys)] == [(0, 1)]
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


def test_hazard_50_other_keys_go_on_behind_a_blocked_one_as_far_as_the_window_reaches() -> None:
    keys = [b"stuck" if offset % 2 == 0 else b"%d" % offset for offset in range(4 * WINDOW)]
    dispatcher = started(keys, BLOCK)
    out, delivered = look_ahead(dispatcher, keys), set[int]()
    dispatcher.nack([(0, 1)], 0, 0)
    while out:
        delivered |= {offset for one in out for offset in range(one.start, one.end)}
        for one in out:
            dispatcher.ack([(one.start, one.end)], 0, 0)
        out = look_ahead(dispatcher, keys)
    assert delivered == {0, *range(1, 2 * WINDOW, 2)}
    assert dispatcher.pause is Pause.KEYS_WAIT
    assert dispatcher.lanes.messages == WINDOW
    assert len(dispatcher.acked) <= limits.ACKED_RANGES_MAX


def test_hazard_50_a_window_full_of_a_slow_consumer_s_keys_is_to_be_seen_when_it_holds_others_up() -> None:
    dispatcher = KeySharedDispatcher(FailurePolicy(), AckedOffsets())
    slow, quick = Credit(1, 10), Credit(2, 10**9)
    dispatcher.join(slow, 0)
    dispatcher.join(quick, 0)
    of_slow, of_quick = (
        next(key for key in map(str, range(1_000)) if owner_of(dispatcher, key) == number) for number in (1, 2)
    )
    keys = [of_slow.encode()] * WINDOW + [of_quick.encode()]
    dispatcher.readable(len(keys), 0)
    assert [one.start for one in look_ahead(dispatcher, keys)] == [0]
    assert dispatcher.pause is Pause.KEYS_WAIT, "the first is in flight"
    slow.messages = 0
    dispatcher.leave(2, 0)
    dispatcher.nack([(0, 1)], 0, 0)
    dispatcher.tick(10**9)
    assert dispatcher.pause is None, "it is slow, and alone: nobody else could take more"
    dispatcher.join(quick, 10**9)
    assert dispatcher.pause is Pause.KEYS_WAIT, "its key waits for it, and the message of the other is not in sight"
    slow.messages = 1
    assert [one.start for one in dispatcher.tick(10**9)] == [0]


def owner_of(dispatcher: KeySharedDispatcher, key: str) -> int:
    found = dispatcher.ring.owner(key.encode(), ring_point(key.encode()))
    assert found is not None
    return found.consumer_id


@pytest.mark.parametrize("poison", [PoisonPolicy.DROP, PoisonPolicy.DEAD_LETTER])
def test_hazard_50_poison_holds_its_key_only_until_it_is_settled(poison: PoisonPolicy) -> None:
    keys = [b"stuck"] * 3
    dispatcher = started(keys, FailurePolicy(0, poison=poison, dead_letter_topic="/default/dead"))
    look_ahead(dispatcher, keys)
    out = dispatcher.nack([(0, 1)], 0, 0)
    if poison is PoisonPolicy.DEAD_LETTER:
        assert len(out) == 1
        out = dispatcher.settled(0, 1, 0)
    assert [one.start for one in out][-1] == 1


def singly(out: Sequence[Instruction]) -> list[Instruction]:
    """An instruction for each message."""
    return [one._replace(start=offset, end=offset + 1) for one in out for offset in range(one.start, one.end)]


def test_hazard_50_a_dead_consumer_s_messages_go_to_others_and_none_is_lost() -> None:
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
        one = out.pop(0)
        if dispatcher.in_flight.within(one.start, one.end):
            assert last.get(keys[one.start], -1) < one.start
            last[keys[one.start]] = one.start
            acked.add(one.start)
            out += singly(dispatcher.ack([(one.start, one.end)], 0, 0))
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
    said = metrics.DELIVERY_STANDSTILLS.values.get("keys_wait", 0)
    with capture_logs() as logs:
        await machine.pass_time(limits.STANDSTILL_MS / 1000 + 1)
    (alarm,) = [one for one in logs if one["event"] == "delivery stalled"]
    assert (alarm["reason"], alarm["unacked_from"]) == (Pause.KEYS_WAIT.value, 0)
    assert metrics.DELIVERY_STANDSTILLS.values["keys_wait"] == said + 1
    assert reader.sink.offsets == [0], "what lies behind the window waits"
    await broker.delete_subscription(TOPIC, "s")
    other = await subscribe(broker, "t", SubscriptionType.KEY_SHARED, start=SubscriptionStart(StartAt.OFFSET, 600))
    await quiet()
    assert len(other.sink.got) == 2, "with less of that key before it, the other key is in sight"
