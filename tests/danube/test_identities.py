"""Each call of Danube's clients has the identity of its own metadata, and ids work for their principals only."""

from __future__ import annotations

import asyncio

import pytest

from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.topic_name import TopicName
from tests.support.faulty_store import FaultyStore
from tests.support.secured_access import SecuredAccess
from tests.support.secured_danube import TOPIC, DanubeCaller, Refusal, secured_danube
from tests.support.until import until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("wire")]
ALL = ["produce,create,consume on /default/*"]
PRODUCER, CONSUMER = pb.HealthCheckRequest.ClientType.Producer, pb.HealthCheckRequest.ClientType.Consumer


async def refused(caller: DanubeCaller, producer: int) -> tuple[str, str]:
    with pytest.raises(Refusal) as caught:
        await caller.send(producer)
    return caught.value.status, caught.value.text.replace(str(producer), "ID")


async def test_hazard_114_each_call_has_the_identity_of_its_metadata() -> None:
    async with secured_danube(SecuredAccess({"alice": ALL, "bob": ["describe on /default/t"]})) as danube:
        await danube.as_("alice").producer()
        with pytest.raises(Refusal, match="user:local:bob may not produce on topic:/default/t: no rule") as caught:
            await danube.as_("bob").producer()
        assert caught.value.status == "PERMISSION_DENIED"
        for header in ("Bearer a-wrong-token", "Bearer ", "Basic YWxpY2U6eA==", "token-of-alice"):
            with pytest.raises(Refusal) as caught:
                await danube.with_metadata(("authorization", header)).producer()
            assert caught.value.status == "UNAUTHENTICATED"
            assert "wrong-token" not in caught.value.text
            assert "YWxp" not in caught.value.text
        with pytest.raises(Refusal, match="produce on topic:/default/t needs a credential") as caught:
            await danube.with_metadata().producer()
        assert caught.value.status == "UNAUTHENTICATED"
        both = [("authorization", f"Bearer token-of-{name}") for name in ("alice", "bob")]
        with pytest.raises(Refusal, match="authorization: one value of at most 8 KiB is allowed") as caught:
            await danube.with_metadata(*both).producer()
        assert caught.value.status == "UNAUTHENTICATED"


async def test_x_danube_internal_broker_gives_nothing() -> None:
    """In Danube this header makes its sender a super-admin."""
    async with secured_danube(SecuredAccess({"bob": ["describe on /default/t"]})) as danube:
        header = ("x-danube-internal-broker", "node-1")
        for metadata, status in (
            ([header], "UNAUTHENTICATED"),
            ([header, ("authorization", "Bearer token-of-bob")], "PERMISSION_DENIED"),
        ):
            with pytest.raises(Refusal) as caught:
                await danube.with_metadata(*metadata).producer()
            assert caught.value.status == status


async def test_hazard_114_credentials_of_others_on_a_connection_do_not_replace_a_live_one() -> None:
    async with secured_danube(SecuredAccess({"alice": ALL})) as danube:
        alice = danube.as_("alice")
        producer = await alice.producer()
        for number in range(40):  # the wire has room for 8 sets of a connection
            with pytest.raises(Refusal):
                await danube.as_(f"user-{number}").producer()
            if number % 10 == 9:
                await alice.send(producer)
        assert danube.broker.topic(TopicName.parse(TOPIC)).published_messages == 4


async def test_hazard_106_ids_of_another_principal_are_unknown_before_and_after_a_restart() -> None:
    access, store = SecuredAccess({"alice": ALL, "bob": ALL}), FaultyStore(survives_close=True)
    async with secured_danube(access, store) as danube:
        alice, bob = danube.as_("alice"), danube.as_("bob")
        producer = await alice.producer()
        consumer = await alice.subscribe()
        unknown = await refused(bob, 99_999)
        assert unknown[0] == "UNAVAILABLE"  # for which clients create their producer again
        assert await refused(bob, producer) == unknown
        assert [await bob.is_known(PRODUCER, producer), await bob.is_known(CONSUMER, consumer)] == [False, False]
        assert [await alice.is_known(PRODUCER, producer), await alice.is_known(CONSUMER, consumer)] == [True, True]
        with pytest.raises(Refusal, match=f"unknown consumer id {consumer}"):
            await bob.receive(consumer).next()
        stream = alice.receive(consumer)
        await alice.send(producer, b"hers")
        message = await stream.next()
        with pytest.raises(Refusal, match="bob may not alter on subscription:/default/t/s") as caught:
            await bob.ack(message)
        assert caught.value.status == "PERMISSION_DENIED"
        await alice.ack(message)
        stream.cancel()
    async with secured_danube(access, store) as danube:
        bob, alice = danube.as_("bob"), danube.as_("alice")
        assert await refused(bob, producer) == unknown
        assert not await bob.is_known(CONSUMER, consumer)
        with pytest.raises(Refusal, match=f"unknown consumer id {consumer}"):
            await bob.receive(consumer).next()
        await alice.send(producer)
        assert await refused(bob, producer) == unknown


