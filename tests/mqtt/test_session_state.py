"""Scenarios of the state of durable sessions, under the names that EMQX's persistent_session_ds suite has.

Those of its internals that have no counterpart on the wire (generations of its storage, guards, retries) are tests of
`durable` and of the session service; scenarios.txt says which.
"""

from __future__ import annotations

import asyncio

import pytest

from icestream.mqtt import packets
from icestream.mqtt.packets import SubscriptionRequest
from tests.mqtt.conftest import Scene
from tests.support.mqtt_client import V5, property_list

pytestmark = pytest.mark.asyncio


async def test_smoke_publish(scene: Scene) -> None:
    """Every QoS to every granted QoS: the lower of both."""
    async with scene.session() as client:
        granted = await client.subscribe(*((scene.topic(f"q{qos}"), qos) for qos in range(3)))
        assert granted == (0, 1, 2)
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        for subscribed in range(3):
            for published in range(3):
                await scene.publish((f"q{subscribed}", b"%d" % published, published))
                delivery = await client.message()
                assert (delivery.payload, delivery.qos) == (b"%d" % published, min(subscribed, published))
                await client.ack(delivery)


async def test_storage_generations(scene: Scene) -> None:
    """The order of a topic is kept over many files of the log."""
    payloads = [b"%04d" % number + bytes(8_000) for number in range(200)]
    async with scene.session() as client:
        await client.subscribe((scene.topic("a"), 1))
    await scene.publish(*(("a", payload, 1) for payload in payloads[:150]))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        assert await client.payloads(70) == payloads[:70]
        await scene.publish(*(("a", payload, 1) for payload in payloads[150:]))
        assert await client.payloads(130) == payloads[70:]


async def test_session_subscription_idempotency(scene: Scene) -> None:
    """A SUBSCRIBE whose SUBACK was lost is sent again, and changes nothing."""
    async with scene.session() as client:
        requests = (SubscriptionRequest(scene.topic("a/+"), 1),)
        await client.send(packets.SubscribePacket(client.next_packet_id(), requests))
        client.abort()
    await scene.owner_lost()
    async with scene.session() as client:
        await client.subscribe((scene.topic("a/+"), 1))
        await client.subscribe((scene.topic("a/+"), 1))
        await scene.publish(("a/1", b"1", 1), ("a/1", b"2", 1))
        assert await client.payloads(2) == [b"1", b"2"]


async def test_session_unsubscription_idempotency(scene: Scene) -> None:
    """An UNSUBSCRIBE whose UNSUBACK was lost is sent again, and changes nothing else."""
    async with scene.session() as client:
        await client.subscribe((scene.topic("a/+"), 1), (scene.topic("b"), 1))
        await client.send(packets.UnsubscribePacket(client.next_packet_id(), (scene.topic("a/+"),)))
        client.abort()
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        await client.unsubscribe(scene.topic("a/+"))
        codes = await client.unsubscribe(scene.topic("a/+"))
        assert codes == ((0x11,) if scene.version is V5 else ())
        await scene.publish(("a/1", b"none", 1), ("b", b"b", 1))
        assert await client.payloads(1) == [b"b"]


async def test_subscription_state_change(scene: Scene) -> None:
    """Messages that were sent under the old options come again as they were; later ones have the new options."""
    async with scene.session() as client:
        await client.subscribe((scene.topic("a"), 2))
        await scene.publish(("a", b"1", 2), ("a", b"2", 2))
        sent = await client.messages(2)
        await client.subscribe((scene.topic("a"), 1))
        await scene.publish(("a", b"3", 2))
        sent.append(await client.message())
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        again = await client.messages(3)
        assert [(delivery.payload, delivery.qos, delivery.packet_id) for delivery in again] == [
            (delivery.payload, qos, delivery.packet_id) for delivery, qos in zip(sent, (2, 2, 1), strict=True)
        ]
        for delivery in again:
            await client.ack(delivery)
        await scene.publish(("a", b"4", 2))
        delivery = await client.message()
        assert (delivery.payload, delivery.qos) == (b"4", 1)


