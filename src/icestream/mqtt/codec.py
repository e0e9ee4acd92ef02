"""PacketDecoder and encode_packet: between the bytes of a connection and its packets. No I/O.

    packet        := first byte, remaining length (variable byte integer), then as many bytes
    first byte    := type (4 bits), flags (4 bits): PUBLISH has DUP, QoS (2 bits), RETAIN; other types fixed bits

The same bytes give the same packets and the same error, however they are divided: packets are cut off one by one while
the caller iterates, so all before a malformed one are handled first (hazard 55). A declared length is compared with the
bound before anything is stored for it. Strict: what the specification calls malformed, or a protocol error that one
packet shows by itself, raises PacketRefused with the reason code of 5.0; what depends on the packets before it is
decided by the connection.

The version is that of the CONNECT packet; before one only CONNECT is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from icestream import errors, limits
from icestream.mqtt import packets, reason_codes, topics
from icestream.mqtt.packet_type import FLAGS, PacketType, ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties, PropertyId, decode_properties, encode_properties
from icestream.mqtt.reason_codes import ReasonCode
from icestream.mqtt.wire_values import Cursor, binary_bytes, malformed, text_bytes, variable_integer_bytes

_V5: Final = ProtocolVersion.V5
_PROTOCOL_NAME: Final = "MQTT"
_PUBLISH: Final = int(PacketType.PUBLISH)
_SUBSCRIBE_RESERVED: Final = 0b1100_0000


class PacketDecoder:
    """The packets of one direction of one connection. `packet_bytes_max` may be changed at any time."""

    def __init__(
        self, packet_bytes_max: int = limits.MQTT_PACKET_BYTES_MAX_DEFAULT, version: ProtocolVersion | None = None
    ) -> None:
        """`version`: None for the side that gets CONNECT, which then sets it."""
        self.packet_bytes_max = packet_bytes_max
        self.version = version
        self._buffer = bytearray()
        self._needed = 0  # bytes of the incomplete packet, as far as it is known
        self._failure: errors.PacketRefused | None = None

    @property
    def incomplete_bytes(self) -> int:
        """Bytes received that are not part of a complete packet yet; at most `packet_bytes_max` after an iteration."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[packets.Packet]:
        """Returns the packets that these bytes complete; iterate before the next call.

        The iterator raises PacketRefused at the first packet that is malformed or too large: the stream has failed, and
        every later call raises the same.
        """
        if self._failure is not None:
            raise self._failure
        if self._buffer:
            self._buffer += data
            # A long packet that arrives in small pieces is copied once, not with every piece.
            if len(self._buffer) < self._needed:
                return iter(())
            data = bytes(self._buffer)
            self._buffer.clear()
        self._needed = 0
        return self._packets(data)

    def keep(self, data: bytes) -> None:
        """Keeps bytes for the next `feed`; for a connection that must not decode now."""
        self._buffer += data

    def _packets(self, data: bytes) -> Iterator[packets.Packet]:
        position = 0
        try:
            while True:
                head = self._head(data, position)
                if head is None:
                    return
                start, end = head
                packet = self._decode(data[position], Cursor(data, start, end))
                position = end
                yield packet
        except errors.PacketRefused as error:
            position = len(data)
            self._failure = error
            raise
        finally:
            # In `finally`: a caller that abandons the iterator finds the rest with the next `feed`.
            self._buffer += data[position:]

    def _head(self, data: bytes, position: int) -> tuple[int, int] | None:
        """Where the body of the packet begins and ends; None if it is not complete. Raises PacketRefused."""
        size = len(data)
        at = position + 1
        length = 0
        for shift in (0, 7, 14, 21):
            if at >= size:
                if size > position:
                    self._check_first_byte(data[position])
                return None
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise malformed("the remaining length has more than four bytes")
        self._check_first_byte(data[position])
        if byte == 0 and at - position > 2 and self.version is not ProtocolVersion.V3_1_1:
            raise malformed("the remaining length has more bytes than its value needs")
        if at - position + length > self.packet_bytes_max:
            raise errors.PacketRefused(
                f"a packet of {at - position + length} bytes is larger than the maximum of {self.packet_bytes_max}",
                reason_code=ReasonCode.PACKET_TOO_LARGE,
                hint="send smaller packets, or raise mqtt.packet_bytes_max",
            )
        if at + length > size:
            self._needed = at - position + length
            return None
        return at, at + length

    def _check_first_byte(self, first: int) -> None:
        """Type and flags are looked at before the body arrives."""
        kind, flags = first >> 4, first & 0x0F
        if kind == 0:
            raise malformed("packet type 0 is reserved")
        if self.version is None and kind != PacketType.CONNECT:
            raise errors.PacketRefused(
                f"the first packet is {PacketType(kind).name}, not CONNECT",
                reason_code=ReasonCode.PROTOCOL_ERROR,
                hint="is the client an MQTT client?",
            )
        if kind == PacketType.AUTH and self.version is not _V5:
            raise malformed("AUTH does not exist in MQTT 3.1.1")
        if kind == _PUBLISH:
            if flags & 0x06 == 0x06:
                raise malformed("PUBLISH has QoS 3")
            if flags & 0x0E == 0x08:
                raise malformed("PUBLISH has DUP with QoS 0")
        elif flags != FLAGS[PacketType(kind)]:
            raise malformed(f"the flags of {PacketType(kind).name} are 0x{flags:x}")

    def _decode(self, first: int, cursor: Cursor) -> packets.Packet:
        is_v5 = self.version is _V5
        if first >> 4 == _PUBLISH:
            return _decode_publish(first, cursor, is_v5)
        kind = PacketType(first >> 4)
        packet = _DECODERS[kind](cursor, is_v5)
        if not cursor.is_at_end():
            raise malformed(f"{kind.name} has {cursor.end - cursor.position} bytes behind its last field")
        if isinstance(packet, packets.ConnectPacket) and self.version is None:
            self.version = packet.version
        return packet


