"""Hazard 113: a right that ends, or a token that is revoked, ends what is open; other connections are untouched."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from icestream import errors
from icestream.client.client import Client, connect
from icestream.model.topic_name import TopicName
from icestream.runtime.clock import SystemClock
from icestream.security.access_control import AccessControl
from tests.support.secured_access import KnownNames, SecuredAccess, policy_of
from tests.support.secured_broker import secured_broker
from tests.support.until import until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("native_wire")]
TOPIC = "/default/orders"
BOTH = {"alice": ["produce,create,consume on /default/*"], "bob": ["produce,consume on /default/*"]}


async def test_hazard_113_a_producer_without_its_right_is_closed_with_the_reason() -> None:
    access = SecuredAccess(BOTH)
    async with (
        secured_broker(access) as served,
        connect(served.address, token="token-of-alice") as alice,
        alice.producer(TOPIC) as revoked,
        connect(served.address, token="token-of-bob") as bob,
        bob.producer(TOPIC) as kept,
    ):
        await revoked.send(b"1")
        await revoked.send(b"2")  # a declared producer by now: its blocks come in groups
        await kept.send(b"3")
        await access.change({"bob": BOTH["bob"]})
        with pytest.raises(errors.PermissionDenied, match="alice may not produce on topic:/default/orders"):
            await revoked.send(b"4")
        await kept.send(b"5")
        with pytest.raises(errors.PermissionDenied):
            async with alice.producer(TOPIC):
                pass
        assert alice.is_connected
        assert {producer.name for producer in served.broker.topic(TopicName.parse(TOPIC)).producers} == {kept.name}


async def test_hazard_113_a_consumer_without_its_right_is_closed_with_the_reason() -> None:
    access = SecuredAccess(BOTH)
    async with (
        secured_broker(access) as served,
        connect(served.address, token="token-of-alice") as alice,
        alice.producer(TOPIC) as producer,
        alice.subscribe(TOPIC, "a") as revoked,
        connect(served.address, token="token-of-bob") as bob,
        bob.subscribe(TOPIC, "b") as kept,
    ):
        await producer.send(b"1")
        assert [(await anext(messages)).payload for messages in (revoked, kept)] == [b"1", b"1"]
        await access.change({"alice": ["produce on /default/*"], "bob": BOTH["bob"]})
        with pytest.raises(errors.PermissionDenied, match="alice may not consume on subscription:/default/orders/a"):
            await anext(revoked)
        await producer.send(b"2")
        assert (await anext(kept)).payload == b"2"
        assert not served.broker.subscription(TopicName.parse(TOPIC), "a").consumers


async def test_hazard_113_a_revoked_token_ends_its_connection_alone() -> None:
    access = SecuredAccess(BOTH)
    async with (
        secured_broker(access) as served,
        connect(served.address, token="token-of-alice") as alice,
        alice.producer(TOPIC) as revoked,
        connect(served.address, token="token-of-bob") as bob,
        bob.producer(TOPIC) as kept,
    ):
        await revoked.send(b"1")
        access.revoke("alice")
        with pytest.raises(
            (errors.Unauthenticated, errors.OutcomeUnknown)
        ):  # it may have left before the end was known
            await revoked.send(b"2")
        with pytest.raises(errors.Unauthenticated):
            await revoked.send(b"3")
        await kept.send(b"3")
        with pytest.raises(errors.Unauthenticated):
            async with connect(served.address, token="token-of-alice"):
                pass


async def test_hazard_113_a_renewed_token_continues_after_the_old_one_ended() -> None:
    access = SecuredAccess(BOTH)
    supplied: list[str] = []

    async def supply() -> str:
        supplied.append("token-of-alice")
        return supplied[-1]

    async with (
        secured_broker(access) as served,
        connect(served.address, token=supply) as client,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b"1")
        (session,) = access._sessions
        session.ask_to_reconnect(errors.Unauthenticated("the token expires"))
        await asyncio.wait_for(producer.send(b"2"), 30)
        assert len(supplied) == 2


async def test_hazard_113_closed_producers_and_consumers_hold_nothing() -> None:
    access = SecuredAccess(BOTH)
    async with secured_broker(access) as served, connect(served.address, token="token-of-alice") as alice:
        (session,) = access._sessions
        async with alice.producer(TOPIC) as producer, alice.subscribe(TOPIC, "a"):
            await producer.send(b"1")
            assert session.holds == 2
        assert session.holds == 0
    assert access.sessions == 0


async def test_hazard_112_connections_from_before_the_switch_connect_again() -> None:
    """They are closed, and go on with the credential that was not read before; without one they are refused."""
    access = AccessControl(SystemClock(), KnownNames())
    async with (
        secured_broker(access) as served,
        connect(served.address, token="token-of-alice") as alice,
        alice.producer(TOPIC) as kept,
        connect(served.address) as nobody,
        nobody.producer(TOPIC) as refused,
    ):
        await kept.send(b"1")
        await refused.send(b"1")
        await access.apply(policy_of(BOTH))
        await asyncio.wait_for(kept.send(b"2"), 30)
        with pytest.raises(errors.Unauthenticated):
            await asyncio.wait_for(refused.send(b"2"), 30)
        assert {session.identity.principal.name for session in access._sessions} == {"alice", ""}


async def test_hazard_113_revocation_under_load() -> None:
    """Forty producers at full speed, half of which lose their right: nothing of theirs is stored after the change is in
    force, and the others lose nothing."""
    count = 20
    access = SecuredAccess(BOTH)
    async with (
        secured_broker(access) as served,
        connect(served.address, token="token-of-alice") as alice,
        connect(served.address, token="token-of-bob") as bob,
        contextlib.AsyncExitStack() as closing,
    ):
        await served.broker.create_topic(TopicName.parse(TOPIC))
        acked: dict[str, int] = {}
        refused: list[BaseException] = []

        async def publish(client: Client, name: str) -> None:
            producer = await closing.enter_async_context(client.producer(TOPIC, name=name))
            acked[name] = 0
            try:
                while not stop.is_set():
                    await producer.send(b"m")
                    acked[name] += 1
            except errors.PermissionDenied as error:
                refused.append(error)

        stop = asyncio.Event()
        clients = [(alice, f"alice-{number}") for number in range(count)]
        clients += [(bob, f"bob-{number}") for number in range(count)]
        running = [asyncio.create_task(publish(client, name)) for client, name in clients]
        await until(lambda: len(acked) == 2 * count and min(acked.values()) > 3)
        await access.change({"bob": BOTH["bob"]})
        topic = served.broker.topic(TopicName.parse(TOPIC))
        (stream,) = served.broker.shard_streams(topic)
        assert not any(producer.name.startswith("alice") for producer in topic.producers)
        at_change = {name: messages for name, messages in acked.items() if name.startswith("bob")}
        await until(lambda: all(acked[name] > messages + 3 for name, messages in at_change.items()))
        stop.set()
        await asyncio.gather(*running)
        assert len(refused) == count
        assert stream.visible == sum(acked.values()), "every message is of a producer that was told so"
