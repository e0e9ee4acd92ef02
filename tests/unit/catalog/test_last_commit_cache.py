"""The cache of the catalog's own last commit to a table saves a read, and never changes an outcome."""

from __future__ import annotations

import pytest

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.tables import add, point, snapshot
from tests.support.warehouse import TABLE, CatalogWorld

pytestmark = pytest.mark.asyncio


def setting(name: str, value: str = "x") -> CommitRequest:
    return CommitRequest([], [{"action": "set-properties", "updates": {name: value}}])


async def world() -> tuple[CatalogWorld, FaultyStore]:
    store = FaultyStore(SimulatedClock())
    catalog_world = CatalogWorld(store)
    await catalog_world.with_table()
    await catalog_world.catalog.commits.commit(TABLE, setting("first"))
    store.reads.clear()
    return catalog_world, store


async def test_a_commit_after_our_own_needs_no_read_and_gives_the_same_result() -> None:
    catalog_world, store = await world()
    for number in range(3):
        await catalog_world.catalog.commits.commit(TABLE, setting(f"n{number}"))
    assert store.reads == []
    remembered = catalog_world.catalog.commits._last_entries[TABLE]
    assert remembered == await store.get(catalog_keys.relation_key(TABLE)), "exactly what the store has"
    properties = (await catalog_world.another(7).tables.load(TABLE)).table.properties
    assert {"first", "n0", "n1", "n2"} <= set(properties)


async def test_a_commit_after_a_foreign_one_contains_both() -> None:
    catalog_world, _ = await world()
    files = len(catalog_world.metadata_files())
    await catalog_world.another(7).commits.commit(TABLE, setting("theirs"))
    await catalog_world.catalog.commits.commit(TABLE, setting("ours"))
    assert {"first", "theirs", "ours"} <= set((await catalog_world.another(8).tables.load(TABLE)).table.properties)
    assert len(catalog_world.metadata_files()) == files + 2, "what was written in vain is taken back"


async def test_a_stale_cache_refuses_no_commit() -> None:
    """The cache says that main is empty; it is not, and the commit was built for the current main."""
    catalog_world, _ = await world()
    await catalog_world.another(7).commits.commit(TABLE, CommitRequest([], [add(snapshot(1)), point("main", 1)]))
    needs = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}
    done = await catalog_world.catalog.commits.commit(TABLE, CommitRequest([needs], setting("a").updates))
    assert done.table.current_snapshot_id == 1
    with pytest.raises(errors.CommitConflict):
        await catalog_world.catalog.commits.commit(
            TABLE, CommitRequest([{**needs, "snapshot-id": 2}], setting("b").updates)
        )


async def test_a_no_op_commit_returns_the_current_state() -> None:
    catalog_world, _ = await world()
    await catalog_world.another(7).commits.commit(TABLE, setting("theirs"))
    same = await catalog_world.catalog.commits.commit(TABLE, setting("first"))
    assert "theirs" in same.table.properties


async def test_a_recreated_table_is_not_taken_from_the_cache() -> None:
    catalog_world, _ = await world()
    other = catalog_world.another(7)
    await other.tables.drop(TABLE)
    with pytest.raises(errors.UnknownTable):
        await catalog_world.catalog.commits.commit(TABLE, setting("a"))
    await catalog_world.with_table()
    await catalog_world.catalog.commits.commit(TABLE, setting("a"))
    assert "first" not in (await other.tables.load(TABLE)).table.properties


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CATALOG_REMEMBERED_MAX", 2)
    catalog_world, _ = await world()
    for name in ("a", "b", "c"):
        identifier = await catalog_world.with_table(name)
        await catalog_world.catalog.commits.commit(identifier, setting("x"))
    assert [entry.name for entry in catalog_world.catalog.commits._last_entries] == ["b", "c"]
