"""The server's side of an MQTT connection against models of clients: well-behaved, and hostile."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import limits
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.connection import (
    ConnectionEnded,
    ConnectionOptions,
    ConnectionState,
    ConnectReceived,
    DeliveryDone,
    DeliveryReceived,
    Event,
    PublishReceived,
    ReleaseReceived,
    ResumedDelivery,
    ServerConnection,
    SubscribeReceived,
    UnsubscribeReceived,
)
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties, PropertyId
from icestream.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_packets import connect_packets, some_packets

V3, V5 = ProtocolVersion.V3_1_1, ProtocolVersion.V5
both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


class Wire:
    """A connection with the client's codec in front of it."""

    def __init__(self, version: ProtocolVersion = V5, options: ConnectionOptions | None = None) -> None:
        self.version = version
        self.connection = ServerConnection(options)
        self._decoder = PacketDecoder(version=version)

    def send(self, *sent: packets.Packet) -> list[Event]:
        return self.connection.receive_data(b"".join(encode_packet(packet, self.version) for packet in sent))

    def received(self) -> list[packets.Packet]:
        return list(self._decoder.feed(self.connection.data_to_send()))


def opened(
    version: ProtocolVersion = V5,
    options: ConnectionOptions | None = None,
    properties: Iterable[tuple[int, int]] = (),
    **connect: bool,
) -> Wire:
    wire = Wire(version, options)
    listed = Properties(properties) if version is V5 else NO_PROPERTIES
    wire.send(packets.ConnectPacket("client", version, properties=listed, **connect))
    wire.connection.accept()
    wire.received()
    return wire


def ended(events: list[Event]) -> ConnectionEnded:
    assert isinstance(events[-1], ConnectionEnded), events
    return events[-1]


def publish(packet_id: int, qos: int = 1, payload: bytes = b"") -> packets.PublishPacket:
    return packets.PublishPacket("t", payload, qos, packet_id)


def numbers(events: list[Event]) -> list[int]:
    return [event.number for event in events if isinstance(event, PublishReceived)]


# --- CONNECT --------------------------------------------------------------------------------------------------------


def test_connack_announces_what_the_server_holds_clients_to() -> None:
    options = ConnectionOptions(keep_alive_seconds_max=60, receive_maximum=20, session_expiry_seconds_max=100)
    wire = Wire(V5, options)
    expiry = Properties([(PropertyId.SESSION_EXPIRY_INTERVAL, 500)])
    wire.send(packets.ConnectPacket("", keep_alive_seconds=120, properties=expiry))
    wire.connection.accept(assigned_client_id="made-up", is_session_present=False)
    (connack,) = wire.received()
    assert isinstance(connack, packets.ConnackPacket)
    number = connack.properties.number
    assert number(PropertyId.SERVER_KEEP_ALIVE) == wire.connection.keep_alive_seconds == 60
    assert number(PropertyId.RECEIVE_MAXIMUM) == 20
    assert number(PropertyId.SESSION_EXPIRY_INTERVAL) == wire.connection.session_expiry_seconds == 100
    assert connack.properties.text(PropertyId.ASSIGNED_CLIENT_IDENTIFIER) == "made-up"


@both_versions
def test_packets_behind_connect_wait_until_it_is_accepted(version: ProtocolVersion) -> None:
    wire = Wire(version)
    events = wire.send(packets.ConnectPacket("c", version), publish(1))
    assert [type(event) for event in events] == [ConnectReceived]
    assert not wire.connection.wants_data
    assert wire.send(publish(2)) == []
    wire.connection.accept()
    assert [
        event.packet.packet_id for event in wire.connection.receive_data(b"") if isinstance(event, PublishReceived)
    ] == [
        1,
        2,
    ]


def test_a_kept_session_without_client_id_is_refused_in_3_1_1() -> None:
    """MQTT-3.1.3-8; t_without_client_id."""
    wire = Wire(V3)
    events = wire.send(packets.ConnectPacket("", V3, is_clean_start=False))
    assert not ended(events).is_will_due
    assert wire.received() == [packets.ConnackPacket(2)]
    assert wire.connection.is_finished


