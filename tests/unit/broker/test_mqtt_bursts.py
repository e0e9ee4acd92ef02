"""Bursts of plain MQTT messages: stored at once, or not at all if one of them needs a decision of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from zlib import crc32

import pytest
import pytest_asyncio

from icestream import limits
from icestream.broker.mqtt.client_link import BurstFailure, PublishBurst, PublishRoute
from icestream.broker.mqtt.message_rows import encode_messages
from icestream.broker.mqtt.mqtt_options import MqttOptions, ReplayRoute
from icestream.broker.service import Broker
from icestream.model import SyncMode
from icestream.model.block_group import BlockGroup
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.mqtt import packets
from icestream.mqtt.reason_codes import ReasonCode
from icestream.security.access_control import AccessControl
from icestream.security.access_policy import OPEN_POLICY
from tests.support.broker_machine import quiet, stored_rows
from tests.support.held_sink import held_log
from tests.support.mqtt_world import MqttMachine, WorldClient, connected

pytestmark = pytest.mark.asyncio
MESSAGES = TopicName("mqtt", "messages")


@pytest.fixture(params=["log", "memory"])
def machine(request: pytest.FixtureRequest) -> MqttMachine:
    return MqttMachine(SyncMode.ALWAYS, in_memory=request.param == "memory")


@pytest.fixture
def log_machine() -> MqttMachine:
    return MqttMachine(SyncMode.ALWAYS, in_flight_bytes=64 * limits.KIB)


@pytest_asyncio.fixture
async def broker(machine: MqttMachine) -> AsyncIterator[Broker]:
    broker = await machine.open_broker()
    yield broker
    await broker.shutdown()


def route_of(client: WorldClient, topic: str) -> PublishRoute | None:
    assert client.session is not None
    return client.session.publish_route(topic)


def takes_bursts(client: WorldClient) -> bool:
    assert client.session is not None
    return client.session.takes_bursts


class Outcomes(list[BurstFailure | None]):
    """What `on_done` of a burst was called with."""


def publish(
    clients: Sequence[WorldClient | None], blocks: dict[int, list[packets.PublishPacket]], publisher: PublishRoute
) -> Outcomes | None:
    """Publishes messages by queue; None if they have to be decided one by one."""
    outcomes = Outcomes()
    encoded = [encode_messages(messages, "burst", 1) for messages in blocks.values()]
    count = len(encoded)
    group = BlockGroup(
        [*accumulate(map(len, encoded))],
        [len(messages) for messages in blocks.values()],
        [-1] * count, [0] * count, [-1] * count, range(1, count + 1),
    )  # fmt: skip
    burst = PublishBurst(
        [None if client is None else client.session for client in clients],
        list(blocks),
        group,
        b"".join(encoded),
        sum(group.rows),
        max(len(message.payload) for messages in blocks.values() for message in messages),
    )
    return outcomes if publisher.publisher.publish_burst(burst, outcomes.append) else None


def message(topic: str, payload: bytes = b"x") -> packets.PublishPacket:
    return packets.PublishPacket(topic, payload, 1, 1)


async def payloads(broker: Broker) -> list[bytes]:
    shards = range(broker.topic(MESSAGES).record.shards)
    rows = [await stored_rows(broker, MESSAGES, shard) for shard in shards]
    return sorted(row["payload"] for shard in rows for row in shard.values())


def queue_of(route: PublishRoute, topic: str) -> int:
    return route.queues[crc32(topic.encode()) % len(route.queues)]


async def test_a_burst_is_stored_in_the_shards_of_its_topics_and_delivered(broker: Broker) -> None:
    subscriber, one, other = [await connected(broker, name) for name in ("s", "a", "b")]
    await subscriber.subscribe("#", qos=1)
    route = route_of(one, "t/1")
    assert route is not None
    assert route_of(other, "t/1") is not None
    assert route.is_for_all
    topics = [f"t/{number}" for number in range(20)]
    blocks: dict[int, list[packets.PublishPacket]] = {}
    for topic in topics:
        blocks.setdefault(queue_of(route, topic), []).append(message(topic, topic.encode()))
    assert len(blocks) == 2
    outcomes = publish([one, other], blocks, route)
    await quiet()
    assert outcomes == [None]
    assert await payloads(broker) == sorted(topic.encode() for topic in topics)
    assert {(await subscriber.message()).payload for _ in topics} == {topic.encode() for topic in topics}
    # The generic path finds each topic in the same shard.
    assert broker.topic(MESSAGES).published_messages == 20
    for topic in topics:
        shard = broker.mqtt.routes.route_of(topic).key.shard
        assert shard == broker.mqtt.bursts._shards[queue_of(route, topic)].key.shard


async def test_a_burst_with_a_client_that_ended_or_was_taken_over_is_not_stored(broker: Broker) -> None:
    one, other = await connected(broker, "a"), await connected(broker, "b")
    route = route_of(one, "t")
    assert route is not None
    assert route_of(other, "t") is not None
    blocks = {route.queues[0]: [message("t")]}
    assert publish([one, None], blocks, route) is None
    await connected(broker, "b")
    assert publish([one, other], blocks, route) is None
    await quiet()
    assert await payloads(broker) == []
    assert publish([one], blocks, route) is not None
    await quiet()


async def test_a_client_without_a_route_has_no_part_in_a_burst(broker: Broker) -> None:
    """What it may publish was never decided."""
    one, other = await connected(broker, "a"), await connected(broker, "b")
    route = route_of(one, "t")
    assert route is not None
    assert publish([one, other], {route.queues[0]: [message("t")]}, route) is None


async def test_hazard_72_routes_declared_before_rights_changed_are_ignored(broker: Broker) -> None:
    access = AccessControl(broker._clock)
    client = await connected(broker, "a", access=access)
    route = route_of(client, "t")
    assert route is not None
    blocks = {route.queues[0]: [message("t")]}
    await access.apply(dataclasses.replace(OPEN_POLICY))
    assert publish([client], blocks, route) is None
    again = route_of(client, "t")
    assert again is not None
    assert again.token is not route.token, "the front end forgets what it was told before"
    assert publish([client], blocks, again) == []
    await quiet()


@pytest.mark.parametrize("topic", ["$SYS/x", "$share/x"])
async def test_a_topic_that_is_refused_has_no_route(broker: Broker, topic: str) -> None:
    assert route_of(await connected(broker, "a"), topic) is None


async def test_a_topic_beside_the_first_route_has_a_route_of_its_own() -> None:
    routes = (
        ReplayRoute("cold/#", 1, "/mqtt/cold"),
        ReplayRoute("never/#", 2, "/mqtt/never"),
        ReplayRoute("#", 0, "/mqtt/messages"),
    )
    machine = MqttMachine(mqtt=MqttOptions(shards=2, replay=routes))
    broker = await machine.open_broker()
    client = await connected(broker, "a")
    cold, hot = route_of(client, "cold/1"), route_of(client, "hot/1")
    assert cold is not None
    assert hot is not None
    assert (len(cold.queues), cold.min_qos, cold.is_for_all) == (1, 1, False)
    assert (len(hot.queues), hot.min_qos, hot.is_for_all) == (1, 0, False)
    assert cold.queues != hot.queues
    assert route_of(client, "never/1") is None, "QoS 0 and 1 are not stored by the route"
    await broker.shutdown()


@pytest.mark.parametrize("policies", [PolicyValues(max_publish_rate=1_000), PolicyValues(max_message_bytes=10)])
async def test_a_policy_that_looks_at_single_messages_has_each_decided(broker: Broker, policies: PolicyValues) -> None:
    client = await connected(broker, "a")
    route = route_of(client, "t")
    assert route is not None
    await broker.set_topic_policies(MESSAGES, policies)
    assert publish([client], {route.queues[0]: [message("t", bytes(100))]}, route) is None
    await quiet()
    assert await payloads(broker) == []


async def test_without_room_in_the_log_nothing_of_a_burst_is_stored(log_machine: MqttMachine) -> None:
    broker = await log_machine.open_broker()
    client = await connected(broker, "a")
    route = route_of(client, "t")
    assert route is not None
    with held_log(log_machine.log) as hold:
        stored = 0
        while publish([client], {route.queues[0]: [message("t", bytes(6_000))]}, route) is not None:
            stored += 1
            assert stored < 1_000
            await quiet()
        # A message that waits for room keeps those behind it from overtaking it.
        client.send(packets.PublishPacket("t", bytes(6_000), 1, 7))
        assert takes_bursts(client) is False
        hold.release()
    await quiet()
    assert (await client.receive(packets.PubackPacket)).packet_id == 7
    assert takes_bursts(client) is True
    assert len(await payloads(broker)) == stored + 1
    await broker.shutdown()


async def test_hazard_66_a_failed_write_has_an_unknown_outcome(log_machine: MqttMachine) -> None:
    broker = await log_machine.open_broker()
    client = await connected(broker, "a")
    route = route_of(client, "t")
    assert route is not None
    with held_log(log_machine.log) as hold:
        outcomes = publish([client], {route.queues[0]: [message("t")]}, route)
        await quiet()
        hold.fail()
        await quiet()
    assert outcomes is not None
    (failure,) = outcomes
    assert failure is not None
    assert failure.is_unknown
    assert failure.reason_code >= ReasonCode.UNSPECIFIED_ERROR
    await broker.shutdown()
