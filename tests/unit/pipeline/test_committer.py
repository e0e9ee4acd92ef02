"""The committer over our own catalog, on a real disk: others read its commits, and it survives theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio
from pyiceberg.table import StaticTable

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.pipeline.commit.committer import CommittedSnapshot
from icestream.pipeline.tables.topic_table import TopicTable
from tests.support.committer_harness import CommitterHarness, topic

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> CommitterHarness:
    harness = CommitterHarness(tmp_path / "warehouse")
    await harness.lease(1)
    return harness


async def rows(world: CommitterHarness, table: TopicTable) -> list[tuple[int, int]]:
    """The (shard, offset) rows that PyIceberg reads from the current metadata file."""
    loaded = await world.catalog.load(table.identifier)
    assert loaded.metadata_location is not None
    table_rows = (
        StaticTable.from_metadata(loaded.metadata_location).scan(selected_fields=("shard", "offset")).to_arrow()
    )
    return sorted(zip(table_rows["shard"].to_pylist(), table_rows["offset"].to_pylist(), strict=True))


async def test_rows_are_visible_to_others(world: CommitterHarness) -> None:
    table = await world.open(topic())
    round_files = world.brought(table, 10)
    outcomes = await world.commit(round_files)
    assert outcomes == {1: CommittedSnapshot(round_files.snapshot_id)}
    assert await rows(world, table) == [(0, offset) for offset in range(10)]
    assert table.positions[0].next == 10
    assert (await world.books.refresh(table)).positions[0].next == 10


async def test_manifests_stay_few_and_keep_their_sequence_numbers(world: CommitterHarness) -> None:
    table = await world.open(topic())
    for _ in range(66):
        await world.commit(world.brought(table, 2))
    assert table.manifests is not None
    assert [manifest.live_files for manifest in table.manifests] == [1] * 2 + [64]
    assert await rows(world, table) == [(0, offset) for offset in range(132)]
    loaded = await world.catalog.load(table.identifier)
    entries_before = StaticTable.from_metadata(loaded.metadata_location or "").inspect.entries().to_pylist()
    by_path = {entry["data_file"]["file_path"]: entry["sequence_number"] for entry in entries_before}
    assert sorted(by_path.values()) == list(range(1, 67))
    # a committer that knows nothing goes on with what it reads
    other = CommitterHarness(world.folder, world.store)
    fresh = await other.open(topic())
    for _ in range(6):
        await other.commit(other.brought(fresh, 2))
    assert fresh.manifests is not None
    assert [manifest.live_files for manifest in fresh.manifests] == [8, 64]
    assert await rows(other, fresh) == [(0, offset) for offset in range(144)]
    entries = StaticTable.from_metadata((await other.catalog.load(fresh.identifier)).metadata_location or "")
    numbers = [entry["sequence_number"] for entry in entries.inspect.entries().to_pylist()]
    assert sorted(numbers) == list(range(1, 73))


async def test_all_tables_of_a_round_are_committed_together(world: CommitterHarness) -> None:
    tables = [await world.open(topic(number, f"/shop/t{number}")) for number in range(1, 6)]
    before = await world.store.revision()
    outcomes = await world.commit(*(world.brought(table, 3) for table in tables))
    assert all(isinstance(outcome, CommittedSnapshot) for outcome in outcomes.values())
    assert await world.store.revision() == before + 1
    assert await world.store.get(catalog_keys.topic_key(3)) is not None


async def test_the_pipeline_of_each_node_commits_under_a_lease_of_its_own(world: CommitterHarness) -> None:
    """Two nodes of a cluster commit at the same time, over one store."""
    other = CommitterHarness(world.folder, world.store, lease="00000000000000bb")
    await other.lease(2)
    mine, theirs = await world.open(topic(1, "/default/a")), await other.open(topic(2, "/default/b"))
    for _ in range(2):
        assert isinstance((await world.commit(world.brought(mine, 5)))[1], CommittedSnapshot)
        assert isinstance((await other.commit(other.brought(theirs, 5)))[2], CommittedSnapshot)
    await world.store.delete(catalog_keys.lease_key("00000000000000bb"))
    with pytest.raises(errors.LeaseLost):
        await other.commit(other.brought(theirs, 5))
    assert isinstance((await world.commit(world.brought(mine, 5)))[1], CommittedSnapshot), "the other's is not"
    assert len(await rows(world, theirs)) == 10