def test_enhanced_authentication_is_refused() -> None:
    wire = Wire()
    wire.send(packets.ConnectPacket("c", properties=Properties([(PropertyId.AUTHENTICATION_METHOD, "SCRAM")])))
    (connack,) = wire.received()
    assert isinstance(connack, packets.ConnackPacket)
    assert connack.reason_code == ReasonCode.BAD_AUTHENTICATION_METHOD


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x10\x0c\0\4MQTT\6\2\0\0\0\0", b"\x20"),
        (b"\x10\x0c\0\4MQTT\3\2\0\0\0\0", b"\x20\2\0\1"),
        (b"\x10\x0e\0\6MQIsdp\3\2\0\0\0\0", b""),
        (b"GET / HTTP/1.1\r\n", b""),
        (b"\x10\x0d\0\4MQTT\5\3\0\0\0\0\0", b"\x20"),
        (b"\x10\x0c\0\4MQTT\4\3\0\0\0\0", b""),
    ],
    ids=["level 6", "level 3", "3.1", "http", "malformed 5.0", "malformed 3.1.1"],
)
def test_a_first_packet_other_than_connect_is_answered_where_the_version_allows(data: bytes, answer: bytes) -> None:
    connection = ServerConnection()
    assert not ended(connection.receive_data(data)).is_will_due
    assert connection.data_to_send()[: len(answer) or None].startswith(answer)
    assert connection.is_finished
    assert connection.receive_data(data) == []


def test_a_connect_has_a_lower_bound_than_other_packets() -> None:
    """The client is not known yet: what it may make the broker hold is refused by its length, before it arrives."""
    too_long = limits.MQTT_CONNECT_BYTES_MAX
    head = bytes([0x10, too_long & 0x7F | 0x80, too_long >> 7 & 0x7F | 0x80, too_long >> 14])
    assert ended(ServerConnection().receive_data(head)).reason_code == ReasonCode.PACKET_TOO_LARGE
    assert numbers(opened().send(publish(1, payload=bytes(too_long)))) == [1]


# --- rules of order -------------------------------------------------------------------------------------------------


@both_versions
@pytest.mark.parametrize(
    "packet",
    [
        packets.ConnectPacket("again"),
        packets.PingrespPacket(),
        packets.SubackPacket(1, (0,)),
        packets.PubcompPacket(1),
    ],
    ids=["second CONNECT", "PINGRESP", "SUBACK", "wrong ack"],
)
def test_a_packet_out_of_order_answers_what_was_before_it_then_closes(
    packet: packets.Packet, version: ProtocolVersion
) -> None:
    """MQTT-3.1.0-2; hazard 55: malformed is a row, and all before it is decided and answered."""
    wire = opened(version)
    wire.connection.send_publish(publish(1))
    wire.received()
    if isinstance(packet, packets.ConnectPacket):
        packet = packets.ConnectPacket("again", version)
    events = wire.send(publish(7), packet, publish(8))
    assert len(numbers(events)) == 1
    assert ended(events).is_will_due
    assert wire.received() == []  # the DISCONNECT waits behind the owed ack
    assert not wire.connection.is_finished
    wire.connection.settle(numbers(events)[0])
    answers = wire.received()
    assert answers[0] == packets.PubackPacket(7)
    if version is V5:
        assert isinstance(answers[1], packets.DisconnectPacket)
        assert answers[1].reason_code == ReasonCode.PROTOCOL_ERROR
    else:
        assert len(answers) == 1
    assert wire.connection.is_finished


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (packets.SubscribePacket(3, (packets.SubscriptionRequest("a"),)), packets.SubackPacket(3, (0,))),
        (packets.UnsubscribePacket(3, ("a",)), packets.UnsubackPacket(3, (0,))),
        (packets.PubrelPacket(9), packets.PubcompPacket(9)),
    ],
    ids=["SUBSCRIBE", "UNSUBSCRIBE", "PUBREL"],
)
def test_a_request_before_a_malformed_packet_is_answered_first(packet: packets.Packet, answer: packets.Packet) -> None:
    """Hazard 55."""
    wire = Wire()
    wire.send(packets.ConnectPacket("c"))
    wire.connection.accept(received_ids=[9])
    wire.received()
    ended(wire.send(packet, packets.PingrespPacket()))
    assert not wire.connection.is_finished
    match answer:
        case packets.SubackPacket():
            wire.connection.subscribed(3, (0,))
        case packets.UnsubackPacket():
            wire.connection.unsubscribed(3, (0,))
        case _:
            wire.connection.release_done(9)
    shown = wire.received()
    assert shown[0] == answer
    assert isinstance(shown[1], packets.DisconnectPacket)
    assert wire.connection.is_finished


