"""Generated requests to every route of the catalog: each is answered in Iceberg's form, never with
500; what is refused changes nothing, and what was done can be read by the next process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.lake.iceberg.routes import ROUTES
from tests.support.asgi import AsgiResponse
from tests.support.hypothesis_effort import QUARTER
from tests.support.iceberg import IcebergClient, IcebergWorld, commit_of, error_of, set_properties
from tests.support.tables import NEW_VIEW, SCHEMA, add, point, snapshot

NAMED = {"namespace": ["ns"], "name": "t"}
# A body that fits, for each route that takes one: fuzzing goes on from there.
BODIES: dict[str, Any] = {
    "/v1/namespaces": {"namespace": ["ns", "deep"], "properties": {"a": "b"}},
    "/v1/namespaces/{namespace}/properties": {"removals": ["a"], "updates": {"b": "c"}},
    "/v1/namespaces/{namespace}/tables": {
        "name": "new", "schema": SCHEMA, "partition-spec": {"fields": []}, "write-order": None, "stage-create": False,
        "location": "file:/warehouse/new", "properties": {"format-version": "2"},
    },
    "/v1/namespaces/{namespace}/register": {"name": "r", "metadata-location": "file:/warehouse/x.metadata.json"},
    "/v1/namespaces/{namespace}/tables/{table}": {
        **commit_of([add(snapshot(1)), point("main", 1)], {"type": "assert-ref-snapshot-id", "ref": "main"}),
        "identifier": NAMED,
    },
    "/v1/namespaces/{namespace}/tables/{table}/metrics": {"report-type": "scan-report"},
    "/v1/tables/rename": {"source": NAMED, "destination": {"namespace": ["ns"], "name": "u"}},
    "/v1/transactions/commit": {"table-changes": [{"identifier": NAMED, **set_properties(a="b")}]},
    "/v1/namespaces/{namespace}/views": {"name": "w", **NEW_VIEW},
    "/v1/namespaces/{namespace}/register-view": {"name": "r", "metadata-location": "file:/warehouse/x.metadata.json"},
    "/v1/namespaces/{namespace}/views/{view}": set_properties(a="b"),
    "/v1/views/rename": {"source": NAMED, "destination": {"namespace": ["ns"], "name": "u"}},
}  # fmt: skip
UPDATES = [
    "assign-uuid", "upgrade-format-version", "add-schema", "set-current-schema", "add-spec", "set-default-spec",
    "add-sort-order", "set-default-sort-order", "add-snapshot", "set-snapshot-ref", "remove-snapshots",
    "remove-snapshot-ref", "set-location", "set-properties", "remove-properties", "set-statistics", "remove-statistics",
    "set-partition-statistics", "remove-partition-statistics", "remove-partition-specs", "remove-schemas",
    "add-encryption-key", "remove-encryption-key", "add-view-version", "set-current-view-version", "fly",
]  # fmt: skip
PLACES = [
    "file:/etc/passwd", "file:/warehouse/../etc", "file:///warehouse/./x", "/etc", "s3://bucket/x", "http://evil/x",
    "file:/warehouse", "file:/warehouse/\x00", "file:/warehouse/%2e%2e/etc", "file://host/warehouse", "", "x" * 5000,
]  # fmt: skip
EDGES = [-1, 0, 1, 3, 2**31 - 1, 2**31, 2**63 - 1, 2**63]
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from(EDGES)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
    | st.sampled_from([*UPDATES, *PLACES])
)
ANY_JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
NAMES = st.sampled_from(["ns", "t", "v", "u", "none", "ns\x1fdeep"]) | st.text(min_size=1, max_size=8)
QUERIES = st.sampled_from(
    [
        "",
        "?pageToken=&pageSize=1",
        "?pageToken=%ff",
        "?snapshots=refs",
        "?parent=ns",
        "?icestream-force",
        "?x=" + "y" * 99,
    ]
)


class FuzzedCatalog:
    def __init__(self, **request: Any) -> None:
        self.runner = asyncio.Runner()
        self.world = IcebergWorld()
        self.runner.run(self._begin(request))

    async def _begin(self, request: dict[str, Any]) -> None:
        client = await self.world.with_one(**request)
        await client("POST", "/namespaces/ns/views", {"name": "v", **NEW_VIEW})

    def ask(self, method: str, target: str, body: Any = None) -> AsgiResponse:
        return self.runner.run(self.world.client.ask(method, target, body))

    def revision(self) -> int:
        return self.runner.run(self.world.store.revision())

    def check(self, method: str, target: str, body: Any) -> None:
        before = self.revision(), self.world.metadata_files()
        answer = self.ask(method, target, body)
        if answer.status in (200, 204, 304):
            if self.revision() != before[0]:
                self.runner.run(self._read_by_another())
            return
        assert 400 <= answer.status < 500, (method, target, body, answer)
        error_of(answer)
        assert (self.revision(), self.world.metadata_files()) == before, "what is refused changes nothing"

    async def _read_by_another(self) -> None:
        """By a catalog that shares nothing with ours but the store and the files: it remembers no document."""
        another = IcebergClient(self.world.another(99))
        for kind in ("tables", "views"):
            for identifier in (await self.world.client("GET", f"/namespaces/ns/{kind}"))["identifiers"]:
                await another("GET", f"/namespaces/ns/{kind}/{quote(identifier['name'], safe='')}")


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[FuzzedCatalog]:
    catalog = FuzzedCatalog()
    yield catalog
    catalog.runner.close()


@st.composite
def target(draw: st.DrawFn) -> tuple[str, str, str]:
    """A method, a route, and a path of that route."""
    method, route = draw(st.sampled_from(sorted(ROUTES)))
    path = route
    for place in ("{namespace}", "{table}", "{view}"):
        while place in path:
            path = path.replace(place, quote(draw(NAMES).encode("utf-8", "replace"), safe=""), 1)
    return method, route, path + draw(QUERIES)


def bent(draw: st.DrawFn, value: Any, depth: int = 0) -> Any:
    """A value like this one: here and there something else, or less."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(ANY_JSON)
    if isinstance(value, dict):
        members = {name: bent(draw, member, depth + 1) for name, member in value.items() if draw(st.integers(0, 12))}
        return members if kind != 1 else {**members, draw(st.sampled_from([*members, "x"])): draw(ANY_JSON)}
    if isinstance(value, list):
        return [bent(draw, member, depth + 1) for member in value if draw(st.integers(0, 12))]
    if type(value) is int and kind < 4:
        return draw(st.sampled_from(EDGES))
    return draw(st.sampled_from(UPDATES)) if value in UPDATES and kind == 1 else value


