"""Hazard 33 through the broker: a thousand consumers that take nothing hold neither the log nor a producer."""

from __future__ import annotations

import pytest

from icestream.model.shard import GapState, ShardKey
from icestream.model.subscription_options import SubscriptionType
from icestream.model.topic_policies import PolicyValues
from tests.support.broker_machine import EARLIEST, TOPIC, BrokerMachine, SubscriptionReader, publish, quiet
from tests.support.recording_consumer import RecordingConsumer

pytestmark = pytest.mark.asyncio

SUBSCRIPTIONS, CONSUMERS = 20, 50
KEPT_BYTES = 150_000


async def test_hazard_33_a_thousand_stalled_consumers_each_continue_after_the_gap() -> None:
    machine = BrokerMachine(tail_bytes=50_000, quota_bytes=600_000, topic_quota_bytes=600_000)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC, policies=PolicyValues(retention_bytes=KEPT_BYTES))
    producer = await broker.open_producer(TOPIC, "p")
    await publish(broker, producer, b"0 " + bytes(6000))
    readers: list[SubscriptionReader] = []
    for number in range(SUBSCRIPTIONS * CONSUMERS):
        sink = RecordingConsumer()
        sink.is_full = number % 2 == 0  # every second one takes nothing from its socket, the others ask for nothing
        name, consumer = f"s{number % SUBSCRIPTIONS}", f"c{number}"
        subscription, joined = await broker.subscribe(TOPIC, name, SubscriptionType.SHARED, consumer, sink, EARLIEST)
        if sink.is_full:
            subscription.give_credit(joined, 3)
        readers.append(SubscriptionReader(broker, subscription, joined, sink))

    for number in range(300):  # three times the quota passes through
        stored = await publish(broker, producer, b"%d " % (number + 1) + bytes(6000))
        assert stored == number + 1
    await quiet()
    assert machine.log is not None
    assert machine.log.lifecycle.used_bytes < 400_000
    (gap,) = machine.log.gaps(ShardKey(1, 0))
    assert (gap.start, gap.state) == (0, GapState.DROPPED)
    assert gap.end > 200

    for reader in readers:
        reader.sink.is_full = False
        reader.consumer.drained()
        reader.credit(10)
    await quiet()
    for number in range(SUBSCRIPTIONS):
        mine = readers[number::SUBSCRIPTIONS]
        got = sorted(offset for reader in mine for offset in reader.sink.offsets)
        assert got == [*range(gap.end, 301)], "every remaining message once"
        numbers = [int(payload.split()[0]) for reader in mine for payload in reader.sink.payloads]
        assert sorted(numbers) == got, "no message has bytes of a recycled file (hazard 15)"
        assert all([reported_gap.end for reported_gap in reader.sink.gaps] == [gap.end] for reader in mine), (
            "every consumer is told of the gap"
        )
        assert mine[0].subscription.lag == 301 - gap.end
    await broker.shutdown()