def test_undecided_packets_get_no_answer_when_the_server_disconnects() -> None:
    """Hazard 59: of a connection that was taken over, decided messages are acked, the others are not."""
    wire = opened()
    subscribe = packets.SubscribePacket(3, (packets.SubscriptionRequest("a"),))
    decided, *undecided = wire.send(publish(1), subscribe, publish(2), publish(3, 2))
    assert isinstance(decided, PublishReceived)
    ended(wire.connection.disconnect(ReasonCode.SESSION_TAKEN_OVER, undecided=undecided))
    assert not wire.connection.is_finished
    wire.connection.settle(decided.number)
    shown = wire.received()
    assert shown[0] == packets.PubackPacket(1)
    assert isinstance(shown[1], packets.DisconnectPacket)
    assert wire.connection.is_finished


def test_publish_disconnect_and_end_in_one_read_publishes_and_removes_the_will() -> None:
    """Hazard 55: the end is the last row."""
    wire = opened()
    events = wire.send(publish(1), packets.DisconnectPacket())
    assert numbers(events) == [1]
    assert not ended(events).is_will_due
    assert wire.connection.end_of_stream() == []


@pytest.mark.parametrize(
    ("packet", "is_will_due"),
    [(packets.DisconnectPacket(), False), (packets.DisconnectPacket(4), True), (None, True)],
    ids=["normal", "with will", "lost"],
)
def test_the_will_is_due_unless_the_client_disconnects_normally(
    packet: packets.DisconnectPacket | None, is_will_due: bool
) -> None:
    wire = opened()
    events = wire.send(packet) if packet is not None else wire.connection.end_of_stream()
    assert ended(events).is_will_due is is_will_due


def test_a_session_expiry_in_disconnect_needs_one_in_connect() -> None:
    """MQTT-3.1.2-26; t_persist_on_disconnect, t_cancel_on_disconnect."""
    wire = opened()
    kept = packets.DisconnectPacket(0, Properties([(PropertyId.SESSION_EXPIRY_INTERVAL, 30)]))
    assert ended(wire.send(kept)).reason_code == ReasonCode.PROTOCOL_ERROR
    wire = opened(properties=[(PropertyId.SESSION_EXPIRY_INTERVAL, 30)])
    cancelled = packets.DisconnectPacket(0, Properties([(PropertyId.SESSION_EXPIRY_INTERVAL, 0)]))
    assert ended(wire.send(cancelled)).session_expiry_seconds == 0


def test_takeover_and_silence_are_named_in_disconnect() -> None:
    for command, reason in (
        (lambda connection: connection.disconnect(ReasonCode.SESSION_TAKEN_OVER), ReasonCode.SESSION_TAKEN_OVER),
        (lambda connection: connection.keep_alive_expired(), ReasonCode.KEEP_ALIVE_TIMEOUT),
    ):
        wire = opened()
        assert ended(command(wire.connection)).is_will_due
        (disconnect,) = wire.received()
        assert isinstance(disconnect, packets.DisconnectPacket)
        assert disconnect.reason_code == reason


# --- received messages ----------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30), st.randoms(use_true_random=False), st.sampled_from([V3, V5])
)
def test_acks_leave_in_the_order_of_receipt(qos: list[int], chance: object, version: ProtocolVersion) -> None:
    """Hazard 66: shards settle in any order."""
    wire = opened(version)
    sent = [publish(index + 1 if level else 0, level) for index, level in enumerate(qos)]
    order = numbers(wire.send(*sent))
    chance.shuffle(order)  # type: ignore[attr-defined]
    answers: list[packets.Packet] = []
    for number in order:
        wire.connection.settle(number)
        answers += wire.received()
    assert [
        answer.packet_id for answer in answers if isinstance(answer, packets.PubackPacket | packets.PubrecPacket)
    ] == [packet.packet_id for packet in sent if packet.qos]
    assert wire.connection.wants_data


def test_a_refusal_is_an_ack_in_5_0_and_the_end_in_3_1_1() -> None:
    """Hazard 66: in 3.1.1 nothing behind the refused message is acked."""
    wire = opened(V5)
    first, second = numbers(wire.send(publish(1), publish(2)))
    wire.connection.settle(second)
    assert wire.connection.settle(first, ReasonCode.QUOTA_EXCEEDED) == []
    assert wire.received() == [packets.PubackPacket(1, ReasonCode.QUOTA_EXCEEDED), packets.PubackPacket(2)]
    wire = opened(V3)
    first, second, third = numbers(wire.send(publish(1), publish(2), publish(3)))
    wire.connection.settle(third)
    wire.connection.settle(first)
    assert wire.received() == [packets.PubackPacket(1)]
    assert ended(wire.connection.settle(second, ReasonCode.QUOTA_EXCEEDED)).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert wire.received() == []
    assert wire.connection.is_finished


