"""What the catalog remembers of its own last commit to a table: it saves a question, and never changes an answer."""

from __future__ import annotations

import pytest

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.metadata.entry import Entry
from icestream.metadata.store import MemoryStore
from icestream.runtime.clock import SimulatedClock
from tests.support.tables import add, point, snapshot
from tests.support.warehouse import TABLE, World

pytestmark = pytest.mark.asyncio


class AskedStore(MemoryStore):
    """Counts what is read."""

    reads = 0

    async def get(self, key: str) -> Entry | None:
        self.reads += 1
        return await super().get(key)


def setting(name: str, value: str = "x") -> CommitRequest:
    return CommitRequest([], [{"action": "set-properties", "updates": {name: value}}])


async def world() -> tuple[World, AskedStore]:
    store = AskedStore(SimulatedClock())
    found = World(store)
    await found.with_table()
    await found.catalog.commits.commit(TABLE, setting("first"))
    store.reads = 0
    return found, store


async def test_a_commit_behind_one_of_ours_reads_nothing_and_is_the_same() -> None:
    found, store = await world()
    for number in range(3):
        await found.catalog.commits.commit(TABLE, setting(f"n{number}"))
    assert store.reads == 0
    remembered = found.catalog.commits._last_entries[TABLE]
    assert remembered == await store.get(catalog_keys.relation_key(TABLE)), "exactly what the store has"
    properties = (await found.another(7).tables.load(TABLE)).table.properties
    assert {"first", "n0", "n1", "n2"} <= set(properties)


async def test_a_commit_behind_one_of_others_has_both() -> None:
    found, _ = await world()
    files = len(found.metadata_files())
    await found.another(7).commits.commit(TABLE, setting("theirs"))
    await found.catalog.commits.commit(TABLE, setting("ours"))
    assert {"first", "theirs", "ours"} <= set((await found.another(8).tables.load(TABLE)).table.properties)
    assert len(found.metadata_files()) == files + 2, "what was written in vain is taken back"


async def test_what_is_remembered_refuses_nothing() -> None:
    """The memory says that main is empty; it is not, and the commit is made for what is there."""
    found, _ = await world()
    await found.another(7).commits.commit(TABLE, CommitRequest([], [add(snapshot(1)), point("main", 1)]))
    needs = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}
    done = await found.catalog.commits.commit(TABLE, CommitRequest([needs], setting("a").updates))
    assert done.table.current_snapshot_id == 1
    with pytest.raises(errors.CommitConflict):
        await found.catalog.commits.commit(TABLE, CommitRequest([{**needs, "snapshot-id": 2}], setting("b").updates))


async def test_a_commit_that_changes_nothing_is_answered_with_what_is_in_force() -> None:
    found, _ = await world()
    await found.another(7).commits.commit(TABLE, setting("theirs"))
    same = await found.catalog.commits.commit(TABLE, setting("first"))
    assert "theirs" in same.table.properties


async def test_a_table_that_was_dropped_and_made_again_is_another_one() -> None:
    found, _ = await world()
    other = found.another(7)
    await other.tables.drop(TABLE)
    with pytest.raises(errors.UnknownTable):
        await found.catalog.commits.commit(TABLE, setting("a"))
    await found.with_table()
    await found.catalog.commits.commit(TABLE, setting("a"))
    assert "first" not in (await other.tables.load(TABLE)).table.properties


async def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CATALOG_REMEMBERED_MAX", 2)
    found, _ = await world()
    for name in ("a", "b", "c"):
        identifier = await found.with_table(name)
        await found.catalog.commits.commit(identifier, setting("x"))
    assert [one.name for one in found.catalog.commits._last_entries] == ["b", "c"]
