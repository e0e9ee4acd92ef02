"""Hazard 13 and 47 as clients see them: what HTTP says when answers get lost, and what it never says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from icestream import error_codes, errors, limits
from icestream.runtime.clock import SimulatedClock
from tests.support.asgi import AsgiResponse
from tests.support.faulty_store import FaultyStore
from tests.support.iceberg import IcebergClient, IcebergWorld, commit_of, error_of, set_properties
from tests.support.tables import NEW_VIEW, SCHEMA, add, point, snapshot

pytestmark = pytest.mark.asyncio

TABLE = "/namespaces/ns/tables/t"
KEY = "01890a5d-ac96-774b-bcce-b302099a8057"
NAMED = {"namespace": ["ns"], "name": "t"}
# Every request that changes something.
MUTATIONS: dict[str, tuple[str, str, Any]] = {
    "create a namespace": ("POST", "/namespaces", {"namespace": ["other"]}),
    "change its properties": ("POST", "/namespaces/ns/properties", {"updates": {"a": "b"}}),
    "drop one": ("DELETE", "/namespaces/empty", None),
    "create a table": ("POST", "/namespaces/ns/tables", {"name": "u", "schema": SCHEMA}),
    "commit": ("POST", TABLE, set_properties(a="b")),
    "commit a transaction": (
        "POST", "/transactions/commit", {"table-changes": [{"identifier": NAMED, **set_properties(a="b")}]},
    ),
    "rename": ("POST", "/tables/rename", {"source": NAMED, "destination": {"namespace": ["ns"], "name": "u"}}),
    "drop a table": ("DELETE", TABLE, None),
    "create a view": ("POST", "/namespaces/ns/views", {"name": "w", **NEW_VIEW}),
    "replace a view": ("POST", "/namespaces/ns/views/v", set_properties(c="d")),
    "drop a view": ("DELETE", "/namespaces/ns/views/v", None),
}  # fmt: skip


async def world_with_everything() -> tuple[IcebergWorld, FaultyStore]:
    store = FaultyStore(SimulatedClock())
    world = IcebergWorld(store=store)
    client = await world.with_one()
    await client("POST", "/namespaces", {"namespace": ["empty"]})
    await client("POST", "/namespaces/ns/views", {"name": "v", **NEW_VIEW})
    return world, store


async def state_of(world: IcebergWorld) -> dict[str, Any]:
    """All that clients can see, as another node answers it."""
    client = IcebergClient(world.another(99))
    namespaces = await client("GET", "/namespaces"), await client("GET", "/namespaces/ns")
    tables = (await client("GET", "/namespaces/ns/tables"))["identifiers"]
    views = (await client("GET", "/namespaces/ns/views"))["identifiers"]
    documents = [await client("GET", f"/namespaces/ns/tables/{table['name']}") for table in tables]
    documents += [await client("GET", f"/namespaces/ns/views/{view['name']}") for view in views]
    return {"namespaces": namespaces, "tables": tables, "views": views, "documents": documents}


async def while_down(world: IcebergWorld, store: FaultyStore, method: str, path: str, body: Any) -> AsgiResponse:
    """The answer to a request during which the store goes down, and stays so."""

    async def goes_down() -> None:
        store.is_down = True

    store.after_lost = goes_down
    asking = asyncio.ensure_future(world.client.sent(method, path, body, idempotency_key=KEY))
    while not asking.done():
        await asyncio.sleep(0)
        world.clock.advance(limits.CATALOG_RESOLVE_RETRY_SECONDS)
    return await asking


@pytest.mark.parametrize("how", ["done", "never", "late"])
@pytest.mark.parametrize("name", MUTATIONS)
async def test_hazard_13_a_lost_reply_that_can_be_resolved_is_a_success(name: str, how: str) -> None:
    world, store = await world_with_everything()
    before = await state_of(world)
    store.lose(how)
    answer = await world.client.sent(*MUTATIONS[name])
    assert answer.status in (200, 204), answer.body
    after = await state_of(world)
    assert after != before
    await store.deliver()
    assert await state_of(world) == after, "a late request has no effect"


@pytest.mark.parametrize("how", ["done", "never", "late"])
@pytest.mark.parametrize("name", MUTATIONS)
async def test_hazard_13_an_unknown_outcome_is_reported_and_settled_by_an_idempotent_repeat(
    name: str, how: str
) -> None:
    world, store = await world_with_everything()
    before = await state_of(world)
    store.lose(how)
    answer = await while_down(world, store, *MUTATIONS[name])
    assert error_of(answer)[:2] == (500, "CommitStateUnknownException")
    store.is_down = False
    await store.deliver()
    again = await world.client.sent(*MUTATIONS[name], idempotency_key=KEY)
    assert again.status in (200, 204), again.body
    after = await state_of(world)
    assert after != before
    third = await world.client.sent(*MUTATIONS[name], idempotency_key=KEY)
    assert third.status == again.status
    assert await state_of(world) == after, "the request was carried out once"


@pytest.mark.parametrize("name", MUTATIONS)
async def test_hazard_13_an_unavailable_store_is_503_and_leaves_no_file(name: str) -> None:
    """Before anything was proposed: a definite refusal, and no file is left behind."""
    world, store = await world_with_everything()
    before, files = await state_of(world), world.metadata_files()
    store.is_down = True
    answer = await world.client.sent(*MUTATIONS[name])
    assert error_of(answer)[:2] == (503, "ServiceUnavailableException")
    assert answer.headers["retry-after"] == "1"
    store.is_down = False
    assert (await state_of(world), world.metadata_files()) == (before, files)


@pytest.mark.parametrize("kind", sorted({errors.InvalidInput, *errors.BY_CODE.values()}, key=lambda error: error.code))
async def test_hazard_13_status_500_is_used_for_unknown_outcomes_only(kind: type[errors.IcestreamError]) -> None:
    """Java takes every 500 of a commit for an unknown outcome, and keeps its files for ever."""
    status, name = error_codes.iceberg_error(kind("x"))
    catalog_never_raises = issubclass(kind, errors.ClientError | errors.ConfigurationError)
    if kind is errors.ForeignBroker:
        assert status == 421, "refused before anything was done: the request was for another broker"
    elif kind in (errors.IcestreamError, errors.OutcomeUnknown) or catalog_never_raises:
        assert status == 500
    else:
        assert status != 500
        assert name != "CommitStateUnknownException"


async def test_hazard_13_a_client_without_a_key_finds_its_own_snapshot_after_a_lost_reply() -> None:
    """Without a key a client that lost the answer finds its own snapshot when it looks, and must not clean up."""
    world, _ = await world_with_everything()
    body = commit_of(
        [add(snapshot(1)), point("main", 1)], {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}
    )
    await world.client("POST", TABLE, body)
    assert (await world.client.refused("POST", TABLE, body))[:2] == (409, "CommitFailedException")
    loaded = await world.client("GET", f"{TABLE}?snapshots=refs")
    assert loaded["metadata"]["current-snapshot-id"] == 1


async def test_hazard_47_after_an_ambiguous_transaction_every_table_shows_its_state() -> None:
    for how, expected in (("done", "b"), ("never", None)):
        world, store = await world_with_everything()
        await world.client("POST", "/namespaces/ns/tables", {"name": "u", "schema": SCHEMA})
        changes = [{"identifier": {"namespace": ["ns"], "name": name}, **set_properties(a="b")} for name in ("t", "u")]
        store.lose(how)
        answer = await while_down(world, store, "POST", "/transactions/commit", {"table-changes": changes})
        assert error_of(answer)[:2] == (500, "CommitStateUnknownException")
        store.is_down = False
        client = IcebergClient(world.another(5))
        for name in ("t", "u"):
            loaded = await client("GET", f"/namespaces/ns/tables/{name}")
            assert loaded["metadata"]["properties"].get("a") == expected
            assert loaded["metadata-location"] in world.metadata_files()
