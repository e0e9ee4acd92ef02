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
from tests.support.fake_clock import FakeClock
from tests.support.tables import SCHEMA
from tests.support.warehouse import CatalogWorld, files_on

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
        outcome = act()
        if how == "done":
            await self._go_on()
            raise errors.StorageUnavailable("lost", is_ambiguous=True)
        return outcome

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

    async def insert(self, identifier: Identifier, location: str, table: TableMetadata) -> None:
        def act() -> bool:
            if identifier in self.there:
                raise errors.AlreadyExists(f"Table already exists: {identifier}")
            self.there[identifier] = location
            return True

        await self._sent(act)

    async def swap(self, identifier: Identifier, expected: TablePointer, location: str, table: TableMetadata) -> bool:
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


class PointerCatalogWorld(NamedTuple):
    pointers: MemoryPointers
    catalog: PointerCatalog
    world: CatalogWorld

    def after(self, how: str, act: Act) -> None:
        async def others() -> None:
            await act(self.catalog)

        self.pointers.how, self.pointers.others = how, others

    async def every_table_is_whole(self) -> None:
        for identifier in await self.catalog.list_tables(NS):
            await self.catalog.load(identifier)


async def elsewhere() -> PointerCatalogWorld:
    world, pointers = CatalogWorld(), MemoryPointers()
    caller = StorageCaller("catalog", FakeClock(auto_advance=True), SeededRandomness(1))
    catalog = PointerCatalog(pointers, files_on(world.disk), caller, SeededRandomness(2), "file:/elsewhere")
    await catalog.create(T, ASKED)
    return PointerCatalogWorld(pointers, catalog, world)


async def dropped(catalog: PointerCatalog) -> None:
    await catalog.drop(T)


async def renamed(catalog: PointerCatalog) -> None:
    await catalog.rename(T, OTHER)


async def made_anew(catalog: PointerCatalog) -> None:
    await catalog.rename(T, OTHER)
    await catalog.create(T, ASKED)


@pytest.mark.parametrize("how", ["done", "never"])
@pytest.mark.parametrize("act", [dropped, renamed, made_anew])
async def test_hazard_13_a_renamed_table_may_contain_the_commit(act: Act, how: str) -> None:
    setup = await elsewhere()
    setup.after(how, act)
    before = len(setup.world.metadata_files())
    assert isinstance(await setup.catalog.commit(T, SETTING), CommitUnknown)
    assert len(setup.world.metadata_files()) == before + (2 if act is made_anew else 1), "no file was removed"
    await setup.every_table_is_whole()
    if act is not dropped:
        properties = (await setup.catalog.load(OTHER)).properties
        assert ("a" in properties) == (how == "done")


@pytest.mark.parametrize("act", [dropped, renamed])
async def test_hazard_13_a_definite_refusal_without_a_table_is_reported(act: Act) -> None:
    setup = await elsewhere()
    setup.after("late", act)
    with pytest.raises(errors.UnknownTable):
        await setup.catalog.commit(T, SETTING)
    await setup.every_table_is_whole()


async def test_hazard_13_a_definite_refusal_with_another_table_is_judged_again() -> None:
    setup = await elsewhere()
    uuid = (await setup.catalog.load(T)).uuid
    setup.after("late", made_anew)
    change = TableChange([{"type": "assert-table-uuid", "uuid": uuid}], SETTING.updates)
    assert isinstance(await setup.catalog.commit(T, change), CommitRefused)
    await setup.every_table_is_whole()


@pytest.mark.parametrize("how", ["done", "never"])
async def test_hazard_13_a_table_that_advanced_reveals_the_outcome_by_its_metadata_log(how: str) -> None:
    """And only then the file of an attempt goes."""
    setup = await elsewhere()

    async def others(catalog: PointerCatalog) -> None:
        await catalog.commit(T, TableChange([], [{"action": "set-properties", "updates": {"x": "1"}}]))

    setup.after(how, others)
    assert isinstance(await setup.catalog.commit(T, SETTING), CommitDone)
    table = await setup.catalog.load(T)
    assert (table.properties["a"], table.properties["x"]) == ("b", "1")
    named = [entry["metadata-file"] for entry in table.metadata["metadata-log"]]
    assert sorted(setup.world.metadata_files()) == sorted([*named, table.metadata_location or ""]), "none is left over"
    assert len(named) == 2, "each commit once"


@pytest.mark.parametrize("act", [renamed, made_anew])
async def test_hazard_13_a_creation_whose_reply_is_lost_keeps_its_file(act: Act) -> None:
    """Another client renamed the table, or committed to it, before the outcome could be read back."""
    setup = await elsewhere()
    await setup.catalog.drop(T)
    setup.after("done", act)
    if act is renamed:
        await setup.catalog.create(T, ASKED)  # the second copy finds the name free
        assert sorted(await setup.catalog.list_tables(NS)) == sorted([T, OTHER])
    else:
        with pytest.raises(errors.AlreadyExists):
            await setup.catalog.create(T, ASKED)
    await setup.every_table_is_whole()


async def test_hazard_13_a_creation_that_others_committed_to_is_done() -> None:
    setup = await elsewhere()
    await setup.catalog.drop(T)

    async def others(catalog: PointerCatalog) -> None:
        await catalog.commit(T, SETTING)

    setup.after("done", others)
    created = await setup.catalog.create(T, ASKED)
    assert (await setup.catalog.load(T)).uuid == created.uuid
