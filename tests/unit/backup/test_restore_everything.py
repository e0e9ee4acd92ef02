"""A whole backup in an empty broker (ADR 83): schemas, producers, MQTT sessions, retained messages, kept offsets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from icestream import errors
from icestream.backup.backup_root import BackupRoot
from icestream.broker import records
from icestream.broker.mqtt.mqtt_service import RESTORED_SESSIONS
from icestream.broker.topic_restore import RESTORES
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import RetainedRecord
from icestream.model import envelope
from icestream.model.block import Numbering, encode_block
from icestream.model.shard import ShardKey
from icestream.processes.broker_process import BrokerNode
from icestream.processes.restore_run import RestoreEffect
from icestream.processes.state_restore import RestoreScope
from icestream.rpc.handshake import HelloCredential
from icestream.rpc.link import open_link
from icestream.runtime.randomness import SystemRandomness
from icestream.schema.kinds import SchemaType
from icestream.security.key_ring import KeyRing, create_wrapping_key
from icestream.security.principal import service_account
from icestream.security.security_records import RuleRecord
from tests.support.backup_world import ORDERS, BackupWorld, Crash, backup_world
from tests.support.broker_machine import quiet, subscribe
from tests.support.mqtt_world import connected
from tests.support.restore_world import RestoreWorld

pytestmark = pytest.mark.asyncio
DEFINITION = b'{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
FOREVER = 2**32 - 1
EFFECTS = [effect for effect in RestoreEffect if effect is not RestoreEffect.ACCOUNTS]
WITH_MQTT = {"mqtt": {"enable": True}}


@contextlib.asynccontextmanager
async def source_and_empty(folder: Path) -> AsyncIterator[tuple[BackupWorld, BackupWorld]]:
    """A broker in use, and an empty one that reads its backups."""
    async with (
        backup_world(folder / "source", **WITH_MQTT) as source,
        backup_world(folder / "empty", **WITH_MQTT) as empty,
    ):
        empty.target = source.target
        yield source, empty


async def fill(world: BackupWorld) -> BackupRoot:
    """Messages, a subscription, a subject, a numbering producer, an MQTT session and a retained message."""
    await world.create_topic()
    await world.bind()
    await world.publish(10)
    await world.commit(6, is_floor_moved=True)
    broker = world.node.broker
    # Ids of the source differ from those that the empty broker will give out.
    await broker.schemas.register("unused", SchemaType.AVRO, DEFINITION)
    await broker.schemas.register("orders", SchemaType.AVRO, DEFINITION)
    await broker.schemas.bind(ORDERS, "orders")
    (await subscribe(broker, "s", topic=ORDERS)).leave()
    client = await connected(broker, "device", expiry_s=FOREVER)
    await client.subscribe("plant/#")
    await client.publish("plant/heat", b"21", is_retained=True)
    assert (await client.message()).payload == b"21"
    await quiet()
    client.lose()
    await quiet()
    return await world.back_up()


async def test_an_empty_broker_gets_schemas_with_their_ids_and_the_schema_of_the_topic(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, empty):
        root = await fill(source)
        _, run = await RestoreWorld(empty).restore_all(root)
        assert [part.left_out for part in run.parts] == [[], []]
        before, after = source.node.broker.schemas, empty.node.broker.schemas
        assert await after.subjects() == await before.subjects()
        assert await after.latest("orders") == await before.latest("orders")
        assert after.of_topic(ORDERS) == before.of_topic(ORDERS)
        registered = await after.register("another", SchemaType.AVRO, DEFINITION)
        assert registered.subject.id == 3, "no id of the source is given out again"


async def test_a_session_is_present_and_gets_what_comes_after_the_restore(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, empty):
        root = await fill(source)
        _, run = await RestoreWorld(empty).restore_all(root)
        assert run.parts[-1].restored == 1
        client = await connected(empty.node.broker, "device", clean=False, expiry_s=FOREVER)
        assert client.session is not None
        assert client.session.is_present, "its subscription needs no SUBSCRIBE"
        publisher = await connected(empty.node.broker, "publisher")
        await publisher.publish("plant/cold", b"3")
        assert (await client.message()).payload == b"3"


async def test_retained_messages_are_sent_to_new_subscribers(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, empty):
        root = await fill(source)
        await RestoreWorld(empty).restore_all(root)
        client = await connected(empty.node.broker, "panel")
        await client.subscribe("plant/heat")
        message = await client.message()
        assert (message.payload, message.is_retained) == (b"21", True)


async def test_windows_of_producers_survive_the_restore_and_the_next_start(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, empty):
        await source.create_topic()
        await source.bind()
        for name in ("other", "p"):  # so that ids of both brokers differ
            producer = await source.node.broker.open_producer(ORDERS, name, instance="i")
        for number in range(3):
            block = encode_block(1, {envelope.PAYLOAD: [b"x"]}, Numbering(producer.id, producer.epoch, number))
            await source.node.broker.publish(producer, 0, block)
        root = await source.back_up()
        await RestoreWorld(empty).restore_all(root)
        settings = empty.node.settings
        await empty.node.stop()
        empty.node = await BrokerNode.start(settings)
        broker = empty.node.broker
        topic = broker.topics.get(ORDERS)
        resumed = await broker.open_producer(ORDERS, "p", instance="i", resumes=True)
        key = ShardKey(topic.record.id, 0)
        assert broker.storage.last_sequence(key, resumed.id, resumed.since_epoch) == 2
        assert broker.storage.recent_batches(key, resumed.id, resumed.since_epoch) == [(0, 1, 0), (1, 1, 1), (2, 1, 2)]
        fresh = await broker.open_producer(ORDERS, "new", instance="i")
        assert fresh.id not in (resumed.id, producer.id)


async def test_first_kept_offsets_and_other_records_of_a_topic_get_its_new_id(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, empty):
        topic_id = await source.create_topic()
        await source.bind()
        await source.publish(10)
        await source.commit(6, is_floor_moved=True)
        await source.node.store.put(catalog_keys.retained_key(topic_id), msgspec.json.encode(RetainedRecord({0: 4}, 1)))
        await source.node.store.put(catalog_keys.structure_key(topic_id), b"learned")
        root = await source.back_up()
        await empty.node.store.allocate_id("topic", 7)
        (restored,), _ = await RestoreWorld(empty).restore_all(root)
        assert restored.id > topic_id
        kept = await empty.node.store.get(catalog_keys.retained_key(restored.id))
        assert kept is not None
        assert msgspec.json.decode(kept.value, type=RetainedRecord).first == {0: 4}
        structure = await empty.node.store.get(catalog_keys.structure_key(restored.id))
        assert structure is not None
        assert structure.value == b"learned"


@pytest.mark.parametrize("effect", EFFECTS, ids=str)
async def test_a_whole_restore_that_ended_before_any_step_is_completed_by_a_second_one(
    tmp_path: Path, effect: RestoreEffect
) -> None:
    def crash(reached: RestoreEffect) -> None:
        if reached is effect:
            raise Crash

    async with source_and_empty(tmp_path) as (source, empty):
        root = await fill(source)
        with pytest.raises(Crash):
            await RestoreWorld(empty).restore_all(root, on_effect=crash)
        topics, _ = await RestoreWorld(empty).restore_all(root, RestoreScope.EMPTY)
        assert [topic.problem for topic in topics] == ["", ""]
        broker = empty.node.broker
        assert list(broker.topics.get(ORDERS).subscriptions) == ["s"]
        assert [name for name, _ in await broker.schemas.subjects()] == ["orders", "unused"]
        assert [session.client_id for session in broker.mqtt.log.table.sessions.values()] == ["device"]
        assert broker.mqtt.retained.topics() == ["plant/heat"]
        assert await empty.node.store.list_all(RESTORES) == []


async def test_hazard_121_a_topic_that_may_not_be_restored_is_left_out_and_the_others_are_restored(
    tmp_path: Path,
) -> None:
    """A whole backup has audits of other nodes, which an administrator does not create either."""
    async with source_and_empty(tmp_path) as (source, empty):
        root, call = await fill(source), empty.call

        async def guarded(method: str, /, **arguments: Any) -> Any:
            if method == "restore_allocate" and arguments["topic"] == str(ORDERS):
                raise errors.PermissionDenied(f"root may not restore on {ORDERS}")
            return await call(method, **arguments)

        empty.call = guarded  # type: ignore[method-assign]
        topics, _ = await RestoreWorld(empty).restore_all(root)
        denied = [topic.topic for topic in topics if "may not restore" in topic.problem]
        assert denied == [str(ORDERS)]
        assert sum(topic.problem == "" for topic in topics) == len(topics) - 1 > 0


async def test_a_broker_in_use_gets_topics_alone_and_says_why_if_all_was_asked_for(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, used):
        root = await fill(source)
        await used.call("create_topic", topic="/default/present")
        with pytest.raises(errors.Refused, match="not empty: it has topic /default/present"):
            await RestoreWorld(used).restore_all(root)
        topics, run = await RestoreWorld(used).restore_all(root, RestoreScope.EMPTY)
        assert {topic.topic for topic in topics} == {"/default/orders", "/mqtt/messages"}
        assert [name for name, _ in await used.node.broker.schemas.subjects()] == ["orders"], "of its topics alone"
        assert [part.part for part in run.parts] == ["schema subjects"]


async def test_a_subject_that_means_something_else_is_left_out_and_named(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, used):
        root = await fill(source)
        await used.node.broker.schemas.register("mine", SchemaType.AVRO, DEFINITION)
        await used.node.broker.schemas.register("yours", SchemaType.AVRO, DEFINITION)
        _, run = await RestoreWorld(used).restore_all(root, RestoreScope.EMPTY)
        assert run.parts[0].left_out == ["orders: schema id 2 belongs to another subject here"]
        assert used.node.broker.schemas.of_topic(ORDERS) is None, "its id would mean another schema"


async def test_no_client_meets_sessions_that_are_half_there(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, empty):
        root = await fill(source)

        def crash(reached: RestoreEffect) -> None:
            if reached is RestoreEffect.END:
                raise Crash

        run = RestoreWorld(empty)
        await empty.node.store.put(RESTORED_SESSIONS, root.id.encode())
        with pytest.raises(errors.StorageUnavailable, match="are being restored"):
            await connected(empty.node.broker, "device", expiry_s=FOREVER)
        await run.restore_all(root)
        client = await connected(empty.node.broker, "device", clean=False, expiry_s=FOREVER)
        assert client.session is not None
        assert client.session.is_present


async def secure(world: BackupWorld) -> None:
    """Switches security on, and connects again as an administrator."""
    node, randomness = world.node, SystemRandomness()
    wrapping_key = create_wrapping_key(node.settings.data_dir, randomness)
    ring = KeyRing.new(randomness, node.clock.wall_us()).encode(wrapping_key, randomness)
    await node.security.init("root", "hash", ring)
    operator = service_account("operator")
    await node.security.create_service(operator.name)
    await node.security.put_role("operators", [RuleRecord(["admin"], "cluster")])
    await node.security.grant(operator, "operators")
    generation = node.policy_watch.find_service(operator.name)
    assert generation is not None
    token = node.service_tokens.mint(operator, generation, [], 600).token
    world.link.close()
    world.link = await open_link(node.settings.local_socket, "test", HelloCredential(token=token))


async def test_accounts_are_restored_on_request_only_and_owners_with_them(tmp_path: Path) -> None:
    async with source_and_empty(tmp_path) as (source, empty):
        await source.create_topic()
        await source.bind()
        (await subscribe(source.node.broker, "s", topic=ORDERS)).leave()
        key = records.subscription_key(ORDERS, "s")
        entry = await source.node.store.get(key)
        assert entry is not None
        record = records.decode(records.SubscriptionRecord, key, entry.value)
        owned = msgspec.structs.replace(record, principal="user:local:alice")
        await source.node.store.put(key, records.encode(owned))
        await secure(source)
        await source.node.security.create_user("alice", "hash of alice")
        root = await source.back_up()
        await secure(empty)
        await RestoreWorld(empty).restore_all(root, RestoreScope.EMPTY)
        assert empty.node.policy_watch.find_user("alice") is None
        assert empty.node.broker.topics.get(ORDERS).subscriptions["s"].record.principal == ""
        await empty.node.broker.delete_topic(ORDERS)
        _, run = await RestoreWorld(empty).restore_all(root, RestoreScope.EMPTY, has_accounts=True)
        assert next(part for part in run.parts if part.part == "accounts").restored == 1
        user = empty.node.policy_watch.find_user("alice")
        assert user is not None
        assert user.password_hash == "hash of alice"
        assert empty.node.broker.topics.get(ORDERS).subscriptions["s"].record.principal == "user:local:alice"
