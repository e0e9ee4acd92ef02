"""The MQTT front end on a broker in memory, with sessions that only record what they are told, and clients by packets.

    async with mqtt_front() as front, front.client() as client:
        await client.connect("c")
        await client.send(publish)
        assert front.session.calls == [("publish", …)]

A session settles nothing by itself unless `settles` is set: a test decides when, and with which reason code.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from icestream.broker.broker_options import BrokerOptions
from icestream.broker.guarded_broker import BrokerDoor, GuardedBroker
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.mqtt.client_link import (
    BurstFailure,
    ClientLink,
    ConnectRequest,
    PublishBurst,
    PublishRoute,
    ReceivedMessage,
)
from icestream.broker.service import Broker
from icestream.frontends.mqtt import mqtt_listener
from icestream.frontends.mqtt.mqtt_connection import MqttConnection, MqttConnections
from icestream.frontends.mqtt.mqtt_listener import MqttListener
from icestream.frontends.mqtt.websocket_connection import WebSocketConnection
from icestream.metadata.store import MemoryStore
from icestream.model.block import iter_blocks
from icestream.model.envelope import PAYLOAD, PRODUCER_NAME
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.connection import ConnectionEnded, ConnectionOptions, ResumedDelivery
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties
from icestream.mqtt.reason_codes import FAILURE, ReasonCode
from icestream.runtime.clock import SystemClock
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.proxy_protocol import ProxyPeers
from icestream.security.access_control import AccessControl
from tests.support.until import until

WAIT_SECONDS = 20.0
V3, V5 = ProtocolVersion.V3_1_1, ProtocolVersion.V5


class RecordingSession:
    """A ClientSession that records its calls, as tuples of a name and what the packet says."""

    def __init__(self, broker: RecordingBroker, request: ConnectRequest, link: ClientLink) -> None:
        self._broker = broker
        self.request = request
        self.link = link
        self.client_id = request.client_id or "assigned"
        self.is_present = broker.is_present
        self.received_ids: Sequence[int] = broker.received_ids
        self.resumed: Sequence[ResumedDelivery] = broker.resumed
        self.calls: list[tuple[str, object]] = []
        self.numbers: list[int] = []  # of publishes that are not settled
        self.ended: ConnectionEnded | None = None
        self.subscribing = asyncio.Event()  # SUBSCRIBE and UNSUBSCRIBE wait for it
        self.subscribing.set()
        self.subscribe_error: Exception | None = None

    def _record(self, name: str, what: object) -> None:
        assert self.ended is None, f"{name} came after the end"
        self.calls.append((name, what))

    @property
    def published(self) -> list[bytes]:
        """The payloads of all publishes, in the order in which they were handed over."""
        return [payload for name, what in self.calls if name == "publish" for payload in what]  # type: ignore[attr-defined]

    def begin(self) -> None:
        self._record("begin", None)

    def publish(self, messages: Sequence[ReceivedMessage]) -> None:
        self._record("publish", [message.packet.payload for message in messages])
        for message in messages:
            if self._broker.settles is None:
                self.numbers.append(message.number)
            else:
                self.link.settle(message.number, self._broker.settles)

    @property
    def takes_bursts(self) -> bool:
        return self.ended is None

    def publish_route(self, topic: str) -> PublishRoute | None:
        broker = self._broker
        return PublishRoute(broker, range(3), 0, True, broker) if broker.takes_bursts else None

    def settle_all(self, reason_code: int = ReasonCode.SUCCESS) -> None:
        """Settles what waits, in the order in which it came; bursts of other sessions too."""
        numbers, self.numbers = self.numbers, []
        for number in numbers:
            self.link.settle(number, reason_code)
        self._broker.finish_bursts(reason_code)

    def release(self, packet_id: int) -> None:
        self._record("release", packet_id)
        self.link.release_done(packet_id)

    async def subscribe(self, packet: packets.SubscribePacket) -> None:
        self._record("subscribe", packet.packet_id)
        await self.subscribing.wait()
        if self.subscribe_error is not None:
            raise self.subscribe_error
        self.link.subscribed(packet.packet_id, tuple(request.qos for request in packet.subscriptions), "")

    async def unsubscribe(self, packet: packets.UnsubscribePacket) -> None:
        self._record("unsubscribe", packet.packet_id)
        await self.subscribing.wait()
        self.link.unsubscribed(packet.packet_id, (0,) * len(packet.filters), "")

    def delivery_received(self, packet_id: int) -> None:
        self._record("delivery_received", packet_id)
        self.link.send_release(packet_id)

    def delivery_done(self, packet_id: int, reason_code: int) -> None:
        self._record("delivery_done", packet_id)

    def deliveries_done(self, packet_ids: Sequence[int]) -> None:
        for packet_id in packet_ids:
            self._record("delivery_done", packet_id)

    def resume_sending(self) -> None:
        self._record("resume_sending", None)

    def end(self, ended: ConnectionEnded) -> None:
        assert self.ended is None, "the end comes once"
        self.ended = ended


class RecordingBroker:
    """Opens sessions. `settles`: the reason code of every message at once; None: the test settles."""

    takes_bursts_default = False

    def __init__(self) -> None:
        self.sessions: list[RecordingSession] = []
        self.clients: list[GuardedBroker] = []
        self.settles: int | None = None
        self.is_present = False
        self.received_ids: Sequence[int] = ()
        self.resumed: Sequence[ResumedDelivery] = ()
        self.refusal: Exception | None = None
        self.opening = asyncio.Event()  # CONNECT waits for it
        self.opening.set()
        self.takes_bursts = self.takes_bursts_default  # plain messages for all topics may come in bursts
        self.bursts: list[Callable[[BurstFailure | None], None]] = []  # that are not settled
        self.burst_messages = 0

    async def open_session(self, client: GuardedBroker, request: ConnectRequest, link: ClientLink) -> RecordingSession:
        self.clients.append(client)
        await self.opening.wait()
        if self.refusal is not None:
            raise self.refusal
        session = RecordingSession(self, request, link)
        self.sessions.append(session)
        return session

    def publish_burst(self, burst: PublishBurst, on_done: Callable[[BurstFailure | None], None]) -> bool:
        """Records the messages with the sessions of their publishers."""
        sessions = {session.client_id: session for session in burst.sessions if session is not None}
        if not all(session is not None and session.takes_bursts for session in burst.sessions):
            return False
        self.burst_messages += burst.messages
        for block in iter_blocks(burst.blocks):
            for name, payload in zip(block.values(PRODUCER_NAME), block.values(PAYLOAD), strict=True):
                session = sessions[name]  # type: ignore[index]
                session._record("publish", [payload])  # type: ignore[attr-defined]
        self.bursts.append(on_done)
        if self.settles is not None:
            self.finish_bursts(self.settles)
        return True

    def finish_bursts(self, reason_code: int) -> None:
        bursts, self.bursts = self.bursts, []
        for on_done in bursts:
            on_done(None if reason_code < FAILURE else BurstFailure(reason_code, "refused", is_unknown=False))


class MqttFront:
    """A listener on a free port."""

    def __init__(
        self,
        access: AccessControl | None = None,
        options: ConnectionOptions | None = None,
        *,
        tls: ListenerTls | None = None,
        proxies: Sequence[str] = (),
        is_web: bool = False,
        origins: Sequence[str] = (),
        connections_max: int = 100,
    ) -> None:
        clock, store = SystemClock(), MemoryStore()
        self._node = Broker(BrokerOptions(), store, MemoryStorage(store, clock, 10_000), clock)
        self.door = BrokerDoor(self._node, access or AccessControl(clock))
        self.broker = RecordingBroker()
        self.tls = tls
        self.connections = MqttConnections(
            "mqtt", self.door, self.broker.open_session, options or ConnectionOptions(), connections_max
        )

        def wrap(connection: MqttConnection) -> asyncio.BaseProtocol:
            return WebSocketConnection(connection, "/mqtt", origins, 1 << 20)

        self.listener = MqttListener("ports.mqtt", self.connections, ProxyPeers(proxies), wrap if is_web else None)

    @property
    def session(self) -> RecordingSession:
        """The last one."""
        return self.broker.sessions[-1]

    async def session_number(self, number: int) -> RecordingSession:
        await until(lambda: len(self.broker.sessions) >= number)
        return self.broker.sessions[number - 1]

    async def client(
        self, version: ProtocolVersion = V5, *, tls: ssl.SSLContext | None = None, receive_buffer: int = 0
    ) -> MqttPeer:
        """`receive_buffer`: of the client's socket, 0 for the system's."""
        return await open_peer(self.listener.port, version, tls=tls, receive_buffer=receive_buffer)


WIRES = ("asyncio", "packets", "rows")


@pytest.fixture(params=WIRES)
def mqtt_wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which way connections of `mqtt_front` are served: by asyncio, or by the native wire, where every message comes
    as a packet, or plain ones as rows after the first."""
    use_wire(monkeypatch, request.param)
    return str(request.param)


