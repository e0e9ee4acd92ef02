"""Hazard 117: a topic that is created again inherits no grant of the topic of the same name before it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from icestream import errors
from icestream.model.topic_name import TopicName
from icestream.security import security_records as records
from icestream.security.access_policy import decide
from icestream.security.action import Action
from icestream.security.principal import CallerIdentity, local_user
from icestream.security.resource import subscription_resource, topic_resource
from tests.support.broker_machine import BrokerMachine
from tests.support.faulty_store import FaultyStore
from tests.support.secured_store import SecuredStore, secured_store

pytestmark = pytest.mark.asyncio

ORDERS, NEIGHBOUR = TopicName("default", "orders"), TopicName("default", "orders2")
ALICE = CallerIdentity(local_user("alice"))


def is_allowed(node: SecuredStore, topic: TopicName) -> bool:
    return decide(ALICE, Action.CONSUME, topic_resource(topic), node.control.policy).is_allowed


async def grant(node: SecuredStore, resource: str) -> str:
    return await node.security.grant(ALICE.principal, rule=records.RuleRecord(["read"], resource))


async def test_the_deletion_parks_exact_grants_until_they_are_confirmed() -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    async with secured_store(machine.store, machine.clock) as node:
        await node.security.create_user("alice", "hash")
        for name in (ORDERS, NEIGHBOUR):
            await broker.create_topic(name)
        exact = await grant(node, "/default/orders")
        of_subscription = await grant(node, "subscription:/default/orders/billing")
        await grant(node, "/default/orders2")
        await broker.delete_topic(ORDERS)
        await node.watch.until_current()
        assert not is_allowed(node, ORDERS)
        await broker.create_topic(ORDERS)
        billing = subscription_resource(ORDERS, "billing")
        assert not decide(ALICE, Action.CONSUME, billing, node.control.policy).is_allowed
        assert is_allowed(node, NEIGHBOUR)
        assert node.security.state.grant_records[of_subscription].is_parked
        await node.security.unpark(exact)
        assert is_allowed(node, ORDERS)
        with pytest.raises(errors.InvalidInput, match="is in force"):
            await node.security.unpark(exact)
        # A pattern is no name: it is meant for whatever topic matches it.
        await grant(node, "/default/*")
        await broker.delete_topic(ORDERS)
        await node.watch.until_current()
        assert node.security.state.grant_records[exact].is_parked
        assert is_allowed(node, ORDERS)


async def test_a_grant_that_arrives_during_the_deletion_is_parked_too() -> None:
    machine = BrokerMachine()
    store = machine.store
    assert isinstance(store, FaultyStore)
    broker = await machine.open_broker()
    async with secured_store(store, machine.clock) as node:
        await node.security.create_user("alice", "hash")
        await broker.create_topic(ORDERS)
        # Between the read of the grants and the transaction of the deletion.
        store.before_txn = lambda: grant(node, "/default/orders")
        await broker.delete_topic(ORDERS)
        await node.watch.until_current()
        (record,) = [record for record in node.security.state.grant_records.values() if record.rule is not None]
        assert record.is_parked


async def test_parking_and_deletion_are_one_transaction() -> None:
    """A crash at any write leaves the topic with its grants, or no topic and parked grants."""
    for write in itertools.count():
        machine = BrokerMachine()
        store = machine.store
        assert isinstance(store, FaultyStore)
        broker = await machine.open_broker()
        async with secured_store(store, machine.clock) as node:
            await node.security.create_user("alice", "hash")
            await broker.create_topic(ORDERS)
            grant_id = await grant(node, "/default/orders")
            store.halt_at(write, applied=True)
            deletion = asyncio.create_task(broker.delete_topic(ORDERS))
            halt = asyncio.create_task(store.halted.wait())
            await asyncio.wait({deletion, halt}, return_when=asyncio.FIRST_COMPLETED)
            is_over = deletion.done()
            for task in (deletion, halt):
                task.cancel()
            await asyncio.gather(deletion, halt, return_exceptions=True)
            await node.watch.until_current()
            has_topic = bool(await store.list_all("/topics/default/"))
            assert node.security.state.grant_records[grant_id].is_parked == (not has_topic)
        if is_over:
            assert write >= 1, "nothing was cut off"
            return
