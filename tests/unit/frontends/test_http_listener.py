"""The broker's own HTTP over real sockets: answers, refusals, and which connections are closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.frontends.http.http_front_end import Endpoints
from icestream.observability.health import Check, connections_check
from icestream.observability.http_listener import HttpListener, Response
from icestream.observability.http_request import Request
from tests.support.raw_http import RawHttpContext
from tests.support.until import until

pytestmark = pytest.mark.asyncio

WELL = [Check("metadata", True), Check("lake", False, "it is being started", is_needed=False)]
ILL = [Check("metadata", False, "it is being opened"), Check("broker", False, "it waits")]


class NodeStateStub:
    def __init__(self) -> None:
        self.checks = WELL

    async def read(self) -> Sequence[Check]:
        return self.checks


async def count() -> bytes:
    return b"icestream_ready 1.0\n"


@pytest.fixture
def state() -> NodeStateStub:
    return NodeStateStub()


@pytest_asyncio.fixture
async def listener(state: NodeStateStub) -> AsyncIterator[HttpListener]:
    http_listener = HttpListener(Endpoints(state.read, count), "0123456789abcdef")
    await http_listener.listen("127.0.0.1", 0)
    yield http_listener
    await http_listener.close()


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[RawHttpContext]:
    context = RawHttpContext()
    yield context
    await context.close()


async def test_a_running_loop_is_alive(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    assert (await http.get("/livez"))[::2] == (200, b"ok\n")


async def test_every_answer_names_the_instance_of_the_broker(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    for target in ("/livez", "/nope"):
        assert (await http.get(target)).headers["icestream-instance"] == "0123456789abcdef"
    await http.send(b"nonsense\r\n\r\n")
    assert (await http.reply()).headers["icestream-instance"] == "0123456789abcdef"


async def test_readiness_lists_every_part_on_request(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    assert (await http.get("/readyz"))[::2] == (200, b"ready\n")
    verbose = await http.get("/readyz?verbose")
    assert verbose.body.decode().splitlines() == ["[+] metadata: ok", "[!] lake: it is being started", "ready"]


async def test_not_ready_is_reported_with_the_first_reason(
    connect: RawHttpContext, listener: HttpListener, state: NodeStateStub
) -> None:
    state.checks = ILL
    http = await connect(listener.port)
    assert (await http.get("/readyz"))[::2] == (503, b"not ready: metadata: it is being opened\n")
    lines = (await http.get("/readyz?verbose")).body.decode().splitlines()
    assert lines == ["[-] metadata: it is being opened", "[-] broker: it waits", lines[-1]]
    assert (await http.get("/livez")).status == 200


async def test_programs_get_the_parts_as_json(
    connect: RawHttpContext, listener: HttpListener, state: NodeStateStub
) -> None:
    state.checks = ILL[:1]
    http = await connect(listener.port)
    reply = await http.get("/readyz", "Accept: application/json\r\n")
    assert reply.headers["content-type"] == "application/json"
    assert reply.body == (
        b'{"ready":false,"checks":[{"name":"metadata","ok":false,"reason":"it is being opened","is_needed":true}]}'
    )


async def test_metrics_are_served_if_enabled(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    reply = await http.get("/metrics")
    assert (reply.status, reply.body) == (200, b"icestream_ready 1.0\n")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    without = HttpListener(Endpoints(NodeStateStub().read))
    await without.listen("127.0.0.1", 0)
    assert (await (await connect(without.port)).get("/metrics")).status == 404
    await without.close()


async def test_pipelined_requests_are_answered_in_order(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    host = b"Host: localhost\r\n"
    await http.send(b"GET /livez HTTP/1.1\r\n%b\r\nGET /nope HTTP/1.1\r\n%bConnection: close\r\n\r\n" % (host, host))
    assert [(await http.reply()).status, (await http.reply()).status] == [200, 404]
    assert await http.is_closed()


async def test_a_request_in_pieces_is_assembled(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    for byte in b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n":
        await http.send(bytes([byte]))
    assert (await http.reply()).status == 200


async def test_head_has_the_length_and_no_body(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    await http.send(b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    reply = await http.reply(has_body=False)
    assert (reply.status, reply.headers["content-length"]) == (200, "3")
    assert (await http.get("/livez")).status == 200


async def test_an_unsupported_method_is_refused_with_the_allowed_ones(
    connect: RawHttpContext, listener: HttpListener
) -> None:
    http = await connect(listener.port)
    await http.send(b"DELETE /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    reply = await http.reply()
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01 no http\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * limits.HTTP_HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 2 * limits.HTTP_HEAD_BYTES_MAX, 431),
    ],
)
async def test_an_invalid_request_ends_the_connection(
    connect: RawHttpContext, listener: HttpListener, data: bytes, status: int
) -> None:
    http = await connect(listener.port)
    await http.send(data)
    assert (await http.reply()).status == status
    assert await http.is_closed()
    assert (await (await connect(listener.port)).get("/livez")).status == 200


async def test_idle_connections_make_room_for_new_ones(connect: RawHttpContext) -> None:
    listener = HttpListener(Endpoints(lambda: WELL), connections_max=3)
    await listener.listen("127.0.0.1", 0)
    idle = await connect(listener.port)
    assert (await idle.get("/livez")).status == 200
    silent = [await connect(listener.port) for _ in range(2)]
    others = [await connect(listener.port) for _ in range(2)]
    assert [(await http.get("/livez")).status for http in (idle, *others)] == [200, 200, 200]
    assert all([await http.is_closed() for http in silent])
    assert (listener.room.open, listener.room.evicted, listener.room.refused) == (3, 2, 0)
    newest = await connect(listener.port)
    assert (await newest.get("/livez")).status == 200
    assert await idle.is_closed(), "it has been idle longest"
    await listener.close()


async def test_connections_being_answered_are_not_closed_for_others(connect: RawHttpContext) -> None:
    may_answer = asyncio.Event()
    reads_started = asyncio.Semaphore(0)

    async def wait(_request: Request) -> Response:
        reads_started.release()
        await may_answer.wait()
        return Response(HTTPStatus.OK, b"done")

    listener = HttpListener(wait, connections_max=2)
    await listener.listen("127.0.0.1", 0)
    busy = [await connect(listener.port) for _ in range(2)]
    for http in busy:
        await http.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reads_started.acquire()
    refused = await connect(listener.port)
    assert (await refused.reply()).status == 503
    assert connections_check([listener.room]) == Check(
        "connections", False, "http: all 2 are busy, new ones are refused (1 so far)", is_needed=False
    )
    may_answer.set()
    assert [(await http.reply()).body for http in busy] == [b"done", b"done"]
    assert (await (await connect(listener.port)).get("/")).status == 200
    await listener.close()


@pytest.mark.parametrize("part", [b"", b"G", b"GET /livez HTTP/1.1\r\nHost: loc"])
async def test_a_head_that_is_not_complete_in_time_ends_the_connection(
    connect: RawHttpContext, listener: HttpListener, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(limits, "HTTP_HEAD_SECONDS_MAX", 0.05)
    http = await connect(listener.port)
    await http.send(part)
    assert await http.is_closed()
    later = await connect(listener.port)
    assert (await later.get("/livez")).status == 200
    await later.send(part or b"\r")
    assert await later.is_closed(), "the next head of a connection has no more time"


async def test_an_idle_connection_is_closed(
    connect: RawHttpContext, listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 0.05)
    http = await connect(listener.port)
    assert (await http.get("/livez")).status == 200
    assert await http.is_closed()


async def test_a_client_that_does_not_read_its_response_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_IDLE_SECONDS", 0.1)
    size = 64 * 1024 * 1024  # more than the buffers of the sockets

    is_asked = asyncio.Event()

    async def handle(request: Request) -> Response:
        is_asked.set()
        return Response(HTTPStatus.OK, bytes(size))

    listener = HttpListener(handle)
    await listener.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await is_asked.wait()
    await until(lambda: listener.room.open == 0)
    received_bytes = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 20):
            received_bytes += len(data)
    assert received_bytes < size
    writer.close()
    await listener.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9040", "192.0.2.1", ""])
async def test_a_request_with_a_foreign_host_header_is_refused(
    connect: RawHttpContext, listener: HttpListener, host: str
) -> None:
    """DNS rebinding: the browser believes that this broker is the page's own server."""
    http = await connect(listener.port)
    await http.send(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert (await http.reply()).status == 421
    await http.send(b"GET /livez HTTP/1.1\r\nHost: [::1]:9040\r\n\r\n")
    assert (await http.reply()).status == 200


async def test_a_probe_of_http_1_0_needs_no_host(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    await http.send(b"GET /livez HTTP/1.0\r\n\r\n")
    assert (await http.reply()).status == 200


async def test_a_listener_for_other_machines_accepts_any_host(connect: RawHttpContext) -> None:
    listener = HttpListener(Endpoints(lambda: WELL))
    await listener.listen("0.0.0.0", 0)
    http = await connect(listener.port)
    await http.send(b"GET /livez HTTP/1.1\r\nHost: broker.example\r\n\r\n")
    assert (await http.reply()).status == 200
    await listener.close()


async def test_an_internal_error_is_answered(connect: RawHttpContext) -> None:
    async def fail(request: Request) -> Response:
        raise RuntimeError(request.path)

    listener = HttpListener(fail)
    await listener.listen("127.0.0.1", 0)
    http = await connect(listener.port)
    assert (await http.get("/a")).status == HTTPStatus.INTERNAL_SERVER_ERROR
    await listener.close()
    assert await http.is_closed()


async def test_a_port_in_use_is_a_configuration_error(listener: HttpListener) -> None:
    with pytest.raises(errors.ConfigurationError, match="cannot listen") as caught:
        await HttpListener(Endpoints(NodeStateStub().read)).listen("127.0.0.1", listener.port)
    assert "ports.broker_http" in caught.value.hint


async def test_close_ends_waiting_requests(connect: RawHttpContext, listener: HttpListener) -> None:
    http = await connect(listener.port)
    assert (await http.get("/livez")).status == 200
    await listener.close()
    assert await http.is_closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
