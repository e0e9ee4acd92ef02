"""Namespaces through the catalog: levels, properties, pages, and drops against whatever is made in between."""

from __future__ import annotations

import asyncio
import random

import pytest

from icestream import errors
from icestream.iceberg.identifier import Identifier
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.tables import NEW_VIEW, SCHEMA
from tests.support.warehouse import NS, CatalogWorld

pytestmark = pytest.mark.asyncio


async def test_a_namespace_is_created_once_with_its_properties() -> None:
    namespaces = CatalogWorld().catalog.namespaces
    located = {"owner": "me", "location": "file:/warehouse/a"}
    assert await namespaces.create(("a",), {"owner": "me"}) == located
    assert await namespaces.load(("a",)) == located
    with pytest.raises(errors.AlreadyExists, match="Namespace already exists: a"):
        await namespaces.create(("a",), {})
    with pytest.raises(errors.UnknownNamespace, match=r"Namespace does not exist: b\.c"):
        await namespaces.load(("b", "c"))


async def test_namespace_levels_may_contain_any_characters() -> None:
    namespaces = CatalogWorld().catalog.namespaces
    for namespace in (("a",), ("a", "b"), ("a.b",), ("a/b",), ("a", "b", "c:d"), ("%2F",), ("é",)):
        await namespaces.create(namespace, {"name": ".".join(namespace)})
    assert (await namespaces.list((), None, None)).names == ["%2F", "a", "a/b", "a.b", "é"]
    assert (await namespaces.list(("a",), None, None)).names == ["b"]
    assert (await namespaces.list(("a", "b"), None, None)).names == ["c:d"]
    assert (await namespaces.list(("a.b",), None, None)).names == []
    assert await namespaces.load(("a/b",)) == {"name": "a/b", "location": "file:/warehouse/a_2fb"}
    with pytest.raises(errors.UnknownNamespace, match="Namespace does not exist: none"):
        await namespaces.list(("none",), None, None)


async def test_a_namespace_needs_an_existing_parent() -> None:
    namespaces = CatalogWorld().catalog.namespaces
    with pytest.raises(errors.UnknownNamespace, match="Namespace does not exist: a"):
        await namespaces.create(("a", "b"), {})


async def test_properties_are_set_and_removed() -> None:
    namespaces = CatalogWorld().catalog.namespaces
    await namespaces.create(NS, {"a": "1", "b": "2"})
    answer = await namespaces.change_properties(NS, {"a": "3", "c": "4"}, ["b", "x"])
    assert answer == (["a", "c"], ["b"], ["x"])
    assert await namespaces.load(NS) == {"a": "3", "c": "4", "location": "file:/warehouse/ns"}
    assert await namespaces.change_properties(NS, {}, ["x"]) == ([], [], ["x"])
    with pytest.raises(errors.Contradiction, match="set and remove"):
        await namespaces.change_properties(NS, {"a": "1"}, ["a"])
    with pytest.raises(errors.UnknownNamespace):
        await namespaces.change_properties(("none",), {"a": "1"}, [])
    with pytest.raises(errors.InvalidInput, match="transaction too large"):
        await namespaces.change_properties(NS, {"a": "x" * 70_000}, [])


async def test_only_an_empty_namespace_is_dropped() -> None:
    world = CatalogWorld()
    namespaces = world.catalog.namespaces
    await world.with_table()
    await namespaces.create((*NS, "child"), {})
    for _ in range(2):
        with pytest.raises(errors.NotEmpty, match="Namespace ns is not empty"):
            await namespaces.drop(NS)
    await namespaces.drop((*NS, "child"))
    with pytest.raises(errors.NotEmpty):
        await namespaces.drop(NS)
    await world.catalog.tables.drop(Identifier(NS, "table"))
    await namespaces.drop(NS)
    with pytest.raises(errors.UnknownNamespace):
        await namespaces.drop(NS)


async def test_pages_continue_after_the_last_name_through_concurrent_changes() -> None:
    namespaces = CatalogWorld().catalog.namespaces
    for number in range(7):
        await namespaces.create((f"n{number}",), {})
    first = await namespaces.list((), "", 3)
    assert first.names == ["n0", "n1", "n2"]
    await namespaces.drop(("n2",))
    await namespaces.create(("n2a",), {})
    second = await namespaces.list((), first.token, 3)
    assert second.names == ["n2a", "n3", "n4"]
    last = await namespaces.list((), second.token, 3)
    assert (last.names, last.token) == (["n5", "n6"], None)
    with pytest.raises(errors.InvalidInput, match="page size must be at least 1, got 0"):
        await namespaces.list((), "", 0)
    assert len((await namespaces.list((), "", None)).names) == 7


@pytest.mark.parametrize("what", ["table", "namespace", "view"])
async def test_nothing_is_created_in_a_dropped_namespace(what: str) -> None:
    """Two nodes: one drops the namespace, the other makes something in it, at the same time."""
    outcomes = set()
    for seed in range(40):
        world = CatalogWorld(FaultyStore(SimulatedClock(), delay=random.Random(seed)))
        other = world.another(100)
        await world.catalog.namespaces.create(NS, {})
        if what == "table":
            making = other.tables.create(Identifier(NS, "t"), {"schema": SCHEMA})
        elif what == "view":
            making = other.views.create(Identifier(NS, "t"), NEW_VIEW)  # type: ignore[assignment]
        else:
            making = other.namespaces.create((*NS, "c"), {})  # type: ignore[assignment]
        dropped, created = await asyncio.gather(world.catalog.namespaces.drop(NS), making, return_exceptions=True)
        assert isinstance(dropped, errors.NotEmpty) != isinstance(created, errors.UnknownNamespace), (
            seed,
            dropped,
            created,
        )
        outcomes.add(type(dropped))
    assert len(outcomes) == 2, "both happened"


async def test_a_name_is_used_once_among_concurrent_nodes() -> None:
    """Two nodes: one renames a table, the other creates one of that name."""
    for seed in range(40):
        world = CatalogWorld(FaultyStore(SimulatedClock(), delay=random.Random(seed)))
        old, new = await world.with_table("old"), Identifier(NS, "new")
        results = await asyncio.gather(
            world.catalog.tables.rename(old, new),
            world.another(100).tables.create(new, {"schema": SCHEMA}),
            return_exceptions=True,
        )
        failed = [outcome for outcome in results if isinstance(outcome, errors.AlreadyExists)]
        assert len(failed) == 1, (seed, results)
        names = (await world.catalog.tables.list(NS, None, None)).names
        assert names == (["new", "old"] if failed[0] is results[0] else ["new"])


async def test_concurrent_table_creations_in_one_namespace_do_not_conflict() -> None:
    world = CatalogWorld()
    await world.catalog.namespaces.create(NS, {})
    nodes = [world.another(10 + number) for number in range(4)]
    await asyncio.gather(
        *(nodes[number % 4].tables.create(Identifier(NS, f"t{number}"), {"schema": SCHEMA}) for number in range(20))
    )
    assert len((await world.catalog.tables.list(NS, None, None)).names) == 20
    assert len(world.metadata_files()) == 20, "each creation wrote exactly one metadata file"
