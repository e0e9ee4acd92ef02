"""Hazards 80, 81 and 97: what was erased stays erased, exactly these messages, whatever fails at any step; no place
that the report covers has a byte of them, and what is not covered is said.

`FaultWorld.check` reads every row with PyIceberg, opens every file that any snapshot names, and runs `verify --deep`,
which has to name exactly the erased offsets.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.broker.erasure_service import is_signed
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_holds import BACKUP_TAG, HoldRecord, hold_key
from icestream.catalog.plans.commit_plans import erased_record
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.catalogs.table_catalog import CommitDone, TableChange
from icestream.model.erased_offsets import ErasedOffsets, encode_erased
from icestream.model.erasure_messages import ErasureMode, ErasureProgress, HistoryChoice
from icestream.model.scan_messages import ScanKind, ScanRequest
from icestream.model.shard import GapState, ShardKey
from icestream.pipeline.compaction.compaction_job import CompactionOptions
from icestream.pipeline.driver.effects import ERASURE_EFFECTS, Effect, Fault
from icestream.pipeline.erasure.erasure_job import ErasureJob, watch_erasures
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from tests.support.compaction import RULE, add_compaction, compact
from tests.support.erasures import Erasures, LocalSearcher, canary_places
from tests.support.fault_world import HANGS_SECONDS, FaultWorld, name_of
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver

pytestmark = pytest.mark.asyncio
# Messages 3 and 14 of the first round: offset 3 of shard 0, and offset 1 of shard 1.
WHERE = "key in ('plant/12/heat', 'plant/19/heat')"
CANARIES = (b"message 3 ", b"plant/12/heat", b"message 14 ", b"plant/19/heat")
EFFECTS = (*sorted(ERASURE_EFFECTS), Effect.TAKE_LEASE, Effect.ASK, Effect.COMMIT, Effect.LOOK_AGAIN, Effect.NOTE)
DROPS = [(effect, HistoryChoice.DROP) for effect in EFFECTS if effect is not Effect.REWRITE_HISTORY]
REWRITES = [(effect, HistoryChoice.REWRITE) for effect in sorted(ERASURE_EFFECTS) if effect is not Effect.DROP_HISTORY]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    fault_world = await FaultWorld.open(tmp_path)
    yield fault_world
    await fault_world.close()


async def ingest(world: FaultWorld, life: InterruptibleDriver, rounds: int = 2) -> None:
    for _ in range(rounds):
        await world.publish_some()
        await world.drain(life)


def forget(world: FaultWorld) -> None:
    """What the tests of the world expect to be gone."""
    for key, messages in world.published.items():
        if key.topic_id == 1:
            offsets = {at for at, payload in messages.items() if payload.startswith((b"message 3 ", b"message 14 "))}
            world.forgone.setdefault(key, set()).update(offsets)


def places(world: FaultWorld) -> list[str]:
    """The files below the world's folder in which an erased message can be read."""
    return canary_places(Path(world.folder), CANARIES)


async def manifest_sizes(world: FaultWorld) -> list[int]:
    """The number of live files of each manifest of the first table, the newest manifest first. None of them may keep
    an entry of a removed file."""
    metadata = (await world.catalog.load(name_of(1))).metadata
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    manifests = await world.avro.manifest_files(snapshots[metadata["current-snapshot-id"]]["manifest-list"])
    entries = [await world.avro.entries(manifest.path) for manifest in manifests]
    assert all(entry.is_live for manifest in entries for entry in manifest)
    sizes = [manifest.live_files for manifest in manifests]
    assert sizes == [len(manifest) for manifest in entries]
    return sizes


async def clean(world: FaultWorld, life: InterruptibleDriver) -> None:
    """Everything else is committed, and what no snapshot needs is removed."""
    await world.drain(life)
    await world.clean(life)


# --- what it does -----------------------------------------------------------------------------------------------------


