"""Commits that replace files: the rows stay, every offset stays committed, and ingest continues after them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalogs.table_catalog import CommitOutcome, CommitUnknown, TableCatalog, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.model.row_digest import RowDigest
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit.committer import CommittedSnapshot, NotCommitted
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.commit.snapshot_builder import Operation
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from tests.support.committer_harness import CommitterHarness, topic

pytestmark = pytest.mark.asyncio
CATALOGS = pytest.mark.parametrize("is_foreign", [False, True], ids=["our own catalog", "another catalog"])


async def open_world(
    tmp_path: Path, is_foreign: bool = False, wrap: Any = None
) -> tuple[CommitterHarness, TopicTable, list[WrittenFile]]:
    """A table with ten rows in each of three files."""
    world = CommitterHarness(tmp_path / "warehouse", is_foreign=is_foreign, wrap=wrap)
    await world.lease(1)
    table = await world.open(topic())
    files = []
    for _ in range(3):
        commit = world.brought(table, 10)
        assert isinstance((await world.commit(commit))[1], CommittedSnapshot)
        await world.books.record([commit])
        files += commit.files
    return world, table, files


def rewrite(
    world: CommitterHarness, table: TopicTable, start: int, end: int, removed: list[WrittenFile]
) -> TopicCommit:
    """Replaces the removed files by one with these offsets."""
    merged = world.write(table, 0, start, end)
    locations = [file.location for file in removed]
    digest = RowDigest(end - start, 1, 1)  # these files have rows in their manifests alone
    return world.round(table, [], [merged])._replace(
        operation=Operation.REPLACE,
        removed_files=locations,
        removed_rows=digest,
        added_rows=digest,
        sequence_number=table.table.fields["last-sequence-number"],
    )


async def static_table(world: CommitterHarness, table: TopicTable) -> StaticTable:
    return StaticTable.from_metadata((await world.catalog.load(table.identifier)).metadata_location or "")


async def offsets_of(world: CommitterHarness, table: TopicTable) -> list[int]:
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
    """This holds also in a driver that reloads the table, and when the rewrite's manifest is merged."""
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
    other = CommitterHarness(world.folder, world.store)
    fresh = await other.open(topic())
    assert isinstance((await other.commit(other.brought(fresh, 5)))[1], CommittedSnapshot)
    assert isinstance((await world.commit(stale))[1], CommittedSnapshot)
    assert await offsets_of(world, table) == list(range(35))
    assert table.positions[0].next == 35


async def test_a_rewrite_of_a_removed_file_is_not_committed(tmp_path: Path) -> None:
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


# --- repeats and late rewrites (hazards 75, 96) -----------------------------------------------------------------------


class FirstAnswerLost:
    """The first commit that replaces files lands, and its answer is lost."""

    def __init__(self, inner: TableCatalog) -> None:
        self._inner = inner
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        outcome = await self._inner.commit(identifier, change)
        is_rewrite = any(
            (update.get("snapshot") or {}).get("summary", {}).get("operation") == "replace" for update in change.updates
        )
        self.sent += is_rewrite
        return CommitUnknown("the answer was lost") if is_rewrite and self.sent == 1 else outcome


@CATALOGS
async def test_a_rewrite_that_is_sent_again_after_a_lost_answer_is_a_repeat(tmp_path: Path, is_foreign: bool) -> None:
    world, table, files = await open_world(tmp_path, is_foreign, wrap=FirstAnswerLost)
    commit = rewrite(world, table, 0, 20, files[:2])
    lost = (await world.commit(commit))[1]
    assert isinstance(lost, NotCommitted)
    assert lost.is_unresolved
    assert (await world.commit(commit))[1] == CommittedSnapshot(commit.snapshot_id, is_repeat=True)
    assert await offsets_of(world, table) == list(range(30))
    assert len((await world.catalog.load(table.identifier)).metadata["snapshots"]) == 4
    assert isinstance(world.catalog, FirstAnswerLost)
    assert world.catalog.sent == 1, "it was found, and not sent again"


@CATALOGS
async def test_a_repeat_is_recognised_behind_other_commits(tmp_path: Path, is_foreign: bool) -> None:
    world, table, files = await open_world(tmp_path, is_foreign, wrap=FirstAnswerLost)
    commit = rewrite(world, table, 0, 20, files[:2])
    await world.commit(commit)
    await world.books.refresh(table)
    appended = world.brought(table, 5)
    assert isinstance((await world.commit(appended))[1], CommittedSnapshot)
    await world.books.record([appended])
    assert (await world.commit(commit))[1] == CommittedSnapshot(commit.snapshot_id, is_repeat=True)
    assert await offsets_of(world, table) == list(range(35))