async def test_mixed_qos_subscriptions(scene: Scene) -> None:
    """QoS 0 and QoS 1 filters in one session: what is kept for the one does not depend on the other."""
    async with scene.session() as client:
        await client.subscribe((scene.topic("zero/#"), 0), (scene.topic("one/#"), 1))
        await scene.publish(("zero/a", b"z1", 1), ("one/a", b"o1", 1))
        assert set(await client.payloads(2)) == {b"z1", b"o1"}
        await client.disconnect()
    await scene.publish(("one/a", b"o2", 1), ("one/a", b"o3", 2))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        assert await client.payloads(2) == [b"o2", b"o3"]
        await scene.publish(("zero/a", b"z2", 1), ("one/a", b"o4", 1))
        assert set(await client.payloads(2)) == {b"z2", b"o4"}


async def test_mixed_qos_subscriptions_mode_switch(scene: Scene) -> None:
    """A filter that becomes QoS 1 keeps messages from then on, and one that becomes QoS 0 keeps none."""
    async with scene.session() as client:
        await client.subscribe((scene.topic("a"), 0), (scene.topic("b"), 1))
        await client.subscribe((scene.topic("a"), 1), (scene.topic("b"), 0))
        await client.disconnect()
    await scene.publish(("a", b"a1", 1))
    await scene.owner_lost()
    async with scene.session(is_present=True) as client:
        assert await client.payloads(1) == [b"a1"]
        await scene.publish(("b", b"b1", 1))
        delivery = await client.message()
        assert (delivery.payload, delivery.qos) == (b"b1", 0)


SESSION_KINDS = {"persistent": 600, "non_persistent": 0}


@pytest.mark.parametrize("after", SESSION_KINDS)
@pytest.mark.parametrize("before", SESSION_KINDS)
async def test_session_discard(scene5: Scene, before: str, after: str) -> None:
    """A clean start ends the session of any kind, and what follows is of the new kind."""
    scene = scene5
    async with scene.session(expiry_seconds=SESSION_KINDS[before]) as client:
        await client.subscribe((scene.topic("a"), 1))
        async with scene.client("session", expiry_seconds=SESSION_KINDS[after]) as second:
            assert second.connack is not None
            assert not second.connack.is_session_present
            await second.subscribe((scene.topic("b"), 1))
    await scene.publish(("a", b"a", 1), ("b", b"b", 1))
    await scene.owner_lost()
    async with scene.session(is_present=after == "persistent") as client:
        if after == "non_persistent":
            await client.subscribe((scene.topic("b"), 1))
            await scene.publish(("a", b"a", 1), ("b", b"b", 1))
        assert await client.payloads(1) == [b"b"]


async def expired(scene: Scene, name: str, seconds: int, *, is_aborted: bool) -> None:
    """A session with a backlog that ends by its expiry: seen by a will with a longer delay."""
    will = packets.Will(scene.topic("will"), b"gone", 1, properties=property_list(will_delay_interval=3600))
    async with scene.session("watcher") as watcher:
        await watcher.subscribe(scene.topic("will"))
    async with scene.session(name, expiry_seconds=seconds, will=will) as client:
        await client.subscribe((scene.topic("a/#"), 2))
        await scene.publish(("a/1", b"sent", 2))
        await client.message()
        if is_aborted:
            client.abort()
        else:
            await client.disconnect(0x04)
    await scene.publish(("a/1", b"not sent", 2))
    await scene.owner_lost()
    async with scene.session("watcher", is_present=True) as watcher:
        assert await watcher.payloads(1) == [b"gone"]


@pytest.mark.parametrize("is_aborted", [False, True], ids=["disconnected", "aborted"])
async def test_session_expiration(scene5: Scene, is_aborted: bool) -> None:
    """An expired session leaves neither subscriptions nor messages behind."""
    scene = scene5
    await expired(scene, "expires", 1, is_aborted=is_aborted)
    async with scene.session("expires", is_present=False) as client:
        await client.subscribe((scene.topic("b"), 1))
        await scene.publish(("a/1", b"none", 1), ("b", b"b", 1))
        assert await client.payloads(1) == [b"b"]


