"""Both wires serve the same table in the same way: the native one, and gRPC's own for Python."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from icestream import errors, limits
from icestream.frontends.danube.handlers import Call, HandlerTable, OutStream
from icestream.frontends.danube.native_grpc_server import CONNECTION_GONE, STREAM_GONE, NativeGrpcListener
from icestream.frontends.danube.python_grpc_server import OPTIONS, PythonGrpcListener
from icestream.frontends.danube.request_batch import BatchedMethod, RequestBatch
from tests.support.until import until

pytestmark = pytest.mark.asyncio
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # with empty SETTINGS
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
KINDS: dict[str, Any] = {"native": NativeGrpcListener, "python": PythonGrpcListener}


class EchoHandlers:
    """Handlers whose ends the test decides."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.go = asyncio.Event()
        self.out: OutStream | None = None
        self.gone = asyncio.Event()
        self.drained = 0

    def table(self) -> HandlerTable:
        unary = {"/t.T/Echo": self.echo, "/t.T/Wait": self.wait, "/t.T/Fail": self.fail, "/t.T/Break": self.break_}
        return HandlerTable(unary, {"/t.T/Watch": self.watch})

    async def echo(self, raw: bytes, call: Call) -> bytes:
        self.calls.append(call)
        return raw

    async def wait(self, raw: bytes, call: Call) -> bytes:
        self.calls.append(call)
        await self.go.wait()
        return raw

    async def fail(self, raw: bytes, call: Call) -> bytes:
        raise errors.UnknownTopic("Käse gibt es nicht: 100 %", hint="erst anlegen")

    async def break_(self, raw: bytes, call: Call) -> bytes:
        raise ZeroDivisionError("a mistake of ours")

    async def watch(self, raw: bytes, call: Call, out: OutStream) -> None:
        self.out = out
        out.on_drained = self._on_drained
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.gone.set()
            raise
        if raw:
            raise errors.UnknownSubscription("it is gone", hint="subscribe again")

    def _on_drained(self) -> None:
        self.drained += 1


class RunningServer:
    def __init__(self, listener: Any, service: EchoHandlers, channel: aio.Channel) -> None:
        self.listener = listener
        self.service = service
        self.channel = channel

    def unary(self, name: str) -> Any:
        return self.channel.unary_unary(f"/t.T/{name}")

    def stream(self, name: str) -> Any:
        return self.channel.unary_stream(f"/t.T/{name}")


@pytest_asyncio.fixture(params=sorted(KINDS))
async def served(request: pytest.FixtureRequest) -> AsyncIterator[RunningServer]:
    listener = KINDS[request.param]("ports.danube")
    port = await listener.bind("127.0.0.1", 0)
    service = EchoHandlers()
    await listener.serve(service.table())
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]) as channel:
        yield RunningServer(listener, service, channel)
        service.go.set()
        await listener.close()


async def status_of_call(call: Any) -> tuple[str, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


@pytest.mark.parametrize("size", [0, 1, 70_000, 3 << 20])
async def test_bytes_are_transferred_in_both_directions(served: RunningServer, size: int) -> None:
    body = os.urandom(size)
    assert await served.unary("Echo")(body) == body


async def test_a_handler_gets_the_peer_and_the_metadata(served: RunningServer) -> None:
    await served.unary("Echo")(b"", metadata=(("x-icestream-start", "offset:7"), ("other", "1")))
    await served.unary("Echo")(b"")
    first, second = served.service.calls
    assert "127.0.0.1" in first.peer
    assert dict(first.metadata) == {"x-icestream-start": "offset:7"}
    assert dict(second.metadata) == {}


async def test_an_icestream_error_becomes_its_status_and_message(served: RunningServer) -> None:
    code, details = await status_of_call(served.unary("Fail")(b""))
    assert code == "NOT_FOUND"
    assert "Käse gibt es nicht: 100 %" in details


async def test_an_unexpected_exception_is_internal_without_details(served: RunningServer) -> None:
    code, details = await status_of_call(served.unary("Break")(b""))
    assert code == "INTERNAL"
    assert "mistake" not in details


async def test_an_unknown_method_is_unimplemented(served: RunningServer) -> None:
    assert (await status_of_call(served.unary("Nothing")(b"")))[0] == "UNIMPLEMENTED"


async def test_calls_run_concurrently_and_can_be_cancelled(served: RunningServer) -> None:
    waiting = [served.unary("Wait")(bytes([index])) for index in range(10)]
    await until(lambda: len(served.service.calls) == 10)
    for index in (3, 7):
        waiting[index].cancel()
    assert await served.unary("Echo")(b"beside") == b"beside"
    served.service.go.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, bytes)] == [
        bytes([index]) for index in (0, 1, 2, 4, 5, 6, 8, 9)
    ]


