"""Hazard 21 in another catalog: what an operator decides about a topic's table, and where the pipeline goes on then.

The catalog is used as a foreign catalog; driver, committer and operations are the real ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from pyiceberg.table import StaticTable

from icestream import errors
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, ShardLog, TopicLog
from icestream.catalog.topic_rules.removal import REMOVED
from icestream.catalogs.table_catalog import CommitDone, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.snapshots import MAIN
from icestream.lake.foreign_operations import ForeignOperations
from icestream.runtime.tasks import InlineOffload
from tests.support.pipeline_harness import PipelineHarness

pytestmark = pytest.mark.asyncio
TABLE, OTHER = Identifier(("default",), "t1"), Identifier(("default",), "other")


class ForeignCatalogWorld:
    def __init__(self, folder: Path) -> None:
        self.pipeline = PipelineHarness(folder, is_foreign=True)
        world = self.pipeline.world
        self.catalog, self.broker, self.store = world.catalog, self.pipeline.broker, world.store
        avro = ManifestReader(world.files, InlineOffload())
        self.operations = ForeignOperations(world.store, self.catalog, avro, world.clock, None)
        self.earliest = 0  # in the log

    async def log(self, topic_id: int = 1) -> TopicLog:
        shards = {
            shard: ShardLog(0, min(self.earliest, end), end)
            for (topic, shard), end in self.broker.synced.items()
            if topic == topic_id
        }
        return TopicLog(self.broker.names[topic_id], topic_id, shards)

    async def publish(self, rows: int, topic_id: int = 1) -> None:
        """One round; a driver whose plan was overtaken needs another (`go_on`)."""
        self.broker.publish(topic_id, rows)
        self.pipeline.topics.halted.clear()  # as if the time until the next look were over
        await self.pipeline.round()

    async def go_on(self) -> None:
        await self.publish(0)

    async def rounds(self, count: int = 3) -> None:
        """Four rows each."""
        for _ in range(count):
            await self.publish(4)

    async def rows(self, name: Identifier = TABLE) -> list[int]:
        loaded = await self.catalog.load(name)
        rows = StaticTable.from_metadata(loaded.metadata_location or "").scan(selected_fields=("offset",)).to_arrow()
        return sorted(rows["offset"].to_pylist())

    async def snapshots(self) -> list[dict[str, Any]]:
        return list((await self.catalog.load(TABLE)).metadata["snapshots"])

    async def roll_back(self, number: int) -> None:
        point = {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch"}
        point["snapshot-id"] = (await self.snapshots())[number]["snapshot-id"]
        assert isinstance(await self.catalog.commit(TABLE, TableChange([], [point])), CommitDone)

    async def rewind(self, *consents: Consent, snapshot: int | None = None, is_dry: bool = False) -> OperationPreview:
        return await self.operations.rewind(TABLE, self.log, consents, snapshot, is_dry)

    async def adopt(
        self, name: Identifier, *consents: Consent, positions: dict[int, int] | None = None
    ) -> OperationPreview:
        return await self.operations.adopt(name, self.log, consents, positions, False)

    def stopped(self) -> list[str]:
        return [topic.stopped.reason for topic in self.pipeline.topics.halted.values()]


@pytest_asyncio.fixture
async def lake(tmp_path: Path) -> AsyncIterator[ForeignCatalogWorld]:
    world = ForeignCatalogWorld(tmp_path / "w")
    yield world
    await world.pipeline.close()


async def test_hazard_21_a_rollback_stops_the_topic_until_it_is_rewound(lake: ForeignCatalogWorld) -> None:
    await lake.rounds()
    await lake.roll_back(0)
    await lake.publish(4)
    assert "main holds shard 0 up to 4, and 12 was committed" in lake.stopped()[0]
    report = await lake.rewind(is_dry=True)
    assert [(shard.goes_on_at, shard.written_again) for shard in report.shards] == [(4, (4, 12))]
    await lake.publish(0)
    assert lake.stopped(), "a dry run changes nothing"
    await lake.rewind()
    await lake.publish(4)
    assert (lake.stopped(), await lake.rows()) == ([], list(range(20)))


async def test_hazard_21_offsets_missing_in_the_log_are_a_gap_that_needs_consent(lake: ForeignCatalogWorld) -> None:
    await lake.rounds()
    await lake.roll_back(0)
    lake.earliest = 6
    with pytest.raises(errors.TopicTableConflict, match="offsets 4 to 5 of shard 0"):
        await lake.rewind()
    await lake.rewind(Consent.GAP)
    await lake.publish(4)
    await lake.go_on()
    assert await lake.rows() == [0, 1, 2, 3, *range(6, 16)]
    assert '"rewind"' in (await lake.snapshots())[-1]["summary"][REMOVED], "every later snapshot says what is missing"
    await lake.publish(4)
    assert '"rewind"' in (await lake.snapshots())[-1]["summary"][REMOVED]


async def test_hazard_21_an_accepted_rollback_is_kept(lake: ForeignCatalogWorld) -> None:
    await lake.rounds()
    await lake.roll_back(0)
    await lake.publish(4)
    assert lake.stopped()
    await lake.adopt(TABLE, Consent.DUPLICATES, positions={0: 12})
    await lake.publish(4)
    assert (lake.stopped(), await lake.rows()) == ([], [0, 1, 2, 3, *range(12, 20)])


async def test_hazard_21_rewinding_moves_main_and_the_topic_together(lake: ForeignCatalogWorld) -> None:
    await lake.rounds()
    first = (await lake.snapshots())[0]["snapshot-id"]
    report = await lake.rewind(snapshot=first)
    assert report.changes
    assert await lake.rows() == list(range(4))
    await lake.publish(4)
    assert await lake.rows() == list(range(4)), "the driver had planned on the main of before"
    await lake.go_on()
    assert await lake.rows() == list(range(16))
    assert await lake.rewind() == await lake.rewind(is_dry=True), "nothing is left to do"


@pytest.mark.wrong_tables("rows come twice, as was agreed")
async def test_hazard_21_foreign_rows_need_consent_and_stop_no_later_round(lake: ForeignCatalogWorld) -> None:
    await lake.rounds(1)
    table = await lake.pipeline.world.books.refresh(lake.pipeline.topics[1])
    foreign = lake.pipeline.world.brought(table, 40)
    await lake.pipeline.world.commit(foreign._replace(table=table))
    metadata = (await lake.catalog.load(TABLE)).metadata
    metadata["snapshots"][-1]["summary"] = {"operation": "append", "added-records": "40"}
    await lake.catalog.drop(TABLE)
    await recreate_with(lake, metadata)
    lake.pipeline.topics.mark_stale([1])
    await lake.publish(4)
    assert "a row of offset 43, and 4 is what comes next" in lake.stopped()[0]
    with pytest.raises(errors.TopicTableConflict, match="rows may be written twice"):
        await lake.adopt(TABLE)
    await lake.adopt(TABLE, Consent.DUPLICATES)
    await lake.publish(4)
    assert lake.stopped() == []
    assert (await lake.rows()).count(5) == 2, "the duplicates were accepted by consent"


async def recreate_with(lake: ForeignCatalogWorld, metadata: dict[str, Any]) -> None:
    """The same table, as another engine would have left it."""
    place = Path(metadata["location"].removeprefix("file:")) / "metadata" / "00099-theirs.metadata.json"
    place.write_bytes(orjson.dumps(metadata))
    await lake.pipeline.world.making.tables.register(TABLE, f"file:{place}")


async def test_hazard_21_a_detached_table_gets_no_rows_until_it_is_adopted(lake: ForeignCatalogWorld) -> None:
    await lake.rounds()
    await lake.operations.detach(TABLE)
    with pytest.raises(errors.TopicTableConflict, match="belongs to no topic"):
        await lake.operations.detach(TABLE)
    with pytest.raises(errors.TopicTableConflict, match="belongs to no topic"):
        await lake.rewind()
    lake.pipeline.topics.mark_stale([1])
    await lake.publish(4)
    assert "was detached from its table default.t1" in lake.stopped()[0]
    assert lake.broker.floors == {(1, 0): 12}, "the messages stay in the log"
    report = await lake.adopt(TABLE)
    assert [(shard.goes_on_at, shard.missing) for shard in report.shards] == [(12, None)]
    await lake.publish(4)
    assert (lake.stopped(), await lake.rows()) == ([], list(range(20)))


async def test_hazard_21_a_round_that_lands_beside_an_operation_does_not_count_for_the_log(
    lake: ForeignCatalogWorld,
) -> None:
    """The round's rows are in the old table, and the log brings them to the new one."""
    await lake.rounds()
    await lake.catalog.create(OTHER, {"schema": topic_schema.new_schema(), "properties": {"format-version": "2"}})

    def meanwhile() -> None:
        lake.pipeline.writer.between = lambda: None
        decide(lake)

    lake.pipeline.writer.between = meanwhile
    await lake.publish(4)
    assert lake.broker.floors == {(1, 0): 12}
    assert await lake.rows() == list(range(16)), "the round was committed to the table that the driver knew"
    await lake.publish(4)
    assert await lake.rows(OTHER) == list(range(20))
    assert lake.broker.floors == {(1, 0): 20}


