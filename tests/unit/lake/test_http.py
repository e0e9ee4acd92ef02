"""The HTTP of the lake process over real sockets: HEAD, and clients that send what is no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.lake.http import HeadJoiningTransport, bind_listener
from icestream.processes.lake_process import run_lake
from tests.support.catalog_servers import settings_of
from tests.support.raw_http import RawHttpContext
from tests.support.until import until

pytestmark = pytest.mark.asyncio
HOST = b"Host: 127.0.0.1\r\n"


@pytest_asyncio.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    """A lake process without a broker, in this one."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(run_lake(settings_of(f"data_dir={tmp_path}", "ports.lake=0"), ready.set_result))
    yield await ready
    os.kill(os.getpid(), signal.SIGTERM)
    await serving


async def test_an_invalid_warehouse_location_is_refused_at_start(tmp_path: Path) -> None:
    warehouse = "storage.iceberg_config.warehouse=file:/a/../b"
    settings = settings_of(f"data_dir={tmp_path}", "ports.lake=0", warehouse)
    with pytest.raises(errors.ConfigurationError, match="the catalog cannot use its warehouse"):
        await run_lake(settings, lambda _: None)


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[RawHttpContext]:
    context = RawHttpContext()
    yield context
    await context.close()


async def test_head_is_get_without_the_body(port: int, connect: RawHttpContext) -> None:
    http = await connect(port)
    for path, status in (("/livez", 200), ("/readyz", 503), ("/api/v1", 200), ("/api/v1/topics", 503)):
        await http.send(f"HEAD {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await http.reply(has_body=False)
        await http.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        body = await http.reply()
        assert (head.status, body.status) == (status, status), path
        assert int(head.headers["content-length"]) == len(body.body)


async def test_a_client_that_expects_100_continue_gets_it(port: int, connect: RawHttpContext) -> None:
    http = await connect(port)
    body = b"client_id=x"
    head = b"POST /v1/oauth/tokens HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    await http.send(head % len(body))
    assert (await http.reply(has_body=False)).status == 100
    await http.send(body)
    assert (await http.reply()).status == 400, "it was read"


class RecordingTransport(asyncio.Transport):
    """A transport that records the written bytes, one entry for each packet."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.packets.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        raise AssertionError("some versions of asyncio do not pause the protocol behind it")

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


async def test_head_and_body_of_an_answer_are_one_packet() -> None:
    wire = RecordingTransport()
    subject = HeadJoiningTransport(wire, asyncio.get_running_loop())
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    subject.write(head)
    subject.write(b"body")
    subject.write(b"more")
    assert wire.packets == [head + b"body", b"more"]
    await asyncio.sleep(0)
    subject.write(head)
    assert len(wire.packets) == 2
    await asyncio.sleep(0)
    assert wire.packets[2:] == [head], "nothing follows: it goes with the turn of the loop"
    subject.write(head)
    subject.close()
    assert (wire.packets[3:], wire.is_closed) == ([head], True)
    await asyncio.sleep(0)
    subject.write(head)
    await asyncio.sleep(0)
    assert (len(wire.packets), subject.is_closing()) == (4, True)


async def test_a_large_body_is_not_copied_to_join_its_head() -> None:
    wire = RecordingTransport()
    subject = HeadJoiningTransport(wire, asyncio.get_running_loop())
    head, most = b"HTTP/1.1 200 OK\r\n\r\n", limits.HTTP_JOINED_BYTES_MAX
    subject.write(head)
    subject.write(bytes(most))
    subject.write(head)
    subject.write(bytes(most + 1))
    await asyncio.sleep(0)
    assert wire.packets == [head + bytes(most), head, bytes(most + 1)]


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xfe\r\n\r\n",
        b"POST /api/v1/namespaces HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
        b"POST /api/v1/namespaces HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        b"HEAD /api/v1/namespaces HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        b"GET /livez HTTP/1.1\r\nHost: evil\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /livez HTTP/1.1\r\n" + HOST + b"X: " + bytes(range(32)) + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 300_000,
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /livez HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 5_000 + b"\r\n",
        b"\r\n" * 10_000,
        b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"POST /v1/namespaces HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}",
        b"POST /v1/namespaces HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n{}{}{}",
        b"CONNECT / HTTP/1.1\r\n" + HOST + b"\r\n",
    ],
    ids=range(15),
)
async def test_bytes_that_are_no_http_are_refused_without_a_traceback(
    port: int, connect: RawHttpContext, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    http = await connect(port)
    await http.send(raw)
    await http.until_closed()
    other = await connect(port)
    await other.send(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (await other.reply()).status == 200
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert loud == []
    assert not any(record.exc_info for record in caplog.records)


async def test_an_internal_error_is_logged_with_its_traceback(
    port: int, connect: RawHttpContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError("an unforeseen error")

    monkeypatch.setattr("icestream.lake.request_caller.BrokerCallers.identify", fail)
    http = await connect(port)
    await http.send(b"GET /api/v1/topics HTTP/1.1\r\n" + HOST + b"\r\n")
    reply = await http.reply()
    assert (reply.status, json.loads(reply.body)["code"]) == (500, "internal")
    await until(lambda: "Traceback" in caplog.text)  # the server logs it behind the reply
    assert "an unforeseen error" in caplog.text


async def test_an_answer_in_two_pieces_does_not_wait_for_the_client_s_ack() -> None:
    """asyncio turns Nagle's algorithm off for sockets that name their protocol, and connections inherit it."""
    with contextlib.closing(bind_listener("127.0.0.1", 0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP
