"""Both wires serve the same table in the same way: the native one, and gRPC's own for Python."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from icestream import errors, limits
from icestream.frontends.danube.handlers import Call, HandlerTable, OutStream
from icestream.frontends.danube.native_grpc_server import NativeGrpcListener
from icestream.frontends.danube.python_grpc_server import OPTIONS, PythonGrpcListener
from icestream.frontends.danube.request_batch import BatchedMethod, RequestBatch
from tests.support.until import until

pytestmark = pytest.mark.asyncio
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # with empty SETTINGS
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
KINDS: dict[str, Any] = {"native": NativeGrpcListener, "python": PythonGrpcListener}


class Service:
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


class Served:
    def __init__(self, listener: Any, service: Service, channel: aio.Channel) -> None:
        self.listener = listener
        self.service = service
        self.channel = channel

    def unary(self, name: str) -> Any:
        return self.channel.unary_unary(f"/t.T/{name}")

    def stream(self, name: str) -> Any:
        return self.channel.unary_stream(f"/t.T/{name}")


@pytest_asyncio.fixture(params=sorted(KINDS))
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    listener = KINDS[request.param]("ports.danube")
    port = await listener.bind("127.0.0.1", 0)
    service = Service()
    await listener.serve(service.table())
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]) as channel:
        yield Served(listener, service, channel)
        service.go.set()
        await listener.close()


async def status_of_call(call: Any) -> tuple[str, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


@pytest.mark.parametrize("size", [0, 1, 70_000, 3 << 20])
async def test_bytes_go_both_ways(served: Served, size: int) -> None:
    body = os.urandom(size)
    assert await served.unary("Echo")(body) == body


async def test_a_handler_sees_the_peer_and_our_metadata(served: Served) -> None:
    await served.unary("Echo")(b"", metadata=(("x-icestream-start", "offset:7"), ("other", "1")))
    await served.unary("Echo")(b"")
    first, second = served.service.calls
    assert "127.0.0.1" in first.peer
    assert dict(first.metadata) == {"x-icestream-start": "offset:7"}
    assert dict(second.metadata) == {}


async def test_an_error_of_the_tree_is_its_status_with_its_words(served: Served) -> None:
    code, details = await status_of_call(served.unary("Fail")(b""))
    assert code == "NOT_FOUND"
    assert "Käse gibt es nicht: 100 %" in details


async def test_a_mistake_of_ours_is_internal_and_tells_nothing(served: Served) -> None:
    code, details = await status_of_call(served.unary("Break")(b""))
    assert code == "INTERNAL"
    assert "mistake" not in details


async def test_a_method_that_there_is_not(served: Served) -> None:
    assert (await status_of_call(served.unary("Nothing")(b"")))[0] == "UNIMPLEMENTED"


async def test_calls_do_not_wait_for_each_other_and_may_be_cancelled(served: Served) -> None:
    waiting = [served.unary("Wait")(bytes([index])) for index in range(10)]
    await until(lambda: len(served.service.calls) == 10)
    for index in (3, 7):
        waiting[index].cancel()
    assert await served.unary("Echo")(b"beside") == b"beside"
    served.service.go.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [one for one in answers if isinstance(one, bytes)] == [bytes([index]) for index in (0, 1, 2, 4, 5, 6, 8, 9)]


async def test_a_stream_brings_messages_in_order_and_its_end(served: Served) -> None:
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


async def test_a_stream_that_fails_says_why(served: Served) -> None:
    call = served.stream("Watch")(b"fail")
    await until(lambda: served.service.out is not None)
    served.service.go.set()
    code, details = await status_of_call(call.read())
    assert code == "NOT_FOUND"
    assert "it is gone" in details


async def test_a_stream_whose_client_goes_is_cancelled(served: Served) -> None:
    call = served.stream("Watch")(b"")
    await until(lambda: served.service.out is not None)
    call.cancel()
    async with asyncio.timeout(30):
        assert await served.service.gone.wait()


async def test_a_client_that_does_not_read_stops_its_stream_alone(served: Served) -> None:
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


async def push_until_full(served: Served, out: OutStream, messages: Sequence[bytes]) -> int:
    """How many it took. The windows of HTTP/2 take some; full is what stays full while others are served."""
    pushed = 0
    async with asyncio.timeout(30):
        while not out.is_full:
            out.push(messages)
            pushed += len(messages)
            for _ in range(5):
                assert await served.unary("Echo")(b"beside") == b"beside"
    assert pushed * len(messages[0]) > limits.DANUBE_STREAM_BYTES_MAX
    return pushed


async def test_closing_answers_what_is_under_way(served: Served) -> None:
    waiting = [asyncio.ensure_future(served.unary("Wait")(bytes([index]))) for index in range(5)]
    await until(lambda: len(served.service.calls) == 5)
    closing = asyncio.ensure_future(served.listener.close())
    await asyncio.sleep(0)
    served.service.go.set()
    assert await asyncio.gather(*waiting) == [bytes([index]) for index in range(5)]
    async with asyncio.timeout(30):
        await closing
    assert (await status_of_call(served.unary("Echo")(b"", timeout=5)))[0] in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


async def test_a_second_listener_on_the_port_is_told_so(served: Served) -> None:
    with pytest.raises(errors.ConfigurationError, match="another process listens there"):
        await type(served.listener)("ports.danube").bind("127.0.0.1", served.listener.port)


async def test_a_mistake_in_a_batch_answers_every_row_of_it() -> None:
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


async def test_silent_connections_keep_no_client_out() -> None:
    listener = NativeGrpcListener("ports.danube", connections_max=3)
    port = await listener.bind("127.0.0.1", 0)
    service = Service()
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


async def test_while_all_connections_have_calls_another_one_is_refused() -> None:
    listener = NativeGrpcListener("ports.danube", connections_max=1)
    port = await listener.bind("127.0.0.1", 0)
    service = Service()
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
    await listener.serve(Service().table())
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        assert reader.at_eof() or reader.exception() is not None
    writer.close()
    await listener.close()
