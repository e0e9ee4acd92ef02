"""Runs of deliveries on all wires: the packets that they stand for, byte for byte, and their acks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from icestream.broker.mqtt.message_rows import BlockMessages, DeliveryRun, encode_messages
from icestream.frontends.mqtt.mqtt_wire import has_mqtt_wire
from icestream.model.block import Block
from icestream.mqtt import packets
from icestream.mqtt.codec import encode_packet
from icestream.mqtt.connection import ResumedDelivery
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import Properties, PropertyId
from icestream.mqtt.reason_codes import ReasonCode
from icestream.runtime.native import native
from tests.support.mqtt_front import V3, V5, MqttFront, MqttPeer, RecordingSession, mqtt_front, mqtt_wire

__all__ = ["mqtt_wire"]
pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("mqtt_wire")]
both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


def block_of(payloads: Sequence[bytes], topics: Sequence[str] = ("t",), qos: int = 1) -> BlockMessages:
    messages = [
        packets.PublishPacket(topics[index % len(topics)], payload, qos, 1) for index, payload in enumerate(payloads)
    ]
    block = Block(encode_messages(messages, "publisher", 1))
    return BlockMessages(block, [1] * block.rows, "native")


def run_of(
    messages: BlockMessages,
    spans: Sequence[tuple[int, int]],
    packet_ids: Sequence[range] = (),
    identifiers: tuple[int, ...] = (),
) -> DeliveryRun:
    assert messages.plain is not None
    rows = sum(end - start for start, end in spans)
    return DeliveryRun(messages, messages.plain, spans, rows, int(bool(packet_ids)), packet_ids, identifiers)


async def connected(front: MqttFront, client: MqttPeer, *properties: tuple[int, int]) -> RecordingSession:
    await client.connect(properties=Properties(list(properties)) if client.version is V5 else Properties([]))
    return front.session


def done_ids(session: RecordingSession) -> list[object]:
    return [packet_id for name, packet_id in session.calls if name == "delivery_done"]


async def received(client: MqttPeer, expected: Sequence[packets.PublishPacket]) -> None:
    """Reads as many bytes as the packets have, and compares them."""
    data = b"".join(encode_packet(packet, client.version) for packet in expected)
    assert await client.reader.readexactly(len(data)) == data


@both_versions
@pytest.mark.parametrize("seed", range(6))
async def test_a_run_is_the_packets_of_its_rows(version: ProtocolVersion, seed: int) -> None:
    chance = random.Random(seed)
    async with mqtt_front() as front, await front.client(version) as client:
        session = await connected(front, client)
        sizes = chance.choice([[3], [0, 1, 125, 126, 127, 128, 129], [5, 16_383, 20_000]])
        next_id, done = 1, list[int]()
        for _ in range(8):
            payloads = [chance.randbytes(chance.choice(sizes)) for _ in range(chance.choice([1, 2, 40]))]
            if chance.random() < 0.2:
                payloads = [payloads[0]] * len(payloads)
            messages = block_of(payloads, chance.choice([("t",), ("räume/1", "b"), ("x" * 300,)]))
            start = chance.randrange(len(payloads))
            spans = [(start, chance.randrange(start, len(payloads)) + 1)]
            if start > 1:
                spans.insert(0, (0, start - 1))
            rows = sum(end - start for start, end in spans)
            ids = [range(next_id, next_id + rows)] if chance.random() < 0.7 else []
            if ids and rows > 1:
                ids = [range(next_id, next_id + 1), range(next_id + 100, next_id + 100 + rows - 1)]
            run = run_of(messages, spans, ids, chance.choice([(), (1,), (7, 268_435_455)]))
            other = packets.PublishPacket("between", b"runs", 0)
            next_id += 200
            assert not session.link.send_run(run)
            assert session.link.send_publish(other)
            expected = [*run.packets(), other]
            await received(client, expected)
            client.write(*(packets.PubackPacket(packet.packet_id) for packet in expected if packet.qos))
            done += [packet.packet_id for packet in expected if packet.qos]
            await client.ping()
            assert done_ids(session) == done


@both_versions
async def test_acks_end_deliveries_in_the_order_in_which_they_come(version: ProtocolVersion) -> None:
    async with mqtt_front() as front, await front.client(version) as client:
        session = await connected(front, client)
        run = run_of(block_of([b"%d" % number for number in range(10)]), [(0, 10)], [range(1, 11)])
        session.link.send_run(run)
        await received(client, list(run.packets()))
        acked = [3, 1, 2, 10, 4]
        # An id that is not in flight, and one that was acked already, mean nothing.
        await client.send(*(packets.PubackPacket(packet_id) for packet_id in [*acked, 11, 3]))
        refusal = packets.PubackPacket(5, ReasonCode.QUOTA_EXCEEDED) if version is V5 else packets.PubackPacket(5)
        await client.send(refusal, packets.PubackPacket(6))
        await client.ping()
        assert done_ids(session) == [*acked, 5, 6]
        session.link.send_run(run_of(run.messages, [(0, 3)], [range(1, 4)]))  # the ids are free again
        await received(client, list(run.packets())[:3])


@both_versions
async def test_an_ack_of_the_wrong_kind_ends_the_connection(version: ProtocolVersion) -> None:
    async with mqtt_front() as front, await front.client(version) as client:
        session = await connected(front, client)
        run = run_of(block_of([b"1", b"2"]), [(0, 2)], [range(1, 3)])
        session.link.send_run(run)
        session.link.send_publish(packets.PublishPacket("t", b"3", 2, 3))
        await received(client, [*run.packets(), packets.PublishPacket("t", b"3", 2, 3)])
        await client.send(*(packets.PubackPacket(packet_id) for packet_id in (1, 3, 2)), packets.PingreqPacket())
        rest = await client.read_all()
        assert done_ids(session) == [1], "what is behind it is not decided"
        assert session.ended is not None
        assert session.ended.reason_code == ReasonCode.PROTOCOL_ERROR
        assert [type(packet) for packet in rest] == ([packets.DisconnectPacket] if version is V5 else [])


async def test_a_pubrec_of_a_run_ends_the_connection() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await connected(front, client)
        session.link.send_run(run_of(block_of([b"1"]), [(0, 1)], [range(1, 2)]))
        await client.send(packets.PubrecPacket(1))
        await client.read_all()
        assert session.ended is not None
        assert session.ended.reason_code == ReasonCode.PROTOCOL_ERROR


async def test_messages_too_large_for_the_client_are_reported() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await connected(front, client, (PropertyId.MAXIMUM_PACKET_SIZE, 50))
        run = run_of(block_of([b"1" * 10, b"2" * 60, b"3" * 10]), [(0, 3)], [range(1, 4)])
        assert session.link.send_run(run) == [2]
        await received(client, [packet for packet in run.packets() if packet.packet_id != 2])


async def test_hazard_72_a_client_that_takes_aliases_gets_each_topic_once() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await connected(front, client, (PropertyId.TOPIC_ALIAS_MAXIMUM, 1))
        run = run_of(block_of([b"1", b"2", b"3"], ("a", "b")), [(0, 3)], [range(1, 4)])
        session.link.send_run(run)
        sent = [await client.read() for _ in range(3)]
        aliases = [packet.properties.number(PropertyId.TOPIC_ALIAS) for packet in sent]  # type: ignore[union-attr]
        assert [packet.topic for packet in sent] == ["a", "b", ""]  # type: ignore[union-attr]
        assert aliases == [1, None, 1]


async def test_acks_let_resumed_deliveries_go_on() -> None:
    async with mqtt_front() as front, await front.client() as client:
        front.broker.is_present = True
        front.broker.resumed = [
            ResumedDelivery(number, packets.PublishPacket("t", b"%d" % number, 1)) for number in range(1, 7)
        ]
        await connected(front, client, (PropertyId.RECEIVE_MAXIMUM, 2))
        numbers = [(await client.read()).packet_id for _ in range(2)]  # type: ignore[union-attr]
        await client.send(*(packets.PubackPacket(number) for number in numbers))
        numbers += [(await client.read()).packet_id for _ in range(2)]  # type: ignore[union-attr]
        assert numbers == [1, 2, 3, 4]


async def test_a_closed_connection_takes_no_run() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await connected(front, client)
        session.link.disconnect(ReasonCode.SESSION_TAKEN_OVER, "another connection")
        assert not session.link.send_run(run_of(block_of([b"1"]), [(0, 1)], [range(1, 2)]))
        assert [type(packet) for packet in await client.read_all()] == [packets.DisconnectPacket]


async def test_deliveries_wait_while_a_run_fills_the_share_and_go_on_behind_it() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await connected(front, client)
        messages = block_of([bytes(1000)] * 1000)
        assert session.link.can_send
        while session.link.can_send:
            session.link.send_run(run_of(messages, [(0, 1000)]))
        calls = len(session.calls)
        while ("resume_sending", None) not in session.calls[calls:]:
            assert await client.reader.read(1 << 20)
        assert session.link.can_send


@pytest.mark.skipif(not has_mqtt_wire(), reason="the native part is not built")
@pytest.mark.parametrize(
    ("spans", "packet_ids", "qos"),
    [([(0, 4)], [(1, 4)], 1), ([(2, 1)], [], 0), ([(0, 2)], [(1, 1)], 1), ([(0, 2)], [], 1)],
)
async def test_rows_and_ids_that_do_not_fit_are_refused(
    spans: list[tuple[int, int]], packet_ids: list[tuple[int, int]], qos: int
) -> None:
    assert native is not None
    async with mqtt_front() as front, await front.client() as client:
        await connected(front, client)
        if not front.listener._wires:
            return
        wire = front.listener._wires[-1]
        plain = block_of([b"1", b"2", b"3"]).plain
        assert plain is not None
        rows = native.MqttRows(*plain.columns())
        with pytest.raises(ValueError, match="do not fit"):
            wire.server.deliver(next(iter(wire._connections)), b"output", rows, spans, packet_ids, qos, b"\0")
        await client.ping()


@pytest.mark.skipif(not has_mqtt_wire(), reason="the native part is not built")
@pytest.mark.parametrize(
    ("encoding", "data"), [(3, b"\0\0\0\0"), (3, bytes(4) + b"\x05\0\0\0" + b"\x01\0\0\0" + b"12345"), (2, b"12")]
)
async def test_columns_that_do_not_add_up_are_refused(encoding: int, data: bytes) -> None:
    assert native is not None
    with pytest.raises(ValueError, match="do not add up"):
        native.MqttRows(2, 1, b"t", encoding, data)


@pytest.mark.parametrize(
    "messages",
    [
        [packets.PublishPacket("t", b"", 1, 1), packets.PublishPacket("t", b"", 0)],
        [packets.PublishPacket("t", b"", 1, 1, True)],
        [packets.PublishPacket("t", b"", 1, 1, properties=Properties([(PropertyId.USER_PROPERTY, ("a", "b"))]))],
    ],
    ids=["two QoS", "retained", "properties"],
)
async def test_a_block_whose_rows_need_a_look_is_not_plain(messages: list[packets.PublishPacket]) -> None:
    block = Block(encode_messages(messages, "p", 1))
    assert BlockMessages(block, [1] * block.rows, "native").plain is None
