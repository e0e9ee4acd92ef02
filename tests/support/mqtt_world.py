"""MQTT without sockets: a broker on a BrokerMachine, and clients that are the two ends of a connection in memory.

A client sends packets through the codec to a ServerConnection, and what the broker sends is decoded and kept in
`received`. Nothing is acked unless the test does it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from icestream.broker.guarded_broker import BrokerDoor
from icestream.broker.mqtt.client_link import ClientSession, ConnectRequest, ReceivedMessage
from icestream.broker.mqtt.message_rows import DeliveryRun
from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.broker.service import Broker
from icestream.broker.storage import PersistentStorage
from icestream.durable.session_changes import WillMessage
from icestream.model import SyncMode
from icestream.mqtt import connection as events
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties, PropertyId, encode_properties
from icestream.security.access_control import AccessControl
from icestream.security.credential import BearerCredential
from tests.support.broker_machine import BrokerMachine, quiet
from tests.support.pull_storage import PullStorage

V3, V5 = ProtocolVersion.V3_1_1, ProtocolVersion.V5
_PacketT = TypeVar("_PacketT")


class MqttMachine(BrokerMachine):
    """A machine whose brokers speak MQTT."""

    def __init__(
        self,
        mode: SyncMode = SyncMode.ALWAYS,
        *,
        mqtt: MqttOptions | None = None,
        is_pulled: bool = False,
        **options: Any,
    ) -> None:
        """`is_pulled`: on a storage that has to be asked for everything (pull_storage.py)."""
        super().__init__(mode=mode, **options)
        self.mqtt = mqtt or MqttOptions(shards=2)
        self.is_pulled = is_pulled

    async def open_storage(self, sink: Any = None) -> PersistentStorage:
        if self.is_pulled:
            return PullStorage(self.store, self.clock, self.broker_options.cursor_flush_ms, self.options)
        return await super().open_storage(sink)

    async def open_broker(self, sink: Any = None) -> Broker:
        storage = await self.open_storage(sink)
        broker = Broker(self.broker_options, self.store, storage, self.clock, mqtt=self.mqtt)
        await broker.start()
        return broker


class WorldClient:
    """One connection of a client, in memory."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        version: ProtocolVersion = V5,
        *,
        clean: bool = True,
        expiry_s: int | None = None,
        will: packets.Will | None = None,
        receive_maximum: int = 0,
        access: AccessControl | None = None,
        user: str = "",
    ) -> None:
        """`access`: the accounts of the broker, of which `user` is one (secured_access.py); None: there are none."""
        self._broker = broker
        self._credential = BearerCredential(f"token-of-{user}") if user else None
        self._connection = events.ServerConnection(events.ConnectionOptions())
        self._decoder = PacketDecoder(0xFFFFFFF, version)
        self.version = version
        self.session: ClientSession | None = None
        self.received: deque[packets.Packet] = deque()
        self.history: list[packets.Packet] = []
        self.can_send = True
        self.ended: events.ConnectionEnded | None = None
        self._access = access or AccessControl(broker._clock)
        entries: list[tuple[int, Any]] = []
        if expiry_s is not None:
            entries.append((PropertyId.SESSION_EXPIRY_INTERVAL, expiry_s))
        if receive_maximum:
            entries.append((PropertyId.RECEIVE_MAXIMUM, receive_maximum))
        properties = Properties(entries) if version is V5 else NO_PROPERTIES
        self.connect_packet = packets.ConnectPacket(client_id, version, clean, 0, will, properties=properties)
        self._queue: deque[events.Event] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._last_id = 0

    # --- ClientLink ---

    address = "memory:0"

    def settle(self, number: int, reason_code: int) -> None:
        self._handle(self._connection.settle(number, reason_code))

    def abandon(self, reason_code: int, reason: str) -> None:
        self._handle(self._connection.abandon(reason_code, reason))

    def release_done(self, packet_id: int) -> None:
        self._connection.release_done(packet_id)
        self._take()

    def subscribed(self, packet_id: int, reason_codes: tuple[int, ...], reason: str) -> None:
        self._connection.subscribed(packet_id, reason_codes, reason)
        self._take()

    def unsubscribed(self, packet_id: int, reason_codes: tuple[int, ...], reason: str) -> None:
        self._connection.unsubscribed(packet_id, reason_codes, reason)
        self._take()

    def send_publish(self, packet: packets.PublishPacket) -> bool:
        is_sent = self._connection.send_publish(packet)
        self._take()
        return is_sent

    def send_run(self, run: DeliveryRun) -> list[int]:
        return [packet.packet_id for packet in run.packets() if not self.send_publish(packet) and packet.packet_id]

    def send_release(self, packet_id: int) -> None:
        self._connection.send_release(packet_id)
        self._take()

    def disconnect(self, reason_code: int, reason: str) -> None:
        self._handle(self._connection.disconnect(reason_code, reason))

    # --- the driver ---

    def send(self, *sequence: packets.Packet) -> None:
        data = b"".join(encode_packet(packet, self.version) for packet in sequence)
        self._handle(self._connection.receive_data(data))

    def lose(self) -> None:
        """The network connection is lost."""
        self._handle(self._connection.end_of_stream())

    def _handle(self, new: list[events.Event]) -> None:
        self._take()
        for event in new:
            if self.session is not None and isinstance(event, events.DeliveryDone):
                self.session.delivery_done(event.packet_id, event.reason_code)
            elif self.session is not None and isinstance(event, events.DeliveryReceived):
                self.session.delivery_received(event.packet_id)
            else:
                self._queue.append(event)
        if self._queue and self._worker is None:
            self._run()

    def _run(self) -> None:
        """Hands events over until one has to be awaited."""
        while self._queue:
            event = self._queue.popleft()
            match event:
                case events.PublishReceived() if self.session is not None:
                    run = [ReceivedMessage(event.number, event.packet)]
                    while self._queue and isinstance(following := self._queue[0], events.PublishReceived):
                        run.append(ReceivedMessage(following.number, following.packet))
                        self._queue.popleft()
                    self.session.publish(run)
                case events.ReleaseReceived() if self.session is not None:
                    self.session.release(event.packet_id)
                case events.ConnectionEnded():
                    self.ended = event
                    if self.session is not None:
                        self.session.end(event)
                case events.ConnectReceived() | events.SubscribeReceived() | events.UnsubscribeReceived():
                    self._worker = asyncio.get_running_loop().create_task(self._wait_for(event))
                    return

    async def _wait_for(self, event: events.Event) -> None:
        match event:
            case events.ConnectReceived():
                await self._connect(event.packet)
            case events.SubscribeReceived() if self.session is not None:
                await self.session.subscribe(event.packet)
            case events.UnsubscribeReceived() if self.session is not None:
                await self.session.unsubscribe(event.packet)
        self._worker = None
        self._take()
        self._run()

    async def _connect(self, packet: packets.ConnectPacket) -> None:
        door = BrokerDoor(self._broker, self._access)
        guarded = await door.authenticate(self._credential, self.address, "mqtt")
        will = packet.will
        request = ConnectRequest(
            packet.client_id,
            packet.version,
            packet.is_clean_start,
            self._connection.session_expiry_seconds,
            self._connection.send_maximum,
            WillMessage(
                will.topic, will.payload, will.qos, will.is_retained,
                will.properties.number(PropertyId.WILL_DELAY_INTERVAL) or 0,
                encode_properties(will.properties.without(PropertyId.WILL_DELAY_INTERVAL)) if will.properties else b"",
            ) if will is not None else None,
        )  # fmt: skip
        session = await guarded.connect_mqtt(request, self)
        self.session = session
        self._connection.accept(
            is_session_present=session.is_present, received_ids=session.received_ids, resumed=session.resumed
        )
        self._take()
        session.begin()
        self._handle(self._connection.receive_data(b""))

    def _take(self) -> None:
        for packet in self._decoder.feed(self._connection.data_to_send()):
            self.received.append(packet)
            self.history.append(packet)

    # --- the client ---

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def receive(self, kind: type[_PacketT]) -> _PacketT:
        """The first packet of a type that was not taken yet."""
        async with asyncio.timeout(10):
            while True:
                for packet in self.received:
                    if isinstance(packet, kind):
                        self.received.remove(packet)
                        return packet
                if self._worker is not None and self._worker.done():
                    self._worker.result()  # raises: its packet will never come
                await asyncio.sleep(0)

    async def connect(self) -> packets.ConnackPacket:
        self.send(self.connect_packet)
        return await self.receive(packets.ConnackPacket)

    async def subscribe(self, *filters: str, qos: int = 1, **options: Any) -> packets.SubackPacket:
        properties = options.pop("properties", NO_PROPERTIES)
        requests = tuple(packets.SubscriptionRequest(each, qos, **options) for each in filters)
        self.send(packets.SubscribePacket(self.next_id(), requests, properties))
        return await self.receive(packets.SubackPacket)

    async def unsubscribe(self, *filters: str) -> packets.UnsubackPacket:
        self.send(packets.UnsubscribePacket(self.next_id(), filters))
        return await self.receive(packets.UnsubackPacket)

    async def publish(self, topic: str, payload: bytes, qos: int = 1, **options: Any) -> packets.Packet:
        """Publishes and completes the flow; returns the first ack."""
        packet_id = self.next_id() if qos else 0
        self.send(packets.PublishPacket(topic, payload, qos, packet_id, **options))
        if qos == 1:
            return await self.receive(packets.PubackPacket)
        if qos == 2:
            ack = await self.receive(packets.PubrecPacket)
            self.send(packets.PubrelPacket(packet_id))
            return await self.receive(packets.PubcompPacket) if ack.reason_code < 0x80 else ack
        await quiet()
        return packets.PingrespPacket()

    async def message(self, *, ack: bool = True) -> packets.PublishPacket:
        """The next delivery; completes its flow if `ack`."""
        packet = await self.receive(packets.PublishPacket)
        if ack and packet.qos == 1:
            self.send(packets.PubackPacket(packet.packet_id))
        elif ack and packet.qos == 2:
            self.send(packets.PubrecPacket(packet.packet_id))
            await self.receive(packets.PubrelPacket)
            self.send(packets.PubcompPacket(packet.packet_id))
        return packet

    def deliveries(self) -> list[packets.PublishPacket]:
        """The deliveries that were not taken."""
        return [packet for packet in self.received if isinstance(packet, packets.PublishPacket)]


async def connected(broker: Broker, client_id: str, version: ProtocolVersion = V5, **options: Any) -> WorldClient:
    client = WorldClient(broker, client_id, version, **options)
    connack = await client.connect()
    assert connack.reason_code == 0, connack
    return client