async def test_hazard_80_erased_messages_are_gone_from_every_place(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    assert places(world)
    forget(world)
    progress, report = await erasures.do(life, job, WHERE, ErasureMode.ERASE)
    assert not progress.error
    findings = progress.findings
    assert (findings.messages, findings.erased) == (2, 2)
    assert findings.snapshots
    await clean(world, life)
    await world.check()
    record = erased_record(1, await world.store.get(catalog_keys.erased_key(1)))
    assert record is not None
    assert (record.count, record.ranges) == (2, 2)
    progress, report = await erasures.do(life, job, WHERE, ErasureMode.CHECK)
    assert (progress.error, progress.findings.left, report["is_final"]) == ("", [], True)
    assert places(world) == []


async def test_hazard_80_a_dry_run_counts_and_changes_nothing(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    before = (await world.catalog.load(name_of(1))).metadata_location
    progress, report = await erasures.do(life, job, WHERE, ErasureMode.DRY_RUN)
    assert (progress.findings.messages, progress.findings.erased, report["kind"]) == (2, 0, "dry run")
    assert (await world.catalog.load(name_of(1))).metadata_location == before
    await world.check()


async def test_hazard_80_history_goes_only_where_it_is_asked_for(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.ERASE, history=HistoryChoice.REFUSE)
    assert "older snapshot" in progress.error
    assert progress.findings.erased == 0
    await world.check()


async def test_hazard_80_snapshots_without_the_messages_stay(world: FaultWorld) -> None:
    """A tag of a time before the message was published keeps what it has."""
    life, erasures = world.driver(), Erasures(world)
    await world.publish(1, 2)
    await world.drain(life)
    snapshot_id = (await world.catalog.load(name_of(1))).metadata["current-snapshot-id"]
    tag = {"action": "set-snapshot-ref", "ref-name": "before", "type": "tag", "snapshot-id": snapshot_id}
    await world.catalog.commit(name_of(1), TableChange([], [tag]))
    tagged = (await world.catalog.load(name_of(1))).metadata["refs"]["before"]
    await world.publish(1, 3)
    await world.drain(life)
    job, _ = erasures.add_to(life)
    progress, _ = await erasures.do(life, job, "offset = 3", ErasureMode.ERASE)
    assert not progress.error
    assert (await world.catalog.load(name_of(1))).metadata["refs"]["before"] == tagged
    world.forgone[ShardKey(1, 0)] = {3}
    await world.check()


async def test_hazard_80_what_a_backup_holds_is_named(world: FaultWorld) -> None:
    """Its tag stays, and so do its files; the report says what somebody has to do."""
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    snapshot_id = (await world.catalog.load(name_of(1))).metadata["current-snapshot-id"]
    name = f"{BACKUP_TAG}b1"
    tag = {"action": "set-snapshot-ref", "ref-name": name, "type": "tag", "snapshot-id": snapshot_id}
    await world.catalog.commit(name_of(1), TableChange([], [tag]))
    uuid = (await world.catalog.load(name_of(1))).metadata["table-uuid"]
    await world.store.put(hold_key(uuid, "backup-b1"), msgspec.json.encode(HoldRecord([snapshot_id], 0)))
    job, _ = erasures.add_to(life)
    progress, report = await erasures.do(life, job, WHERE, ErasureMode.ERASE)
    assert not progress.error
    assert name in report["must_do"][0]
    assert not report["is_final"]
    assert (await world.catalog.load(name_of(1))).metadata["refs"][name]["snapshot-id"] == snapshot_id
    forget(world)
    await clean(world, life)
    await world.check()
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.CHECK)
    assert {place.partition(":")[0] for place in progress.findings.left} == {"history"}


async def test_hazard_81_consumers_meet_an_explicit_gap(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    forget(world)
    await erasures.do(life, job, "offset >= 2 and offset < 5 and shard = 0", ErasureMode.ERASE)
    scans = LazyScanner(world._tables, world.files, RowGroupCacheOptions())
    try:
        answer = await scans.answer(ScanRequest(1, ScanKind.READ, "/default/t1", 1, 0, 0, 1_000_000))
    finally:
        scans.close()
    assert [(gap.start, gap.end, gap.state, gap.reason) for gap in answer.missing] == [
        (2, 5, GapState.DROPPED, "erased")
    ]


async def test_hazard_80_rows_that_come_back_into_a_file_are_not_read(world: FaultWorld) -> None:
    """The record decides, not the files: here they still have the rows."""
    life = world.driver()
    await ingest(world, life, 1)
    erased = ErasedOffsets({0: [(1, 3), (8, 9)]})
    data, location = encode_erased(erased), f"file:{world.folder}/warehouse/erased-by-hand.bin"
    await world.files.create(location, [data])
    record = ErasedRecord(location, hashlib.sha256(data).hexdigest(), 3, 2, {0: 9})
    await world.store.put(catalog_keys.erased_key(1), catalog_records.encode(record))
    scans = LazyScanner(world._tables, world.files, RowGroupCacheOptions())
    try:
        answer = await scans.answer(ScanRequest(1, ScanKind.READ, "/default/t1", 1, 0, 0, 1_000_000))
        assert [(gap.start, gap.end, gap.reason) for gap in answer.missing] == [(1, 3, "erased"), (8, 9, "erased")]
        assert [(section.base_offset, section.rows) for section in answer.sections] == [(0, 1), (3, 5)]
        await world.files.remove(location)
        await world.files.create(location, [data + b"damaged"])
        scans.tables.forget(1)  # type: ignore[attr-defined]
        scans.tables._erased_offsets.clear()  # type: ignore[attr-defined]
        with pytest.raises(errors.TableUnreadable):
            await scans.answer(ScanRequest(1, ScanKind.READ, "/default/t1", 1, 0, 0, 1_000_000))
    finally:
        scans.close()


async def test_hazard_80_floors_do_not_go_back_below_the_cut(world: FaultWorld) -> None:
    """Nothing that was erased is committed again from the log."""
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    await erasures.do(life, job, WHERE, ErasureMode.ERASE)
    end = world.log.shard(1, 0).floor
    world.ingest.erased_below = lambda key: end if key == ShardKey(1, 0) else 0
    await world.ingest.reopen([(1, 0, 0)])
    assert world.log.shard(1, 0).floor == end


async def test_hazard_80_what_compaction_does_meanwhile_is_searched_again(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life, 4)
    job, _ = erasures.add_to(life)
    merging = add_compaction(life, RULE)
    forget(world)
    request_id = await erasures.begin(WHERE, ErasureMode.ERASE)
    job.ask()
    while job.is_busy:
        merging._changed.add(1)
        await life.driver.turn()
    await compact(life, merging)
    progress, _ = erasures.service.progress(request_id)
    assert (progress.error, progress.findings.erased) == ("", 2)
    await clean(world, life)
    await world.check()


@pytest.mark.parametrize("mode", [ErasureMode.ERASE, ErasureMode.CHECK], ids=str)
async def test_hazard_80_a_file_that_goes_before_it_is_searched_has_its_rows_searched(
    world: FaultWorld, monkeypatch: pytest.MonkeyPatch, mode: ErasureMode
) -> None:
    """Between the list of files and the search of the last one compaction writes the files again, their snapshots
    expire, and the clean-up removes them."""
    monkeypatch.setattr(limits, "ERASURE_STEP_FILES", 1)
    life, erasures = world.driver(), Erasures(world)
    merging = add_compaction(life, RULE._replace(files_min=1_000, is_requested=False))
    job, _ = erasures.add_to(life, compaction=merging)
    await ingest(world, life, 4)
    if mode is ErasureMode.CHECK:
        await erasures.do(life, job, "key = 'plant/13/heat'", ErasureMode.ERASE)  # another message
    request_id = await erasures.begin(WHERE, mode)
    job.ask()
    while job._current is None or job._current.files is None:
        await life.driver.turn()
    listed = [Path(location.removeprefix("file:")) for location in job._current.files.main]
    job._current.next_look_ns = 2**62  # the search goes on later
    merging._options = CompactionOptions(rule=RULE, interval_ms=0)
    merging._changed.add(1)
    await compact(life, merging)
    merging._options = CompactionOptions(rule=RULE._replace(files_min=1_000, is_requested=False))
    metadata = (await world.catalog.load(name_of(1))).metadata
    main = metadata["current-snapshot-id"]
    others = [snapshot["snapshot-id"] for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] != main]
    await world.catalog.commit(name_of(1), TableChange([], [{"action": "remove-snapshots", "snapshot-ids": others}]))
    table = life.topics.loaded(1)
    assert table is not None
    life.cleaner.clean_now(table)
    for _ in range(3):
        world.clock.advance(400)
        await world.clean(life)
    assert not any(path.exists() for path in listed)
    job._current.next_look_ns = 0
    await erasures.run(life, job)
    progress, _ = erasures.service.progress(request_id)
    assert progress.error == ""
    if mode is ErasureMode.CHECK:
        assert [place for place in progress.findings.left if place.startswith("table:")]
        return
    assert progress.findings.erased == 2
    forget(world)
    await clean(world, life)
    await world.check()
    assert places(world) == []


async def test_hazard_80_an_erasure_goes_on_under_a_new_epoch(world: FaultWorld) -> None:
    """Ingest that fails gives the lease up while files are written again. Their names have the epoch of before."""
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    forget(world)
    request_id = await erasures.begin(WHERE, ErasureMode.ERASE)
    job.ask()
    while job._current is None or job._current.phase != "erase" or job._current.task is None:
        await life.driver.turn()
    await life.lease.release()
    await erasures.run(life, job)
    progress, _ = erasures.service.progress(request_id)
    assert (progress.error, progress.findings.erased) == ("", 2)
    await clean(world, life)
    await world.check()
    assert places(world) == []


async def test_hazard_80_a_main_that_is_rolled_back_meanwhile_is_no_erasure(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    request_id = await erasures.begin(WHERE, ErasureMode.ERASE)
    former = (await world.catalog.load(name_of(1))).metadata["current-snapshot-id"]
    job.ask()
    while job._current is None or job._current.phase != "history":
        await life.driver.turn()
    update = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": former}
    assert isinstance(await world.catalog.commit(name_of(1), TableChange([], [update])), CommitDone)
    await erasures.run(life, job)
    progress, _ = erasures.service.progress(request_id)
    assert progress.error.startswith("the table changed")


async def test_hazard_97_a_report_is_signed_and_names_nobody(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life, 1)
    job, _ = erasures.add_to(life)
    request_id = await erasures.begin(WHERE, ErasureMode.ERASE)
    await erasures.run(life, job)
    _, document = erasures.service.progress(request_id)
    assert document is not None
    assert is_signed(document)
    assert "plant" not in str(document)
    assert document["report"]["not_covered"]
    assert not is_signed({**document, "report": {**document["report"], "erased": 0}})
    stored = [entry.value for _, entry in await world.store.list_all("/erasures/")]
    assert stored
    assert not any(b"plant" in value for value in stored)


async def test_hazard_81_a_predicate_that_finds_nothing_changes_nothing(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life, 1)
    job, _ = erasures.add_to(life)
    progress, _ = await erasures.do(life, job, "key = 'nobody'", ErasureMode.ERASE)
    assert (progress.error, progress.findings.erased) == ("", 0)
    assert await world.store.get(catalog_keys.erased_key(1)) is None
    with pytest.raises(errors.InvalidInput):
        await erasures.begin("nobody", ErasureMode.ERASE)
    progress, _ = await erasures.do(life, job, "name = 'x'", ErasureMode.DRY_RUN)
    assert "no column" in progress.error
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.CHECK)
    assert "nothing was erased" in progress.error
    await world.check()


async def test_hazard_81_everything_of_a_file_can_be_erased(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life, 2)
    job, _ = erasures.add_to(life)
    end = world.log.shard(1, 0).synced
    progress, _ = await erasures.do(life, job, "shard = 0", ErasureMode.ERASE)
    assert (progress.error, progress.findings.erased) == ("", end)
    world.forgone[ShardKey(1, 0)] = set(range(end))
    await clean(world, life)
    await world.publish(1, 2)
    await world.drain(life)
    await world.check()


@pytest.mark.parametrize(
    ("where", "erased", "files_left"),
    [
        ("offset >= 0", {0, 1, 2, 3, 4, 5}, []),
        ("offset < 2", {0, 1}, [1, 1]),
        ("offset >= 2", {2, 3, 4, 5}, [1]),
        ("offset < 4", {0, 1, 2, 3}, [1]),
        ("offset < 3", {0, 1, 2}, [1, 1]),
    ],
    ids=["all rows", "one file", "two files", "the oldest files", "a file and a half"],
)
async def test_hazard_81_a_manifest_goes_with_its_last_row(
    world: FaultWorld, where: str, erased: set[int], files_left: list[int]
) -> None:
    """Three files, each alone in its manifest. A manifest without entries is not written; the table goes on."""
    life, erasures = world.driver(), Erasures(world)
    for _ in range(3):
        await world.publish(1, 2)
        await world.drain(life)
    assert await manifest_sizes(world) == [1, 1, 1]
    job, _ = erasures.add_to(life)
    progress, _ = await erasures.do(life, job, where, ErasureMode.ERASE)
    assert (progress.error, progress.findings.erased) == ("", len(erased))
    world.forgone[ShardKey(1, 0)] = erased
    assert await manifest_sizes(world) == files_left
    await clean(world, life)
    await world.check()
    progress, _ = await erasures.do(life, job, where, ErasureMode.CHECK)
    assert (progress.error, progress.findings.left) == ("", [])
    await world.publish(1, 2)
    await world.drain(life)
    assert await manifest_sizes(world) == [1, *files_left]
    await world.check()


async def test_hazard_97_retained_messages_of_erased_rows_are_dropped(world: FaultWorld) -> None:
    """Known by the rows that they were taken from; those of other rows stay."""
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    erasures.retained.rows = {1: {(0, 2), (0, 3), (0, 4), (1, 1)}, 2: {(0, 3)}}
    progress, report = await erasures.do(life, job, WHERE, ErasureMode.ERASE)
    assert (progress.error, report["retained"]) == ("", 2)
    assert erasures.retained.rows == {1: {(0, 2), (0, 4)}, 2: {(0, 3)}}
    erasures.retained.rows[1].add((1, 1))  # a restart before the log of retained messages was written again
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.CHECK)
    assert [place for place in progress.findings.left if place.startswith("mqtt")] == [
        "mqtt: 1 retained message of erased rows; erase again"
    ]


