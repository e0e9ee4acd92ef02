"""Hazard 23: files are removed an hour after their last reference, and only those that no other table may need."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg import metadata_file
from icestream.iceberg.file_io import LocalFiles, open_inside, open_local
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.table_commit import apply_updates
from icestream.metadata.store import MemoryStore
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.avro_files import appended, manifest, manifest_list
from tests.support.faulty_store import FaultyStore
from tests.support.tables import NEW_VIEW, SCHEMA, add, snapshot
from tests.support.warehouse import NS, TABLE, WAREHOUSE, CatalogWorld, files_on, old_files

pytestmark = pytest.mark.asyncio

OTHER = Identifier(NS, "other")
HOUR = limits.CATALOG_FILE_GRACE_MS / 1000


async def filled(world: CatalogWorld, name: str = "table", *more: str, **properties: str) -> str:
    """A table with two snapshots; its location."""
    identifier = await world.with_table(name, properties=properties)
    location = (await world.catalog.tables.load(identifier)).table.location
    for number in (1, 2):
        await world.catalog.commits.commit(identifier, CommitRequest([], appended(world, location, number, *more)))
    return location


def below(world: CatalogWorld, location: str) -> list[str]:
    place = location.removeprefix("file:") + "/"
    return sorted(name.removeprefix(place) for name in world.disk.names() if name.startswith(place))


async def purged(world: CatalogWorld, identifier: Identifier = TABLE) -> None:
    await world.catalog.tables.drop(identifier, is_purging=True)
    world.clock.advance(HOUR)
    await world.clean_up()


async def purges(world: CatalogWorld) -> int:
    return len(await world.store.list_all(catalog_keys.PURGES))


# --- purge ------------------------------------------------------------------------------------------------------------


async def test_hazard_23_a_purge_waits_an_hour_and_removes_every_file() -> None:
    world = CatalogWorld()
    location = await filled(world)
    other_location = await filled(world, "other")
    everything = below(world, location)
    await world.catalog.tables.drop(TABLE, is_purging=True)
    world.clock.advance(HOUR - 1)
    assert await world.clean_up() == 0
    assert below(world, location) == everything
    world.clock.advance(1)
    await world.clean_up()
    assert (below(world, location), await purges(world)) == ([], 0)
    assert len(below(world, other_location)) == len(everything)
    assert await world.clean_up() == 0


async def test_hazard_23_a_drop_without_purge_keeps_every_file() -> None:
    world = CatalogWorld()
    location = await filled(world)
    before = below(world, location)
    await world.catalog.tables.drop(TABLE)
    world.clock.advance(10 * HOUR)
    await world.clean_up()
    assert below(world, location) == before


async def test_hazard_23_files_outside_the_table_location_are_kept() -> None:
    """Files outside of the table's location stay, even those that the table names: others may use them."""
    world = CatalogWorld()
    outside, beside = "file:/home/me/rows.parquet", f"{WAREHOUSE}/beside/rows.parquet"
    tricky = f"{WAREHOUSE}/ns/../../etc/passwd"
    for path in (outside, beside):
        world.write(path)
    location = await filled(world, "table", outside, beside, tricky)
    await purged(world)
    assert below(world, location) == []
    assert {"/home/me/rows.parquet", "/warehouse/beside/rows.parquet"} <= {*world.disk.names()}


async def test_hazard_23_files_referenced_by_another_table_are_kept() -> None:
    """The other table took the files over with add_files, for instance."""
    world = CatalogWorld()
    location = await filled(world)
    shared = f"{location}/data/rows-1-1.parquet"
    await filled(world, "other", shared)
    await purged(world)
    assert below(world, location) == ["data/rows-1-1.parquet"]
    await purged(world, OTHER)
    assert below(world, location) == ["data/rows-1-1.parquet"], "it lies in the location of no remaining table"


async def test_hazard_23_a_table_in_the_same_location_keeps_its_files() -> None:
    world = CatalogWorld()
    location = await filled(world)
    await world.with_table("other", location=location)
    other = await world.catalog.tables.load(OTHER)
    await purged(world)
    assert below(world, location) == [other.location.removeprefix(f"{location}/")]
    assert (await world.another(5).tables.load(OTHER)).table.uuid == other.table.uuid


