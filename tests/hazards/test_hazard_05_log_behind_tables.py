"""Hazards 3 to 5: what a table holds was in the log. A log that ends before it was damaged, or is an older one; a start
learns it from the metadata store, and asks no catalog."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from icestream import errors
from icestream.broker import records
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.topic_owners import TopicOwners
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalog.topic_rules.binding import new_binding
from icestream.catalogs.mirror import ForeignTableRecord
from icestream.iceberg.identifier import Identifier
from icestream.metadata.store import MemoryStore
from icestream.model import ShardKey, envelope
from icestream.model.block import encode_block
from icestream.model.subscription_options import DispatchMode
from icestream.model.topic_name import TopicName
from icestream.processes.node.stored_positions import stored_positions
from icestream.runtime.clock import SimulatedClock
from tests.support.machine import A, B, Machine, publish
from tests.support.until import until
from tests.unit.internal_api.test_admin_calls import AdminClient, operated


async def bound(store: MemoryStore, topic_id: int, **ends: int) -> None:
    """A table of our own catalog, committed so far."""
    shards = {int(shard.removeprefix("s")): (0, end) for shard, end in ends.items()}
    binding = new_binding(f"/default/t{topic_id}", topic_id, shards)
    record = catalog_records.TableRecord(f"uuid-{topic_id}", "file:/x", 0, binding)
    await store.put(catalog_keys.relation_key(Identifier(("default",), f"t{topic_id}")), catalog_records.encode(record))


async def noted(store: MemoryStore, topic_id: int, **ends: int) -> None:
    """One of another catalog."""
    committed = {int(shard.removeprefix("s")): end for shard, end in ends.items()}
    await store.put(
        foreign_table_key(topic_id), msgspec.json.encode(ForeignTableRecord(["default"], f"t{topic_id}", "", committed))
    )


async def put_topic(store: MemoryStore, topic_id: int, owner: str = "") -> None:
    record = records.TopicRecord(topic_id, 1, DispatchMode.RELIABLE, 0, "", owner=owner)
    await store.put(f"{records.TOPICS}default/t{topic_id}", records.encode(record))


@pytest.mark.asyncio
async def test_hazard_05_tables_count_like_cursors() -> None:
    store = MemoryStore(SimulatedClock())
    for topic_id, owner in ((1, ""), (2, ""), (3, "another node")):
        await put_topic(store, topic_id, owner)
    await bound(store, 1, s0=7, s1=3)
    await noted(store, 2, s0=5)
    await bound(store, 3, s0=9)
    await bound(store, 4, s0=9)  # its topic was deleted
    await store.put(catalog_keys.relation_key(Identifier(("default",), "plain")), catalog_records.encode(_plain()))
    positions = await stored_positions(store, TopicOwners("this node", "this node"))
    assert positions == ({ShardKey(1, 0): 7, ShardKey(1, 1): 3, ShardKey(2, 0): 5}, {})


@pytest.mark.asyncio
async def test_hazard_05_an_unreadable_record_is_reported_and_does_not_stop_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The record may be a view, or a table of no topic; a broker that does not start repairs nothing."""
    store = MemoryStore(SimulatedClock())
    for topic_id in (1, 2, 3, 4):
        await put_topic(store, topic_id)
    await bound(store, 1, s0=7)
    await noted(store, 2, s0=5)
    damaged = [catalog_keys.relation_key(Identifier(("default",), "a")), foreign_table_key(3)]
    for key in damaged:
        await store.put(key, b"\xff no record")
    await bound(store, 4, s0=2)
    positions = await stored_positions(store, TopicOwners())
    assert positions == ({ShardKey(1, 0): 7, ShardKey(2, 0): 5, ShardKey(4, 0): 2}, {damaged[1]: 3})
    assert [sum(key in record.getMessage() for record in caplog.records) for key in damaged] == [1, 1]


def _plain() -> catalog_records.TableRecord:
    return catalog_records.TableRecord("uuid", "file:/y", 0)


@pytest.mark.asyncio
async def test_hazard_05_a_log_that_ends_before_its_table_does_not_start() -> None:
    store = MemoryStore(SimulatedClock())
    for topic_id in (1, 2):
        await put_topic(store, topic_id)
    await bound(store, 1, s0=2)
    await noted(store, 2, s0=1)
    machine = Machine()
    log = await machine.start((await stored_positions(store, TopicOwners())).positions)
    assert (log.shard(*A).assigned, log.shard(*B).assigned) == (2, 1), "a new log goes on behind its tables"
    await publish(log, A, b"2")
    await machine.kill()
    await bound(store, 1, s0=4)
    with pytest.raises(errors.LogDamaged, match="offset 4 is known to have been synced"):
        await machine.start((await stored_positions(store, TopicOwners())).positions)


