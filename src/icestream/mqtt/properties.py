"""The properties of MQTT 5.0: which packets may carry which, how often, and their bytes.

    properties   := length (variable byte integer), then (identifier, value)…
    value        := byte | two bytes | four bytes | variable byte integer | text | binary | pair of texts, by identifier

`Properties` keeps the exact list of a packet, in its order and with repeated user properties: that list goes to
subscribers and into the table unchanged. An identifier that a packet may not carry is malformed (2.2.2.2); one that
occurs twice, and a value outside of its range, is a protocol error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from icestream import errors
from icestream.mqtt.packet_type import PacketType
from icestream.mqtt.reason_codes import ReasonCode
from icestream.mqtt.wire_values import (
    Cursor,
    binary_bytes,
    text_bytes,
    variable_integer_bytes,
)

PropertyValue: TypeAlias = int | str | bytes | tuple[str, str]


class PropertyId(IntEnum):
    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


class _Kind(IntEnum):
    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 3
    VARIABLE = 4
    TEXT = 5
    BINARY = 6
    TEXT_PAIR = 7


class _Rule(NamedTuple):
    """`lowest` and `highest` bound a number; `refusal` is the reason code outside of them."""

    kind: _Kind
    packets: frozenset[PacketType]
    lowest: int = 0
    highest: int = 0xFFFFFFFF
    refusal: ReasonCode = ReasonCode.PROTOCOL_ERROR
    is_repeatable: bool = False


_P: Final = PacketType
_ACKS: Final = (_P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK)


def _rule(kind: _Kind, *packets: PacketType, lowest: int = 0, highest: int = 0xFFFFFFFF) -> _Rule:
    return _Rule(kind, frozenset(packets), lowest, highest)


RULES: Final[dict[int, _Rule]] = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: _rule(_Kind.BYTE, _P.PUBLISH, _P.WILL, highest=1),
    PropertyId.MESSAGE_EXPIRY_INTERVAL: _rule(_Kind.FOUR_BYTES, _P.PUBLISH, _P.WILL),
    PropertyId.CONTENT_TYPE: _rule(_Kind.TEXT, _P.PUBLISH, _P.WILL),
    PropertyId.RESPONSE_TOPIC: _rule(_Kind.TEXT, _P.PUBLISH, _P.WILL),
    PropertyId.CORRELATION_DATA: _rule(_Kind.BINARY, _P.PUBLISH, _P.WILL),
    # Repeated in PUBLISH only, for a message that matched several subscriptions; `_decode_entries` looks.
    PropertyId.SUBSCRIPTION_IDENTIFIER: _rule(_Kind.VARIABLE, _P.PUBLISH, _P.SUBSCRIBE, lowest=1),
    PropertyId.SESSION_EXPIRY_INTERVAL: _rule(_Kind.FOUR_BYTES, _P.CONNECT, _P.CONNACK, _P.DISCONNECT),
    PropertyId.ASSIGNED_CLIENT_IDENTIFIER: _rule(_Kind.TEXT, _P.CONNACK),
    PropertyId.SERVER_KEEP_ALIVE: _rule(_Kind.TWO_BYTES, _P.CONNACK),
    PropertyId.AUTHENTICATION_METHOD: _rule(_Kind.TEXT, _P.CONNECT, _P.CONNACK, _P.AUTH),
    PropertyId.AUTHENTICATION_DATA: _rule(_Kind.BINARY, _P.CONNECT, _P.CONNACK, _P.AUTH),
    PropertyId.REQUEST_PROBLEM_INFORMATION: _rule(_Kind.BYTE, _P.CONNECT, highest=1),
    PropertyId.WILL_DELAY_INTERVAL: _rule(_Kind.FOUR_BYTES, _P.WILL),
    PropertyId.REQUEST_RESPONSE_INFORMATION: _rule(_Kind.BYTE, _P.CONNECT, highest=1),
    PropertyId.RESPONSE_INFORMATION: _rule(_Kind.TEXT, _P.CONNACK),
    PropertyId.SERVER_REFERENCE: _rule(_Kind.TEXT, _P.CONNACK, _P.DISCONNECT),
    PropertyId.REASON_STRING: _rule(_Kind.TEXT, _P.CONNACK, *_ACKS, _P.DISCONNECT, _P.AUTH),
    PropertyId.RECEIVE_MAXIMUM: _rule(_Kind.TWO_BYTES, _P.CONNECT, _P.CONNACK, lowest=1),
    PropertyId.TOPIC_ALIAS_MAXIMUM: _rule(_Kind.TWO_BYTES, _P.CONNECT, _P.CONNACK),
    PropertyId.TOPIC_ALIAS: _Rule(
        _Kind.TWO_BYTES, frozenset((_P.PUBLISH,)), lowest=1, refusal=ReasonCode.TOPIC_ALIAS_INVALID
    ),
    PropertyId.MAXIMUM_QOS: _rule(_Kind.BYTE, _P.CONNACK, highest=1),
    PropertyId.RETAIN_AVAILABLE: _rule(_Kind.BYTE, _P.CONNACK, highest=1),
    PropertyId.USER_PROPERTY: _Rule(
        _Kind.TEXT_PAIR,
        frozenset((_P.CONNECT, _P.CONNACK, _P.PUBLISH, _P.WILL, *_ACKS, _P.SUBSCRIBE, _P.UNSUBSCRIBE, _P.DISCONNECT,
                   _P.AUTH)),
        is_repeatable=True,
    ),
    PropertyId.MAXIMUM_PACKET_SIZE: _rule(_Kind.FOUR_BYTES, _P.CONNECT, _P.CONNACK, lowest=1),
    PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE: _rule(_Kind.BYTE, _P.CONNACK, highest=1),
    PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE: _rule(_Kind.BYTE, _P.CONNACK, highest=1),
    PropertyId.SHARED_SUBSCRIPTION_AVAILABLE: _rule(_Kind.BYTE, _P.CONNACK, highest=1),
}  # fmt: skip


class Properties:
    """The list of properties of a packet: immutable, ordered, with duplicates."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, PropertyValue]] = ()) -> None:
        self.entries: tuple[tuple[int, PropertyValue], ...] = tuple(entries)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __iter__(self) -> Iterator[tuple[int, PropertyValue]]:
        return iter(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Properties) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        entries = ", ".join(f"{PropertyId(identifier).name.lower()}={value!r}" for identifier, value in self.entries)
        return f"Properties({entries})"

    def number(self, identifier: PropertyId) -> int | None:
        """The value of a property with a number; None if it is absent."""
        value = self._first(identifier)
        return value if isinstance(value, int) else None

    def text(self, identifier: PropertyId) -> str | None:
        """The value of a property with a text; None if it is absent."""
        value = self._first(identifier)
        return value if isinstance(value, str) else None

    def binary(self, identifier: PropertyId) -> bytes | None:
        """The value of a property with binary data; None if it is absent."""
        value = self._first(identifier)
        return value if isinstance(value, bytes) else None

    def user_properties(self) -> list[tuple[str, str]]:
        """All user properties, in their order."""
        return [value for identifier, value in self.entries if identifier == PropertyId.USER_PROPERTY
                and isinstance(value, tuple)]  # fmt: skip

    def subscription_identifiers(self) -> list[int]:
        """All subscription identifiers, in their order."""
        return [value for identifier, value in self.entries if identifier == PropertyId.SUBSCRIPTION_IDENTIFIER
                and isinstance(value, int)]  # fmt: skip

    def without(self, *identifiers: PropertyId) -> Properties:
        """This list without the properties of these identifiers; itself if there are none."""
        if not any(identifier in identifiers for identifier, _ in self.entries):
            return self
        return Properties(entry for entry in self.entries if entry[0] not in identifiers)

    def followed_by(self, *entries: tuple[int, PropertyValue]) -> Properties:
        """This list with more entries at its end."""
        return Properties((*self.entries, *entries)) if entries else self

    def _first(self, identifier: PropertyId) -> PropertyValue | None:
        for other, value in self.entries:
            if other == identifier:
                return value
        return None