async def test_hazard_23_a_table_that_is_registered_again_is_not_purged() -> None:
    world = CatalogWorld()
    location = await filled(world)
    last = (await world.catalog.tables.load(TABLE)).location
    before = below(world, location)
    await world.catalog.tables.drop(TABLE, is_purging=True)
    await world.catalog.tables.register(OTHER, last)
    assert await purges(world) == 0
    world.clock.advance(HOUR)
    await world.clean_up()
    assert below(world, location) == before


async def test_hazard_23_a_table_with_a_second_name_is_not_purged() -> None:
    world = CatalogWorld()
    location = await filled(world)
    await world.catalog.tables.register(OTHER, (await world.catalog.tables.load(TABLE)).location)
    before = below(world, location)
    await purged(world)
    assert (below(world, location), await purges(world)) == (before, 0)


async def test_hazard_23_a_table_that_shares_its_files_is_reported() -> None:
    world = CatalogWorld()
    location = await filled(world, **{"gc.enabled": "false"})
    before = below(world, location)
    await purged(world)
    assert (below(world, location), await purges(world)) == (before, 0)


async def test_hazard_23_a_table_whose_files_are_being_purged_cannot_be_registered() -> None:
    world = CatalogWorld()
    await filled(world)
    last = (await world.catalog.tables.load(TABLE)).location
    await world.catalog.tables.drop(TABLE, is_purging=True)
    world.clock.advance(HOUR)
    work = world.keeping.work()
    while (await world.store.list_all(catalog_keys.PURGES))[0][1].value.count(b'"is_begun":true') == 0:
        await anext(work)
    with pytest.raises(errors.InvalidInput, match="being purged"):
        await world.catalog.tables.register(TABLE, last)


async def test_hazard_23_a_purge_resumes_after_a_crash_at_any_step() -> None:
    steps = 0
    while True:
        world = CatalogWorld()
        location = await filled(world)
        other_location = await filled(world, "other")
        others = below(world, other_location)
        await world.catalog.tables.drop(TABLE, is_purging=True)
        world.clock.advance(HOUR)
        work, left = world.keeping.work(), steps
        async for _ in work:
            if left == 0:
                break
            left -= 1
        await work.aclose()
        if await purges(world) == 0:
            break
        again = world.cleanup_of(world.another(3))
        assert [None async for _ in again.work()]
        assert (below(world, location), below(world, other_location), await purges(world)) == ([], others, 0)
        steps += 1
    assert steps > 10


async def test_hazard_23_nothing_is_purged_before_all_other_tables_were_read() -> None:
    world = CatalogWorld()
    location = await filled(world)
    other = await filled(world, "other")
    before = below(world, location)
    broken = f"{other}/metadata/manifest-1.avro"
    world.disk.remove(broken.removeprefix("file:"))
    world.write(broken, b"no Avro")
    await world.catalog.tables.drop(TABLE, is_purging=True)
    world.clock.advance(HOUR)
    with capture_logs() as logs, pytest.raises(errors.MetadataFileDamaged, match="is not a manifest"):
        await world.clean_up()
    assert (below(world, location), await purges(world)) == (before, 1)
    assert [(log["table"], log["file"]) for log in logs if log["log_level"] == "warning"] == [("ns.other", broken)]
    await world.catalog.tables.drop(OTHER)
    await world.clean_up()
    assert (below(world, location), await purges(world)) == ([], 0)


async def test_hazard_23_a_table_without_its_metadata_file_blocks_all_purges() -> None:
    """The missing file is reported once, however many purges wait."""
    world = CatalogWorld()
    location = await filled(world)
    await world.with_table("other")
    before = below(world, location)
    world.disk.remove((await world.catalog.tables.load(OTHER)).location.removeprefix("file:"))
    await world.catalog.tables.drop(TABLE, is_purging=True)
    world.clock.advance(HOUR)
    with capture_logs() as logs, pytest.raises(errors.MetadataFileMissing):
        await world.clean_up()
    assert below(world, location) == before
    assert [log["table"] for log in logs if log["log_level"] == "warning"] == ["ns.other"]


async def test_hazard_23_metadata_files_of_tables_and_views_are_kept() -> None:
    """Whatever the manifests of a purged table say, whose place holds them."""
    world = CatalogWorld()
    await filled(world, "other")
    other = (await world.catalog.tables.load(OTHER)).location
    view = (await world.catalog.views.create(Identifier(NS, "view"), NEW_VIEW)).location
    await world.with_table(location=WAREHOUSE)
    await world.catalog.commits.commit(TABLE, CommitRequest([], appended(world, WAREHOUSE, 1, other, view)))
    await purged(world)
    assert [file for file in world.metadata_files() if file in (other, view)] == sorted([other, view])
    assert "/warehouse/data/rows-1-1.parquet" not in world.disk.names()
    await world.another(5).views.load(Identifier(NS, "view"))


