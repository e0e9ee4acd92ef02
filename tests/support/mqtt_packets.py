"""Strategies of MQTT packets for property tests: every type, both versions, all properties that a type may carry."""

from __future__ import annotations

from hypothesis import strategies as st

from icestream.mqtt import packets, reason_codes
from icestream.mqtt.packet_type import PacketType, ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, RULES, Properties, PropertyId, PropertyValue

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
LEVELS = st.lists(st.sampled_from(["", "a", "b", "$x", "é", "long level"]), min_size=1, max_size=5)
TOPICS = LEVELS.map("/".join).filter(bool)
PACKET_IDS = st.integers(1, 0xFFFF)
QOS = st.integers(0, 2)


@st.composite
def topic_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(["", "a", "b", "$x", "+"]), min_size=1, max_size=5))
    if draw(st.booleans()):
        levels[-1] = "#"
    return "/".join(levels) or "+"


@st.composite
def property_lists(draw: st.DrawFn, packet: PacketType) -> Properties:
    allowed = [identifier for identifier, rule in RULES.items() if packet in rule.packets]
    chosen = draw(st.lists(st.sampled_from(allowed), unique=True, max_size=6))
    if PropertyId.AUTHENTICATION_DATA in chosen and PropertyId.AUTHENTICATION_METHOD not in chosen:
        chosen.append(PropertyId.AUTHENTICATION_METHOD)
    if PropertyId.USER_PROPERTY in chosen:
        chosen.append(PropertyId.USER_PROPERTY)
    return Properties((identifier, draw(property_values(identifier))) for identifier in chosen)


def property_values(identifier: int) -> st.SearchStrategy[PropertyValue]:
    rule = RULES[identifier]
    values: dict[str, st.SearchStrategy[PropertyValue]] = {
        "BYTE": st.integers(rule.lowest, min(rule.highest, 0xFF)),
        "TWO_BYTES": st.integers(rule.lowest, min(rule.highest, 0xFFFF)),
        "FOUR_BYTES": st.integers(rule.lowest, rule.highest),
        "VARIABLE": st.integers(rule.lowest, 268_435_455),
        "TEXT": TOPICS if identifier == PropertyId.RESPONSE_TOPIC else TEXT,
        "BINARY": st.binary(max_size=12),
        "TEXT_PAIR": st.tuples(TEXT, TEXT),
    }
    return values[rule.kind.name]


@st.composite
def publish_packets(draw: st.DrawFn, is_v5: bool) -> packets.PublishPacket:
    qos = draw(QOS)
    return packets.PublishPacket(
        draw(TOPICS),
        draw(st.binary(max_size=40)),
        qos,
        draw(PACKET_IDS) if qos else 0,
        draw(st.booleans()),
        bool(qos) and draw(st.booleans()),
        draw(property_lists(PacketType.PUBLISH)) if is_v5 else NO_PROPERTIES,
    )


def some_packets(version: ProtocolVersion) -> st.SearchStrategy[packets.Packet]:
    """Any packet of the version but CONNECT."""
    is_v5 = version is ProtocolVersion.V5

    def listed(packet: PacketType) -> st.SearchStrategy[Properties]:
        return property_lists(packet) if is_v5 else st.just(NO_PROPERTIES)

    def codes(allowed: frozenset[int], old: frozenset[int] = frozenset((0,))) -> st.SearchStrategy[int]:
        return st.sampled_from(sorted(allowed if is_v5 else old))

    def acks(kind: type[packets.Acknowledgement], packet: PacketType) -> st.SearchStrategy[packets.Packet]:
        allowed = reason_codes.PUBREL_CODES if packet.name in ("PUBREL", "PUBCOMP") else reason_codes.PUBACK_CODES
        return st.builds(kind, PACKET_IDS, codes(allowed), listed(packet))

    subscriptions = st.builds(
        packets.SubscriptionRequest,
        topic_filters(),
        QOS,
        st.booleans() if is_v5 else st.just(False),
        st.booleans() if is_v5 else st.just(False),
        st.integers(0, 2) if is_v5 else st.just(0),
    )
    granted = codes(reason_codes.SUBACK_CODES, reason_codes.SUBACK_RETURN_CODES)
    removed = st.lists(codes(reason_codes.UNSUBACK_CODES), min_size=1, max_size=3).map(tuple)
    strategies: list[st.SearchStrategy[packets.Packet]] = [
        publish_packets(is_v5),
        st.builds(packets.ConnackPacket, st.just(0), st.booleans(), listed(PacketType.CONNACK)),
        acks(packets.PubackPacket, PacketType.PUBACK),
        acks(packets.PubrecPacket, PacketType.PUBREC),
        acks(packets.PubrelPacket, PacketType.PUBREL),
        acks(packets.PubcompPacket, PacketType.PUBCOMP),
        st.builds(
            packets.SubscribePacket,
            PACKET_IDS,
            st.lists(subscriptions, min_size=1, max_size=3).map(tuple),
            listed(PacketType.SUBSCRIBE),
        ),
        st.builds(
            packets.SubackPacket,
            PACKET_IDS,
            st.lists(granted, min_size=1, max_size=3).map(tuple),
            listed(PacketType.SUBACK),
        ),
        st.builds(
            packets.UnsubscribePacket,
            PACKET_IDS,
            st.lists(topic_filters(), min_size=1, max_size=3).map(tuple),
            listed(PacketType.UNSUBSCRIBE),
        ),
        st.builds(packets.UnsubackPacket, PACKET_IDS, removed if is_v5 else st.just(()), listed(PacketType.UNSUBACK)),
        st.just(packets.PingreqPacket()),
        st.just(packets.PingrespPacket()),
        st.builds(packets.DisconnectPacket, codes(reason_codes.DISCONNECT_CODES), listed(PacketType.DISCONNECT)),
    ]
    if is_v5:
        strategies.append(st.builds(packets.AuthPacket, codes(reason_codes.AUTH_CODES), listed(PacketType.AUTH)))
    return st.one_of(strategies)


@st.composite
def connect_packets(draw: st.DrawFn, version: ProtocolVersion | None = None) -> packets.ConnectPacket:
    version = version or draw(st.sampled_from(ProtocolVersion))
    is_v5 = version is ProtocolVersion.V5
    will = None
    if draw(st.booleans()):
        will_properties = draw(property_lists(PacketType.WILL)) if is_v5 else NO_PROPERTIES
        will = packets.Will(draw(TOPICS), draw(st.binary(max_size=20)), draw(QOS), draw(st.booleans()), will_properties)
    user_name = draw(st.none() | TEXT)
    return packets.ConnectPacket(
        draw(TEXT),
        version,
        draw(st.booleans()),
        draw(st.integers(0, 0xFFFF)),
        will,
        user_name,
        draw(st.none() | st.binary(max_size=12)) if is_v5 or user_name is not None else None,
        draw(property_lists(PacketType.CONNECT)) if is_v5 else NO_PROPERTIES,
    )
