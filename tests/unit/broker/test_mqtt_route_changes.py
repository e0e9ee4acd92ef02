"""Routes of MQTT that change while the broker runs, and at a start: what was stored first is read first (hazard 64)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from icestream import errors
from icestream.broker.mqtt.mqtt_options import MqttOptions, ReplayRoute
from icestream.broker.mqtt.route_generations import ENDS_PREFIX, FormerGenerations, GenerationEnd
from icestream.broker.service import Broker
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.mqtt import packets
from icestream.processes.broker_process import BrokerNode
from tests.support.broker_machine import quiet, stored_rows
from tests.support.mqtt_world import MqttMachine, WorldClient, connected
from tests.support.node_settings import node_settings
from tests.support.until import until

pytestmark = pytest.mark.asyncio
Routes = tuple[ReplayRoute, ...]


def routes(*texts: str) -> Routes:
    parts = (text.split(" -> ") for text in texts)
    return tuple(ReplayRoute(topic_filter, 0, topic) for topic_filter, topic in parts)


ALL = routes("# -> /mqtt/messages")


async def durable(broker: Broker, **options: int) -> WorldClient:
    return await connected(broker, "s", clean=False, expiry_s=3_600, **options)


async def payloads(broker: Broker, topic: str) -> list[bytes]:
    name = TopicName.parse(topic)
    shards = broker.topic(name).record.shards
    return [row["payload"] for shard in range(shards) for row in (await stored_rows(broker, name, shard)).values()]


async def test_other_routes_hold_at_once_and_clients_are_disconnected_with_a_reason() -> None:
    broker = await MqttMachine(mqtt=MqttOptions(shards=2)).open_broker()
    client, publisher = await durable(broker), await connected(broker, "p")
    await client.subscribe("t/#")
    await publisher.publish("t/x", b"1")
    await broker.mqtt.change_routes(routes("t/# -> /plant/t", "# -> /mqtt/messages"))
    await quiet()
    for ended in (client, publisher):
        (goodbye,) = (packet for packet in ended.received if isinstance(packet, packets.DisconnectPacket))
        assert goodbye.reason_code == 0x98
    client, publisher = await durable(broker), await connected(broker, "p")
    assert client.history[0].is_session_present  # type: ignore[union-attr]
    await publisher.publish("t/x", b"2")
    assert [(await client.message()).payload for _ in range(2)] == [b"1", b"2"]
    assert (await payloads(broker, "/mqtt/messages"), await payloads(broker, "/plant/t")) == ([b"1"], [b"2"])
    await broker.shutdown()


MOVES: list[list[Routes]] = [
    [ALL, routes("# -> /mqtt/other"), ALL],  # away and back: old and new rows are in the same shards
    [routes("t/# -> /plant/x", "# -> /plant/y"), routes("u -> /plant/x", "# -> /plant/y"), routes("# -> /plant/x")],
    [routes("# -> /plant/y"), routes("t/a -> /plant/x", "# -> /plant/y"), routes("t/b -> /plant/x", "# -> /plant/y")],
]


@pytest.mark.parametrize("how", ["online", "restarted", "killed"])
@pytest.mark.parametrize("changes", MOVES)
async def test_hazard_64_each_topic_keeps_its_order_whatever_moves(changes: list[Routes], how: str) -> None:
    """A session reads slowly, while its backlog has rows of each generation, in topics that the routes still name."""
    machine = MqttMachine(mqtt=MqttOptions(shards=2, replay=changes[0]))
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("t/#")
    client.lose()
    topics, sent = ("t/a", "t/b", "t/c"), dict[str, list[bytes]]()
    for turn, replay in enumerate(changes):
        if turn and how == "online":
            await broker.mqtt.change_routes(replay)
        elif turn:
            machine.mqtt = MqttOptions(shards=2, replay=replay)
            await (machine.kill() if how == "killed" else broker.shutdown())
            machine.disk.kill()
            broker = await machine.open_broker()
        publisher = await connected(broker, "p")
        for number in range(4):
            for topic in topics:
                sent.setdefault(topic, []).append(b"%d/%d" % (turn, number))
                await publisher.publish(topic, sent[topic][-1])
    client = await durable(broker, receive_maximum=2)
    for topic in topics:  # while it catches up
        sent[topic].append(b"last")
        await publisher.publish(topic, b"last")
    messages = [await client.message() for _ in range(sum(map(len, sent.values())))]
    received = {topic: [message.payload for message in messages if message.topic == topic] for topic in topics}
    assert received == sent
    await quiet()
    assert not client.deliveries()
    await broker.shutdown()


async def test_ends_of_former_generations_are_forgotten_when_no_session_is_below_them() -> None:
    machine = MqttMachine(mqtt=MqttOptions(shards=1))
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("t")
    client.lose()
    await (await connected(broker, "p")).publish("t", b"1")
    await broker.mqtt.change_routes(routes("# -> /mqtt/other"))
    assert len(await machine.store.list_all(ENDS_PREFIX)) == 1
    assert (await (await durable(broker)).message()).payload == b"1"
    await quiet()
    await broker.mqtt.change_routes(ALL)
    await broker.mqtt.change_routes(routes("# -> /mqtt/third"))
    assert await machine.store.list_all(ENDS_PREFIX) == []
    await broker.shutdown()


async def test_routes_stay_if_a_topic_of_the_new_ones_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await MqttMachine(mqtt=MqttOptions(shards=1)).open_broker()
    publisher = await connected(broker, "p")
    provide = broker.provide_route_topic

    async def refuse(name: TopicName, shards: int) -> object:
        if name.name == "elsewhere":
            raise errors.TopicElsewhere("topic /mqtt/elsewhere is served by node node-2")
        return await provide(name, shards)

    monkeypatch.setattr(broker, "provide_route_topic", refuse)
    broker.mqtt.begin_route_change(routes("# -> /mqtt/elsewhere"))
    await quiet()
    assert publisher.ended is None
    await publisher.publish("t", b"1")
    assert await payloads(broker, "/mqtt/messages") == [b"1"]
    await broker.shutdown()


@pytest.mark.parametrize("seed", range(20))
async def test_the_generation_of_an_offset_is_the_oldest_that_ended_behind_it(seed: int) -> None:
    chance = random.Random(seed)
    ends, end = list[GenerationEnd](), 0
    for generation in range(1, chance.randint(2, 6)):
        end += chance.randint(0, 4)
        ends.append(GenerationEnd(generation, end))
    former = FormerGenerations(chance.sample(ends, len(ends)))
    for offset in range(30):
        later = [entry for entry in ends if entry.end > offset]
        assert former.generation_at(offset) == (later[0].generation if later else 0)
        assert former.end_after(offset, 25) == min([25, *(entry.end for entry in later[:1])])


async def test_the_setting_changes_the_routes_of_a_running_node_and_of_its_next_start(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path, mqtt={"enable": True}))
    assert node.services.online is not None
    client = await durable(node.broker)
    await node.services.online.set("mqtt.replay", ["# -> /plant/all"])
    await until(lambda: client.ended is not None)
    await (await connected(node.broker, "p")).publish("t", b"1")
    await until(lambda: node.broker.find_topic(TopicName("plant", "all")) is not None)
    await node.stop()
    node = await BrokerNode.start(node_settings(tmp_path, mqtt={"enable": True}))
    await durable(node.broker)
    assert [str(target.topic.name) for target in node.broker.mqtt.routes.targets] == ["/plant/all"]
    record = await node.store.get("/mqtt/routes")
    assert record is not None
    assert b'"generation":2' in record.value, "a start with the same routes begins no generation"
    await node.stop()


async def test_what_a_route_keeps_is_what_its_topic_keeps_unless_a_policy_says_otherwise() -> None:
    week = ReplayRoute("t/#", 0, "/plant/t", retention_ms=7 * 86_400_000, retention_bytes=10**9)
    machine = MqttMachine(mqtt=MqttOptions(shards=2, replay=(week, *ALL)))
    broker = await machine.open_broker()
    client = await durable(broker)
    name = TopicName.parse("/plant/t")

    def kept() -> tuple[int | None, int | None]:
        policies = broker.topic(name).policies
        return policies.retention_ms, policies.retention_bytes

    assert kept() == (7 * 86_400_000, 10**9)
    (retained,) = broker.topics.next_retained_topics()
    assert (retained.name, retained.age_ms, retained.bytes_max) == ("/plant/t", 7 * 86_400_000, 10**9)
    await broker.set_topic_policies(name, PolicyValues(retention_ms=1_000))
    assert kept() == (1_000, 10**9)
    await broker.set_topic_policies(name, PolicyValues(mqtt_columns="on"))
    # Only what is kept changes: no client is disconnected.
    await broker.mqtt.change_routes((week._replace(retention_ms=86_400_000, retention_bytes=0), *ALL))
    await quiet()
    assert kept() == (86_400_000, None)
    assert not any(isinstance(packet, packets.DisconnectPacket) for packet in client.received)
    await broker.mqtt.change_routes((ReplayRoute("t/#", 0, "/plant/t"), *ALL))
    assert kept() == (None, None)
    assert broker.topics.next_retained_topics() == []
    await broker.shutdown()