def use_wire(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    monkeypatch.setattr(mqtt_listener, "has_mqtt_wire", lambda: wire != "asyncio")
    monkeypatch.setattr(RecordingBroker, "takes_bursts_default", wire == "rows")


@contextlib.asynccontextmanager
async def mqtt_front(*arguments: Any, **options: Any) -> AsyncIterator[MqttFront]:
    front = MqttFront(*arguments, **options)
    await front.listener.listen("127.0.0.1", 0, front.tls)
    try:
        yield front
    finally:
        for session in front.broker.sessions:
            session.subscribing.set()
        await front.listener.close()


async def open_peer(
    port: int, version: ProtocolVersion = V5, *, tls: ssl.SSLContext | None = None, receive_buffer: int = 0
) -> MqttPeer:
    connecting = socket.socket()
    if receive_buffer:
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connecting.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connecting, ("127.0.0.1", port))
    name = "localhost" if tls is not None else None
    reader, writer = await asyncio.open_connection(sock=connecting, ssl=tls, server_hostname=name)
    return MqttPeer(reader, writer, version)


class MqttPeer:
    """A client by packets. Nothing is sent or acked unless the test says so."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: ProtocolVersion) -> None:
        self.reader, self.writer, self.version = reader, writer, version
        self._decoder = PacketDecoder(0xFFFFFFF, version)
        self._received: list[packets.Packet] = []

    async def __aenter__(self) -> MqttPeer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.writer.transport.abort()

    def write(self, *sent: packets.Packet) -> None:
        self.writer.write(b"".join(encode_packet(packet, self.version) for packet in sent))

    async def send(self, *sent: packets.Packet) -> None:
        self.write(*sent)
        await self.writer.drain()

    async def read(self) -> packets.Packet | None:
        """The next packet; None at the end of the connection."""
        while not self._received:
            try:
                data = await asyncio.wait_for(self.reader.read(65_536), WAIT_SECONDS)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += self._decoder.feed(data)
        return self._received.pop(0)

    async def read_all(self) -> list[packets.Packet]:
        """All packets up to the end of the connection."""
        received = []
        while (packet := await self.read()) is not None:
            received.append(packet)
        return received

    async def connect(self, client_id: str = "c", **fields: Any) -> packets.ConnackPacket:
        properties: Properties = fields.pop("properties", NO_PROPERTIES)
        await self.send(packets.ConnectPacket(client_id, self.version, properties=properties, **fields))
        connack = await self.read()
        assert isinstance(connack, packets.ConnackPacket), connack
        return connack

    async def ping(self) -> None:
        """Returns when the broker has read everything before it."""
        await self.send(packets.PingreqPacket())
        assert await self.read() == packets.PingrespPacket()


def publish(packet_id: int = 0, payload: bytes = b"", qos: int | None = None) -> packets.PublishPacket:
    """A message of QoS 1, or of QoS 0 without an id."""
    return packets.PublishPacket("t", payload, (1 if packet_id else 0) if qos is None else qos, packet_id)


def subscribe(packet_id: int, topic_filter: str = "a") -> packets.SubscribePacket:
    return packets.SubscribePacket(packet_id, (packets.SubscriptionRequest(topic_filter, 1),))


def client_context(authority: Any, certificate: Any = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context
