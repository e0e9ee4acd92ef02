"""The client of these tests sees what a broker does wrong: scripted packets instead of a broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from icestream.mqtt import packets
from icestream.mqtt.codec import encode_packet
from icestream.mqtt.properties import Properties, PropertyId
from tests.support.mqtt_client import (
    V3,
    V5,
    ConnectionClosed,
    MqttClient,
    ProtocolViolation,
    open_client,
    property_list,
)

CONNACK = packets.ConnackPacket()


@contextlib.asynccontextmanager
async def scripted(*answers: packets.Packet, version: packets.ProtocolVersion = V5) -> AsyncIterator[MqttClient]:
    """A client whose broker sends these packets, whatever it gets, and closes when the client does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(encode_packet(packet, version) for packet in answers))
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, await open_client(server.sockets[0].getsockname()[1], version) as client:
        yield client


def delivery(packet_id: int, qos: int = 1, **changes: bool) -> packets.PublishPacket:
    return packets.PublishPacket("a", b"x", qos, packet_id, **changes)


WRONG = {
    "a delivery before CONNACK": [delivery(1)],
    "a second CONNACK": [CONNACK, CONNACK],
    "a packet of clients": [CONNACK, packets.PingreqPacket()],
    "an id in flight without DUP": [CONNACK, delivery(1), delivery(1)],
    "more than Receive Maximum": [CONNACK, delivery(1), delivery(2), delivery(3)],
    "an alias above the maximum": [
        CONNACK,
        packets.PublishPacket("a", b"", properties=Properties([(PropertyId.TOPIC_ALIAS, 3)])),
    ],
    "an alias without a topic": [
        CONNACK,
        packets.PublishPacket("", b"", properties=Properties([(PropertyId.TOPIC_ALIAS, 1)])),
    ],
    "an ack that nothing waits for": [CONNACK, packets.PubackPacket(7)],
    "a PUBREL without PUBREC": [CONNACK, packets.PubrelPacket(7)],
    "a packet above the maximum": [CONNACK, packets.PublishPacket("a", bytes(200))],
}


async def read_everything(client: MqttClient) -> None:
    await client.connect(properties=property_list(receive_maximum=2, topic_alias_maximum=2, maximum_packet_size=100))
    while True:
        await client.read()


@pytest.mark.asyncio
@pytest.mark.parametrize("answers", WRONG.values(), ids=WRONG)
async def test_a_breach_of_the_broker_is_a_violation(answers: list[packets.Packet]) -> None:
    async with scripted(*answers) as client:
        with pytest.raises(ProtocolViolation):
            await read_everything(client)


@pytest.mark.asyncio
async def test_a_disconnect_of_a_broker_of_3_1_1_is_a_violation() -> None:
    async with scripted(CONNACK, packets.DisconnectPacket(), version=V3) as client:
        with pytest.raises(ProtocolViolation, match=r"3\.1\.1"):
            await read_everything(client)


@pytest.mark.asyncio
async def test_unrequested_packets_stay_in_order() -> None:
    answers = [CONNACK, delivery(1), packets.PingrespPacket(), delivery(1, is_duplicate=True)]
    async with scripted(*answers) as client:
        await client.connect()
        await client.ping()
        assert await client.messages(2) == [answers[1], answers[3]]
        assert client.received == answers
        assert client.in_flight == {1: answers[3]}


@pytest.mark.asyncio
async def test_an_alias_is_replaced_by_its_topic() -> None:
    alias = Properties([(PropertyId.TOPIC_ALIAS, 1)])
    answers = [packets.PublishPacket(topic, b"", properties=alias) for topic in ("a/b", "", "c", "")]
    async with scripted(CONNACK, *answers) as client:
        await client.connect(properties=property_list(topic_alias_maximum=1))
        assert [delivery.topic for delivery in await client.messages(4)] == ["a/b", "a/b", "c", "c"]


@pytest.mark.asyncio
async def test_the_end_of_a_connection_names_the_reason() -> None:
    async with scripted(CONNACK, packets.DisconnectPacket(0x8E)) as client:
        await client.connect()
        await client.read()
        client.end_of_stream()
        with pytest.raises(ConnectionClosed) as closed:
            await client.read()
        assert closed.value.reason_code == 0x8E
