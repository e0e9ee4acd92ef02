"""Hazard 13: a repeat under its Idempotency-Key is never told that a completed request failed, is never shown another
client's table as its own, and never undoes later changes, also where the request had changed nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from icestream import errors
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.iceberg import IcebergClient, IcebergWorld, set_properties
from tests.support.tables import NEW_VIEW, SCHEMA

pytestmark = pytest.mark.asyncio

KEY = "01890a5d-ac96-774b-bcce-b302099a8057"
TABLES, VIEWS = "/namespaces/ns/tables", "/namespaces/ns/views"
UNKNOWN = (500, "CommitStateUnknownException")


def named(name: str) -> dict[str, Any]:
    return {"namespace": ["ns"], "name": name}


# Requests that answer with a table or view, by name: where they go, with what, and the name of what they answer with.
REQUESTS: dict[str, tuple[str, Any, str]] = {
    "commit": (f"{TABLES}/t", set_properties(a="b"), f"{TABLES}/t"),
    "transaction": (
        "/transactions/commit",
        {"table-changes": [{"identifier": named("t"), **set_properties(a="b")}]},
        f"{TABLES}/t",
    ),
    "create": (TABLES, {"name": "new", "schema": SCHEMA}, f"{TABLES}/new"),
    "register": ("/namespaces/ns/register", {"name": "new"}, f"{TABLES}/new"),
    "create view": (VIEWS, {"name": "new", **NEW_VIEW}, f"{VIEWS}/new"),
    "replace view": (f"{VIEWS}/v", set_properties(c="d"), f"{VIEWS}/v"),
    "register view": ("/namespaces/ns/register-view", {"name": "new"}, f"{VIEWS}/new"),
}


async def world_with_everything() -> IcebergWorld:
    world = IcebergWorld()
    client = await world.with_one()
    await client("POST", VIEWS, {"name": "v", **NEW_VIEW})
    return world


async def body_of(world: IcebergWorld, name: str) -> Any:
    """A registration is of what was there once and is not any more."""
    path, body, _ = REQUESTS[name]
    if "register" not in path:
        return body
    kind, definition = (VIEWS, NEW_VIEW) if path.endswith("view") else (TABLES, {"schema": SCHEMA})
    created = await world.client("POST", kind, {"name": "once", **definition})
    await world.client("DELETE", f"{kind}/once")
    return {**body, "metadata-location": created["metadata-location"]}


async def _dropped(client: IcebergClient, place: str) -> None:
    await client("DELETE", place)


async def _renamed(client: IcebergClient, place: str) -> None:
    kind, name = place.split("/")[-2:]
    await client("POST", f"/{kind}/rename", {"source": named(name), "destination": named("elsewhere")})


async def _made_anew(client: IcebergClient, place: str) -> None:
    await _renamed(client, place)
    collection, name = place.rsplit("/", 1)
    definition = {"schema": SCHEMA} if collection == TABLES else NEW_VIEW
    await client("POST", collection, {"name": name, **definition})


@pytest.mark.parametrize("act", [_dropped, _renamed, _made_anew], ids=lambda act: act.__name__[1:])
@pytest.mark.parametrize("name", REQUESTS)
async def test_hazard_13_a_repeat_never_reports_a_done_change_as_missing(
    name: str, act: Callable[[IcebergClient, str], Awaitable[None]]
) -> None:
    """404 would tell an engine to delete the files of a commit that landed; another table's metadata, what it did."""
    world = await world_with_everything()
    path, _, place = REQUESTS[name]
    body = await body_of(world, name)
    await world.client("POST", path, body, idempotency_key=KEY)
    await world.client("POST", path, body, idempotency_key=KEY)
    await act(world.client, place)
    assert (await world.client.refused("POST", path, body, idempotency_key=KEY))[:2] == UNKNOWN


@pytest.mark.parametrize("name", REQUESTS)
async def test_hazard_13_a_repeat_is_never_answered_with_store_unavailable(name: str) -> None:
    """503 says that nothing was done."""
    world = await world_with_everything()
    path, body = REQUESTS[name][0], await body_of(world, name)
    await world.client("POST", path, body, idempotency_key=KEY)
    catalog = world.another(77)

    async def away(_: str) -> bytes:
        raise errors.StorageUnavailable("the object store does not answer", is_ambiguous=True)

    catalog.commits._runner.documents._files.read = away  # type: ignore[method-assign]
    error = await IcebergClient(catalog).refused("POST", path, body, idempotency_key=KEY)
    assert error[:2] == UNKNOWN


async def test_hazard_13_a_repeated_namespace_creation_is_answered_whatever_happened_to_it() -> None:
    client = (await world_with_everything()).client
    namespace = {"namespace": ["new"], "properties": {"a": "b"}}
    first = await client("POST", "/namespaces", namespace, idempotency_key=KEY)
    await client("DELETE", "/namespaces/new")
    assert await client("POST", "/namespaces", namespace, idempotency_key=KEY) == first


# --- requests that changed nothing ---


async def _property(client: IcebergClient, place: str) -> Any:
    answer = await client("GET", place)
    return answer.get("metadata", answer)["properties"]["a"]


# Where the same is said twice, and how.
SAYING: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "commit": (f"{TABLES}/t", lambda value: set_properties(a=value), f"{TABLES}/t"),
    "transaction": (
        "/transactions/commit",
        lambda value: {"table-changes": [{"identifier": named("t"), **set_properties(a=value)}]},
        f"{TABLES}/t",
    ),
    "replace view": (f"{VIEWS}/v", lambda value: set_properties(a=value), f"{VIEWS}/v"),
    "namespace": ("/namespaces/ns/properties", lambda value: {"updates": {"a": value}}, "/namespaces/ns"),
}


@pytest.mark.parametrize("name", SAYING)
async def test_hazard_13_a_repeat_of_a_no_op_changes_nothing(name: str) -> None:
    client = (await world_with_everything()).client
    path, request_of, place = SAYING[name]
    await client("POST", path, request_of("1"))
    first = await client.sent("POST", path, request_of("1"), idempotency_key=KEY)
    await client("POST", path, request_of("2"))
    again = await client.sent("POST", path, request_of("1"), idempotency_key=KEY)
    assert (first.status, again.status) in ((200, 200), (204, 204))
    assert await _property(client, place) == "2", "another client has set it since"


@pytest.mark.parametrize("name", SAYING)
async def test_hazard_13_an_apparent_no_op_is_decided_by_the_current_state(name: str) -> None:
    """The key is stored only if nothing has changed since the request was judged."""
    store = FaultyStore(SimulatedClock())
    world = IcebergWorld(store=store)
    client = await world.with_one()
    await client("POST", VIEWS, {"name": "v", **NEW_VIEW})
    path, request_of, place = SAYING[name]
    await client("POST", path, request_of("1"))
    other = IcebergClient(world.another(50))
    store.before_txn = lambda: other("POST", path, request_of("2"))
    await client("POST", path, request_of("1"), idempotency_key=KEY)
    assert await _property(client, place) == "1", "this request came after the other one"


async def test_hazard_13_a_repeat_returns_the_same_property_lists() -> None:
    client = (await world_with_everything()).client
    await client("POST", "/namespaces/ns/properties", {"updates": {"old": "x"}})
    changes = {"removals": ["old", "never"], "updates": {"x": "y"}}
    first = await client("POST", "/namespaces/ns/properties", changes, idempotency_key=KEY)
    assert first == {"updated": ["x"], "removed": ["old"], "missing": ["never"]}
    assert await client("POST", "/namespaces/ns/properties", changes, idempotency_key=KEY) == first
