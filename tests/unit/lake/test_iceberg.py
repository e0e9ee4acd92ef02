"""Iceberg's REST protocol as clients see it: every route, its words and statuses. The rules behind are tested in
tests/unit/catalog."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.lake.iceberg import responses, routes
from icestream.lake.iceberg.responses import accepts_gzip, compress
from tests.support.iceberg import IcebergClient, IcebergWorld, commit_of, error_of, path_of, set_properties
from tests.support.tables import NEW_VIEW, SCHEMA, add, point, snapshot
from tests.support.topic_tables import ENVELOPE, LEASE, TOPIC, TOPIC_ID, appending, claim
from tests.support.warehouse import WAREHOUSE, CatalogWorld, Identifier, files_on

pytestmark = pytest.mark.asyncio

TABLE = "/namespaces/ns/tables/t"
KEY = "01890a5d-ac96-774b-bcce-b302099a8057"


# --- config, namespaces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?warehouse=rck_warehouse", "?warehouse="])
async def test_the_config_route_answers_for_names_of_the_live_warehouse(query: str) -> None:
    config = await IcebergWorld().client("GET", f"/config{query}")
    assert (config["defaults"], config["overrides"], config["idempotency-key-lifetime"]) == ({}, {}, "PT10M")
    assert len(config["endpoints"]) == len(routes.ROUTES) - 1
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in config["endpoints"]
    assert "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}" in config["endpoints"]


async def test_a_namespace_is_created_changed_and_dropped() -> None:
    client = IcebergWorld().client
    created = await client("POST", "/namespaces", {"namespace": ["a"], "properties": {"owner": "me"}})
    location = f"{WAREHOUSE}/a"
    assert created == {"namespace": ["a"], "properties": {"owner": "me", "location": location}}
    assert await client("GET", "/namespaces/a") == created
    assert (await client.sent("HEAD", "/namespaces/a")).status == 204
    assert (await client.sent("HEAD", "/namespaces/b")).status == 404
    changed = await client("POST", "/namespaces/a/properties", {"removals": ["owner", "x"], "updates": {"n": "1"}})
    assert changed == {"updated": ["n"], "removed": ["owner"], "missing": ["x"]}
    assert (await client("GET", "/namespaces/a"))["properties"] == {"n": "1", "location": location}
    assert await client.refused("POST", "/namespaces", {"namespace": ["a"]}) == (
        409, "AlreadyExistsException", "Namespace already exists: a",
    )  # fmt: skip
    both = {"removals": ["n"], "updates": {"n": "2"}}
    assert (await client.refused("POST", "/namespaces/a/properties", both))[:2] == (422, "UnprocessableEntityException")
    assert await client("DELETE", "/namespaces/a") is None
    assert await client.refused("DELETE", "/namespaces/a") == (
        404, "NoSuchNamespaceException", "Namespace does not exist: a",
    )  # fmt: skip


async def test_every_namespace_has_a_location_above_its_tables() -> None:
    client = IcebergWorld().client
    await client("POST", "/namespaces", {"namespace": ["a"]})
    await client("POST", "/namespaces", {"namespace": ["a", "b/c"]})
    inner = path_of("a", "b/c")
    assert (await client("GET", inner))["properties"] == {"location": f"{WAREHOUSE}/a/b_2fc"}
    created = await client("POST", f"{inner}/tables", {"name": "t", "schema": SCHEMA})
    assert created["metadata"]["location"].startswith(f"{WAREHOUSE}/a/b_2fc/t-")


async def test_a_namespace_location_inside_the_warehouse_is_used_for_new_tables() -> None:
    client = IcebergWorld().client
    own = {"location": f"{WAREHOUSE}/elsewhere/"}
    await client("POST", "/namespaces", {"namespace": ["a"], "properties": own})
    assert (await client("GET", "/namespaces/a"))["properties"] == own
    for body in ({"name": "t", "schema": SCHEMA}, {"name": "u", "schema": SCHEMA, "stage-create": True}):
        created = await client("POST", "/namespaces/a/tables", body)
        assert created["metadata"]["location"].startswith(f"{WAREHOUSE}/elsewhere/{body['name']}-")
    outside = {"updates": {"location": "s3://others/a"}}
    await client("POST", "/namespaces/a/properties", outside)
    created = await client("POST", "/namespaces/a/tables", {"name": "v", "schema": SCHEMA})
    assert created["metadata"]["location"].startswith(f"{WAREHOUSE}/a/v-")
    removed = await client("POST", "/namespaces/a/properties", {"removals": ["location"]})
    assert removed["removed"] == ["location"]
    assert (await client("GET", "/namespaces/a"))["properties"] == {"location": f"{WAREHOUSE}/a"}


async def test_the_location_of_a_staged_table_is_empty() -> None:
    """Trino lists the location before it writes there, and refuses one with a file."""
    world = IcebergWorld()
    client = await world.with_one()
    staged = await client("POST", "/namespaces/ns/tables", {"name": "s", "schema": SCHEMA, "stage-create": True})
    location = staged["metadata"]["location"]
    assert await files_on(world.disk).names(f"{location}/metadata") == []
    assert await files_on(world.disk).names(location) in ([], ["metadata"])
    assert (await client.sent("HEAD", "/namespaces/ns/tables/s")).status == 404


async def test_large_documents_are_compressed_for_clients_that_accept_it() -> None:
    client = await IcebergWorld().with_one(properties={"large": "x" * limits.CATALOG_GZIP_BYTES_MIN})
    plain = await client.sent("GET", TABLE)
    assert "content-encoding" not in plain.headers
    packed = await client.sent("GET", TABLE, accept_encoding="deflate, gzip;q=0.5")
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
    assert int(packed.headers["content-length"]) == len(packed.body) < len(plain.body) / 10
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["etag"] == plain.headers["etag"]
    small = await client.sent("GET", "/namespaces/ns", accept_encoding="gzip")
    assert "content-encoding" not in small.headers


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [
        (None, False), ("", False), ("gzip", True), ("GZIP", True), ("br, gzip", True), ("*", True),
        ("identity", False),
        ("gzip;q=0", False), ("*, gzip;q=0", False), ("gzip; q=0.1", True), ("gzip;q=x", False), ("x-gzip", False),
    ],
)  # fmt: skip
async def test_accept_encoding_is_parsed(accepted: str | None, takes: bool) -> None:
    assert accepts_gzip(accepted) is takes
    body = bytes(limits.CATALOG_GZIP_INLINE_BYTES_MAX + 1)
    answer = await compress(responses.IcebergResponse(200, body), accepted)
    assert gzip.decompress(answer.body) == body if takes else answer.body is body


async def test_an_unsupported_method_is_refused_with_the_allowed_ones() -> None:
    client = await IcebergWorld().with_one()
    answer = await client.sent("PATCH", "/namespaces")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")
    assert error_of(answer)[2] == "method PATCH not allowed; allowed: GET, POST"


@pytest.mark.parametrize("level", ["b.c", "d/e", "f g", "h+i", "ü%", "日本", "?#&=", "..", "%1F"])
async def test_names_are_any_text(level: str) -> None:
    client = await IcebergWorld().with_one()
    await client("POST", "/namespaces", {"namespace": ["ns", level]})
    where = path_of("ns", level)
    assert (await client("GET", where))["namespace"] == ["ns", level]
    assert ["ns", level] in (await client("GET", "/namespaces?parent=ns"))["namespaces"]
    await client("POST", f"{where}/tables", {"name": level, "schema": SCHEMA})
    assert (await client("GET", f"{where}/tables"))["identifiers"] == [{"namespace": ["ns", level], "name": level}]
    await client("GET", f"{where}/tables/{path_of(level).rsplit('/', 1)[1]}")


async def test_a_plus_in_a_path_is_a_space_as_in_java() -> None:
    client = IcebergWorld().client
    await client("POST", "/namespaces", {"namespace": ["a b"]})
    assert (await client("GET", "/namespaces/a+b"))["namespace"] == ["a b"]


async def test_lists_are_paged_on_request() -> None:
    client = await IcebergWorld().with_one()
    for name in ("a", "b", "c"):
        await client("POST", "/namespaces", {"namespace": ["ns", name]})
        await client("POST", "/namespaces/ns/views", {"name": f"v{name}", **NEW_VIEW})
    for path, name in (("/namespaces?parent=ns", "namespaces"), ("/namespaces/ns/views?", "identifiers")):
        everything = await client("GET", path)
        assert len(everything[name]) == 3
        assert everything["next-page-token"] is None
        first = await client("GET", f"{path}&pageToken=&pageSize=2")
        second = await client("GET", f"{path}&pageToken={first['next-page-token']}&pageSize=2")
        assert first[name] + second[name] == everything[name]
        assert second["next-page-token"] is None
    assert (await client.refused("GET", "/namespaces?parent=missing"))[:2] == (404, "NoSuchNamespaceException")
    for query in ("pageToken=&pageSize=0", "pageSize=-1", "pageSize=x", "pageToken=%21", "pageSize=9999999999"):
        assert (await client.refused("GET", f"/namespaces?{query}"))[0] == 400, query


# --- tables -----------------------------------------------------------------------------------------------------------


async def test_a_table_is_created_changed_and_dropped() -> None:
    world = IcebergWorld()
    client = await world.with_one()
    loaded = await client("GET", TABLE)
    assert loaded["metadata-location"] in world.metadata_files()
    assert loaded["config"] == {}
    assert (await client.sent("HEAD", TABLE)).status == 204
    committed = await client("POST", TABLE, set_properties(a="b"))
    assert committed["metadata"]["properties"]["a"] == "b"
    assert committed == await client("GET", TABLE)
    assert await client("POST", f"{TABLE}/metrics", {"report-type": "scan-report"}) is None
    nowhere = await client.refused("POST", "/namespaces/ns/tables/none/metrics", {"report-type": "scan-report"})
    assert nowhere[:2] == (404, "NoSuchTableException")
    renamed = {"source": {"namespace": ["ns"], "name": "t"}, "destination": {"namespace": ["ns"], "name": "u"}}
    assert await client("POST", "/tables/rename", renamed) is None
    assert (await client.refused("GET", TABLE)) == (404, "NoSuchTableException", "Table does not exist: ns.t")
    assert (await client("GET", "/namespaces/ns/tables/u"))["metadata"] == committed["metadata"]
    assert (await client.refused("DELETE", "/namespaces/ns"))[:2] == (409, "NamespaceNotEmptyException")
    assert await client("DELETE", "/namespaces/ns/tables/u?purgeRequested=true") is None
    assert len(await world.store.list_all("/catalog/purges/")) == 1
    where = {"name": "w", "metadata-location": committed["metadata-location"]}
    assert (await client("POST", "/namespaces/ns/register", where))["metadata"] == committed["metadata"]
    assert (await client.refused("POST", "/namespaces/ns/register", where))[:2] == (409, "AlreadyExistsException")
    first = {**where, "metadata-location": loaded["metadata-location"], "overwrite": True}
    assert (await client("POST", "/namespaces/ns/register", first))["metadata"] == loaded["metadata"]


@pytest.mark.parametrize("path", ["/namespaces/ns%1Ft/tables/snapshots", "/namespaces/ns/tables/none"])
async def test_metadata_tables_are_tables_that_do_not_exist(path: str) -> None:
    """Engines ask for table `snapshots` in namespace `ns.t`, and continue only if the error is a missing table."""
    client = await IcebergWorld().with_one()
    assert (await client.refused("GET", path))[:2] == (404, "NoSuchTableException")
    assert (await client.refused("POST", path, set_properties()))[:2] == (404, "NoSuchTableException")


async def test_an_unchanged_document_is_not_sent_again() -> None:
    client = await IcebergWorld().with_one()
    tag = (await client.sent("GET", TABLE)).headers["etag"]
    for condition in (tag, f'"x", W/{tag}', "*"):
        answer = await client.sent("GET", TABLE, if_none_match=condition)
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
    assert (await client.sent("GET", f"{TABLE}?snapshots=refs", if_none_match=tag)).status == 200
    after = await client.sent("POST", TABLE, set_properties(a="b"))
    fresh = await client.sent("GET", TABLE, if_none_match=tag)
    assert (fresh.status, fresh.headers["etag"]) == (200, after.headers["etag"])


async def test_unreferenced_snapshots_are_omitted_on_request() -> None:
    client = await IcebergWorld().with_one()
    now = [add(snapshot(1)), add(snapshot(2, 1)), point("main", 2)]
    await client("POST", TABLE, commit_of(now))
    for query, expected in (("", [1, 2]), ("?snapshots=all", [1, 2]), ("?snapshots=refs", [2])):
        snapshots = (await client("GET", f"{TABLE}{query}"))["metadata"]["snapshots"]
        assert [entry["snapshot-id"] for entry in snapshots] == expected
    assert (await client.refused("GET", f"{TABLE}?snapshots=some"))[0] == 400


async def test_a_removed_metadata_file_is_missing_although_its_document_is_cached() -> None:
    world = IcebergWorld()
    client = await world.with_one()
    location = (await client("GET", TABLE))["metadata-location"]
    world.disk.remove(location.removeprefix("file:"))
    assert await client.refused("GET", TABLE) == (
        404, "NotFoundException",
        f"Failed to open input stream for file: {location} (restore the file, or register another one)",
    )  # fmt: skip


async def test_a_staged_table_has_no_file_before_its_commit() -> None:
    world = IcebergWorld()
    client = await world.with_one()
    answer = await client.sent("POST", "/namespaces/ns/tables", {"name": "s", "schema": SCHEMA, "stage-create": True})
    assert "metadata-location" not in answer.json
    assert "etag" not in answer.headers
    assert len(world.metadata_files()) == 1
    metadata = answer.json["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "add-schema", "schema": metadata["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": metadata["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": metadata["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
    ]
    body = commit_of(updates, {"type": "assert-create"})
    await client("POST", "/namespaces/ns/tables/s", body)
    assert await client.refused("POST", "/namespaces/ns/tables/s", body) == (
        409, "CommitFailedException", "Requirement failed: table already exists",
    )  # fmt: skip


# --- commits ----------------------------------------------------------------------------------------------------------


async def test_a_conflict_is_409_and_changes_nothing() -> None:
    client = await IcebergWorld().with_one()
    before = await client("GET", TABLE)
    wrong = {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    status, kind, words = await client.refused("POST", TABLE, {**set_properties(a="b"), "requirements": [wrong]})
    assert (status, kind) == (409, "CommitFailedException")
    assert words.startswith("Requirement failed: UUID does not match")
    assert await client("GET", TABLE) == before


async def test_a_transaction_is_all_or_nothing_and_names_the_conflicting_tables() -> None:
    client = await IcebergWorld().with_one()
    await client("POST", "/namespaces/ns/tables", {"name": "u", "schema": SCHEMA})

    def change(name: str, *requirements: Any) -> dict[str, Any]:
        commit = commit_of([{"action": "set-properties", "updates": {"a": "b"}}], *requirements)
        return {"identifier": {"namespace": ["ns"], "name": name}, **commit}

    wrong = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}
    answer = await client.sent("POST", "/transactions/commit", {"table-changes": [change("t"), change("u", wrong)]})
    assert error_of(answer)[:2] == (409, "CommitFailedException")
    assert [conflict["table"] for conflict in answer.json["error"]["details"]["tables"]] == ["ns.u"]
    assert "a" not in (await client("GET", TABLE))["metadata"]["properties"]
    twice = {"table-changes": [change("t"), change("t")]}
    assert (await client.refused("POST", "/transactions/commit", twice))[0] == 400
    answer = await client.sent("POST", "/transactions/commit", {"table-changes": [change("t"), change("u")]})
    assert (answer.status, answer.body) == (204, b"")
    assert (await client("GET", TABLE))["metadata"]["properties"]["a"] == "b"


async def test_an_idempotent_request_is_applied_once() -> None:
    client = await IcebergWorld().with_one()
    body = commit_of([add(snapshot(1)), point("main", 1)])
    first = await client("POST", TABLE, body, idempotency_key=KEY)
    assert await client("POST", TABLE, body, idempotency_key=KEY) == first
    other = await client.refused("POST", TABLE, set_properties(x="y"), idempotency_key=KEY)
    assert other[:2] == (422, "UnprocessableEntityException")
    assert (await client.refused("POST", TABLE, body, idempotency_key="no"))[0] == 400


async def bound_world() -> tuple[IcebergWorld, IcebergClient]:
    world = IcebergWorld()
    client = await world.with_one(schema=ENVELOPE)
    await world.catalog.topics.bind(Identifier(("ns",), "t"), TOPIC, TOPIC_ID, {0: (0, 0)})
    await world.store.put(catalog_keys.LEASE, orjson.dumps({"epoch": LEASE}))
    return world, client


async def test_a_round_that_is_sent_again_is_answered_as_repeated() -> None:
    world, client = await bound_world()
    state = (await world.catalog.commits.load(Identifier(("ns",), "t"))).state
    body = commit_of(appending(state, 77), claim(1, (0, 0, 0, 10)))
    assert "repeated" not in await client("POST", TABLE, body)
    assert (await client("POST", TABLE, body))["repeated"] == 77
    change = {"identifier": {"namespace": ["ns"], "name": "t"}, **body}
    answer = await client.sent("POST", "/transactions/commit", {"table-changes": [change]})
    assert answer.json == {"repeated": [{"namespace": ["ns"], "name": "t", "snapshot-id": 77}]}
    overlapping = commit_of(body["updates"], claim(2, (0, 0, 5, 15)))
    answer = await client.sent("POST", TABLE, overlapping)
    assert error_of(answer)[:2] == (409, "CommitFailedException")
    assert answer.json["error"]["details"]["reason"] == "not_next"


@pytest.mark.parametrize("force", ["?icestream-force", "?icestream-force=true", ""])
async def test_detaching_changes_are_refused_unless_forced(force: str) -> None:
    world, client = await bound_world()
    status, kind, words = await client.refused("DELETE", f"{TABLE}?icestream-force=false")
    assert (status, kind) == (403, "ForbiddenException")
    assert "is the table of topic /default/orders" in words
    assert "icestream lake detach" in words
    headers = {} if force else {"icestream_force": "true"}
    await client("DELETE", f"{TABLE}{force}", **headers)
    assert await world.store.get(catalog_keys.topic_key(TOPIC_ID)) is None


# --- views ------------------------------------------------------------------------------------------------------------


async def test_a_view_is_created_changed_and_dropped() -> None:
    client = await IcebergWorld().with_one()
    created = await client("POST", "/namespaces/ns/views", {"name": "v", **NEW_VIEW})
    assert await client("GET", "/namespaces/ns/views/v") == created
    assert (await client.sent("HEAD", "/namespaces/ns/views/v")).status == 204
    assert (await client.sent("HEAD", "/namespaces/ns/views/t")).status == 404, "a table is no view"
    assert (await client.refused("POST", "/namespaces/ns/tables", {"name": "v", "schema": SCHEMA}))[0] == 409
    updates = [{"action": "set-properties", "updates": {"c": "d"}}]
    replaced = await client("POST", "/namespaces/ns/views/v", {"updates": updates})
    assert replaced["metadata"]["properties"] == {"a": "b", "c": "d"}
    wrong = {"type": "assert-view-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    refused = await client.refused("POST", "/namespaces/ns/views/v", commit_of(updates, wrong))
    assert refused[:2] == (409, "CommitFailedException")
    renamed = {"source": {"namespace": ["ns"], "name": "v"}, "destination": {"namespace": ["ns"], "name": "w"}}
    await client("POST", "/views/rename", renamed)
    assert (await client.refused("GET", "/namespaces/ns/views/v"))[:2] == (404, "NoSuchViewException")
    await client("DELETE", "/namespaces/ns/views/w")
    where = {"name": "x", "metadata-location": created["metadata-location"]}
    assert (await client("POST", "/namespaces/ns/register-view", where))["metadata"] == created["metadata"]


# --- what is refused before the catalog is asked ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/nonsense", 404),
        ("GET", "/namespaces/", 404),
        ("GET", "/namespaces//tables", 404),
        ("GET", "/namespaces/ns/nonsense", 404),
        ("GET", "/namespaces/ns/tables/t/x/y", 404),
        ("GET", "/config/x", 404),
        ("PUT", "/namespaces", 405),
        ("PATCH", "/namespaces/ns/tables/t", 405),
        ("GET", "/namespaces/%ff", 400),
        ("GET", "/namespaces/%1F", 400),
        ("GET", "/namespaces/a%1F%1Fb", 400),
        ("GET", "/namespaces/%00", 400),
        ("GET", "/namespaces?parent=%ff", 400),
    ],
)
async def test_invalid_paths_are_refused(method: str, path: str, status: int) -> None:
    client = await IcebergWorld().with_one()
    assert (await client.refused(method, path))[0] == status


async def test_a_token_is_required_where_tokens_are_configured() -> None:
    world = CatalogWorld()
    client = IcebergClient(world.catalog, ["one-token-of-many", "another-token-of"])
    for credentials in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic one-token-of-many"}):
        answer = await client.sent("GET", "/config", **credentials)
        assert error_of(answer)[:2] == (401, "NotAuthorizedException")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert b"one-token" not in answer.body
    for token in ("one-token-of-many", "another-token-of"):
        await client("GET", "/config", authorization=f"Bearer {token}")
    assert (await client.sent("POST", "/namespaces", {"namespace": ["a"]})).status == 401
    assert await world.store.list_all("/catalog/") == []


async def test_a_node_with_a_foreign_catalog_reports_it() -> None:
    status, kind, words = await IcebergClient(None).refused("GET", "/config")
    assert (status, kind) == (404, "NotFoundException")
    assert "storage.iceberg_config.catalog" in words


async def test_guard_answers_in_the_form_of_iceberg() -> None:
    client = IcebergWorld().client
    large = await client.sent("POST", "/namespaces", bytes(limits.CATALOG_BODY_BYTES_MAX + 1))
    assert error_of(large)[:2] == (413, "BadRequestException")
    assert error_of(await client.sent("GET", "/config", host="evil.example"))[0] == 421
    assert error_of(await client.sent("POST", "/namespaces", {}, origin="http://evil.example"))[0] == 403


async def test_bodies_that_do_not_fit_together_are_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES_MAX", 100)
    client = IcebergWorld().client
    assert (await client.refused("POST", "/namespaces", bytes(101)))[:2] == (503, "ServiceUnavailableException")
    await client("POST", "/namespaces", {"namespace": ["a"]})
    await client("POST", "/namespaces", {"namespace": ["b"], "properties": {"what was held": "is given back"}})


async def test_an_internal_error_is_500_with_a_traceback_in_the_log_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = IcebergWorld()

    async def broken(*_: Any) -> None:
        raise KeyError("a secret")

    monkeypatch.setattr(world.catalog.namespaces, "load", broken)
    assert await world.client.refused("GET", "/namespaces/a") == (
        500, "InternalServerError", "internal error; see the log of the lake process",
    )  # fmt: skip


async def test_requests_are_counted_by_route() -> None:
    client = await IcebergWorld().with_one()
    await client.sent("GET", TABLE)
    await client.sent("BREW", "/namespaces/x/y/z")
    counted = client.counted.requests
    assert counted["GET", "/v1/namespaces/{namespace}/tables/{table}", "200"] == 1
    assert counted["other", "none", "404"] == 1


async def test_a_retryable_refusal_has_a_retry_after_header() -> None:
    answer = responses.error_response(errors.NotReady("the broker is away"))
    assert (answer.status, (b"retry-after", b"1") in answer.headers) == (503, True)
    unknown = responses.error_response(errors.OutcomeUnknown("it may have happened"))
    assert orjson.loads(unknown.body)["error"]["type"] == "CommitStateUnknownException"
    assert unknown.status == 500