# --- decoding ---------------------------------------------------------------------------------------------------------


def _packet_id(cursor: Cursor) -> int:
    packet_id = cursor.two_bytes()
    if packet_id == 0:
        raise errors.PacketRefused("the packet identifier is 0", reason_code=ReasonCode.PROTOCOL_ERROR)
    return packet_id


def _reason_code(cursor: Cursor, codes: frozenset[int], kind: PacketType) -> int:
    reason_code = cursor.byte()
    if reason_code not in codes:
        raise errors.PacketRefused(
            f"{kind.name} has the reason code 0x{reason_code:02x}, which it may not have",
            reason_code=ReasonCode.PROTOCOL_ERROR,
        )
    return reason_code


def _decode_publish(first: int, cursor: Cursor, is_v5: bool) -> packets.PublishPacket:
    topic = cursor.text()
    qos = first >> 1 & 3
    packet_id = _packet_id(cursor) if qos else 0
    properties = decode_properties(cursor, PacketType.PUBLISH) if is_v5 else NO_PROPERTIES
    if topic or not is_v5:
        topics.check_topic_name(topic)
    elif properties.number(PropertyId.TOPIC_ALIAS) is None:
        raise errors.PacketRefused(
            "PUBLISH has neither a topic name nor an alias", reason_code=ReasonCode.PROTOCOL_ERROR
        )
    return packets.PublishPacket(topic, cursor.rest(), qos, packet_id, bool(first & 1), bool(first & 8), properties)


def _decode_connect(cursor: Cursor, is_v5: bool) -> packets.ConnectPacket:
    name, level = cursor.text(), cursor.byte()
    if name != _PROTOCOL_NAME or level not in (ProtocolVersion.V3_1_1, _V5):
        raise errors.PacketRefused(
            f"the protocol {name[:16]!r} of level {level} is not supported",
            reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            hint="use MQTT 3.1.1 or 5.0",
            # A server answers in the form of the level that it was asked for, if it is MQTT at all.
            details={"level": level if name == _PROTOCOL_NAME else 0},
        )
    try:
        return _decode_connect_body(cursor, ProtocolVersion(level))
    except errors.PacketRefused as error:
        error.details["level"] = level
        raise


