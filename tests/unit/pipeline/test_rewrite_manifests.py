"""What the catalog reads from the manifests of a rewrite: carried entries, delete files, doubled files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from icestream import errors
from icestream.catalogs.table_catalog import CommitDone, TableChange
from icestream.iceberg import avro
from icestream.iceberg.manifests import EncodedEntry, ManifestFile, encode_list_header, new_entry, new_manifest_file
from icestream.model.row_digest import RowDigest
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit import committer as committer_module
from icestream.pipeline.commit.committer import CommittedSnapshot, NotCommitted
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.commit.snapshot_builder import NewSnapshot, Operation, build_snapshot
from icestream.pipeline.driver.rewrite_commit import planned_number
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from tests.support.committer_harness import CommitterHarness, topic

pytestmark = pytest.mark.asyncio
CATALOGS = pytest.mark.parametrize("is_foreign", [False, True], ids=["our own catalog", "another catalog"])
# The delete file itself is not written: manifests alone decide here.
DELETES = pytest.mark.wrong_tables("the delete file is missing")
POSITIONS, VALUES = 1, 2  # contents of delete files


async def open_world(
    tmp_path: Path, is_foreign: bool = False
) -> tuple[CommitterHarness, TopicTable, Sequence[WrittenFile]]:
    """A table with one manifest of three files, of ten rows each."""
    world = CommitterHarness(tmp_path / "warehouse", is_foreign=is_foreign)
    await world.lease(1)
    table = await world.open(topic())
    commit = world.brought(table, 30, files=3)
    assert isinstance((await world.commit(commit))[1], CommittedSnapshot)
    await world.books.record([commit])
    return world, table, commit.files


def rewrite(world: CommitterHarness, table: TopicTable, files: Sequence[WrittenFile]) -> TopicCommit:
    """Merges the first two files; the third one is carried into the new manifest."""
    commit = world.round(table, [], [world.write(table, 0, 0, 20)])
    digest = RowDigest(commit.rows, 1, 1)  # these files have rows in their manifests alone
    return commit._replace(
        operation=Operation.REPLACE,
        removed_files=[file.location for file in files[:2]],
        removed_rows=digest,
        added_rows=digest,
        sequence_number=planned_number(table.table),
    )


def tampering(monkeypatch: pytest.MonkeyPatch, change: Callable[[EncodedEntry], Sequence[EncodedEntry]]) -> None:
    """Snapshots are built with other entries of the manifests that they rewrite."""

    def build(table: Any, manifests: Any, changes: Any, entries: Any, *more: Any) -> NewSnapshot:
        changed = {path: [new for entry in old for new in change(entry)] for path, old in entries.items()}
        return build_snapshot(table, manifests, changes, changed, *more)

    monkeypatch.setattr(committer_module, "build_snapshot", build)


async def test_a_rewrite_carries_the_other_files_of_its_manifests(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    assert isinstance((await world.commit(rewrite(world, table, files)))[1], CommittedSnapshot)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda entry: [entry._replace(sequence_number=0)], "changes the entry of"),
        (lambda entry: [entry, entry], "twice"),
    ],
    ids=["another sequence number", "a file twice"],
)
async def test_a_rewrite_that_changes_a_carried_entry_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, says: str
) -> None:
    world, table, files = await open_world(tmp_path)
    tampering(monkeypatch, change)
    result = (await world.commit(rewrite(world, table, files)))[1]
    assert isinstance(result, StopReason)
    assert says in result.reason


async def test_a_rewrite_that_leaves_a_carried_file_out_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, table, files = await open_world(tmp_path)
    tampering(monkeypatch, lambda entry: [] if entry.file_path == files[2].location else [entry])
    result = (await world.commit(rewrite(world, table, files)))[1]
    assert isinstance(result, StopReason)
    assert f"removes {files[2].location}, which its requirement does not name" in result.reason


# --- delete files of other engines (hazard 77) ------------------------------------------------------------------------


async def add_delete_file(world: CommitterHarness, table: TopicTable, content: int, target: str | None = None) -> None:
    """Another engine deletes rows: a commit with a delete file. `target`: the one data file that it names."""
    metadata = (await world.books.refresh(table)).table
    spec = table_policy.default_spec(metadata)
    layout = world.reader.layout(metadata, metadata.current_schema, spec)
    location = f"{metadata.location}/data/deletes.parquet"
    template = world.write(table, 0, 0, 1)
    path_field, empty = 2_147_483_546, dict[int, bytes]()
    bounds = empty if target is None else {path_field: target.encode()}
    file = msgspec.structs.replace(template, location=location, lower_bounds=bounds, upper_bounds=bounds)
    snapshot_id, number = world.committer.new_snapshot_id(), metadata.fields["last-sequence-number"] + 1
    entry = new_entry(layout, file, snapshot_id)
    entry = entry._replace(data_file=avro.encode_long(content) + entry.data_file[1:])
    folder, token = f"{metadata.location}/metadata", bytes(16)
    chunks = avro.encode_file(layout.header, [entry.encode()], token)
    manifest = new_manifest_file(layout, f"{folder}/deletes.avro", sum(map(len, chunks)), [entry], snapshot_id, number)
    deletes = ManifestFile(
        manifest.path, manifest.length, 0, 1, number, snapshot_id, 1, 1, {**manifest.record, "content": 1}
    )
    manifests = [deletes, *await world.reader.current_manifests(metadata)]
    header = encode_list_header(snapshot_id, metadata.current_snapshot_id, number)
    listed = avro.encode_file(header, [manifest.encode() for manifest in manifests], token)
    await world.files.create_all([(manifest.path, chunks), (f"{folder}/deletes-list.avro", listed)])
    snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": metadata.current_snapshot_id,
        "sequence-number": number,
        "timestamp-ms": metadata.fields["last-updated-ms"],
        "manifest-list": f"{folder}/deletes-list.avro",
        "summary": {"operation": "delete", "added-position-deletes": "1", "deleted-records": "0"},
        "schema-id": metadata.fields["current-schema-id"],
    }
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, main]
    assert isinstance(await world.catalog.commit(table.identifier, TableChange([], updates)), CommitDone)


@DELETES
@CATALOGS
async def test_a_delete_that_overtakes_a_rewrite_of_its_files_refuses_it(tmp_path: Path, is_foreign: bool) -> None:
    world, table, files = await open_world(tmp_path, is_foreign)
    commit = rewrite(world, table, files)
    other = CommitterHarness(world.folder, world.store, is_foreign=is_foreign)
    await add_delete_file(other, await other.open(topic()), POSITIONS)
    result = (await world.commit(commit))[1]
    assert isinstance(result, NotCommitted)
    assert "may be deleted by" in result.reason


@DELETES
@CATALOGS
async def test_a_delete_by_value_that_overtakes_a_rewrite_applies_to_its_file(tmp_path: Path, is_foreign: bool) -> None:
    world, table, files = await open_world(tmp_path, is_foreign)
    commit = rewrite(world, table, files)
    other = CommitterHarness(world.folder, world.store, is_foreign=is_foreign)
    await add_delete_file(other, await other.open(topic()), VALUES)
    assert isinstance((await world.commit(commit))[1], CommittedSnapshot)
    numbers = await sequence_numbers(world, table)
    assert numbers[commit.files[0].location] == commit.sequence_number
    assert numbers["deletes.parquet"] > commit.sequence_number


@DELETES
@CATALOGS
async def test_a_delete_by_value_of_before_the_plan_refuses_a_rewrite_that_ignores_it(
    tmp_path: Path, is_foreign: bool
) -> None:
    world, table, files = await open_world(tmp_path, is_foreign)
    await add_delete_file(world, table, VALUES)
    await world.books.refresh(table)
    result = (await world.commit(rewrite(world, table, files)))[1]
    assert isinstance(result, NotCommitted)
    assert "may be deleted by" in result.reason


@DELETES
async def test_a_file_with_another_sequence_number_than_its_rewrite_is_a_mistake(tmp_path: Path) -> None:
    """With that of the commit, deletes by value that came since the plan would not apply to its rows."""
    world, table, files = await open_world(tmp_path)
    draft = await world.committer._draft(rewrite(world, table, files)._replace(sequence_number=7))
    await world.files.create_all([(file.location, file.chunks) for file in draft.snapshot.files])
    (requirement,) = [entry for entry in draft.change.requirements if entry["type"] == "assert-icestream-job"]
    requirement["sequence-number"] = 1
    with pytest.raises(errors.Contradiction, match="data sequence number 7"):
        await world.catalog.commit(table.identifier, draft.change)


async def sequence_numbers(world: CommitterHarness, table: TopicTable) -> dict[str, int]:
    """The data sequence numbers of the live files of main; a delete file by its name alone."""
    manifests = await world.reader.current_manifests((await world.books.refresh(table)).table)
    return {
        entry.file_path.rpartition("/")[2] if manifest.content else entry.file_path: entry.sequence_number(
            manifest.sequence_number
        )
        for manifest in manifests
        for entry in await world.reader.live_entries(manifest)
    }


@DELETES
@CATALOGS
async def test_a_delete_of_rows_in_another_file_does_not_conflict(tmp_path: Path, is_foreign: bool) -> None:
    world, table, files = await open_world(tmp_path, is_foreign)
    commit = rewrite(world, table, files)
    other = CommitterHarness(world.folder, world.store, is_foreign=is_foreign)
    await add_delete_file(other, await other.open(topic()), POSITIONS, files[2].location)
    assert isinstance((await world.commit(commit))[1], CommittedSnapshot)


@DELETES
async def test_our_own_catalog_reads_the_delete_files_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pass_everything(*arguments: object) -> None: ...

    world, table, files = await open_world(tmp_path)
    await add_delete_file(world, table, POSITIONS)
    await world.books.refresh(table)
    monkeypatch.setattr(committer_module.rewrite_draft, "check_rewrite", pass_everything)
    result = (await world.commit(rewrite(world, table, files)))[1]
    assert isinstance(result, NotCommitted)
    assert "may be deleted by" in result.reason


@DELETES
async def test_a_rewrite_that_drops_a_delete_file_that_a_live_file_needs_is_refused(tmp_path: Path) -> None:
    world, table, files = await open_world(tmp_path)
    await add_delete_file(world, table, POSITIONS, files[2].location)
    await world.books.refresh(table)
    table.manifests = [
        manifest for manifest in await world.reader.current_manifests(table.table) if not manifest.content
    ]
    draft = await world.committer._draft(rewrite(world, table, files))
    await world.files.create_all([(file.location, file.chunks) for file in draft.snapshot.files])
    outcome = await world.catalog.commit(table.identifier, draft.change)
    assert "may be deleted by" in getattr(outcome, "reason", "")
