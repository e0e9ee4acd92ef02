"""A strict MQTT client for tests, on the broker's own codec: every packet by hand, and every packet recorded.

Nothing is acked unless the test says so, and nothing is read before the test asks for it, so a test can be a client
that does not ack, or one that does not read. Every packet from the broker is held against the rules that one connection
can see, and a breach raises ProtocolViolation:

    packet        a type that only clients send; before CONNACK anything else; larger than this client's maximum
    PUBLISH       a packet id that is still in flight, unless DUP says that it is a resend; more in flight than this
                  client's Receive Maximum; an alias above its maximum or without a topic; a QoS 0 message with DUP
    PUBREL        of an id for which this connection sent no PUBREC, unless the session was resumed
    acks          of a packet id that this connection does not wait for

    async with mqtt_client(port, "reader", expiry_seconds=60) as client:
        await client.subscribe(("a/#", 1))
        message = await client.message()
        await client.ack(message)

`read` takes the next packet in its order; `receive` takes the first of a type and leaves the others for later calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import msgspec

from icestream import errors
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties, PropertyId, PropertyValue
from icestream.mqtt.reason_codes import FAILURE, ReasonCode

WAIT_SECONDS: Final = 20.0
V3: Final = ProtocolVersion.V3_1_1
V5: Final = ProtocolVersion.V5
EXPIRY_NEVER: Final = 0xFFFFFFFF
PACKET_ID_MAX: Final = 0xFFFF

_PacketT = TypeVar("_PacketT", bound=packets.Packet)
_OF_CLIENTS: Final = (
    packets.ConnectPacket,
    packets.SubscribePacket,
    packets.UnsubscribePacket,
    packets.PingreqPacket,
)


class ConnectionClosed(Exception):
    """The broker ended the connection. `reason_code`: of its DISCONNECT; None if it sent none."""

    def __init__(self, reason_code: int | None) -> None:
        name = "no DISCONNECT" if reason_code is None else f"0x{reason_code:02x}"
        super().__init__(f"the broker closed the connection ({name})")
        self.reason_code = reason_code


class ProtocolViolation(AssertionError):
    """The broker broke a rule of MQTT."""


def property_list(**values: PropertyValue | list[tuple[str, str]]) -> Properties:
    """Properties by the names of PropertyId in lower case; `user_property` takes a list of pairs."""
    entries: list[tuple[int, PropertyValue]] = []
    for name, value in values.items():
        identifier = PropertyId[name.upper()]
        entries += [(identifier, item) for item in (value if isinstance(value, list) else [value])]
    return Properties(entries) if entries else NO_PROPERTIES


class MqttClient:
    """One connection. `sent` and `received` are all packets in their order; deliveries there have their aliases."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: ProtocolVersion = V5
    ) -> None:
        self.version = version
        self.client_id = ""
        self.sent: list[packets.Packet] = []
        self.received: list[packets.Packet] = []
        self.connack: packets.ConnackPacket | None = None
        # Ids of deliveries that this connection has received and not acked to the end, with the packet.
        self.in_flight: dict[int, packets.PublishPacket] = {}
        self.receive_maximum = 0xFFFF
        self.alias_maximum = 0
        self._reader, self._writer = reader, writer
        self._decoder = PacketDecoder(0xFFFFFFF, version)
        self._unread: list[packets.Packet] = []
        self._aliases: dict[int, str] = {}
        self._released: set[int] = set()  # ids for which a PUBREC was sent
        self._awaited: set[tuple[type[packets.Packet], int]] = set()
        self._last_packet_id = 0
        self._is_at_end = False
        self._end_reason: int | None = None

    async def __aenter__(self) -> MqttClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- out ---

    async def send(self, *sequence: packets.Packet) -> None:
        """Writes these packets as one piece. They may break any rule that the codec can write."""
        for packet in sequence:
            self._note_sent(packet)
        await self.send_bytes(b"".join(encode_packet(packet, self.version) for packet in sequence))

    async def send_bytes(self, data: bytes) -> None:
        """Writes anything. The end of the connection shows at the next read, not here."""
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def next_packet_id(self) -> int:
        self._last_packet_id = self._last_packet_id % PACKET_ID_MAX + 1
        return self._last_packet_id

    def _note_sent(self, packet: packets.Packet) -> None:
        self.sent.append(packet)
        match packet:
            case packets.PublishPacket(qos=1, packet_id=packet_id):
                self._awaited.add((packets.PubackPacket, packet_id))
            case packets.PublishPacket(qos=2, packet_id=packet_id):
                self._awaited.add((packets.PubrecPacket, packet_id))
            case packets.PubrelPacket(packet_id):
                self._awaited.add((packets.PubcompPacket, packet_id))
            case packets.SubscribePacket(packet_id):
                self._awaited.add((packets.SubackPacket, packet_id))
            case packets.UnsubscribePacket(packet_id):
                self._awaited.add((packets.UnsubackPacket, packet_id))
            case packets.PubackPacket(packet_id) | packets.PubcompPacket(packet_id):
                self.in_flight.pop(packet_id, None)
            case packets.PubrecPacket(packet_id, reason_code):
                if reason_code >= FAILURE:
                    self.in_flight.pop(packet_id, None)
                else:
                    self._released.add(packet_id)

    # --- in ---

    async def read(self, seconds: float = WAIT_SECONDS) -> packets.Packet:
        """The next packet. Raises ConnectionClosed at the end, ProtocolViolation, and TimeoutError."""
        async with asyncio.timeout(seconds):
            while not self._unread:
                await self._read_some()
        return self._unread.pop(0)

    async def receive(self, kind: type[_PacketT], seconds: float = WAIT_SECONDS) -> _PacketT:
        """The first packet of this type that was not taken yet; others stay. Raises as `read` does."""
        async with asyncio.timeout(seconds):
            start = 0
            while True:
                for index in range(start, len(self._unread)):
                    packet = self._unread[index]
                    if isinstance(packet, kind):
                        del self._unread[index]
                        return packet
                start = len(self._unread)
                await self._read_some()

    async def _read_some(self) -> None:
        """Appends packets to `_unread`. Raises ConnectionClosed if there are no more."""
        if self._is_at_end:
            raise ConnectionClosed(self._end_reason)
        try:
            data = await self._reader.read(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._is_at_end = True
            self._writer.close()
            return
        try:
            for packet in self._decoder.feed(data):
                self.received.append(self._checked(packet))
                self._unread.append(self.received[-1])
        except errors.PacketRefused as error:
            raise ProtocolViolation(f"the broker sent a malformed packet: {error}") from error

    def _checked(self, packet: packets.Packet) -> packets.Packet:
        """The packet, with the topic where an alias stood for it. Raises ProtocolViolation."""
        if isinstance(packet, _OF_CLIENTS):
            raise ProtocolViolation(f"only clients send {packet}")
        if self.connack is None and not isinstance(packet, packets.ConnackPacket | packets.AuthPacket):
            raise ProtocolViolation(f"{packet} came before CONNACK")
        match packet:
            case packets.ConnackPacket():
                if self.connack is not None:
                    raise ProtocolViolation(f"a second CONNACK: {packet}")
                self.connack = packet
            case packets.PublishPacket():
                packet = self._resolved(packet)
                if packet.qos:
                    self._check_delivery(packet)
            case packets.PubrelPacket(packet_id):
                is_resumed = self.connack is not None and self.connack.is_session_present
                if packet_id not in self._released and not is_resumed:
                    raise ProtocolViolation(f"{packet} of an id for which no PUBREC was sent")
            case (
                packets.PubackPacket(packet_id)
                | packets.PubrecPacket(packet_id)
                | packets.PubcompPacket(packet_id)
                | packets.SubackPacket(packet_id)
                | packets.UnsubackPacket(packet_id)
            ):
                if (type(packet), packet_id) not in self._awaited:
                    raise ProtocolViolation(f"nothing waits for {packet}")
                self._awaited.discard((type(packet), packet_id))
            case packets.DisconnectPacket(reason_code):
                if self.version is V3:
                    raise ProtocolViolation("a server of MQTT 3.1.1 sends no DISCONNECT")
                self._end_reason = reason_code
        return packet

    def _resolved(self, packet: packets.PublishPacket) -> packets.PublishPacket:
        alias = packet.properties.number(PropertyId.TOPIC_ALIAS)
        if alias is None:
            return packet
        if alias > self.alias_maximum:
            raise ProtocolViolation(f"topic alias {alias} is above the maximum of {self.alias_maximum}: {packet}")
        if packet.topic:
            self._aliases[alias] = packet.topic
            return packet
        if alias not in self._aliases:
            raise ProtocolViolation(f"topic alias {alias} stands for no topic: {packet}")
        return msgspec.structs.replace(packet, topic=self._aliases[alias])

    def _check_delivery(self, packet: packets.PublishPacket) -> None:
        if packet.packet_id in self.in_flight and not packet.is_duplicate:
            raise ProtocolViolation(f"{packet} has the id of {self.in_flight[packet.packet_id]}, which is in flight")
        self.in_flight[packet.packet_id] = packet
        if len(self.in_flight) > self.receive_maximum:
            raise ProtocolViolation(f"{len(self.in_flight)} in flight, Receive Maximum is {self.receive_maximum}")

    # --- whole exchanges ---

    async def connect(
        self,
        client_id: str = "",
        *,
        is_clean_start: bool = True,
        expiry_seconds: int | None = None,
        keep_alive_seconds: int = 0,
        will: packets.Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> packets.ConnackPacket:
        """CONNECT and its CONNACK, whatever that says. `expiry_seconds` is a property of 5.0."""
        if expiry_seconds is not None:
            properties = properties.followed_by((PropertyId.SESSION_EXPIRY_INTERVAL, expiry_seconds))
        self.receive_maximum = properties.number(PropertyId.RECEIVE_MAXIMUM) or 0xFFFF
        self.alias_maximum = properties.number(PropertyId.TOPIC_ALIAS_MAXIMUM) or 0
        self._decoder.packet_bytes_max = properties.number(PropertyId.MAXIMUM_PACKET_SIZE) or 0xFFFFFFF
        await self.send(
            packets.ConnectPacket(
                client_id,
                self.version,
                is_clean_start,
                keep_alive_seconds,
                will,
                user_name,
                password,
                properties,
            )
        )
        connack = await self.receive(packets.ConnackPacket)
        self.client_id = connack.properties.text(PropertyId.ASSIGNED_CLIENT_IDENTIFIER) or client_id
        return connack

    async def subscribe(
        self,
        *subscriptions: str | tuple[str, int] | packets.SubscriptionRequest,
        properties: Properties = NO_PROPERTIES,
    ) -> tuple[int, ...]:
        """The reason codes of SUBACK. A plain filter is subscribed with QoS 2."""
        requests = tuple(map(_subscription_request, subscriptions))
        packet_id = self.next_packet_id()
        await self.send(packets.SubscribePacket(packet_id, requests, properties))
        suback = await self.receive(packets.SubackPacket)
        assert suback.packet_id == packet_id, suback
        assert len(suback.reason_codes) == len(requests), suback
        return suback.reason_codes

    async def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        """The reason codes of UNSUBACK; 3.1.1 has none."""
        packet_id = self.next_packet_id()
        await self.send(packets.UnsubscribePacket(packet_id, filters))
        unsuback = await self.receive(packets.UnsubackPacket)
        assert unsuback.packet_id == packet_id, unsuback
        return unsuback.reason_codes

    async def send_publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        packet_id: int | None = None,
        is_retained: bool = False,
        is_duplicate: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> int:
        """PUBLISH without waiting for anything; returns the packet id, 0 for QoS 0."""
        if packet_id is None:
            packet_id = self.next_packet_id() if qos else 0
        await self.send(packets.PublishPacket(topic, payload, qos, packet_id, is_retained, is_duplicate, properties))
        return packet_id

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 1,
        *,
        is_retained: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> int:
        """The whole flow of a message; the reason code of PUBACK or PUBREC, 0 for QoS 0."""
        packet_id = await self.send_publish(topic, payload, qos, is_retained=is_retained, properties=properties)
        return await self.settled(qos, packet_id)

    async def settled(self, qos: int, packet_id: int) -> int:
        """The rest of the flow of a PUBLISH that was sent; its reason code."""
        if qos == 0:
            return ReasonCode.SUCCESS
        if qos == 1:
            puback = await self.receive(packets.PubackPacket)
            assert puback.packet_id == packet_id, puback
            return puback.reason_code
        pubrec = await self.receive(packets.PubrecPacket)
        assert pubrec.packet_id == packet_id, pubrec
        if pubrec.reason_code < FAILURE:
            await self.release(packet_id)
        return pubrec.reason_code

    async def release(self, packet_id: int) -> packets.PubcompPacket:
        """PUBREL and its PUBCOMP."""
        await self.send(packets.PubrelPacket(packet_id))
        pubcomp = await self.receive(packets.PubcompPacket)
        assert pubcomp.packet_id == packet_id, pubcomp
        return pubcomp

    async def message(self, seconds: float = WAIT_SECONDS) -> packets.PublishPacket:
        """The next delivery, not acked."""
        return await self.receive(packets.PublishPacket, seconds)

    async def messages(self, count: int, *, acked: bool = False) -> list[packets.PublishPacket]:
        """The next deliveries. `acked`: each is acked to the end before the next is awaited."""
        deliveries = []
        for _ in range(count):
            delivery = await self.message()
            if acked:
                await self.ack(delivery)
            deliveries.append(delivery)
        return deliveries

    async def payloads(self, count: int) -> list[bytes]:
        """The payloads of the next deliveries, which are acked to the end."""
        return [delivery.payload for delivery in await self.messages(count, acked=True)]

    async def ack(self, delivery: packets.PublishPacket) -> None:
        """Acks a delivery to the end of its flow: PUBACK, or PUBREC, PUBREL, PUBCOMP. Nothing for QoS 0."""
        if delivery.qos == 1:
            await self.send(packets.PubackPacket(delivery.packet_id))
        elif delivery.qos == 2:
            await self.send(packets.PubrecPacket(delivery.packet_id))
            await self.complete(delivery.packet_id)

    async def complete(self, packet_id: int) -> None:
        """Waits for the PUBREL of this id and answers it with PUBCOMP."""
        pubrel = await self.receive(packets.PubrelPacket)
        assert pubrel.packet_id == packet_id, pubrel
        await self.send(packets.PubcompPacket(packet_id))

    async def ping(self) -> list[packets.Packet]:
        """PINGREQ and its PINGRESP. Returns the packets that were received and not taken, without taking them.

        A barrier for what the broker had decided to send; a message of another connection may still be on its way, so
        a test that expects none publishes a last one behind it and expects that one first.
        """
        await self.send(packets.PingreqPacket())
        await self.receive(packets.PingrespPacket)
        return list(self._unread)

    async def disconnect(
        self, reason_code: int = ReasonCode.SUCCESS, *, expiry_seconds: int | None = None
    ) -> list[packets.Packet]:
        """DISCONNECT, then the end; returns the packets that were not taken."""
        properties = NO_PROPERTIES
        if expiry_seconds is not None:
            properties = Properties([(PropertyId.SESSION_EXPIRY_INTERVAL, expiry_seconds)])
        await self.send(packets.DisconnectPacket(reason_code, properties))
        return await self.read_to_end()

    async def read_to_end(self, seconds: float = WAIT_SECONDS) -> list[packets.Packet]:
        """All packets that were not taken, up to the end that the broker makes."""
        async with asyncio.timeout(seconds):
            while not self._is_at_end:
                await self._read_some()
        unread, self._unread = self._unread, []
        return unread

    async def end_reason(self, seconds: float = WAIT_SECONDS) -> int | None:
        """The reason code of the DISCONNECT with which the broker ends the connection; None if it sends none."""
        await self.read_to_end(seconds)
        return self._end_reason

    def abort(self) -> None:
        """Ends the connection at once, without DISCONNECT: RST, as a device that lost its power seems to do."""
        self._writer.transport.abort()

    def end_of_stream(self) -> None:
        """Nothing more is sent (FIN of this direction); the broker's packets are still read."""
        self._writer.write_eof()

    async def close(self) -> None:
        """Ends the connection without DISCONNECT, in order (FIN)."""
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()


def _subscription_request(
    subscription: str | tuple[str, int] | packets.SubscriptionRequest,
) -> packets.SubscriptionRequest:
    match subscription:
        case str(topic_filter):
            return packets.SubscriptionRequest(topic_filter, 2)
        case packets.SubscriptionRequest():
            return subscription
        case (topic_filter, qos):
            return packets.SubscriptionRequest(topic_filter, qos)


async def open_client(
    port: int,
    version: ProtocolVersion = V5,
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    read_bytes: int = 65536,
) -> MqttClient:
    """A connection on which nothing was said. `read_bytes`: about what is taken from the socket before a test reads."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=read_bytes)
    return MqttClient(reader, writer, version)


@contextlib.asynccontextmanager
async def mqtt_client(
    port: int,
    client_id: str = "",
    version: ProtocolVersion = V5,
    *,
    is_clean_start: bool = True,
    expiry_seconds: int | None = None,
    keep_alive_seconds: int = 0,
    will: packets.Will | None = None,
    user_name: str | None = None,
    password: bytes | None = None,
    properties: Properties = NO_PROPERTIES,
) -> AsyncIterator[MqttClient]:
    """A connection that the broker accepted. It ends without DISCONNECT, unless the test disconnected."""
    async with await open_client(port, version) as client:
        connack = await client.connect(
            client_id,
            is_clean_start=is_clean_start,
            expiry_seconds=expiry_seconds,
            keep_alive_seconds=keep_alive_seconds,
            will=will,
            user_name=user_name,
            password=password,
            properties=properties,
        )
        assert connack.reason_code == ReasonCode.SUCCESS, connack
        yield client