@pytest.mark.parametrize("history", [HistoryChoice.DROP, HistoryChoice.REWRITE], ids=str)
async def test_hazard_80_a_node_of_a_cluster_erases_under_its_own_lease(
    world: FaultWorld, history: HistoryChoice
) -> None:
    """Its topics are in its log alone (ADR 32); requests and retired logs of other nodes are not its own."""
    world.lease_name = "00000000000000a1"
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life, 2)
    job, _ = erasures.add_to(life)
    asked: list[str] = []
    own = asyncio.create_task(watch_erasures(world.store, world.clock, world.lease_name, lambda: asked.append("own")))
    other = asyncio.create_task(
        watch_erasures(world.store, world.clock, "00000000000000b2", lambda: asked.append("other"))
    )
    await asyncio.sleep(0)
    forget(world)
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.ERASE, history=history)
    assert (progress.error, progress.findings.erased) == ("", 2)
    assert {*asked} == {"own"}
    for task in (own, other):
        task.cancel()
    await asyncio.gather(own, other, return_exceptions=True)
    (stored, _), *more = await world.store.list_all("/erasures/log/")
    assert (stored, more) == (f"/erasures/log/{world.log.log_id.hex()}", [])
    await clean(world, life)
    await world.check()
    progress, _ = await erasures.do(life, job, WHERE, ErasureMode.CHECK)
    assert (progress.error, progress.findings.left) == ("", [])
    assert places(world) == []


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(("effect", "history"), [*DROPS, *REWRITES], ids=str)
async def test_hazard_80_an_erasure_goes_on_after_a_crash(
    world: FaultWorld, effect: Effect, history: HistoryChoice, is_before: bool
) -> None:
    """The driver ends at each effect; the next one gets the same request, and finishes it."""
    first, erasures = world.driver(), Erasures(world)
    await ingest(world, first, 2)
    await first.end()
    forget(world)
    life = world.driver(Fault(is_before, effect))
    job, _ = erasures.add_to(life)
    request_id = await erasures.begin(WHERE, ErasureMode.ERASE, history=history)
    with pytest.raises(DriverKilled):
        await erasures.run(life, job)
    await life.end()
    following = world.driver()
    job, _ = erasures.add_to(following)
    await erasures.run(following, job)
    progress, _ = erasures.service.progress(request_id)
    assert (progress.is_done, progress.error) == (True, "")
    await clean(world, following)
    await world.check()
    progress, _ = await erasures.do(following, job, WHERE, ErasureMode.CHECK)
    assert progress.findings.left == []
    assert places(world) == []


