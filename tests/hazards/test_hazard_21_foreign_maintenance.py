"""Hazard 21 in another catalog: maintenance of a quiet table takes the snapshots of our rounds away, and the topic goes
on. What merely looks like it (a rollback, rows of others, a fresh table) still stops it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from pyiceberg.table import StaticTable

from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.catalogs.table_catalog import CommitDone, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.snapshots import MAIN
from tests.support.pipeline_harness import PipelineHarness

pytestmark = pytest.mark.asyncio
TABLE = Identifier(("default",), "t1")
IDS = count(1_000)


class MaintainedTable:
    """Two rounds of five rows, in a table that others keep in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipeline = PipelineHarness(folder, is_foreign=True)
        self.catalog, self.broker = self.pipeline.world.catalog, self.pipeline.broker

    async def publish(self, rows: int = 5) -> None:
        self.broker.publish(1, rows)
        self.pipeline.topics.halted.clear()
        await self.pipeline.round()

    async def restart(self) -> None:
        """A driver that knows nothing but what is stored."""
        await self.pipeline.close()
        store = self.pipeline.world.store
        self.pipeline = PipelineHarness(self.folder, self.broker, is_foreign=True, store=store, owner="next")

    async def metadata(self) -> dict[str, Any]:
        return (await self.catalog.load(TABLE)).metadata

    async def change(self, *updates: dict[str, Any]) -> None:
        assert isinstance(await self.catalog.commit(TABLE, TableChange([], list(updates))), CommitDone)

    def move_main(self, snapshot_id: int) -> dict[str, Any]:
        return {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": snapshot_id}

    async def rewrite(self, rows: int | None, operation: str = "replace") -> None:
        """A snapshot of others on main, of the same files."""
        metadata = await self.metadata()
        main, by_id = metadata["current-snapshot-id"], {entry["snapshot-id"]: entry for entry in metadata["snapshots"]}
        total = {} if rows is None else {"total-records": str(rows)}
        added = by_id[main] | {
            "snapshot-id": next(IDS),
            "parent-snapshot-id": main,
            "sequence-number": metadata["last-sequence-number"] + 1,
            "timestamp-ms": metadata["last-updated-ms"] + 1,
            "summary": {"operation": operation, "added-records": "5", "deleted-records": "5", **total},
        }
        await self.change({"action": "add-snapshot", "snapshot": added}, self.move_main(added["snapshot-id"]))

    async def expire(self) -> None:
        """Expires all snapshots but the current one."""
        metadata = await self.metadata()
        gone = [
            entry["snapshot-id"]
            for entry in metadata["snapshots"]
            if entry["snapshot-id"] != metadata["current-snapshot-id"]
        ]
        await self.change({"action": "remove-snapshots", "snapshot-ids": gone})

    async def offsets(self) -> list[int]:
        loaded = await self.catalog.load(TABLE)
        rows = StaticTable.from_metadata(loaded.metadata_location or "").scan(selected_fields=("offset",)).to_arrow()
        return sorted(rows["offset"].to_pylist())

    async def mirror(self) -> ForeignTableRecord:
        entry = await self.pipeline.world.store.get(foreign_table_key(1))
        assert entry is not None
        return decode_foreign_table("m", entry)

    def stopped(self) -> list[str]:
        return [topic.stopped.reason for topic in self.pipeline.topics.halted.values()]


@pytest_asyncio.fixture
async def lake(tmp_path: Path) -> AsyncIterator[MaintainedTable]:
    maintained = MaintainedTable(tmp_path / "w")
    await maintained.publish()
    await maintained.publish()
    yield maintained
    await maintained.pipeline.close()


async def check_goes_on(lake: MaintainedTable) -> None:
    await lake.publish()
    assert (lake.stopped(), lake.broker.floors) == ([], {(1, 0): 15})
    assert await lake.offsets() == list(range(15)), "each once"
    assert (await lake.mirror()).removals == (), "nothing is missing, and no removal is recorded"


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_hazard_21_foreign_compaction_and_expiry_do_not_stop_ingest(
    lake: MaintainedTable, is_restarted: bool
) -> None:
    await lake.rewrite(rows=None)
    await lake.expire()
    if is_restarted:
        await lake.restart()
    await check_goes_on(lake)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_hazard_21_several_rewrites_of_which_only_the_last_is_left_do_not_stop_ingest(
    lake: MaintainedTable, is_restarted: bool
) -> None:
    for _ in range(3):
        await lake.rewrite(rows=10)
        await lake.expire()
    if is_restarted:
        await lake.restart()
    await check_goes_on(lake)


async def test_hazard_21_maintenance_after_a_late_position_note_does_not_stop_ingest(lake: MaintainedTable) -> None:
    """The note of the last commit was lost; a look mended it, and speaks of the main that it saw."""
    store, before = lake.pipeline.world.store, await lake.mirror()
    await lake.publish()
    await store.put(foreign_table_key(1), msgspec.json.encode(before))
    await lake.restart()
    lake.broker.floors[1, 0] = 10
    await lake.pipeline.round()
    mended = await lake.mirror()
    assert (before.committed, mended.committed) == ({0: 10}, {0: 15})
    assert (mended.snapshot_id, mended.rows) == ((await lake.metadata())["current-snapshot-id"], 15)


# --- what looks like it -----------------------------------------------------------------------------------------------


async def check_stops(lake: MaintainedTable) -> None:
    for _ in range(2):  # a driver that knows the table, and one that does not
        await lake.publish()
        assert "no snapshot in the history of main records" in lake.stopped()[0]
        await lake.restart()
    assert lake.broker.floors == {(1, 0): 10}


async def roll_back(lake: MaintainedTable) -> None:
    first = (await lake.metadata())["snapshots"][0]["snapshot-id"]
    await lake.change(lake.move_main(first))


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
@pytest.mark.parametrize("rows", [5, None])
async def test_hazard_21_a_rollback_under_a_compaction_still_stops(lake: MaintainedTable, rows: int | None) -> None:
    await roll_back(lake)
    for _ in range(2):
        await lake.rewrite(rows)
        await lake.expire()
    await check_stops(lake)


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
async def test_hazard_21_a_rollback_to_a_compaction_from_before_still_stops(tmp_path: Path) -> None:
    lake = MaintainedTable(tmp_path / "other")
    await lake.publish()
    await lake.rewrite(5)
    compacted = (await lake.metadata())["current-snapshot-id"]
    await lake.publish()
    await lake.change(lake.move_main(compacted))
    await lake.expire()
    await check_stops(lake)
    await lake.pipeline.close()


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
async def test_hazard_21_foreign_rows_before_a_compaction_stop_ingest(lake: MaintainedTable) -> None:
    await lake.rewrite(12, "append")
    await lake.rewrite(12)
    await lake.expire()
    await check_stops(lake)


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
@pytest.mark.parametrize("operation", ["delete", "overwrite", "append"])
async def test_hazard_21_changes_that_are_no_rewrite_stop_ingest(lake: MaintainedTable, operation: str) -> None:
    await lake.rewrite(10, operation)
    await lake.expire()
    await check_stops(lake)


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
async def test_hazard_21_rewrites_without_row_counts_stop_ingest(lake: MaintainedTable) -> None:
    for _ in range(2):
        await lake.rewrite(rows=None)
        await lake.expire()
    await check_stops(lake)


@pytest.mark.wrong_tables("a foreign catalog does not protect it")
async def test_hazard_21_a_new_table_of_the_same_name_stops_ingest(lake: MaintainedTable) -> None:
    metadata = await lake.metadata()
    await lake.catalog.drop(TABLE)
    await lake.catalog.create(TABLE, {"schema": metadata["schemas"][0]})
    for _ in range(2):
        await lake.publish()
        assert "it is another table" in lake.stopped()[0]
        await lake.restart()
    assert lake.broker.floors == {(1, 0): 10}
