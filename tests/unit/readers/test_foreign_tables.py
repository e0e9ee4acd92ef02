"""Tables of topics in a catalog that is not ours: our own commits are told by a watch, those of others are looked for
now and then, and what cannot be right stops the reader with the reason."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalogs.mirror import ForeignTableRecord
from icestream.catalogs.table_catalog import CommitDone, LoadedTable, TableChange
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.model.scan_messages import ScanKind, ScanRequest, ScanResponse
from icestream.pipeline.commit.snapshot_builder import build_snapshot
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.readers.file_reader import FileReader
from icestream.readers.foreign_table_views import ForeignTableViews
from icestream.readers.lazy_scanner import file_opener
from icestream.readers.row_group_cache import open_row_group_cache
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.scanner import Scanner
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.stored_files import StoredFiles
from icestream.readers.table_views import DetachedTopic
from icestream.readers.verify.verifier import Verifier
from icestream.readers.verify.verify_report import ShardLogState, Weight
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.tasks import InlineOffload
from tests.support.broker_machine import quiet
from tests.support.faulty_catalog import FaultyCatalog
from tests.support.pipeline_harness import PipelineHarness

pytestmark = pytest.mark.asyncio
NAME = Identifier(("default",), "t1")


class ForeignWorld:
    def __init__(self, folder: Path) -> None:
        self.pipeline = PipelineHarness(folder, is_foreign=True)
        self.broker, world = self.pipeline.broker, self.pipeline.world
        self.store, self.files = world.store, world.files
        self.clock = SimulatedClock()  # of the readers
        self.catalog = FaultyCatalog(world.catalog)
        self.avro = ManifestReader(self.files, InlineOffload())
        self.tables = ForeignTableViews(self.store, self.catalog, SnapshotReader(self.avro), self.clock)
        self.reader = FileReader(file_opener(self.files), open_row_group_cache(RowGroupCacheOptions()))
        self.scanner = Scanner(self.tables, self.reader, InlineOffload())
        self.watching = asyncio.create_task(self.tables.run())

    async def commit(self, rows: int = 4) -> None:
        self.broker.publish(1, rows)
        await self.pipeline.round()
        await quiet()

    async def read(self, offset: int = 0) -> ScanResponse:
        return await self.scanner.answer(ScanRequest(1, ScanKind.READ, "/default/t1", 1, 0, offset, 1 << 20))

    async def change(self, updates: list[Any]) -> None:
        """Commits updates as another engine does."""
        assert isinstance(await self.catalog.inner.commit(NAME, TableChange([], updates)), CommitDone)

    async def delete_first_round(self) -> None:
        table = tables.load((await self.catalog.inner.load(NAME)).metadata)
        manifests = (await ManifestCache(self.avro).current_manifests(table))[:-1]
        summary = {"operation": "delete", "deleted-records": "4"}
        built = build_snapshot(
            table, manifests, [], {}, uuid.uuid4().int >> 66, 0, uuid.uuid4().bytes, 1, TagRetention(), summary
        )  # fmt: skip
        for file in built.files:
            await self.files.create(file.location, file.chunks)
        await self.change(built.updates)

    async def roll_back(self) -> None:
        first = (await self.catalog.inner.load(NAME)).metadata["snapshots"][0]["snapshot-id"]
        await self.change([{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first}])

    async def verified(self, deep: bool = True) -> list[tuple[str, Weight, int, int]]:
        view = await self.tables.fresh(1)
        assert view is not None
        log = {0: ShardLogState(0, self.broker.synced[1, 0])}
        findings = Verifier(view, self.reader, StoredFiles(file_opener(self.files)), log).verify(deep).findings
        return [(finding.check, finding.weight, finding.start, finding.end) for finding in findings]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[ForeignWorld]:
    foreign_world = ForeignWorld(tmp_path / "w")
    yield foreign_world
    foreign_world.watching.cancel()
    await asyncio.gather(foreign_world.watching, return_exceptions=True)
    await foreign_world.pipeline.close()


def payloads(response: ScanResponse) -> list[tuple[int, int]]:
    return [(section.base_offset, section.base_offset + section.rows) for section in response.sections]


async def test_a_topic_without_a_table_has_no_view(world: ForeignWorld) -> None:
    assert await world.read() == ScanResponse()
    assert await world.tables.bound_topics("", 10) == ([], None)


async def test_our_commits_are_notified_without_loads(world: ForeignWorld) -> None:
    await world.commit()
    assert payloads(await world.read()) == [(0, 4)]
    await quiet()  # the watch has begun
    assert payloads(await world.read()) == [(0, 4)]
    loads = world.catalog.loads
    for _ in range(50):
        await world.read()
    assert world.catalog.loads == loads, "a view is reused until a newer commit is known"
    await world.commit()
    assert payloads(await world.read(4)) == [(4, 8)]
    assert (await world.read()).end == 8
    assert world.catalog.loads == loads + 1
    ((bound,), after) = await world.tables.bound_topics("", 10)
    assert ((bound.topic, bound.topic_id), after) == (("/default/t1", 1), None)


@pytest.mark.wrong_tables("one note of a table is damaged")
async def test_an_unreadable_note_does_not_hide_the_others(world: ForeignWorld) -> None:
    await world.commit()
    parted = ForeignTableRecord(["a"], "b", "u", {0: 7}, topic="/default/parted", is_detached=True)
    await world.store.put(foreign_table_key(7), msgspec.json.encode(parted))
    await world.store.put(foreign_table_key(8), b"nothing")
    bindings, after = await world.tables.bound_topics("", 10)
    assert ([(binding.topic, binding.problem is None) for binding in bindings], after) == (
        [("/default/t1", True), ("?", False)],
        None,
    )
    assert f"{foreign_table_key(8)} in the metadata store is not a mirror" in str(bindings[1].problem)
    had = DetachedTopic("/default/parted", 7, "a.b", {0: 7})
    assert await world.tables.detached_topics("", 10) == ([had], None)
    assert [await world.tables.detached_topic(number) for number in (1, 7, 8, 9)] == [None, had, None, None]


async def test_foreign_commits_are_visible_after_a_while(world: ForeignWorld) -> None:
    for _ in range(2):
        await world.commit()
    await world.read()
    await quiet()
    await world.read()
    loads = world.catalog.loads
    await world.delete_first_round()
    assert payloads(await world.read()) == [(0, 4)], "believed for a while"
    world.clock.advance(limits.SCAN_FOREIGN_VIEW_SECONDS)
    await quiet()
    assert world.catalog.loads == loads, "without a request nothing is loaded"
    responses = await asyncio.gather(*(world.read() for _ in range(10)))
    assert {tuple(payloads(response)) for response in responses} == {((4, 8),)}
    assert [(gap.start, gap.end) for gap in responses[0].missing] == [(0, 4)]
    assert "delete" in responses[0].missing[0].reason
    assert world.catalog.loads == loads + 1, "one of them asked for all"


async def test_rows_deleted_by_an_engine_stay_known_after_later_rounds(world: ForeignWorld) -> None:
    for _ in range(2):
        await world.commit()
    await world.delete_first_round()
    for _ in range(2):
        await world.commit()
    response = await world.read()
    assert [(gap.start, gap.end) for gap in response.missing] == [(0, 4)]
    assert "delete" in response.missing[0].reason
    for deep in (False, True):
        assert await world.verified(deep) == [("dense", Weight.KNOWN, 0, 4)]


async def test_a_commit_that_was_not_noted_is_read_all_the_same(world: ForeignWorld) -> None:
    await world.commit()
    before = await world.store.get(foreign_table_key(1))
    assert before is not None
    await world.commit()
    await world.store.put(foreign_table_key(1), before.value)
    assert (await world.read()).end == 8
    assert await world.verified() == []


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
async def test_a_rollback_is_a_gap_for_readers_and_red_for_verify(world: ForeignWorld) -> None:
    for _ in range(2):
        await world.commit()
    await world.roll_back()
    response = await world.read()
    assert (payloads(response), response.end) == ([(0, 4)], 8)
    response = await world.read(4)
    assert [(gap.start, gap.end) for gap in response.missing] == [(4, 8)]
    assert "rollback" in response.missing[0].reason
    assert ("property", Weight.WRONG, 4, 8) in await world.verified()


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_missing_or_recreated_table_stops_the_reader(world: ForeignWorld, is_made_again: bool) -> None:
    await world.commit()
    table = (await world.catalog.inner.load(NAME)).metadata
    await world.catalog.inner.drop(NAME)
    if is_made_again:
        await world.catalog.inner.create(NAME, {"schema": table["schemas"][0]})
    with pytest.raises(
        errors.TableUnreadable, match="another UUID" if is_made_again else "it does not exist"
    ) as caught:
        await world.read()
    assert "recreate" in caught.value.hint


async def test_a_snapshot_expired_by_others_is_still_a_start_position(world: ForeignWorld) -> None:
    """A foreign catalog does not report expiry: the offsets were recorded with the note of the commit."""
    for _ in range(3):
        await world.commit()
    first, second, last = [
        entry["snapshot-id"] for entry in (await world.catalog.inner.load(NAME)).metadata["snapshots"]
    ]
    await world.change([{"action": "remove-snapshots", "snapshot-ids": [first, second]}])
    offsets = []
    for snapshot_id in (first, second, last):
        request = ScanRequest(1, ScanKind.SNAPSHOT, "/default/t1", 1, 0, snapshot_id, 0)
        offsets.append((await world.scanner.answer(request)).offset)
    assert offsets == [4, 8, 12]


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
async def test_an_invalid_note_is_reported(world: ForeignWorld) -> None:
    await world.store.put(foreign_table_key(1), b"{}")
    with pytest.raises(errors.MetadataDamaged, match="not a mirror"):
        await world.read()


async def test_a_commit_while_the_table_is_loaded_is_not_missed(world: ForeignWorld) -> None:
    await world.commit()
    await world.read()
    await quiet()
    loading = asyncio.Event()
    going_on = asyncio.Event()
    load = world.catalog.inner.load

    async def slow(identifier: Identifier) -> LoadedTable:
        loaded = await load(identifier)
        loading.set()
        await going_on.wait()
        return loaded

    world.catalog.load = slow  # type: ignore[method-assign]
    asking = asyncio.create_task(world.tables.fresh(1))
    await loading.wait()
    await world.commit()
    going_on.set()
    view = await asking
    assert view is not None
    assert view.end(0) == 4
    view = await world.tables.view(1)
    assert view is not None
    assert view.end(0) == 8
