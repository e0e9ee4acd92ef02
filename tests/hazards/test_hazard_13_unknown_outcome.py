"""Hazard 13: an outcome that is unknown is resolved, or told as unknown. Never a conflict, and no file is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from icestream import error_codes, errors, limits
from icestream.catalog.catalog import Catalog
from icestream.catalog.idempotency import IdempotentRequest
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.identifier import Identifier
from icestream.metadata import command as cmd
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.tables import NEW_VIEW, SCHEMA
from tests.support.warehouse import NS, TABLE, CatalogWorld

pytestmark = pytest.mark.asyncio

OTHER = Identifier(NS, "other")
VIEW = Identifier(NS, "view")
HOWS = ("done", "never", "late")


def setting(name: str, value: str) -> CommitRequest:
    return CommitRequest([], [{"action": "set-properties", "updates": {name: value}}])


async def world_with_table() -> tuple[CatalogWorld, FaultyStore]:
    store = FaultyStore(SimulatedClock())
    world = CatalogWorld(store)
    await world.with_table()
    return world, store


Act = Callable[[Catalog], Awaitable[object]]
Check = Callable[[Catalog], Awaitable[bool]]


async def _has_property(catalog: Catalog) -> bool:
    return (await catalog.tables.load(TABLE)).table.properties.get("a") == "b"


async def _is_named(catalog: Catalog, identifier: Identifier) -> bool:
    return identifier.name in (await catalog.tables.list(NS, None, None)).names


async def _negated(answer: Awaitable[bool]) -> bool:
    return not await answer


async def _has_namespace(catalog: Catalog, name: str, parent: tuple[str, ...]) -> bool:
    return name in (await catalog.namespaces.list(parent, None, None)).names


async def _has_namespace_property(catalog: Catalog) -> bool:
    return (await catalog.namespaces.load(NS)).get("a") == "b"


async def _two_versions(catalog: Catalog) -> None:
    await catalog.commits.commit(TABLE, setting("x", "1"))


async def _registered_over(catalog: Catalog) -> None:
    """The table as it was one commit ago."""
    earlier = (await catalog.tables.load(TABLE)).table.metadata_log[-1]["metadata-file"]
    await catalog.tables.register(TABLE, earlier, is_overwriting=True)


async def _is_as_before(catalog: Catalog) -> bool:
    return "x" not in (await catalog.tables.load(TABLE)).table.properties


async def _with_view(catalog: Catalog) -> None:
    await catalog.views.create(VIEW, NEW_VIEW)


async def _replaced(catalog: Catalog, sql: str = "select 'ours'") -> None:
    version = NEW_VIEW["view-version"] | {"representations": [{"type": "sql", "sql": sql, "dialect": "spark"}]}
    use_it = {"action": "set-current-view-version", "view-version-id": -1}
    await catalog.views.replace(VIEW, [], [{"action": "add-view-version", "view-version": version}, use_it])


async def _says(catalog: Catalog, sql: str = "select 'ours'") -> bool:
    version = (await catalog.views.load(VIEW)).view.current_version
    return bool(version["representations"][0]["sql"] == sql)


async def _has_view(catalog: Catalog) -> bool:
    return VIEW.name in (await catalog.views.list(NS, None, None)).names


# What is there before an act, apart from the table.
BEFORE: dict[str, Callable[[Catalog], Awaitable[None]]] = {
    "register over": _two_versions,
    "replace view": _with_view,
    "drop view": _with_view,
}
ACTS: dict[str, tuple[Act, Check]] = {
    "commit": (lambda catalog: catalog.commits.commit(TABLE, setting("a", "b")), _has_property),
    "create": (
        lambda catalog: catalog.tables.create(OTHER, {"schema": SCHEMA}),
        lambda catalog: _is_named(catalog, OTHER),
    ),
    "rename": (lambda catalog: catalog.tables.rename(TABLE, OTHER), lambda catalog: _is_named(catalog, OTHER)),
    "drop": (lambda catalog: catalog.tables.drop(TABLE), lambda catalog: _negated(_is_named(catalog, TABLE))),
    "create namespace": (
        lambda catalog: catalog.namespaces.create(("new",), {}),
        lambda catalog: _has_namespace(catalog, "new", ()),
    ),
    "create in a namespace": (
        lambda catalog: catalog.namespaces.create((*NS, "new"), {}),
        lambda catalog: _has_namespace(catalog, "new", NS),
    ),
    "set namespace properties": (
        lambda catalog: catalog.namespaces.change_properties(NS, {"a": "b"}, []),
        _has_namespace_property,
    ),
    "register over": (_registered_over, _is_as_before),
    "replace view": (_replaced, _says),
    "drop view": (lambda catalog: catalog.views.drop(VIEW), lambda catalog: _negated(_has_view(catalog))),
}


async def world_for(name: str) -> tuple[CatalogWorld, FaultyStore]:
    world, store = await world_with_table()
    if name in BEFORE:
        await BEFORE[name](world.catalog)
    return world, store


async def pointed(catalog: Catalog) -> set[str]:
    names = (await catalog.tables.list(NS, None, None)).names
    return {(await catalog.tables.load(Identifier(NS, name))).location for name in names}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ACTS)
async def test_hazard_13_a_lost_reply_is_resolved_and_the_change_is_applied_once(name: str, how: str) -> None:
    """Whatever became of the first transaction: the caller is told of success, and what was on its way stays without
    effect when it arrives at last."""
    world, store = await world_for(name)
    act, check = ACTS[name]
    store.lose(how)
    await act(world.catalog)
    assert await check(world.another(7))
    for answer in await store.deliver():
        assert getattr(answer, "held", False) is False, "the late transaction was fenced off"
    assert await check(world.another(8))
    assert await pointed(world.another(9)) <= set(world.metadata_files())


@pytest.mark.parametrize("how", HOWS)
async def test_hazard_13_an_unresolvable_outcome_is_unknown_and_keeps_the_file(how: str) -> None:
    world, store = await world_with_table()
    before = world.metadata_files()
    store.lose(how)

    async def goes_down() -> None:
        store.is_down = True

    store.after_lost = goes_down
    commit = asyncio.ensure_future(world.catalog.commits.commit(TABLE, setting("a", "b")))
    while not commit.done():
        await asyncio.sleep(0)
        world.clock.advance(limits.CATALOG_RESOLVE_RETRY_SECONDS)
    with pytest.raises(errors.OutcomeUnknown) as unknown:
        await commit
    assert error_codes.iceberg_error(unknown.value) == (500, "CommitStateUnknownException")
    (new,) = set(world.metadata_files()) - set(before)
    store.is_down = False
    await store.deliver()
    loaded = await world.another(9).tables.load(TABLE)
    assert (loaded.location == new) == (how != "never")


@pytest.mark.parametrize("name", sorted(set(ACTS) - {"create namespace"}))  # there the fence is the change itself
async def test_hazard_13_a_change_reported_as_refused_is_never_applied_later(name: str) -> None:
    """The answer is lost, the second attempt finds a full disk or a full store: now the first may not land any more."""
    world, store = await world_for(name)
    act, check = ACTS[name]
    store.lose("late")
    fences = []

    async def fills_up() -> None:
        world.disk.fail("create", 28)  # ENOSPC
        store.refuse = refuse_all_but_the_fence

    def refuse_all_but_the_fence(command: cmd.Command) -> bool:
        if isinstance(command, cmd.Txn) and len(command.then) == 1 and not fences:
            fences.append(command)
            return False
        return True

    store.after_lost = fills_up
    with pytest.raises(errors.Refused):
        await act(world.catalog)
    store.refuse = lambda _: False
    world.disk.heal()
    for answer in await store.deliver():
        assert getattr(answer, "held", False) is False, "the late transaction was fenced off"
    assert not await check(world.another(8))
    assert await pointed(world.another(9)) <= set(world.metadata_files())


@pytest.mark.parametrize("how", HOWS)
async def test_hazard_13_concurrent_commits_do_not_hide_the_outcome(how: str) -> None:
    """After a lost answer two others commit: whether ours was before them stands in their files."""
    world, store = await world_with_table()
    other = world.another(50)

    async def others() -> None:
        await other.commits.commit(TABLE, setting("x", "1"))
        await other.commits.commit(TABLE, setting("y", "2"))

    store.lose(how)
    store.after_lost = others
    done = await world.catalog.commits.commit(TABLE, setting("a", "b"))
    assert done.table.properties["a"] == "b"
    await store.deliver()
    loaded = await world.another(9).tables.load(TABLE)
    assert {name: loaded.table.properties.get(name) for name in "axy"} == {"a": "b", "x": "1", "y": "2"}
    versions = sorted(
        int(file.rsplit("/", 1)[1][:5]) for file in [entry["metadata-file"] for entry in loaded.table.metadata_log]
    )
    assert versions == [0, 1, 2], "three commits, each once"


async def test_hazard_13_a_history_that_is_too_short_to_tell_is_unknown() -> None:
    world, store = await world_with_table()
    await world.catalog.commits.commit(TABLE, setting("write.metadata.previous-versions-max", "1"))
    other = world.another(50)

    async def others() -> None:
        for number in range(3):
            await other.commits.commit(TABLE, setting("x", str(number)))

    store.lose("done")
    store.after_lost = others
    with pytest.raises(errors.OutcomeUnknown, match="does not reach back to it"):
        await world.catalog.commits.commit(TABLE, setting("a", "b"))
    assert await _has_property(world.another(9))


async def test_hazard_13_a_refused_commit_changes_nothing_and_leaves_no_file() -> None:
    world, store = await world_with_table()
    before = world.metadata_files()
    store.refuse = lambda _: True
    with pytest.raises(errors.MetadataFull) as refused:
        await world.catalog.commits.commit(TABLE, setting("a", "b"))
    assert error_codes.iceberg_error(refused.value)[0] == 503
    assert world.metadata_files() == before


async def test_hazard_13_a_conflict_is_certain() -> None:
    """Requirements that fail are a conflict; comparisons that fail are tried again."""
    world, _ = await world_with_table()
    requirement = {"type": "assert-current-schema-id", "current-schema-id": 9}
    with pytest.raises(errors.CommitConflict) as conflict:
        await world.catalog.commits.commit(TABLE, CommitRequest([requirement], []))
    assert error_codes.iceberg_error(conflict.value) == (409, "CommitFailedException")


# --- others went on, and what they did hides whether it was done ---


async def _dropped(other: Catalog) -> None:
    await other.tables.drop(TABLE)


async def _renamed(other: Catalog) -> None:
    await other.commits.commit(TABLE, setting("x", "1"))
    await other.tables.rename(TABLE, OTHER)


async def _made_anew(other: Catalog) -> None:
    await other.tables.rename(TABLE, OTHER)
    await other.tables.create(TABLE, {"schema": SCHEMA})


@pytest.mark.parametrize("how", ["done", "never"])
@pytest.mark.parametrize("act", [_dropped, _renamed, _made_anew], ids=lambda act: act.__name__[1:])
async def test_hazard_13_a_table_that_disappears_after_a_lost_reply_leaves_the_outcome_unknown(
    act: Callable[[Catalog], Awaitable[None]], how: str
) -> None:
    """404 would tell an engine that nothing was committed, and it would delete what the table under its new name, or
    after it was registered again, still names."""
    world, store = await world_with_table()
    other = world.another(50)
    store.lose(how)
    store.after_lost = lambda: act(other)
    with pytest.raises(errors.OutcomeUnknown):
        await world.catalog.commits.commit(TABLE, setting("a", "b"))
    assert len(world.metadata_files()) == {_dropped: 2, _renamed: 3, _made_anew: 3}[act], "no file was taken back"
    for identifier in (candidate for candidate in (TABLE, OTHER) if act is not _dropped):
        if await _is_named(other, identifier):
            table = (await world.another(9).tables.load(identifier)).table
            assert table.properties.get("a") == ("b" if how == "done" and identifier == OTHER else None)


async def _commits(other: Catalog, _: str) -> None:
    await other.commits.commit(TABLE, setting("landed", "yes"))


async def _has_landed(catalog: Catalog) -> bool:
    return (await catalog.tables.load(TABLE)).table.properties.get("landed") == "yes"


async def _sets_namespace_property(other: Catalog, _: str) -> None:
    await other.namespaces.change_properties(NS, {"a": "theirs"}, [])


async def _has_their_property(catalog: Catalog) -> bool:
    return (await catalog.namespaces.load(NS)).get("a") == "theirs"


async def _renames_on_and_makes_both(other: Catalog, _: str) -> None:
    await other.tables.rename(OTHER, Identifier(NS, "third"))
    for name in (TABLE, OTHER):
        await other.tables.create(name, {"schema": SCHEMA})


async def _is_table_named(catalog: Catalog) -> bool:
    return await _is_named(catalog, TABLE)


# What others do meanwhile, are told of, and want to find. They know where the table was.
MEANWHILE: dict[str, tuple[Callable[[Catalog, str], Awaitable[object]], Check]] = {
    "register over": (_commits, _has_landed),
    "replace view": (
        lambda catalog, _: _replaced(catalog, "select 'theirs'"),
        lambda catalog: _says(catalog, "select 'theirs'"),
    ),
    "set namespace properties": (_sets_namespace_property, _has_their_property),
    "drop": (lambda catalog, location: catalog.tables.register(TABLE, location), _is_table_named),
    "rename": (_renames_on_and_makes_both, _is_table_named),
}


@pytest.mark.parametrize("name", MEANWHILE)
async def test_hazard_13_a_change_is_never_repeated_over_concurrent_changes(name: str) -> None:
    """The request was done and its answer was lost. Where that cannot be verified, the outcome is unknown."""
    world, store = await world_for(name)
    location = (await world.catalog.tables.load(TABLE)).location
    other, (act, check) = world.another(50), MEANWHILE[name]

    async def others() -> None:
        await act(other, location)

    store.lose("done")
    store.after_lost = others
    with pytest.raises(errors.OutcomeUnknown):
        await ACTS[name][0](world.catalog)
    assert await check(world.another(9)), "their change was acknowledged"


@pytest.mark.parametrize("name", ["replace view", "set namespace properties"])
async def test_hazard_13_a_change_that_was_certainly_not_applied_is_retried(name: str) -> None:
    """The number of their version is that of ours; or they made a table in the namespace, and changed nothing in it."""
    world, store = await world_for(name)
    other = world.another(50)

    async def others() -> None:
        if name == "replace view":
            await _replaced(other, "select 'theirs'")
        else:
            await other.tables.create(OTHER, {"schema": SCHEMA})

    store.lose("never")
    store.after_lost = others
    await ACTS[name][0](world.catalog)
    assert await ACTS[name][1](world.another(9))


async def test_hazard_13_a_store_failure_while_reading_back_leaves_the_outcome_unknown() -> None:
    """The store goes away between the look at the pointer and the one at the table."""
    world, store = await world_with_table()
    other = world.another(50)

    async def others() -> None:
        await other.commits.commit(TABLE, setting("x", "1"))
        store.gets_left = 1

    store.lose("done")
    store.after_lost = others
    with pytest.raises(errors.OutcomeUnknown, match="reply lost, and its outcome cannot be read"):
        await world.catalog.commits.commit(TABLE, setting("a", "b"))
    store.gets_left = None
    assert await _has_property(world.another(9))


async def test_hazard_13_an_unreadable_table_after_a_lost_reply_leaves_the_outcome_unknown() -> None:
    world, store = await world_with_table()
    other = world.another(50)

    async def others() -> None:
        location = (await other.commits.commit(TABLE, setting("x", "1"))).location
        world.disk.remove(location.removeprefix("file:"))

    store.lose("done")
    store.after_lost = others
    with pytest.raises(errors.OutcomeUnknown, match="reply lost, and its outcome cannot be read"):
        await world.catalog.commits.commit(TABLE, setting("a", "b"))


@pytest.mark.parametrize("how", ["done", "never"])
async def test_hazard_13_an_idempotency_key_resolves_the_outcome_after_any_concurrent_change(how: str) -> None:
    """The key was stored in the same transaction as the change, or the change was not done."""
    world, store = await world_with_table()
    await world.catalog.commits.commit(TABLE, setting("write.metadata.previous-versions-max", "1"))
    other = world.another(50)

    async def others() -> None:
        for number in range(3):
            await other.commits.commit(TABLE, setting("x", str(number)))

    store.lose(how)
    store.after_lost = others
    name = IdempotentRequest("01890a5d-ac96-774b-bcce-b302099a8057", b"asked")
    await world.catalog.commits.commit(TABLE, setting("a", "b"), name)
    loaded = await world.another(9).tables.load(TABLE)
    assert loaded.table.properties["a"] == "b"
    assert int(loaded.location.rsplit("/", 1)[1][:5]) == 5, "once"


async def test_hazard_13_a_creation_overtaken_by_a_rename_loses_no_table() -> None:
    """Ours was made, and has another name since; the file that it points to stays."""
    world, store = await world_with_table()
    other = world.another(50)

    async def others() -> None:
        await other.tables.rename(OTHER, Identifier(NS, "third"))
        await other.tables.create(OTHER, {"schema": SCHEMA})

    store.lose("done")
    store.after_lost = others
    with pytest.raises(errors.AlreadyExists):
        await world.catalog.tables.create(OTHER, {"schema": SCHEMA})
    assert (await world.another(9).tables.load(Identifier(NS, "third"))).table.uuid
