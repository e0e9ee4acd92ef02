"""The native scan of MQTT packets against the codec in Python, on any bytes: the same packets, the same refusals."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.packet_type import PacketType, ProtocolVersion
from icestream.mqtt.properties import Properties, PropertyId
from tests.support.mqtt_packets import connect_packets, some_packets
from tests.support.mutations import bit_flips, mutated, truncations

native = pytest.importorskip("icestream_native", reason="the native extension is not built (make native)")

V3, V5 = ProtocolVersion.V3_1_1, ProtocolVersion.V5
VERSIONS = (None, V3, V5)
PACKETS = {V3: some_packets(V3), V5: some_packets(V5)}
PACKET_BYTES_MAX = 300
OTHER, PUBLISH, ACK, PING, BROKEN = range(5)
ACKS: dict[PacketType, type[packets.Acknowledgement]] = {
    PacketType.PUBACK: packets.PubackPacket,
    PacketType.PUBREC: packets.PubrecPacket,
    PacketType.PUBREL: packets.PubrelPacket,
    PacketType.PUBCOMP: packets.PubcompPacket,
}


class Reading(NamedTuple):
    """What a reader made of some bytes; `refusal` is reason code, message and details."""

    packets: list[packets.Packet]
    refusal: tuple[int, str, dict[str, object]] | None
    incomplete_bytes: int


def refusal_of(error: errors.PacketRefused) -> tuple[int, str, dict[str, object]]:
    return error.reason_code, error.message, dict(error.details)


def oracle_reading(data: bytes, version: ProtocolVersion | None) -> Reading:
    """By the codec. Before CONNECT one packet, because its version decides how the next is read."""
    decoder = PacketDecoder(PACKET_BYTES_MAX, version)
    decoded: list[packets.Packet] = []
    try:
        for packet in decoder.feed(data):
            decoded.append(packet)
            if version is None:
                break
    except errors.PacketRefused as error:
        return Reading(decoded, refusal_of(error), 0)
    return Reading(decoded, None, decoder.incomplete_bytes)


def native_reading(data: bytes, version: ProtocolVersion | None) -> Reading:
    """By the native scan; the codec decodes only what the scan leaves to it."""
    rows, scanned_bytes, _ = native.scan_mqtt(data, version or 0, PACKET_BYTES_MAX, limits.MQTT_TOPIC_LEVELS_MAX)
    decoded: list[packets.Packet] = []
    try:
        for kind, start, end, *fields in rows:
            if kind == PUBLISH:
                qos, is_retained, packet_id, topic_start, payload_start = fields
                is_duplicate = bool(data[start] & 8)  # no field: DUP never decides anything (R34)
                topic_end = topic_start + int.from_bytes(data[topic_start - 2 : topic_start], "big")
                topic, payload = data[topic_start:topic_end].decode(), data[payload_start:end]
                decoded.append(packets.PublishPacket(topic, payload, qos, packet_id, is_retained, is_duplicate))
            elif kind == ACK:
                packet_type, packet_id = fields
                decoded.append(ACKS[PacketType(packet_type)](packet_id))
            elif kind == PING:
                decoded.append(packets.PingreqPacket())
            else:
                (packet,) = PacketDecoder(PACKET_BYTES_MAX, version).feed(data[start:end])
                assert kind == OTHER, "the codec accepts a head that the scan calls broken"
                decoded.append(packet)
    except errors.PacketRefused as error:
        return Reading(decoded, refusal_of(error), 0)
    return Reading(decoded, None, len(data) - scanned_bytes)


def assert_same_reading(data: bytes, version: ProtocolVersion | None) -> None:
    assert native_reading(data, version) == oracle_reading(data, version)


@given(st.data(), st.sampled_from([V3, V5]))
def test_packets_are_scanned_as_the_codec_decodes_them(data: st.DataObject, version: ProtocolVersion) -> None:
    sent = data.draw(st.lists(PACKETS[version], max_size=5))
    encoded = b"".join(encode_packet(packet, version) for packet in sent)
    assert native_reading(encoded, version).packets == sent
    hostile = data.draw(mutated(encoded))
    for read_as in VERSIONS:
        assert_same_reading(hostile, read_as)


@given(connect_packets(), st.binary(max_size=20))
def test_a_first_packet_is_scanned_as_the_codec_decodes_it(packet: packets.ConnectPacket, rest: bytes) -> None:
    assert_same_reading(encode_packet(packet, packet.version) + rest, None)


@given(st.binary(max_size=60))
@example(b"")
@example(b"\xff\xff\xff\xff\xff")
@example(b"\x30\x80\x80\x80\x80\x01")
@example(b"\xc0\x80\x00")
def test_any_bytes_are_scanned_as_the_codec_decodes_them(data: bytes) -> None:
    for version in VERSIONS:
        assert_same_reading(data, version)


EXAMPLES: list[packets.Packet] = [
    packets.PublishPacket("a/é", b"payload", 1, 7),
    packets.PublishPacket("a", b"", 0),
    packets.PublishPacket("a", b"x", 2, 0xFFFF, is_retained=True, is_duplicate=True),
    packets.PublishPacket("a", b"x", 1, 7, properties=Properties([(PropertyId.TOPIC_ALIAS, 3)])),
    packets.PubackPacket(258),
    packets.PubrecPacket(1, 0x10),
    packets.PubrelPacket(1, 0x92, Properties([(PropertyId.REASON_STRING, "no")])),
    packets.PubcompPacket(1),
    packets.PingreqPacket(),
    packets.DisconnectPacket(),
]


@pytest.mark.parametrize("version", [V3, V5], ids=str)
@pytest.mark.parametrize("packet", EXAMPLES, ids=lambda packet: type(packet).__name__)
def test_every_prefix_and_every_flipped_bit_is_judged_alike(packet: packets.Packet, version: ProtocolVersion) -> None:
    encoded = encode_packet(packet, version)
    for prefix in truncations(encoded):
        assert_same_reading(prefix, version)
    for _, flipped in bit_flips(encoded):
        for read_as in VERSIONS:
            assert_same_reading(flipped, read_as)


@pytest.mark.parametrize(
    ("topic", "is_plain"),
    [
        (b"a" + b"/" * (limits.MQTT_TOPIC_LEVELS_MAX - 1), True),
        (b"a" + b"/" * limits.MQTT_TOPIC_LEVELS_MAX, False),
        (b"a/+", False),
        (b"#", False),
        (b"a\0b", False),
        (b"\xed\xa0\x80", False),  # a surrogate
        (b"\xc0\xaf", False),  # a slash in more bytes than it needs
        (b"", False),
        ("é€😀".encode(), True),
    ],
)
def test_a_topic_name_is_plain_only_if_the_codec_accepts_it(topic: bytes, is_plain: bool) -> None:
    body = len(topic).to_bytes(2, "big") + topic + b"\0\7"
    data = bytes((0x32, *_length_bytes(len(body)))) + body
    rows, *_ = native.scan_mqtt(data, V3, PACKET_BYTES_MAX, limits.MQTT_TOPIC_LEVELS_MAX)
    assert [row[0] for row in rows] == [PUBLISH if is_plain else OTHER]
    assert_same_reading(data, V3)


def _length_bytes(length: int) -> tuple[int, ...]:
    return (length,) if length < 0x80 else (length & 0x7F | 0x80, length >> 7)


def test_common_packets_are_not_left_to_the_codec() -> None:
    for version in (V3, V5):
        plain = [EXAMPLES[0], EXAMPLES[1], EXAMPLES[2], EXAMPLES[4], EXAMPLES[7], EXAMPLES[8]]
        data = b"".join(encode_packet(packet, version) for packet in plain)
        rows, *_ = native.scan_mqtt(data, version, PACKET_BYTES_MAX, limits.MQTT_TOPIC_LEVELS_MAX)
        assert [row[0] for row in rows] == [PUBLISH, PUBLISH, PUBLISH, ACK, ACK, PING]


def test_a_packet_of_the_largest_size_is_scanned_and_a_larger_one_is_broken() -> None:
    packet = packets.PublishPacket("a", bytes(PACKET_BYTES_MAX), 0)
    size = len(encode_packet(packet, V3))
    data = encode_packet(packets.PublishPacket("a", bytes(2 * PACKET_BYTES_MAX - size), 0), V3)
    assert len(data) == PACKET_BYTES_MAX
    assert native_reading(data, V3).refusal is None
    assert_same_reading(data, V3)
    assert_same_reading(encode_packet(packet, V3)[:3], V3)
    assert native_reading(encode_packet(packet, V3)[:3], V3).refusal is not None


def test_an_incomplete_packet_states_its_size() -> None:
    data = encode_packet(packets.PublishPacket("a", bytes(200), 1, 7), V5)
    for prefix in truncations(data):
        needed = native.scan_mqtt(prefix, V5, PACKET_BYTES_MAX, limits.MQTT_TOPIC_LEVELS_MAX)[2]
        assert needed == (len(data) if len(prefix) >= 3 else 0)
