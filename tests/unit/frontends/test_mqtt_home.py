"""MQTT in a cluster (ADR 81): one node serves it, and clients connect to any node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from icestream import errors, limits
from icestream.admin_api import mqtt_api as api
from icestream.broker import records
from icestream.broker.guarded_broker import BrokerDoor, GuardedBroker
from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.broker.service import Broker
from icestream.cluster.members import decode_record, encode_record, node_key
from icestream.frontends.mqtt.mqtt_front_end import MqttFrontEnd
from icestream.model.topic_name import TopicName
from icestream.mqtt import packets
from icestream.mqtt.properties import PropertyId
from icestream.mqtt.reason_codes import ReasonCode
from icestream.runtime.listener_tls import ListenerTls
from icestream.settings import load
from tests.support.certificates import Certificates
from tests.support.free_ports import free_ports
from tests.support.mqtt_client import V3, V5, ConnectionClosed, MqttClient, open_client
from tests.support.mqtt_front import client_context
from tests.support.proxy_header import proxy_header
from tests.support.secured_access import open_door
from tests.support.two_nodes import FIRST, SECOND, TwoNodes, two_nodes
from tests.support.until import until
from tests.unit.frontends.test_mqtt_access import listener_tls

MQTT = MqttOptions(shards=2)


class Node:
    """What a front end uses of its node."""

    def __init__(self, broker: Broker, tls: ListenerTls | None) -> None:
        self.door: BrokerDoor = open_door(broker)
        self._tls = tls

    def tls(self, listener: str) -> ListenerTls | None:
        return self._tls


class MqttNodes:
    """Two nodes with MQTT; the first client makes one of them MQTT's."""

    def __init__(self, nodes: TwoNodes, tls: Sequence[ListenerTls | None], proxies: Sequence[str]) -> None:
        self.nodes = nodes
        self.front_ends: list[MqttFrontEnd] = []
        flags = [f"mqtt.proxy_protocol_from={','.join(proxies)}"] if proxies else []
        for broker, own_tls in zip((nodes.first, nodes.second), tls, strict=True):
            mqtt, web = free_ports(2)
            settings = load(flags=["node.bind_host=127.0.0.1", f"ports.mqtt={mqtt}", f"ports.mqtt_ws={web}", *flags])
            self.front_ends.append(MqttFrontEnd(settings.settings, Node(broker, own_tls)))  # type: ignore[arg-type]

    async def open(self) -> None:
        for node_id, front_end in zip((FIRST, SECOND), self.front_ends, strict=True):
            await front_end.listen()
            await self.announce(node_id, f"127.0.0.1:{front_end.port}", f"127.0.0.1:{front_end.web_port}")

    async def announce(self, node_id: int, mqtt: str, mqtt_ws: str) -> None:
        entry = await self.nodes.store.get(node_key(node_id))
        assert entry is not None
        record = msgspec.structs.replace(decode_record(entry.value), mqtt=mqtt, mqtt_ws=mqtt_ws)
        await self.nodes.store.put(node_key(node_id), encode_record(record))

    def port(self, number: int) -> int:
        return self.front_ends[number].port

    async def becomes_home(self, number: int) -> None:
        """By its first client."""
        async with await open_client(self.port(number)) as client:
            assert (await client.connect("first")).reason_code == 0
        await until(lambda: self.is_relaying(1 - number))

    def is_relaying(self, number: int) -> bool:
        return all(listener._is_relaying for listener in self.front_ends[number]._listeners())


