"""MQTT packets round-trip however their bytes are divided; malformed ones are refused with the code of 5.0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import Properties, PropertyId
from icestream.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_packets import connect_packets, some_packets
from tests.support.mutations import bit_flips, mutated, truncations

V3, V5 = ProtocolVersion.V3_1_1, ProtocolVersion.V5
PACKETS = {V3: some_packets(V3), V5: some_packets(V5)}


def decoded(data: bytes, version: ProtocolVersion | None = V5) -> list[packets.Packet]:
    return list(PacketDecoder(version=version).feed(data))


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.data(), st.sampled_from(ProtocolVersion), st.lists(st.integers(0, 10_000), max_size=6))
def test_packets_survive_the_wire_however_they_are_cut(
    data: st.DataObject, version: ProtocolVersion, places: list[int]
) -> None:
    sent = [data.draw(connect_packets(version)), *data.draw(st.lists(PACKETS[version], max_size=4))]
    decoder = PacketDecoder()
    received: list[packets.Packet] = []
    for piece in cut(b"".join(encode_packet(packet, version) for packet in sent), places):
        received += decoder.feed(piece)
    assert received == sent
    assert decoder.version is version
    assert decoder.incomplete_bytes == 0


@given(st.data(), st.sampled_from(ProtocolVersion))
def test_mutated_bytes_parse_or_are_refused(data: st.DataObject, version: ProtocolVersion) -> None:
    encoded = encode_packet(data.draw(PACKETS[version]), version)
    for hostile in (data.draw(mutated(encoded)), data.draw(st.binary(max_size=60))):
        assert_parses_or_refuses(hostile, version)
        assert_parses_or_refuses(hostile, None)


def assert_is_failure(error: errors.PacketRefused) -> None:
    assert ReasonCode(error.reason_code) >= ReasonCode.UNSPECIFIED_ERROR


def assert_parses_or_refuses(data: bytes, version: ProtocolVersion | None) -> None:
    decoder = PacketDecoder(version=version)
    try:
        parsed = list(decoder.feed(data))
    except errors.PacketRefused as error:
        assert_is_failure(error)
        with pytest.raises(errors.PacketRefused):
            decoder.feed(b"")
        return
    # What parses is a packet of the specification: it has an encoding that parses to the same.
    version = decoder.version or V5
    assert decoded(b"".join(encode_packet(packet, version) for packet in parsed), version) == parsed


FULL = packets.PublishPacket(
    "a/é", b"payload", 2, 7, True, True,
    Properties([(PropertyId.USER_PROPERTY, ("k", "1")), (PropertyId.TOPIC_ALIAS, 3),
                (PropertyId.USER_PROPERTY, ("k", "1")), (PropertyId.RESPONSE_TOPIC, "r"),
                (PropertyId.CORRELATION_DATA, b"\0")]),
)  # fmt: skip
CONNECT = packets.ConnectPacket(
    "client", V5, False, 30, packets.Will("w", b"gone", 1, True, Properties([(PropertyId.WILL_DELAY_INTERVAL, 5)])),
    "user", b"secret", Properties([(PropertyId.SESSION_EXPIRY_INTERVAL, 60), (PropertyId.RECEIVE_MAXIMUM, 10)]),
)  # fmt: skip


@pytest.mark.parametrize("packet", [FULL, CONNECT], ids=["publish", "connect"])
def test_every_truncation_waits_and_every_flipped_bit_parses_or_is_refused(packet: packets.Packet) -> None:
    encoded = encode_packet(packet, V5)
    for prefix in truncations(encoded):
        decoder = PacketDecoder(version=V5)
        assert list(decoder.feed(prefix)) == []
        assert decoder.incomplete_bytes == len(prefix)
        assert list(decoder.feed(encoded[len(prefix) :])) == [packet]
    for _, flipped in bit_flips(encoded):
        assert_parses_or_refuses(flipped, V5)


def test_the_packets_before_a_malformed_one_are_decoded_first() -> None:
    decoder = PacketDecoder(version=V5)
    packet = encode_packet(packets.PubackPacket(1), V5)
    stream = decoder.feed(packet + packet + b"\x00\x00")
    assert [next(stream), next(stream)] == [packets.PubackPacket(1)] * 2
    with pytest.raises(errors.PacketRefused):
        next(stream)


def test_an_abandoned_iteration_continues_with_the_next_bytes() -> None:
    decoder = PacketDecoder(version=V5)
    stream = decoder.feed(b"\xc0\0\xd0\0")
    assert next(stream) == packets.PingreqPacket()
    del stream
    assert list(decoder.feed(b"\xc0\0")) == [packets.PingrespPacket(), packets.PingreqPacket()]


def test_a_declared_length_above_the_bound_is_refused_before_the_body_arrives() -> None:
    with pytest.raises(errors.PacketRefused) as caught:
        list(PacketDecoder(packet_bytes_max=1_000, version=V5).feed(b"\x30\xe8\x07"))
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    body = b"\x30\xe5\x07" + b"\0\x01a\0" + bytes(0x3E5 - 4)
    assert len(list(PacketDecoder(packet_bytes_max=1_000, version=V5).feed(body))) == 1


# --- malformed packets: name of the rule, version, bytes, reason code -------------------------------------------------

NAME4, NAME5 = b"\0\4MQTT\4", b"\0\4MQTT\5"


def framed(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((first, len(body))) + body


def publish(properties: bytes, topic: bytes = b"\0\1a") -> bytes:
    return framed(0x30, topic + bytes((len(properties),)) + properties)


def connect5(properties: bytes = b"", flags: int = 2, payload: bytes = b"\0\0") -> bytes:
    return framed(0x10, NAME5 + bytes((flags, 0, 0, len(properties))) + properties + payload)


M, P = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
REFUSALS: dict[str, tuple[ProtocolVersion | None, bytes, ReasonCode]] = {
    "MQTT-1.5.4-1 surrogates": (V5, publish(b"", b"\0\3\xed\xa0\x80"), M),
    "MQTT-1.5.4-1 truncated utf-8": (V5, publish(b"", b"\0\1\xc3"), M),
    "MQTT-1.5.4-1 overlong utf-8": (V5, publish(b"", b"\0\2\xc0\xaf"), M),
    "MQTT-1.5.4-2 U+0000": (V5, publish(b"", b"\0\2a\0"), M),
    "MQTT-1.5.3-2 U+0000 (3.1.1)": (V3, framed(0x30, b"\0\2a\0"), M),
    "MQTT-1.5.5-1 remaining length not minimal": (V5, b"\xc0\x80\0", M),
    "MQTT-1.5.5-1 property length not minimal": (V5, framed(0x30, b"\0\1a\x80\0"), M),
    "remaining length of five bytes": (V5, b"\x30\xff\xff\xff\xff\x01", M),
    "property length of five bytes": (V5, framed(0x30, b"\0\1a\xff\xff\xff\xff\x01"), M),
    "MQTT-2.1.3-1 flags of CONNECT": (None, b"\x11\0", M),
    "MQTT-2.1.3-1 flags of PUBACK": (V5, b"\x41\2\0\1", M),
    "MQTT-3.6.1-1 flags of PUBREL": (V5, b"\x60\2\0\1", M),
    "MQTT-3.8.1-1 flags of SUBSCRIBE": (V5, framed(0x80, b"\0\1\0\0\1a\0"), M),
    "MQTT-3.10.1-1 flags of UNSUBSCRIBE": (V5, framed(0xA0, b"\0\1\0\0\1a"), M),
    "MQTT-3.14.1-1 flags of DISCONNECT": (V5, b"\xe1\0", M),
    "MQTT-3.15.1-1 flags of AUTH": (V5, b"\xf1\0", M),
    "type 0 is reserved": (V5, b"\0\0", M),
    "AUTH in 3.1.1": (V3, b"\xf0\0", M),
    "MQTT-2.2.1-2 packet id 0 of PUBLISH": (V5, framed(0x32, b"\0\1a\0\0\0"), P),
    "MQTT-2.2.1-3 packet id 0 of SUBSCRIBE": (V5, framed(0x82, b"\0\0\0\0\1a\0"), P),
    "MQTT-2.3.1-1 packet id 0 (3.1.1)": (V3, b"\x40\2\0\0", P),
    "MQTT-3.1.0-1 first packet is not CONNECT": (None, b"\xc0\0", P),
    "MQTT-3.1.2-1 protocol name": (
        None, framed(0x10, b"\0\4MQTX\4\2\0\0\0\0"), ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
    "MQTT-3.1.2-2 protocol version": (
        None, framed(0x10, b"\0\4MQTT\6\2\0\0\0\0"), ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
    "MQTT-3.1.2-3 reserved connect flag": (None, connect5(flags=3), M),
    "MQTT-3.1.2-3 reserved connect flag (3.1.1)": (None, framed(0x10, NAME4 + b"\3\0\0\0\0"), M),
    "MQTT-3.1.2-9 will without its topic": (None, connect5(flags=6), M),
    "MQTT-3.1.2-11 will QoS without a will": (None, connect5(flags=0x0A), M),
    "MQTT-3.1.2-12 will QoS 3": (None, connect5(flags=0x1E, payload=b"\0\0\0\0\1w\0\0"), M),
    "MQTT-3.1.2-13 will retain without a will": (None, connect5(flags=0x22), M),
    "MQTT-3.1.2-22 password without user name (3.1.1)": (None, framed(0x10, NAME4 + b"\x42\0\0\0\0\0\0"), M),
    "MQTT-3.1.3-11 will topic is UTF-8": (None, connect5(flags=6, payload=b"\0\0\0\0\1\xff\0\0"), M),
    "MQTT-3.1.3-4 client id is UTF-8": (None, connect5(payload=b"\0\1\xff"), M),
    "MQTT-3.1.3-12 user name flag without user name": (None, connect5(flags=0x82), M),
    "will topic with a wildcard": (None, connect5(flags=6, payload=b"\0\0\0\0\1#\0\0"), M),
    "receive maximum 0": (None, connect5(b"\x21\0\0"), P),
    "maximum packet size 0": (None, connect5(b"\x27\0\0\0\0"), P),
    "request problem information 2": (None, connect5(b"\x17\2"), P),
    "request response information 2": (None, connect5(b"\x19\2"), P),
    "authentication data without a method": (None, connect5(b"\x16\0\1x"), P),
    "session expiry twice": (None, connect5(b"\x11\0\0\0\1" * 2), P),
    "bytes behind CONNECT": (None, connect5(payload=b"\0\0x"), M),
    "MQTT-2.2.2-1 no property length": (V5, framed(0x30, b"\0\1a"), M),
    "property length beyond the packet": (V5, framed(0x30, b"\0\1a\x05"), M),
    "property cut off by its length": (V5, framed(0x30, b"\0\1a\2\x23\0\1"), M),
    "unknown property": (V5, publish(b"\x7f\0"), M),
    "property of another packet": (V5, publish(b"\x21\0\1"), M),
    "will delay in CONNECT itself": (None, connect5(b"\x18\0\0\0\1"), M),
    "MQTT-3.3.1-2 DUP with QoS 0": (V5, framed(0x38, b"\0\1a\0"), M),
    "MQTT-3.3.1-4 QoS 3": (V5, framed(0x36, b"\0\1a\0\1\0"), M),
    "MQTT-3.3.2-2 wildcard in a topic name": (V5, publish(b"", b"\0\3a/#"), M),
    "MQTT-3.3.2-2 plus in a topic name": (V3, framed(0x30, b"\0\1+"), M),
    "MQTT-4.7.3-1 empty topic name (3.1.1)": (V3, framed(0x30, b"\0\0"), M),
    "MQTT-3.3.2-8 topic alias 0": (V5, publish(b"\x23\0\0"), ReasonCode.TOPIC_ALIAS_INVALID),
    "MQTT-3.3.2-14 response topic with a wildcard": (V5, publish(b"\x08\0\1#"), P),
    "neither topic nor alias": (V5, publish(b"", b"\0\0"), P),
    "payload format 2": (V5, publish(b"\x01\2"), P),
    "topic alias twice": (V5, publish(b"\x23\0\1" * 2), P),
    "content type twice": (V5, publish(b"\x03\0\1x" * 2), P),
    "subscription identifier 0": (V5, framed(0x82, b"\0\1\2\x0b\0\0\1a\0"), P),
    "subscription identifier twice in SUBSCRIBE": (V5, framed(0x82, b"\0\1\4\x0b\1\x0b\1\0\1a\0"), P),
    "PUBACK too long (3.1.1)": (V3, b"\x40\3\0\1\0", M),
    "PUBACK without packet id": (V5, b"\x40\1\0", M),
    "MQTT-3.4.2-1 reason code of PUBACK": (V5, b"\x40\3\0\1\x92", P),
    "MQTT-3.6.2-1 reason code of PUBREL": (V5, b"\x62\3\0\1\x10", P),
    "MQTT-3.8.3-1 filter is UTF-8": (V5, framed(0x82, b"\0\1\0\0\1\xff\0"), M),
    "MQTT-3.8.3-2 no filter in SUBSCRIBE": (V5, framed(0x82, b"\0\1\0"), P),
    "MQTT-3.8.3-3 no filter (3.1.1)": (V3, framed(0x82, b"\0\1"), P),
    "MQTT-3.8.3-4 no-local of a shared subscription": (V5, framed(0x82, b"\0\1\0\0\x0a$share/g/a\4"), P),
    "MQTT-3.8.3-5 reserved subscription options": (V5, framed(0x82, b"\0\1\0\0\1a\x40"), M),
    "MQTT-3.8.3-4 reserved options (3.1.1)": (V3, framed(0x82, b"\0\1\0\1a\4"), M),
    "subscription QoS 3": (V5, framed(0x82, b"\0\1\0\0\1a\3"), P),
    "subscription QoS 3 (3.1.1)": (V3, framed(0x82, b"\0\1\0\1a\3"), M),
    "retain handling 3": (V5, framed(0x82, b"\0\1\0\0\1a\x30"), P),
    "filter without options": (V5, framed(0x82, b"\0\1\0\0\1a"), M),
    "MQTT-4.7.1-1 # before the last level": (V5, framed(0x82, b"\0\1\0\0\3#/a\0"), M),
    "MQTT-4.7.1-1 # inside a level": (V5, framed(0x82, b"\0\1\0\0\2a#\0"), M),
    "MQTT-4.7.1-2 + inside a level": (V5, framed(0x82, b"\0\1\0\0\2a+\0"), M),
    "MQTT-4.7.3-1 empty filter": (V5, framed(0x82, b"\0\1\0\0\0\0"), M),
    "MQTT-4.8.2-1 share name is empty": (V5, framed(0x82, b"\0\1\0\0\x09$share//a\0"), M),
    "MQTT-4.8.2-2 share name with a wildcard": (V5, framed(0x82, b"\0\1\0\0\x0a$share/+/a\0"), M),
    "MQTT-4.8.2-2 share without a filter": (V5, framed(0x82, b"\0\1\0\0\x08$share/g\0"), M),
    "replay without a filter": (V3, framed(0x82, b"\0\1\0\x0c$replay/-24h\0"), M),
    "MQTT-3.10.3-2 no filter in UNSUBSCRIBE": (V5, framed(0xA2, b"\0\1\0"), P),
    "bytes in PINGREQ": (V5, b"\xc0\1\0", M),
    "reason code of DISCONNECT": (V5, b"\xe0\1\x01", P),
    "reason code in DISCONNECT (3.1.1)": (V3, b"\xe0\1\0", M),
    "MQTT-3.15.2-1 reason code of AUTH": (V5, b"\xf0\1\x80", P),
    "MQTT-3.2.2-1 flags of CONNACK": (V5, framed(0x20, b"\2\0\0"), M),
    "MQTT-3.2.2-6 session present in a refusal": (V5, framed(0x20, b"\1\x80\0"), P),
    "MQTT-3.9.3-2 reason code of SUBACK (3.1.1)": (V3, b"\x90\3\0\1\3", P),
}  # fmt: skip


@pytest.mark.parametrize("rule", REFUSALS)
def test_a_packet_that_breaks_a_rule_is_refused_with_its_reason_code(rule: str) -> None:
    version, data, reason_code = REFUSALS[rule]
    with pytest.raises(errors.PacketRefused) as caught:
        decoded(data, version)
    assert ReasonCode(caught.value.reason_code) is reason_code


def test_a_remaining_length_that_is_not_minimal_is_accepted_in_3_1_1_only() -> None:
    assert decoded(b"\xc0\x80\0", V3) == [packets.PingreqPacket()]


def test_values_without_an_encoding_are_refused() -> None:
    for packet in (
        packets.PublishPacket("t" * 65_536, b""),
        packets.PublishPacket("t", b"", properties=Properties([(PropertyId.TOPIC_ALIAS, 70_000)])),
        packets.PublishPacket("t\0", b""),
        packets.PublishPacket("\ud800", b""),
    ):
        with pytest.raises(errors.PacketRefused):
            encode_packet(packet, V5)


def test_refusals_of_connack_have_return_codes_in_3_1_1() -> None:
    codes = {reason: encode_packet(packets.ConnackPacket(reason), V3)[3] for reason in ReasonCode if reason >= 0x80}
    assert codes[ReasonCode.UNSUPPORTED_PROTOCOL_VERSION] == 1
    assert codes[ReasonCode.CLIENT_IDENTIFIER_INVALID] == 2
    assert codes[ReasonCode.BAD_USER_NAME_OR_PASSWORD] == 4
    assert codes[ReasonCode.NOT_AUTHORIZED] == 5
    assert set(codes.values()) == {1, 2, 3, 4, 5}