@CATALOGS
async def test_a_late_rewrite_is_refused_once_another_driver_has_the_lease(tmp_path: Path, is_foreign: bool) -> None:
    """Before the new driver has committed anything: only the lease tells."""
    world, table, files = await open_world(tmp_path, is_foreign)
    late = rewrite(world, table, 0, 20, files[:2])
    await world.lease(2)
    with pytest.raises(errors.LeaseLost):
        await world.commit(late)
    assert await offsets_of(world, table) == list(range(30))
    assert table.table.current_snapshot_id == (await world.catalog.load(table.identifier)).current_snapshot_id


@CATALOGS
async def test_a_late_rewrite_is_refused_without_a_lease(tmp_path: Path, is_foreign: bool) -> None:
    world, table, files = await open_world(tmp_path, is_foreign)
    late = rewrite(world, table, 0, 20, files[:2])
    await world.store.delete(catalog_keys.LEASE)
    with pytest.raises(errors.LeaseLost):
        await world.commit(late)


async def test_a_late_rewrite_is_refused_by_the_epochs_in_the_history_of_a_foreign_table(tmp_path: Path) -> None:
    """Although the lease says otherwise: it was restored from a copy."""
    world, table, files = await open_world(tmp_path, is_foreign=True)
    await world.lease(2)
    newer = world.brought(table, 5)
    assert isinstance((await world.commit(newer))[1], CommittedSnapshot)
    await world.lease(1)
    with pytest.raises(errors.LeaseLost):
        await world.commit(rewrite(world, table, 0, 20, files[:2]))
    assert await offsets_of(world, table) == list(range(35))


@CATALOGS
async def test_files_of_an_older_epoch_are_not_committed_under_a_newer_one(tmp_path: Path, is_foreign: bool) -> None:
    """The clean-up may remove such files at any moment: their commit can no longer land."""
    world, table, files = await open_world(tmp_path, is_foreign)
    stale = rewrite(world, table, 0, 20, files[:2])
    await world.lease(2)
    result = (await world.commit(stale._replace(epoch=2)))[1]
    assert isinstance(result, StopReason)
    assert "whose name says otherwise" in result.reason


@CATALOGS
async def test_a_rewrite_and_appends_of_other_tables_are_committed_in_one_request(
    tmp_path: Path, is_foreign: bool
) -> None:
    world, table, files = await open_world(tmp_path, is_foreign)
    other = await world.open(topic(2, "/default/other"))
    results = await world.commit(rewrite(world, table, 0, 20, files[:2]), world.brought(other, 7))
    assert [type(results[topic_id]) for topic_id in (1, 2)] == [CommittedSnapshot] * 2
    assert (await offsets_of(world, table), await offsets_of(world, other)) == (list(range(30)), list(range(7)))


async def test_a_rewrite_that_is_refused_does_not_keep_other_tables_from_their_commit(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    other = await world.open(topic(2, "/default/other"))
    gone = rewrite(world, table, 0, 20, files[:2])
    assert isinstance((await world.commit(rewrite(world, table, 0, 20, files[:2])))[1], CommittedSnapshot)
    results = await world.commit(gone, world.brought(other, 7))
    assert isinstance(results[1], NotCommitted)
    assert isinstance(results[2], CommittedSnapshot)


async def test_the_catalog_judges_a_rewrite_by_the_files_and_not_by_what_it_says(tmp_path: Path) -> None:
    """A committer that names two files, and whose manifests leave out a third one."""
    world, table, files = await open_world(tmp_path)
    honest = rewrite(world, table, 0, 20, files[:2])
    draft = await world.committer._draft(honest)
    await world.files.create_all([(file.location, file.chunks) for file in draft.snapshot.files])
    greedy = rewrite(world, table, 0, 30, files)
    replaced = await world.committer._draft(greedy)
    await world.files.create_all([(file.location, file.chunks) for file in replaced.snapshot.files])
    requirements = [
        requirement for requirement in draft.change.requirements if requirement["type"] == "assert-icestream-job"
    ]
    with pytest.raises(errors.Contradiction, match="which its requirement does not name"):
        await world.catalog.commit(table.identifier, TableChange(requirements, replaced.change.updates))
    assert await offsets_of(world, table) == list(range(30))


async def test_a_rewrite_outside_of_the_warehouse_is_not_read(tmp_path: Path) -> None:
    """The catalog reads what the request names with its own rights: only below its roots."""
    world, table, files = await open_world(tmp_path)
    draft = await world.committer._draft(rewrite(world, table, 0, 20, files[:2]))
    (added,) = [update for update in draft.change.updates if update["action"] == "add-snapshot"]
    added["snapshot"]["manifest-list"] = "file:/etc/passwd"
    with pytest.raises(errors.InvalidInput, match="/etc/passwd"):
        await world.catalog.commit(table.identifier, draft.change)