def test_an_unknown_outcome_closes_without_acks_behind_it() -> None:
    wire = opened(V5)
    _, second = numbers(wire.send(publish(1), publish(2)))
    wire.connection.abandon(ReasonCode.UNSPECIFIED_ERROR, "unknown")
    wire.connection.settle(second)
    assert [type(packet) for packet in wire.received()] == [packets.DisconnectPacket]


@both_versions
def test_a_qos_2_message_is_handed_out_once_until_it_is_released(version: ProtocolVersion) -> None:
    """R34: by the state of its id; DUP says nothing."""
    wire = opened(version)
    (number,) = numbers(wire.send(packets.PublishPacket("t", b"", 2, 5, is_duplicate=True)))
    assert wire.send(publish(5, 2)) == []  # it meets the original, which is not durable yet
    assert wire.received() == []
    wire.connection.settle(number)
    assert wire.received() == [packets.PubrecPacket(5)] * 2
    assert wire.send(publish(5, 2)) == []
    assert wire.received() == [packets.PubrecPacket(5)]
    assert wire.send(packets.PubrelPacket(5)) == [ReleaseReceived(5)]
    assert wire.send(packets.PubrelPacket(5)) == []
    wire.connection.release_done(5)
    assert wire.received() == [packets.PubcompPacket(5)]
    assert numbers(wire.send(publish(5, 2))) == [2]  # another message


def test_a_refused_qos_2_message_frees_its_id() -> None:
    wire = opened()
    (number,) = numbers(wire.send(publish(5, 2)))
    wire.connection.settle(number, ReasonCode.QUOTA_EXCEEDED)
    assert wire.received() == [packets.PubrecPacket(5, ReasonCode.QUOTA_EXCEEDED)]
    assert len(numbers(wire.send(publish(5, 2)))) == 1


def test_a_release_of_an_unknown_id_is_answered() -> None:
    for version, reason in ((V5, ReasonCode.PACKET_ID_NOT_FOUND), (V3, ReasonCode.SUCCESS)):
        wire = opened(version)
        wire.send(packets.PubrelPacket(9))
        assert wire.received() == [packets.PubcompPacket(9, reason)]


def test_a_client_that_exceeds_the_receive_maximum_is_disconnected() -> None:
    """flow_control2 of Paho's suite: QoS 2 messages count until PUBCOMP."""
    wire = opened(options=ConnectionOptions(receive_maximum=2))
    events = wire.send(publish(1, 2), publish(2))
    for number in numbers(events):
        wire.connection.settle(number)
    wire.received()
    assert numbers(wire.send(publish(3))) == [3]  # the PUBACK of 2 has left
    events = wire.send(publish(4))
    assert ended(events).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_a_connection_is_not_read_while_too_much_is_not_settled() -> None:
    wire = opened(V3)
    events = wire.send(*(publish(index, payload=bytes(10_000)) for index in range(1, 40)))
    assert not wire.connection.wants_data
    assert wire.send(packets.PingreqPacket()) == []
    assert wire.received() == [packets.PingrespPacket()]  # pings are answered all the same (hazard 67)
    for number in numbers(events):
        wire.connection.settle(number)
    assert wire.connection.wants_data


def test_topic_aliases_of_a_client_belong_to_its_connection() -> None:
    wire = opened()

    def aliased(topic: str, alias: int) -> packets.PublishPacket:
        return packets.PublishPacket(topic, b"", properties=Properties([(PropertyId.TOPIC_ALIAS, alias)]))

    events = wire.send(aliased("a", 1), aliased("", 1), aliased("b", 1), aliased("", 1))
    shown = [event.packet for event in events if isinstance(event, PublishReceived)]
    assert [packet.topic for packet in shown] == ["a", "a", "b", "b"]
    assert not any(packet.properties for packet in shown)
    assert ended(wire.send(aliased("", 2))).reason_code == ReasonCode.PROTOCOL_ERROR
    assert ended(opened().send(aliased("a", 65_000))).reason_code == ReasonCode.TOPIC_ALIAS_INVALID