async def test_hazard_80_an_unreadable_file_is_no_erasure(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life, 1)

    def damage() -> None:
        for path in Path(world.folder).rglob("*.parquet"):
            path.write_bytes(path.read_bytes()[:-8] + b"damaged!")

    job, _ = erasures.add_to(life, LocalSearcher(damage))
    progress, report = await erasures.do(life, job, WHERE, ErasureMode.ERASE)
    assert "cannot be searched" in progress.error
    assert report == {}


# --- failures that nothing expects ------------------------------------------------------------------------------------


class FailingSearcher(LocalSearcher):
    """Raises what no code raises by intention, in the Spark jobs of these numbers, counted from 1."""

    def __init__(self, failing: range) -> None:
        super().__init__()
        self.failing = failing
        self.calls = 0

    def search(self, search_jobs: Sequence[bytes]) -> list[bytes]:
        self.calls += 1
        if self.calls in self.failing:
            raise RuntimeError("no such thing")
        return super().search(search_jobs)


async def run_backed_off(
    world: FaultWorld, erasures: Erasures, life: InterruptibleDriver, job: ErasureJob, mode: ErasureMode
) -> ErasureProgress:
    """Runs a request to its end, past the backoff of the job."""
    request_id = await erasures.begin(WHERE, mode)
    job.ask()
    async with asyncio.timeout(HANGS_SECONDS):
        while job.is_busy:
            await life.driver.turn()
            if not life.jobs.guard.may_run(job.name):
                world.clock.advance(2)
    progress, _ = erasures.service.progress(request_id)
    return progress


