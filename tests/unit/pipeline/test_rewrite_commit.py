"""Commits that replace files: the rows stay, every offset stays committed, and ingest continues after them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit.committer import CommittedSnapshot, NotCommitted
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.commit.snapshot_builder import Operation
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from tests.support.committing import Committing, topic

pytestmark = pytest.mark.asyncio
CATALOGS = pytest.mark.parametrize("is_foreign", [False, True], ids=["our own catalog", "another catalog"])


async def open_world(tmp_path: Path, is_foreign: bool = False) -> tuple[Committing, TopicTable, list[WrittenFile]]:
    """A table with ten rows in each of three files."""
    world = Committing(tmp_path / "warehouse", is_foreign=is_foreign)
    await world.lease(1)
    table = await world.open(topic())
    files = []
    for _ in range(3):
        commit = world.brought(table, 10)
        assert isinstance((await world.commit(commit))[1], CommittedSnapshot)
        await world.books.record([commit])
        files += commit.files
    return world, table, files


def rewrite(world: Committing, table: TopicTable, start: int, end: int, removed: list[WrittenFile]) -> TopicCommit:
    """Replaces the removed files by one with these offsets."""
    merged = world.write(table, 0, start, end)
    locations = [file.location for file in removed]
    return world.round(table, [], [merged])._replace(operation=Operation.REPLACE, removed_files=locations)


async def static_table(world: Committing, table: TopicTable) -> StaticTable:
    return StaticTable.from_metadata((await world.catalog.load(table.identifier)).metadata_location or "")


async def offsets_of(world: Committing, table: TopicTable) -> list[int]:
    rows = (await static_table(world, table)).scan(selected_fields=("offset",)).to_arrow()
    return sorted(rows["offset"].to_pylist())


@CATALOGS
async def test_a_rewrite_keeps_every_row_and_every_offset(tmp_path: Path, is_foreign: bool) -> None:
    world, table, files = await open_world(tmp_path, is_foreign)
    commit = rewrite(world, table, 0, 20, files[:2])
    assert (await world.commit(commit))[1] == CommittedSnapshot(commit.snapshot_id)
    assert table.positions[0].next == 30
    assert await offsets_of(world, table) == list(range(30))
    snapshot = table.table.snapshots.find(commit.snapshot_id)
    assert snapshot is not None
    summary = snapshot["summary"]
    assert {
        name: summary[name] for name in ("operation", "added-data-files", "deleted-data-files", "total-records")
    } == {
        "operation": "replace",
        "added-data-files": "1",
        "deleted-data-files": "2",
        "total-records": "30",
    }
    paths = {entry["file_path"] for entry in (await static_table(world, table)).inspect.files().to_pylist()}
    assert paths == {commit.files[0].location, files[2].location}


@CATALOGS
async def test_ingest_continues_after_a_rewrite(tmp_path: Path, is_foreign: bool) -> None:
    """Also in a driver that reloads the table, and over the merge of the manifest that the rewrite left."""
    world, table, files = await open_world(tmp_path, is_foreign)
    assert isinstance((await world.commit(rewrite(world, table, 0, 30, files)))[1], CommittedSnapshot)
    assert (await world.books.refresh(table)).positions[0].next == 30
    for _ in range(8):
        commit = world.brought(table, 5)
        assert isinstance((await world.commit(commit))[1], CommittedSnapshot)
        await world.books.record([commit])
    assert await offsets_of(world, table) == list(range(70))


async def test_a_rewrite_that_an_append_overtook_is_built_again_on_the_new_table(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    stale = rewrite(world, table, 0, 20, files[:2])
    other = Committing(world.folder, world.store)
    fresh = await other.open(topic())
    assert isinstance((await other.commit(other.brought(fresh, 5)))[1], CommittedSnapshot)
    assert isinstance((await world.commit(stale))[1], CommittedSnapshot)
    assert await offsets_of(world, table) == list(range(35))
    assert table.positions[0].next == 35


async def test_a_rewrite_of_a_file_that_is_gone_from_the_table_is_not_committed(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    first, second = rewrite(world, table, 0, 20, files[:2]), rewrite(world, table, 10, 30, files[1:])
    assert isinstance((await world.commit(first))[1], CommittedSnapshot)
    result = (await world.commit(second))[1]
    assert isinstance(result, NotCommitted | StopReason)
    assert files[1].location in result.reason
    assert await offsets_of(world, table) == list(range(30))


async def test_a_rewrite_that_would_lose_rows_is_refused(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    result = (await world.commit(rewrite(world, table, 0, 19, files[:2])))[1]
    assert isinstance(result, StopReason)
    assert "removes 20 rows and adds 19" in result.reason
    assert await offsets_of(world, table) == list(range(30))