def _decode_connect_body(cursor: Cursor, version: ProtocolVersion) -> packets.ConnectPacket:
    flags = cursor.byte()
    has_will, will_qos = bool(flags & 0x04), flags >> 3 & 3
    if flags & 0x01:
        raise malformed("the reserved flag of CONNECT is set")
    if will_qos == 3:
        raise malformed("the will has QoS 3")
    if not has_will and flags & 0x38:
        raise malformed("CONNECT has flags of a will and no will")
    if version is ProtocolVersion.V3_1_1 and flags & 0xC0 == 0x40:
        raise malformed("CONNECT has a password and no user name")
    keep_alive_seconds = cursor.two_bytes()
    properties = decode_properties(cursor, PacketType.CONNECT) if version is _V5 else NO_PROPERTIES
    client_id = cursor.text()
    will = None
    if has_will:
        will_properties = decode_properties(cursor, PacketType.WILL) if version is _V5 else NO_PROPERTIES
        topic = cursor.text()
        topics.check_topic_name(topic)
        will = packets.Will(topic, cursor.binary(), will_qos, bool(flags & 0x20), will_properties)
    user_name = cursor.text() if flags & 0x80 else None
    password = cursor.binary() if flags & 0x40 else None
    return packets.ConnectPacket(
        client_id, version, bool(flags & 0x02), keep_alive_seconds, will, user_name, password, properties
    )


def _decode_connack(cursor: Cursor, is_v5: bool) -> packets.ConnackPacket:
    flags = cursor.byte()
    if flags & 0xFE:
        raise malformed("the reserved flags of CONNACK are set")
    codes = reason_codes.CONNACK_CODES if is_v5 else reason_codes.CONNACK_RETURN_CODES
    reason_code = _reason_code(cursor, codes, PacketType.CONNACK)
    if reason_code and flags:
        raise errors.PacketRefused(
            "CONNACK refuses and says that a session is present", reason_code=ReasonCode.PROTOCOL_ERROR
        )
    properties = decode_properties(cursor, PacketType.CONNACK) if is_v5 else NO_PROPERTIES
    return packets.ConnackPacket(reason_code, bool(flags), properties)


def _acknowledgement(
    packet: Callable[[int, int, Properties], packets.Acknowledgement], kind: PacketType, codes: frozenset[int]
) -> Callable[[Cursor, bool], packets.Acknowledgement]:
    def decode(cursor: Cursor, is_v5: bool) -> packets.Acknowledgement:
        packet_id = _packet_id(cursor)
        reason_code, properties = _optional_reason(cursor, is_v5, codes, kind)
        return packet(packet_id, reason_code, properties)

    return decode


def _optional_reason(cursor: Cursor, is_v5: bool, codes: frozenset[int], kind: PacketType) -> tuple[int, Properties]:
    """Both may be left out in 5.0: the reason code is 0x00 then, and there are no properties."""
    if not is_v5 or cursor.is_at_end():
        return ReasonCode.SUCCESS, NO_PROPERTIES
    reason_code = _reason_code(cursor, codes, kind)
    return reason_code, NO_PROPERTIES if cursor.is_at_end() else decode_properties(cursor, kind)


def _decode_subscribe(cursor: Cursor, is_v5: bool) -> packets.SubscribePacket:
    packet_id = _packet_id(cursor)
    properties = decode_properties(cursor, PacketType.SUBSCRIBE) if is_v5 else NO_PROPERTIES
    subscriptions = []
    while not cursor.is_at_end():
        text = cursor.text()
        topic_filter = topics.parse_filter(text)
        options = cursor.byte()
        if options & (_SUBSCRIBE_RESERVED if is_v5 else 0xFC):
            raise malformed(f"the reserved bits of the subscription options 0x{options:02x} are set")
        qos, retain_handling = options & 3, options >> 4 & 3
        if qos == 3 or retain_handling == 3:
            raise errors.PacketRefused(
                f"the subscription options 0x{options:02x} have QoS 3 or retain handling 3",
                reason_code=ReasonCode.PROTOCOL_ERROR if is_v5 else ReasonCode.MALFORMED_PACKET,
            )
        is_no_local = bool(options & 4)
        if is_no_local and topic_filter.is_shared:
            raise errors.PacketRefused(
                f"the shared subscription {text[:100]!r} is no-local", reason_code=ReasonCode.PROTOCOL_ERROR
            )
        subscriptions.append(packets.SubscriptionRequest(text, qos, is_no_local, bool(options & 8), retain_handling))
    if not subscriptions:
        raise errors.PacketRefused("SUBSCRIBE has no topic filter", reason_code=ReasonCode.PROTOCOL_ERROR)
    return packets.SubscribePacket(packet_id, tuple(subscriptions), properties)


