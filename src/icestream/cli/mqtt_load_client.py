"""LoadClient: an MQTT 5.0 client that loads a broker and checks what it delivers. For `icestream bench mqtt`.

    payload := publisher number (u32), message number of that publisher (u64), time of sending in ns (u64), filling

A subscriber gets the messages of each publisher numbered from 0 without a hole: `SequenceCheck` counts gaps (lost, or
out of order) and repeats.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from typing import Final

from icestream import errors, limits
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties, PropertyId
from icestream.mqtt.reason_codes import FAILURE, ReasonCode, reason_name

_V5: Final = ProtocolVersion.V5
_HEAD: Final = struct.Struct(">IQQ")
PAYLOAD_BYTES_MIN: Final = _HEAD.size
ANSWER_SECONDS: Final = 30.0
_PACKET_ID_MAX: Final = 0xFFFF
_RECEIVE_MAXIMUM_DEFAULT: Final = 65_535


class MqttAccount:
    """What CONNECT carries to be let in; nothing by default."""

    def __init__(self, name: str | None = None, password: str | None = None) -> None:
        self.name = name
        self.password = password.encode() if password is not None else None


def encode_payload(publisher: int, number: int, size: int) -> bytes:
    return _HEAD.pack(publisher, number, time.perf_counter_ns()).ljust(size, b"x")


class SequenceCheck:
    """What one subscriber has received: messages, gaps, repeats, and how long each was on its way."""

    def __init__(self) -> None:
        self.received = 0
        self.gaps = 0
        self.repeats = 0
        self.latency_ns: list[int] = []
        self._next: dict[int, int] = {}

    def add(self, payload: bytes) -> None:
        publisher, number, sent_ns = _HEAD.unpack_from(payload)
        self.received += 1
        expected = self._next.get(publisher, 0)
        if number < expected:
            self.repeats += 1
            return
        self.gaps += number - expected
        self._next[publisher] = number + 1
        if len(self.latency_ns) < limits.BENCH_LATENCIES_MAX:
            self.latency_ns.append(time.perf_counter_ns() - sent_ns)


class LoadClient(asyncio.Protocol):
    """One connection. Acks what it gets, by itself; `publish` waits while the broker's window is used up."""

    def __init__(self, on_message: Callable[[bytes], None] | None = None, received_ids: set[int] | None = None) -> None:
        """`received_ids`: the QoS 2 ids of its session between PUBREC and PUBREL, which outlive a connection."""
        self._on_message = on_message or (lambda payload: None)
        self._transport: asyncio.Transport | None = None
        self._decoder = PacketDecoder(limits.MQTT_PACKET_BYTES_MAX_DEFAULT, _V5)
        self._connack: asyncio.Future[packets.ConnackPacket] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[packets.SubackPacket]] = {}
        self._in_flight: set[int] = set()
        self._received = received_ids if received_ids is not None else set()
        self._window = _RECEIVE_MAXIMUM_DEFAULT
        self._room = asyncio.Event()
        self._room.set()
        self._writable = asyncio.Event()
        self._writable.set()
        self._settled = asyncio.Event()
        self._settled.set()
        self._closed = asyncio.Event()
        self._output = bytearray()
        self._last_packet_id = 0
        self._failure: Exception | None = None
        self._is_leaving = False

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_leaving:
            self._fail(errors.ConnectionLost("the MQTT broker closed the connection", hint="look at its log"))
        self._closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for packet in self._decoder.feed(data):
                self._receive(packet)
        except errors.IcestreamError as error:
            self._fail(error)
            self.abort()

    # --- packets ---

    def _receive(self, packet: packets.Packet) -> None:
        match packet:
            case packets.PublishPacket():
                self._receive_publish(packet)
            case packets.PubackPacket(packet_id, reason_code):
                self._settle(packet_id, reason_code)
            case packets.PubrecPacket(packet_id, reason_code):
                if reason_code >= FAILURE:
                    self._settle(packet_id, reason_code)
                else:
                    self._send(packets.PubrelPacket(packet_id))
            case packets.PubcompPacket(packet_id):
                self._settle(packet_id, ReasonCode.SUCCESS)
            case packets.PubrelPacket(packet_id):
                self._received.discard(packet_id)
                self._send(packets.PubcompPacket(packet_id))
            case packets.ConnackPacket():
                if not self._connack.done():
                    self._connack.set_result(packet)
            case packets.SubackPacket(packet_id):
                if (answer := self._answers.pop(packet_id, None)) is not None and not answer.done():
                    answer.set_result(packet)
            case packets.DisconnectPacket(reason_code):
                self._fail(
                    errors.ConnectionLost(
                        f"the MQTT broker disconnected the client: {reason_name(reason_code)}", hint="look at its log"
                    )
                )

    def _receive_publish(self, packet: packets.PublishPacket) -> None:
        if packet.qos == 2:
            self._send(packets.PubrecPacket(packet.packet_id))
            if packet.packet_id in self._received:
                return
            self._received.add(packet.packet_id)
        elif packet.qos == 1:
            self._send(packets.PubackPacket(packet.packet_id))
        self._on_message(packet.payload)

    def _settle(self, packet_id: int, reason_code: int) -> None:
        self._in_flight.discard(packet_id)
        self._room.set()
        if not self._in_flight:
            self._settled.set()
        if reason_code >= FAILURE:
            self._fail(
                errors.Refused(f"the MQTT broker refused a message: {reason_name(reason_code)}", hint="look at its log")
            )

    def _send(self, packet: packets.Packet) -> None:
        """Writes with everything else of this turn of the loop."""
        if not self._output:
            asyncio.get_running_loop().call_soon(self._flush)
        self._output += encode_packet(packet, _V5)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(bytes(self._output))
        self._output.clear()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        if not self._connack.done():
            self._connack.set_exception(error)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        self._room.set()
        self._settled.set()
        self._writable.set()

    def check(self) -> None:
        """Raises what ended the connection, or the refusal of a message."""
        if self._failure is not None:
            raise self._failure

    # --- calls ---

    async def connect(
        self,
        host: str,
        port: int,
        client_id: str,
        account: MqttAccount,
        *,
        is_clean_start: bool = True,
        expiry_seconds: int = 0,
    ) -> bool:
        """Connects; True if the session was there. Raises ConnectionLost, Unauthenticated."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await loop.create_connection(lambda: self, host, port)
                expiry = [(PropertyId.SESSION_EXPIRY_INTERVAL, expiry_seconds)] if expiry_seconds else []
                properties = Properties(expiry) if expiry else NO_PROPERTIES
                self._send(
                    packets.ConnectPacket(
                        client_id, _V5, is_clean_start, 0, None, account.name, account.password, properties
                    )
                )
                connack = await self._connack
        except (OSError, TimeoutError) as error:
            raise errors.ConnectionLost(
                f"no MQTT broker answers at {host}:{port}: {str(error) or 'no CONNACK'}",
                hint="start it, or name another one",
            ) from None
        if connack.reason_code >= FAILURE:
            reason = f"the MQTT broker refused the client: {reason_name(connack.reason_code)}"
            if connack.reason_code in (ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED):
                raise errors.Unauthenticated(reason, hint="name an account with --user")
            raise errors.ConnectionLost(reason, hint="look at its log")
        maximum = connack.properties.number(PropertyId.RECEIVE_MAXIMUM)
        self._window = maximum or _RECEIVE_MAXIMUM_DEFAULT
        return connack.is_session_present

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        """Raises PermissionDenied if the filter is refused."""
        self.check()
        packet_id = self._packet_id()
        answer = self._answers[packet_id] = asyncio.get_running_loop().create_future()
        request = packets.SubscriptionRequest(topic_filter, qos)
        self._send(packets.SubscribePacket(packet_id, (request,)))
        async with asyncio.timeout(ANSWER_SECONDS):
            suback = await answer
        if suback.reason_codes[0] >= FAILURE:
            raise errors.PermissionDenied(
                f"the MQTT broker refused {topic_filter}: {reason_name(suback.reason_codes[0])}",
                hint="name an account that may subscribe",
            )

    async def publish(self, topic: str, payload: bytes, qos: int, window: int) -> None:
        """Sends a message when fewer than `window` are not acked, and no more than the broker allows."""
        while len(self._in_flight) >= min(window, self._window):
            self._room.clear()
            await self._room.wait()
            self.check()
        if not self._writable.is_set():
            await self._writable.wait()
        self.check()
        packet_id = 0
        if qos:
            packet_id = self._packet_id()
            self._in_flight.add(packet_id)
            self._settled.clear()
        self._send(packets.PublishPacket(topic, payload, qos, packet_id))

    async def settled(self) -> None:
        """Waits until every message is acked. Raises as `check` does."""
        await self._settled.wait()
        self.check()

    def _packet_id(self) -> int:
        while True:
            self._last_packet_id = self._last_packet_id % _PACKET_ID_MAX + 1
            if self._last_packet_id not in self._in_flight:
                return self._last_packet_id

    async def disconnect(self) -> None:
        """DISCONNECT, and the end of the connection."""
        self._is_leaving = True
        if self._transport is not None and not self._transport.is_closing():
            self._send(packets.DisconnectPacket())
            await asyncio.sleep(0)  # `_flush` runs before the close
            self._flush()
            self._transport.close()
        await self._closed.wait()

    def abort(self) -> None:
        self._is_leaving = True
        if self._transport is not None:
            self._transport.abort()
