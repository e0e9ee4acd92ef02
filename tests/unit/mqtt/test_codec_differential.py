"""Our codec against mqtt5, another codec of MQTT 5.0: the same packets, or a difference that is listed here."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, Final

import mqtt5
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import Properties, PropertyId
from tests.support.mqtt_packets import connect_packets, some_packets
from tests.support.mutations import mutated

V5: Final = ProtocolVersion.V5
PACKETS: Final = st.one_of(some_packets(V5), connect_packets(V5))

# What mqtt5 0.8 accepts and we refuse, by our message. Each is forbidden by the specification.
LOOSER: Final = re.compile(
    "contains U\\+0000|packet identifier is 0|reserved bits of the subscription options|which is out of its range|"
    "wildcard|DUP with QoS 0|topic name|topic filter|occurs more than once|no topic filter|no reason code|"
    "authentication data without a method|more bytes than its value needs|is no-local|more than .* levels|"
    "neither a topic name nor an alias|says that a session is present|reserved flags? of CONN"
)
# What we accept and mqtt5 refuses: an AUTH whose reason code and properties are left out (3.15.2.1 allows it).
STRICTER: Final = re.compile("Missing property length")

# The attributes of mqtt5 that are properties, and their value where the packet has none.
PROPERTY_NAMES: Final[dict[str, tuple[PropertyId, Any]]] = {
    "payload_format_indicator": (PropertyId.PAYLOAD_FORMAT_INDICATOR, 0),
    "message_expiry_interval": (PropertyId.MESSAGE_EXPIRY_INTERVAL, None),
    "content_type": (PropertyId.CONTENT_TYPE, None),
    "response_topic": (PropertyId.RESPONSE_TOPIC, None),
    "correlation_data": (PropertyId.CORRELATION_DATA, None),
    "subscription_id": (PropertyId.SUBSCRIPTION_IDENTIFIER, None),
    "assigned_client_id": (PropertyId.ASSIGNED_CLIENT_IDENTIFIER, None),
    "server_keep_alive": (PropertyId.SERVER_KEEP_ALIVE, None),
    "authentication_method": (PropertyId.AUTHENTICATION_METHOD, None),
    "authentication_data": (PropertyId.AUTHENTICATION_DATA, None),
    "request_problem_info": (PropertyId.REQUEST_PROBLEM_INFORMATION, 1),
    "request_response_info": (PropertyId.REQUEST_RESPONSE_INFORMATION, 0),
    "response_info": (PropertyId.RESPONSE_INFORMATION, None),
    "server_reference": (PropertyId.SERVER_REFERENCE, None),
    "reason_str": (PropertyId.REASON_STRING, None),
    "receive_max": (PropertyId.RECEIVE_MAXIMUM, 0xFFFF),
    "topic_alias_max": (PropertyId.TOPIC_ALIAS_MAXIMUM, 0),
    "topic_alias": (PropertyId.TOPIC_ALIAS, None),
    "max_qos": (PropertyId.MAXIMUM_QOS, 2),
    "retain_available": (PropertyId.RETAIN_AVAILABLE, 1),
    "max_packet_size": (PropertyId.MAXIMUM_PACKET_SIZE, None),
    "wildcard_subscription_available": (PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE, 1),
    "subscription_id_available": (PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1),
    "shared_subscription_available": (PropertyId.SHARED_SUBSCRIPTION_AVAILABLE, 1),
    "will_delay_interval": (PropertyId.WILL_DELAY_INTERVAL, 0),
}


def our_reading(data: bytes) -> tuple[packets.Packet | None, str]:
    """The first packet of the bytes, or why there is none; empty if it is not complete."""
    try:
        return next(PacketDecoder(0xFFFFFFF, V5).feed(data)), ""
    except StopIteration:
        return None, ""
    except errors.PacketRefused as error:
        return None, str(error)


def their_reading(data: bytes) -> tuple[mqtt5.Packet | None, str]:
    try:
        return mqtt5.read(memoryview(data))[0], ""
    except (ValueError, IndexError) as error:
        return None, str(error)


@given(PACKETS)
def test_packets_that_we_write_are_read_the_same_by_both(packet: packets.Packet) -> None:
    data = encode_packet(packet, V5)
    ours, _ = our_reading(data)
    theirs, why = their_reading(data)
    assert ours is not None
    if theirs is None:
        assert STRICTER.search(why), (packet, why)
    else:
        assert_same(ours, theirs)


@given(st.data())
def test_hostile_bytes_are_read_the_same_by_both(data: st.DataObject) -> None:
    hostile = data.draw(mutated(encode_packet(data.draw(PACKETS), V5)))
    ours, our_why = our_reading(hostile)
    if ours is None and not hostile[2:].isascii():
        return  # a text that is not UTF-8 is a panic of mqtt5's native code
    theirs, their_why = their_reading(hostile)
    if ours is not None and theirs is not None:
        assert_same(ours, theirs)
    elif theirs is not None:
        assert LOOSER.search(our_why), (hostile, our_why, theirs)
    elif ours is not None:
        assert STRICTER.search(their_why), (hostile, ours, their_why)


def assert_same(ours: packets.Packet, theirs: Any) -> None:
    """Every attribute that mqtt5 has, as it follows from our packet."""
    assert type(theirs).__name__.lower() == type(ours).__name__.lower()
    names = [name for name in dir(theirs) if not name.startswith("_") and name not in ("write", "clear")]
    expected = {name: our_value(ours, name) for name in names}
    assert expected == {name: plain(getattr(theirs, name)) for name in names}


def our_value(packet: packets.Packet | packets.Will, name: str) -> Any:
    properties: Properties = getattr(packet, "properties", Properties())
    if name in PROPERTY_NAMES:
        identifier, default = PROPERTY_NAMES[name]
        return next((value for other, value in properties.entries if other == identifier), default)
    match packet, name:
        case _, "user_properties":
            return properties.user_properties()
        case packets.PublishPacket(), "subscription_ids":
            return properties.subscription_identifiers()
        case packets.PublishPacket(), "packet_id":
            return packet.packet_id or None
        case _, "session_expiry_interval":
            default = 0 if isinstance(packet, packets.ConnectPacket) else None
            value = properties.number(PropertyId.SESSION_EXPIRY_INTERVAL)
            return default if value is None else value
        case packets.ConnectPacket(), "will":
            return None if packet.will is None else will_values(packet.will)
        case packets.SubscribePacket(), "topic_filters":
            return [
                (request.filter, request.qos, request.is_no_local, request.is_retain_as_published,
                 request.retain_handling)
                for request in packet.subscriptions
            ]  # fmt: skip
        case _, "patterns" | "reason_codes":
            return list(getattr(packet, "filters" if name == "patterns" else name))
    return getattr(packet, RENAMED.get(name, name))


RENAMED: Final = {
    "retain": "is_retained",
    "duplicate": "is_duplicate",
    "username": "user_name",
    "clean_start": "is_clean_start",
    "keep_alive": "keep_alive_seconds",
    "session_present": "is_session_present",
}
WILL_NAMES: Final = [name for name in dir(mqtt5.Will) if not name.startswith("_")]


def will_values(will: packets.Will) -> dict[str, Any]:
    return {name: our_value(will, name) for name in WILL_NAMES}


def plain(value: Any) -> Any:
    """A value of mqtt5 as numbers, texts and lists."""
    match value:
        case IntEnum():
            return int(value)
        case mqtt5.Will():
            return {name: plain(getattr(value, name)) for name in WILL_NAMES} | {"payload": value.payload or b""}
        case mqtt5.TopicFilter():
            return (value.pattern, value.max_qos, value.no_local, value.retain_as_published, value.retain_handling)
        case list():
            return [plain(item) for item in value]
    return value