NO_PROPERTIES: Final = Properties()


def decode_properties(cursor: Cursor, packet: PacketType) -> Properties:
    """Reads the properties of a packet of this type. Raises PacketRefused."""
    length = cursor.variable_integer()
    if length == 0:
        return NO_PROPERTIES
    end = cursor.position + length
    if end > cursor.end:
        raise errors.PacketRefused(
            f"properties of {packet.name} declare {length} bytes, {cursor.end - cursor.position} are left",
            reason_code=ReasonCode.MALFORMED_PACKET,
        )
    outer_end, cursor.end = cursor.end, end
    entries: list[tuple[int, PropertyValue]] = []
    identifiers: set[int] = set()
    while cursor.position < end:
        identifier = cursor.variable_integer()
        rule = RULES.get(identifier)
        if rule is None or packet not in rule.packets:
            raise errors.PacketRefused(
                f"property 0x{identifier:02x} is not allowed in {packet.name}", reason_code=ReasonCode.MALFORMED_PACKET
            )
        if identifier in identifiers and not (rule.is_repeatable or _repeats(identifier, packet)):
            raise errors.PacketRefused(
                f"property {PropertyId(identifier).name} occurs more than once in {packet.name}",
                reason_code=ReasonCode.PROTOCOL_ERROR,
            )
        identifiers.add(identifier)
        value = _decode_value(cursor, rule.kind)
        if isinstance(value, int) and not rule.lowest <= value <= rule.highest:
            raise errors.PacketRefused(
                f"property {PropertyId(identifier).name} has the value {value}, which is out of its range",
                reason_code=rule.refusal,
            )
        entries.append((identifier, value))
    _check_together(packet, identifiers, entries)
    cursor.end = outer_end
    return Properties(entries)