async def test_hazard_106_two_principals_in_one_burst_are_distinguished() -> None:
    async with secured_danube(SecuredAccess({"alice": ALL, "bob": ALL})) as danube:
        alice, bob = danube.as_("alice"), danube.as_("bob")
        producer, his_producer = await alice.producer(), await bob.producer("his")
        callers = [alice, bob, danube.with_metadata(), danube.as_("eve")] * 50
        outcomes = await asyncio.gather(*(caller.send(producer) for caller in callers), return_exceptions=True)
        statuses = [outcome.status if isinstance(outcome, Refusal) else outcome for outcome in outcomes]
        assert statuses == [None, "UNAVAILABLE", "UNAVAILABLE", "UNAVAILABLE"] * 50
        mixed = [(alice, producer), (bob, his_producer), (bob, producer)] * 50
        outcomes = await asyncio.gather(*(caller.send(id_) for caller, id_ in mixed), return_exceptions=True)
        assert [isinstance(outcome, Refusal) for outcome in outcomes] == [False, False, True] * 50
        assert danube.broker.topic(TopicName.parse(TOPIC)).published_messages == 150


async def test_hazard_113_a_right_that_ends_ends_streams_and_producers_with_the_reason() -> None:
    access = SecuredAccess({"alice": ALL, "bob": ALL})
    async with secured_danube(access) as danube:
        alice, bob = danube.as_("alice"), danube.as_("bob")
        producer, kept_producer = await alice.producer(), await bob.producer("kept")
        stream, kept = alice.receive(await alice.subscribe()), bob.receive(await bob.subscribe("other"))
        await alice.send(producer)
        await asyncio.gather(stream.next(), kept.next())
        await access.change({"alice": ["describe on /default/*"], "bob": ALL})
        with pytest.raises(Refusal, match="alice may not consume on subscription:/default/t/s") as caught:
            await stream.next()
        assert caught.value.status == "PERMISSION_DENIED"
        with pytest.raises(Refusal, match="alice may not produce on topic:/default/t") as caught:
            await alice.send(producer)
        assert caught.value.status == "PERMISSION_DENIED"
        await access.change({"alice": ALL, "bob": ALL})
        await alice.send(producer)  # the same id, opened again
        await bob.send(kept_producer)
        assert [(await kept.next()).payload for _ in range(2)] == [b"m", b"m"]


async def test_hazard_113_a_revoked_token_ends_streams_and_calls() -> None:
    access = SecuredAccess({"alice": ALL, "bob": ALL})
    async with secured_danube(access) as danube:
        alice, bob = danube.as_("alice"), danube.as_("bob")
        producer = await alice.producer()
        stream = alice.receive(await alice.subscribe())
        await alice.send(producer)
        await stream.next()
        access.revoke("alice")
        with pytest.raises(Refusal, match="the token was revoked") as caught:
            await stream.next()
        assert caught.value.status == "UNAUTHENTICATED"
        assert (await refused(alice, producer))[0] == "UNAUTHENTICATED"
        assert (await refused(bob, producer))[0] == "UNAVAILABLE"
        assert not danube.broker.topic(TopicName.parse(TOPIC)).producers


async def test_sessions_without_a_producer_or_consumer_are_forgotten() -> None:
    access = SecuredAccess({"alice": ALL, "bob": ALL})
    async with secured_danube(access) as danube:
        admission = danube.service._admission
        producer = await danube.as_("alice").producer()
        await danube.as_("bob").is_known(PRODUCER, 1)
        assert len(admission) == 2
        for _ in range(2):
            admission.sweep()
        await until(lambda: len(admission) == 1)
        await danube.as_("bob").is_known(PRODUCER, 1)  # with a new session
        await danube.as_("alice").send(producer)
        assert len(admission) == 2
