"""Hazard 86 by protocol: a client of Danube and a replay of MQTT begin at the first kept offset, as native clients do
(test_hazard_86_brokers.py). Neither protocol has a word for gaps: the next message is the first kept one."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.broker.service import Broker
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import RetainedRecord
from icestream.frontends.danube.danube_service import DanubeOptions, DanubeService
from icestream.model.shard import ShardKey
from icestream.mqtt.properties import Properties, PropertyId
from tests.support.broker_machine import TOPIC, publish, quiet
from tests.support.danube_handlers import URL, DanubeHandlers
from tests.support.mqtt_tiers import TieredMqttMachine
from tests.support.mqtt_world import connected
from tests.support.secured_access import open_door
from tests.support.tiers import TieredMachine

pytestmark = pytest.mark.asyncio
KEY = ShardKey(1, 0)
COUNT = 40


async def retain(machine: TieredMachine, broker: Broker, first: int) -> None:
    """As the commit of a retention; the broker has heard of it afterwards."""
    record = catalog_records.encode(RetainedRecord({0: first}, 0))
    await machine.store.put(catalog_keys.retained_key(KEY.topic_id), record)
    for _ in range(100):
        await quiet()
        if broker.storage.shard_stream(KEY).log_start() >= first:
            return
    raise AssertionError("the broker has not heard of the first kept offset")


@pytest.mark.parametrize("first", [7, 33], ids=["in the table", "in the log"])
async def test_a_danube_client_begins_at_the_first_kept_offset(tmp_path: Path, first: int) -> None:
    """A new subscription from the beginning, and one that stands below it."""
    machine = TieredMachine(tmp_path)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    service = DanubeService(open_door(broker), broker.store, machine.clock, DanubeOptions(URL, 100_000))
    danube = DanubeHandlers(broker, service)
    late = await danube.subscribe(str(TOPIC), "late", "late", start="earliest")
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(COUNT):
        if number == COUNT // 2:
            await machine.commit()
            await machine.forget()
        await publish(broker, producer, b"%d " % number + bytes(4_000))
    await retain(machine, broker, first)
    fresh = await danube.subscribe(str(TOPIC), "fresh", "fresh", start="earliest")
    for consumer, subscription in ((late, "late"), (fresh, "fresh")):
        receiving = danube.receive(consumer)
        acked = 0
        for _ in range(300):
            await machine.pass_time(1.0)
            for message in receiving.stream.messages[acked:]:
                await danube.ack(message, subscription)
            acked = len(receiving.stream.messages)
            if acked == COUNT - first:
                break
        assert [int(payload.split()[0]) for payload in receiving.stream.payloads] == list(range(first, COUNT))
        await receiving.cancel()
    service.leave()
    await service.close()
    await broker.shutdown()


@pytest.mark.parametrize("first", [7, 33], ids=["in the table", "in the log"])
async def test_a_replay_of_mqtt_begins_at_the_first_kept_offset(tmp_path: Path, first: int) -> None:
    machine = TieredMqttMachine(tmp_path)
    broker = await machine.open_broker()
    publisher = await connected(broker, "p")
    warm_up = await connected(broker, "w")
    await warm_up.subscribe("x")
    await machine.lake.bind()
    for number in range(COUNT):
        if number == COUNT // 2:
            await machine.commit()
            await machine.forget()
        await publisher.publish("plant/heat", b"%d " % number + bytes(4_000))
    await retain(machine, broker, first)
    subscriber = await connected(broker, "s")
    replay = Properties([(PropertyId.USER_PROPERTY, ("replay-from", "earliest"))])
    await subscriber.subscribe("plant/#", qos=1, properties=replay)
    numbers = [int((await subscriber.message()).payload.split()[0]) for _ in range(COUNT - first)]
    assert numbers == list(range(first, COUNT))
    await quiet()
    assert not subscriber.deliveries()
    await broker.shutdown()