async def test_hazard_23_a_damaged_manifest_of_a_purged_table_does_not_block_other_purges() -> None:
    world = CatalogWorld()
    location, behind = await filled(world), await filled(world, "other")
    broken = f"{location}/metadata/manifest-1.avro"
    world.disk.remove(broken.removeprefix("file:"))
    world.write(broken, b"encrypted")
    for identifier in (TABLE, OTHER):
        await world.catalog.tables.drop(identifier, is_purging=True)
    world.clock.advance(HOUR)
    with capture_logs() as logs:
        await world.clean_up()
    assert (below(world, behind), await purges(world)) == ([], 0)
    left = [name for name in below(world, location) if not name.startswith("data/")]
    assert left == ["metadata/manifest-1.avro"], "only files that an unreadable manifest may name are left"
    assert [log["file"] for log in logs if log["log_level"] == "warning"] == [broken]


@pytest.mark.parametrize("what", ["list", "document"])
async def test_hazard_23_an_unreadable_purged_table_does_not_block_other_purges(what: str) -> None:
    world = CatalogWorld()
    location, behind = await filled(world), await filled(world, "other")
    last = (await world.catalog.tables.load(TABLE)).location
    broken = last if what == "document" else f"{location}/metadata/snap-1.avro"
    before = below(world, location)
    world.disk.remove(broken.removeprefix("file:"))
    world.write(broken, b"nothing of use")
    for identifier in (TABLE, OTHER):
        await world.catalog.tables.drop(identifier, is_purging=True)
    world.clock.advance(HOUR)
    await world.clean_up()
    assert (below(world, behind), await purges(world)) == ([], 0)
    assert (below(world, location) == before) is (what == "document")
    assert broken.removeprefix("file:") in world.disk.names()


async def test_hazard_23_purges_continue_after_one_whose_disk_does_not_answer() -> None:
    world = CatalogWorld()
    locations = [await filled(world), await filled(world, "other")]
    location, behind = sorted(
        locations, key=lambda table_location: table_location[-36:]
    )  # in the order of their UUIDs, as they are purged
    for identifier in (TABLE, OTHER):
        await world.catalog.tables.drop(identifier, is_purging=True)
    world.clock.advance(HOUR)
    manifests = FailingManifests(ManifestReader(files_on(world.disk), InlineOffload()), location)
    keeping = world.catalog.cleanup(manifests)
    with pytest.raises(errors.StorageUnavailable):
        assert [None async for _ in keeping.work()]
    assert (bool(below(world, location)), below(world, behind), await purges(world)) == (True, [], 1)
    manifests.away = "file:/nowhere"
    assert [None async for _ in keeping.work()]
    assert (below(world, location), await purges(world)) == ([], 0)


class FailingManifests:
    def __init__(self, inner: ManifestReader, away: str) -> None:
        self.inner, self.away = inner, away

    async def manifest_paths(self, manifest_list: str) -> list[str]:
        if manifest_list.startswith(self.away):
            raise errors.StorageUnavailable("away")
        return await self.inner.manifest_paths(manifest_list)

    async def file_paths(self, manifest: str) -> list[str]:
        return await self.inner.file_paths(manifest)


