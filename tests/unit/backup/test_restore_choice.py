"""Which topics a restore brings back, and under which names: one beside the live one, or a whole namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors
from icestream.broker import records
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy
from icestream.model.topic_name import TopicName
from icestream.processes.restore_choice import RestoreChoice, restore_plan
from icestream.processes.state_restore import RestoreScope
from tests.support.backup_world import ORDERS, BackupWorld, backup_world
from tests.support.broker_machine import subscribe
from tests.support.restore_world import RestoreWorld

pytestmark = pytest.mark.asyncio
LETTERS = TopicName("default", "letters")
OTHER = TopicName("shop", "sales")


async def fill(world: BackupWorld) -> None:
    """Two topics of a namespace, one with the dead letters of the other, and a topic of another namespace."""
    await world.create_topic()
    await world.bind()
    await world.publish(10)
    await world.commit(6, is_floor_moved=True)
    broker = world.node.broker
    await broker.create_namespace("shop")
    for name in (LETTERS, OTHER):
        await world.call("create_topic", topic=str(name), shards=1)
    (await subscribe(broker, "s", topic=ORDERS)).leave()
    policy = FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(LETTERS))
    await broker.set_failure_policy(ORDERS, "s", policy)


async def test_a_namespace_is_restored_beside_the_live_one_under_a_new_name(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await fill(world)
        root = await world.back_up()
        live = {name: world.node.broker.topics.get(name).record for name in (ORDERS, LETTERS, OTHER)}
        choice = RestoreChoice(namespace="/default", new_name="/default_restored")
        plan = await restore_plan(world.stored(), root, choice)
        restored = await RestoreWorld(world).run_of(plan, None).run(root)
        assert {(topic.source, topic.topic, topic.problem) for topic in restored} == {
            ("/default/orders", "/default_restored/orders", ""),
            ("/default/letters", "/default_restored/letters", ""),
        }
        beside = TopicName("default_restored", "orders")
        assert await RestoreWorld(world).rows(beside) == [(offset, b"m%d" % offset) for offset in range(10)]
        topics = world.node.broker.topics
        assert {name: topics.get(name).record for name in live} == live, "the live topics are as they were"
        policy = topics.get(beside).subscriptions["s"].record.failure
        assert policy.dead_letter_topic == "/default_restored/letters", "not into the live topic"
        assert topics.get(ORDERS).subscriptions["s"].record.failure.dead_letter_topic == str(LETTERS)
        entry = await world.node.store.get(records.namespace_key("default_restored"))
        assert entry is not None


async def test_a_topic_of_the_new_namespace_that_exists_is_left_out_and_the_others_are_restored(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await fill(world)
        await world.call("create_topic", topic="/shop/letters", shards=1)
        root = await world.back_up()
        plan = await restore_plan(world.stored(), root, RestoreChoice(namespace="default", new_name="shop"))
        restored = {topic.topic: topic for topic in await RestoreWorld(world).run_of(plan, None).run(root)}
        assert "exists" in restored["/shop/letters"].problem
        assert (restored["/shop/orders"].problem, restored["/shop/orders"].messages) == ("", 10)


ALL = {"/default/orders", "/default/letters", "/shop/sales"}
CHOICES = (
    (RestoreChoice(), ALL, RestoreScope.EMPTY),
    (RestoreChoice(everything=True), ALL, RestoreScope.EVERYTHING),
    (RestoreChoice(topics=["/shop/*"], new_name="/a/b"), {"/a/b"}, RestoreScope.TOPICS),
    (RestoreChoice(namespace="shop"), {"/shop/sales"}, RestoreScope.TOPICS),
    (RestoreChoice(namespace="/shop", new_name="new"), {"/new/sales"}, RestoreScope.TOPICS),
    (RestoreChoice(subscriptions=False), ALL, RestoreScope.TOPICS),
)
REFUSED = (
    (RestoreChoice(everything=True, topics=["/a/b"]), errors.InvalidInput, "leaves nothing out"),
    (RestoreChoice(namespace="a", topics=["/a/b"]), errors.InvalidInput, "both choose topics"),
    (RestoreChoice(in_place=True), errors.InvalidInput, "named topics only"),
    (RestoreChoice(new_name="/a/b"), errors.InvalidInput, "--as names one topic, 3 are chosen"),
    (RestoreChoice(namespace="nowhere"), errors.UnknownTopic, "no topic in namespace /nowhere"),
    (RestoreChoice(namespace="/shop/sales"), errors.InvalidInput, "is not a name"),
    (RestoreChoice(topics=["/shop/*", "/x/*"]), errors.UnknownTopic, "no topic /x/"),
)


async def test_a_choice_names_topics_of_the_backup_or_is_refused(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await fill(world)
        root = await world.back_up()
        for choice, names, scope in CHOICES:
            plan = await restore_plan(world.stored(), root, choice)
            assert ({str(name) for _, name in plan.topics}, plan.scope) == (names, scope), choice
        for choice, error, text in REFUSED:
            with pytest.raises(error, match=text):
                await restore_plan(world.stored(), root, choice)