# --- deliveries -----------------------------------------------------------------------------------------------------


@given(st.data(), st.integers(1, 8), st.sampled_from([V3, V5]))
def test_deliveries_to_a_well_behaved_client(data: st.DataObject, maximum: int, version: ProtocolVersion) -> None:
    """Acks in any order (R36): ids are not reused in flight, the quota holds, each delivery ends once."""
    wire = opened(version, ConnectionOptions(in_flight_max=maximum))
    owned: dict[int, int] = {}  # QoS of what the client has not finished, by id
    done = sent = 0
    for _ in range(data.draw(st.integers(1, 60))):
        if data.draw(st.booleans()) and wire.connection.send_quota:
            qos = data.draw(st.integers(1, 2))
            packet_id = data.draw(st.integers(1, 65_535).filter(lambda number: number not in owned))
            assert wire.connection.send_publish(publish(packet_id, qos))
            owned[packet_id] = qos
            sent += 1
        elif owned:
            packet_id = data.draw(st.sampled_from(sorted(owned)))
            if owned.pop(packet_id) == 1:
                events = wire.send(packets.PubackPacket(packet_id))
            else:
                assert wire.send(packets.PubrecPacket(packet_id)) == [DeliveryReceived(packet_id)]
                wire.connection.send_release(packet_id)
                assert wire.received()[-1] == packets.PubrelPacket(packet_id)
                events = wire.send(packets.PubcompPacket(packet_id))
            assert events == [DeliveryDone(packet_id, 0)]
            done += 1
        assert wire.connection.send_quota == maximum - len(owned)
    assert done + len(owned) == sent


def test_a_resumed_session_gets_its_messages_again_with_their_ids() -> None:
    wire = Wire()
    wire.send(packets.ConnectPacket("c", is_clean_start=False))
    wire.connection.accept(
        is_session_present=True,
        received_ids=[3],
        resumed=[ResumedDelivery(9, publish(0, 1)), ResumedDelivery(4, None)],
    )
    connack, again, release = wire.received()
    assert isinstance(connack, packets.ConnackPacket)
    assert connack.is_session_present
    assert again == packets.PublishPacket("t", b"", 1, 9, is_duplicate=True)
    assert release == packets.PubrelPacket(4)
    assert wire.send(publish(3, 2)) == []  # received before
    assert wire.send(packets.PubcompPacket(4)) == [DeliveryDone(4, 0)]
    assert wire.send(packets.PubackPacket(9)) == [DeliveryDone(9, 0)]


def test_resumed_publishes_keep_to_a_lower_receive_maximum() -> None:
    """Hazard 52: a client that comes back with less room gets the rest as it acks."""
    wire = Wire()
    maximum = Properties([(PropertyId.RECEIVE_MAXIMUM, 2)])
    wire.send(packets.ConnectPacket("c", is_clean_start=False, properties=maximum))
    assert wire.connection.send_maximum == 2
    resumed = [ResumedDelivery(1, None), *(ResumedDelivery(packet_id, publish(0)) for packet_id in (2, 3, 4))]
    wire.connection.accept(is_session_present=True, resumed=resumed)

    def ids() -> list[int]:
        return [packet.packet_id for packet in wire.received() if not isinstance(packet, packets.ConnackPacket)]  # type: ignore[union-attr]

    assert ids() == [1, 2]
    wire.send(packets.PubackPacket(2))
    assert ids() == [3]
    wire.send(packets.PubcompPacket(1), packets.PubackPacket(3))
    assert ids() == [4]
    assert wire.send(packets.PubackPacket(4)) == [DeliveryDone(4, 0)]
    assert wire.connection.send_quota == 2


def test_a_message_larger_than_the_clients_maximum_is_not_sent_and_its_id_is_free() -> None:
    wire = opened(properties=[(PropertyId.MAXIMUM_PACKET_SIZE, 50)])
    assert not wire.connection.send_publish(publish(1, 1, bytes(100)))
    assert wire.received() == []
    assert wire.connection.send_quota == 1_024
    assert wire.connection.send_publish(publish(1))


