"""The broker's own HTTP over real sockets: answers, refusals, and who is sent away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.frontends.http.endpoints import Endpoints
from icestream.frontends.http.listener import HttpListener, Response
from icestream.frontends.http.request import Request
from icestream.observability.health import Check
from tests.support.raw_http import Connecting

pytestmark = pytest.mark.asyncio

WELL = [Check("metadata", True), Check("lake", False, "it is being started", is_needed=False)]
ILL = [Check("metadata", False, "it is being opened"), Check("broker", False, "it waits")]


class State:
    def __init__(self) -> None:
        self.checks = WELL


async def count() -> bytes:
    return b"icestream_ready 1.0\n"


@pytest.fixture
def state() -> State:
    return State()


@pytest_asyncio.fixture
async def listener(state: State) -> AsyncIterator[HttpListener]:
    found = HttpListener(Endpoints(lambda: state.checks, count))
    await found.listen("127.0.0.1", 0)
    yield found
    await found.close()


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connecting]:
    found = Connecting()
    yield found
    await found.close()


async def test_a_loop_that_turns_is_alive(connect: Connecting, listener: HttpListener) -> None:
    http = await connect(listener.port)
    assert (await http.get("/livez"))[::2] == (200, b"ok\n")


async def test_ready_is_said_with_every_part_on_request(connect: Connecting, listener: HttpListener) -> None:
    http = await connect(listener.port)
    assert (await http.get("/readyz"))[::2] == (200, b"ready\n")
    verbose = await http.get("/readyz?verbose")
    assert verbose.body.decode().splitlines() == ["[+] metadata: ok", "[!] lake: it is being started", "ready"]


async def test_not_ready_is_said_with_the_first_reason(
    connect: Connecting, listener: HttpListener, state: State
) -> None:
    state.checks = ILL
    http = await connect(listener.port)
    assert (await http.get("/readyz"))[::2] == (503, b"not ready: metadata: it is being opened\n")
    lines = (await http.get("/readyz?verbose")).body.decode().splitlines()
    assert lines == ["[-] metadata: it is being opened", "[-] broker: it waits", lines[-1]]
    assert (await http.get("/livez")).status == 200


async def test_programs_get_the_parts_as_json(connect: Connecting, listener: HttpListener, state: State) -> None:
    state.checks = ILL[:1]
    http = await connect(listener.port)
    reply = await http.get("/readyz", "Accept: application/json\r\n")
    assert reply.headers["content-type"] == "application/json"
    assert reply.body == (
        b'{"ready":false,"checks":[{"name":"metadata","ok":false,"reason":"it is being opened","is_needed":true}]}'
    )


async def test_metrics_are_served_where_the_settings_say_so(connect: Connecting, listener: HttpListener) -> None:
    http = await connect(listener.port)
    reply = await http.get("/metrics")
    assert (reply.status, reply.body) == (200, b"icestream_ready 1.0\n")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    without = HttpListener(Endpoints(lambda: WELL))
    await without.listen("127.0.0.1", 0)
    assert (await (await connect(without.port)).get("/metrics")).status == 404
    await without.close()


async def test_requests_that_follow_at_once_are_answered_in_order(connect: Connecting, listener: HttpListener) -> None:
    http = await connect(listener.port)
    await http.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert [(await http.reply()).status, (await http.reply()).status] == [200, 404]
    assert await http.is_closed()


async def test_a_request_in_pieces_is_one(connect: Connecting, listener: HttpListener) -> None:
    http = await connect(listener.port)
    for byte in b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n":
        await http.send(bytes([byte]))
    assert (await http.reply()).status == 200


async def test_head_has_the_length_and_no_body(connect: Connecting, listener: HttpListener) -> None:
    http = await connect(listener.port)
    await http.send(b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    reply = await http.reply(has_body=False)
    assert (reply.status, reply.headers["content-length"]) == (200, "3")
    assert (await http.get("/livez")).status == 200


async def test_another_method_is_refused_with_those_that_are_not(connect: Connecting, listener: HttpListener) -> None:
    http = await connect(listener.port)
    await http.send(b"DELETE /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    reply = await http.reply()
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01 no http\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * limits.HTTP_HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 2 * limits.HTTP_HEAD_BYTES_MAX, 431),
    ],
)
async def test_what_is_no_request_ends_the_connection(
    connect: Connecting, listener: HttpListener, data: bytes, status: int
) -> None:
    http = await connect(listener.port)
    await http.send(data)
    assert (await http.reply()).status == status
    assert await http.is_closed()
    assert (await (await connect(listener.port)).get("/livez")).status == 200


async def test_beyond_the_bound_the_oldest_connection_goes(
    connect: Connecting, listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 2)
    oldest, *others = [await connect(listener.port) for _ in range(3)]
    assert await oldest.is_closed()
    assert [(await http.get("/livez")).status for http in others] == [200, 200]


async def test_a_connection_without_a_request_is_closed(
    connect: Connecting, listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 0.05)
    http = await connect(listener.port)
    await http.send(b"GET /livez HT")
    assert await http.is_closed()


async def test_a_mistake_of_ours_is_an_answer_too(connect: Connecting) -> None:
    async def fail(request: Request) -> Response:
        raise RuntimeError(request.path)

    listener = HttpListener(fail)
    await listener.listen("127.0.0.1", 0)
    http = await connect(listener.port)
    assert (await http.get("/a")).status == HTTPStatus.INTERNAL_SERVER_ERROR
    await listener.close()
    assert await http.is_closed()


async def test_a_port_that_is_taken_is_a_problem_of_the_settings(listener: HttpListener) -> None:
    with pytest.raises(errors.ConfigurationError, match="cannot listen") as caught:
        await HttpListener(Endpoints(list)).listen("127.0.0.1", listener.port)
    assert "ports.broker_http" in caught.value.hint


async def test_a_close_ends_who_waits(connect: Connecting, listener: HttpListener) -> None:
    http = await connect(listener.port)
    assert (await http.get("/livez")).status == 200
    await listener.close()
    assert await http.is_closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
