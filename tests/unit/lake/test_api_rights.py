"""Every route of /api/v1 has a caller: without a credential it is refused, and forwarded calls carry the session."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from icestream.iceberg.identifier import Identifier
from icestream.lake.api_app import build_app
from icestream.lake.broker_calls import PREFIX
from icestream.lake.request_caller import RequestCaller
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from tests.support.asgi import AsgiResponse
from tests.support.secured_lake import SecuredLake, secured_lake
from tests.support.tables import SCHEMA

pytestmark = pytest.mark.asyncio


@lru_cache
def description() -> dict[str, Any]:
    return build_app(LinkKeeper(Path("none"), "test", SystemClock()), "127.0.0.1").openapi()


def api_operations() -> list[tuple[str, str]]:
    return [
        (method.upper(), path)
        for path, operations in description()["paths"].items()
        for method in operations
        if path.startswith(f"{PREFIX}/")
    ]


def valid_body(method: str, template: str) -> Any:
    """The required fields of the body of a route, with values that do not matter; None for a route without a body."""
    request = description()["paths"][template][method.lower()].get("requestBody")
    if request is None:
        return None
    schema = request["content"]["application/json"]["schema"]
    body: dict[str, Any] = _value(schema)
    return body | ({"topic": "/shop/orders"} if "topic" in body else {})


def _value(schema: dict[str, Any]) -> Any:
    if "$ref" in schema:
        schema = description()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    match schema.get("type"):
        case "object":
            return {name: _value(schema["properties"][name]) for name in schema.get("required", ())}
        case "array":
            return [_value(schema["items"])]
        case "integer" | "boolean":
            return 1
    return schema["enum"][0] if "enum" in schema else "orders"


async def send(lake: SecuredLake, caller: str, method: str, template: str) -> AsgiResponse:
    """A request of a route, with names that do not matter."""
    path = re.sub(r"\{[a-z]+\}", "0", template)
    if template.startswith(f"{PREFIX}/lake/"):
        path += "?namespace=shop&table=orders&topic=/shop/orders"
    elif template == f"{PREFIX}/mqtt/session":
        path += "?client_id=orders"
    return await lake.as_(caller, method, path, valid_body(method, template))


async def test_hazard_108_a_forged_credential_is_refused_by_every_route(tmp_path: Path) -> None:
    assert len(api_operations()) > 40
    async with secured_lake(tmp_path, {}) as lake:
        for method, template in api_operations():
            path = re.sub(r"\{[a-z]+\}", "0", template)
            answer = await lake.ask(method, path, None, {"authorization": "Bearer forged"})
            assert answer.status == 401, (method, template, answer)


# Routes that the lake process answers by itself, and for which it asks for rights itself.
OF_THE_LAKE = tuple(f"{PREFIX}/{part}" for part in ("lake/", "backups", "archives", "drills"))


async def test_hazard_108_what_the_lake_does_by_itself_needs_a_credential(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {}) as lake:
        for method, template in api_operations():
            if template.startswith(OF_THE_LAKE):
                answer = await send(lake, "anonymous", method, template)
                needs_scans = template.startswith(
                    (f"{PREFIX}/lake/bound", f"{PREFIX}/lake/parted", f"{PREFIX}/lake/ver")
                )
                assert answer.status == (400 if needs_scans else 401), (method, template, answer)


async def test_hazard_108_every_forwarded_call_carries_the_session_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route that forgets its caller calls the broker as the lake process itself, or not at all."""
    sessions: list[int] = []
    original = RequestCaller.call

    async def recorded(self: RequestCaller, keeper: LinkKeeper, method: str, arguments: dict[str, Any]) -> Any:
        sessions.append(self._session)
        return await original(self, keeper, method, arguments)

    monkeypatch.setattr(RequestCaller, "call", recorded)
    async with secured_lake(tmp_path, {}) as lake:
        for method, template in api_operations():
            if template.startswith(OF_THE_LAKE):
                continue
            sessions.clear()
            answer = await send(lake, "alice", method, template)
            assert sessions, (method, template, answer)
            assert min(sessions) > 0, (method, template)


TABLE = {"namespace": ["ns"], "table": "t"}


@pytest.mark.parametrize(
    ("route", "body", "rules"),
    [
        ("bind", {**TABLE, "topic": "/shop/new"}, ["all on /shop/new"]),
        ("bind", {**TABLE, "topic": "/shop/new"}, ["all on table:/ns/t", "read on /shop/new"]),
        ("adopt", {**TABLE, "topic": "/shop/new"}, ["all on /shop/new"]),
        ("adopt", {**TABLE, "topic": "/shop/new"}, ["all on table:/ns/t", "read on /shop/new"]),
        ("adopt", {"namespace": ["shop"], "table": "secret", "topic": "/shop/new"}, ["all on /shop/new"]),
        ("rewind", {"namespace": ["shop"], "table": "orders"}, ["read,table-write on /shop/orders"]),
        ("detach", {"namespace": ["shop"], "table": "orders"}, ["all on table:/shop/orders", "read on /shop/orders"]),
        ("drop", {"namespace": ["shop"], "table": "orders", "force": True}, ["read,table-write on /shop/orders"]),
        ("drop", {**TABLE, "purge": True}, ["describe,delete on table:/ns/t"]),
        ("recreate", {"topic": "/shop/orders"}, ["read on /shop/orders"]),
        ("recreate", {"topic": "/shop/orders", **TABLE}, ["all on /shop/orders"]),
    ],
)
async def test_hazard_110_an_operation_needs_the_rights_of_both_sides(
    tmp_path: Path, route: str, body: dict[str, Any], rules: list[str]
) -> None:
    async with secured_lake(tmp_path, {"one": rules}) as lake:
        before = await lake.store.list_all("/catalog/")
        answer = await lake.as_("one", "POST", f"{PREFIX}/lake/{route}", body)
        assert answer.status in (403, 404), answer
        assert b"unknown method" not in answer.body, "it was asked for before anything was forwarded"
        assert await lake.store.list_all("/catalog/") == before


async def test_hazard_121_commits_to_tables_of_the_broker_are_denied(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {"root": ["admin on cluster"]}) as lake:
        body = {"name": "audit", "schema": SCHEMA}
        await lake.catalog.namespaces.create(("system",), {})
        assert (await lake.as_("root", "POST", "/v1/namespaces/system/tables", body)).status == 403
        await lake.catalog.tables.create(Identifier(("system",), "audit"), body)
        path = "/v1/namespaces/system/tables/audit"
        assert (await lake.as_("root", "GET", path)).status == 200
        assert (await lake.as_("root", "DELETE", f"{path}?icestream-force=true")).status == 403
