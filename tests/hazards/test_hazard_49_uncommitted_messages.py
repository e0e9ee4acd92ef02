"""Hazard 49: messages of a deleted topic that are in no table are committed first, or discarded on request;
then its table is kept, dropped or purged. A broker over a real log, our own catalog, and the pipeline's driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream import errors
from icestream.broker.broker_options import BrokerOptions
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_policies import PolicyValues
from icestream.pipeline.driver.effects import Effect, Fault
from tests.support.broker_machine import subscribe
from tests.support.deletion_world import TABLE, TOPIC, DeletionWorld
from tests.support.interruptible_driver import DriverKilled

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[DeletionWorld]:
    (tmp_path / "log").mkdir()
    deletion_world = DeletionWorld(tmp_path)
    await deletion_world.start()
    yield deletion_world
    await deletion_world.close()


async def test_hazard_49_uncommitted_messages_are_committed_before_the_table_is_detached(world: DeletionWorld) -> None:
    """Although there was no table yet; it is laid out as the topic said."""
    await world.broker.create_topic(TOPIC, policies=PolicyValues(partitioning="day"))
    await world.publish(b"1", b"2")
    decided = await world.broker.delete_topic(TOPIC)
    assert decided == (None, DeletedTablePolicy.KEEP, DeletedRestPolicy.COMMIT, 2, "")
    with pytest.raises(errors.UnknownTopic):
        world.broker.topics.get(TOPIC)
    assert world.broker.topics.is_draining
    await world.drain()
    assert await world.rows() == [b"1", b"2"]
    assert await world.begun() == []
    table = (await world.catalog.tables.load(TABLE)).table
    assert "icestream.topic" not in table.properties
    assert [partition_field["transform"] for partition_field in table.fields["partition-specs"][0]["fields"]] == ["day"]
    assert (await world.ingest.backlog()).topics == []


@pytest.mark.parametrize("end", [DeletedTablePolicy.DROP, DeletedTablePolicy.PURGE])
async def test_hazard_49_a_table_is_dropped_or_purged_when_the_rest_is_in_it(
    world: DeletionWorld, end: DeletedTablePolicy
) -> None:
    await world.broker.create_topic(TOPIC, policies=PolicyValues(deleted_table=str(end)))
    await world.publish(b"1")
    await world.drain()
    await world.publish(b"2")
    assert await world.broker.delete_topic(TOPIC) == (["default", "a"], end, DeletedRestPolicy.COMMIT, 1, "")
    assert await world.rows() == [b"1"], "the table is unchanged before that"
    location = (await world.catalog.tables.load(TABLE)).table.location
    await world.drain()
    with pytest.raises(errors.UnknownTable):
        await world.catalog.tables.load(TABLE)
    assert await world.begun() == (["purges"] if end is DeletedTablePolicy.PURGE else [])
    assert _has_files(location), "an hour later"


def _has_files(location: str) -> bool:
    return any(Path(location.removeprefix("file:")).rglob("*.parquet"))


async def test_hazard_49_uncommitted_messages_are_discarded_on_request(world: DeletionWorld) -> None:
    await world.broker.create_topic(TOPIC)
    await world.publish(b"1")
    await world.drain()
    await world.publish(b"2")
    decided = await world.broker.delete_topic(TOPIC, rest=DeletedRestPolicy.DISCARD)
    assert decided == (["default", "a"], DeletedTablePolicy.KEEP, DeletedRestPolicy.DISCARD, 1, "")
    assert not world.broker.topics.is_draining
    assert (await world.ingest.backlog()).topics == []
    await world.settle()
    assert await world.rows() == [b"1"]
    assert await world.begun() == []


async def test_hazard_49_messages_that_are_never_committed_can_be_discarded(world: DeletionWorld) -> None:
    await world.broker.create_topic(TOPIC)
    await world.publish(b"1")
    await world.broker.delete_topic(TOPIC)
    with pytest.raises(errors.UnknownTopic):
        await world.broker.delete_topic(TOPIC)
    decided = await world.broker.delete_topic(TOPIC, rest=DeletedRestPolicy.DISCARD)
    assert decided == (None, DeletedTablePolicy.KEEP, DeletedRestPolicy.DISCARD, 1, "")
    assert (await world.ingest.backlog()).topics == []
    assert await world.begun() == []


async def test_hazard_49_a_restarted_broker_continues_the_deletion(world: DeletionWorld) -> None:
    await world.broker.create_topic(TOPIC, policies=PolicyValues(deleted_table="drop"))
    await world.publish(b"1", b"2")
    await world.drain()
    await world.publish(b"3")
    await world.broker.delete_topic(TOPIC)
    for _ in range(2):
        await world.broker.shutdown()
        await world.start()
        assert world.broker.topics.is_draining
        assert [topic.rows for topic in (await world.ingest.backlog()).topics] == [1]
    await world.drain()
    with pytest.raises(errors.UnknownTable):
        await world.catalog.tables.load(TABLE)
    assert await world.begun() == []


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("effect", [Effect.MAKE_TABLE, Effect.COMMIT, Effect.ADVANCE])
async def test_hazard_49_a_driver_killed_meanwhile_is_followed_by_one_that_commits(
    world: DeletionWorld, effect: Effect, is_before: bool
) -> None:
    await world.broker.create_topic(TOPIC)
    await world.publish(b"1")
    await world.broker.delete_topic(TOPIC)
    first = world.driver(Fault(is_before, effect, 1))
    with pytest.raises(DriverKilled):
        await world.drain(first)
    await first.end()
    await world.drain()
    assert await world.rows() == [b"1"]
    assert await world.begun() == []


async def test_hazard_49_a_topic_of_the_same_name_has_another_table_and_waits_for_the_name(
    world: DeletionWorld,
) -> None:
    """The new topic has subscriptions of its own, also after restarts."""
    await world.broker.create_topic(TOPIC, policies=PolicyValues(deleted_table="drop"))
    await world.publish(b"old")
    await world.drain()
    uuid = (await world.catalog.tables.load(TABLE)).table.uuid
    await world.publish(b"old rest")
    await world.broker.delete_topic(TOPIC)
    await world.broker.create_topic(TOPIC)
    await subscribe(world.broker, "s", topic=TOPIC)
    await world.broker.shutdown()
    await world.start()
    assert list(world.broker.topics.get(TOPIC).subscriptions) == ["s"]
    await world.publish(b"new")
    harness = world.driver()
    backlog = await world.ingest.backlog()
    assert len(backlog.topics) == 2
    await harness.driver.round(backlog, is_expedited=True)
    assert await world.rows() == [b"old", b"old rest"]
    assert len(harness.topics.halted) == 1, "the name is taken"
    await harness.end()
    await world.settle()
    await world.drain()
    assert await world.rows() == [b"new"]
    assert (await world.catalog.tables.load(TABLE)).table.uuid != uuid


async def test_hazard_49_impossible_deletions_are_refused_before_the_decision(world: DeletionWorld) -> None:
    await world.broker.create_topic(TOPIC)
    await world.publish(b"1")
    await world.drain()
    await world.catalog.topics.detach(TABLE)
    await world.publish(b"2")
    with pytest.raises(errors.TopicTableConflict, match="1 message"):
        await world.broker.delete_topic(TOPIC)
    await world.broker.shutdown()
    await world.start(
        BrokerOptions(policy_defaults=PolicyValues(deleted_table="keep", deleted_rest="commit"), has_own_catalog=False)
    )
    with pytest.raises(errors.InvalidInput, match="another catalog"):
        await world.broker.delete_topic(TOPIC, DeletedTablePolicy.PURGE)
    assert world.broker.topics.find(TOPIC) is not None
    await world.broker.delete_topic(TOPIC, rest=DeletedRestPolicy.DISCARD)
    assert await world.begun() == []


async def test_hazard_49_the_deletion_policy_is_taken_from_request_topic_namespace_or_settings(
    world: DeletionWorld,
) -> None:
    """The order of precedence: the delete request, the topic, its namespace, the settings."""
    policies = PolicyValues(deleted_table="purge", deleted_rest="discard")
    await world.broker.set_namespace_policies("default", policies)
    await world.broker.create_topic(TOPIC)
    await world.publish(b"1")
    assert (await world.broker.delete_topic(TOPIC))[1:] == (DeletedTablePolicy.PURGE, DeletedRestPolicy.DISCARD, 1, "")
    await world.broker.create_topic(TOPIC, policies=PolicyValues(deleted_table="drop"))
    assert (await world.broker.delete_topic(TOPIC))[1:] == (DeletedTablePolicy.DROP, DeletedRestPolicy.DISCARD, 0, "")
    await world.broker.create_topic(TOPIC)
    decided = await world.broker.delete_topic(TOPIC, DeletedTablePolicy.KEEP, DeletedRestPolicy.COMMIT)
    assert decided[1:] == (DeletedTablePolicy.KEEP, DeletedRestPolicy.COMMIT, 0, "")
    for wrong in ({"deleted_table": "burn"}, {"deleted_rest": "later"}):
        with pytest.raises(errors.InvalidInput):
            PolicyValues(**wrong)
