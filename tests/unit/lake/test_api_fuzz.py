"""Generated requests: every request to every route is answered, and the broker continues.

They are drawn from the API's own description: each route, its parameters, and bodies that fit its schema, nearly fit
it, or do not at all.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.lake.problems import _CODES
from tests.support.api import Api, served_api
from tests.support.hypothesis_effort import QUARTER

KNOWN_CODES = {
    kind.code for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.IcestreamError)
} | set(_CODES.values())
# Names that are there, names that could be, and what is no name.
NAMES = st.sampled_from(
    ["default", "system", "orders", "s", "p", "c", "log.level", "broker.auto_create_topics", "a-1", "日本"]
)
WEIRD = st.text(min_size=1, max_size=20) | st.sampled_from(
    ["..", ".", "%2e%2e", "a/b", "a b", "\x00", "é", "a" * 300, "name-part-0", "?", "#", "\ud800"]
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=10)
ANY_JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


class FuzzedApi:
    """A node and its API for all examples, on one loop."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self._context = served_api(folder)
        self.api: Api = self.runner.run(self._context.__aenter__())
        self.runner.run(self.api("POST", "/namespaces/default/topics", {"name": "orders", "shards": 2}))
        self.runner.run(self.api("POST", "/namespaces/default/topics/orders/subscriptions", {"subscription": "s"}))
        self.described = self.runner.run(self.api("GET", "/openapi.json"))
        self.operations = [
            (method, path, operation)
            for path, operations in self.described["paths"].items()
            for method, operation in operations.items()
        ]

    def close(self) -> None:
        self.runner.run(self._context.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[FuzzedApi]:
    with tempfile.TemporaryDirectory() as folder:
        fuzzed_api = FuzzedApi(Path(folder) / "data")
        yield fuzzed_api
        fuzzed_api.close()


def fitting(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a JSON schema, as far as the API uses it."""
    if "$ref" in schema:
        return fitting(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return st.one_of(*(fitting(alternative, schemas) for alternative in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "integer":
            low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
            return st.integers(low, high) | st.sampled_from([low, high])
        case "string":
            return NAMES | WEIRD
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "object":
            fields = {
                name: fitting(property_schema, schemas)
                for name, property_schema in schema.get("properties", {}).items()
            }
            needed = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(needed, optional=fields)
        case _:
            return ANY_JSON


def body_of(operation: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "requestBody" not in operation:
        return st.none() | ANY_JSON
    fits = fitting(operation["requestBody"]["content"]["application/json"]["schema"], schemas)
    return fits | fits | ANY_JSON


@given(st.data())
def test_every_request_is_answered_with_valid_http(fuzzed: FuzzedApi, data: st.DataObject) -> None:
    method, path, operation = data.draw(st.sampled_from(fuzzed.operations))
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            value = data.draw(NAMES | WEIRD, label=parameter["name"])
            path = path.replace(f"{{{parameter['name']}}}", quote(value, safe="", errors="surrogatepass"))
    query = data.draw(
        st.none() | st.sampled_from(["limit=1", "limit=-1", "limit=x", "after=%ff", "after=/default/a&x=1"])
    )
    body = data.draw(body_of(operation, fuzzed.described["components"]["schemas"]))
    raw = b"" if body is None else json.dumps(body).encode()
    request = fuzzed.api.ask(method.upper(), path + (f"?{query}" if query else ""), raw)
    answer = fuzzed.runner.run(asyncio.wait_for(request, 10))
    if answer.status >= 300:
        assert answer.is_problem, answer
        assert answer.json["code"] in KNOWN_CODES
        assert answer.status != 500, answer.body
        assert answer.json["status"] == answer.status
    elif answer.body:
        assert isinstance(answer.json, dict)


@QUARTER
@given(st.binary(max_size=200))
def test_any_bytes_as_a_body_are_answered(fuzzed: FuzzedApi, raw: bytes) -> None:
    answer = fuzzed.runner.run(fuzzed.api.ask("POST", "/api/v1/namespaces/default/topics", raw))
    assert answer.status in (201, 400, 409)


def test_the_node_is_healthy_after_the_fuzzing(fuzzed: FuzzedApi) -> None:
    assert fuzzed.runner.run(fuzzed.api("GET", "/health"))["ready"] is True