async def test_a_stream_delivers_messages_in_order_and_then_ends(served: RunningServer) -> None:
    call = served.stream("Watch")(b"")
    await until(lambda: served.service.out is not None)
    out = served.service.out
    assert out is not None
    out.push([b"a", b""])
    out.push([b"c" * 100_000])
    assert [await call.read() for _ in range(3)] == [b"a", b"", b"c" * 100_000]
    served.service.go.set()
    assert await call.read() is aio.EOF
    assert await call.code() == grpc.StatusCode.OK


async def test_a_failed_stream_reports_the_reason(served: RunningServer) -> None:
    call = served.stream("Watch")(b"fail")
    await until(lambda: served.service.out is not None)
    served.service.go.set()
    code, details = await status_of_call(call.read())
    assert code == "NOT_FOUND"
    assert "it is gone" in details


async def test_a_stream_is_cancelled_when_its_client_disconnects(served: RunningServer) -> None:
    call = served.stream("Watch")(b"")
    await until(lambda: served.service.out is not None)
    call.cancel()
    async with asyncio.timeout(30):
        assert await served.service.gone.wait()


async def test_a_client_that_does_not_read_blocks_only_its_own_stream(served: RunningServer) -> None:
    call = served.stream("Watch")(b"")
    await until(lambda: served.service.out is not None)
    out = served.service.out
    assert out is not None
    pushed = await push_until_full(served, out, [os.urandom(100_000)] * 10)
    drained = served.service.drained
    for _ in range(pushed):
        assert len(await call.read()) == 100_000
    await until(lambda: served.service.drained > drained)
    assert not out.is_full


async def push_until_full(served: RunningServer, out: OutStream, messages: Sequence[bytes]) -> int:
    """Pushes until the stream stays full while others are served; returns how many messages it took."""
    pushed = 0
    async with asyncio.timeout(30):
        while not out.is_full:
            out.push(messages)
            pushed += len(messages)
            for _ in range(5):
                assert await served.unary("Echo")(b"beside") == b"beside"
    assert pushed * len(messages[0]) > limits.DANUBE_STREAM_BYTES_MAX
    return pushed


async def test_close_answers_the_calls_in_flight(served: RunningServer) -> None:
    waiting = [asyncio.ensure_future(served.unary("Wait")(bytes([index]))) for index in range(5)]
    await until(lambda: len(served.service.calls) == 5)
    closing = asyncio.ensure_future(served.listener.close())
    await asyncio.sleep(0)
    served.service.go.set()
    assert await asyncio.gather(*waiting) == [bytes([index]) for index in range(5)]
    async with asyncio.timeout(30):
        await closing
    assert (await status_of_call(served.unary("Echo")(b"", timeout=5)))[0] in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


async def test_a_second_listener_on_the_port_is_refused(served: RunningServer) -> None:
    with pytest.raises(errors.ConfigurationError, match="another process listens there"):
        await type(served.listener)("ports.danube").bind("127.0.0.1", served.listener.port)


async def test_a_failure_in_a_batch_answers_every_row() -> None:
    """Only the native wire has batches."""

    def break_(batch: RequestBatch) -> None:
        batch.succeed(0)
        raise ZeroDivisionError("a mistake of ours")

    async def unused(raw: bytes, call: Call) -> bytes:
        return raw

    listener = NativeGrpcListener("ports.danube")
    port = await listener.bind("127.0.0.1", 0)
    batched = {"/t.T/Send": BatchedMethod([(0, 1, 0)], (0, 1), break_)}
    await listener.serve(HandlerTable({"/t.T/Send": unused}, {}, batched))
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(3):
            assert (await status_of_call(channel.unary_unary("/t.T/Send")(b"\x08\x01")))[0] == "INTERNAL"
    await listener.close()


