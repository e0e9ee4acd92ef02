"""Hazard 13 with pointers of others (Glue, SQL): what an unclear swap comes to when others drop, rename or make anew.

The catalog is in memory, behind an answer that gets lost; everything else is real.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import pytest

from icestream import errors
from icestream.catalogs.pointer_catalog import PointerCatalog, TablePointer
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.table_catalog import CommitDone, CommitRefused, CommitUnknown, TableChange
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.runtime.randomness import SeededRandomness
from tests.support.eager_clock import EagerClock
from tests.support.tables import SCHEMA
from tests.support.warehouse import World, files_on

pytestmark = pytest.mark.asyncio

NS = ("ns",)
T, OTHER = Identifier(NS, "t"), Identifier(NS, "other")
ASKED: Object = {"schema": SCHEMA}
SETTING = TableChange([], [{"action": "set-properties", "updates": {"a": "b"}}])
Act = Callable[[PointerCatalog], Awaitable[object]]


class MemoryPointers:
    """`how`: what becomes of the next change. `others`: what they do then."""

    def __init__(self) -> None:
        self.there: dict[Identifier, str] = {}
        self.how = ""
        self.others: Callable[[], Awaitable[object]] | None = None

    async def _sent(self, act: Callable[[], bool]) -> bool:
        how, self.how = self.how, ""
        if how == "never":
            await self._go_on()
            raise errors.StorageUnavailable("lost", is_ambiguous=True)
        if how == "late":  # others are faster, and the answer comes
            await self._go_on()
        held = act()
        if how == "done":
            await self._go_on()
            raise errors.StorageUnavailable("lost", is_ambiguous=True)
        return held

    async def _go_on(self) -> None:
        others, self.others = self.others, None
        assert others is not None
        await others()

    async def list_namespaces(self, parent: Namespace) -> list[Namespace]:
        return [] if parent else [NS]

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        return {}

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None: ...

    async def drop_namespace(self, namespace: Namespace) -> None: ...

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        return list(self.there)

    async def find(self, identifier: Identifier) -> TablePointer:
        if identifier not in self.there:
            raise errors.UnknownTable(f"Table does not exist: {identifier}")
        return TablePointer(self.there[identifier])

    async def insert(self, identifier: Identifier, location: str, made: TableMetadata) -> None:
        def act() -> bool:
            if identifier in self.there:
                raise errors.AlreadyExists(f"Table already exists: {identifier}")
            self.there[identifier] = location
            return True

        await self._sent(act)

    async def swap(self, identifier: Identifier, expected: TablePointer, location: str, made: TableMetadata) -> bool:
        def act() -> bool:
            if self.there.get(identifier) != expected.location:
                return False
            self.there[identifier] = location
            return True

        return await self._sent(act)

    async def remove(self, identifier: Identifier) -> None:
        del self.there[identifier]

    async def rename(self, source: Identifier, target: Identifier) -> None:
        self.there[target] = self.there.pop(source)

    async def close(self) -> None: ...


class Elsewhere(NamedTuple):
    pointers: MemoryPointers
    catalog: PointerCatalog
    world: World

    def after(self, how: str, act: Act) -> None:
        async def others() -> None:
            await act(self.catalog)

        self.pointers.how, self.pointers.others = how, others

    async def every_table_is_whole(self) -> None:
        for identifier in await self.catalog.list_tables(NS):
            await self.catalog.load(identifier)


async def elsewhere() -> Elsewhere:
    world, pointers = World(), MemoryPointers()
    caller = StorageCaller("catalog", EagerClock(), SeededRandomness(1))
    catalog = PointerCatalog(pointers, files_on(world.disk), caller, SeededRandomness(2), "file:/elsewhere")
    await catalog.create(T, ASKED)
    return Elsewhere(pointers, catalog, world)


async def dropped(catalog: PointerCatalog) -> None:
    await catalog.drop(T)


async def renamed(catalog: PointerCatalog) -> None:
    await catalog.rename(T, OTHER)


async def made_anew(catalog: PointerCatalog) -> None:
    await catalog.rename(T, OTHER)
    await catalog.create(T, ASKED)


@pytest.mark.parametrize("how", ["done", "never"])
@pytest.mark.parametrize("act", [dropped, renamed, made_anew])
async def test_hazard_13_a_table_that_left_its_name_may_have_taken_the_commit_along(act: Act, how: str) -> None:
    found = await elsewhere()
    found.after(how, act)
    before = len(found.world.metadata_files())
    assert isinstance(await found.catalog.commit(T, SETTING), CommitUnknown)
    assert len(found.world.metadata_files()) == before + (2 if act is made_anew else 1), "no file was removed"
    await found.every_table_is_whole()
    if act is not dropped:
        properties = (await found.catalog.load(OTHER)).properties
        assert ("a" in properties) == (how == "done")


@pytest.mark.parametrize("act", [dropped, renamed])
async def test_hazard_13_a_clear_refusal_and_no_table_is_told_as_such(act: Act) -> None:
    found = await elsewhere()
    found.after("late", act)
    with pytest.raises(errors.UnknownTable):
        await found.catalog.commit(T, SETTING)
    await found.every_table_is_whole()


async def test_hazard_13_a_clear_refusal_and_another_table_is_judged_anew() -> None:
    found = await elsewhere()
    uuid = (await found.catalog.load(T)).uuid
    found.after("late", made_anew)
    change = TableChange([{"type": "assert-table-uuid", "uuid": uuid}], SETTING.updates)
    assert isinstance(await found.catalog.commit(T, change), CommitRefused)
    await found.every_table_is_whole()


@pytest.mark.parametrize("how", ["done", "never"])
async def test_hazard_13_a_table_that_went_on_tells_by_its_log(how: str) -> None:
    """And only then the file of an attempt goes."""
    found = await elsewhere()

    async def others(catalog: PointerCatalog) -> None:
        await catalog.commit(T, TableChange([], [{"action": "set-properties", "updates": {"x": "1"}}]))

    found.after(how, others)
    assert isinstance(await found.catalog.commit(T, SETTING), CommitDone)
    table = await found.catalog.load(T)
    assert (table.properties["a"], table.properties["x"]) == ("b", "1")
    named = [one["metadata-file"] for one in table.metadata["metadata-log"]]
    assert sorted(found.world.metadata_files()) == sorted([*named, table.metadata_location or ""]), "none is left over"
    assert len(named) == 2, "each commit once"


@pytest.mark.parametrize("act", [renamed, made_anew])
async def test_hazard_13_a_creation_whose_answer_is_lost_keeps_its_file(act: Act) -> None:
    """Others had it under another name, or committed to it, before anybody could look."""
    found = await elsewhere()
    await found.catalog.drop(T)
    found.after("done", act)
    if act is renamed:
        await found.catalog.create(T, ASKED)  # the second copy finds the name free
        assert sorted(await found.catalog.list_tables(NS)) == sorted([T, OTHER])
    else:
        with pytest.raises(errors.AlreadyExists):
            await found.catalog.create(T, ASKED)
    await found.every_table_is_whole()


async def test_hazard_13_a_creation_that_others_committed_to_is_done() -> None:
    found = await elsewhere()
    await found.catalog.drop(T)

    async def others(catalog: PointerCatalog) -> None:
        await catalog.commit(T, SETTING)

    found.after("done", others)
    made = await found.catalog.create(T, ASKED)
    assert (await found.catalog.load(T)).uuid == made.uuid