async def test_session_gc(scene5: Scene) -> None:
    """Of many sessions those that expired are gone, and the others are not."""
    scene = scene5
    for number in range(6):
        async with scene.session(f"kept{number}", expiry_seconds=600) as client:
            await client.subscribe((scene.topic("k"), 1))
        async with scene.session(f"gone{number}", expiry_seconds=1) as client:
            await client.subscribe((scene.topic("k"), 1))
    await expired(scene, "last", 2, is_aborted=True)
    await scene.publish(("k", b"1", 1))
    for number in range(6):
        await scene.check_session(f"gone{number}", is_present=False)
        async with scene.session(f"kept{number}", is_present=True) as client:
            assert await client.payloads(1) == [b"1"]


async def test_destroy_session_with_wrong_guard(scene5: Scene) -> None:
    """The expiry of an older connection does not end a session that was taken up again."""
    scene = scene5
    async with scene.session("again", expiry_seconds=1) as client:
        await client.subscribe((scene.topic("b"), 1))
    await scene.check_session("again", is_present=True, expiry_seconds=600)
    await expired(scene, "other", 2, is_aborted=True)
    await scene.publish(("b", b"b", 1))
    async with scene.session("again", is_present=True) as client:
        assert await client.payloads(1) == [b"b"]


async def test_delayed_will_message(scene5: Scene) -> None:
    """A will with a delay comes although the session lives on, once."""
    scene = scene5
    will = packets.Will(scene.topic("will"), b"late", 2, properties=property_list(will_delay_interval=1))
    async with scene.session("watcher") as watcher:
        await watcher.subscribe(scene.topic("will"))
    async with scene.session("lost", will=will) as client:
        client.abort()
    await scene.owner_lost()
    async with scene.session("watcher", is_present=True) as watcher:
        assert await watcher.payloads(1) == [b"late"]
        async with scene.session("lost", is_present=True) as client:
            await client.disconnect()
        await scene.publish(("will", b"behind", 2))
        assert await watcher.payloads(1) == [b"behind"]


async def test_flow_control_no_wrap_around(scene: Scene) -> None:
    """However many wait, no id is used again while it is in flight; acks in any order set them free (R36)."""
    async with scene.session() as client:
        await client.subscribe((scene.topic("a"), 1))
    payloads = [b"%d" % number for number in range(300)]
    await scene.publish(*(("a", payload, 1) for payload in payloads))
    await scene.owner_lost()
    maximum = property_list(receive_maximum=20) if scene.version is V5 else property_list()
    received = []
    async with scene.session(is_present=True, properties=maximum) as client:
        for _ in range(15):
            window = await client.messages(20)
            received += [delivery.payload for delivery in window]
            assert len({delivery.packet_id for delivery in window}) == 20
            for delivery in reversed(window):
                await client.ack(delivery)
    assert received == payloads


async def test_sub_state_subscription_filter_roundtrip(scene: Scene) -> None:
    """Filters are values: every legal one survives."""
    filters = ["a//+/#", "/", "é/+", "with space/+/", "+/+//", "$x/#", "x" * 500]
    topics = ["a//b/c", "/", "é/ü", "with space/a/", "1/2//", "$x/y", "x" * 500]
    async with scene.session() as client:
        assert await client.subscribe(*((scene.topic(name), 1) for name in filters)) == (1,) * len(filters)
    await scene.owner_lost()
    await scene.publish(*((topic, topic.encode(), 1) for topic in topics))
    async with scene.session(is_present=True) as client:
        assert sorted(await client.payloads(len(topics))) == sorted(topic.encode() for topic in topics)


async def test_a_slow_client_does_not_hold_up_others(scene: Scene) -> None:
    """One that never acks has its window and no more; another on the same filter gets everything."""
    maximum = property_list(receive_maximum=5) if scene.version is V5 else property_list()
    async with scene.session("slow", properties=maximum) as slow, scene.session("quick") as quick:
        await slow.subscribe((scene.topic("a"), 1))
        await quick.subscribe((scene.topic("a"), 1))
        writing = asyncio.create_task(scene.publish(*(("a", b"%d" % number, 1) for number in range(100))))
        assert await quick.payloads(100) == [b"%d" % number for number in range(100)]
        await writing
        window = await slow.messages(5)
        await quick.disconnect()
    await scene.owner_lost()
    async with scene.session("slow", is_present=True) as slow:
        again = await slow.messages(100, acked=True)
        assert [delivery.payload for delivery in again] == [b"%d" % number for number in range(100)]
        assert [delivery.packet_id for delivery in again[:5]] == [delivery.packet_id for delivery in window]
