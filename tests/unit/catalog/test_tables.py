"""Tables and views through the catalog: made, staged, registered, renamed, dropped, listed. Names are never shared."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.idempotency import IdempotentRequest
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.identifier import Identifier
from tests.support.metadata_machine import settle
from tests.support.tables import NEW_VIEW, SCHEMA, UUID
from tests.support.topic_tables import ENVELOPE, TOPIC, TOPIC_ID
from tests.support.warehouse import NS, TABLE, WAREHOUSE, CatalogWorld

pytestmark = pytest.mark.asyncio

VIEW = Identifier(NS, "view")


async def with_both() -> CatalogWorld:
    world = CatalogWorld()
    await world.with_table()
    await world.catalog.views.create(VIEW, NEW_VIEW)
    return world


async def bound() -> CatalogWorld:
    world = CatalogWorld()
    await world.with_table(schema=ENVELOPE)
    await world.catalog.topics.bind(TABLE, TOPIC, TOPIC_ID, {0: (0, 0)})
    return world


# --- create -----------------------------------------------------------------------------------------------------------


async def test_a_new_table_has_its_own_location() -> None:
    world = CatalogWorld()
    await world.with_table()
    first = await world.catalog.tables.load(TABLE)
    assert first.table.location.startswith(f"{WAREHOUSE}/ns/table-")
    assert first.location == world.metadata_files()[0]
    await world.catalog.tables.exists(TABLE)
    await world.catalog.tables.drop(TABLE)
    await world.with_table()
    again = await world.catalog.tables.load(TABLE)
    assert again.table.location != first.table.location
    assert again.table.uuid != first.table.uuid


async def test_a_name_belongs_to_one_table_or_view() -> None:
    world = await with_both()
    tables, views = world.catalog.tables, world.catalog.views
    written = len(world.metadata_files())
    for call, says in (
        (lambda: tables.create(TABLE, {"schema": SCHEMA}), r"^Table already exists: ns\.table$"),
        (lambda: tables.stage(TABLE, {"schema": SCHEMA}), r"^Table already exists: ns\.table$"),
        (lambda: tables.create(VIEW, {"schema": SCHEMA}), r"^View with same name already exists: ns\.view$"),
        (lambda: views.create(VIEW, NEW_VIEW), r"^View already exists: ns\.view$"),
        (lambda: views.create(TABLE, NEW_VIEW), r"^Table with same name already exists: ns\.table$"),
    ):
        with pytest.raises(errors.AlreadyExists, match=says):
            await call()
    assert len(world.metadata_files()) == written, "nothing is written for what is refused"


async def test_nothing_is_created_in_a_missing_namespace() -> None:
    world = CatalogWorld()
    for call in (
        lambda: world.catalog.tables.create(TABLE, {"schema": SCHEMA}),
        lambda: world.catalog.tables.stage(TABLE, {"schema": SCHEMA}),
        lambda: world.catalog.views.create(VIEW, NEW_VIEW),
        lambda: world.catalog.tables.list(NS, None, None),
        lambda: world.catalog.commits.commit(TABLE, CommitRequest([{"type": "assert-create"}], [])),
    ):
        with pytest.raises(errors.UnknownNamespace, match="Namespace does not exist: ns"):
            await call()
    assert world.metadata_files() == []


async def test_a_missing_table_in_a_missing_namespace_is_an_unknown_table() -> None:
    """Clients ask for table `snapshots` in namespace `ns.t`, and continue when there is no such table."""
    world = CatalogWorld()
    deep = Identifier((*NS, "table"), "snapshots")
    with pytest.raises(errors.UnknownTable, match=r"Table does not exist: ns\.table\.snapshots"):
        await world.catalog.tables.load(deep)
    with pytest.raises(errors.UnknownTable):
        await world.catalog.commits.commit(deep, CommitRequest([], []))
    with pytest.raises(errors.UnknownView, match="View does not exist"):
        await world.catalog.views.load(deep)


async def test_tables_and_views_are_distinguished() -> None:
    world = await with_both()
    with pytest.raises(errors.UnknownTable, match=r"Table does not exist: ns\.view"):
        await world.catalog.tables.load(VIEW)
    with pytest.raises(errors.UnknownView, match=r"View does not exist: ns\.table"):
        await world.catalog.views.load(TABLE)
    with pytest.raises(errors.UnknownTable):
        await world.catalog.tables.drop(VIEW)
    with pytest.raises(errors.UnknownView):
        await world.catalog.views.drop(TABLE)
    assert (await world.catalog.tables.list(NS, None, None)).names == ["table"]
    assert (await world.catalog.views.list(NS, None, None)).names == ["view"]


@pytest.mark.parametrize(
    "options",
    [
        {"location": "file:/etc/t"},
        {"location": "file:/warehouse/../etc"},
        {"properties": {"write.metadata.path": "file:/etc"}},
        {"properties": {"icestream.topic": "/default/orders"}},
        {"schema": 7},
    ],
)
async def test_an_invalid_table_is_not_created(options: dict[str, Any]) -> None:
    world = CatalogWorld()
    await world.catalog.namespaces.create(NS, {})
    with pytest.raises(errors.InvalidInput):
        await world.catalog.tables.create(TABLE, {"schema": SCHEMA, **options})
    assert world.metadata_files() == []
    assert (await world.catalog.tables.list(NS, None, None)).names == []


async def test_a_staged_table_is_created_by_its_first_commit() -> None:
    world = CatalogWorld()
    await world.catalog.namespaces.create(NS, {})
    staged = await world.catalog.tables.stage(TABLE, {"schema": SCHEMA, "location": "file:///warehouse/here"})
    assert (staged.location, world.metadata_files()) == ("file:/warehouse/here", [])
    updates = [
        {"action": "assign-uuid", "uuid": staged.uuid},
        {"action": "add-schema", "schema": staged.current_schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": "file:///warehouse/here"},
    ]
    create = CommitRequest([{"type": "assert-create"}], updates)
    done = await world.catalog.commits.commit(TABLE, create)
    assert (done.table.uuid, done.table.location) == (staged.uuid, "file:/warehouse/here")
    with pytest.raises(errors.CommitConflict, match="Requirement failed: table already exists"):
        await world.catalog.commits.commit(TABLE, create)
    await world.catalog.views.create(VIEW, NEW_VIEW)
    with pytest.raises(errors.AlreadyExists, match="View with same name already exists"):
        await world.catalog.commits.commit(VIEW, create)


# --- register ---------------------------------------------------------------------------------------------------------


async def test_a_table_is_registered_from_its_file() -> None:
    world = CatalogWorld()
    await world.with_table()
    loaded = await world.catalog.tables.load(TABLE)
    await world.catalog.tables.drop(TABLE)
    other = Identifier(NS, "other")
    done = await world.another(9).tables.register(other, loaded.location)
    assert (done.table.uuid, done.location) == (loaded.table.uuid, loaded.location)
    with pytest.raises(errors.AlreadyExists, match=r"Table already exists: ns\.other"):
        await world.catalog.tables.register(other, loaded.location)
    after = await world.catalog.commits.commit(
        other, CommitRequest([], [{"action": "set-properties", "updates": {"a": "b"}}])
    )
    assert "/00001-" in after.location
    back = await world.catalog.tables.register(other, loaded.location, is_overwriting=True)
    assert (await world.catalog.tables.load(other)).location == back.location == loaded.location


async def test_a_missing_or_invalid_file_is_not_registered() -> None:
    world = CatalogWorld()
    await world.catalog.namespaces.create(NS, {})
    place = f"{WAREHOUSE}/x/00000-a.metadata.json"
    with pytest.raises(errors.MetadataFileMissing, match=f"Failed to open input stream for file: {place}"):
        await world.catalog.tables.register(TABLE, place)
    world.write(place, b"{}")
    with pytest.raises(errors.MetadataFileDamaged, match="is not a metadata file"):
        await world.catalog.tables.register(TABLE, place)
    with pytest.raises(errors.InvalidInput, match="outside of the warehouse"):
        await world.catalog.tables.register(TABLE, "file:/etc/passwd")


async def test_a_missing_metadata_file_is_reported_as_missing() -> None:
    world = CatalogWorld()
    await world.with_table()
    (location,) = world.metadata_files()
    world.disk.remove(location.removeprefix("file:"))
    fresh = world.another(9)
    with pytest.raises(errors.MetadataFileMissing, match=f"Failed to open input stream for file: {location}"):
        await fresh.tables.load(TABLE)
    await fresh.tables.exists(TABLE)


# --- rename and drop --------------------------------------------------------------------------------------------------


async def test_a_rename_changes_only_the_name() -> None:
    world = await with_both()
    await world.catalog.namespaces.create(("other",), {})
    before = await world.catalog.tables.load(TABLE)
    target = Identifier(("other",), "renamed")
    await world.catalog.tables.rename(TABLE, target)
    assert await world.catalog.tables.load(target) == before
    with pytest.raises(errors.UnknownTable):
        await world.catalog.tables.load(TABLE)
    await world.catalog.views.rename(VIEW, TABLE)
    assert (await world.catalog.views.load(TABLE)).view.uuid


async def test_a_refused_rename_has_the_error_clients_expect() -> None:
    world = await with_both()
    tables, views = world.catalog.tables, world.catalog.views
    two = await world.with_table("two")
    nowhere = Identifier(("none",), "t")
    for call, kind, says in (
        (lambda: tables.rename(Identifier(NS, "x"), two), errors.UnknownTable, r"Table does not exist: ns\.x"),
        (lambda: tables.rename(TABLE, nowhere), errors.UnknownNamespace, "Namespace does not exist: none"),
        (lambda: tables.rename(TABLE, two), errors.AlreadyExists, r"ns\.table to ns\.two\. Table already exists"),
        (lambda: tables.rename(TABLE, VIEW), errors.AlreadyExists, r"ns\.table to ns\.view\. View already exists"),
        (lambda: tables.rename(VIEW, nowhere), errors.UnknownTable, "Table does not exist"),
        (lambda: views.rename(Identifier(NS, "x"), two), errors.UnknownView, "View does not exist"),
        (lambda: views.rename(VIEW, nowhere), errors.UnknownNamespace, "Namespace does not exist: none"),
        (lambda: views.rename(VIEW, TABLE), errors.AlreadyExists, r"^Cannot rename ns\.view to ns\.table\. Table"),
    ):
        with pytest.raises(kind, match=says):
            await call()


async def test_a_purge_is_written_down_with_the_drop() -> None:
    world = CatalogWorld()
    await world.with_table()
    loaded = await world.catalog.tables.load(TABLE)
    await world.catalog.tables.drop(TABLE, is_purging=True)
    entry = await world.store.get(catalog_keys.purge_key(loaded.table.uuid or ""))
    assert entry is not None
    assert catalog_records.decode(catalog_records.PurgeRecord, "", entry).location == loaded.location
    assert world.metadata_files() == [loaded.location], "the files themselves go later"
    with pytest.raises(errors.UnknownTable):
        await world.catalog.tables.drop(TABLE)


async def test_hazard_21_a_topic_table_cannot_be_dropped_renamed_or_registered_twice() -> None:
    world = await bound()
    tables = world.catalog.tables
    loaded = await tables.load(TABLE)
    for call in (
        lambda: tables.drop(TABLE),
        lambda: tables.rename(TABLE, Identifier(NS, "other")),
        lambda: tables.register(Identifier(NS, "second"), loaded.location),
        lambda: tables.register(TABLE, loaded.location, is_overwriting=True),
    ):
        with pytest.raises(errors.TopicTableConflict):
            await call()
    assert await tables.load(TABLE) == loaded


async def test_hazard_21_a_forced_rename_keeps_the_topic_and_a_forced_drop_detaches_it() -> None:
    world = await bound()
    tables = world.catalog.tables
    uuid = (await tables.load(TABLE)).table.uuid or ""
    other = Identifier(NS, "other")
    await tables.rename(TABLE, other, is_forced=True)
    entry = await world.store.get(catalog_keys.topic_key(TOPIC_ID))
    assert entry is not None
    assert catalog_records.decode(catalog_records.TopicTableRecord, "", entry) == catalog_records.TopicTableRecord(
        ["ns"], "other", uuid
    )
    await tables.drop(other, is_forced=True)
    assert await world.store.get(catalog_keys.topic_key(TOPIC_ID)) is None
    assert await world.store.get(catalog_keys.bound_key(uuid)) is None


async def test_hazard_21_a_topic_has_one_table_and_a_table_one_topic() -> None:
    world = await bound()
    second = await world.with_table("second", schema=ENVELOPE)
    with pytest.raises(errors.AlreadyExists, match="belongs to topic"):
        await world.catalog.topics.bind(TABLE, "/default/other", 13, {0: (0, 0)})
    with pytest.raises(errors.AlreadyExists, match=r"topic /default/orders has a table: ns\.table"):
        await world.catalog.topics.bind(second, TOPIC, TOPIC_ID, {0: (0, 0)})
    await world.catalog.topics.detach(TABLE)
    await world.catalog.topics.bind(second, TOPIC, TOPIC_ID, {0: (0, 0)})
    assert (await world.catalog.tables.load(second)).table.properties["icestream.topic"] == TOPIC
    assert "icestream.topic" not in (await world.catalog.tables.load(TABLE)).table.properties


async def test_hazard_21_a_restored_table_with_old_properties_is_bound_again() -> None:
    """The properties of the restored table name the topic, but the table is not bound to it."""
    world = await bound()
    last = (await world.catalog.tables.load(TABLE)).location
    await world.catalog.tables.drop(TABLE, is_forced=True)
    await world.catalog.tables.register(TABLE, last)
    await world.catalog.topics.bind(TABLE, TOPIC, TOPIC_ID, {0: (0, 0)})
    assert await world.store.get(catalog_keys.topic_key(TOPIC_ID)) is not None
    with pytest.raises(errors.AlreadyExists, match="belongs to topic"):
        await world.catalog.topics.bind(TABLE, "/default/other", 13, {0: (0, 0)})


# --- pages ------------------------------------------------------------------------------------------------------------


async def test_pages_of_tables_exclude_views() -> None:
    world = await with_both()
    for number in range(5):
        await world.with_table(f"t{number}")
        await world.catalog.views.create(Identifier(NS, f"t{number}v"), NEW_VIEW)
    token, pages = "", []
    while token is not None:
        page = await world.catalog.tables.list(NS, token, 2)
        pages.append(page.names)
        token = page.token  # type: ignore[assignment]
    assert pages == [["t0", "t1"], ["t2", "t3"], ["t4", "table"]]
    assert len((await world.catalog.views.list(NS, None, None)).names) == 6


# --- views ------------------------------------------------------------------------------------------------------------


async def test_a_view_is_replaced_registered_and_dropped() -> None:
    world = await with_both()
    views = world.catalog.views
    first = await views.load(VIEW)
    assert first.view.location.startswith(f"{WAREHOUSE}/ns/view-")
    updates = [{"action": "set-properties", "updates": {"c": "d"}}]
    second = await views.replace(VIEW, [{"type": "assert-view-uuid", "uuid": first.view.uuid}], updates)
    assert second.view.properties == {"a": "b", "c": "d"}
    assert (await world.another(9).views.load(VIEW)).location == second.location
    assert (await views.replace(VIEW, [], updates)).location == second.location, "nothing changed"
    with pytest.raises(errors.CommitConflict):
        await views.replace(VIEW, [{"type": "assert-view-uuid", "uuid": UUID}], updates)
    with pytest.raises(errors.InvalidInput, match="outside of the warehouse"):
        await views.replace(VIEW, [], [{"action": "set-location", "location": "file:/etc"}])
    await views.drop(VIEW)
    with pytest.raises(errors.UnknownView):
        await views.exists(VIEW)
    again = await views.register(VIEW, first.location)
    assert again.view.properties == {"a": "b"}
    with pytest.raises(errors.AlreadyExists, match=r"View already exists: ns\.view"):
        await views.register(VIEW, first.location)
    with pytest.raises(errors.AlreadyExists, match=r"Table with same name already exists: ns\.table"):
        await views.register(TABLE, first.location)


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_document_of_the_other_kind_is_not_registered(is_known: bool) -> None:
    """Whether it is remembered makes no difference."""
    world = CatalogWorld()
    table = await world.with_table()
    view = await world.catalog.views.create(VIEW, NEW_VIEW)
    located = (await world.catalog.tables.load(table)).location
    catalog = world.catalog if is_known else world.another(7)
    with pytest.raises(errors.MetadataFileDamaged, match=r"is the metadata file of a view|is not a metadata file"):
        await catalog.tables.register(Identifier(NS, "registered"), view.location)
    with pytest.raises(errors.MetadataFileDamaged, match="metadata file"):
        await catalog.views.register(Identifier(NS, "registered"), located)


# --- requests that name themselves ------------------------------------------------------------------------------------


def named(number: int, body: bytes = b"") -> IdempotentRequest:
    return IdempotentRequest(f"017f22e2-79b0-7cc3-98c4-{number:012x}", body)


async def test_hazard_13_an_idempotent_request_is_applied_once() -> None:
    world = CatalogWorld()
    calls = world.catalog
    for _ in range(3):
        await calls.namespaces.create(NS, {"a": "b"}, named(1))
        await calls.tables.create(TABLE, {"schema": SCHEMA}, named(2))
        await calls.views.create(VIEW, NEW_VIEW, named(3))
        await calls.namespaces.change_properties(NS, {"a": "c"}, [], named(4))
        change = CommitRequest([], [{"action": "set-properties", "updates": {"n": "1"}}])
        done = await calls.commits.commit(TABLE, change, named(5))
        assert done.table.properties["n"] == "1"
    assert len(world.metadata_files()) == 3
    for _ in range(2):
        await calls.tables.rename(TABLE, Identifier(NS, "renamed"), request=named(6))
        await calls.views.rename(VIEW, Identifier(NS, "renamed view"), named(7))
    for _ in range(2):
        await calls.tables.drop(Identifier(NS, "renamed"), request=named(8))
        await calls.views.drop(Identifier(NS, "renamed view"), named(9))
        await world.another(77).namespaces.drop(NS, named(10))


async def test_hazard_13_a_permanent_error_is_repeated() -> None:
    world = CatalogWorld()
    request = named(1)
    with pytest.raises(errors.UnknownNamespace):
        await world.catalog.tables.create(TABLE, {"schema": SCHEMA}, request)
    await world.catalog.namespaces.create(NS, {})
    with pytest.raises(errors.UnknownNamespace, match="Namespace does not exist: ns"):
        await world.catalog.tables.create(TABLE, {"schema": SCHEMA}, request)
    await world.catalog.tables.create(TABLE, {"schema": SCHEMA}, named(2))


async def test_hazard_13_an_idempotency_key_belongs_to_one_request() -> None:
    world = CatalogWorld()
    await world.catalog.namespaces.create(NS, {}, named(1, b"create ns"))
    with pytest.raises(errors.Contradiction, match="used for another request"):
        await world.catalog.namespaces.create(("other",), {}, named(1, b"create other"))
    with pytest.raises(errors.InvalidInput, match="is not a UUID"):
        IdempotentRequest("seven", b"")


async def test_hazard_13_a_request_is_forgotten_after_its_time() -> None:
    world = CatalogWorld()
    await world.catalog.namespaces.create(NS, {}, named(1))
    await world.catalog.namespaces.drop(NS)
    await settle()
    world.clock.advance(601)
    await settle()
    assert await world.catalog.namespaces.create(NS, {}, named(1)) == {"location": "file:/warehouse/ns"}
