"""MQTT devices that survive every crash of the broker, and what must hold of all messages between them.

A device is a client of 5.0 with a durable session and a store of its own: what it published and is not completed, and
the QoS 2 ids that it owns. It publishes to the topics of its group and reads those of its group, with QoS 2, while the
broker is killed and started again. The client (mqtt_client.py) holds every packet against the rules of MQTT; here is
what only both sides of many connections show:

    lost       a message that was acked to its publisher and did not reach a subscriber of its topic
    doubled    a message of QoS 2 that a subscriber got twice
    order      QoS 2 messages of one publisher in one topic arrive in their order
    resends    an id that a device owns comes again with the same message, and with DUP
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from icestream.mqtt import packets
from icestream.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_client import EXPIRY_NEVER, ConnectionClosed, MqttClient, open_client

IN_FLIGHT_MAX = 4
SETTLED_SECONDS = 30.0


class Published(NamedTuple):
    """A message of a device: its topic, its payload `DEVICE/NUMBER`, and its QoS."""

    topic: str
    payload: bytes
    qos: int


class Device:
    """One device. `live` connects and works until the connection ends."""

    def __init__(self, number: int, group: int, chance: random.Random, on_progress: Callable[[], None]) -> None:
        self.name = f"device-{number}"
        self.topics = [f"fleet/{group}/{level}" for level in ("heat", "power")]
        self.topic_filter = f"fleet/{group}/#"
        self.is_publishing = True
        self.is_subscribed = False
        self.published: list[Published] = []
        self.unacked: dict[int, Published] = {}  # in the order of publishing
        self.released: set[int] = set()  # ids for which PUBREC came
        self._recovered: set[int] = set()  # ids whose PUBREL this connection sent again
        self.owned: dict[int, bytes] = {}  # QoS 2 ids between PUBLISH and PUBREL
        self.seen: Counter[bytes] = Counter()
        self.orders: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.completed = 0
        self._chance = chance
        self._on_progress = on_progress

    async def live(self, port: int) -> None:
        """Returns when the broker has ended the connection."""
        try:
            async with await open_client(port) as client:
                await self._live(client)
        except (ConnectionClosed, ConnectionError):
            return

    async def _live(self, client: MqttClient) -> None:
        connack = await client.connect(self.name, is_clean_start=False, expiry_seconds=EXPIRY_NEVER)
        assert connack.reason_code == 0, connack
        assert connack.is_session_present or not self.is_subscribed, f"the session of {self.name} is gone"
        resends: list[packets.Packet] = [
            packets.PubrelPacket(packet_id)
            if packet_id in self.released
            else packets.PublishPacket(message.topic, message.payload, message.qos, packet_id, is_duplicate=True)
            for packet_id, message in self.unacked.items()
        ]
        self._recovered = set(self.released)
        if resends:
            await client.send(*resends)
        if not self.is_subscribed:
            assert await client.subscribe((self.topic_filter, 2)) == (2,)
            self.is_subscribed = True
            self._on_progress()
        while True:
            await self._publish_more(client)
            await self._handle(client, await client.read(2 * SETTLED_SECONDS))

    async def _publish_more(self, client: MqttClient) -> None:
        while self.is_publishing and len(self.unacked) < IN_FLIGHT_MAX:
            packet_id = client.next_packet_id()
            if packet_id in self.unacked:
                continue
            number = len(self.published)
            message = Published(
                self._chance.choice(self.topics), f"{self.name}/{number}".encode(), self._chance.choice((1, 2, 2))
            )
            self.published.append(message)
            self.unacked[packet_id] = message
            await client.send_publish(message.topic, message.payload, message.qos, packet_id=packet_id)

    async def _handle(self, client: MqttClient, packet: packets.Packet) -> None:
        match packet:
            case packets.PubackPacket(packet_id, reason_code) | packets.PubcompPacket(packet_id, reason_code):
                # The first PUBCOMP may have been lost with the broker: its id is not known any more.
                is_recovered = reason_code == ReasonCode.PACKET_ID_NOT_FOUND and packet_id in self._recovered
                assert reason_code == 0 or is_recovered, packet
                del self.unacked[packet_id]
                self.released.discard(packet_id)
                self.completed += 1
                self._on_progress()
            case packets.PubrecPacket(packet_id, reason_code):
                assert reason_code == 0, packet
                self.released.add(packet_id)
                await client.send(packets.PubrelPacket(packet_id))
            case packets.PublishPacket():
                await self._take(client, packet)
            case packets.PubrelPacket(packet_id):
                self.owned.pop(packet_id, None)
                await client.send(packets.PubcompPacket(packet_id))
                self._on_progress()

    async def _take(self, client: MqttClient, packet: packets.PublishPacket) -> None:
        if packet.qos == 2 and packet.packet_id in self.owned:
            assert packet.is_duplicate, f"{packet} has an id that {self.name} owns"
            assert self.owned[packet.packet_id] == packet.payload, f"{packet} was {self.owned[packet.packet_id]!r}"
        else:
            self._note(packet)
        if packet.qos == 2:
            self.owned[packet.packet_id] = packet.payload
            await client.send(packets.PubrecPacket(packet.packet_id))
        else:
            await client.send(packets.PubackPacket(packet.packet_id))

    def _note(self, packet: packets.PublishPacket) -> None:
        self.seen[packet.payload] += 1
        if packet.qos == 2:
            publisher, _, number = packet.payload.decode().partition("/")
            self.orders[publisher, packet.topic].append(int(number))
        self._on_progress()


class Fleet:
    """Devices in groups; each reads what its group publishes."""

    def __init__(self, devices: int, groups: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self._progressed = asyncio.Event()
        self._groups = groups
        self.devices = [Device(number, number % groups, self.chance, self._progressed.set) for number in range(devices)]
        self._lives: list[asyncio.Task[None]] = []

    def connect(self, port: int) -> None:
        self._lives = [asyncio.create_task(device.live(port)) for device in self.devices]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until devices have come so far. Raises what ended a device."""
        while not condition():
            self._progressed.clear()
            progress = asyncio.create_task(self._progressed.wait())
            done, _ = await asyncio.wait(
                {progress, *self._lives}, timeout=SETTLED_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            progress.cancel()
            for life in done - {progress}:
                life.result()
                raise AssertionError("the broker ended a connection")
            assert done, f"nothing happened for {SETTLED_SECONDS} s: {self._open_ends()}"

    def _open_ends(self) -> list[str]:
        """What devices wait for."""
        return [
            f"{device.name}: unacked {device.unacked}, released {device.released}, owned {device.owned}, "
            f"missing {self._missing(device)[:5]}"
            for device in self.devices
            if device.unacked or device.owned or self._missing(device)
        ][:5]

    async def disconnected(self) -> None:
        """Waits until every device has noticed that the broker is gone. Raises what ended a device otherwise."""
        await asyncio.gather(*self._lives)
        self._lives = []

    async def close(self) -> None:
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)

    @property
    def completed(self) -> int:
        """Messages whose flows their publishers have completed."""
        return sum(device.completed for device in self.devices)

    def has_completed(self, count: int) -> bool:
        """True if so many messages are completed, and every device has subscribed."""
        return self.completed >= count and all(device.is_subscribed for device in self.devices)

    @property
    def published(self) -> list[Published]:
        return [message for device in self.devices for message in device.published]

    def is_settled(self) -> bool:
        """True if every message is completed, and has reached each device of its group."""
        for group in range(self._groups):
            members = self.devices[group :: self._groups]
            count = sum(len(device.published) for device in members)
            if any(device.unacked or device.owned or len(device.seen) < count for device in members):
                return False
        return True

    def _missing(self, device: Device) -> list[bytes]:
        members = self.devices[self.devices.index(device) % self._groups :: self._groups]
        published = (message.payload for member in members for message in member.published)
        return [payload for payload in published if payload not in device.seen]

    def check(self) -> None:
        """Raises AssertionError for what was lost, doubled or out of order."""
        qos2 = {message.payload for message in self.published if message.qos == 2}
        for device in self.devices:
            missing = self._missing(device)
            assert not missing, f"{device.name} never got {missing[:5]}, {len(missing)} in all"
            doubled = [payload for payload, count in device.seen.items() if count > 1 and payload in qos2]
            assert not doubled, f"{device.name} got twice, with QoS 2: {doubled[:5]}, {len(doubled)} in all"
            for (publisher, topic), numbers in device.orders.items():
                assert numbers == sorted(numbers), f"{device.name} got {topic} of {publisher} out of order: {numbers}"

    def check_rows(self, payloads: Sequence[bytes]) -> None:
        """Every message is a row, those of QoS 2 one row. `payloads`: of all rows."""
        rows = Counter(payloads)
        for message in self.published:
            count = rows.pop(message.payload, 0)
            assert count == 1 or (count > 1 and message.qos == 1), f"{message} is {count} rows"
        assert not rows, f"rows that nothing published: {list(rows)[:5]}"