def decide(lake: ForeignCatalogWorld) -> None:
    """While the driver waits for its writer."""

    async def both() -> None:
        await lake.operations.detach(TABLE)
        await lake.operations.bind(OTHER, lake.log, [], False)

    thread = threading.Thread(target=lambda: asyncio.run(both()))
    thread.start()
    thread.join()


async def test_hazard_21_a_dropped_table_is_created_again(lake: ForeignCatalogWorld) -> None:
    await lake.rounds()
    with pytest.raises(errors.AlreadyExists, match="it is readable"):
        await lake.operations.recreate(None, lake.log, [], False)
    await lake.catalog.drop(TABLE)
    await lake.publish(4)
    await lake.go_on()
    assert lake.stopped()
    lake.earliest = 2
    with pytest.raises(errors.TopicTableConflict, match="offsets 0 to 1 of shard 0"):
        await lake.operations.recreate(None, lake.log, [], False)
    name, report = await lake.operations.recreate(None, lake.log, [Consent.GAP], False)
    assert (name, [shard.goes_on_at for shard in report.shards]) == (TABLE, [2])
    await lake.publish(4)
    assert (lake.stopped(), await lake.rows()) == ([], list(range(2, 20)))


async def test_hazard_21_an_existing_table_of_the_name_is_not_overwritten(lake: ForeignCatalogWorld) -> None:
    await lake.rounds(1)
    await lake.catalog.drop(TABLE)
    await lake.catalog.create(TABLE, {"schema": topic_schema.new_schema()})
    await lake.publish(4)
    assert "another table" in lake.stopped()[0]
    with pytest.raises(errors.TopicTableConflict, match="another table"):
        await lake.rewind()
    with pytest.raises(errors.AlreadyExists, match=r"there is a table default\.t1 already"):
        await lake.operations.recreate(None, lake.log, [], False)
    await lake.operations.recreate(OTHER, lake.log, [], False)
    await lake.publish(4)
    assert await lake.rows(OTHER) == list(range(12))


