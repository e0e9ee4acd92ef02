"""Hazard 97: erased values survive as metadata. Snapshots that stay have neither the rows nor entries that tell of
them: every byte of warehouse and log is read, decoded. And snapshots that are rewritten (ADR 128) answer as before,
without the messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from pyiceberg.table import StaticTable

from icestream.catalog.catalog_holds import BACKUP_TAG, HoldRecord, hold_key
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalogs.table_catalog import TableChange
from icestream.iceberg.manifests import manifest_file_of_record
from icestream.iceberg.relocation import RelocatedFile, SourceManifest, rewrite_manifest
from icestream.model import ShardKey
from icestream.model.backlog_messages import RetainedTopic
from icestream.model.erasure_messages import ErasureMode, ErasureProgress, HistoryChoice
from icestream.pipeline.commit.snapshot_builder import Operation, build_snapshot
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.compaction.compaction_job import CompactionJob, CompactionOptions
from icestream.pipeline.driver.maintenance_request import MaintenanceRequest, RequestedTable
from icestream.pipeline.erasure.erasure_job import ErasureJob
from icestream.pipeline.tables.topic_table import TopicTable
from tests.support.compaction import RULE, add_compaction, compact
from tests.support.deleting_engine import delete_by_key, delete_by_position, live_entries, table_of
from tests.support.erasures import Erasures, canary_places
from tests.support.fault_world import FaultWorld, name_of
from tests.support.interruptible_driver import InterruptibleDriver

pytestmark = pytest.mark.asyncio
# The lowest key of the first round of shard 0, so that it is a bound; and its payload.
KEY = b"plant/10/heat"
WHERE = f"key = '{KEY.decode()}'"
CANARIES = (KEY, b"message 1 ")
Rows = dict[int, list[tuple[int, int]]]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    fault_world = await FaultWorld.open(tmp_path)
    yield fault_world
    await fault_world.close()


async def ingest(world: FaultWorld, life: InterruptibleDriver, rounds: int = 1) -> None:
    for _ in range(rounds):
        await world.publish_some()
        await world.drain(life)


def forget(world: FaultWorld) -> None:
    world.forgone.setdefault(ShardKey(1, 0), set()).add(1)


def places(world: FaultWorld) -> list[str]:
    return canary_places(Path(world.folder), CANARIES)


async def expire(world: FaultWorld) -> None:
    """All snapshots but main go."""
    metadata = (await world.catalog.load(name_of(1))).metadata
    main = metadata["current-snapshot-id"]
    others = [snapshot["snapshot-id"] for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] != main]
    await world.catalog.commit(name_of(1), TableChange([], [{"action": "remove-snapshots", "snapshot-ids": others}]))


async def clean(world: FaultWorld, life: InterruptibleDriver) -> None:
    await world.drain(life)
    await world.clean(life)


async def erase(
    erasures: Erasures, life: InterruptibleDriver, job: ErasureJob, history: HistoryChoice
) -> ErasureProgress:
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.ERASE, history=history)
    assert progress.error == ""
    return progress


async def check_gone(world: FaultWorld, erasures: Erasures, life: InterruptibleDriver, job: ErasureJob) -> None:
    await clean(world, life)
    await world.check()
    progress, report = await erasures.do(life, job, WHERE, ErasureMode.CHECK)
    assert (progress.error, progress.findings.left, report["is_final"]) == ("", [], True)
    assert places(world) == []


async def rows_by_snapshot(world: FaultWorld) -> Rows:
    """Shard and offset of each row of each kept snapshot, as PyIceberg reads them."""
    table = StaticTable.from_metadata((await world.catalog.load(name_of(1))).metadata_location or "")
    rows: Rows = {}
    for snapshot in table.snapshots():
        read = table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("shard", "offset")).to_arrow()
        rows[snapshot.snapshot_id] = sorted(zip(read["shard"].to_pylist(), read["offset"].to_pylist(), strict=True))
    return rows


def without_message(rows: Rows) -> Rows:
    return {snapshot: [row for row in read if row != (0, 1)] for snapshot, read in rows.items()}


# --- entries of removed files -----------------------------------------------------------------------------------------


async def compacted(world: FaultWorld, life: InterruptibleDriver, merging: CompactionJob) -> None:
    await ingest(world, life, 3)
    merging._changed.add(1)
    await compact(life, merging)
    await ingest(world, life)


async def repartitioned(world: FaultWorld, life: InterruptibleDriver, merging: CompactionJob) -> None:
    world.policies[1] = {"partitioning": "bucket[4]"}
    await ingest(world, life, 2)
    merging.request(MaintenanceRequest("a", [RequestedTable(1, "/default/t1")], False, repartitions=True))
    await compact(life, merging)
    await ingest(world, life)


@pytest.mark.parametrize("history", [HistoryChoice.DROP, HistoryChoice.REWRITE], ids=str)
@pytest.mark.parametrize("before", [compacted, repartitioned], ids=["compacted", "repartitioned"])
@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "kept"])
async def test_hazard_97_no_manifest_keeps_the_bounds_of_a_removed_file(
    world: FaultWorld, before: object, history: HistoryChoice, is_expired: bool
) -> None:
    """Compaction and repartitioning leave DELETED entries in manifests with live files."""
    assert callable(before)
    life, erasures = world.driver(), Erasures(world)
    job, merging = erasures.add_to(life)
    merging._options = CompactionOptions(rule=RULE, interval_ms=0)
    await ingest(world, life)
    await before(world, life, merging)
    if is_expired:
        await expire(world)
        await ingest(world, life)
        await clean(world, life)  # the replaced file is gone, its entry is not
    merging._options = CompactionOptions(rule=RULE._replace(files_min=1_000, is_requested=False))
    rows = await rows_by_snapshot(world)
    forget(world)
    await erase(erasures, life, job, history)
    await check_gone(world, erasures, life, job)
    if history is HistoryChoice.REWRITE:
        after = await rows_by_snapshot(world)
        assert {snapshot: after[snapshot] for snapshot in rows} == without_message(rows)


@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "kept"])
async def test_hazard_97_a_message_that_retention_removed_is_in_no_bound(world: FaultWorld, is_expired: bool) -> None:
    """The erasure has nothing to write again in main: the entry of the removed file is all that is left."""
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 8)  # their manifests became one
    world.retained = [RetainedTopic(1, "/default/t1", messages_max=5 * 14)]
    world.clock.advance(61)
    await life.driver.turn()
    assert (await world.first(1))[0] == 27
    world.retained = []
    await ingest(world, life)
    if is_expired:
        await expire(world)
        await ingest(world, life)
        await clean(world, life)
        assert places(world)
    progress = await erase(erasures, life, job, HistoryChoice.DROP)
    assert (progress.findings.messages, progress.findings.erased) == (0, 0)
    assert progress.findings.swept
    await check_gone(world, erasures, life, job)


async def test_hazard_97_a_delete_by_value_goes_with_the_files_that_need_it(world: FaultWorld) -> None:
    """An engine deleted the message by its key: the delete file has the key."""
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 2)
    await delete_by_key(world, 0, 1, KEY)
    await ingest(world, life)
    refused, _ = await erasures.do(life, job, WHERE, ErasureMode.ERASE, history=HistoryChoice.REWRITE)
    assert "deletes by value" in refused.error
    await erase(erasures, life, job, HistoryChoice.DROP)
    assert await live_entries(world, 1) == []
    await check_gone(world, erasures, life, job)


# --- files in other manifests -----------------------------------------------------------------------------------------


def copy_of(path: str) -> str:
    return f"{path.rpartition('/')[0]}/{hashlib.sha256(path.encode()).hexdigest()}.parquet"


def copy_file(path: str, *, has_digest: bool) -> int:
    """The size of the copy."""
    source, target = (Path(location.removeprefix("file:")) for location in (path, copy_of(path)))
    if has_digest:
        target.write_bytes(source.read_bytes())
    else:
        pq.write_table(pq.read_table(source).replace_schema_metadata(None), target)
    return target.stat().st_size


async def move_files(world: FaultWorld, *, has_digest: bool) -> None:
    """Main gets manifests of another writer, with copies of its files under other names: as a restore makes them, or,
    without digests of their rows, as an engine does."""
    table = await table_of(world)
    snapshot = table.snapshots.find(table.current_snapshot_id or 0)
    assert snapshot is not None
    manifests = []
    for number, manifest in enumerate(await world.avro.manifest_files(snapshot["manifest-list"])):
        entries = await world.avro.entries(manifest.path)
        new_files = {
            entry.file_path: RelocatedFile(copy_file(entry.file_path, has_digest=has_digest), entry.record_count)
            for entry in entries
        }
        location = f"{table.location}/metadata/restored-{number}.avro"
        source = SourceManifest(manifest.path, await world.files.read(manifest.path), manifest.record)
        moved = rewrite_manifest(source, location, copy_of, new_files)
        await world.files.create(location, [moved.data])
        manifests.append(manifest_file_of_record({**moved.record, "manifest_path": location}))
    now_ms, keeps = int(snapshot["timestamp-ms"]), TagRetention(0, 0)
    built = build_snapshot(table, manifests, [], {}, 4_711, 0, bytes(16), now_ms, keeps, {}, Operation.REPLACE)
    for file in built.files:
        await world.files.create(file.location, file.chunks)
    await world.making.commits.commit(name_of(1), CommitRequest([], built.updates))


@pytest.mark.parametrize("history", [HistoryChoice.DROP, HistoryChoice.REWRITE], ids=str)
async def test_hazard_80_messages_of_a_restored_topic_are_erased(world: FaultWorld, history: HistoryChoice) -> None:
    """Its manifests and files have names of the restore, and the digests of the pipeline."""
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 3)
    await move_files(world, has_digest=True)
    await ingest(world, life)
    rows = await rows_by_snapshot(world)
    forget(world)
    progress = await erase(erasures, life, job, history)
    assert progress.findings.erased == 1
    if history is HistoryChoice.REWRITE:
        after = await rows_by_snapshot(world)
        assert {snapshot: after[snapshot] for snapshot in rows} == without_message(rows)
    main = (await table_of(world)).snapshots[-1]
    assert main["summary"]["deleted-data-files"] == "1"
    assert int(main["summary"]["total-records"]) == len((await rows_by_snapshot(world))[main["snapshot-id"]])
    await clean(world, life)
    await world.check()
    await ingest(world, life)
    await world.check()
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.CHECK)
    assert [place for place in progress.findings.left if not place.startswith("storage")] == []


async def test_hazard_80_files_of_an_engine_are_refused_before_anything_is_changed(world: FaultWorld) -> None:
    """Their rows may have any offsets."""
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 2)
    await move_files(world, has_digest=False)
    await ingest(world, life)
    before = (await world.catalog.load(name_of(1))).metadata_location
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.ERASE)
    assert "of another engine" in progress.error
    assert (await world.catalog.load(name_of(1))).metadata_location == before


@pytest.mark.parametrize("partitioning", ["bucket[4]", "day"])
async def test_hazard_80_files_of_an_older_partitioning_keep_it(world: FaultWorld, partitioning: str) -> None:
    world.policies[1] = {"partitioning": partitioning, "compaction": "off"}
    first = world.driver()
    await ingest(world, first, 2)
    await first.lease.release()
    await first.end()
    world.policies[1] = {"partitioning": "none", "compaction": "off"}
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life)
    rows = await rows_by_snapshot(world)
    forget(world)
    progress = await erase(erasures, life, job, HistoryChoice.REWRITE)
    assert progress.findings.erased == 1
    after = await rows_by_snapshot(world)
    assert {snapshot: after[snapshot] for snapshot in rows} == without_message(rows)
    await check_gone(world, erasures, life, job)


# --- history that is rewritten ----------------------------------------------------------------------------------------


async def tag(world: FaultWorld, name: str, kind: str = "tag") -> int:
    """Gives the current snapshot a name."""
    snapshot_id: int = (await world.catalog.load(name_of(1))).metadata["current-snapshot-id"]
    update = {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id}
    await world.catalog.commit(name_of(1), TableChange([], [update]))
    return snapshot_id


async def test_hazard_80_time_travel_finds_the_same_rows_without_the_messages(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await world.publish(1, 2)  # a file of which the message is one of two rows
    await world.drain(life)
    await tag(world, "before")
    await ingest(world, life, 3)
    await tag(world, "monday")
    await ingest(world, life)
    before, rows = (await world.catalog.load(name_of(1))).metadata, await rows_by_snapshot(world)
    forget(world)
    where = "shard = 0 and offset = 1"
    progress, _ = await erasures.do(life, job, where, ErasureMode.ERASE, history=HistoryChoice.REWRITE)
    assert (progress.error, progress.findings.erased) == ("", 1)
    after = (await world.catalog.load(name_of(1))).metadata
    assert {name: reference["snapshot-id"] for name, reference in after["refs"].items() if name != "main"} == {
        name: reference["snapshot-id"] for name, reference in before["refs"].items() if name != "main"
    }
    assert after["snapshot-log"][: len(before["snapshot-log"])] == before["snapshot-log"]
    read = await rows_by_snapshot(world)
    assert {snapshot: read[snapshot] for snapshot in rows} == without_message(rows)
    kept = ("snapshot-id", "parent-snapshot-id", "sequence-number", "timestamp-ms", "schema-id")
    for former, latter in zip(before["snapshots"], after["snapshots"], strict=False):
        assert [former.get(name) for name in kept] == [latter.get(name) for name in kept]
        assert int(latter["summary"]["total-records"]) == len(read[latter["snapshot-id"]])
    await clean(world, life)
    await world.check()
    assert await rows_by_snapshot(world) == read
    progress, _ = await erasures.do(life, job, where, ErasureMode.CHECK)
    assert progress.findings.left == []


async def test_hazard_80_a_file_of_which_nothing_stays_goes_from_history(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 3)
    where, gone = "shard = 0 and offset < 9", set(range(9))
    rows = await rows_by_snapshot(world)
    world.forgone[ShardKey(1, 0)] = gone
    progress, _ = await erasures.do(life, job, where, ErasureMode.ERASE, history=HistoryChoice.REWRITE)
    assert progress.error == ""
    read = await rows_by_snapshot(world)
    assert {snapshot: read[snapshot] for snapshot in rows} == {
        snapshot: [(shard, offset) for shard, offset in past if shard or offset not in gone]
        for snapshot, past in rows.items()
    }
    await clean(world, life)
    await world.check()


async def test_hazard_80_a_table_may_be_rolled_back_to_rewritten_history(world: FaultWorld) -> None:
    """The erased rows do not come back with it."""
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 2)
    old = await tag(world, "old")
    await ingest(world, life)
    forget(world)
    await erase(erasures, life, job, HistoryChoice.REWRITE)
    update = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": old}
    await world.catalog.commit(name_of(1), TableChange([], [update]))
    assert (0, 1) not in (await rows_by_snapshot(world))[old]
    assert places(world)  # the clean-up is still to come
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.CHECK)
    assert not [place for place in progress.findings.left if not place.startswith(("storage", "metadata"))]


@pytest.mark.parametrize("reason", ["branch", "position"])
async def test_hazard_80_history_that_cannot_be_rewritten_is_refused(world: FaultWorld, reason: str) -> None:
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 2)
    if reason == "branch":
        await tag(world, "audit", "branch")
    else:
        (oldest, *_) = sorted(entry.file_path for entry in await live_entries(world))
        await delete_by_position(world, {entry.file_path: [2] for entry in await live_entries(world)})
        assert oldest
    await ingest(world, life)
    before = (await world.catalog.load(name_of(1))).metadata_location
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.ERASE, history=HistoryChoice.REWRITE)
    assert reason in progress.error
    assert progress.hint
    assert (await world.catalog.load(name_of(1))).metadata_location == before


async def test_hazard_80_what_a_backup_holds_is_not_rewritten(world: FaultWorld) -> None:
    """The documents of the backup name its files."""
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 2)
    held = await tag(world, f"{BACKUP_TAG}b1")
    metadata = (await world.catalog.load(name_of(1))).metadata
    await world.store.put(hold_key(metadata["table-uuid"], "backup-b1"), msgspec.json.encode(HoldRecord([held], 0)))
    files = await world.paths(next(s["manifest-list"] for s in metadata["snapshots"] if s["snapshot-id"] == held))
    await ingest(world, life)
    forget(world)
    progress, report = await erasures.do(life, job, WHERE, ErasureMode.ERASE, history=HistoryChoice.REWRITE)
    assert progress.error == ""
    assert f"{BACKUP_TAG}b1" in report["must_do"][0]
    assert not report["is_final"]
    await clean(world, life)
    assert files <= await world.present(1)
    assert {snapshot for snapshot, rows in (await rows_by_snapshot(world)).items() if (0, 1) in rows} == {held}


async def test_hazard_80_a_backup_that_begins_meanwhile_keeps_its_files(
    world: FaultWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure has looked at the holds before: the catalog refuses, and the next look finds it."""
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    await ingest(world, life, 2)
    metadata = (await world.catalog.load(name_of(1))).metadata
    held = metadata["current-snapshot-id"]
    await world.store.put(hold_key(metadata["table-uuid"], "backup-b1"), msgspec.json.encode(HoldRecord([held], 0)))
    files = await world.paths(next(s["manifest-list"] for s in metadata["snapshots"] if s["snapshot-id"] == held))
    forget(world)
    looks, look = [0], job._held

    async def late(table: TopicTable) -> set[int]:
        looks[0] += 1
        return set() if looks[0] <= 2 else await look(table)  # before files are written, and before the commit

    monkeypatch.setattr(job, "_held", late)
    await erase(erasures, life, job, HistoryChoice.REWRITE)
    assert looks[0] > 2
    await clean(world, life)
    assert files <= await world.present(1)
    assert {snapshot for snapshot, rows in (await rows_by_snapshot(world)).items() if (0, 1) in rows} == {held}


