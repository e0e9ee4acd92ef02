"""Every route of Iceberg's protocol as anonymous, without rights, with exactly the right, and with a neighbour's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from icestream import errors
from icestream.iceberg.identifier import Identifier
from icestream.lake.iceberg.access import NO_ACCESS
from icestream.lake.iceberg.routes import ROUTES
from tests.support.asgi import AsgiResponse
from tests.support.iceberg import commit_of, set_properties
from tests.support.secured_lake import ORDERS, PLAIN, SecuredLake, secured_lake
from tests.support.signed_store import S3_WAREHOUSE, file_uri, signing_access
from tests.support.tables import SCHEMA
from tests.support.warehouse import WAREHOUSE

pytestmark = pytest.mark.asyncio
NS, TABLE, VIEW = "/v1/namespaces/ns", "/v1/namespaces/ns/tables/t", "/v1/namespaces/ns/views/v"
NEW_TABLE = {"name": "new", "schema": SCHEMA}
NEW_VIEW = {
    "name": "new",
    "schema": SCHEMA,
    "properties": {},
    "view-version": {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
        "default-namespace": ["ns"],
    },
}
T, NEW, N = "table:/ns/t", "table:/ns/new", "namespace:/ns"
NEIGHBOUR_T, NEIGHBOUR_N = "table:/ns/t2", "namespace:/ns2"


def renamed(kind: str) -> dict[str, Any]:
    return {"source": {"namespace": ["ns"], "name": kind}, "destination": {"namespace": ["ns"], "name": "new"}}


class Example(NamedTuple):
    """A request of a route; the rules that allow exactly it, and the same rules for a neighbour."""

    path: str
    body: Any = None
    exact: tuple[str, ...] = ()
    neighbour: tuple[str, ...] = ()
    is_listing: bool = False  # answered without rights, with nothing in it
    warehouse: str = WAREHOUSE


def on_table(*actions: str, resource: str = T, neighbour: str = NEIGHBOUR_T) -> dict[str, tuple[str, ...]]:
    rule = ",".join(actions)
    return {"exact": (f"{rule} on {resource}",), "neighbour": (f"describe,{rule} on {neighbour}",)}


def on_view(action: str) -> dict[str, tuple[str, ...]]:
    return on_table(action, resource="table:/ns/v", neighbour="table:/ns/v2")


def on_namespace(action: str, resource: str = N) -> dict[str, tuple[str, ...]]:
    return {"exact": (f"{action} on {resource}",), "neighbour": (f"{action} on {NEIGHBOUR_N}",)}


COMMIT = set_properties(a="b")
EXAMPLES: dict[tuple[str, str], Example] = {
    ("GET", "/v1/config"): Example("/v1/config"),
    ("GET", "/v1/namespaces"): Example("/v1/namespaces", **on_namespace("describe"), is_listing=True),
    ("POST", "/v1/namespaces"): Example(
        "/v1/namespaces", {"namespace": ["made"]}, **on_namespace("create", "namespace:/made")
    ),
    ("GET", "/v1/namespaces/{namespace}"): Example(NS, **on_namespace("describe")),
    ("HEAD", "/v1/namespaces/{namespace}"): Example(NS, **on_namespace("describe")),
    ("DELETE", "/v1/namespaces/{namespace}"): Example(
        "/v1/namespaces/empty", **on_namespace("delete", "namespace:/empty")
    ),
    ("POST", "/v1/namespaces/{namespace}/properties"): Example(
        f"{NS}/properties", {"updates": {"a": "b"}}, **on_namespace("alter")
    ),
    ("GET", "/v1/namespaces/{namespace}/tables"): Example(f"{NS}/tables", **on_namespace("describe")),
    ("POST", "/v1/namespaces/{namespace}/tables"): Example(
        f"{NS}/tables", NEW_TABLE, **on_table("create", resource=NEW)
    ),
    ("POST", "/v1/namespaces/{namespace}/register"): Example(
        f"{NS}/register", {"name": "new", "metadata-location": ""}, ("admin on cluster",), ("all on table:/**",)
    ),
    ("GET", "/v1/namespaces/{namespace}/tables/{table}"): Example(TABLE, **on_table("table-read")),
    ("HEAD", "/v1/namespaces/{namespace}/tables/{table}"): Example(TABLE, **on_table("describe")),
    ("POST", "/v1/namespaces/{namespace}/tables/{table}"): Example(TABLE, COMMIT, **on_table("table-write")),
    ("DELETE", "/v1/namespaces/{namespace}/tables/{table}"): Example(TABLE, **on_table("delete")),
    ("POST", "/v1/namespaces/{namespace}/tables/{table}/metrics"): Example(
        f"{TABLE}/metrics", {"report-type": "scan-report"}, **on_table("describe")
    ),
    ("GET", "/v1/namespaces/{namespace}/tables/{table}/credentials"): Example(
        f"{TABLE}/credentials", **on_table("table-read")
    ),
    ("POST", "/v1/namespaces/{namespace}/tables/{table}/sign"): Example(
        f"{TABLE}/sign",
        {"method": "GET", "uri": "", "region": "r", "headers": {}},
        **on_table("table-read"),
        warehouse=S3_WAREHOUSE,
    ),
    ("POST", "/v1/tables/rename"): Example(
        "/v1/tables/rename",
        renamed("t"),
        (f"alter on {T}", f"create on {NEW}"),
        (f"describe,alter on {T}", f"create on {NEIGHBOUR_T}"),
    ),
    ("POST", "/v1/transactions/commit"): Example(
        "/v1/transactions/commit",
        {"table-changes": [{**COMMIT, "identifier": {"namespace": ["ns"], "name": name}} for name in ("t", "t2")]},
        (f"table-write on {T}", f"table-write on {NEIGHBOUR_T}"),
        (f"describe on {T}", f"describe,table-write on {NEIGHBOUR_T}"),
    ),
    ("GET", "/v1/namespaces/{namespace}/views"): Example(f"{NS}/views", **on_namespace("describe")),
    ("POST", "/v1/namespaces/{namespace}/views"): Example(f"{NS}/views", NEW_VIEW, **on_table("create", resource=NEW)),
    ("POST", "/v1/namespaces/{namespace}/register-view"): Example(
        f"{NS}/register-view", {"name": "new", "metadata-location": ""}, ("admin on cluster",), ("all on table:/**",)
    ),
    ("GET", "/v1/namespaces/{namespace}/views/{view}"): Example(VIEW, **on_view("query")),
    ("HEAD", "/v1/namespaces/{namespace}/views/{view}"): Example(VIEW, **on_view("describe")),
    ("POST", "/v1/namespaces/{namespace}/views/{view}"): Example(
        VIEW, commit_of([{"action": "set-properties", "updates": {"a": "b"}}]), **on_view("table-write")
    ),
    ("DELETE", "/v1/namespaces/{namespace}/views/{view}"): Example(VIEW, **on_view("delete")),
    ("POST", "/v1/views/rename"): Example(
        "/v1/views/rename",
        renamed("v"),
        ("alter on table:/ns/v", f"create on {NEW}"),
        ("describe,alter on table:/ns/v", f"create on {NEIGHBOUR_T}"),
    ),
}


async def test_every_route_has_an_example() -> None:
    assert EXAMPLES.keys() == ROUTES.keys()


async def filled(lake: SecuredLake) -> Callable[[Example], Any]:
    """Adds a second table, a view and an empty namespace; returns what fills in the file to register."""
    await lake.with_table("t2")
    for name in ("v", "v2"):
        await lake.catalog.views.create(Identifier(("ns",), name), {**NEW_VIEW, "name": name})
    await lake.catalog.namespaces.create(("empty",), {})
    dropped = await lake.with_table("dropped")
    table_file = (await lake.catalog.tables.load(dropped)).location
    await lake.catalog.tables.drop(dropped)
    view_file = (await lake.catalog.views.create(Identifier(("ns",), "w"), {**NEW_VIEW, "name": "w"})).location
    await lake.catalog.views.drop(Identifier(("ns",), "w"))

    location = (await lake.catalog.tables.load(PLAIN)).table.location

    def fill(example: Example) -> Any:
        if isinstance(example.body, dict) and "uri" in example.body:
            return {**example.body, "uri": file_uri(location, "data/f.parquet")}
        if isinstance(example.body, dict) and "metadata-location" in example.body:
            return {**example.body, "metadata-location": view_file if example.path.endswith("view") else table_file}
        return example.body

    return fill


@pytest.mark.parametrize(("method", "route"), EXAMPLES, ids=str)
async def test_a_route_needs_exactly_its_right(tmp_path: Path, method: str, route: str) -> None:
    example = EXAMPLES[method, route]
    rules = {"exact": example.exact, "neighbour": example.neighbour}
    access = signing_access() if example.warehouse == S3_WAREHOUSE else NO_ACCESS
    async with secured_lake(tmp_path, rules, access, warehouse=example.warehouse) as lake:
        body = (await filled(lake))(example)
        before = await lake.store.list_all("/catalog/")
        answers = {name: await lake.as_(name, method, example.path, body) for name in ("anonymous", "nobody")}
        answers["neighbour"] = await lake.as_("neighbour", method, example.path, body)
        if route == "/v1/config":
            assert all(answer.status == 200 for answer in answers.values())
            return
        assert answers["anonymous"].status == 401, answers["anonymous"]
        for name in ("nobody", "neighbour"):
            if example.is_listing:
                assert answers[name].json["namespaces"] in ([], [["ns2"]])
            elif route.endswith(("/tables", "/views")) and method == "GET":
                assert answers[name].status == 404
            else:
                assert answers[name].status in (403, 404), (name, answers[name])
        assert await lake.store.list_all("/catalog/") == before
        allowed = await lake.as_("exact", method, example.path, body)
        assert allowed.status in (200, 204), allowed


def same_bytes(first: AsgiResponse, second: AsgiResponse, first_name: str, second_name: str) -> None:
    assert first.status == second.status
    assert first.body.replace(first_name.encode(), second_name.encode()) == second.body
    length = "content-length"
    assert {**first.headers, length: "", "date": ""} == {**second.headers, length: "", "date": ""}


@pytest.mark.parametrize("caller", ["anonymous", "reader"])
@pytest.mark.parametrize(
    ("method", "suffix", "body"),
    [
        ("GET", "", None),
        ("GET", "?snapshots=bogus", None),
        ("HEAD", "", None),
        ("DELETE", "", None),
        ("DELETE", "?purgeRequested=true&icestream-force=true", None),
        ("POST", "", COMMIT),
        ("POST", "/metrics", {"report-type": "scan-report"}),
        ("GET", "/credentials", None),
        ("POST", "/sign", {"method": "GET", "uri": "http://store:8333/lake/x", "region": "r", "headers": {}}),
    ],
)
async def test_hazard_123_a_hidden_table_is_answered_like_an_absent_one(
    tmp_path: Path, caller: str, method: str, suffix: str, body: Any
) -> None:
    rules = {"reader": ["read on /shop/orders", "all on table:/shop/**"]}
    async with secured_lake(tmp_path, rules, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        hidden = await lake.as_(caller, method, f"/v1/namespaces/shop/tables/secret{suffix}", body)
        absent = await lake.as_(caller, method, f"/v1/namespaces/shop/tables/absent{suffix}", body)
        same_bytes(hidden, absent, "secret", "absent")
        assert hidden.status == (401 if caller == "anonymous" else 404)


async def test_hazard_123_listings_and_their_cursors_show_what_is_visible(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {"reader": ["read on /shop/orders"], "all": ["read on /shop/*"]}) as lake:
        tables = "/v1/namespaces/shop/tables"
        listed = await lake.as_("reader", "GET", tables)
        assert [entry["name"] for entry in listed.json["identifiers"]] == ["orders"]
        page = await lake.as_("reader", "GET", f"{tables}?pageToken=&pageSize=1")
        assert page.json["next-page-token"] is None, "nothing follows that is visible"
        assert len((await lake.as_("all", "GET", tables)).json["identifiers"]) == 2
        namespaces = (await lake.as_("reader", "GET", "/v1/namespaces")).json["namespaces"]
        assert namespaces == [["shop"]], "the namespace around a visible topic"
        same_bytes(
            await lake.as_("reader", "GET", "/v1/namespaces/ns/tables"),
            await lake.as_("reader", "GET", "/v1/namespaces/no/tables"),
            "ns",
            "no",
        )


async def test_hazard_110_the_table_of_a_topic_is_the_resource_of_the_topic(tmp_path: Path) -> None:
    rules = {"topic": ["read on /shop/orders"], "name": ["read on table:/shop/orders"]}
    async with secured_lake(tmp_path, rules) as lake:
        path = "/v1/namespaces/shop/tables/orders"
        assert (await lake.as_("topic", "GET", path)).status == 200
        assert (await lake.as_("topic", "POST", path, COMMIT)).status == 403
        assert (await lake.as_("name", "GET", path)).status == 404


async def test_hazard_110_a_transaction_needs_all_rights_before_anything_is_read(tmp_path: Path) -> None:
    rules = {"one": ["table-write on table:/ns/t", "table-write on table:/ns/new"]}
    async with secured_lake(tmp_path, rules) as lake:
        changes = [{**COMMIT, "identifier": {"namespace": ["ns"], "name": "t"}}]
        changes += [{**COMMIT, "identifier": {"namespace": ["shop"], "name": "secret"}}]
        refused = await lake.as_("one", "POST", "/v1/transactions/commit", {"table-changes": changes})
        assert refused.status == 404
        assert "a" not in (await lake.catalog.tables.load(Identifier(("ns",), "t"))).table.properties


async def test_hazard_110_idempotency_keys_belong_to_a_principal(tmp_path: Path) -> None:
    rules = {"one": ["all on table:/ns/**"], "two": ["all on table:/ns/**"]}
    async with secured_lake(tmp_path, rules) as lake:
        key = {"idempotency_key": "0190a0b1-0000-7000-8000-000000000001"}
        for _ in range(2):
            assert (await lake.as_("one", "DELETE", TABLE, **key)).status == 204, "a repeat has the same answer"
        assert (await lake.as_("two", "DELETE", TABLE, **key)).status == 404, "the result of another is not told"


@pytest.mark.parametrize("caller", ["writer", "root"])
async def test_hazard_107_a_round_over_http_is_denied(tmp_path: Path, caller: str) -> None:
    async with secured_lake(tmp_path, {"writer": ["all on /shop/orders"], "root": ["admin on cluster"]}) as lake:
        claim = {
            "type": "assert-icestream-range",
            "topic-id": 1,
            "round-id": "0190a0b1-0000-7000-8000-000000000001",
            "pipeline-epoch": 0,
            "ranges": [{"shard": 0, "epoch": 1, "start": 0, "end": 10}],
        }
        before = await lake.store.list_all("/catalog/")
        refused = await lake.as_(caller, "POST", "/v1/namespaces/shop/tables/orders", commit_of([], claim))
        assert refused.status == 403
        assert "10" not in refused.json["error"]["message"]
        assert await lake.store.list_all("/catalog/") == before


async def test_hazard_113_a_changed_policy_decides_the_next_request(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {"reader": [f"read on {T}"]}) as lake:
        assert (await lake.as_("reader", "GET", TABLE)).status == 200
        await lake.change({})
        assert (await lake.as_("reader", "GET", TABLE)).status == 404


async def test_hazard_113_a_revoked_token_is_refused_although_its_session_is_kept(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {"reader": [f"read on {T}"]}) as lake:
        assert (await lake.as_("reader", "GET", TABLE)).status == 200
        lake.access.end_sessions(
            lambda identity: identity.principal.name == "reader", errors.Unauthenticated("revoked")
        )
        assert (await lake.as_("reader", "GET", TABLE)).status == 401


async def test_sessions_do_not_outlive_the_connection_to_the_broker(tmp_path: Path) -> None:
    """The number of a session means another one on the next connection: it must not be reused."""
    async with secured_lake(tmp_path, {"reader": [f"read on {T}"]}) as lake:
        assert (await lake.as_("reader", "GET", TABLE)).status == 200
        await lake.broker.go_away()
        await lake.broker.listen()
        answers = [await lake.as_("nobody", "GET", TABLE)]
        while answers[-1].status == 503:
            answers.append(await lake.as_("nobody", "GET", TABLE))
        assert answers[-1].status == 404
        assert (await lake.as_("reader", "GET", TABLE)).status == 200


@pytest.mark.parametrize("is_renamed", [False, True])
async def test_hazard_117_a_kept_table_of_a_deleted_topic_needs_the_rights_of_both(
    tmp_path: Path, is_renamed: bool
) -> None:
    """Rights to ordinary tables must not open the messages of a topic, nor those to a new topic of the same name."""
    rules = {
        "tables": ["all on table:/**"],
        "topic": ["all on /shop/orders"],
        "both": ["read on /shop/orders", "read on table:/shop/**"],
    }
    async with secured_lake(tmp_path, rules) as lake:
        tables = "/v1/namespaces/shop/tables"
        path = f"{tables}/orders"
        assert (await lake.as_("topic", "GET", path)).status == 200
        await lake.catalog.topics.detach(ORDERS)  # as the clean-up does after the deletion
        if is_renamed:
            path = f"{tables}/renamed"
            await lake.catalog.tables.rename(ORDERS, Identifier(("shop",), "renamed"))
        for name in ("tables", "topic"):
            for method, body in (("GET", None), ("HEAD", None), ("POST", COMMIT), ("DELETE", None)):
                assert (await lake.as_(name, method, path, body)).status == 404, (name, method)
            if name == "tables":
                assert (await lake.as_(name, "GET", tables)).json["identifiers"] == []
        assert (await lake.as_("both", "GET", path)).status == 200
        assert (await lake.as_("both", "POST", path, COMMIT)).status == 403
        listed = (await lake.as_("both", "GET", tables)).json["identifiers"]
        assert [entry["name"] for entry in listed] == [path.rpartition("/")[2]]
        # A commit does not forget whose messages the table has.
        await lake.change({"writer": ["all on /shop/orders", "all on table:/shop/**"], "tables": rules["tables"]})
        assert (await lake.as_("writer", "POST", path, COMMIT)).status == 200
        assert (await lake.as_("tables", "GET", path)).status == 404
        await lake.catalog.topics.bind(Identifier(("shop",), path.rpartition("/")[2]), "/shop/other", 3, {0: (1, 0)})
        assert (await lake.as_("tables", "GET", path)).status == 404
        await lake.change({"other": ["read on /shop/other"]})
        assert (await lake.as_("other", "GET", path)).status == 200, "it is the table of another topic now"
