"""Operations on the tables of topics through the catalog: one transaction each, also when its answer is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.iceberg.identifier import Identifier
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.tables import NEW_VIEW, point
from tests.support.topic_tables import ENVELOPE, TOPIC, TOPIC_ID, appending, claim
from tests.support.warehouse import NS, TABLE, CatalogWorld

pytestmark = pytest.mark.asyncio

LOG = TopicLog(TOPIC, TOPIC_ID, {0: ShardLog(0, 0, 50)})
LATE_LOG = TopicLog(TOPIC, TOPIC_ID, {0: ShardLog(0, 25, 50)})


async def with_rounds() -> tuple[CatalogWorld, FaultyStore]:
    """Offsets 0..29, in snapshots 1 to 3."""
    store = FaultyStore(SimulatedClock())
    world = CatalogWorld(store)
    await world.with_table(schema=ENVELOPE)
    await store.put("/pipeline/lease", b'{"epoch":5}')
    await world.catalog.topics.bind_empty(TABLE, LOG)
    for number in (1, 2, 3):
        state = (await world.catalog.commits.load(TABLE)).state
        request = CommitRequest([claim(number, (0, 0, 10 * number - 10, 10 * number))], appending(state, number))
        await world.catalog.commits.commit(TABLE, request)
    return world, store


async def committed(catalog: Catalog, table: Identifier = TABLE) -> dict[int, int] | None:
    binding = (await catalog.commits.load(table)).record.binding
    return None if binding is None else binding.committed()


async def keys_of_topics(world: CatalogWorld) -> list[str]:
    keys = [key for key, _ in await world.store.list_all(catalog_keys.ROOT)]
    return [key.split("/")[2] for key in keys if key.split("/")[2] in ("topics", "bound", "parted")]


async def test_a_dry_run_reports_everything_and_changes_nothing() -> None:
    world, _ = await with_rounds()
    await world.catalog.commits.commit(TABLE, CommitRequest([], [point("main", 1)]))
    revision, files = await world.store.revision(), world.metadata_files()
    dry = await world.catalog.topics.rewind(TABLE, LATE_LOG, is_dry=True)
    assert dry.committed is None
    assert dry.preview.needed == {Consent.GAP}
    assert (await world.store.revision(), world.metadata_files()) == (revision, files)
    with pytest.raises(errors.TopicTableConflict):
        await world.catalog.topics.rewind(TABLE, LATE_LOG)
    assert (await world.store.revision(), world.metadata_files()) == (revision, files)
    done = await world.catalog.topics.rewind(TABLE, LATE_LOG, [Consent.GAP])
    assert done.preview == dry.preview
    assert await committed(world.another(2)) == {0: 25}


async def test_a_parted_topic_is_remembered_until_it_has_a_table() -> None:
    world, _ = await with_rounds()
    topics = world.catalog.topics
    assert await topics.table_of(TOPIC_ID) == TABLE
    assert await topics.find_detached(TOPIC_ID) is None
    await topics.detach(TABLE)
    left = await topics.find_detached(TOPIC_ID)
    assert left is not None
    assert (left.topic, left.name, left.committed, left.pipeline_epoch) == (TOPIC, "table", {0: 30}, 5)
    assert await topics.table_of(TOPIC_ID) is None
    done = await topics.adopt(TABLE, LATE_LOG)
    assert done.preview.shards[0].committed == 30
    assert await committed(world.catalog) == {0: 30}
    assert await keys_of_topics(world) == ["bound", "topics"]


async def test_a_topic_keeps_its_table_until_it_is_detached() -> None:
    world, _ = await with_rounds()
    second = await world.with_table("second", schema=ENVELOPE)
    for act in (
        lambda: world.catalog.topics.bind_empty(second, LOG),
        lambda: world.catalog.topics.adopt(second, LOG),
        lambda: world.catalog.topics.recreate(LOG, second),
    ):
        with pytest.raises(errors.AlreadyExists, match=r"has a( readable)? table: ns\.table"):
            await act()


async def test_recreate_after_a_forced_drop() -> None:
    world, _ = await with_rounds()
    old = (await world.catalog.tables.load(TABLE)).table
    await world.catalog.tables.drop(TABLE, is_forced=True)
    assert await keys_of_topics(world) == ["parted"]
    with pytest.raises(errors.TopicTableConflict, match="offsets 0 to 24"):
        await world.catalog.topics.recreate(LATE_LOG, TABLE)
    done = await world.catalog.topics.recreate(LATE_LOG, TABLE, [Consent.GAP])
    assert done.committed is not None
    table = (await world.another(2).tables.load(TABLE)).table
    assert (table.uuid, table.location) != (old.uuid, old.location)
    assert table.properties["icestream.committed"] == '{"0":25}'
    assert await keys_of_topics(world) == ["bound", "topics"]
    state = (await world.catalog.commits.load(TABLE)).state
    await world.catalog.commits.commit(TABLE, CommitRequest([claim(9, (0, 0, 25, 30))], appending(state, 9)))
    assert await committed(world.catalog) == {0: 30}


async def test_recreate_replaces_a_table_whose_file_is_missing() -> None:
    world, _ = await with_rounds()
    location = (await world.catalog.tables.load(TABLE)).location
    await world.catalog.topics._runner.documents.remove(location)
    fresh = world.another(2)
    with pytest.raises(errors.MetadataFileMissing):
        await fresh.tables.load(TABLE)
    with pytest.raises(errors.InvalidInput, match=r"the lost table of topic /default/orders is ns\.table"):
        await fresh.topics.recreate(LOG, Identifier(NS, "other"))
    dry = await fresh.topics.recreate(LOG, TABLE, is_dry=True)
    assert dry.preview.shards[0].written_again == (0, 30)
    await fresh.topics.recreate(LOG, TABLE)
    assert await committed(world.another(3)) == {0: 0}
    assert await keys_of_topics(world) == ["bound", "topics"]
    uuid = (await fresh.tables.load(TABLE)).table.uuid or ""
    assert await world.store.get(catalog_keys.bound_key(uuid)) is not None


async def test_a_fresh_table_needs_a_name_that_is_free() -> None:
    world, _ = await with_rounds()
    await world.catalog.tables.drop(TABLE, is_forced=True)
    await world.with_table()
    files = world.metadata_files()
    for is_dry in (True, False):
        with pytest.raises(errors.AlreadyExists, match=r"Table already exists: ns\.table") as refused:
            await world.catalog.topics.recreate(LOG, TABLE, is_dry=is_dry)
        assert "`icestream lake recreate /default/orders --table OTHER`" in refused.value.hint
        assert "`icestream lake adopt ns.table /default/orders`" in refused.value.hint
    await world.catalog.views.create(Identifier(NS, "view"), NEW_VIEW)
    with pytest.raises(errors.AlreadyExists, match=r"View with same name already exists: ns\.view .*--table OTHER"):
        await world.catalog.topics.recreate(LOG, Identifier(NS, "view"), is_dry=True)
    files = world.metadata_files()
    with pytest.raises(errors.UnknownNamespace):
        await world.catalog.topics.recreate(LOG, Identifier(("gone",), "t"))
    assert world.metadata_files() == files


# --- answers that get lost --------------------------------------------------------------------------------------------

Act = Callable[[CatalogWorld], Awaitable[object]]


async def _drop(world: CatalogWorld) -> None:
    await world.catalog.tables.drop(TABLE, is_forced=True)


async def _part(world: CatalogWorld) -> None:
    await world.catalog.topics.detach(TABLE)


async def _roll_back(world: CatalogWorld) -> None:
    await world.catalog.commits.commit(TABLE, CommitRequest([], [point("main", 1)]))


ACTS: dict[str, tuple[Act, Act, dict[int, int] | None]] = {
    "detach": (_roll_back, lambda world: world.catalog.topics.detach(TABLE), None),
    "adopt": (_part, lambda world: world.catalog.topics.adopt(TABLE, LOG), {0: 30}),
    "rewind": (_roll_back, lambda world: world.catalog.topics.rewind(TABLE, LOG), {0: 10}),
    "recreate": (_drop, lambda world: world.catalog.topics.recreate(LOG, TABLE), {0: 0}),
}


@pytest.mark.parametrize("how", ["done", "never", "late"])
@pytest.mark.parametrize("name", ACTS)
async def test_hazard_13_an_operation_whose_reply_is_lost_is_applied_once(name: str, how: str) -> None:
    world, store = await with_rounds()
    before, act, expected = ACTS[name]
    await before(world)
    store.lose(how)
    await act(world)
    await store.deliver()
    assert await committed(world.another(7)) == expected
    assert sorted(await keys_of_topics(world)) == (["parted"] if expected is None else ["bound", "topics"])
