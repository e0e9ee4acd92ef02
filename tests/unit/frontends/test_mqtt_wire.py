"""MQTT by the native wire: bursts of plain messages, and the same decisions as by asyncio."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from icestream.broker.mqtt.client_link import BurstFailure, PublishBurst
from icestream.frontends.mqtt.mqtt_wire import WireMqttConnection
from icestream.mqtt import packets
from icestream.mqtt.codec import encode_packet
from icestream.mqtt.connection import ConnectionOptions
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import Properties, PropertyId
from icestream.mqtt.reason_codes import FAILURE, ReasonCode
from tests.support.mqtt_front import (
    V3,
    V5,
    WIRES,
    MqttFront,
    MqttPeer,
    RecordingSession,
    mqtt_front,
    publish,
    subscribe,
    use_wire,
)
from tests.support.until import until

pytestmark = pytest.mark.asyncio
both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wire(monkeypatch, "rows")


async def opened(front: MqttFront, client: MqttPeer, client_id: str = "c") -> RecordingSession:
    """A session whose plain messages come in bursts: its first message is settled."""
    front.broker.settles = 0
    await client.connect(client_id)
    session = front.session
    await client.send(publish(100))
    assert await client.read() == packets.PubackPacket(100)
    front.broker.settles = None
    return session


# --- bursts -----------------------------------------------------------------------------------------------------------


async def test_messages_of_many_connections_are_one_burst() -> None:
    async with mqtt_front() as front:
        clients = [await front.client() for _ in range(20)]
        sessions = [await opened(front, client, f"c{number}") for number, client in enumerate(clients)]
        before = front.broker.burst_messages
        for number, client in enumerate(clients):
            client.write(publish(1, b"%d" % number), publish(2, b"again"))
        await until(lambda: front.broker.burst_messages == before + 40)
        assert len(front.broker.bursts) < 20
        for number, session in enumerate(sessions):
            assert session.published[1:] == [b"%d" % number, b"again"]
        sessions[0].settle_all()
        for client in clients:
            assert [await client.read() for _ in range(2)] == [packets.PubackPacket(1), packets.PubackPacket(2)]
            client.close()


async def test_hazard_66_acks_leave_in_the_order_of_receipt_whichever_way_messages_went() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        with_property = packets.PublishPacket(
            "t", b"2", 1, 2, properties=Properties([(PropertyId.USER_PROPERTY, ("a", "b"))])
        )
        await client.send(publish(1, b"1"), with_property, publish(3, b"3"), publish(4, b"4", 2), publish(5, b"5"))
        await until(lambda: len(session.published) == 6)
        assert session.published[1:] == [b"1", b"2", b"3", b"4", b"5"]
        assert front.broker.burst_messages == 3
        for number in reversed(session.numbers):
            session.link.settle(number, 0)
        session.numbers.clear()
        bursts = front.broker.bursts
        while len(bursts) > 1:
            bursts.pop()(None)
        await asyncio.sleep(0.02)
        assert not client.reader._buffer, "the first is not settled"  # type: ignore[attr-defined]
        bursts.pop()(None)
        assert [await client.read() for _ in range(5)] == [
            packets.PubackPacket(1), packets.PubackPacket(2), packets.PubackPacket(3), packets.PubrecPacket(4),
            packets.PubackPacket(5),
        ]  # fmt: skip


async def test_a_burst_that_needs_decisions_is_handed_over_message_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mqtt_front() as front, await front.client() as client, await front.client() as other:
        session = await opened(front, client)
        beside = await opened(front, other, "other")
        refused: list[PublishBurst] = []

        def refuse(burst: PublishBurst, on_done: Callable[[BurstFailure | None], None]) -> bool:
            refused.append(burst)
            return False

        monkeypatch.setattr(front.broker, "publish_burst", refuse)
        client.write(*(publish(number, b"%d" % number) for number in range(1, 6)), publish(0, b"QoS 0"))
        other.write(publish(9, b"9"))
        await until(lambda: len(session.published) == 7 and len(beside.published) == 2)
        assert refused
        assert session.published[1:] == [b"QoS 0", b"1", b"2", b"3", b"4", b"5"] or (
            session.published[1:] == [b"1", b"2", b"3", b"4", b"5", b"QoS 0"]
        )
        for number in reversed(session.numbers):
            session.link.settle(number, 0)
        beside.settle_all()
        assert [await client.read() for _ in range(5)] == [packets.PubackPacket(number) for number in range(1, 6)]
        assert await other.read() == packets.PubackPacket(9)


@both_versions
async def test_a_refused_burst_is_refused_in_its_acks_or_ends_the_connection(version: ProtocolVersion) -> None:
    async with mqtt_front() as front, await front.client(version) as client:
        session = await opened(front, client)
        await client.send(publish(1), publish(2))
        await until(lambda: len(front.broker.bursts) == 1)
        await client.send(publish(3))
        await until(lambda: len(front.broker.bursts) == 2)
        first, second = front.broker.bursts
        second(None)
        first(BurstFailure(ReasonCode.QUOTA_EXCEEDED, "full", is_unknown=False))
        if version is V5:
            assert [await client.read() for _ in range(3)] == [
                packets.PubackPacket(1, ReasonCode.QUOTA_EXCEEDED), packets.PubackPacket(2, ReasonCode.QUOTA_EXCEEDED),
                packets.PubackPacket(3),
            ]  # fmt: skip
            assert session.ended is None
        else:
            assert await client.read() is None, "3.1.1 has no negative ack, and what is behind is not acked"
            assert session.ended is not None
            assert session.ended.reason_code == ReasonCode.QUOTA_EXCEEDED


async def test_a_refusal_of_311_waits_for_the_acks_before_it() -> None:
    async with mqtt_front() as front, await front.client(V3) as client:
        session = await opened(front, client)
        for number in range(1, 4):
            await client.send(publish(number))
            await until(lambda: len(session.published) > number)  # noqa: B023
        first, second, third = front.broker.bursts
        third(None)
        second(BurstFailure(ReasonCode.QUOTA_EXCEEDED, "full", is_unknown=False))
        await asyncio.sleep(0.02)
        assert session.ended is None
        first(None)
        assert await client.read_all() == [packets.PubackPacket(1)]
        assert session.ended is not None


@both_versions
async def test_a_burst_with_an_unknown_outcome_closes_its_connections_without_acks(version: ProtocolVersion) -> None:
    async with mqtt_front() as front, await front.client(version) as client, await front.client(version) as other:
        session = await opened(front, client)
        await opened(front, other, "other")
        await client.send(publish(1))
        await until(lambda: front.broker.bursts)
        front.broker.bursts[0](BurstFailure(ReasonCode.UNSPECIFIED_ERROR, "the disk failed", is_unknown=True))
        received = await client.read_all()
        expected = [packets.DisconnectPacket] if version is V5 else []
        assert [type(packet) for packet in received] == expected
        assert session.ended is not None
        await other.ping()


async def test_hazard_59_messages_of_a_connection_that_was_taken_over_are_dropped_unacked() -> None:
    """The session ends while a burst with its messages has not been decided; what was decided is acked."""
    async with mqtt_front() as front, await front.client() as client, await front.client() as other:
        session = await opened(front, client)
        beside = await opened(front, other, "other")
        await client.send(publish(1))
        await until(lambda: len(front.broker.bursts) == 1)
        connection = wire_connection(front, session)
        wire = connection._wire
        original = wire._on_group

        def end_first(*details: object) -> None:
            session.link.disconnect(ReasonCode.SESSION_TAKEN_OVER, "taken over")
            original(*details)  # type: ignore[arg-type]

        wire._handlers = {**wire._handlers, 6: end_first}
        client.write(publish(2))
        other.write(publish(7))
        await until(lambda: len(beside.published) == 2)
        assert session.published[1:] == [b""], "of the burst only the messages of the other were published"
        wire._handlers[6] = original
        beside.settle_all()
        assert await client.read() == packets.PubackPacket(1)
        reason = await client.read()
        assert isinstance(reason, packets.DisconnectPacket)
        assert reason.reason_code == ReasonCode.SESSION_TAKEN_OVER
        assert await client.read() is None
        assert await other.read() == packets.PubackPacket(7)


def wire_connection(front: MqttFront, session: RecordingSession) -> WireMqttConnection:
    (connection,) = [each for each in front.connections.unfinished if each is session.link]
    assert isinstance(connection, WireMqttConnection)
    return connection


async def test_a_message_behind_a_subscribe_does_not_overtake_it() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        front.broker.settles = 0
        session.subscribing.clear()
        await client.send(publish(1, b"1"), subscribe(2), publish(3, b"3"))
        assert await client.read() == packets.PubackPacket(1)
        await client.send(publish(4, b"4"))
        await client.ping()
        assert session.published[1:] == [b"1"]
        session.subscribing.set()
        await until(lambda: len(session.published) == 4)
        assert session.published[1:] == [b"1", b"3", b"4"]
        assert [name for name, _ in session.calls][2:4] == ["publish", "subscribe"]
        await client.send(publish(5, b"5"))
        await until(lambda: len(session.published) == 5)
        assert front.broker.burst_messages >= 2, "rows are used again"


@pytest.mark.parametrize("unacked", [3, 4])
async def test_the_receive_maximum_counts_messages_of_both_ways(unacked: int) -> None:
    async with mqtt_front(options=ConnectionOptions(receive_maximum=3)) as front, await front.client() as client:
        session = await opened(front, client)
        messages = [publish(1), publish(2, b"", 2), publish(3), publish(4)][:unacked]
        await client.send(*messages)
        if unacked == 3:
            await client.ping()
            await until(lambda: len(session.published) == 4)
            assert session.ended is None
        else:
            await until(lambda: session.ended)
            assert session.ended is not None
            assert session.ended.reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
        session.settle_all()
        client.close()
        await until(lambda: not front.connections.unfinished)


async def test_hazard_73_a_stop_acks_what_was_taken() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        await client.send(publish(1), publish(2))
        await until(lambda: front.broker.bursts)
        closing = asyncio.ensure_future(front.listener.close())
        await until(lambda: session.ended)
        session.link.settle(0, 0)
        front.broker.finish_bursts(0)
        received = await client.read_all()
        client.close()
        await closing
        assert received[:2] == [packets.PubackPacket(1), packets.PubackPacket(2)]
        (reason,) = received[2:]
        assert isinstance(reason, packets.DisconnectPacket)
        assert reason.reason_code == ReasonCode.SERVER_SHUTTING_DOWN


async def test_messages_before_the_end_of_a_connection_are_published() -> None:
    """Hazard 55: the end is the last row."""
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        client.write(*(publish(number, b"%d" % number) for number in range(1, 11)))
        client.writer.write(encode_packet(publish(11), V5)[:-1])
        client.writer.close()
        await until(lambda: session.ended)
        assert session.published[1:] == [b"%d" % number for number in range(1, 11)]


# --- the twins --------------------------------------------------------------------------------------------------------


def conversation(chance: random.Random, version: ProtocolVersion) -> list[bytes]:
    """Packets after CONNECT: mostly plain messages, most of the others valid."""
    sent: list[bytes] = []
    for packet_id in range(1, chance.randrange(5, 60)):
        topic = chance.choice(["a", "a", "b/c", "$x"])
        payload = f"{topic} {packet_id}".encode()
        packet: packets.Packet
        match chance.choice(["plain"] * 12 + ["qos0", "qos2", "retained", "property", "ping", "subscribe", "odd"]):
            case "plain":
                packet = packets.PublishPacket(topic, payload, 1, packet_id, is_duplicate=chance.random() < 0.1)
            case "qos0":
                packet = packets.PublishPacket(topic, payload)
            case "qos2":
                packet = packets.PublishPacket(topic, payload, 2, packet_id)
            case "retained":
                packet = packets.PublishPacket(topic, payload, 1, packet_id, is_retained=True)
            case "property":
                alias = Properties([(PropertyId.TOPIC_ALIAS, 1), (PropertyId.USER_PROPERTY, ("a", "b"))])
                packet = packets.PublishPacket(topic, payload, 1, packet_id, properties=alias)
            case "subscribe":
                packet = subscribe(packet_id)
            case "odd" if chance.random() < 0.3:
                sent.append(
                    chance.choice([b"\x30\x02\x00\x00", b"\x00\x00", b"\x32\x05\x00\x01+\x00\x01", b"\xf0\x00"])
                )
                continue
            case "odd" if chance.random() < 0.3:
                packet = packets.DisconnectPacket()
            case _:
                packet = packets.PingreqPacket()
        sent.append(encode_packet(packet, version))
    return sent


class Decisions(NamedTuple):
    """What the broker heard of a conversation, and what the client received."""

    published: dict[bytes, list[bytes]]  # by topic: a burst has its messages shard by shard
    requests: list[str]
    acks: list[packets.Packet]
    others: list[str]
    end: tuple[int, bool] | None


async def decide(seed: int, version: ProtocolVersion) -> Decisions:
    """Sends a conversation, cut into random pieces."""
    chance = random.Random(seed)
    async with mqtt_front() as front, await front.client(version) as client:
        front.broker.settles = 0 if version is V3 or chance.random() < 0.8 else 0x97
        await client.connect()
        session = front.session
        sent = conversation(chance, version)
        ping = encode_packet(packets.PingreqPacket(), version)
        rest = b"".join(sent)
        while rest:
            size = chance.choice([1, 7, 40, 200, 5_000])
            client.writer.write(rest[:size])
            rest = rest[size:]
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        received = await until_pings(client, sent.count(ping))
        for _ in range(5):  # everything that the conversation caused has happened by then
            client.writer.write(ping)
            received += await until_pings(client, 1)
        acks = [packet for packet in received if isinstance(packet, packets.PubackPacket | packets.PubrecPacket)]
        by_topic: dict[bytes, list[bytes]] = {}
        for payload in session.published:
            by_topic.setdefault(payload.split()[0], []).append(payload)
        return Decisions(
            by_topic,
            [name for name, _ in session.calls if name != "publish"],
            acks,
            sorted(repr(packet) for packet in received if packet not in acks),
            None if session.ended is None else (session.ended.reason_code, session.ended.is_will_due),
        )


async def until_pings(client: MqttPeer, count: int) -> list[packets.Packet]:
    """The packets up to so many answers to pings, or to the end of the connection."""
    received: list[packets.Packet] = []
    while count and (packet := await client.read()) is not None:
        received.append(packet)
        count -= isinstance(packet, packets.PingrespPacket)
    return received


def common(decisions: Decisions) -> tuple[object, ...]:
    """What does not depend on time: acks that are owed when the client disconnects may leave or not."""
    published, requests, acks, others, end = decisions
    is_left = end is not None and end[0] < FAILURE
    return (published, requests, end) if is_left else (published, requests, acks, others, end)


@both_versions
@pytest.mark.parametrize("seed", range(20))
async def test_hazard_55_all_wires_decide_alike(
    monkeypatch: pytest.MonkeyPatch, seed: int, version: ProtocolVersion
) -> None:
    """The same bytes, cut anywhere: the same messages in the same order, and the same answers."""
    by_asyncio, by_packets, by_rows = [await decide(seed, version) for wire in WIRES if not use_wire(monkeypatch, wire)]
    assert common(by_packets) == common(by_asyncio)
    assert common(by_rows) == common(by_asyncio)
