"""The guard in front of the API: bodies, hosts, foreign pages, and the headers of every answer."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from icestream import limits
from icestream.lake.guard import Guard, is_cross_site
from icestream.runtime.host_header import host_name
from tests.support.asgi import AsgiClient, AsgiResponse


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Says how many bytes came, whatever their pieces."""
    message = await receive()
    body = str(len(message["body"])).encode()
    assert not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def ask(
    method: str, body: bytes = b"", host: str = "127.0.0.1", listens: str = "127.0.0.1", **headers: str
) -> AsgiResponse:
    all_headers = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(AsgiClient(Guard(echo, host=listens))(method, "/x", body, all_headers))


def test_an_answer_has_a_date_and_is_not_kept() -> None:
    answer = ask("GET")
    assert (answer.status, answer.body) == (200, b"0")
    assert parsedate_to_datetime(answer.headers["date"]).year > 2000
    assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")


def test_a_body_up_to_the_bound_arrives_in_one_piece() -> None:
    assert ask("POST", bytes(limits.API_BODY_BYTES_MAX)).body == str(limits.API_BODY_BYTES_MAX).encode()
    pieces = [bytes(10)] * 20
    response = asyncio.run(AsgiClient(Guard(echo, host="127.0.0.1")).in_pieces("POST", "/x", pieces, {}))
    assert response.body == b"200"


def test_an_oversized_body_is_refused_before_it_is_read() -> None:
    answer = ask("POST", bytes(limits.API_BODY_BYTES_MAX + 1))
    assert (answer.status, answer.is_problem, answer.json["code"]) == (413, True, "too_large")
    pieces = [bytes(limits.API_BODY_BYTES_MAX // 4)] * 5
    response = asyncio.run(AsgiClient(Guard(echo, host="127.0.0.1")).in_pieces("POST", "/x", pieces, {}))
    assert response.status == 413


def test_a_body_that_does_not_arrive_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "API_BODY_SECONDS_MAX", 0.02)
    sent: list[Message] = []

    async def never() -> Message:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/x", "headers": [(b"host", b"localhost")]}
    asyncio.run(Guard(echo, host="127.0.0.1")(scope, never, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8181", "localhost:8181", "[::1]:8181", "127.9.9.9"])
def test_requests_from_this_machine_are_allowed(host: str) -> None:
    assert ask("GET", host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8181", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"]
)
def test_a_name_that_was_pointed_at_this_machine_may_not(host: str) -> None:
    answer = ask("GET", host=host)
    assert (answer.status, answer.json["code"]) == (421, "wrong_host")
    assert ask("GET", host=host, listens="0.0.0.0").status == 200  # a listener on all interfaces accepts any host name


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], status: int) -> None:
    assert ask("POST", **headers).status == status
    assert ask("DELETE", **headers).status == status
    assert ask("GET", **headers).status == 200


@given(st.text(), st.text(), st.none() | st.text())
def test_any_header_is_judged(host: str, origin: str, site: str | None) -> None:
    assert isinstance(host_name(host), str)
    is_cross_site(origin, host, site)
