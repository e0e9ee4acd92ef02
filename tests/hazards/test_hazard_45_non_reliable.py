"""Hazard 45: messages of a non-reliable topic are stored like all others; only their delivery is not reliable."""

from __future__ import annotations

import pytest

from icestream.broker.dispatch.best_effort import NO_ROOM
from icestream.broker.service import Broker
from icestream.model.subscription_options import DispatchMode, StartAt, SubscriptionStart, SubscriptionType
from icestream.observability import metrics
from tests.support.broker_machine import TOPIC, BrokerMachine, publish, quiet, stored_rows, subscribe

pytestmark = pytest.mark.asyncio

LATEST, EARLIEST = SubscriptionStart(StartAt.LATEST), SubscriptionStart(StartAt.EARLIEST)
KINDS = pytest.mark.parametrize("kind", SubscriptionType)


async def opened(machine: BrokerMachine, messages: int = 0) -> Broker:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC, dispatch=DispatchMode.NON_RELIABLE)
    await put(broker, *range(messages))
    return broker


async def put(broker: Broker, *numbers: int) -> None:
    producer = await broker.open_producer(TOPIC, "p")
    for number in numbers:
        await publish(broker, producer, b"%d" % number, keys=[b"k"])


async def payloads(broker: Broker) -> list[bytes]:
    return [row["payload"] for row in (await stored_rows(broker)).values()]


async def test_hazard_45_undelivered_messages_are_stored_and_survive_a_power_loss() -> None:
    machine = BrokerMachine()
    broker = await opened(machine, 5)
    await machine.power_loss()
    broker = await machine.open_broker()
    assert await payloads(broker) == [b"0", b"1", b"2", b"3", b"4"]
    assert broker.topics.get(TOPIC).record.dispatch is DispatchMode.NON_RELIABLE


@KINDS
async def test_hazard_45_messages_beyond_the_credit_of_a_consumer_are_skipped_and_stored(
    kind: SubscriptionType,
) -> None:
    broker = await opened(BrokerMachine())
    reader = await subscribe(broker, kind=kind, start=LATEST, credit=2)
    skipped = metrics.MESSAGES_DROPPED.labels(NO_ROOM)._value.get()
    await put(broker, *range(5))
    await quiet()
    reader.credit(10)
    await quiet()
    assert reader.sink.payloads == [b"0", b"1"]
    assert metrics.MESSAGES_DROPPED.labels(NO_ROOM)._value.get() == skipped + 3
    assert reader.subscription.lag == 0
    assert len(await payloads(broker)) == 5
    await put(broker, 5)
    await quiet()
    assert reader.sink.payloads == [b"0", b"1", b"5"], "delivery goes on with the next message"


@KINDS
async def test_hazard_45_no_message_is_redelivered(kind: SubscriptionType) -> None:
    machine = BrokerMachine()
    broker = await opened(machine)
    reader = await subscribe(broker, kind=kind, start=LATEST)
    await put(broker, 0, 1)
    await quiet()
    reader.nack(0, 1)
    await machine.pass_time(200)
    reader.leave()
    other = await subscribe(broker, kind=kind, consumer="other")
    await quiet()
    assert (reader.sink.payloads, other.sink.payloads) == ([b"0", b"1"], [])


@KINDS
@pytest.mark.parametrize("how", ["a start", "a seek"])
async def test_hazard_45_a_start_and_a_seek_deliver_stored_messages(kind: SubscriptionType, how: str) -> None:
    """Stored messages wait for credit, because the start or seek asked for them; later messages do not."""
    broker = await opened(BrokerMachine(), 6)
    reader = await subscribe(broker, kind=kind, start=EARLIEST if how == "a start" else LATEST, credit=0)
    if how == "a seek":
        await broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 1))
    await put(broker, 6, 7)
    await quiet()
    assert reader.sink.received == []
    for _ in range(8):
        reader.credit(1)
        await quiet()
    first = 0 if how == "a start" else 1
    assert reader.sink.payloads == [b"%d" % number for number in range(first, 6)], "in order, at its own pace"
    assert reader.subscription.lag == 0
    await put(broker, 8)
    await quiet()
    assert reader.sink.payloads[-1] == b"8"


async def test_hazard_45_a_restart_delivers_nothing_twice() -> None:
    """At most once: messages delivered since the cursor was written are skipped before a consumer joins."""
    machine = BrokerMachine()
    broker = await opened(machine)
    reader = await subscribe(broker, start=LATEST)
    await put(broker, 0, 1)
    await quiet()
    assert reader.sink.payloads == [b"0", b"1"]
    await machine.kill()
    broker = await machine.open_broker()
    await quiet()
    reader = await subscribe(broker)
    await put(broker, 2)
    await quiet()
    assert reader.sink.payloads == [b"2"]


@KINDS
@pytest.mark.parametrize("how", ["a start", "a seek"])
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_hazard_45_history_waits_over_a_restart_too(kind: SubscriptionType, how: str, end: str) -> None:
    machine = BrokerMachine()
    broker = await opened(machine, 6)
    reader = await subscribe(broker, kind=kind, start=EARLIEST if how == "a start" else LATEST, credit=0)
    if how == "a seek":
        await broker.seek(TOPIC, "s", EARLIEST)
    reader.credit(2)
    await put(broker, 6)
    await quiet()
    assert reader.sink.payloads == [b"0", b"1"]
    await broker.storage.flush_cursors()
    await (broker.shutdown() if end == "stop" else machine.kill())
    broker = await machine.open_broker()
    await quiet()
    reader = await subscribe(broker, kind=kind)
    await quiet()
    expected = [b"%d" % number for number in range(2, 7)]
    assert reader.sink.payloads == expected, "also messages that were skipped while no consumer was there"
    assert reader.subscription.lag == 0
