"""Scenarios of shared subscriptions, under the names that EMQX's ds_shared_sub suite has.

A message of a group goes to one member. A group lives as long as one of its members has a session, and keeps what is
published while none is connected. Messages that a member took and did not ack go to others when its session ends; QoS 2
messages do not (MQTT 5.0, 4.8.2).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.mqtt.conftest import Scene
from tests.support.mqtt_client import MqttClient, property_list
from tests.support.until import until

pytestmark = pytest.mark.asyncio

TOPICS = 20


def numbered(first: int, count: int, qos: int = 1) -> list[tuple[str, bytes, int]]:
    """Messages over many topics, so that they lie in all shards."""
    return [(f"t/{number % TOPICS}", b"%d" % number, qos) for number in range(first, first + count)]


def payloads(first: int, count: int) -> set[bytes]:
    return {b"%d" % number for number in range(first, first + count)}


class Collector:
    """Members that take and ack whatever arrives, as long as it runs."""

    def __init__(self, *members: MqttClient) -> None:
        self.received: dict[MqttClient, list[bytes]] = {member: [] for member in members}
        self._tasks = [asyncio.create_task(self._collect(member)) for member in members]

    async def _collect(self, member: MqttClient) -> None:
        while True:
            delivery = await member.message(3600)
            await member.ack(delivery)
            self.received[member].append(delivery.payload)

    @property
    def counts(self) -> Counter[bytes]:
        return Counter(payload for taken in self.received.values() for payload in taken)

    async def check_received(self, wanted: set[bytes]) -> None:
        """Waits until all of these have arrived."""
        await until(lambda: wanted <= set(self.counts) or any(task.done() for task in self._tasks))
        assert wanted <= set(self.counts), self._tasks

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Collector:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def shared(scene: Scene, levels: str = "t/#", group: str = "group") -> str:
    return f"$share/{group}/{scene.topic(levels)}"


async def subscribe(scene: Scene, members: Sequence[MqttClient], qos: int = 1) -> None:
    for member in members:
        assert await member.subscribe((shared(scene), qos)) == (qos,)


async def test_lease_initial(scene5: Scene) -> None:
    """The only member gets everything, in the order of each topic."""
    scene = scene5
    async with scene.session() as member:
        await subscribe(scene, [member])
    await scene.owner_lost()
    async with scene.session(is_present=True) as member:
        await scene.publish(*numbered(0, 60))
        taken = [int(payload) for payload in await member.payloads(60)]
        assert sorted(taken) == list(range(60))
        for topic in range(TOPICS):
            assert [number for number in taken if number % TOPICS == topic] == list(range(topic, 60, TOPICS))


async def test_declare_triggers_persistence(scene5: Scene) -> None:
    """What is published while no member is connected is kept for the next, whichever it is."""
    scene = scene5
    async with scene.session("first") as first:
        await subscribe(scene, [first])
        await first.disconnect()
    await scene.publish(*numbered(0, 40))
    await scene.owner_lost()
    async with scene.session("first", is_present=True) as first, Collector(first) as collector:
        await collector.check_received(payloads(0, 40))
        assert collector.counts.most_common(1)[0][1] == 1


async def test_two_clients(scene5: Scene) -> None:
    """Each message goes to one of two members, and both get some."""
    scene = scene5
    async with scene.session("first") as first, scene.session("second") as second:
        await subscribe(scene, [first, second])
    await scene.owner_lost()
    async with (
        scene.session("first", is_present=True) as first,
        scene.session("second", is_present=True) as second,
        Collector(first, second) as collector,
    ):
        await scene.publish(*numbered(0, 200))
        await collector.check_received(payloads(0, 200))
        assert collector.counts.most_common(1)[0][1] == 1
        assert all(collector.received.values())


async def test_client_loss(scene5: Scene) -> None:
    """What a member took and did not ack goes to the others when its session ends with its connection."""
    scene = scene5
    async with scene.session("stays") as stays, scene.client("dies", expiry_seconds=0) as dies:
        await subscribe(scene, [stays, dies])
        await scene.publish(*numbered(0, 100))
        await dies.message()  # taken, not acked
        dies.abort()
        await scene.owner_lost()
        if not scene.is_owner_killed:
            async with Collector(stays) as collector:
                await collector.check_received(payloads(0, 100))
            return
    async with scene.session("stays", is_present=True) as stays, Collector(stays) as collector:
        await collector.check_received(payloads(0, 100))


async def test_qos2_of_a_lost_member_stays_its_own(scene5: Scene) -> None:
    """A QoS 2 message that a member took is completed with that member only."""
    scene = scene5
    one = property_list(receive_maximum=1)
    async with scene.session("first", properties=one) as first, scene.session("second") as second:
        await subscribe(scene, [first], qos=2)
        await scene.publish(("t/1", b"taken", 2))
        delivery = await first.message()
        await subscribe(scene, [second], qos=2)
        await second.ping()
    await scene.owner_lost()
    async with scene.session("second", is_present=True) as second, scene.session("first", is_present=True) as first:
        again = await first.message()
        assert (again.packet_id, again.payload, again.is_duplicate) == (delivery.packet_id, b"taken", True)
        await first.ack(again)
        await second.subscribe((scene.topic("end"), 1))
        await scene.publish(("end", b"end", 1))
        assert await second.payloads(1) == [b"end"]


async def test_stream_revoke(scene5: Scene) -> None:
    """A member that joins gets a part of what is published from then on."""
    scene = scene5
    async with scene.session("first") as first:
        await subscribe(scene, [first])
        await scene.publish(*numbered(0, 40))
        async with Collector(first) as collector:
            await collector.check_received(payloads(0, 40))
    await scene.owner_lost()
    async with scene.session("first", is_present=True) as first, scene.session("second") as second:
        await subscribe(scene, [second])
        async with Collector(first, second) as collector:
            await scene.publish(*numbered(40, 200))
            await collector.check_received(payloads(40, 200))
            assert collector.counts.most_common(1)[0][1] == 1
            assert collector.received[second]


async def test_graceful_disconnect(scene5: Scene) -> None:
    """A member that leaves leaves the rest to the others; what it acked does not come again."""
    scene = scene5
    async with scene.session("stays") as stays, scene.client("leaves", expiry_seconds=0) as leaves:
        await subscribe(scene, [stays, leaves])
        async with Collector(stays, leaves) as collector:
            await scene.publish(*numbered(0, 50))
            await collector.check_received(payloads(0, 50))
        acked = set(collector.received[leaves])
        await leaves.disconnect()
        await stays.ping()
    await scene.owner_lost()
    async with scene.session("stays", is_present=True) as stays, Collector(stays) as collector:
        await scene.publish(*numbered(50, 50))
        await collector.check_received(payloads(50, 50))
        assert not acked & set(collector.counts)


async def test_intensive_reassign(scene5: Scene) -> None:
    """Members come and go while messages are published: none is lost."""
    scene = scene5
    taken: set[bytes] = set()
    async with scene.session("stays") as stays:
        await subscribe(scene, [stays])
        writing = asyncio.create_task(scene.publish(*numbered(0, 300)))
        async with Collector(stays) as steady:
            for number in range(10):
                async with scene.client(f"visitor{number}", expiry_seconds=0) as visitor:
                    await subscribe(scene, [visitor])
                    async with Collector(visitor) as collector:
                        await until(lambda: collector.counts or writing.done())
                    taken |= set(collector.counts)
                    if number % 2:
                        await visitor.disconnect()
                    else:
                        visitor.abort()
            await writing
            if not scene.is_owner_killed:
                await until(lambda: payloads(0, 300) <= taken | set(steady.counts))
                return
        taken |= set(steady.counts)
    await scene.owner_lost()
    async with scene.session("stays", is_present=True) as stays, Collector(stays) as steady:
        await steady.check_received(payloads(0, 300) - taken)


async def test_multiple_groups(scene5: Scene) -> None:
    """Every group gets every message, and an ordinary subscription too."""
    scene = scene5
    names = ("one", "two", "plain")
    for name in names:
        async with scene.session(name) as member:
            await member.subscribe((scene.topic("t/#") if name == "plain" else shared(scene, group=name), 1))
    await scene.publish(*numbered(0, 30))
    await scene.owner_lost()
    for name in names:
        async with scene.session(name, is_present=True) as member:
            assert set(await member.payloads(30)) == payloads(0, 30)


async def test_unsubscribe(scene5: Scene) -> None:
    """A member that unsubscribes gets no more; the other gets all."""
    scene = scene5
    async with scene.session("stays") as stays, scene.session("leaves") as leaves:
        await subscribe(scene, [stays, leaves])
        assert await leaves.unsubscribe(shared(scene)) == (0,)
    await scene.owner_lost()
    async with scene.session("stays", is_present=True) as stays, scene.session("leaves", is_present=True) as leaves:
        await scene.publish(*numbered(0, 60))
        async with Collector(stays) as collector:
            await collector.check_received(payloads(0, 60))
        await leaves.subscribe((scene.topic("end"), 1))
        await scene.publish(("end", b"end", 1))
        assert await leaves.payloads(1) == [b"end"]


async def test_quick_resubscribe(scene5: Scene) -> None:
    """A member that leaves the group and joins again at once misses nothing that the group got."""
    scene = scene5
    async with scene.session("stays") as stays, scene.session("flaps") as flaps:
        await subscribe(scene, [stays, flaps])
        async with Collector(stays, flaps) as collector:
            await scene.publish(*numbered(0, 50))
            await collector.check_received(payloads(0, 50))
        for number in range(5):
            await flaps.unsubscribe(shared(scene))
            await subscribe(scene, [flaps])
            await scene.publish(*numbered(50 + 10 * number, 10))
    await scene.owner_lost()
    async with (
        scene.session("stays", is_present=True) as stays,
        scene.session("flaps", is_present=True) as flaps,
        Collector(stays, flaps) as collector,
    ):
        await collector.check_received(payloads(50, 50))


async def test_disconnect_no_double_replay(scene5: Scene) -> None:
    """What was acked before a disconnect in order is not delivered again, to anyone."""
    scene = scene5
    async with scene.session("first") as first, scene.session("second") as second:
        await subscribe(scene, [first, second])
        async with Collector(first, second) as collector:
            await scene.publish(*numbered(0, 100))
            await collector.check_received(payloads(0, 100))
        await first.disconnect()
        await second.disconnect()
    await scene.owner_lost()
    async with (
        scene.session("first", is_present=True) as first,
        scene.session("second", is_present=True) as second,
        Collector(first, second) as collector,
    ):
        await scene.publish(*numbered(100, 20))
        await collector.check_received(payloads(100, 20))
        assert set(collector.counts) == payloads(100, 20)


async def test_lease_reconnect(scene5: Scene) -> None:
    """The only member returns and goes on where it was."""
    scene = scene5
    async with scene.session() as member:
        await subscribe(scene, [member])
        await scene.publish(*numbered(0, 30))
        taken = set(await member.payloads(10))
        await member.disconnect()
    await scene.publish(*numbered(30, 10))
    await scene.owner_lost()
    async with scene.session(is_present=True) as member, Collector(member) as collector:
        await collector.check_received(payloads(0, 40) - taken)
        assert not taken & set(collector.counts)