def _decode_suback(cursor: Cursor, is_v5: bool) -> packets.SubackPacket:
    packet_id = _packet_id(cursor)
    properties = decode_properties(cursor, PacketType.SUBACK) if is_v5 else NO_PROPERTIES
    codes = reason_codes.SUBACK_CODES if is_v5 else reason_codes.SUBACK_RETURN_CODES
    reasons = []
    while not cursor.is_at_end():
        reasons.append(_reason_code(cursor, codes, PacketType.SUBACK))
    if not reasons:
        raise errors.PacketRefused("SUBACK has no reason code", reason_code=ReasonCode.PROTOCOL_ERROR)
    return packets.SubackPacket(packet_id, tuple(reasons), properties)


def _decode_unsubscribe(cursor: Cursor, is_v5: bool) -> packets.UnsubscribePacket:
    packet_id = _packet_id(cursor)
    properties = decode_properties(cursor, PacketType.UNSUBSCRIBE) if is_v5 else NO_PROPERTIES
    filters = []
    while not cursor.is_at_end():
        text = cursor.text()
        topics.parse_filter(text)
        filters.append(text)
    if not filters:
        raise errors.PacketRefused("UNSUBSCRIBE has no topic filter", reason_code=ReasonCode.PROTOCOL_ERROR)
    return packets.UnsubscribePacket(packet_id, tuple(filters), properties)


def _decode_unsuback(cursor: Cursor, is_v5: bool) -> packets.UnsubackPacket:
    packet_id = _packet_id(cursor)
    if not is_v5:
        return packets.UnsubackPacket(packet_id)
    properties = decode_properties(cursor, PacketType.UNSUBACK)
    reasons = []
    while not cursor.is_at_end():
        reasons.append(_reason_code(cursor, reason_codes.UNSUBACK_CODES, PacketType.UNSUBACK))
    if not reasons:
        raise errors.PacketRefused("UNSUBACK has no reason code", reason_code=ReasonCode.PROTOCOL_ERROR)
    return packets.UnsubackPacket(packet_id, tuple(reasons), properties)


def _decode_disconnect(cursor: Cursor, is_v5: bool) -> packets.DisconnectPacket:
    reason = _optional_reason(cursor, is_v5, reason_codes.DISCONNECT_CODES, PacketType.DISCONNECT)
    return packets.DisconnectPacket(*reason)


def _decode_auth(cursor: Cursor, is_v5: bool) -> packets.AuthPacket:
    return packets.AuthPacket(*_optional_reason(cursor, is_v5, reason_codes.AUTH_CODES, PacketType.AUTH))


_DECODERS: Final[dict[PacketType, Callable[[Cursor, bool], packets.Packet]]] = {
    PacketType.CONNECT: _decode_connect,
    PacketType.CONNACK: _decode_connack,
    PacketType.PUBACK: _acknowledgement(packets.PubackPacket, PacketType.PUBACK, reason_codes.PUBACK_CODES),
    PacketType.PUBREC: _acknowledgement(packets.PubrecPacket, PacketType.PUBREC, reason_codes.PUBACK_CODES),
    PacketType.PUBREL: _acknowledgement(packets.PubrelPacket, PacketType.PUBREL, reason_codes.PUBREL_CODES),
    PacketType.PUBCOMP: _acknowledgement(packets.PubcompPacket, PacketType.PUBCOMP, reason_codes.PUBREL_CODES),
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.SUBACK: _decode_suback,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.UNSUBACK: _decode_unsuback,
    PacketType.PINGREQ: lambda cursor, is_v5: packets.PingreqPacket(),
    PacketType.PINGRESP: lambda cursor, is_v5: packets.PingrespPacket(),
    PacketType.DISCONNECT: _decode_disconnect,
    PacketType.AUTH: _decode_auth,
}


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode_packet(packet: packets.Packet, version: ProtocolVersion) -> bytes:
    """The bytes of a packet in a version of the protocol; 3.1.1 has no properties, and they are left out.

    Raises PacketRefused for a value that has no encoding, such as a topic of more than 65,535 bytes.
    """
    is_v5 = version is _V5
    match packet:
        case packets.PublishPacket():
            return _encode_publish(packet, is_v5)
        case packets.PubackPacket():
            return _encode_acknowledgement(0x40, packet, is_v5)
        case packets.PubrecPacket():
            return _encode_acknowledgement(0x50, packet, is_v5)
        case packets.PubrelPacket():
            return _encode_acknowledgement(0x62, packet, is_v5)
        case packets.PubcompPacket():
            return _encode_acknowledgement(0x70, packet, is_v5)
        case packets.PingreqPacket():
            return b"\xc0\0"
        case packets.PingrespPacket():
            return b"\xd0\0"
        case packets.ConnectPacket():
            return _framed(0x10, _connect_body(packet))
        case packets.ConnackPacket():
            code = packet.reason_code if is_v5 else reason_codes.connack_return_code(packet.reason_code)
            return _framed(0x20, bytes((packet.is_session_present, code)) + _properties(packet.properties, is_v5))
        case packets.SubscribePacket():
            body = b"".join(text_bytes(request.filter) + _options_byte(request) for request in packet.subscriptions)
            return _framed(0x82, _id_bytes(packet.packet_id) + _properties(packet.properties, is_v5) + body)
        case packets.SubackPacket():
            codes = packet.reason_codes if is_v5 else (min(code, 0x80) for code in packet.reason_codes)
            return _framed(0x90, _id_bytes(packet.packet_id) + _properties(packet.properties, is_v5) + bytes(codes))
        case packets.UnsubscribePacket():
            body = b"".join(map(text_bytes, packet.filters))
            return _framed(0xA2, _id_bytes(packet.packet_id) + _properties(packet.properties, is_v5) + body)
        case packets.UnsubackPacket():
            body = _properties(packet.properties, is_v5) + bytes(packet.reason_codes) if is_v5 else b""
            return _framed(0xB0, _id_bytes(packet.packet_id) + body)
        case packets.DisconnectPacket():
            return _framed(0xE0, _reason_bytes(packet.reason_code, packet.properties) if is_v5 else b"")
        case packets.AuthPacket():
            return _framed(0xF0, _reason_bytes(packet.reason_code, packet.properties))


