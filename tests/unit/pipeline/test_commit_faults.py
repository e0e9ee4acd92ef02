"""Rounds against a catalog that loses answers, is away, or is changed by others: our own, and another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pyiceberg.table import StaticTable

from icestream import errors
from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.catalogs.table_catalog import TableCatalog, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.pipeline.tables.foreign_position import TableProgress, next_offsets_of
from tests.support.faulty_catalog import FaultyCatalog
from tests.support.pipeline_harness import PipelineHarness

NAME = Identifier(("default",), "t1")


class FaultyCommitRun:
    def __init__(self, folder: Path, is_foreign: bool, **shared: Any) -> None:
        self.pipeline = PipelineHarness(folder, wrap=self._wrapped, is_foreign=is_foreign, **shared)
        self.broker = self.pipeline.broker

    def _wrapped(self, inner: TableCatalog) -> FaultyCatalog:
        self.catalog = FaultyCatalog(inner)
        return self.catalog

    async def rows(self, name: Identifier = NAME) -> list[int]:
        loaded = await self.catalog.load(name)
        table = StaticTable.from_metadata(loaded.metadata_location or "").scan(selected_fields=("offset",)).to_arrow()
        return sorted(table["offset"].to_pylist())


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultyCommitRun]:
    commit_run = FaultyCommitRun(tmp_path / "w", request.param)
    yield commit_run
    await commit_run.pipeline.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["lost", "unknown", "conflict", "unavailable"])
async def test_each_offset_is_committed_once_whatever_the_outcome(run: FaultyCommitRun, fault: str) -> None:
    run.broker.publish(1, 5)
    await run.pipeline.round()
    run.broker.publish(1, 5)
    run.catalog.faults = [fault]
    await run.pipeline.round()
    run.pipeline.pass_pauses()
    run.broker.publish(1, 5)
    await run.pipeline.round()
    await run.pipeline.round()
    assert await run.rows() == list(range(15))
    assert run.broker.floors == {(1, 0): 15}


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["lost", "unknown", "conflict"])
async def test_a_refused_layout_change_is_retried(run: FaultyCommitRun, fault: str) -> None:
    run.broker.publish(1, 5)
    await run.pipeline.round()
    run.broker.policies[1] = {"partitioning": "day", "compression": "gzip:6"}
    run.catalog.faults = [fault]
    for _ in range(2):
        run.broker.publish(1, 5)
        await run.pipeline.round()
    table = StaticTable.from_metadata((await run.catalog.load(NAME)).metadata_location or "")
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    assert table.properties["write.parquet.compression-codec"] == "gzip"
    assert await run.rows() == list(range(15))


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["lost", "first refused", "all bystanders", "unavailable", "invalid"])
async def test_tables_of_one_commit_are_judged_separately(tmp_path: Path, fault: str) -> None:
    run = FaultyCommitRun(tmp_path / "w", is_foreign=False)
    for topic in (1, 2, 3):
        run.broker.publish(topic, 4)
    run.catalog.faults = [fault]
    await run.pipeline.round()
    run.pipeline.pass_pauses()
    await run.pipeline.round()
    for topic in (1, 2, 3):
        assert await run.rows(Identifier(("default",), f"t{topic}")) == list(range(4))
    assert set(run.broker.floors.values()) == {4}
    await run.pipeline.close()


@pytest.mark.asyncio
async def test_a_missing_table_stops_only_its_topic(tmp_path: Path) -> None:
    """A table that is reported missing is read again before its topic halts: here it existed all the time."""
    run = FaultyCommitRun(tmp_path / "w", is_foreign=True)
    for topic in (1, 2):
        run.broker.publish(topic, 4)
    run.catalog.faults = ["unknown table"]
    await run.pipeline.round()
    assert run.broker.floors == {(1, 0): 0, (2, 0): 4}
    await run.pipeline.round()
    assert run.broker.floors == {(1, 0): 4, (2, 0): 4}
    assert run.pipeline.topics.halted == {}
    await run.pipeline.close()


@pytest.mark.asyncio
async def test_a_driver_that_ended_before_it_noted_its_commit_is_followed(tmp_path: Path) -> None:
    run = FaultyCommitRun(tmp_path / "w", is_foreign=True)
    run.broker.publish(1, 4)
    await run.pipeline.round()
    store = run.pipeline.world.store
    before = await store.get(foreign_table_key(1))
    assert before is not None
    run.broker.publish(1, 4)
    await run.pipeline.round()
    await store.put(foreign_table_key(1), before.value)
    run.broker.floors[1, 0] = 4
    again = FaultyCommitRun(tmp_path / "w", is_foreign=True, broker=run.broker, store=store)
    await run.pipeline.close()
    await again.pipeline.round()
    mended = await store.get(foreign_table_key(1))
    assert mended is not None
    assert decode_foreign_table(foreign_table_key(1), mended).committed == {0: 8}, "readers know the table by it"
    again.broker.publish(1, 1)
    await again.pipeline.round()
    assert await again.rows() == list(range(9))
    await again.pipeline.close()


@pytest.mark.wrong_tables("rolled back")
@pytest.mark.asyncio
async def test_a_rollback_stops_the_topic_and_names_the_commands(tmp_path: Path) -> None:
    run = FaultyCommitRun(tmp_path / "w", is_foreign=True)
    for _ in range(2):
        run.broker.publish(1, 4)
        await run.pipeline.round()
    loaded = await run.catalog.load(NAME)
    first = loaded.metadata["snapshots"][0]["snapshot-id"]
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first}
    await run.catalog.inner.commit(NAME, TableChange([], [back]))
    run.broker.publish(1, 4)
    await run.pipeline.round()
    (halt,) = run.pipeline.topics.halted.values()
    assert "up to 4, and 8 was committed" in halt.stopped.reason
    assert "icestream lake adopt" in halt.stopped.hint
    assert await run.rows() == list(range(4))
    await run.pipeline.close()


MIRROR = ForeignTableRecord(["default"], "t1", "u", {0: 5})


@pytest.mark.parametrize(
    ("standing", "mirror", "expected"),
    [
        (TableProgress("u", None, None), None, {0: 3}),
        (TableProgress("u", {0: 5}, 4), MIRROR, {0: 5}),
        (TableProgress("u", {0: 5}, None), None, {0: 5}),
        (TableProgress("u", {0: 9}, 8), MIRROR, {0: 9}),
        (TableProgress("u", {0: 9, 1: 2}, 8), MIRROR, {0: 9, 1: 2}),
        (TableProgress("u", {0: 5}, 2), MIRROR, {0: 5}),
    ],
)
def test_a_topic_continues_at_the_right_offset(
    standing: TableProgress, mirror: ForeignTableRecord | None, expected: dict[int, int]
) -> None:
    assert next_offsets_of("/default/t1", standing, mirror, {0: 3}) == expected


@pytest.mark.parametrize(
    ("standing", "mirror", "words"),
    [
        (TableProgress("other", {0: 5}, 4), MIRROR, "another table"),
        (TableProgress("u", None, None), MIRROR, "no snapshot in the history"),
        (TableProgress("u", None, 7), None, "no snapshot records which topic"),
        (TableProgress("u", {0: 4}, 3), MIRROR, "5 was committed"),
        (TableProgress("u", {0: 5}, 5), MIRROR, "a row of offset 5"),
    ],
)
def test_when_it_stops(standing: TableProgress, mirror: ForeignTableRecord | None, words: str) -> None:
    with pytest.raises(errors.TopicTableConflict, match=words):
        next_offsets_of("/default/t1", standing, mirror, {0: 3})
