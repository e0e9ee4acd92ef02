"""The processes of one broker recognise each other by its instance, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import pytest

from icestream import errors
from icestream.catalogs.rest_client import RestClient, RestOptions
from icestream.observability.http_listener import HttpListener, Response
from icestream.observability.http_request import Request
from icestream.processes.broker_process import BrokerNode
from icestream.runtime.clock import SystemClock
from icestream.runtime.http_probe import ProbeAnswer, parse_head, probe
from icestream.runtime.instance import check_instance, new_instance
from icestream.runtime.randomness import SystemRandomness
from tests.support.free_ports import free_ports
from tests.support.local_broker import kept_link
from tests.support.node_settings import node_settings

OWN, OTHER = "a" * 32, "b" * 32


def test_each_start_has_an_instance_of_its_own() -> None:
    first, second = (new_instance(SystemRandomness()) for _ in range(2))
    assert first != second
    assert len(first) == len(bytes.fromhex(first)) * 2 == 32


@pytest.mark.parametrize(
    ("answered", "words"), [(OTHER, f"another broker (instance {OTHER})"), (None, "does not belong to")]
)
def test_another_instance_is_an_error_that_names_the_port(answered: str | None, words: str) -> None:
    check_instance(OWN, OWN, "127.0.0.1:8181")
    check_instance("", answered, "127.0.0.1:8181")  # the own one is not known: nothing is compared
    with pytest.raises(errors.ForeignBroker) as refused:
        check_instance(OWN, answered, "127.0.0.1:8181")
    assert refused.value.message.startswith("127.0.0.1:8181 is answered by ")
    assert words in refused.value.message
    assert "ports.lake" in refused.value.hint


@pytest.mark.asyncio
async def test_a_connection_knows_the_instance_of_its_broker_and_of_the_next_start(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path))
    first = node.services.instance
    try:
        async with kept_link(node.settings.local_socket) as keeper:
            assert keeper.instance == first
            places = await keeper.call("places", {})
            assert places["instance"] == first
            await node.stop()
            node = await BrokerNode.start(node_settings(tmp_path))
            async with asyncio.timeout(30):
                while keeper.instance == first:  # noqa: ASYNC110 (the link is opened again by a task of its own)
                    await asyncio.sleep(0.01)
            assert keeper.instance == node.services.instance != first
    finally:
        await node.stop()


# --- over HTTP --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def answering(instance: str, status: HTTPStatus = HTTPStatus.OK) -> AsyncIterator[int]:
    async def answer(request: Request) -> Response:
        return Response(status, b"{}", "application/json")

    listener = HttpListener(answer, instance)
    await listener.listen("127.0.0.1", 0)
    try:
        yield listener.port
    finally:
        await listener.close()


@pytest.mark.asyncio
async def test_a_probe_returns_status_and_instance() -> None:
    async with answering(OWN) as port:
        assert await probe("0.0.0.0", port) == ProbeAnswer(200, OWN)
    async with answering("", HTTPStatus.SERVICE_UNAVAILABLE) as port:
        assert await probe("127.0.0.1", port) == ProbeAnswer(503, None)


@pytest.mark.asyncio
async def test_a_probe_of_a_port_that_does_not_answer_in_http_fails_within_its_time() -> None:
    (free,) = free_ports(1)
    with pytest.raises(errors.ConnectionLost, match="does not answer"):
        await probe("127.0.0.1", free)

    answers = [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"x" * 200_000]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.pop())
        writer.close()

    while answers:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            with pytest.raises(errors.ConnectionLost, match="does not answer"):
                await probe("127.0.0.1", server.sockets[0].getsockname()[1])
    left = asyncio.Event()

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        left.set()

    server = await asyncio.start_server(be_silent, "127.0.0.1", 0)
    async with server:
        with pytest.raises(errors.ConnectionLost, match=r"within 0\.05 s"):
            await probe("127.0.0.1", server.sockets[0].getsockname()[1], seconds=0.05)
        await left.wait()  # the connection is not left open


def test_a_response_that_is_no_http_has_no_instance() -> None:
    good = b"HTTP/1.1 200 OK\r\nicestream-INSTANCE:  " + OWN.encode() + b" \r\n\r\n"
    assert parse_head(good) == ProbeAnswer(200, OWN)
    for head in (b"", b"HTTP/1.1", b"HTTP/2 200", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 \xb2\xb3\xb9 OK\r\n\r\n"):
        assert parse_head(head) is None
    for cut in range(len(good)):
        parse_head(good[:cut])  # no exception, whatever is cut off


@pytest.mark.asyncio
async def test_a_catalog_of_another_broker_is_refused_and_that_of_the_own_is_used() -> None:
    async with answering(OWN) as port:
        client = RestClient(RestOptions(f"http://127.0.0.1:{port}"), SystemClock(), lambda: OWN)
        assert (await client.send("GET", "config")).status == 200
        await client.close()
    for instance, status in ((OTHER, HTTPStatus.OK), ("", HTTPStatus.OK), (OTHER, HTTPStatus.MISDIRECTED_REQUEST)):
        async with answering(instance, status) as port:
            client = RestClient(RestOptions(f"http://127.0.0.1:{port}"), SystemClock(), lambda: OWN)
            with pytest.raises(errors.ForeignBroker, match=f"127.0.0.1:{port} is answered by"):
                await client.send("GET", "config")
            await client.close()
    async with answering("", HTTPStatus.SERVICE_UNAVAILABLE) as port:  # not connected to its broker yet
        client = RestClient(RestOptions(f"http://127.0.0.1:{port}"), SystemClock(), lambda: OWN)
        assert (await client.send("GET", "config")).status == 503
        await client.close()
