"""Rounds against a catalog that loses answers, is away, or is changed by others: our own, and another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pyiceberg.table import StaticTable

from icestream import errors
from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.catalogs.table_catalog import CommitOutcome, CommitRefused, CommitUnknown, TableCatalog, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.pipeline.tables.foreign_position import TableProgress, next_offsets_of
from tests.support.paper_pipeline import PaperPipeline

NAME = Identifier(("default",), "t1")


class Moody:
    """A catalog whose next answers to commits are chosen."""

    def __init__(self, inner: TableCatalog) -> None:
        self.inner = inner
        self.moods: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        match self.moods.pop(0) if self.moods else "":
            case "lost":
                await self.inner.commit(identifier, change)
                return CommitUnknown("the answer was lost")
            case "unknown":
                return CommitUnknown("nobody knows")
            case "conflict":
                return CommitRefused("others changed the table first")
            case "away":
                raise errors.StorageUnavailable("it is away")
            case "gone":
                raise errors.UnknownTable("there is no such table")
        return await self.inner.commit(identifier, change)

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        if not self.moods:
            return await self.inner.commit_all(changes)
        match self.moods.pop(0):
            case "lost":
                await self.inner.commit_all(changes)
                return dict.fromkeys(changes, CommitUnknown("the answer was lost"))
            case "bystanders":
                first, *others = changes
                found: dict[Identifier, CommitOutcome] = {first: CommitRefused("moved")}
                return found | {one: CommitRefused("another", is_bystander=True) for one in others}
            case "all by":
                return {one: CommitRefused("another", is_bystander=True) for one in changes}
            case "away":
                raise errors.StorageUnavailable("it is away")
            case "wrong":
                raise errors.InvalidInput("one of them is wrong")
        return await self.inner.commit_all(changes)


class Run:
    def __init__(self, folder: Path, is_foreign: bool, **shared: Any) -> None:
        self.pipeline = PaperPipeline(folder, wrap=self._wrapped, is_foreign=is_foreign, **shared)
        self.broker = self.pipeline.broker

    def _wrapped(self, inner: TableCatalog) -> Moody:
        self.catalog = Moody(inner)
        return self.catalog

    async def rows(self, name: Identifier = NAME) -> list[int]:
        loaded = await self.catalog.load(name)
        found = StaticTable.from_metadata(loaded.metadata_location or "").scan(selected_fields=("offset",)).to_arrow()
        return sorted(found["offset"].to_pylist())


@pytest_asyncio.fixture(params=[False, True], ids=["own", "foreign"])
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Run]:
    found = Run(tmp_path / "w", request.param)
    yield found
    await found.pipeline.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("mood", ["lost", "unknown", "conflict", "away"])
async def test_whatever_is_answered_each_offset_comes_once(run: Run, mood: str) -> None:
    run.broker.publish(1, 5)
    await run.pipeline.round()
    run.broker.publish(1, 5)
    run.catalog.moods = [mood]
    await run.pipeline.round()
    run.pipeline.pass_pauses()
    run.broker.publish(1, 5)
    await run.pipeline.round()
    await run.pipeline.round()
    assert await run.rows() == list(range(15))
    assert run.broker.floors == {(1, 0): 15}


@pytest.mark.asyncio
@pytest.mark.parametrize("mood", ["lost", "unknown", "conflict"])
async def test_a_layout_that_was_refused_once_is_asked_for_again(run: Run, mood: str) -> None:
    run.broker.publish(1, 5)
    await run.pipeline.round()
    run.broker.policies[1] = {"partitioning": "day", "compression": "gzip:6"}
    run.catalog.moods = [mood]
    for _ in range(2):
        run.broker.publish(1, 5)
        await run.pipeline.round()
    table = StaticTable.from_metadata((await run.catalog.load(NAME)).metadata_location or "")
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    assert table.properties["write.parquet.compression-codec"] == "gzip"
    assert await run.rows() == list(range(15))


@pytest.mark.asyncio
@pytest.mark.parametrize("mood", ["lost", "bystanders", "all by", "away", "wrong"])
async def test_tables_that_go_together_are_judged_one_by_one(tmp_path: Path, mood: str) -> None:
    run = Run(tmp_path / "w", is_foreign=False)
    for topic in (1, 2, 3):
        run.broker.publish(topic, 4)
    run.catalog.moods = [mood]
    await run.pipeline.round()
    run.pipeline.pass_pauses()
    await run.pipeline.round()
    for topic in (1, 2, 3):
        assert await run.rows(Identifier(("default",), f"t{topic}")) == list(range(4))
    assert set(run.broker.floors.values()) == {4}
    await run.pipeline.close()


@pytest.mark.asyncio
async def test_one_table_that_is_gone_holds_its_topic_alone(tmp_path: Path) -> None:
    """It is looked at again before anybody is asked to decide: here it was there all the time."""
    run = Run(tmp_path / "w", is_foreign=True)
    for topic in (1, 2):
        run.broker.publish(topic, 4)
    run.catalog.moods = ["gone"]
    await run.pipeline.round()
    assert run.broker.floors == {(1, 0): 0, (2, 0): 4}
    await run.pipeline.round()
    assert run.broker.floors == {(1, 0): 4, (2, 0): 4}
    assert run.pipeline.topics.halted == {}
    await run.pipeline.close()


@pytest.mark.asyncio
async def test_a_driver_that_ended_before_it_noted_its_commit_is_followed(tmp_path: Path) -> None:
    run = Run(tmp_path / "w", is_foreign=True)
    run.broker.publish(1, 4)
    await run.pipeline.round()
    store = run.pipeline.world.store
    before = await store.get(foreign_table_key(1))
    assert before is not None
    run.broker.publish(1, 4)
    await run.pipeline.round()
    await store.put(foreign_table_key(1), before.value)
    run.broker.floors[1, 0] = 4
    again = Run(tmp_path / "w", is_foreign=True, broker=run.broker, store=store)
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
    run = Run(tmp_path / "w", is_foreign=True)
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
def test_where_a_topic_goes_on(
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
