"""Hazard 110: of two changes that choose places which meet, one is refused, however their requests are interleaved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.operations.table_places import ChosenPlace
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.identifier import Identifier
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.tables import SCHEMA
from tests.support.warehouse import NS, TABLE, CatalogWorld

pytestmark = pytest.mark.asyncio
PLACE = "file:/warehouse/raw"
OTHER = Identifier(NS, "other")
Change = Callable[[Catalog], Awaitable[Any]]


def created(location: str, name: str) -> Change:
    async def change(catalog: Catalog) -> None:
        guard = catalog.places.guard([ChosenPlace(Identifier(NS, name), location)])
        definition = {"schema": SCHEMA, "location": location}
        await catalog.tables.create(Identifier(NS, name), definition, guard=guard)

    return change


def moved(location: str) -> Change:
    async def change(catalog: Catalog) -> None:
        uuid = (await catalog.tables.load(OTHER)).table.uuid
        guard = catalog.places.guard([ChosenPlace(OTHER, location, uuid)])
        update = {"action": "set-location", "location": location}
        await catalog.commits.commit(OTHER, CommitRequest([], [update]), guard=guard)

    return change


def storing_at(path: str) -> Change:
    async def change(catalog: Catalog) -> None:
        uuid = (await catalog.tables.load(OTHER)).table.uuid
        guard = catalog.places.guard([ChosenPlace(OTHER, path, uuid)])
        update = {"action": "set-properties", "updates": {"write.data.path": path}}
        await catalog.commits.commit(OTHER, CommitRequest([], [update]), guard=guard)

    return change


async def named(catalog: Catalog) -> None:
    """Makes a namespace whose tables lie in PLACE."""
    await catalog.namespaces.create(("raw",), {}, guard=catalog.places.namespace_guard(("raw",), {}))


async def unguarded(catalog: Catalog) -> None:
    """As a client that chooses a place while security is off."""
    await catalog.tables.create(Identifier(NS, "open"), {"schema": SCHEMA, "location": f"{PLACE}/x"})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (created(PLACE, "a"), created(PLACE, "b")),
        (created(PLACE, "a"), created(f"{PLACE}/inside", "b")),
        (created(f"{PLACE}/inside", "a"), created(PLACE, "b")),
        (created(PLACE, "a"), moved(f"{PLACE}/inside")),
        (moved(PLACE), created(PLACE, "b")),
        (storing_at(PLACE), created(f"{PLACE}/data", "b")),
        (created(PLACE, "a"), storing_at(f"{PLACE}/data")),
        (created(PLACE, "a"), named),
        (named, created(PLACE, "b")),
        (created(PLACE, "a"), unguarded),
    ],
)
async def test_hazard_110_a_place_that_was_chosen_meanwhile_is_refused(first: Change, second: Change) -> None:
    store = FaultyStore(SimulatedClock())
    world = CatalogWorld(store)
    await world.with_table()
    await world.catalog.tables.create(OTHER, {"schema": SCHEMA})
    files = set(world.metadata_files())

    store.before_txn = lambda: second(world.another(7))
    with pytest.raises(errors.InvalidInput, match="the place of another table"):
        await first(world.catalog)
    written = set(world.metadata_files()) - files
    assert len(written) <= 1, "the refused change leaves no file"


async def test_hazard_110_changes_that_do_not_meet_are_both_made() -> None:
    store = FaultyStore(SimulatedClock())
    world = CatalogWorld(store)
    await world.with_table()
    store.before_txn = lambda: created(f"{PLACE}2", "b")(world.another(7))
    await created(PLACE, "a")(world.catalog)
    assert {"a", "b"} <= set((await world.catalog.tables.list(NS, None, None)).names)


async def test_hazard_110_one_transaction_does_not_place_two_tables_together() -> None:
    world = CatalogWorld(FaultyStore(SimulatedClock()))
    await world.with_table()
    guard = world.catalog.places.guard([ChosenPlace(TABLE, PLACE), ChosenPlace(OTHER, f"{PLACE}/inside")])
    with pytest.raises(errors.InvalidInput):
        await guard()


async def test_a_table_is_alone_until_another_place_meets_its_own() -> None:
    store = FaultyStore(SimulatedClock())
    world = CatalogWorld(store)
    await world.with_table(location=PLACE)
    table = (await world.catalog.tables.load(TABLE)).table
    assert await world.catalog.places.are_alone(table.uuid or "", [PLACE])
    lists = len(store.reads)
    assert await world.catalog.places.are_alone(table.uuid or "", [PLACE])
    assert len(store.reads) == lists + 1, "no change of places: the tables are not read again"
    await world.catalog.tables.create(OTHER, {"schema": SCHEMA})
    assert await world.catalog.places.are_alone(table.uuid or "", [PLACE])
    await unguarded(world.another(7))
    assert not await world.catalog.places.are_alone(table.uuid or "", [PLACE])