@pytest.mark.parametrize("failing", [1, 2], ids=["search", "write"])
async def test_hazard_80_a_task_that_fails_unexpectedly_is_done_again(world: FaultWorld, failing: int) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life, FailingSearcher(range(failing, failing + 1)))
    forget(world)
    progress = await run_backed_off(world, erasures, life, job, ErasureMode.ERASE)
    assert (progress.error, progress.findings.erased) == ("", 2)
    await clean(world, life)
    await world.check()
    assert places(world) == []


async def test_hazard_80_a_commit_that_fails_unexpectedly_is_done_again(
    world: FaultWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life)
    commit, calls = job._commits.commit, 0

    async def fail_once(changes: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("no such thing")
        return await commit(changes)

    monkeypatch.setattr(job._commits, "commit", fail_once)
    forget(world)
    progress = await run_backed_off(world, erasures, life, job, ErasureMode.ERASE)
    assert (progress.error, progress.findings.erased) == ("", 2)
    await clean(world, life)
    await world.check()
    assert places(world) == []


async def test_hazard_80_a_check_whose_task_fails_unexpectedly_searches_again(world: FaultWorld) -> None:
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    searcher = FailingSearcher(range(0))
    job, _ = erasures.add_to(life, searcher)
    await erasures.do(life, job, "key = 'plant/13/heat'", ErasureMode.ERASE)  # another message
    searcher.calls, searcher.failing = 0, range(1, 2)
    progress = await run_backed_off(world, erasures, life, job, ErasureMode.CHECK)
    assert progress.error == ""
    assert [place for place in progress.findings.left if place.startswith("table:")]


async def test_hazard_80_an_erasure_that_always_fails_ends_with_an_error(
    world: FaultWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ERASURE_ATTEMPTS_MAX", 2)
    life, erasures = world.driver(), Erasures(world)
    await ingest(world, life)
    job, _ = erasures.add_to(life, FailingSearcher(range(1, 1_000)))
    progress = await run_backed_off(world, erasures, life, job, ErasureMode.ERASE)
    assert (progress.error.partition(",")[0], progress.findings.erased) == ("the table changed", 0)
    await world.check()
