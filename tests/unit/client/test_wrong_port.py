"""Connecting to a port that is not the native one: said at once, with what answers there and which port to use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icestream
from icestream import errors, limits
from icestream.client.address import DEFAULT_PORT, Address
from icestream.client.client_connection import foreign_protocol, wrong_port_error
from icestream.rpc.frame import FIRST_FROM_BROKER, HEAD, SIZE_MIN
from icestream.settings.tree import PortsSection
from tests.support.free_ports import free_ports
from tests.support.until import until

LONG_SECONDS = 60.0  # of every time-out: an error that waits for one fails the test by its name


async def refusal(port: int) -> errors.IcestreamError:
    """The error of a client that is patient, so that it is not a time-out's."""
    with pytest.raises(errors.IcestreamError) as raised:
        await icestream.connect(f"127.0.0.1:{port}", connect_timeout=LONG_SECONDS, wait=LONG_SECONDS)
    return raised.value


@pytest.mark.asyncio
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("name", "says"), [("broker_http", "HTTP"), ("danube", "gRPC"), ("danube_admin", "gRPC")], ids=lambda value: value
)
async def test_every_other_port_of_a_broker_is_recognised_immediately(name: str, says: str) -> None:
    assert name in PortsSection.model_fields
    (port,) = free_ports(1)
    settings = {"danube": {"enable": True}, "ports": {name: port}}
    async with icestream.testing.broker(settings=settings):
        error = await refusal(port)
    assert isinstance(error, errors.WrongPort)
    assert error.message.startswith(f"icestream://127.0.0.1:{port} answers in {says}")
    assert f"ports.native, {DEFAULT_PORT}" in error.hint


@asynccontextmanager
async def server(answer: bytes, port: int = 0) -> AsyncIterator[int]:
    """Says this to every connection, and nothing more."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await reader.read(-1)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await asyncio.gather(*serving)


@pytest.mark.asyncio
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "gRPC"),  # SETTINGS without a setting: less than a frame of ours
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS"),
    ],
    ids=["http", "grpc", "tls"],
)
async def test_a_server_of_another_protocol_is_recognised_by_its_first_bytes(answer: bytes, says: str) -> None:
    async with server(answer) as port:
        error = await refusal(port)
    assert isinstance(error, errors.WrongPort)
    assert f"answers in {says}" in error.message


@given(size=st.integers(SIZE_MIN, limits.HELLO_BYTES_MAX), kind=st.sampled_from(sorted(FIRST_FROM_BROKER)))
def test_no_first_frame_of_a_broker_is_mistaken_for_another_protocol(size: int, kind: int) -> None:
    head = HEAD.pack(size, kind, 0, 0, 1)
    for count in range(len(head) + 1):
        assert foreign_protocol(head[:count]) == ""


@given(st.binary(max_size=32))
def test_any_bytes_are_judged_without_an_error(first: bytes) -> None:
    error = wrong_port_error(Address("h", 1), first)
    assert (error is None) == (foreign_protocol(first) == "")


@pytest.mark.asyncio
@pytest.mark.timeout(30)
async def test_a_connected_client_keeps_reconnecting_through_another_server() -> None:
    """A proxy may answer in HTTP while its broker is away."""
    async with icestream.testing.broker() as broker, icestream.connect(broker.address) as client:
        port = int(broker.address.rpartition(":")[2])
        before = client.connections
        await broker.stop()
        async with server(b"HTTP/1.1 502 Bad Gateway\r\n\r\n", port):
            await until(lambda: isinstance(client._session._last_error, errors.WrongPort))
        await broker.start()
        assert await client.list_topics() == []
        assert client.connections == before + 1
