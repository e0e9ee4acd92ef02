"""EmbeddedCatalog in a process with a client of the metadata store: how failures of the store reach its callers."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, CommitUnknown, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.runtime.clock import SimulatedClock
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.warehouse import CatalogWorld

CHANGE = TableChange([], [{"action": "set-properties", "updates": {"a": "b"}}])


def world_over_faulty_store() -> tuple[CatalogWorld, FaultyStore]:
    store = FaultyStore(SimulatedClock())
    return CatalogWorld(store), store


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_refusing_store_is_storage_unavailable_and_changes_nothing(names: list[str]) -> None:
    async def run() -> None:
        world, store = world_over_faulty_store()
        tables = [await world.with_table(name) for name in names]
        files = world.metadata_files()
        catalog = EmbeddedCatalog(world.catalog)
        store.is_down = True
        with pytest.raises(errors.StorageUnavailable) as refused:
            await catalog.commit_all(dict.fromkeys(tables, CHANGE))
        assert not refused.value.is_ambiguous
        with pytest.raises(errors.StorageUnavailable):
            await catalog.load(tables[0])
        store.is_down = False
        assert world.metadata_files() == files
        assert "a" not in (await catalog.load(tables[0])).properties

    asyncio.run(run())


@pytest.mark.parametrize(("fate", "is_applied"), [("done", True), ("never", False)])
@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_lost_reply_is_resolved_for_every_table(names: list[str], fate: str, is_applied: bool) -> None:
    async def run() -> None:
        world, store = world_over_faulty_store()
        tables = [await world.with_table(name) for name in names]
        catalog = EmbeddedCatalog(world.catalog)
        store.lose(fate)
        outcomes = await catalog.commit_all(dict.fromkeys(tables, CHANGE))
        assert all(isinstance(outcome, CommitDone) for outcome in outcomes.values())
        assert all([(await catalog.load(table)).properties.get("a") == "b" for table in tables])
        assert is_applied or len(world.metadata_files()) == 2 * len(tables), "files of the first attempt are removed"

    asyncio.run(run())


def test_an_undetermined_outcome_is_unknown_and_keeps_the_files() -> None:
    async def run() -> dict[Identifier, CommitOutcome]:
        world, store = world_over_faulty_store()
        world.clock = FakeClock(auto_advance=True)
        world.catalog = world.another(2)
        tables = [await world.with_table(name) for name in ("a", "b")]
        files = len(world.metadata_files())

        async def go_down() -> None:
            store.is_down = True

        store.lose("done")
        store.after_lost = go_down
        outcomes = await EmbeddedCatalog(world.catalog).commit_all(dict.fromkeys(tables, CHANGE))
        assert len(world.metadata_files()) == files + len(tables)
        return outcomes

    assert all(isinstance(outcome, CommitUnknown) for outcome in asyncio.run(run()).values())