def _framed(first: int, body: bytes) -> bytes:
    return bytes((first,)) + variable_integer_bytes(len(body)) + body


def _id_bytes(packet_id: int) -> bytes:
    return packet_id.to_bytes(2, "big")


def _properties(properties: Properties, is_v5: bool) -> bytes:
    return encode_properties(properties) if is_v5 else b""


def _encode_publish(packet: packets.PublishPacket, is_v5: bool) -> bytes:
    first = 0x30 | packet.is_duplicate << 3 | packet.qos << 1 | packet.is_retained
    topic = text_bytes(packet.topic)
    packet_id = _id_bytes(packet.packet_id) if packet.qos else b""
    properties = _properties(packet.properties, is_v5)
    length = len(topic) + len(packet_id) + len(properties) + len(packet.payload)
    return b"".join((bytes((first,)), variable_integer_bytes(length), topic, packet_id, properties, packet.payload))


def _encode_acknowledgement(first: int, packet: packets.Acknowledgement, is_v5: bool) -> bytes:
    packet_id = packet.packet_id
    if not is_v5 or not (packet.reason_code or packet.properties):
        return bytes((first, 2, packet_id >> 8, packet_id & 0xFF))
    return _framed(first, _id_bytes(packet_id) + _reason_bytes(packet.reason_code, packet.properties))


def _reason_bytes(reason_code: int, properties: Properties) -> bytes:
    """Left out as far as the specification allows."""
    if properties:
        return bytes((reason_code,)) + encode_properties(properties)
    return bytes((reason_code,)) if reason_code else b""


def _options_byte(request: packets.SubscriptionRequest) -> bytes:
    retain = request.is_retain_as_published << 3 | request.retain_handling << 4
    return bytes((request.qos | request.is_no_local << 2 | retain,))


def _connect_body(packet: packets.ConnectPacket) -> bytes:
    is_v5 = packet.version is _V5
    will = packet.will
    flags = packet.is_clean_start << 1 | (packet.user_name is not None) << 7 | (packet.password is not None) << 6
    parts = [_properties(packet.properties, is_v5), text_bytes(packet.client_id)]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.is_retained << 5
        parts += [_properties(will.properties, is_v5), text_bytes(will.topic), binary_bytes(will.payload)]
    if packet.user_name is not None:
        parts.append(text_bytes(packet.user_name))
    if packet.password is not None:
        parts.append(binary_bytes(packet.password))
    head = text_bytes(_PROTOCOL_NAME) + bytes((packet.version, flags)) + _id_bytes(packet.keep_alive_seconds)
    return head + b"".join(parts)