bodies = st.composite(lambda draw, route: bent(draw, BODIES.get(route, {})))


@QUARTER
@given(st.data())
def test_any_request_to_any_route_is_answered_in_the_form_of_iceberg(
    fuzzed: FuzzedCatalog, data: st.DataObject
) -> None:
    method, _, path = data.draw(target())
    fuzzed.check(method, path, data.draw(ANY_JSON) if data.draw(st.booleans()) else None)


@given(st.data())
def test_bodies_that_nearly_fit(fuzzed: FuzzedCatalog, data: st.DataObject) -> None:
    method, route, path = data.draw(target().filter(lambda request: request[0] == "POST"))
    fuzzed.check(method, path, data.draw(bodies(route)))


@QUARTER
@given(st.sampled_from("123"), st.sampled_from(EDGES), st.sampled_from(EDGES), st.sampled_from(EDGES))
def test_commits_with_numbers_at_the_edge(version: str, number: int, sequence: int, rows: int) -> None:
    fuzzed = FuzzedCatalog(properties={"format-version": version})
    new_snapshot = snapshot(
        1, **{"snapshot-id": number, "sequence-number": sequence, "first-row-id": 0, "added-rows": rows}
    )
    new_snapshot["timestamp-ms"] = fuzzed.world.clock.wall_us() // 1000
    fuzzed.check("POST", "/v1/namespaces/ns/tables/t", commit_of([add(new_snapshot), point("main", number)]))
    newest = {"action": "upgrade-format-version", "format-version": 3}
    fuzzed.check("POST", "/v1/namespaces/ns/tables/t", commit_of([newest]))
    fuzzed.runner.close()


