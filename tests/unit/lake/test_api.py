"""Every route of the API against a real node: what it does, what it refuses, and how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream.lake.api_app import build_app
from icestream.metadata.store import MemoryStore
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.subscription_options import SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.settings import KEYS
from tests.support.api import Api, served_api
from tests.support.asgi import AsgiClient
from tests.support.local_broker import local_broker
from tests.support.recording_consumer import RecordingConsumer

pytestmark = pytest.mark.asyncio
TOPICS = "/namespaces/default/topics"
SUBS = f"{TOPICS}/orders/subscriptions"
ORDERS = TopicName("default", "orders")


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served_api(tmp_path / "data") as served:
        yield served


async def publish(api: Api, count: int) -> None:
    producer = await api.node.broker.open_producer(ORDERS, "p")
    for _ in range(count):
        await api.node.broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [b"x"]}))


async def test_namespaces(api: Api) -> None:
    created = await api.ask("POST", "/api/v1/namespaces", {"namespace": "shop", "policies": {"max_producers": 1}})
    assert (created.status, created.headers["location"]) == (201, "/api/v1/namespaces/shop")
    assert (await api("GET", "/namespaces/shop"))["policies"]["max_producers"] == 1
    assert [item["namespace"] for item in (await api("GET", "/namespaces"))["items"]] == ["default", "shop", "system"]
    assert (await api("PUT", "/namespaces/shop/policies", {"max_producers": 9}))["policies"]["max_producers"] == 9
    assert (await api.problem("POST", "/namespaces", {"namespace": "shop"}))["code"] == "already_exists"
    assert (await api.ask("DELETE", "/api/v1/namespaces/shop")).status == 204
    assert (await api.problem("GET", "/namespaces/shop"))["code"] == "unknown_namespace"
    assert (await api.problem("DELETE", "/namespaces/default"))["status"] == 400


async def test_names_of_any_script_have_a_route(api: Api) -> None:
    created = await api.ask("POST", "/api/v1/namespaces", {"namespace": "日本"})
    assert (created.status, created.headers["location"]) == (201, "/api/v1/namespaces/%E6%97%A5%E6%9C%AC")
    created = await api.ask("POST", f"{created.headers['location']}/topics", {"name": "注文"})
    subscription = await api.ask("POST", f"{created.headers['location']}/subscriptions", {"subscription": "a/b ☃"})
    assert subscription.status == 400
    subscription = await api.ask("POST", f"{created.headers['location']}/subscriptions", {"subscription": "a b ☃"})
    assert (await api.ask("GET", subscription.headers["location"])).json["subscription"] == "a b ☃"


async def test_topics(api: Api) -> None:
    created = await api.ask("POST", f"/api/v1{TOPICS}", {"name": "orders", "shards": 2, "dispatch": "non-reliable"})
    assert (created.status, created.headers["location"]) == (201, f"/api/v1{TOPICS}/orders")
    assert (created.json["topic"], created.json["dispatch"], len(created.json["shard_offsets"])) == (
        "/default/orders",
        "non-reliable",
        2,
    )
    assert (await api("GET", f"{TOPICS}/orders"))["id"] == created.json["id"]
    changed = await api("PUT", f"{TOPICS}/orders/policies", {"max_message_bytes": 10})
    assert changed["effective_policies"]["max_message_bytes"] == 10
    layout = {"partitioning": "bucket[4]", "compression": "gzip:6", "target_file_bytes": 100_000}
    changed = await api("PUT", f"{TOPICS}/orders/policies", layout)
    assert {name: changed["policies"][name] for name in layout} == layout
    refused = await api.problem("PUT", f"{TOPICS}/orders/policies", {"partitioning": "week"})
    assert (refused["status"], "one of none, auto, hour, day, month, key, bucket[16]" in refused["hint"]) == (400, True)
    assert [item["topic"] for item in (await api("GET", "/topics"))["items"]] == ["/default/orders"]
    assert [item["topic"] for item in (await api("GET", TOPICS))["items"]] == ["/default/orders"]
    assert (await api.problem("POST", TOPICS, {"name": "orders"}))["status"] == 409
    assert (await api.problem("POST", TOPICS, {"name": "a b"}))["code"] == "invalid"
    assert (await api.problem("DELETE", f"{TOPICS}/orders?table=burn"))["status"] == 400
    gone = await api.ask("DELETE", f"/api/v1{TOPICS}/orders?table=drop&rest=discard")
    assert (gone.status, gone.json["table"]) == (200, None)
    assert (gone.json["table_end"], gone.json["rest"], gone.json["rest_messages"]) == ("drop", "discard", 0)
    assert (await api.problem("GET", f"{TOPICS}/orders"))["code"] == "unknown_topic"


async def test_pages_continue_where_the_last_one_ended(api: Api) -> None:
    for number in range(5):
        await api("POST", TOPICS, {"name": f"t{number}"})
    first = await api("GET", "/topics?limit=2")
    second = await api("GET", f"/topics?limit=2&after={first['next']}")
    third = await api("GET", f"/topics?limit=2&after={second['next']}")
    pages = [[item["topic"][-2:] for item in page["items"]] for page in (first, second, third)]
    assert (pages, third["next"]) == ([["t0", "t1"], ["t2", "t3"], ["t4"]], None)


async def test_subscriptions(api: Api) -> None:
    await api("POST", TOPICS, {"name": "orders"})
    created = await api.ask("POST", f"/api/v1{SUBS}", {"subscription": "a&b?", "type": "shared"})
    assert (created.status, created.headers["location"]) == (201, f"/api/v1{SUBS}/a%26b%3F")
    await publish(api, 3)
    subscription = await api("GET", f"{SUBS}/a%26b%3F")
    assert (subscription["type"], subscription["lag"], subscription["failure"]["poison"]) == ("shared", 3, "block")
    assert [item["lag"] for item in (await api("GET", SUBS))["items"]] == [3]
    changed = await api("PATCH", f"{SUBS}/a%26b%3F", {"failure": {"poison": "drop"}, "max_dispatch_rate": 5})
    assert (changed["failure"]["poison"], changed["max_dispatch_rate"]) == ("drop", 5)
    assert (await api("PATCH", f"{SUBS}/a%26b%3F", {}))["max_dispatch_rate"] == 5
    assert (await api("PATCH", f"{SUBS}/a%26b%3F", {"max_dispatch_rate": None}))["max_dispatch_rate"] is None
    sought = await api("POST", f"{SUBS}/a%26b%3F/seek", {"start": "offset", "start_value": 2})
    assert (sought["positions"], sought["generations"]) == ([2], [1])
    assert (await api.ask("DELETE", f"/api/v1{SUBS}/a%26b%3F")).status == 204
    assert (await api.problem("GET", f"{SUBS}/a%26b%3F"))["code"] == "unknown_subscription"


async def test_producers_and_consumers(api: Api) -> None:
    await api("POST", TOPICS, {"name": "orders"})
    await publish(api, 1)
    subscription, consumer = await api.node.broker.subscribe(
        ORDERS, "s", SubscriptionType.SHARED, "c", RecordingConsumer()
    )
    subscription.give_credit(consumer, 7)
    assert [item["producer"] for item in (await api("GET", f"{TOPICS}/orders/producers"))["items"]] == ["p"]
    (line,) = (await api("GET", f"{SUBS}/s/consumers"))["items"]
    assert (line["consumer"], line["credit"], line["peer"]) == ("c", 7, "test")
    await api("DELETE", f"{TOPICS}/orders/producers/p")
    await api("DELETE", f"{SUBS}/s/consumers/c")
    assert (await api.problem("DELETE", f"{TOPICS}/orders/producers/p"))["code"] == "not_connected"
    assert (await api.problem("DELETE", f"{SUBS}/s/consumers/c"))["status"] == 404


async def test_the_log_settings_and_health(api: Api) -> None:
    assert (await api("GET", "/wal"))["sync_mode"] == "always"
    assert (await api("GET", "/wal/files")) == {"items": [], "next": None}
    assert [item["key"] for item in (await api("GET", "/config"))["items"]] == list(KEYS)
    key = "/config/storage.iceberg_config.wal.quota"
    assert (await api("PUT", key, {"value": "1GiB"}))["value"] == 2**30
    assert (await api("GET", key))["origin"] == "stored"
    assert (await api("DELETE", key))["origin"] == "default"
    assert (await api.problem("PUT", key, {"value": "many"}))["code"] == "configuration"
    assert (await api.problem("PUT", "/config/node.name", {"value": "x"}))["status"] == 422
    assert (await api.problem("GET", "/config/none"))["status"] == 404
    assert (await api("GET", "/health"))["ready"] is True


async def test_a_secret_is_never_shown(api: Api) -> None:
    shown = {item["key"]: item["value"] for item in (await api("GET", "/config"))["items"]}
    assert all(shown[path] in (None, "********") for path, key in KEYS.items() if key.secret)


async def test_a_problem_has_a_title_and_a_hint(api: Api) -> None:
    assert await api.problem("GET", f"{TOPICS}/none") == {
        "type": "urn:icestream:error:unknown_topic",
        "title": "Unknown topic",
        "status": 404,
        "detail": "there is no topic /default/none",
        "instance": f"/api/v1{TOPICS}/none",
        "code": "unknown_topic",
        "hint": "create it, or publish to it once",
        "retryable": False,
    }


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", TOPICS, "GET, HEAD, POST"),
        ("POST", f"{TOPICS}/orders", "DELETE, GET, HEAD"),
        ("POST", "/config/log.level", "DELETE, GET, HEAD, PUT"),
    ],
)
async def test_an_unsupported_method_is_refused_with_the_allowed_ones(
    api: Api, method: str, path: str, allowed: str
) -> None:
    answer = await api.ask(method, f"/api/v1{path}", {})
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert answer.json["detail"] == f"method {method} not allowed; allowed: {allowed}"


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", TOPICS, {"name": "a", "shard": 2}, "body.shard"),
        ("POST", TOPICS, {"name": "a", "shards": "2"}, "body.shards"),
        ("POST", TOPICS, {"name": "a", "shards": 10**9}, "body.shards"),
        ("POST", TOPICS, {"name": "a", "policies": {"max_producers": -1}}, "body.policies.max_producers"),
        ("POST", TOPICS, {"name": "a", "policies": {"max_producers": 2**64}}, "body.policies.max_producers"),
        ("POST", TOPICS, [1], "body"),
        ("POST", TOPICS, b"{", "body"),
        ("POST", TOPICS, b"\xff", "body"),
        ("POST", TOPICS, None, "body"),
        ("GET", "/topics?limit=0", None, "query.limit"),
        ("GET", "/topics?limit=x", None, "query.limit"),
        ("PUT", "/config/log.level", {"value": [1]}, "body.value"),
        ("PUT", "/config/log.level", {}, "body.value"),
    ],
)
async def test_invalid_fields_are_refused_with_their_location(
    api: Api, method: str, path: str, body: object, words: str
) -> None:
    problem = await api.problem(method, path, body)
    assert (problem["status"], problem["code"]) == (400, "invalid")
    assert words in problem["detail"]
    assert (await api("GET", "/topics"))["items"] == []


async def test_an_unknown_route_is_a_problem_document(api: Api) -> None:
    assert (await api.problem("GET", "/nothing"))["code"] == "not_found"
    assert (await api.problem("DELETE", "/topics"))["code"] == "method_not_allowed"
    answer = await api.ask("GET", "/nothing")
    assert (answer.status, answer.is_problem) == (404, True)


@pytest.mark.parametrize("path", ["/", "/api/v1"])
async def test_the_index_links_to_everything(api: Api, path: str) -> None:
    index = (await api.ask("GET", path)).json
    for place in (index["description"], *index["resources"].values(), *index["process"].values()):
        assert (await api.ask("GET", place)).status == 200, place


async def test_a_name_with_a_slash_is_never_another_path(api: Api) -> None:
    await api("POST", TOPICS, {"name": "orders"})
    await api("POST", SUBS, {"subscription": "s"})
    for slash in ("%2F", "%2f"):
        problem = await api.problem("DELETE", f"{TOPICS}/orders{slash}subscriptions{slash}s")
        assert (problem["status"], problem["detail"]) == (404, "names cannot contain a slash (%2F)")
    assert (await api("GET", f"{SUBS}/s"))["subscription"] == "s"
    assert (await api.problem("GET", "/topics/"))["status"] == 404


async def test_an_unavailable_broker_is_reported_and_then_served_again(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    keeper = LinkKeeper(path, "test", SystemClock())
    keeping = asyncio.create_task(keeper.run())
    ask = AsgiClient(build_app(keeper, "127.0.0.1"))
    answer = await ask("GET", "/api/v1/topics")
    assert (answer.status, answer.json["code"], answer.json["retryable"]) == (503, "connection_lost", True)
    assert answer.headers["retry-after"] == "1"
    assert ((await ask("GET", "/livez")).status, (await ask("GET", "/readyz")).status) == (200, 503)
    assert (
        await ask("GET", "/readyz?verbose")
    ).body == b"[-] broker: not connected\nnot ready: broker: not connected\n"
    async with local_broker(path, MemoryStore()) as broker:
        await keeper.wait_connected(10)
        assert (await ask("GET", "/readyz")).status == 200
        assert (await ask("GET", "/readyz?verbose")).body == b"[+] broker: connected\nready\n"
        assert (await ask("DELETE", "/api/v1/namespaces/default/topics/none")).status == 404
        await broker.go_away()
        answer = await ask("GET", "/api/v1/topics")
        assert answer.status == 503
        await broker.listen()
        await keeper.wait_connected(10)
        assert (await ask("DELETE", "/api/v1/namespaces/default/topics/none")).status == 404
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_the_process_counts_its_requests(api: Api) -> None:
    await api("GET", "/topics")
    await api.problem("GET", f"{TOPICS}/none")
    await api.problem("GET", "/nothing")
    text = (await api.ask("GET", "/metrics")).body.decode()
    assert 'icestream_api_requests_total{method="GET",route="/api/v1/topics",status="200"} 1.0' in text
    assert 'route="/api/v1/namespaces/{namespace}/topics/{topic}",status="404"} 1.0' in text
    assert 'icestream_api_requests_total{method="GET",route="none",status="404"} 1.0' in text
    assert "icestream_api_broker_connected 1.0" in text
    for number in range(3):
        await api.ask(f"ODD{number}", "/api/v1/topics")
    text = (await api.ask("GET", "/metrics")).body.decode()
    assert ("ODD" in text, text.count('_requests_total{method="other"')) == (False, 1)
    assert "process_resident_memory_bytes" in text
    for name in ("questions", "seconds", "plans", "doubled_rows"):
        assert f"# TYPE icestream_scan_{name}_total counter" in text
    for name in ("cache_total counter", "missing_offsets_total counter", "cache_bytes gauge"):
        assert f"# TYPE icestream_scan_{name}" in text
    assert "icestream_wal" not in text, "the broker's numbers are the broker's to tell"