async def test_hazard_21_a_table_belongs_to_one_topic_and_a_topic_has_one_table(lake: ForeignCatalogWorld) -> None:
    await lake.rounds(1)
    await lake.publish(4, 2)
    await lake.catalog.create(OTHER, {"schema": topic_schema.new_schema()})
    with pytest.raises(errors.AlreadyExists, match=r"topic /default/t1 has the table default\.t1"):
        await lake.operations.bind(OTHER, lake.log, [], False)
    with pytest.raises(errors.AlreadyExists, match=r"belongs to topic /default/t2 \(id 2\)"):
        await lake.adopt(Identifier(("default",), "t2"))
    with pytest.raises(errors.UnknownTable):
        await lake.adopt(Identifier(("default",), "none"))
    assert await lake.operations.owner(TABLE) == ("/default/t1", 1)
    assert await lake.operations.owner(OTHER) is None


async def test_hazard_21_positions_given_by_an_operator_apply_to_one_snapshot(lake: ForeignCatalogWorld) -> None:
    """A table from elsewhere: no snapshot of it speaks of this topic."""
    await lake.rounds(1)
    await lake.publish(8, 2)
    await lake.operations.detach(TABLE)
    theirs = Identifier(("default",), "t2")
    await lake.operations.detach(theirs)
    lake.broker.synced[1, 0] = 9
    with pytest.raises(errors.TopicTableConflict, match="no snapshot in the history"):
        await lake.adopt(theirs)
    with pytest.raises(errors.TopicTableConflict, match="rows may be written twice"):
        await lake.adopt(theirs, positions={0: 8})
    with pytest.raises(errors.TopicTableConflict, match="never committed"):
        await lake.adopt(theirs, Consent.DUPLICATES, positions={0: 8})
    await lake.adopt(theirs, Consent.DUPLICATES, Consent.GAP, positions={0: 8})
    lake.pipeline.topics.mark_stale([1])
    await lake.publish(3)
    assert (lake.stopped(), await lake.rows(theirs)) == ([], [*range(8), *range(8, 12)])