def test_topic_aliases_to_a_client_are_used_at_once() -> None:
    """server_topic_alias of Paho's suite; resends and other topics have their full name (hazard 72)."""
    wire = opened(properties=[(PropertyId.TOPIC_ALIAS_MAXIMUM, 1)])
    for topic in ("a", "a", "b"):
        wire.connection.send_publish(packets.PublishPacket(topic, b""))
    shown = [
        (packet.topic, packet.properties.number(PropertyId.TOPIC_ALIAS))
        for packet in wire.received()
        if isinstance(packet, packets.PublishPacket)
    ]
    assert shown == [("a", 1), ("", 1), ("b", None)]


def test_an_alias_of_a_message_that_was_not_sent_does_not_count() -> None:
    wire = opened(properties=[(PropertyId.TOPIC_ALIAS_MAXIMUM, 1), (PropertyId.MAXIMUM_PACKET_SIZE, 50)])
    assert not wire.connection.send_publish(packets.PublishPacket("a", bytes(100)))
    wire.connection.send_publish(packets.PublishPacket("a", b""))
    (packet,) = wire.received()
    assert isinstance(packet, packets.PublishPacket)
    assert packet.topic == "a"


@pytest.mark.parametrize("packet_id", [1, 3], ids=["its id is in flight", "beyond the quota"])
def test_a_session_that_breaks_the_rules_of_deliveries_is_a_fault(packet_id: int) -> None:
    """Hazard 52: another message under an id that is in flight would be acked by the ack of the first."""
    wire = opened(properties=[(PropertyId.RECEIVE_MAXIMUM, 2)])
    wire.connection.send_publish(publish(1))
    if packet_id == 3:
        wire.connection.send_publish(publish(2))
    with pytest.raises(AssertionError):
        wire.connection.send_publish(publish(packet_id))


@pytest.mark.parametrize("qos", [1, 2])
def test_an_ack_of_another_qos_ends_the_connection_and_changes_nothing(qos: int) -> None:
    """t_client_replies_pubrec_when_qos1, puback_when_qos2."""
    wire = opened()
    wire.connection.send_publish(publish(5, qos))
    wrong = packets.PubrecPacket(5) if qos == 1 else packets.PubackPacket(5)
    (event,) = wire.send(wrong)
    assert ended([event]).reason_code == ReasonCode.PROTOCOL_ERROR


# --- a hostile client -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.data(), st.sampled_from([V3, V5]))
def test_any_packets_in_any_order_are_handled(data: st.DataObject, version: ProtocolVersion) -> None:
    """What leaves is valid for a client, the end is told once, and nothing leaves behind it."""
    wire = Wire(version, ConnectionOptions(receive_maximum=3, in_flight_max=3))
    ends = last_packet_id = 0
    sent = [
        data.draw(connect_packets(version)),
        *data.draw(st.lists(some_packets(version) | connect_packets(version), max_size=12)),
    ]
    pending: list[int] = []
    answers: list[packets.Packet] = []
    for packet in sent:
        events = wire.send(packet)
        while events:
            event = events.pop(0)
            match event:
                case ConnectReceived():
                    wire.connection.accept()
                    events += wire.connection.receive_data(b"")
                case PublishReceived():
                    pending.append(event.number)
                case ReleaseReceived():
                    wire.connection.release_done(event.packet_id)
                case SubscribeReceived():
                    wire.connection.subscribed(event.packet.packet_id, (0,) * len(event.packet.subscriptions))
                case UnsubscribeReceived():
                    wire.connection.unsubscribed(event.packet.packet_id, (0,) * len(event.packet.filters))
                case DeliveryReceived():
                    wire.connection.send_release(event.packet_id)
                case DeliveryDone():
                    pass
                case ConnectionEnded():
                    ends += 1
        if pending and data.draw(st.booleans()):
            code = data.draw(st.sampled_from([ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED]))
            ends += len(wire.connection.settle(pending.pop(data.draw(st.integers(0, len(pending) - 1))), code))
        if data.draw(st.booleans()) and wire.connection.send_quota:
            last_packet_id += 1
            wire.connection.send_publish(publish(last_packet_id, data.draw(st.integers(1, 2))))
        answers += wire.received()
    for number in pending:
        ends += len(wire.connection.settle(number))
    ends += len(wire.connection.end_of_stream())
    answers += wire.received()
    assert ends == 1
    assert wire.connection.state is ConnectionState.CLOSED
    goodbyes = [index for index, packet in enumerate(answers) if isinstance(packet, packets.DisconnectPacket)]
    assert goodbyes in ([], [len(answers) - 1])
    wire.connection.send_publish(publish(1, 0))
    assert wire.received() == []