async def test_hazard_23_a_symlink_in_the_warehouse_leads_no_purge_outside(tmp_path: Path) -> None:
    """One link was there before the table, the other came later."""
    warehouse, log = tmp_path / "warehouse", tmp_path / "log"
    for folder in (warehouse, log):
        folder.mkdir()
    (warehouse / "x").symlink_to(log)
    (log / "log-1.wal").write_bytes(b"acked messages")
    clock = SimulatedClock()
    files = LocalFiles(open_inside([f"file:{warehouse}"]), InlineOffload())
    catalog = Catalog(MemoryStore(clock), files, clock, SeededRandomness(1), f"file:{warehouse}")
    await catalog.namespaces.create(NS, {})
    with pytest.raises(errors.InvalidInput, match="leads out of the warehouse"):
        await catalog.tables.create(OTHER, {"schema": SCHEMA, "location": f"file:{warehouse}/x"})
    location = (await catalog.tables.create(TABLE, {"schema": SCHEMA})).table.location
    home = Path(location.removeprefix("file:"))
    (home / "m.avro").write_bytes(manifest(f"{location}/data/log-1.wal"))
    (home / "s.avro").write_bytes(manifest_list(f"{location}/m.avro"))
    added = snapshot(1, **{"manifest-list": f"{location}/s.avro", "timestamp-ms": clock.wall_us() // 1000})
    await catalog.commits.commit(TABLE, CommitRequest([], [add(added)]))
    (home / "data").symlink_to(log)
    await catalog.tables.drop(TABLE, is_purging=True)
    clock.advance(HOUR)
    assert [None async for _ in catalog.cleanup(ManifestReader(files, InlineOffload())).work()]
    assert (log / "log-1.wal").read_bytes() == b"acked messages"
    assert [name for _, names, files in os.walk(home) for name in (*names, *files)] == ["data"], (
        "all files of the table itself were removed"
    )


# --- old metadata files, and those that nothing ever pointed to -------------------------------------------------------


def setting(value: str) -> CommitRequest:
    return CommitRequest([], [{"action": "set-properties", "updates": {"a": value}}])


async def left_over(world: CatalogWorld) -> str:
    """The file of a commit that ended in a crash: written, and never pointed to."""
    state = (await world.catalog.commits.load(TABLE)).state
    after = apply_updates(state.table, state.location, setting("lost").updates, world.clock.wall_us() // 1000)
    documents = world.catalog.commits._runner.documents
    location = await documents.write(after, after.properties, metadata_file.version_of(state.location) + 1)
    old_files(world.disk).add(location)
    return location


async def test_hazard_13_a_file_that_may_still_become_the_pointer_is_kept() -> None:
    world = CatalogWorld()
    await world.with_table()
    lost = await left_over(world)
    world.clock.advance(HOUR)
    await world.clean_up()
    assert lost in world.metadata_files(), "no newer commit exists: the commit that points to it may be in flight"


async def test_hazard_13_files_left_by_a_crash_are_removed_when_the_table_has_advanced() -> None:
    world = CatalogWorld()
    await world.with_table()
    lost = await left_over(world)
    new = await left_over(world)
    old_files(world.disk).discard(new)
    await world.catalog.commits.commit(TABLE, setting("b"))
    await world.catalog.commits.commit(TABLE, setting("c"))
    referenced = {*world.metadata_files()} - {lost}
    old_files(world.disk).update(referenced - {new})
    world.clock.advance(HOUR)
    await world.clean_up()
    assert {*world.metadata_files()} == referenced
    world.clock.advance(10 * HOUR)
    assert await world.clean_up() == 0, "once in a life"


async def test_hazard_13_files_of_other_catalogs_are_not_orphans() -> None:
    world = CatalogWorld()
    await world.with_table()
    loaded = await world.catalog.tables.load(TABLE)
    theirs = f"{loaded.table.location}/metadata/00000-9c12d441-03fe-4693-9a96-a0705ddf69c1.metadata.json"
    world.write(theirs, loaded.table.encode())
    await world.catalog.commits.commit(TABLE, setting("b"))
    old_files(world.disk).update(world.metadata_files())
    world.clock.advance(HOUR)
    await world.clean_up()
    assert theirs in world.metadata_files()


async def test_hazard_23_old_metadata_files_are_removed_only_if_the_table_properties_say_so() -> None:
    for says in ("true", "false"):
        world = CatalogWorld()
        name = "write.metadata.delete-after-commit.enabled"
        await world.with_table(properties={name: says, "write.metadata.previous-versions-max": "1"})
        for number in range(4):
            await world.catalog.commits.commit(TABLE, setting(str(number)))
        old_files(world.disk).update(world.metadata_files())
        assert len(world.metadata_files()) == 5
        reborn = world.cleanup_of(world.another(4))
        world.clock.advance(HOUR)
        assert [None async for _ in reborn.work()]
        assert len(world.metadata_files()) == (2 if says == "true" else 5)


async def test_hazard_13_orphans_are_removed_although_another_table_cannot_be_read() -> None:
    world = CatalogWorld()
    await world.with_table("a")
    broken = (await world.catalog.tables.load(Identifier(NS, "a"))).location
    world.disk.remove(broken.removeprefix("file:"))
    world.write(broken, b"nothing of use")
    await world.with_table()
    lost = await left_over(world)
    await world.catalog.commits.commit(TABLE, setting("b"))
    await world.catalog.commits.commit(TABLE, setting("c"))
    world.clock.advance(HOUR)
    with capture_logs() as logs:
        await world.clean_up()
    assert lost not in world.metadata_files()
    assert [log["table"] for log in logs if log["log_level"] == "warning"] == ["ns.a"]


@pytest.mark.parametrize("is_overwriting", [True, False])
async def test_hazard_23_metadata_files_from_before_a_rollback_are_not_orphans(is_overwriting: bool) -> None:
    """An operator registers an older version; the newer files are the only way forward again."""
    world = CatalogWorld()
    await world.with_table()
    versions = []
    for number in range(5):
        await world.catalog.commits.commit(TABLE, setting(str(number)))
        versions.append((await world.catalog.tables.load(TABLE)).location)
    if not is_overwriting:
        await world.catalog.tables.drop(TABLE)
    await world.catalog.tables.register(TABLE, versions[2], is_overwriting)
    renamed = Identifier(NS, "renamed")
    await world.catalog.commits.commit(TABLE, setting("x"))
    await world.catalog.tables.rename(TABLE, renamed)
    await world.catalog.commits.commit(renamed, setting("y"))
    old_files(world.disk).update(world.metadata_files())
    world.clock.advance(HOUR)
    await world.clean_up()
    assert [version for version in versions if version not in world.metadata_files()] == []


async def test_hazard_23_a_file_referenced_under_another_name_is_not_an_orphan() -> None:
    """Both go on from one file: each finds the other's in its place, of a version of its own history."""
    world = CatalogWorld()
    await world.with_table()
    await world.catalog.tables.register(OTHER, (await world.catalog.tables.load(TABLE)).location)
    for identifier in (TABLE, OTHER):
        await world.catalog.commits.commit(identifier, setting("a"))
        await world.catalog.commits.commit(identifier, setting("b"))
    old_files(world.disk).update(world.metadata_files())
    before = world.metadata_files()
    world.clock.advance(HOUR)
    await world.clean_up()
    assert world.metadata_files() == before


async def test_hazard_23_a_file_released_by_one_name_is_kept_while_another_references_it() -> None:
    says = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    world = CatalogWorld()
    await world.with_table(properties=says)
    shared = (await world.catalog.tables.load(TABLE)).location
    await world.catalog.tables.register(OTHER, shared)
    for number in range(4):
        await world.catalog.commits.commit(OTHER, setting(str(number)))
    before = len(world.metadata_files())
    world.clock.advance(HOUR)
    await world.clean_up()
    assert shared in world.metadata_files()
    assert len(world.metadata_files()) < before, "unreferenced files are removed"
    assert (await world.another(5).tables.load(TABLE)).location == shared


async def test_hazard_23_files_retired_by_another_process_are_removed_an_hour_later() -> None:
    """The pipeline commits in a process of its own, and may have ended since; the lake process cleans up."""
    says = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    world = CatalogWorld()
    await world.with_table(properties=says)
    pipeline = world.another(7)
    for number in range(4):
        await pipeline.commits.commit(TABLE, setting(str(number)))
    assert len(world.metadata_files()) == 5
    world.clock.advance(HOUR - 1)
    assert await world.clean_up() == 0, "an engine may still read them"
    world.clock.advance(1)
    await world.clean_up()
    assert len(world.metadata_files()) == 2
    assert await world.store.list_all(catalog_keys.RETIRED) == []
    assert (await world.another(8).tables.load(TABLE)).table.properties["a"] == "3"


async def test_hazard_23_the_orphan_scan_keeps_recently_retired_files() -> None:
    says = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    world = CatalogWorld()
    await world.with_table(properties=says)
    world.clock.advance(HOUR)
    for number in range(4):
        await world.catalog.commits.commit(TABLE, setting(str(number)))
    old_files(world.disk).update(world.metadata_files())
    await world.clean_up()
    assert len(world.metadata_files()) == 5, "written long ago, but part of the table until now"


async def test_hazard_28_records_of_retired_files_are_bounded_per_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CATALOG_RETIRED_SLOTS", 3)
    says = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    world = CatalogWorld()
    await world.with_table(properties=says)
    for number in range(9):
        await world.catalog.commits.commit(TABLE, setting(str(number)))
    assert len(await world.store.list_all(catalog_keys.RETIRED)) == 3


async def test_hazard_23_a_past_outside_of_the_warehouse_is_not_touched() -> None:
    """A client that can write a metadata file could name any file in its metadata log."""
    says = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    world = CatalogWorld()
    await world.with_table(properties=says)
    loaded = await world.catalog.tables.load(TABLE)
    outside = "file:/elsewhere/log-0000000000000001.wal"
    world.write(outside, b"the log")
    document = json.loads(loaded.table.encode())
    document["metadata-log"] = [{"timestamp-ms": document["last-updated-ms"], "metadata-file": outside}]
    theirs = f"{loaded.table.location}/metadata/00007-{'9' * 8}-03fe-4693-9a96-a0705ddf69c1.metadata.json"
    world.write(theirs, json.dumps(document).encode())
    await world.catalog.tables.drop(TABLE)
    await world.catalog.tables.register(OTHER, theirs)
    for number in range(3):
        await world.catalog.commits.commit(OTHER, setting(str(number)))
    world.clock.advance(HOUR)
    await world.clean_up()
    assert outside.removeprefix("file:") in world.disk.names()


# --- by itself --------------------------------------------------------------------------------------------------------


async def test_cleanup_sleeps_until_work_is_due_and_wakes_for_a_purge() -> None:
    world = CatalogWorld()
    location = await filled(world)
    task = asyncio.create_task(world.keeping.run())
    await asyncio.sleep(0)
    await world.catalog.tables.drop(TABLE, is_purging=True)
    for _ in range(200):
        await asyncio.sleep(0)
    assert below(world, location)
    for _ in range(200):
        world.clock.advance(60)
        for _ in range(20):
            await asyncio.sleep(0)
    assert below(world, location) == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_cleanup_retries_after_failures() -> None:
    store = FaultyStore(SimulatedClock())
    world = CatalogWorld(store)
    location = await filled(world)
    await world.catalog.tables.drop(TABLE, is_purging=True)
    world.clock.advance(HOUR)
    store.is_down = True
    task = asyncio.create_task(world.keeping.run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert below(world, location)
    store.is_down = False
    for _ in range(100):
        world.clock.advance(60)
        for _ in range(20):
            await asyncio.sleep(0)
    assert below(world, location) == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_only_empty_directories_are_removed(tmp_path: Path) -> None:
    files = LocalFiles(open_local, InlineOffload())
    (tmp_path / "t" / "data" / "day=1").mkdir(parents=True)
    (tmp_path / "t" / "metadata").mkdir()
    (tmp_path / "t" / "metadata" / "note").write_text("mine")
    await files.remove_empty(f"file:{tmp_path}/t")
    assert (tmp_path / "t" / "metadata" / "note").exists()
    assert not (tmp_path / "t" / "data").exists()
    assert [name for name, _ in await files.names(f"file:{tmp_path}/t/metadata")] == ["note"]
    (tmp_path / "t" / "metadata" / "note").unlink()
    await files.remove_empty(f"file:{tmp_path}/t")
    await files.remove_empty(f"file:{tmp_path}/t")
    assert not (tmp_path / "t").exists()
    assert await files.names(f"file:{tmp_path}/t") == []


async def test_an_invalid_manifest_is_reported_as_damaged() -> None:
    world = CatalogWorld()
    manifests = ManifestReader(files_on(world.disk), InlineOffload())
    wrong = [b"", b"Obj\x01", manifest("file:/a")[:-20], manifest_list("file:/a"), b"\x00" * 100]
    for number, data in enumerate(wrong):
        world.write(f"file:/warehouse/{number}.avro", data)
        with pytest.raises(errors.MetadataFileDamaged):
            await manifests.file_paths(f"file:/warehouse/{number}.avro")
    with pytest.raises(errors.MetadataFileMissing):
        await manifests.file_paths("file:/warehouse/none.avro")


async def test_a_v1_snapshot_lists_its_manifests_inline() -> None:
    world = CatalogWorld()
    await world.with_table(properties={"format-version": "1"})
    location = (await world.catalog.tables.load(TABLE)).table.location
    world.write(f"{location}/m.avro", manifest(f"{location}/rows.parquet"))
    world.write(f"{location}/rows.parquet")
    added = snapshot(1, **{"manifests": [f"{location}/m.avro"], "timestamp-ms": world.clock.wall_us() // 1000})
    del added["manifest-list"], added["sequence-number"]
    await world.catalog.commits.commit(TABLE, CommitRequest([], [add(added)]))
    await purged(world)
    assert below(world, location) == []