async def test_idle_connections_do_not_lock_out_clients() -> None:
    listener = NativeGrpcListener("ports.danube", connections_max=3)
    port = await listener.bind("127.0.0.1", 0)
    service = EchoHandlers()
    await listener.serve(service.table())
    silent = []
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as busy, asyncio.timeout(30):
            waiting = busy.unary_unary("/t.T/Wait")(b"x")
            await until(lambda: len(service.calls) == 1)
            for index in range(6):
                silent.append(await asyncio.open_connection("127.0.0.1", port))
                if index % 2:
                    silent[-1][1].write(HTTP2_PREFACE)
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(3):
                    channel = await stack.enter_async_context(aio.insecure_channel(f"127.0.0.1:{port}", OWN_CONNECTION))
                    assert await channel.unary_unary("/t.T/Echo")(b"hello") == b"hello"
            for reader, _ in silent:
                with contextlib.suppress(ConnectionError):
                    await reader.read()  # until it is closed
            service.go.set()
            assert await waiting == b"x", "a connection with a call stays"
        assert listener.room.refused == 0
        assert listener.room.evicted >= 4
    finally:
        for _, writer in silent:
            writer.close()
        await listener.close()


async def test_another_connection_is_refused_while_all_have_calls() -> None:
    listener = NativeGrpcListener("ports.danube", connections_max=1)
    port = await listener.bind("127.0.0.1", 0)
    service = EchoHandlers()
    await listener.serve(service.table())
    async with aio.insecure_channel(f"127.0.0.1:{port}") as busy, asyncio.timeout(30):
        waiting = busy.unary_unary("/t.T/Wait")(b"x")
        await until(lambda: len(service.calls) == 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert (listener.room.is_refusing, listener.room.refused) == (True, 1)
        service.go.set()
        assert await waiting == b"x"
    await listener.close()


async def test_grpc_closes_a_connection_that_sends_no_http_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's own listener cannot close silent connections for others; they have a time."""
    options = [(key, 300 if key == "grpc.server_handshake_timeout_ms" else value) for key, value in OPTIONS]
    monkeypatch.setattr("icestream.frontends.danube.python_grpc_server.OPTIONS", tuple(options))
    listener = PythonGrpcListener("ports.danube")
    port = await listener.bind("127.0.0.1", 0)
    await listener.serve(EchoHandlers().table())
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        assert reader.at_eof() or reader.exception() is not None
    writer.close()
    await listener.close()


async def test_hazard_55_a_request_that_arrived_whole_is_decided_before_the_end_of_its_connection() -> None:
    """Everything of a client arrives in one burst, because the loop is busy: its request, and that it has gone."""
    decided: list[str] = []
    service = EchoHandlers()
    batched = BatchedMethod([(0, 1, 0)], None, lambda _: decided.append("batch"))
    listener = NativeGrpcListener("ports.test")
    port = await listener.bind("127.0.0.1", 0)
    await listener.serve(HandlerTable({}, {"/t.T/Watch": service.watch}, {"/t.T/Batched": batched}))
    server = listener._server
    assert server is not None
    for kind in (STREAM_GONE, CONNECTION_GONE):
        handler = server._event_handlers[kind]

        def record(*details: Any, handler: Any = handler) -> None:
            decided.append("gone")
            handler(*details)

        server._event_handlers[kind] = record

    connected, blocked = threading.Event(), threading.Event()

    def client() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}", OWN_CONNECTION) as channel:
            watch = channel.unary_stream("/t.T/Watch")(b"")
            connected.set()
            blocked.wait(30)
            with contextlib.suppress(grpc.RpcError):
                channel.unary_unary("/t.T/Batched")(b"\x08\x01", timeout=0.2)
            watch.cancel()

    thread = threading.Thread(target=client)
    thread.start()
    await until(lambda: connected.is_set() and service.out is not None)
    blocked.set()
    thread.join()  # the loop is busy until the client has gone
    await until(lambda: decided.count("gone") == 2)
    assert decided == ["batch", "gone", "gone"]
    await listener.close()


async def test_hazard_73_at_the_bound_calls_wait_and_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DANUBE_IN_FLIGHT_BYTES_MAX", 20_000)
    service = EchoHandlers()
    listener = NativeGrpcListener("ports.test")
    port = await listener.bind("127.0.0.1", 0)
    await listener.serve(service.table())
    async with aio.insecure_channel(f"127.0.0.1:{port}", OWN_CONNECTION) as channel:
        waiting = [asyncio.ensure_future(channel.unary_unary("/t.T/Wait")(bytes(1000))) for _ in range(60)]
        await until(lambda: len(service.calls) >= 18)
        await asyncio.sleep(0.1)
        # A request that finds room is taken whole, so that the last may be beyond the bound.
        assert len(service.calls) <= 20_000 // 1064 + 1
        service.go.set()
        assert await asyncio.gather(*waiting) == [bytes(1000)] * 60
    await listener.close()