def encode_properties(properties: Properties) -> bytes:
    """The bytes of the list, with its length. Raises PacketRefused for a value that has no encoding."""
    if not properties.entries:
        return b"\0"
    parts = []
    for identifier, value in properties.entries:
        parts.append(bytes((identifier,)))
        parts.append(_value_bytes(RULES[identifier].kind, value))
    body = b"".join(parts)
    return variable_integer_bytes(len(body)) + body


def _repeats(identifier: int, packet: PacketType) -> bool:
    return identifier == PropertyId.SUBSCRIPTION_IDENTIFIER and packet is PacketType.PUBLISH


def _check_together(packet: PacketType, identifiers: set[int], entries: list[tuple[int, PropertyValue]]) -> None:
    """The rules about several properties, and about texts."""
    if PropertyId.AUTHENTICATION_DATA in identifiers and PropertyId.AUTHENTICATION_METHOD not in identifiers:
        raise errors.PacketRefused(
            f"{packet.name} has authentication data without a method", reason_code=ReasonCode.PROTOCOL_ERROR
        )
    if PropertyId.RESPONSE_TOPIC in identifiers:
        for identifier, value in entries:
            if identifier == PropertyId.RESPONSE_TOPIC and isinstance(value, str) and ("+" in value or "#" in value):
                raise errors.PacketRefused(
                    f"the response topic {value[:100]!r} has a wildcard", reason_code=ReasonCode.PROTOCOL_ERROR
                )


def _decode_value(cursor: Cursor, kind: _Kind) -> PropertyValue:
    match kind:
        case _Kind.BYTE:
            return cursor.byte()
        case _Kind.TWO_BYTES:
            return cursor.two_bytes()
        case _Kind.FOUR_BYTES:
            return cursor.four_bytes()
        case _Kind.VARIABLE:
            return cursor.variable_integer()
        case _Kind.TEXT:
            return cursor.text()
        case _Kind.BINARY:
            return cursor.binary()
        case _Kind.TEXT_PAIR:
            return cursor.text(), cursor.text()


def _value_bytes(kind: _Kind, value: PropertyValue) -> bytes:
    match kind, value:
        case _Kind.BYTE, int(number) if number <= 0xFF:
            return number.to_bytes(1, "big")
        case _Kind.TWO_BYTES, int(number) if number <= 0xFFFF:
            return number.to_bytes(2, "big")
        case _Kind.FOUR_BYTES, int(number) if number <= 0xFFFFFFFF:
            return number.to_bytes(4, "big")
        case _Kind.VARIABLE, int(number):
            return variable_integer_bytes(number)
        case _Kind.TEXT, str(text):
            return text_bytes(text)
        case _Kind.BINARY, bytes(data):
            return binary_bytes(data)
        case _Kind.TEXT_PAIR, (str(name), str(text)):
            return text_bytes(name) + text_bytes(text)
    raise errors.PacketRefused(
        f"a property of the kind {kind.name} cannot have the value {value!r}",
        reason_code=ReasonCode.IMPLEMENTATION_ERROR,
    )