@asynccontextmanager
async def cluster(
    tls: Sequence[ListenerTls | None] = (None, None), proxies: Sequence[str] = ()
) -> AsyncIterator[MqttNodes]:
    async with two_nodes(mqtt=MQTT) as nodes:
        cluster = MqttNodes(nodes, tls, proxies)
        await cluster.open()
        try:
            yield cluster
        finally:
            for front_end in cluster.front_ends:
                await front_end.close()


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.asyncio
async def test_a_client_connects_to_any_node_and_finds_one_broker(home: int, version: int) -> None:
    async with cluster() as nodes:
        await nodes.becomes_home(home)
        other = 1 - home
        async with (
            await open_client(nodes.port(other), version) as reader,  # type: ignore[arg-type]
            await open_client(nodes.port(home), version) as writer,  # type: ignore[arg-type]
        ):
            await reader.connect("reader", is_clean_start=False, expiry_seconds=60 if version is V5 else None)
            await reader.subscribe(("a/#", 2))
            await writer.connect("writer")
            for number, qos in enumerate((0, 1, 2)):
                await writer.publish("a/b", b"%d" % number, qos=qos)
            assert [(await reader.message()).payload for _ in range(3)] == [b"0", b"1", b"2"]
        # Its session is found through the other node too, with what came meanwhile.
        async with await open_client(nodes.port(other)) as writer:
            await writer.connect("writer")
            await writer.publish("a/b", bytes(300_000), qos=1)
        async with await open_client(nodes.port(home), version) as reader:  # type: ignore[arg-type]
            connack = await reader.connect("reader", is_clean_start=False)
            assert connack.is_session_present
            messages = [await reader.message() for _ in range(3)]  # two were not acked
            assert len(messages[-1].payload) == 300_000


@pytest.mark.asyncio
async def test_hazard_56_a_filter_holds_from_suback_on_whichever_node_publishers_use() -> None:
    """One node decides what is stored, so there is no node that hears of a filter late."""
    async with cluster() as nodes:
        await nodes.becomes_home(0)
        async with await open_client(nodes.port(1)) as reader:
            await reader.connect("reader", is_clean_start=False, expiry_seconds=60)
            for number in range(50):
                async with await open_client(nodes.port(number % 2)) as writer:
                    await writer.connect(f"writer-{number}")
                    await reader.subscribe((f"t/{number}", 1))
                    await writer.publish(f"t/{number}", b"%d" % number)
        async with await open_client(nodes.port(0)) as reader:
            await reader.connect("reader", is_clean_start=False, expiry_seconds=60)
            assert [(await reader.message()).payload for _ in range(50)] == [b"%d" % number for number in range(50)]


@pytest.mark.asyncio
async def test_a_second_connection_by_another_node_takes_the_session_over() -> None:
    async with cluster() as nodes:
        await nodes.becomes_home(0)
        async with await open_client(nodes.port(1)) as older, await open_client(nodes.port(0)) as newer:
            await older.connect("c")
            await newer.connect("c")
            goodbye = await older.receive(packets.DisconnectPacket)
            assert goodbye.reason_code == ReasonCode.SESSION_TAKEN_OVER


@pytest.mark.asyncio
async def test_two_first_clients_at_two_nodes_leave_one_home() -> None:
    async with cluster() as nodes:
        clients = [await open_client(nodes.port(number)) for number in (0, 1)]
        connacks = await asyncio.gather(*(client.connect("c") for client in clients))
        reasons = sorted(connack.reason_code for connack in connacks)
        assert reasons in ([0, 0], [0, ReasonCode.USE_ANOTHER_SERVER])
        for client, connack in zip(clients, connacks, strict=True):
            if connack.reason_code:
                reference = connack.properties.text(PropertyId.SERVER_REFERENCE)
                assert reference in [f"127.0.0.1:{nodes.port(number)}" for number in (0, 1)]
            await client.close()
        await until(lambda: nodes.is_relaying(0) != nodes.is_relaying(1))
        for number in (0, 1):
            async with await open_client(nodes.port(number)) as client:
                assert (await client.connect("again")).reason_code == 0


