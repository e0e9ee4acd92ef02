"""Hazards 3 to 5: what a table holds was in the log. A log that ends before it was damaged, or is an older one; a start
learns it from the metadata store, and asks no catalog."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from icestream import errors
from icestream.broker import records
from icestream.broker.neighbours import Neighbours
from icestream.catalog import keys
from icestream.catalog import records as catalog_records
from icestream.catalog.identifier import Identifier
from icestream.catalog.topic.binding import new_binding
from icestream.metadata.store import MemoryStore
from icestream.model import ShardKey
from icestream.model.subscription import Dispatch
from icestream.runtime.clock import SimulatedClock
from icestream.server.stored_positions import stored_positions
from icestream.warehouse.mirror import Mirror, mirror_key
from tests.support.machine import A, B, Machine, publish
from tests.unit.frontends.test_admin_calls import Operator, operated


async def bound(store: MemoryStore, topic_id: int, **ends: int) -> None:
    """A table of our own catalog, committed so far."""
    shards = {int(shard.removeprefix("s")): (0, end) for shard, end in ends.items()}
    binding = new_binding(f"/default/t{topic_id}", topic_id, shards)
    record = catalog_records.TableRecord(f"uuid-{topic_id}", "file:/x", 0, binding)
    await store.put(keys.relation_key(Identifier(("default",), f"t{topic_id}")), catalog_records.encode(record))


async def noted(store: MemoryStore, topic_id: int, **ends: int) -> None:
    """One of another catalog."""
    committed = {int(shard.removeprefix("s")): end for shard, end in ends.items()}
    await store.put(mirror_key(topic_id), msgspec.json.encode(Mirror(["default"], f"t{topic_id}", "", committed)))


async def known(store: MemoryStore, topic_id: int, owner: str = "") -> None:
    record = records.TopicRecord(topic_id, 1, Dispatch.RELIABLE, 0, "", owner=owner)
    await store.put(f"{records.TOPICS}default/t{topic_id}", records.encode(record))


@pytest.mark.asyncio
async def test_hazard_05_tables_count_like_cursors() -> None:
    store = MemoryStore(SimulatedClock())
    for topic_id, owner in ((1, ""), (2, ""), (3, "another node")):
        await known(store, topic_id, owner)
    await bound(store, 1, s0=7, s1=3)
    await noted(store, 2, s0=5)
    await bound(store, 3, s0=9)
    await bound(store, 4, s0=9)  # its topic was deleted
    await store.put(keys.relation_key(Identifier(("default",), "plain")), catalog_records.encode(_plain()))
    found = await stored_positions(store, Neighbours("this node", "this node"))
    assert found == {ShardKey(1, 0): 7, ShardKey(1, 1): 3, ShardKey(2, 0): 5}


@pytest.mark.asyncio
async def test_hazard_05_a_record_that_cannot_be_read_is_told_and_stops_no_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may be a view, or a table of no topic; and a broker that does not run mends nothing."""
    store = MemoryStore(SimulatedClock())
    for topic_id in (1, 2, 3, 4):
        await known(store, topic_id)
    await bound(store, 1, s0=7)
    await noted(store, 2, s0=5)
    damaged = [keys.relation_key(Identifier(("default",), "a")), mirror_key(3)]
    for key in damaged:
        await store.put(key, b"\xff no record")
    await bound(store, 4, s0=2)
    found = await stored_positions(store, Neighbours())
    assert found == {ShardKey(1, 0): 7, ShardKey(2, 0): 5, ShardKey(4, 0): 2}
    assert [sum(key in one.getMessage() for one in caplog.records) for key in damaged] == [1, 1]


def _plain() -> catalog_records.TableRecord:
    return catalog_records.TableRecord("uuid", "file:/y", 0)


@pytest.mark.asyncio
async def test_hazard_05_a_log_that_ends_before_its_table_does_not_start() -> None:
    store = MemoryStore(SimulatedClock())
    for topic_id in (1, 2):
        await known(store, topic_id)
    await bound(store, 1, s0=2)
    await noted(store, 2, s0=1)
    machine = Machine()
    log = await machine.start(await stored_positions(store, Neighbours()))
    assert (log.shard(*A).assigned, log.shard(*B).assigned) == (2, 1), "a new log goes on behind its tables"
    await publish(log, A, b"2")
    await machine.kill()
    await bound(store, 1, s0=4)
    with pytest.raises(errors.LogDamaged, match="offset 4 is known to have been synced"):
        await machine.start(await stored_positions(store, Neighbours()))


@pytest.mark.asyncio
async def test_hazard_05_a_node_looks_at_its_tables_before_it_opens_its_log(tmp_path: Path) -> None:
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


async def noted_on(ask: Operator, topic_id: int, end: int) -> None:
    mirror = Mirror(["default"], "orders", "", {0: end})
    await ask.node.store.put(mirror_key(topic_id), msgspec.json.encode(mirror))
