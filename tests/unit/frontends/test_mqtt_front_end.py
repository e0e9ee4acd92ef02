"""The MQTT front end as a part of its node: ports, greeting, metrics, readiness, stop."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from icestream.frontends.mqtt.mqtt_front_end import MqttFrontEnd, connection_options
from icestream.mqtt import packets
from icestream.mqtt.codec import encode_packet
from icestream.mqtt.connection import ConnectionOptions
from icestream.mqtt.reason_codes import ReasonCode
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node.presentation.greeting import announcement, example_commands, greeting
from icestream.settings import Settings, load
from tests.support.certificates import Certificates
from tests.support.mqtt_front import V5, MqttPeer, open_peer, publish
from tests.support.node_settings import node_settings


async def started(folder: Path, **sections: object) -> tuple[BrokerNode, MqttFrontEnd]:
    node = await BrokerNode.start(node_settings(folder, "memory", mqtt={"enable": True}, **sections))
    return node, node.services.front_end(MqttFrontEnd)


async def values(node: BrokerNode, family_name: str, label: str) -> dict[str, float]:
    families = text_string_to_metric_families((await node.services.exposition()).decode())
    (family,) = [family for family in families if family.name == family_name]
    return {sample.labels[label]: sample.value for sample in family.samples}


@pytest.mark.asyncio
async def test_clients_publish_and_subscribe_by_tcp_and_websocket(tmp_path: Path) -> None:
    node, front_end = await started(tmp_path)
    try:
        async with await open_peer(front_end.port) as client:
            await client.connect("reader")
            await client.send(packets.SubscribePacket(1, (packets.SubscriptionRequest("#", 1),)))
            assert await client.read() == packets.SubackPacket(1, (1,))
            async with connect(front_end.web_url, subprotocols=[Subprotocol("mqtt")]) as socket:
                sent = (packets.ConnectPacket("writer"), packets.PublishPacket("a/b", b"21.5", 1, 7))
                await socket.send(b"".join(encode_packet(packet, V5) for packet in sent))
                delivery = await client.read()
                assert isinstance(delivery, packets.PublishPacket)
                assert (delivery.topic, delivery.payload, delivery.qos) == ("a/b", b"21.5", 1)
                assert await values(node, "icestream_connections", "listener") == {
                    "native": 0, "http": 0, "mqtt": 1, "mqtt_ws": 1,
                }  # fmt: skip
            await client.send(packets.PubackPacket(delivery.packet_id))
            await client.ping()
            connects = await values(node, "icestream_mqtt_connects", "reason")
            assert connects["success"] >= 2
    finally:
        await node.stop()


@pytest.mark.asyncio
async def test_the_node_shows_its_mqtt_addresses(tmp_path: Path) -> None:
    node, front_end = await started(tmp_path)
    try:
        assert front_end.port
        assert front_end.web_port
        web_url = f"ws://127.0.0.1:{front_end.web_port}/mqtt"
        shown = announcement(node)
        assert (shown["mqtt"], shown["mqtt_ws"]) == (f"mqtt://127.0.0.1:{front_end.port}", web_url)
        assert f"  MQTT: mqtt://127.0.0.1:{front_end.port}, {web_url}" in list(greeting(node))
        (line,) = [line for line in example_commands(node) if line.startswith("mosquitto_pub ")]
        assert line.startswith(f"mosquitto_pub -p {front_end.port} -q 1 -t sensors/1/temperature -m 21.5")
        ports = node.services.ports()
        assert (ports["mqtt_port"], ports["mqtt_ws_port"]) == (front_end.port, front_end.web_port)
    finally:
        await node.stop()


@pytest.mark.asyncio
async def test_addresses_of_tls_say_so_and_no_command_is_shown_that_would_fail(tmp_path: Path) -> None:
    pem = Certificates(tmp_path / "pem")
    node, front_end = await started(tmp_path / "data", tls=pem.settings())
    try:
        assert front_end.url == f"mqtts://127.0.0.1:{front_end.port}"
        assert front_end.web_url == f"wss://127.0.0.1:{front_end.web_port}/mqtt"
        assert not any("mosquitto_pub" in line for line in greeting(node))
    finally:
        await node.stop()


@pytest.mark.asyncio
async def test_without_mqtt_nothing_listens_and_nothing_is_shown(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path, "memory"))
    try:
        front_end = node.services.front_end(MqttFrontEnd)
        assert (front_end.port, front_end.web_port, front_end.url) == (0, 0, "")
        assert not any("MQTT" in line or "mosquitto" in line for line in greeting(node))
        assert announcement(node)["mqtt"] is None
    finally:
        await node.stop()


@pytest.mark.asyncio
async def test_a_stop_of_the_node_acks_stored_messages_and_sends_the_reason(tmp_path: Path) -> None:
    """Hazard 73."""
    node, front_end = await started(tmp_path)
    client: MqttPeer
    async with await open_peer(front_end.port) as client:
        await client.connect("writer")
        await client.send(publish(1, b"one"))
        assert await client.read() == packets.PubackPacket(1)
        stopping = node.stop()
        await client.send(publish(2, b"two"))
        await stopping
        *acks, disconnect = await client.read_all()
        assert acks in ([], [packets.PubackPacket(2)])
        assert isinstance(disconnect, packets.DisconnectPacket)
        assert disconnect.reason_code == ReasonCode.SERVER_SHUTTING_DOWN


def test_the_default_settings_are_the_default_bounds_of_a_connection() -> None:
    options = connection_options(Settings.default())
    assert options == ConnectionOptions(session_expiry_seconds_max=options.session_expiry_seconds_max)


def test_settings_bound_a_connection() -> None:
    flags = [
        "mqtt.receive_maximum=20", "mqtt.packet_bytes_max=2KiB", "mqtt.keep_alive_max_s=60s",
        "mqtt.topic_aliases_max=1", "mqtt.session_expiry_max_s=10d", "mqtt.shared_subscriptions=false",
    ]  # fmt: skip
    assert connection_options(load(flags=flags).settings) == ConnectionOptions(
        packet_bytes_max=2048,
        receive_maximum=20,
        in_flight_max=20,
        topic_aliases_max=1,
        keep_alive_seconds_max=60,
        session_expiry_seconds_max=864_000,
        is_shared_available=False,
    )