@pytest.mark.asyncio
async def test_hazard_05_a_node_reads_its_tables_before_it_opens_its_log(tmp_path: Path) -> None:
    async with operated(tmp_path) as first:
        topic_id = (await first("create_topic", topic="/default/orders"))["id"]
        await first.publish(3)
        await noted_on(first, topic_id, 3)
    async with operated(tmp_path) as again:
        await again.publish(1)
        (shard,) = (await again("inspect_topic", topic="/default/orders"))["shard_offsets"]
        assert shard["next"] == 4
        await noted_on(again, topic_id, 9)
    with pytest.raises(errors.LogDamaged, match="offset 9 is known"):
        async with operated(tmp_path):
            pass


async def noted_on(ask: AdminClient, topic_id: int, end: int) -> None:
    mirror = ForeignTableRecord(["default"], "orders", "", {0: end})
    await ask.node.store.put(foreign_table_key(topic_id), msgspec.json.encode(mirror))


OTHER = TopicName("default", "other")
DAMAGED = b"\xff no record"


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["own", "elsewhere"])
async def test_hazard_05_the_topic_of_an_unreadable_record_stays_closed_until_the_log_was_compared_with_it(
    tmp_path: Path, kind: str
) -> None:
    """Over a start in between; another topic does not notice."""
    async with operated(tmp_path) as first:
        topic_id = (await first("create_topic", topic="/default/orders"))["id"]
        await first("create_topic", topic=str(OTHER))
        await first.publish(3)
        key = await damaged_on(first, kind, topic_id)
    for _ in range(2):
        async with operated(tmp_path) as again:
            with pytest.raises(errors.StorageUnavailable, match="cannot be read"):
                await again.publish(1)
            await publish_to_other(again)
            await mended_on(again, key, kind, topic_id, 9)
            await until(lambda again=again: "its table at 9" in refusal_of(again, topic_id))
            with pytest.raises(errors.StorageUnavailable, match="ends at offset 3 in the log, its table at 9"):
                await again.publish(1)
            await again.node.store.put(key, DAMAGED)
    async with operated(tmp_path) as last:
        await mended_on(last, key, kind, topic_id, 3)
        await until(lambda: not refusal_of(last, topic_id))
        await last.publish(1)
        await mended_on(last, key, kind, topic_id, 9)
    with pytest.raises(errors.LogDamaged, match="offset 9 is known"):
        async with operated(tmp_path):
            pass


@pytest.mark.asyncio
async def test_hazard_05_a_record_that_is_removed_or_of_another_topic_opens_its_topic(tmp_path: Path) -> None:
    async with operated(tmp_path) as first:
        topic_id = (await first("create_topic", topic="/default/orders"))["id"]
    for of_another in (False, True):
        async with operated(tmp_path) as ask:
            key = await damaged_on(ask, "own", topic_id)
        async with operated(tmp_path) as ask:
            assert "cannot be read" in refusal_of(ask, topic_id)
            if of_another:
                await mended_on(ask, key, "own", topic_id + 1, 9)
            else:
                await ask.node.store.delete(key)
            await until(lambda ask=ask: not refusal_of(ask, topic_id))
            await ask.publish(1)


async def publish_to_other(ask: AdminClient) -> None:
    producer = await ask.node.broker.open_producer(OTHER, "p")
    await ask.node.broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [b"x"]}))


def refusal_of(ask: AdminClient, topic_id: int) -> str:
    """The reason for which the topic refuses messages; empty if it accepts them."""
    storage = ask.node.broker.storage
    assert isinstance(storage, IcebergStorage)
    return storage.closed[topic_id].message if topic_id in storage.closed else ""


async def damaged_on(ask: AdminClient, kind: str, topic_id: int) -> str:
    """The record of its table; which one."""
    store = ask.node.store
    if kind == "elsewhere":
        key = foreign_table_key(topic_id)
    else:
        key = catalog_keys.relation_key(Identifier(("default",), "orders"))
        of_topic = catalog_records.TopicTableRecord(["default"], "orders", "uuid")
        await store.put(catalog_keys.topic_key(topic_id), catalog_records.encode(of_topic))
    await store.put(key, DAMAGED)
    return key


async def mended_on(ask: AdminClient, key: str, kind: str, topic_id: int, end: int) -> None:
    if kind == "elsewhere":
        await noted_on(ask, topic_id, end)
        return
    binding = new_binding("/default/orders", topic_id, {0: (0, end)})
    await ask.node.store.put(key, catalog_records.encode(catalog_records.TableRecord("uuid", "file:/x", 0, binding)))
