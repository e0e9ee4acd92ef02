"""ServerConnection: the server's side of one MQTT connection, as a state machine. No I/O, no clock, no chance.

Bytes go in by `receive_data` and events come out, in the order of the packets; commands of the driver (accept, settle,
deliver, …) append packets to `data_to_send`.

    state       arrives                                          becomes
    ---------   ----------------------------------------------   -----------------------------------------------------
    WAITING     CONNECT                                          DECIDING, event ConnectReceived
                anything else, a malformed CONNECT               CLOSED; a CONNACK of 5.0 names the reason if it can
    DECIDING    (nothing is decoded until the driver decides)    accept: OPEN; refuse: CLOSED, after the CONNACK
    OPEN        PUBLISH, acks, SUBSCRIBE, UNSUBSCRIBE, PINGREQ   OPEN
                DISCONNECT, end of stream                        CLOSED; acks that are still owed are not sent
                malformed, protocol error, `disconnect`          CLOSING
    CLOSING     (nothing is decoded)                             CLOSED, when everything before it is answered: then
                                                                 DISCONNECT with the reason (5.0), then the end
    CLOSED      (nothing is decoded)

What is received, by packet id:

    QoS 1       PublishReceived -> settle -> PUBACK. The same id again is another message.
    QoS 2       PublishReceived -> settle -> PUBREC (`RECEIVED`) -> PUBREL, ReleaseReceived (`RELEASING`) ->
                release_done -> PUBCOMP. A PUBLISH of an id that is `RECEIVED` is a duplicate, whatever its DUP says,
                and gets its PUBREC again. DUP never makes a duplicate (R34).

Acks leave in the order in which the publishes arrived, whichever shard is faster (hazard 66, MQTT-4.6.0-2). A refusal
is the reason code of the ack in 5.0. 3.1.1 has no negative ack: the connection closes, and nothing behind the refused
one is acked, so that the client sends all of it again in its order.

What is delivered, by packet id:

    QoS 1       send_publish -> PUBACK, DeliveryDone
    QoS 2       send_publish -> PUBREC, DeliveryReceived -> send_release -> PUBCOMP, DeliveryDone

Their ids belong to the session, which outlives the connection: it chooses them, keeps to the quota, and makes each
entry durable before its first byte leaves and a PUBREC before its PUBREL (hazards 52, 54). Of what a resumed session
sends again, publishes beyond the client's Receive Maximum wait for its acks.

The will: ConnectionEnded says whether it is due. A DISCONNECT with the reason 0x00 (any DISCONNECT in 3.1.1) removes
it; every other end makes it due, also those that the server decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

from icestream import errors, limits
from icestream.mqtt import packets
from icestream.mqtt.ack_order import AckOrder, OwedAck
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties, PropertyId, PropertyValue
from icestream.mqtt.reason_codes import (
    CLIENT_DISCONNECT_CODES,
    CONNACK_CODES,
    DISCONNECT_CODES,
    FAILURE,
    ReasonCode,
    nearest_reason,
    reason_name,
)

_V5: Final = ProtocolVersion.V5
_REASON_STRING_CHARACTERS: Final = 200


class ConnectionOptions(msgspec.Struct, frozen=True):
    """What the server announces in CONNACK and holds clients to. `keep_alive_seconds_max`: 0 for no bound."""

    packet_bytes_max: int = limits.MQTT_PACKET_BYTES_MAX_DEFAULT
    receive_maximum: int = limits.MQTT_IN_FLIGHT_MAX
    in_flight_max: int = limits.MQTT_IN_FLIGHT_MAX
    topic_aliases_max: int = limits.MQTT_TOPIC_ALIASES_MAX
    keep_alive_seconds_max: int = 0
    session_expiry_seconds_max: int = 0xFFFFFFFF
    is_retain_available: bool = True
    is_shared_available: bool = True


class ConnectReceived(msgspec.Struct, frozen=True):
    """The driver answers with `accept` or `refuse`; until then nothing else is decoded."""

    packet: packets.ConnectPacket


class PublishReceived(msgspec.Struct, frozen=True):
    """A message, with its topic where an alias stood for it. The driver answers `settle(number, …)`, for QoS 0 too."""

    number: int
    packet: packets.PublishPacket


class ReleaseReceived(msgspec.Struct, frozen=True):
    """A PUBREL of a received QoS 2 message. The driver answers `release_done(packet_id)`."""

    packet_id: int


class SubscribeReceived(msgspec.Struct, frozen=True):
    """The driver answers `subscribed(packet_id, …)`."""

    packet: packets.SubscribePacket


class UnsubscribeReceived(msgspec.Struct, frozen=True):
    """The driver answers `unsubscribed(packet_id, …)`."""

    packet: packets.UnsubscribePacket


class DeliveryReceived(msgspec.Struct, frozen=True):
    """The client owns a delivered QoS 2 message. The driver answers `send_release(packet_id)`."""

    packet_id: int


class DeliveryDone(msgspec.Struct, frozen=True):
    """The client acked a delivered message, or refused it (`reason_code` from 0x80 on); its id is free."""

    packet_id: int
    reason_code: int


class DeliveriesDone(msgspec.Struct, frozen=True):
    """The client acked delivered messages of QoS 1; their ids are free."""

    packet_ids: Sequence[int]


class ConnectionEnded(msgspec.Struct, frozen=True):
    """The last event. `session_expiry_seconds`: of DISCONNECT, else of CONNECT; None for the default of 3.1.1."""

    reason_code: int
    reason: str
    is_will_due: bool
    session_expiry_seconds: int | None


Event: TypeAlias = (
    ConnectReceived
    | PublishReceived
    | ReleaseReceived
    | SubscribeReceived
    | UnsubscribeReceived
    | DeliveryReceived
    | DeliveryDone
    | DeliveriesDone
    | ConnectionEnded
)


class ResumedDelivery(msgspec.Struct, frozen=True):
    """An entry of a resumed session that is in flight. `packet`: None if only its PUBREL is owed."""

    packet_id: int
    packet: packets.PublishPacket | None


class ConnectionState(Enum):
    WAITING = auto()
    DECIDING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


class _ReceiveState(Enum):
    PENDING = auto()  # handed out, not settled
    RECEIVED = auto()  # PUBREC was sent
    RELEASING = auto()  # PUBREL arrived


class _InFlight:
    """A delivery. `is_received`: the client owns it, and its PUBREL is due or was sent."""

    __slots__ = ("is_received", "qos")

    def __init__(self, qos: int, is_received: bool = False) -> None:
        self.qos = qos
        self.is_received = is_received


# Of every QoS 1 delivery: nothing of it changes.
_QOS1_IN_FLIGHT: Final = _InFlight(1)


class ServerConnection:
    """One connection. Every method may be called in every state; commands to a closed connection do nothing."""

    def __init__(self, options: ConnectionOptions | None = None, acks: AckOrder | None = None) -> None:
        """`acks`: None for acks that leave by `data_to_send`."""
        self._options = options or ConnectionOptions()
        # The client is not known yet: what it may make the server buffer is bounded more strictly.
        self._decoder = PacketDecoder(min(self._options.packet_bytes_max, limits.MQTT_CONNECT_BYTES_MAX))
        self._output = bytearray()
        self.state = ConnectionState.WAITING
        self._connect: packets.ConnectPacket | None = None
        self._closing: DisconnectReason | None = None
        # --- received
        self._acks = acks or AckOrder()
        self._unsettled: dict[int, OwedAck] = {}
        self._unsettled_bytes = 0
        self._last_number = 0
        self._received: dict[int, _ReceiveState] = {}  # QoS 2, by packet id
        self._pending_qos2: dict[int, OwedAck] = {}
        self._requests = 0  # SUBSCRIBE, UNSUBSCRIBE and PUBREL that are not answered
        self._aliases_in: dict[int, str] = {}
        # --- delivered
        self._in_flight: dict[int, _InFlight] = {}
        self._resumed: deque[ResumedDelivery] = deque()  # to be sent again when the quota allows
        self._aliases_out: dict[str, int] = {}
        self._aliases_out_max = 0
        self._send_maximum = self._options.in_flight_max
        self._client_packet_bytes_max = 0xFFFFFFFF

    # --- state ------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> ProtocolVersion:
        """5.0 until CONNECT has named another."""
        return self._decoder.version or _V5

    @property
    def wants_data(self) -> bool:
        """Whether the driver should read on: not while CONNECT is decided, nor while too much is not settled."""
        if self.state is ConnectionState.OPEN:
            return self._unsettled_bytes < limits.MQTT_UNSETTLED_BYTES_MAX
        return self.state is ConnectionState.WAITING

    @property
    def is_finished(self) -> bool:
        """Whether the driver should close the socket once `data_to_send` has left."""
        return self.state is ConnectionState.CLOSED

    @property
    def send_maximum(self) -> int:
        """How many QoS 1 and 2 messages may be in flight to the client: its Receive Maximum, or ours if it is lower."""
        return self._send_maximum

    @property
    def send_quota(self) -> int:
        """How many more of them may be sent now."""
        return max(0, self._send_maximum - len(self._in_flight))

    @property
    def held_ids(self) -> int:
        """Ids of QoS 2 messages that were received and not released."""
        return len(self._received)

    @property
    def unacked(self) -> int:
        """QoS 1 and 2 messages of the client that count against our Receive Maximum."""
        return self._acks.qos1_count + len(self._received)

    @property
    def output_bytes(self) -> int:
        """The length of what `data_to_send` would return."""
        return len(self._output)

    @property
    def keep_alive_seconds(self) -> int:
        """The keep alive in force, 0 for none."""
        requested_s = self._connect.keep_alive_seconds if self._connect is not None else 0
        bound = self._options.keep_alive_seconds_max
        return min(requested_s or bound, bound) if bound and self.version is _V5 else requested_s

    @property
    def silence_seconds_max(self) -> float | None:
        """After so long without a byte from the client the driver calls `keep_alive_expired`; None: never."""
        return self.keep_alive_seconds * 1.5 or None

    @property
    def session_expiry_seconds(self) -> int | None:
        """The session expiry in force; None for 3.1.1 without clean session, which names none."""
        if self._connect is None:
            return 0
        if self.version is not _V5:
            return 0 if self._connect.is_clean_start else None
        requested_s = self._connect.properties.number(PropertyId.SESSION_EXPIRY_INTERVAL) or 0
        return min(requested_s, self._options.session_expiry_seconds_max)

    def data_to_send(self) -> bytes:
        """Takes the bytes that are to be written to the socket, in order."""
        data = bytes(self._output)
        self._output.clear()
        return data

    # --- what arrives -----------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Event]:
        """The events of the packets that these bytes complete, in their order.

        After `accept`, call it with b"": packets that came with CONNECT wait inside.
        """
        events: list[Event] = []
        if not self._is_decoding():
            if self.state is ConnectionState.DECIDING:
                self._decoder.keep(data)  # one read at most: the driver looks at `wants_data`
            return events
        try:
            for packet in self._decoder.feed(data):
                self._receive(packet, events)
                if not self._is_decoding():
                    break
        except errors.PacketRefused as error:
            self._fail(error, events)
        return events

    def _is_decoding(self) -> bool:
        return self.state in (ConnectionState.WAITING, ConnectionState.OPEN)

    def end_of_stream(self) -> list[Event]:
        """The client closed the socket, or it was lost."""
        events: list[Event] = []
        self._end(ReasonCode.UNSPECIFIED_ERROR, "the connection was lost", events)
        return events

    def keep_alive_expired(self) -> list[Event]:
        """The client was silent for one and a half times its keep alive."""
        return self.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet arrived within 1.5 times the keep alive")

    def _receive(self, packet: packets.Packet, events: list[Event]) -> None:
        if self.state is ConnectionState.WAITING:
            assert isinstance(packet, packets.ConnectPacket), "the decoder accepts nothing else first"
            self._receive_connect(packet, events)
            return
        match packet:
            case packets.PublishPacket():
                self._receive_publish(packet, events)
            case packets.PubackPacket() | packets.PubrecPacket() | packets.PubcompPacket():
                self._receive_ack(packet, events)
            case packets.PubrelPacket():
                self._receive_release(packet, events)
            case packets.SubscribePacket():
                self._requests += 1
                events.append(SubscribeReceived(packet))
            case packets.UnsubscribePacket():
                self._requests += 1
                events.append(UnsubscribeReceived(packet))
            case packets.PingreqPacket():
                self._send(packets.PingrespPacket())
            case packets.DisconnectPacket():
                self._receive_disconnect(packet, events)
            case packets.ConnectPacket():
                raise _protocol_error("a second CONNECT arrived")
            case packets.AuthPacket():
                raise _protocol_error("AUTH arrived, and CONNECT named no authentication method")
            case packets.ConnackPacket() | packets.SubackPacket() | packets.UnsubackPacket() | packets.PingrespPacket():
                raise _protocol_error("a packet arrived that only a server sends")

    def _receive_connect(self, packet: packets.ConnectPacket, events: list[Event]) -> None:
        self._connect = packet
        self.state = ConnectionState.DECIDING
        if packet.properties.text(PropertyId.AUTHENTICATION_METHOD) is not None:
            reason, why = ReasonCode.BAD_AUTHENTICATION_METHOD, "enhanced authentication is not supported"
        elif not packet.client_id and packet.version is not _V5 and not packet.is_clean_start:
            reason, why = ReasonCode.CLIENT_IDENTIFIER_INVALID, "a session that is kept needs a client identifier"
        else:
            number = packet.properties.number
            self._client_packet_bytes_max = number(PropertyId.MAXIMUM_PACKET_SIZE) or 0xFFFFFFFF
            receive_maximum = number(PropertyId.RECEIVE_MAXIMUM) or 0xFFFF
            self._send_maximum = min(receive_maximum, self._options.in_flight_max)
            aliases = number(PropertyId.TOPIC_ALIAS_MAXIMUM) or 0
            self._aliases_out_max = min(aliases, self._options.topic_aliases_max)
            events.append(ConnectReceived(packet))
            return
        events.extend(self.refuse(reason, why))

    def _receive_publish(self, packet: packets.PublishPacket, events: list[Event]) -> None:
        if packet.properties:
            packet = self._without_alias(packet)
        qos, packet_id = packet.qos, packet.packet_id
        if packet.is_retained and not self._options.is_retain_available:
            raise errors.PacketRefused(
                "retained messages are not available", reason_code=ReasonCode.RETAIN_NOT_SUPPORTED
            )
        if qos == 2 and (state := self._received.get(packet_id)) is not None:
            self._receive_again(packet_id, state)
            return
        # 3.1.1 does not know of a maximum: QoS 1 is slowed down by `wants_data`, but ids of QoS 2 are kept (hazard 67).
        if qos + (self.version is _V5) >= 2 and self.unacked >= self._options.receive_maximum:
            raise errors.PacketRefused(
                f"more than {self._options.receive_maximum} QoS 1 and 2 messages are not acknowledged",
                reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                hint="keep to the receive maximum of CONNACK",
            )
        self._last_number = number = self._last_number + 1
        owed = OwedAck(packet_id, qos, len(packet.payload) + len(packet.topic) + limits.MQTT_PACKET_OVERHEAD_BYTES)
        self._unsettled[number] = owed
        self._unsettled_bytes += owed.cost
        if qos:
            self._acks.expect(owed)
        if qos == 2:
            self._received[packet_id] = _ReceiveState.PENDING
            self._pending_qos2[packet_id] = owed
        events.append(PublishReceived(number, packet))

    def _without_alias(self, packet: packets.PublishPacket) -> packets.PublishPacket:
        """The packet with its topic instead of an alias, which belongs to this connection only."""
        if packet.properties.subscription_identifiers():
            raise _protocol_error("PUBLISH of a client has a subscription identifier")
        alias = packet.properties.number(PropertyId.TOPIC_ALIAS)
        if alias is None:
            return packet
        if alias > self._options.topic_aliases_max:
            raise errors.PacketRefused(
                f"topic alias {alias} is larger than the maximum of {self._options.topic_aliases_max}",
                reason_code=ReasonCode.TOPIC_ALIAS_INVALID,
                hint="keep to the topic alias maximum of CONNACK",
            )
        topic = packet.topic or self._aliases_in.get(alias)
        if topic is None:
            raise _protocol_error(f"topic alias {alias} stands for no topic on this connection")
        self._aliases_in[alias] = topic
        return msgspec.structs.replace(
            packet, topic=topic, properties=packet.properties.without(PropertyId.TOPIC_ALIAS)
        )

    def _receive_again(self, packet_id: int, state: _ReceiveState) -> None:
        match state:
            case _ReceiveState.RECEIVED:
                owed = OwedAck(packet_id, 2, 0)
                self._acks.expect(owed)
                self._settle_ack(owed)
                self._flush_acks()
            case _ReceiveState.PENDING:
                # The same entry: it is answered as often as it was sent, each answer with the outcome of the original.
                self._acks.expect(self._pending_qos2[packet_id])
            case _ReceiveState.RELEASING:
                raise _protocol_error(f"packet identifier {packet_id} is used again before its PUBCOMP")

    def _receive_release(self, packet: packets.PubrelPacket, events: list[Event]) -> None:
        state = self._received.get(packet.packet_id)
        if state is None:
            self._send(packets.PubcompPacket(packet.packet_id, ReasonCode.PACKET_ID_NOT_FOUND))
        elif state is _ReceiveState.PENDING:
            raise _protocol_error(f"PUBREL of packet identifier {packet.packet_id} arrived before its PUBREC was sent")
        elif state is _ReceiveState.RECEIVED:
            self._received[packet.packet_id] = _ReceiveState.RELEASING
            self._requests += 1
            events.append(ReleaseReceived(packet.packet_id))

    def _receive_ack(
        self, packet: packets.PubackPacket | packets.PubrecPacket | packets.PubcompPacket, events: list[Event]
    ) -> None:
        packet_id = packet.packet_id
        entry = self._in_flight.get(packet_id)
        if entry is None:
            if isinstance(packet, packets.PubrecPacket):
                self._send(packets.PubrelPacket(packet_id, ReasonCode.PACKET_ID_NOT_FOUND))
            return
        match packet:
            case packets.PubackPacket():
                is_expected = entry.qos == 1
            case packets.PubrecPacket():
                is_expected = entry.qos == 2
            case packets.PubcompPacket():
                is_expected = entry.qos == 2 and entry.is_received
        if not is_expected:
            raise _protocol_error(
                f"{type(packet).__name__} does not fit packet identifier {packet_id}, which has QoS {entry.qos}"
            )
        if isinstance(packet, packets.PubrecPacket) and packet.reason_code < FAILURE:
            if entry.is_received:
                self._send(packets.PubrelPacket(packet_id))
                return
            entry.is_received = True
            events.append(DeliveryReceived(packet_id))
            return
        del self._in_flight[packet_id]
        events.append(DeliveryDone(packet_id, packet.reason_code))
        self._send_resumed()

    def receive_acks(self, packet_ids: Sequence[int]) -> list[Event]:
        """The events of PUBACKs with the reason 0x00 that the driver has decoded, in their order, of what it has sent
        itself (`run_sent`): none of them can be refused."""
        if self.state is not ConnectionState.OPEN:
            return []
        in_flight, done = self._in_flight, []
        for packet_id in packet_ids:
            if in_flight.get(packet_id) is _QOS1_IN_FLIGHT:
                del in_flight[packet_id]
                done.append(packet_id)
        self._send_resumed()
        return [DeliveriesDone(done)]

    def _receive_disconnect(self, packet: packets.DisconnectPacket, events: list[Event]) -> None:
        if packet.reason_code not in CLIENT_DISCONNECT_CODES:
            raise _protocol_error(f"DISCONNECT of a client has the reason code 0x{packet.reason_code:02x}")
        expiry = packet.properties.number(PropertyId.SESSION_EXPIRY_INTERVAL)
        if expiry is not None:
            if expiry and not self.session_expiry_seconds:
                raise _protocol_error("DISCONNECT sets a session expiry, and CONNECT had none")
            expiry = min(expiry, self._options.session_expiry_seconds_max)
        is_will_due = packet.reason_code != ReasonCode.SUCCESS
        reason = f"the client disconnected: {reason_name(packet.reason_code)}"
        self._end(packet.reason_code, reason, events, is_will_due=is_will_due, expiry=expiry)

    # --- commands ---------------------------------------------------------------------------------------------------

    def accept(
        self,
        *,
        is_session_present: bool = False,
        assigned_client_id: str = "",
        received_ids: Iterable[int] = (),
        resumed: Iterable[ResumedDelivery] = (),
    ) -> None:
        """Answers CONNECT with success.

        For a resumed session: `received_ids` are those of QoS 2 messages that are stored and not released; `resumed` is
        sent again in its order, with DUP and with the ids that it had, as the client's Receive Maximum allows, which
        may be lower than that of the connection before.
        """
        if self.state is not ConnectionState.DECIDING or self._connect is None:
            return
        self.state = ConnectionState.OPEN
        self._decoder.packet_bytes_max = self._options.packet_bytes_max
        self._received = dict.fromkeys(received_ids, _ReceiveState.RECEIVED)
        self._send(packets.ConnackPacket(ReasonCode.SUCCESS, is_session_present, self._connack(assigned_client_id)))
        self._resumed.extend(resumed)
        self._send_resumed()

    def _send_resumed(self) -> None:
        while self._resumed and (self._resumed[0].packet is None or self.send_quota):
            delivery = self._resumed.popleft()
            packet_id, packet = delivery.packet_id, delivery.packet
            if packet is None:
                self._in_flight[packet_id] = _InFlight(2, is_received=True)
                self._send(packets.PubrelPacket(packet_id))
            else:
                self._in_flight[packet_id] = _in_flight_of(packet.qos)
                # The full topic: an alias of the old connection means nothing here (hazard 72).
                self._send(msgspec.structs.replace(packet, packet_id=packet_id, is_duplicate=True))

    def _connack(self, assigned_client_id: str) -> Properties:
        options = self._options
        entries: list[tuple[int, PropertyValue]] = [
            (PropertyId.RECEIVE_MAXIMUM, options.receive_maximum),
            (PropertyId.MAXIMUM_PACKET_SIZE, options.packet_bytes_max),
            (PropertyId.TOPIC_ALIAS_MAXIMUM, options.topic_aliases_max),
        ]
        if assigned_client_id:
            entries.append((PropertyId.ASSIGNED_CLIENT_IDENTIFIER, assigned_client_id))
        assert self._connect is not None, "CONNECT is answered once it has arrived"
        if self.keep_alive_seconds != self._connect.keep_alive_seconds:
            entries.append((PropertyId.SERVER_KEEP_ALIVE, self.keep_alive_seconds))
        requested_s = self._connect.properties.number(PropertyId.SESSION_EXPIRY_INTERVAL) or 0
        if self.session_expiry_seconds != requested_s:
            entries.append((PropertyId.SESSION_EXPIRY_INTERVAL, self.session_expiry_seconds or 0))
        if not options.is_retain_available:
            entries.append((PropertyId.RETAIN_AVAILABLE, 0))
        if not options.is_shared_available:
            entries.append((PropertyId.SHARED_SUBSCRIPTION_AVAILABLE, 0))
        return Properties(entries)

    def refuse(self, reason_code: int, reason: str = "", server_reference: str = "") -> list[Event]:
        """Answers CONNECT with a refusal and closes. `server_reference`: where the client may go instead."""
        events: list[Event] = []
        if self.state is ConnectionState.DECIDING:
            properties = self._reason_string(reason)
            if server_reference and self.version is _V5:
                properties = Properties([*properties, (PropertyId.SERVER_REFERENCE, server_reference)])
            self._send(packets.ConnackPacket(nearest_reason(reason_code, CONNACK_CODES), False, properties))
            self._end(reason_code, reason, events, is_will_due=False)
        return events

    def settle(self, number: int, reason_code: int = ReasonCode.SUCCESS) -> list[Event]:
        """The outcome of PublishReceived: stored (durable as the log's mode promises), or refused by a reason code.

        Its ack leaves when all before it have left. Returns events if the refusal ends the connection (3.1.1).
        """
        events: list[Event] = []
        owed = self._unsettled.pop(number, None)
        if owed is None:
            return events
        self._unsettled_bytes -= owed.cost
        owed.reason_code = reason_code
        if owed.qos == 2:
            self._pending_qos2.pop(owed.packet_id, None)
            if reason_code < FAILURE:
                self._received[owed.packet_id] = _ReceiveState.RECEIVED
            else:
                self._received.pop(owed.packet_id, None)
        if owed.qos:
            self._settle_ack(owed)
        self._flush_acks(events)
        return events

    def _settle_ack(self, owed: OwedAck) -> None:
        reason_code = owed.reason_code
        if reason_code >= FAILURE and self.version is not _V5:
            owed.is_refusal = True  # 3.1.1 has no negative ack
        else:
            acknowledgement = packets.PubackPacket if owed.qos == 1 else packets.PubrecPacket
            owed.ack = encode_packet(acknowledgement(owed.packet_id, reason_code), self.version)
        self._acks.settled(owed)

    def abandon(self, reason_code: int, reason: str) -> list[Event]:
        """The outcome of a received message is unknown: closes, and acks neither it nor anything behind it (66)."""
        self._acks.clear()
        self._requests = 0
        return self.disconnect(reason_code, reason)

    def _flush_acks(self, events: list[Event] | None = None) -> None:
        """Sends the acks up to the first that is not settled, and the DISCONNECT that waits behind them."""
        if self.state in (ConnectionState.OPEN, ConnectionState.CLOSING):
            for owed in self._acks.take():
                if owed.is_refusal:
                    self._acks.clear()
                    self._requests = 0
                    reason = f"a message was refused: {reason_name(owed.reason_code)}"
                    refusal = self.disconnect(owed.reason_code, reason)
                    if events is not None:
                        events += refusal
                    break
                self._output += owed.ack or b""
        self._close_if_answered()

    def _close_if_answered(self) -> None:
        if self.state is ConnectionState.CLOSING and self._acks.is_empty and not self._requests:
            self._close()

    def acks_left(self) -> list[Event]:
        """Acks that leave elsewhere (AckOrder) have left, up to the end or to a refusal."""
        events: list[Event] = []
        self._flush_acks(events)
        return events

    def adopt(self, packet: packets.PublishPacket, owed: OwedAck) -> PublishReceived:
        """A publish that was received elsewhere, and accepted there, is settled here; its ack is expected already."""
        self._last_number = number = self._last_number + 1
        self._unsettled[number] = owed
        self._unsettled_bytes += owed.cost
        return PublishReceived(number, packet)

    def release_done(self, packet_id: int) -> None:
        """The release of a received QoS 2 message is durable: its id is free, and PUBCOMP leaves."""
        if self._received.get(packet_id) is _ReceiveState.RELEASING:
            del self._received[packet_id]
            self._answer(packets.PubcompPacket(packet_id))

    def subscribed(self, packet_id: int, reason_codes: tuple[int, ...], reason: str = "") -> None:
        """Answers SUBSCRIBE, with a code for each of its filters."""
        self._answer(packets.SubackPacket(packet_id, reason_codes, self._reason_string(reason)))

    def unsubscribed(self, packet_id: int, reason_codes: tuple[int, ...], reason: str = "") -> None:
        """Answers UNSUBSCRIBE, with a code for each of its filters."""
        self._answer(packets.UnsubackPacket(packet_id, reason_codes, self._reason_string(reason)))

    def _answer(self, packet: packets.Packet) -> None:
        self._requests = max(0, self._requests - 1)
        self._send(packet)
        self._close_if_answered()

    def send_publish(self, packet: packets.PublishPacket) -> bool:
        """Sends a message with its id (0 for QoS 0), with an alias if the client allows them.

        The caller keeps to `send_quota`, and uses no id that is in flight. False if the packet is larger than the
        client's maximum: it counts as delivered (MQTT-3.1.2-25), and its id is free.
        """
        if self.state is not ConnectionState.OPEN:
            return True
        aliased, alias = self._with_alias(packet)
        data = encode_packet(aliased, self.version)
        if len(data) > self._client_packet_bytes_max:
            return False
        if packet.qos:
            assert self.send_quota, "the session keeps to the client's Receive Maximum"
            assert packet.packet_id not in self._in_flight, "the session uses no id twice"
            self._in_flight[packet.packet_id] = _in_flight_of(packet.qos)
        if alias:
            self._aliases_out[packet.topic] = alias
        self._output += data
        return True

    def takes_runs(self, packet_bytes_max: int) -> bool:
        """True if packets of at most this size, with full topics, may be written by the driver (`run_sent`)."""
        return not self._aliases_out_max and packet_bytes_max <= self._client_packet_bytes_max

    def run_sent(self, packet_ids: Iterable[range]) -> None:
        """Packets of QoS 1 with these ids were written by the driver, under the rules of `send_publish`."""
        for ids in packet_ids:
            assert self.send_quota >= len(ids), "the session keeps to the client's Receive Maximum"
            assert self._in_flight.keys().isdisjoint(ids), "the session uses no id twice"
            self._in_flight.update(dict.fromkeys(ids, _QOS1_IN_FLIGHT))

    def _with_alias(self, packet: packets.PublishPacket) -> tuple[packets.PublishPacket, int]:
        """The packet as it is sent, and the alias that it introduces (0 for none). First come, first served: an alias
        that moved to another topic would have to be sent with both topics again and again."""
        if not self._aliases_out_max:
            return packet, 0
        alias = self._aliases_out.get(packet.topic)
        if alias is not None:
            properties = packet.properties.followed_by((PropertyId.TOPIC_ALIAS, alias))
            return msgspec.structs.replace(packet, topic="", properties=properties), 0
        if len(self._aliases_out) >= self._aliases_out_max:
            return packet, 0
        alias = len(self._aliases_out) + 1
        properties = packet.properties.followed_by((PropertyId.TOPIC_ALIAS, alias))
        return msgspec.structs.replace(packet, properties=properties), alias

    def send_release(self, packet_id: int) -> None:
        """Sends the PUBREL of a delivered QoS 2 message, whose PUBREC is durable."""
        entry = self._in_flight.get(packet_id)
        if entry is not None and entry.is_received:
            self._send(packets.PubrelPacket(packet_id))

    def disconnect(self, reason_code: int, reason: str = "", undecided: Iterable[Event] = ()) -> list[Event]:
        """The server ends the connection: everything owed is answered, then DISCONNECT with the reason (5.0).

        `undecided`: events that the driver has not handed over, and will not: they and what is behind them get no ack.
        """
        events: list[Event] = []
        if self.state is ConnectionState.DECIDING:
            return self.refuse(reason_code, reason)
        if self.state is ConnectionState.WAITING:
            self._end(reason_code, reason, events, is_will_due=False)
        self._forget(undecided)
        if self.state is ConnectionState.OPEN:
            self.state = ConnectionState.CLOSING
            self._closing = DisconnectReason(reason_code, reason)
            events.append(ConnectionEnded(reason_code, reason, True, self.session_expiry_seconds))
            self._acks.close()
        self._flush_acks()
        return events

    def _forget(self, undecided: Iterable[Event]) -> None:
        forgotten: set[OwedAck] = set()
        for event in undecided:
            match event:
                case PublishReceived() if (owed := self._unsettled.pop(event.number, None)) is not None:
                    self._unsettled_bytes -= owed.cost
                    forgotten.add(owed)
                case SubscribeReceived() | UnsubscribeReceived() | ReleaseReceived():
                    self._requests = max(0, self._requests - 1)
        if forgotten:
            self._acks.cut(forgotten)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, error: errors.PacketRefused, events: list[Event]) -> None:
        """A packet broke the protocol: what was before it is answered, then the reason, then the end."""
        if self.state is not ConnectionState.WAITING:
            events.extend(self.disconnect(error.reason_code, error.message))
            return
        level = error.details.get("level", 0)
        if level >= _V5:
            refusal = packets.ConnackPacket(error.reason_code, False, self._reason_string(error.message))
            self._output += encode_packet(refusal, _V5)
        elif level and error.reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            self._output += encode_packet(packets.ConnackPacket(error.reason_code), ProtocolVersion.V3_1_1)
        self._end(error.reason_code, error.message, events, is_will_due=False)

    def _close(self) -> None:
        if self._closing is not None and self.version is _V5:
            reason_code = nearest_reason(self._closing.reason_code, DISCONNECT_CODES)
            self._send(packets.DisconnectPacket(reason_code, self._reason_string(self._closing.reason)))
        self.state = ConnectionState.CLOSED

    def _end(
        self, reason_code: int, reason: str, events: list[Event], *, is_will_due: bool = True, expiry: int | None = None
    ) -> None:
        """Closes at once; `expiry` is that of DISCONNECT."""
        was_open = self.state is ConnectionState.OPEN
        if self.state is ConnectionState.CLOSING:
            self.state = ConnectionState.CLOSED  # it was reported when the closing began
        if self.state is ConnectionState.CLOSED:
            return
        self.state = ConnectionState.CLOSED
        self._acks.clear()
        expiry = self.session_expiry_seconds if expiry is None else expiry
        events.append(ConnectionEnded(reason_code, reason, is_will_due and was_open, expiry))

    def _send(self, packet: packets.Packet) -> None:
        if self.state in (ConnectionState.CLOSED, ConnectionState.WAITING):
            return
        data = encode_packet(packet, self.version)
        if len(data) > self._client_packet_bytes_max:
            # A reason string is left out if the packet would be too large with it (MQTT-3.2.2-19 and its like).
            data = encode_packet(msgspec.structs.replace(packet, properties=NO_PROPERTIES), self.version)
        self._output += data

    def _reason_string(self, reason: str) -> Properties:
        """For clients that want to know (MQTT-3.1.2-29)."""
        connect = self._connect
        if not reason or (
            connect is not None and connect.properties.number(PropertyId.REQUEST_PROBLEM_INFORMATION) == 0
        ):
            return NO_PROPERTIES
        return Properties([(PropertyId.REASON_STRING, reason[:_REASON_STRING_CHARACTERS].replace("\0", ""))])


def _in_flight_of(qos: int) -> _InFlight:
    return _QOS1_IN_FLIGHT if qos == 1 else _InFlight(qos)


class DisconnectReason(msgspec.Struct, frozen=True):
    """Why the server closes, for the DISCONNECT that leaves last."""

    reason_code: int
    reason: str


def _protocol_error(message: str) -> errors.PacketRefused:
    return errors.PacketRefused(message, reason_code=ReasonCode.PROTOCOL_ERROR)
