"""What hostile clients, and single faults, did to other brokers, by name. Rights: tests/hazards/test_hazard_118_*.

CVE-2026-21888   NanoMQ: a length of five bytes is read beyond the buffer
CVE-2026-32696   NanoMQ: a CONNECT without a credential, where credentials are checked, ends the broker
moquette 0.18.1  a malformed `$share` ends the broker; a command that fails ends the session loop; an entry that
                 fails ends all expirations; a will to a topic that its client may not publish to is published
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from icestream import errors
from icestream.broker.mqtt.connected_client import ConnectedClient
from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.broker.mqtt.mqtt_service import MqttService
from icestream.broker.mqtt.mqtt_session import MqttSession
from icestream.broker.service import Broker
from icestream.model.topic_name import TopicName
from icestream.mqtt import packets
from icestream.mqtt.codec import encode_packet
from tests.support.broker_machine import quiet, stored_rows
from tests.support.mqtt_world import V3, V5, MqttMachine, WorldClient, connected
from tests.support.secured_access import SecuredAccess

pytestmark = pytest.mark.asyncio


async def still_serves(broker: Broker) -> bool:
    """Another client publishes to itself."""
    client = await connected(broker, "witness")
    await client.subscribe("witness", qos=1)
    await client.publish("witness", b"alive")
    delivered = (await client.message()).payload == b"alive"
    client.send(packets.DisconnectPacket())
    return delivered


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("kind", [0x30, 0x32, 0x82, 0xC0])
async def test_cve_2026_21888_a_length_of_five_bytes_ends_its_connection(version: Any, kind: int) -> None:
    broker = await MqttMachine().open_broker()
    client = await connected(broker, "c", version)
    client._handle(client._connection.receive_data(bytes([kind, 0xFF, 0xFF, 0xFF, 0xFF, 0x01])))
    assert client.ended is not None
    assert client.ended.reason_code == 0x81
    assert await still_serves(broker)
    await broker.shutdown()


@pytest.mark.parametrize("version", [V3, V5])
async def test_cve_2026_21888_a_property_length_of_five_bytes_ends_its_connection(version: Any) -> None:
    broker = await MqttMachine().open_broker()
    client = WorldClient(broker, "c", version)
    data = bytearray(encode_packet(client.connect_packet, version))
    data[-3:] = bytes([0xFF, 0xFF, 0xFF])
    client._handle(client._connection.receive_data(bytes(data)))
    await quiet()
    assert client.session is None
    assert await still_serves(broker)
    await broker.shutdown()


async def test_cve_2026_32696_a_connect_without_a_credential_is_refused_where_credentials_are_checked() -> None:
    broker = await MqttMachine().open_broker()
    access = SecuredAccess({"alice": ["all on mqtt:#"]})
    anonymous = WorldClient(broker, "a", V5, access=access)
    with pytest.raises(errors.Unauthenticated):
        await anonymous.connect()
    alice = await connected(broker, "b", access=access, user="alice")
    assert (await alice.publish("t", b"x")).reason_code == 0  # type: ignore[union-attr]
    await broker.shutdown()


@pytest.mark.parametrize(
    "topic_filter",
    ["$share", "$share/", "$share//t", "$share/g", "$share/g/", "$share/+/t", "$share/#/t", "$share/g/a#"],
)
@pytest.mark.parametrize("version", [V3, V5])
async def test_moquette_a_malformed_share_is_refused_and_ends_nothing_else(version: Any, topic_filter: str) -> None:
    broker = await MqttMachine().open_broker()
    client = await connected(broker, "c", version)
    client.send(packets.SubscribePacket(7, (packets.SubscriptionRequest(topic_filter, 1),)))
    await quiet()
    answers = [packet for packet in client.received if isinstance(packet, packets.SubackPacket)]
    assert client.ended is not None or topic_filter == "$share" or answers[0].reason_codes[0] >= 0x80
    client.send(packets.UnsubscribePacket(8, (topic_filter,)))
    await quiet()
    assert await still_serves(broker)
    await broker.shutdown()


async def test_moquette_a_command_that_fails_ends_no_other_session(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await MqttMachine().open_broker()
    subscriber = await connected(broker, "s")
    await subscriber.subscribe("t", qos=1)
    publish = ConnectedClient.publish

    def failing(client: ConnectedClient, messages: Any) -> None:
        if client.client_id == "bad":
            raise RuntimeError("a bug")
        publish(client, messages)

    monkeypatch.setattr(ConnectedClient, "publish", failing)
    bad, good = await connected(broker, "bad"), await connected(broker, "good")
    with pytest.raises(RuntimeError):
        bad.send(packets.PublishPacket("t", b"x", 1, 1))
    await good.publish("t", b"1")
    assert (await subscriber.message()).payload == b"1"
    await broker.shutdown()


async def test_moquette_an_entry_that_fails_ends_no_other_expiration(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MqttMachine(mqtt=MqttOptions(shards=1))
    broker = await machine.open_broker()
    reports: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["exception"]))
    for name in ("a", "bad", "c"):
        will = packets.Will(f"w/{name}", b"dead", 1)
        client = await connected(broker, name, clean=False, expiry_s=30, will=will)
        client.send(packets.DisconnectPacket(0x04))
    later = await connected(broker, "later", clean=False, expiry_s=60)
    later.lose()
    end = MqttService._end

    def failing(service: MqttService, session: MqttSession) -> None:
        if session.state.client_id == "bad":
            raise RuntimeError("a bug")
        end(service, session)

    with monkeypatch.context() as patch:
        patch.setattr(MqttService, "_end", failing)
        await machine.pass_time(35)
        assert {session.state.client_id for session in broker.mqtt.sessions.values()} == {"bad", "later"}
        await machine.pass_time(30)
        assert {session.state.client_id for session in broker.mqtt.sessions.values()} == {"bad"}
    assert {repr(error) for error in reports} == {"RuntimeError('a bug')"}
    await machine.pass_time(20)
    assert not broker.mqtt.sessions, "it is tried again"
    await broker.shutdown()


async def test_a_beat_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MqttMachine(mqtt=MqttOptions(shards=1))
    broker = await machine.open_broker()
    reports: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["exception"]))
    client = await connected(broker, "s", clean=False, expiry_s=3_600)

    def failing(service: MqttService) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(MqttService, "_end_lagging", failing)
        await machine.pass_time(11)
    assert [type(error) for error in reports] == [RuntimeError]
    before = broker.mqtt.log.table.elapsed_ms
    await machine.pass_time(21)
    assert broker.mqtt.log.table.elapsed_ms >= before + 20_000
    client.lose()
    await broker.shutdown()


async def test_moquette_a_will_needs_the_right_to_its_topic() -> None:
    broker = await MqttMachine().open_broker()
    access = SecuredAccess({"alice": ["all on mqtt:own/#"]})
    thief = WorldClient(broker, "t", V5, will=packets.Will("other/x", b"dead", 1), access=access, user="alice")
    with pytest.raises(errors.PermissionDenied):
        await thief.connect()
    honest = await connected(broker, "h", will=packets.Will("own/x", b"dead", 1), access=access, user="alice")
    honest.lose()
    await quiet()
    shards = broker.topic(TopicName("mqtt", "messages")).record.shards
    rows = [
        row
        for shard in range(shards)
        for row in (await stored_rows(broker, TopicName("mqtt", "messages"), shard)).values()
    ]
    assert [row["key"] for row in rows] == [b"own/x"]
    await broker.shutdown()
