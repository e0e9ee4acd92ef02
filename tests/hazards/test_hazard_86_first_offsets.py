"""Hazard 86: where `earliest` lives, and what a crash leaves. The first kept offset of a shard stands in one record of
the topic, rises in the transaction that removes the files, and is what every reader starts at, whatever files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalog.plans.commit_plans import first_kept
from icestream.catalogs.table_catalog import CommitOutcome, CommitUnknown, TableCatalog, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.model.scan_messages import ScanKind, ScanRequest, ScanResponse
from icestream.model.shard import GapState
from icestream.pipeline.commit import committer as committer_module
from icestream.pipeline.commit.committer import CommittedSnapshot, NotCommitted, Result
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.commit.snapshot_builder import Operation
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from icestream.readers.embedded_table_views import EmbeddedTableViews
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.verify.verify_report import VerifyReport, Weight
from icestream.runtime.tasks import InlineOffload
from tests.support.committer_harness import CommitterHarness, topic

pytestmark = pytest.mark.asyncio


async def open_world(tmp_path: Path, wrap: Any = None) -> tuple[CommitterHarness, TopicTable, list[str]]:
    """A table with ten rows in each of three files."""
    world = CommitterHarness(tmp_path / "warehouse", wrap=wrap)
    await world.lease(1)
    table = await world.open(topic())
    files = []
    for _ in range(3):
        commit = world.brought(table, 10)
        assert isinstance((await world.commit(commit))[1], CommittedSnapshot)
        files += [file.location for file in commit.files]
    return world, table, files


def retention(world: CommitterHarness, table: TopicTable, removed: list[str], first: int) -> TopicCommit:
    commit = world.round(table, [], [])
    return commit._replace(operation=Operation.DELETE, removed_files=removed, first={0: first})


async def commit_retention(world: CommitterHarness, table: TopicTable, removed: list[str], first: int) -> Result:
    return (await world.commit(retention(world, table, removed, first)))[1]


async def first_of(world: CommitterHarness) -> dict[int, int]:
    return first_kept(1, await world.store.get(catalog_keys.retained_key(1)))


def scans_of(world: CommitterHarness) -> LazyScanner:
    reader = ManifestReader(world.files, InlineOffload())
    return LazyScanner(
        lambda: EmbeddedTableViews(world.making, reader, world.clock), world.files, RowGroupCacheOptions()
    )


async def ask(world: CommitterHarness, question: ScanKind, value: int = 0) -> ScanResponse:
    scans = scans_of(world)
    try:
        return await scans.answer(ScanRequest(1, question, "/default/orders", 1, 0, value, 1_000_000))
    finally:
        scans.close()


async def verified(world: CommitterHarness) -> VerifyReport:
    scans = scans_of(world)
    try:
        view = await scans.tables.fresh(1)
        assert view is not None
        return scans.verifier(view, {}).verify(deep=True)
    finally:
        scans.close()


async def move_main(world: CommitterHarness, table: TopicTable, snapshot_id: int) -> None:
    """As an engine rolls back."""
    update = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    await world.catalog.commit(table.identifier, TableChange([], [update]))
    await world.books.refresh(table)


# --- one commit -------------------------------------------------------------------------------------------------------


async def test_files_and_first_offset_go_in_one_commit(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    result = await commit_retention(world, table, files[:2], 20)
    assert isinstance(result, CommittedSnapshot)
    assert await first_of(world) == {0: 20}
    snapshot = table.table.snapshots.find(result.snapshot_id)
    assert snapshot is not None
    summary = snapshot["summary"]
    assert {name: summary[name] for name in ("operation", "deleted-data-files", "total-records")} == {
        "operation": "delete",
        "deleted-data-files": "2",
        "total-records": "10",
    }
    refreshed = await world.books.refresh(table)
    written = refreshed.table.snapshots.find(result.snapshot_id)
    assert written is not None
    assert written["summary"]["icestream.first"] == '{"0":20}'
    report = await verified(world)
    assert report.is_good
    assert [(finding.start, finding.end, finding.weight) for finding in report.findings] == [(0, 20, Weight.KNOWN)]
    assert "retention" in report.findings[0].text


async def test_ingest_continues_after_a_retention_of_everything(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    assert isinstance(await commit_retention(world, table, files, 30), CommittedSnapshot)
    assert (await ask(world, ScanKind.EARLIEST)).offset is None
    assert isinstance((await world.commit(world.brought(table, 5)))[1], CommittedSnapshot)
    assert (await ask(world, ScanKind.EARLIEST)).offset == 30
    assert (await verified(world)).is_good


@pytest.mark.parametrize(
    ("removed", "first", "problem"),
    [
        ([0, 1], 19, "may hold rows that are kept"),
        ([0], 31, "not committed up to 31"),
        ([1], 5, "may hold rows that are kept"),
    ],
)
async def test_a_retention_that_removes_too_much_changes_nothing(
    tmp_path: Path, removed: list[int], first: int, problem: str
) -> None:
    world, table, files = await open_world(tmp_path)
    main = table.table.current_snapshot_id
    result = await commit_retention(world, table, [files[number] for number in removed], first)
    assert isinstance(result, StopReason | NotCommitted)
    assert problem in result.reason
    assert await first_of(world) == {}
    assert (await world.books.refresh(table)).table.current_snapshot_id == main


async def test_the_catalog_judges_a_retention_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the committer makes a mistake: it is the process that may be late."""

    async def pass_everything(*arguments: object) -> None: ...

    monkeypatch.setattr(committer_module.rewrite_draft, "check_retention", pass_everything)
    world, table, files = await open_world(tmp_path)
    result = await commit_retention(world, table, files[:2], 19)
    assert isinstance(result, StopReason)
    assert "may hold rows that are kept" in result.reason
    assert await first_of(world) == {}