@QUARTER
@given(st.data(), st.binary(max_size=60))
def test_any_bytes_as_a_body(fuzzed: FuzzedCatalog, data: st.DataObject, raw: bytes) -> None:
    method, _, path = data.draw(target().filter(lambda request: request[0] == "POST"))
    fuzzed.check(method, path, raw)


@QUARTER
@given(st.binary(max_size=30), st.binary(max_size=20), st.sampled_from(["GET", "POST", "DELETE", "HEAD", "PUT"]))
def test_any_bytes_as_a_path(fuzzed: FuzzedCatalog, path: bytes, query: bytes, method: str) -> None:
    shown = "/v1/" + path.decode("latin-1").replace("?", "") + "?" + query.decode("latin-1")
    fuzzed.check(method, quote(shown, safe="/?%\x1f=&"), None)


@pytest.mark.parametrize("route", sorted({path for method, path in ROUTES if method == "POST"}))
@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b"7", b'"x"', b"{", b"NaN", b'{"name": NaN}', b'{"a": Infinity}', b"{}",
        b"[" * 100_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'{"name": "\xff"}', b'{"name": "\\ud800"}',
        b'{"namespace": ["a", 7]}', b'{"namespace": []}', b'{"namespace": [""]}',
        b'{"updates": [7], "requirements": []}',
        b'{"updates": [{"action": "fly"}], "requirements": []}', b'{"updates": [], "requirements": [{"type": "fly"}]}',
        b'{"updates": [{}], "requirements": [{}]}', b'{"table-changes": [{}]}', b'{"table-changes": []}',
        b'{"namespace": ["a"], "namespace": ["b"]}',
    ],
    ids=range(24),
)  # fmt: skip
def test_hostile_bodies(fuzzed: FuzzedCatalog, route: str, raw: bytes) -> None:
    path = route.format(namespace="ns", table="t", view="v")
    before = fuzzed.revision()
    answer = fuzzed.ask("POST", path, raw)
    if answer.status >= 400:
        assert error_of(answer)[0] < 500
        assert fuzzed.revision() == before
    assert answer.status < 500


@pytest.mark.parametrize("place", PLACES)
def test_locations_outside_the_warehouse_are_refused(place: str) -> None:
    if place == "file:/warehouse":
        return  # the root itself is inside

    async def ask() -> None:
        world = IcebergWorld()
        client: IcebergClient = await world.with_one()
        for path, body in (
            ("/namespaces/ns/tables", {"name": "new", "schema": SCHEMA, "location": place}),
            ("/namespaces/ns/tables", {"name": "new", "schema": SCHEMA, "properties": {"write.metadata.path": place}}),
            ("/namespaces/ns/register", {"name": "new", "metadata-location": place}),
            ("/namespaces/ns/tables/t", commit_of([{"action": "set-location", "location": place}])),
            ("/namespaces/ns/views", {"name": "new", **NEW_VIEW, "location": place}),
            ("/namespaces/ns/register-view", {"name": "new", "metadata-location": place}),
        ):
            if not place and "write.metadata.path" in json.dumps(body):
                continue  # as if it were not there
            assert (await client.refused("POST", path, body))[0] in (400, 404), (path, place)
        assert [name for name in world.disk.names() if not name.startswith("/warehouse/ns/t-")] == []

    asyncio.run(ask())


def test_the_catalog_is_healthy_after_the_fuzzing(fuzzed: FuzzedCatalog) -> None:
    assert fuzzed.ask("GET", "/v1/config").status == 200
    assert fuzzed.ask("GET", "/v1/namespaces").status == 200
