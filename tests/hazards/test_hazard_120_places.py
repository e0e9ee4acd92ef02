"""Hazard 120: connections without a credential close no connection that has one, and keep none from coming, on every
listener. A flood fills and refills the places that strangers have, a quarter of all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest
from starlette.types import Receive, Scope, Send

from icestream.frontends.danube.native_grpc_server import NativeGrpcListener
from icestream.lake.http import ConnectionSlots, serve_http
from icestream.lake.request_caller import AUTHENTICATED
from icestream.mqtt import packets
from icestream.mqtt.codec import encode_packet
from icestream.observability.http_listener import HttpListener, Response
from icestream.observability.http_request import Request
from icestream.rpc.frame import FrameKind, encode_frame
from icestream.rpc.handshake import Hello, HelloCredential, encode_hello
from tests.support.mqtt_front import V5, mqtt_front
from tests.support.raw_client import raw_client
from tests.support.raw_http import RawHttpContext
from tests.support.secured_access import SecuredAccess
from tests.support.secured_broker import secured_broker
from tests.support.secured_danube import secured_danube
from tests.support.until import until

pytestmark = pytest.mark.asyncio
PLACES, FLOOD = 8, 40
ALICE = Hello(credential=HelloCredential(token="token-of-alice"))
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HELLO = encode_frame(FrameKind.HELLO, 1, encode_hello(Hello()))
# The start of an HTTP/2 connection: the preface and an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
RULES = {"alice": ["all on /default/*"]}


@contextlib.asynccontextmanager
async def flood(port: int, sent: bytes) -> AsyncIterator[None]:
    """Many connections, one after the other, which stay open. Each sends these bytes and waits for an answer, so that
    it is as useful as the others."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(FLOOD):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            with contextlib.suppress(ConnectionError):  # refused
                writer.write(sent)
                await asyncio.wait_for(reader.read(1), 20)
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


@pytest.mark.usefixtures("native_wire")
async def test_hazard_120_native_clients_are_not_closed_for_strangers() -> None:
    async with (
        secured_broker(SecuredAccess(RULES), connections_max=PLACES) as served,
        contextlib.AsyncExitStack() as closing,
    ):
        clients = [raw_client(served.address, ALICE) for _ in range(PLACES - 2)]
        known = [await closing.enter_async_context(client) for client in clients]
        async with flood(served.listener.port, HELLO):
            await until(lambda: served.listener.room.evicted >= FLOOD - 2)
            async with raw_client(served.address) as stranger:  # anonymous, with a complete HELLO
                await stranger.call("list_topics")
                for client in known:
                    await client.call("list_topics")
                async with raw_client(served.address, ALICE) as late:  # in place of an idle client of its kind
                    await late.call("list_topics")
        assert served.listener.room.refused == 0


async def test_hazard_120_danubes_clients_are_not_closed_for_strangers() -> None:
    async with secured_danube(
        SecuredAccess({"alice": ["produce,create on /default/*"]}), connections_max=PLACES
    ) as danube:
        if not isinstance(danube.listener, NativeGrpcListener):
            pytest.skip("grpc.aio closes no connection for another one")
        alice = danube.as_("alice")
        producer = await alice.producer()
        server = danube.listener._server
        assert server is not None
        (number,) = server._callers
        async with flood(danube.listener.port, PREFACE):
            await until(lambda: danube.listener.room is not None and danube.listener.room.evicted >= FLOOD - 2)
            await alice.send(producer)
            assert number in server._callers, "it is the same connection"


async def answer(request: Request) -> Response:
    return Response(HTTPStatus.OK, b"ok\n", is_recognised="authorization" in request.headers)


async def test_hazard_120_http_clients_are_not_closed_for_strangers() -> None:
    connect = RawHttpContext()
    listener = HttpListener(answer, connections_max=PLACES, has_accounts=lambda: True)
    await listener.listen("127.0.0.1", 0)
    known = [await connect(listener.port) for _ in range(2)]
    for http in known:
        await http.get("/", "Authorization: Bearer x\r\n")
    async with flood(listener.port, GET):
        await until(lambda: listener.room.evicted >= FLOOD - 4)
        late = await connect(listener.port)
        for http in (*known, late):
            assert (await http.get("/", "Authorization: Bearer x\r\n")).status == 200
    await connect.close()
    await listener.close()


async def lake_app(scope: Scope, receive: Receive, send: Send) -> None:
    """As the lake's application marks requests: clients have accounts, and some have proved theirs."""
    scope["state"][AUTHENTICATED] = any(name == b"authorization" for name, _ in scope["headers"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def lake_server() -> AsyncIterator[tuple[int, ConnectionSlots]]:
    listening = socket.create_server(("127.0.0.1", 0))
    slots = ConnectionSlots(PLACES, "", lambda state: None)
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_http(lake_app, listening, slots, stop))
    try:
        yield listening.getsockname()[1], slots
    finally:
        stop.set()
        await serving


async def test_hazard_120_clients_of_the_lake_are_not_closed_for_strangers() -> None:
    connect = RawHttpContext()
    async with lake_server() as (port, slots):
        known = [await connect(port) for _ in range(3)]
        for http in known:
            await http.get("/", "Authorization: Bearer x\r\n")
        async with flood(port, GET):
            await until(lambda: slots.state.evicted >= FLOOD - PLACES)
            late = await connect(port)
            for http in (*known[1:], late):  # the first one told that there are accounts: it came as no stranger
                assert (await http.get("/", "Authorization: Bearer x\r\n")).status == 200
        await connect.close()


async def test_hazard_120_mqtt_clients_are_not_closed_for_strangers() -> None:
    async with (
        mqtt_front(SecuredAccess({}), connections_max=PLACES) as front,
        contextlib.AsyncExitStack() as closing,
    ):
        known = []
        for number in range(PLACES - 3):
            client = await closing.enter_async_context(await front.client())
            await client.connect(f"c{number}", user_name="alice", password=b"password-of-alice")
            known.append(client)
        # Open sessions are never closed for another connection: those of strangers fill the places that they have.
        async with flood(front.listener.port, encode_packet(packets.ConnectPacket("x"), V5)):
            assert front.listener.room.refused >= FLOOD - 2
            for client in known:
                await client.ping()
            assert len(front.broker.sessions) == len(known) + 2