@pytest.mark.asyncio
async def test_a_node_without_a_way_to_the_home_closes_connections_and_finds_it_again() -> None:
    async with cluster() as nodes:
        await nodes.becomes_home(0)
        await nodes.front_ends[0].close()
        async with await open_client(nodes.port(1)) as client:
            with pytest.raises(ConnectionClosed):
                await client.connect("c")
        await nodes.front_ends[0].listen()
        async with await open_client(nodes.port(1)) as client:
            assert (await client.connect("c")).reason_code == 0


@pytest.mark.asyncio
async def test_a_connection_that_a_stopped_relay_had_ends() -> None:
    async with cluster() as nodes:
        await nodes.becomes_home(0)
        async with await open_client(nodes.port(1)) as client:
            await client.connect("c")
            assert [room.open for room in nodes.front_ends[1].connections] == [1, 0]
            await nodes.front_ends[1].close()
            with pytest.raises(ConnectionClosed):
                await client.read()
        await until(lambda: not nodes.nodes.first.mqtt.clients)


@pytest.mark.asyncio
async def test_tls_ends_at_the_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A relay has no part in the handshake, and needs no certificate of its own for it."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    async with cluster(tls=(listener_tls(certificates, "none"), None)) as nodes:
        await nodes.nodes.first.provide_route_topic(TopicName("mqtt", "messages"), 2)
        await until(lambda: nodes.is_relaying(1))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", nodes.port(1), ssl=client_context(certificates.ca), server_hostname="localhost"
        )
        async with MqttClient(reader, writer, V5) as client:
            assert (await client.connect("c")).reason_code == 0


@pytest.mark.asyncio
async def test_the_home_gets_the_address_of_a_client_where_it_takes_headers() -> None:
    async with cluster(proxies=["127.0.0.1"]) as nodes:
        await nodes.nodes.first.provide_route_topic(TopicName("mqtt", "messages"), 2)
        await until(lambda: nodes.is_relaying(1))
        async with await open_client(nodes.port(1)) as client:
            await client.send_bytes(proxy_header("192.0.2.7", 4711))
            await client.connect("c")
            assert nodes.nodes.first.mqtt.clients["c"].address == "192.0.2.7:4711"


@pytest.mark.asyncio
async def test_no_more_connections_are_passed_on_than_a_listener_may_have() -> None:
    async with cluster() as nodes:
        await nodes.becomes_home(0)
        relay = nodes.front_ends[1]._listeners()[0]._relay
        relay._connections_max = 1
        async with await open_client(nodes.port(1)) as client, await open_client(nodes.port(1)) as refused:
            await client.connect("c")
            with pytest.raises(ConnectionClosed):
                await refused.connect("refused")
            assert relay.state.refused == 1
        await until(lambda: relay.state.open == 0)


@pytest.mark.asyncio
async def test_listings_of_another_node_name_the_home() -> None:
    async with cluster() as nodes:
        await nodes.becomes_home(0)
        guarded: GuardedBroker = open_door(nodes.nodes.second).admit_anonymous("test", "local")
        with pytest.raises(errors.TopicElsewhere, match="served by node node-a") as refused:
            await guarded.mqtt.sessions(api.PageMqttSessions(limit=10))
        assert refused.value.details["mqtt"] == f"127.0.0.1:{nodes.port(0)}"


@pytest.mark.asyncio
async def test_a_node_that_takes_the_topics_over_serves_mqtt_itself() -> None:
    async with cluster() as nodes:
        await nodes.becomes_home(0)
        name = TopicName("mqtt", "messages")
        record = nodes.nodes.second.find_topic_record(name)
        assert record is not None
        await nodes.front_ends[0].close()
        moved = msgspec.structs.replace(record, owner=f"{SECOND:016x}")
        await nodes.nodes.store.put(records.topic_key(name), records.encode(moved))
        await until(lambda: not nodes.is_relaying(1))


def test_a_dial_ends_before_the_time_of_the_connection_that_waits_for_it() -> None:
    assert limits.MQTT_RELAY_DIAL_SECONDS < limits.TLS_HANDSHAKE_SECONDS_MAX
