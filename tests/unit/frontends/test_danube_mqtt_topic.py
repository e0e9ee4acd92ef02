"""A Danube consumer of the topic in which MQTT messages are stored, and its producer for MQTT subscribers."""

from __future__ import annotations

import pytest

from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.frontends.danube.danube_service import DanubeOptions, DanubeService
from tests.support.danube_handlers import URL, DanubeHandlers
from tests.support.mqtt_world import MqttMachine, connected
from tests.support.secured_access import open_door

pytestmark = pytest.mark.asyncio
TOPIC = "/mqtt/messages"


async def test_danube_clients_read_what_mqtt_clients_publish_and_reach_mqtt_subscribers() -> None:
    machine = MqttMachine(mqtt=MqttOptions(shards=1), in_memory=True)
    broker = await machine.open_broker()
    mqtt_client = await connected(broker, "device")
    await mqtt_client.subscribe("#", qos=1)
    service = DanubeService(open_door(broker), broker.store, machine.clock, DanubeOptions(URL, 100_000))
    danube = DanubeHandlers(broker, service)
    consumer = await danube.subscribe(TOPIC, start="earliest")
    stream = danube.receive(consumer)
    for number in range(3):
        await mqtt_client.publish(f"plant/{number}", b"%d" % number)
    messages = await stream.stream.until(3)
    assert [message.payload for message in messages] == [b"0", b"1", b"2"]
    assert [message.routing_key for message in messages] == [f"plant/{number}" for number in range(3)]
    producer = await danube.producer(TOPIC)
    await danube.send(producer, b"from danube", TOPIC)
    arrived = [await mqtt_client.message() for _ in range(4)]
    assert (arrived[-1].topic, arrived[-1].payload) == ("mqtt/messages", b"from danube")
    await stream.cancel()
    service.leave()
    await service.close()
    await broker.shutdown()