async def test_the_first_offset_only_rises(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    before = table.table.current_snapshot_id
    assert before is not None
    await commit_retention(world, table, files[:2], 20)
    await move_main(world, table, before)
    assert isinstance(await commit_retention(world, table, files[:1], 10), CommittedSnapshot)
    assert await first_of(world) == {0: 20}


# --- readers ----------------------------------------------------------------------------------------------------------


async def test_readers_start_at_the_first_offset_whatever_files_hold(tmp_path: Path) -> None:
    """A rollback brings the files back, and not the rows to readers."""
    world, table, files = await open_world(tmp_path)
    before = table.table.current_snapshot_id
    assert before is not None
    await commit_retention(world, table, files[:2], 20)
    for is_rolled_back in (False, True):
        if is_rolled_back:
            await move_main(world, table, before)
        assert (await ask(world, ScanKind.EARLIEST)).offset == 20
        read = await ask(world, ScanKind.READ, 3)
        assert [(part.start, part.end, part.state) for part in read.missing] == [(3, 20, GapState.DROPPED)]
        assert read.missing[0].reason == "removed by the topic's retention"
        assert [section.base_offset for section in read.sections] == [20]
        assert read.next_offset == 30
        assert (await ask(world, ScanKind.TIME, 0)).offset == 20
        report = await verified(world)
        assert report.is_good, report.findings


# --- faults -----------------------------------------------------------------------------------------------------------


class LosesTheAnswer:
    """A catalog whose answer to the first retention is lost after it landed."""

    def __init__(self, inner: TableCatalog) -> None:
        self._inner = inner
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        outcome = await self._inner.commit(identifier, change)
        is_retention = any(entry.get("kind") == "retention" for entry in change.requirements)
        self.sent += is_retention
        return CommitUnknown("the answer was lost") if is_retention and self.sent == 1 else outcome


async def test_a_lost_answer_is_found_as_a_repeat(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path, LosesTheAnswer)
    commit = retention(world, table, files[:1], 10)
    await world.commit(commit)
    result = (await world.commit(commit._replace(table=table)))[1]
    assert result == CommittedSnapshot(commit.snapshot_id, is_repeat=True)
    assert await first_of(world) == {0: 10}


async def test_a_driver_that_lost_its_lease_removes_nothing(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    late = retention(world, table, files[:1], 10)
    await world.lease(2)
    with pytest.raises(errors.LeaseLost):
        await world.commit(late)
    assert await first_of(world) == {}


async def test_an_append_in_between_is_no_conflict(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    other = await world.open(topic())
    assert isinstance((await world.commit(world.brought(other, 10)))[1], CommittedSnapshot)
    assert isinstance(await commit_retention(world, table, files[:1], 10), CommittedSnapshot)
    assert (await ask(world, ScanKind.EARLIEST)).offset == 10
    assert (await verified(world)).is_good
