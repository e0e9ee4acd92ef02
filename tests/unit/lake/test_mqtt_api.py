"""The routes of /api/v1/mqtt against a real node, whose clients are connections in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from tests.support.api import Api, served_api
from tests.support.mqtt_world import connected

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served_api(tmp_path / "data", mqtt={"enable": True}) as served:
        yield served


async def items(api: Api, path: str) -> list[dict[str, Any]]:
    page = await api("GET", f"/mqtt/{path}")
    assert page["next"] is None
    rows: list[dict[str, Any]] = page["items"]
    return rows


async def test_sessions_lag_and_are_kicked(api: Api) -> None:
    client = await connected(api.node.broker, "a/b c", clean=False, expiry_s=60)
    await client.subscribe("x/#", qos=1)
    publisher = await connected(api.node.broker, "p")
    assert [row["client_id"] for row in await items(api, "sessions?connected=true")] == ["a/b c", "p"]
    answer = await api("POST", "/mqtt/kick", {"client_id": "a/b c"})
    assert answer == {"client_id": "a/b c", "was_connected": True, "is_session_deleted": False}
    await publisher.publish("x/1", b"x")
    (row,) = await items(api, "sessions?lagging=true&client_id=a*")
    assert (row["lag_messages"], row["is_connected"]) == (1, False)
    details = await api("GET", f"/mqtt/session?client_id={quote('a/b c', safe='')}")
    assert [item["filter"] for item in details["subscription_list"]] == ["x/#"]
    assert [row["client_id"] for row in await items(api, "subscriptions?topic=x/y")] == ["a/b c"]
    await api("POST", "/mqtt/kick", {"client_id": "a/b c", "delete_session": True})
    problem = await api.problem("GET", "/mqtt/session?client_id=a%2Fb%20c")
    assert (problem["status"], problem["code"]) == (404, "unknown_session")


async def test_topics_retained_messages_and_routes(api: Api) -> None:
    publisher = await connected(api.node.broker, "p")
    await publisher.publish("plant/1", b"21", is_retained=True)
    await publisher.publish("plant/2", b"22")
    assert {row["topic"]: row["payload"] for row in await items(api, "topics?contains=PLANT&payload=true")} == {
        "plant/1": "21", "plant/2": "22",
    }  # fmt: skip
    (value,) = await items(api, "retained?filter=plant/%2B")
    assert (value["topic"], value["bytes"], value["payload"], value["stored_in"]) == (
        "plant/1", 2, None, "/mqtt/messages",
    )  # fmt: skip
    assert await api("POST", "/mqtt/retained/clear", {"filter": "#"}) == {"cleared": 1}
    assert await items(api, "retained") == []
    (route,) = await items(api, "routes")
    assert (route["filter"], sum(shard["next"] for shard in route["shards"])) == ("#", 3)
    assert (await api.problem("GET", "/mqtt/topics?filter=a%23b"))["status"] == 400


async def test_a_page_continues_behind_its_cursor(api: Api) -> None:
    for number in range(5):
        await connected(api.node.broker, f"c{number}")
    seen, after = [], ""
    while after is not None:
        page = await api("GET", f"/mqtt/sessions?limit=2&after={after}")
        seen += [row["client_id"] for row in page["items"]]
        after = page["next"]
    assert seen == [f"c{number}" for number in range(5)]