# --- what rounds build on ---------------------------------------------------------------------------------------------


async def manifests_of_main(world: FaultWorld) -> list[Path]:
    metadata = (await world.catalog.load(name_of(1))).metadata
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    manifests = await world.avro.manifest_files(snapshots[metadata["current-snapshot-id"]]["manifest-list"])
    return [Path(manifest.path.removeprefix("file:")) for manifest in manifests]


@pytest.mark.parametrize("is_cleaned", [True, False], ids=["after the clean-up", "before the clean-up"])
async def test_hazard_97_a_round_builds_on_the_manifests_of_the_sweep(world: FaultWorld, is_cleaned: bool) -> None:
    """The sweep exchanges the manifests of main under its snapshot id. Rounds have loaded the table since the erasure
    began, so theirs is another object."""
    first = world.driver()
    merging = add_compaction(first)
    await ingest(world, first, 3)
    merging._changed.add(1)
    await compact(first, merging)  # the last commit: main has its DELETED entries
    await first.lease.release()
    await first.end()
    life, erasures = world.driver(), Erasures(world)
    job, _ = erasures.add_to(life)
    request_id = await erasures.begin("key = 'nobody'", ErasureMode.ERASE)
    job.ask()
    while job._current is None or job._current.table is None:
        await life.driver.turn()
    job._current.next_look_ns = 2**62  # the search goes on later
    await world.publish(1, 3)
    await world.drain(life)
    loaded = life.topics.loaded(1)
    assert loaded is not None
    assert loaded is not job._current.table
    job._current.next_look_ns = 0
    await erasures.run(life, job)
    progress, _ = erasures.service.progress(request_id)
    assert progress.error == ""
    assert progress.findings.swept
    if is_cleaned:
        await world.clean(life)
    await world.publish(1, 3)
    await world.drain(life)
    manifests = await manifests_of_main(world)
    assert [path for path in manifests if not path.exists()] == []
    entries = [entry for path in manifests for entry in await world.avro.entries(f"file:{path}")]
    assert all(entry.is_live for entry in entries)
    await world.check()
