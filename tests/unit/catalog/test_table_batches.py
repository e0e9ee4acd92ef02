"""The first tables of many topics, made together: one transaction, one sync, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.operations.topic_operations import NewTopicTable
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.iceberg.identifier import Identifier
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.warehouse import NS, CatalogWorld

pytestmark = pytest.mark.asyncio


def new_tables(count: int, first: int = 0) -> list[NewTopicTable]:
    return [
        NewTopicTable(TopicLog(f"/ns/t{number}", number + 1, {0: ShardLog(3, 7, 50)}), Identifier(NS, f"t{number}"), {})
        for number in range(first, first + count)
    ]


async def new_world() -> tuple[CatalogWorld, FaultyStore]:
    store = FaultyStore(SimulatedClock())
    world = CatalogWorld(store)
    await world.catalog.namespaces.create(NS, {})
    return world, store


async def bound(world: CatalogWorld, tables: Sequence[NewTopicTable]) -> list[int]:
    """The topics among these that have their table, by what a catalog finds that knows nothing else."""
    catalog = world.another(99)
    topic_ids = []
    for table in tables:
        if await catalog.topics.table_of(table.log.topic_id) == table.name:
            loaded = await catalog.commits.load(table.name)
            assert loaded.record.binding is not None
            assert loaded.record.binding.topic_id == table.log.topic_id
            assert loaded.record.binding.committed() == {0: 7}
            topic_ids.append(table.log.topic_id)
    return topic_ids


async def test_many_tables_are_one_transaction_and_one_sync() -> None:
    world, store = await new_world()
    revision = await store.revision()
    world.disk.operations.clear()
    requests = new_tables(limits.NEW_TABLES_MAX)
    tables = await world.catalog.topics.create_first(requests)
    assert await store.revision() == revision + 1
    syncs = [operation for operation, _ in world.disk.operations if operation.startswith("sync")]
    assert syncs.count("sync_disk") == 1
    assert syncs.count("sync") == 0
    assert {*tables} == {request.log.topic_id for request in requests}
    world.disk.power_loss()
    assert len(await bound(world, requests)) == limits.NEW_TABLES_MAX


@pytest.mark.parametrize(
    ("own", "base"),
    [
        ("file:/warehouse/elsewhere/", "file:/warehouse/elsewhere"),
        ("file:/outside", "file:/warehouse/ns"),
        ("s3://others/ns", "file:/warehouse/ns"),
    ],
)
async def test_tables_of_topics_are_in_the_location_of_their_namespace(own: str, base: str) -> None:
    """A namespace location is used if it is inside the warehouse, also for recreated tables."""
    world, _ = await new_world()
    await world.catalog.namespaces.change_properties(NS, {"location": own}, [])
    (new,) = new_tables(1)
    tables = await world.catalog.topics.create_first([new])
    topic_table, _ = tables[new.log.topic_id]
    assert topic_table.table.location.startswith(f"{base}/t0-")
    await world.catalog.topics.detach(new.name)
    again = await world.catalog.topics.recreate(new.log, Identifier(NS, "again"), [*Consent])
    assert again.committed is not None
    assert again.committed.table.location.startswith(f"{base}/again-")


async def test_no_transaction_of_new_tables_is_too_large() -> None:
    """Hazard 10, with names as long as they can be, and a namespace for each table."""
    world, _ = await new_world()
    requests = []
    for number, new_table in enumerate(new_tables(limits.NEW_TABLES_MAX)):
        namespace = (f"{number:03}" + "n" * 120,)
        await world.catalog.namespaces.create(namespace, {})
        shards = {shard: ShardLog(2**40, 2**50, 2**50) for shard in range(16)}
        log = TopicLog(f"/{namespace[0]}/{'t' * 120}", new_table.log.topic_id, shards)
        requests.append(NewTopicTable(log, Identifier(namespace, "t" * 120), {}))
    assert len(await world.catalog.topics.create_first(requests)) == limits.NEW_TABLES_MAX


@pytest.mark.parametrize("obstacle", ["has a table", "had a table", "name is taken", "two of one name", "no namespace"])
async def test_an_obstacle_for_one_table_creates_none(obstacle: str) -> None:
    world, store = await new_world()
    requests = new_tables(20)
    if obstacle in ("has a table", "had a table"):
        await world.catalog.topics.create_first(requests[5:6])
        if obstacle == "had a table":
            await world.catalog.topics.detach(requests[5].name)
            await world.catalog.tables.drop(requests[5].name)
    elif obstacle == "name is taken":
        await world.with_table("t5")
    elif obstacle == "two of one name":
        requests[5] = requests[5]._replace(name=requests[6].name)
    else:
        requests[5] = requests[5]._replace(name=Identifier(("nowhere",), "t5"))
    before = sorted(key for key, _ in await store.list_all(catalog_keys.ROOT)), world.metadata_files()
    assert await world.catalog.topics.create_first(requests) == {}
    assert (sorted(key for key, _ in await store.list_all(catalog_keys.ROOT)), world.metadata_files()) == before


@pytest.mark.parametrize("how", ["done", "never", "late"])
async def test_hazard_13_a_lost_reply_means_all_tables_or_none(how: str) -> None:
    world, store = await new_world()
    requests = new_tables(20)
    store.lose(how)
    created = await world.catalog.topics.create_first(requests)
    await store.deliver()
    assert [*created] == await bound(world, requests)
    assert len(created) == len(world.metadata_files()) == (20 if how == "done" else 0)


async def test_many_transactions_share_a_sync_and_a_failed_one_affects_only_itself() -> None:
    world, store = await new_world()
    await world.with_table("t5")
    revision = await store.revision()
    world.disk.operations.clear()
    requests = new_tables(2 * limits.NEW_TABLES_MAX + 10)
    created = await world.catalog.topics.create_first(requests)
    assert [operation for operation, _ in world.disk.operations].count("sync_disk") == 1
    assert await store.revision() == revision + 2
    assert (
        [*created]
        == await bound(world, requests)
        == [request.log.topic_id for request in requests[limits.NEW_TABLES_MAX :]]
    )


async def test_an_unavailable_store_leaves_no_files_of_tables_that_were_not_created() -> None:
    world, store = await new_world()
    store.is_down = True
    with pytest.raises(errors.NotReady):
        await world.catalog.topics.create_first(new_tables(limits.NEW_TABLES_MAX + 10))
    assert world.metadata_files() == []
