"""The native gRPC server by itself: bounds, hostile peers, batches, and the two steps of its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from icestream.runtime.native import native
from tests.support.until import until

pytestmark = pytest.mark.asyncio
BATCH, UNARY, STREAM, STREAM_GONE, STREAM_LOW, METADATA, CONNECTION, CONNECTION_GONE = range(8)
MESSAGE_BYTES_MAX = 100_000
PENDING_BYTES_MAX = 250_000
ROW_COST = 64  # what a request counts beside its bytes (native/src/wire/grpc/inbox.rs)
COLUMNS = [(0, 1, 0), (0, 3, 1)]
SEND = "/t.T/Send"
ECHO = "/t.T/Echo"


class GrpcServerHarness:
    """A gRPC server, the events that it reported, and the replies of a test."""

    def __init__(self) -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self.port = listener.getsockname()[1]
        assert native is not None
        self.wire: Any = native.GrpcServer(
            listener.detach(),
            batched=[(SEND, COLUMNS, (0, 1))],
            streams=["/t.T/Watch"],
            metadata_keys=["authorization"],
            connections_max=3,
            message_bytes_max=MESSAGE_BYTES_MAX,
            pending_bytes_max=PENDING_BYTES_MAX,
            stream_bytes_low=1000,
            keepalive_ms=20_000,
        )
        self.events: list[tuple[Any, ...]] = []
        self.on: Callable[[tuple[Any, ...]], None] = lambda news: None
        asyncio.get_running_loop().add_reader(self.wire.fileno(), self.look)

    def look(self) -> None:
        for news in self.wire.poll():
            self.events.append(news)
            self.on(news)

    def kinds(self, kind: int) -> list[tuple[Any, ...]]:
        return [news for news in self.events if news[0] == kind]

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.wire.fileno())
        self.wire.close()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[GrpcServerHarness]:
    harness = GrpcServerHarness()
    yield harness
    harness.close()


@contextlib.asynccontextmanager
async def connected(server: GrpcServerHarness) -> AsyncIterator[aio.Channel]:
    # Else channels to the same address share one connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        yield channel


def echo(server: GrpcServerHarness) -> None:
    def answer(news: tuple[Any, ...]) -> None:
        if news[0] == UNARY:
            server.wire.reply(news[1], news[3])
        elif news[0] == BATCH:
            server.wire.complete(news[1])

    server.on = answer


def request(number: int) -> bytes:
    return b"\x08" + bytes([number]) + b"\x1a\x02" + b"ab"


async def status_of(call: Any) -> tuple[str, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


async def test_a_burst_is_one_batch_and_each_call_gets_its_reply(server: GrpcServerHarness) -> None:
    async with connected(server) as channel:
        calls = [channel.unary_unary(SEND)(request(number)) for number in range(1, 101)]
        await until(lambda: sum(news[3] for news in server.kinds(BATCH)) == 100)
        for _, batch, method, count, *_, columns in server.kinds(BATCH):
            assert method == 0
            assert len(memoryview(columns[0]).cast("Q")) == count
            server.wire.complete(batch)
        assert await asyncio.gather(*calls) == [b"\x08" + bytes([number]) for number in range(1, 101)]
    assert server.wire.pending_bytes() == 0


async def test_rows_are_answered_when_known_and_once(server: GrpcServerHarness) -> None:
    async with connected(server) as channel:
        server.wire.poll()
        calls = [asyncio.ensure_future(channel.unary_unary(SEND)(request(number))) for number in (1, 2, 3)]
        await until(lambda: sum(news[3] for news in server.kinds(BATCH)) == 3)
        where = {}
        for _, batch, _, _, _, _, _, _, columns in server.kinds(BATCH):
            for row, number in enumerate(memoryview(columns[0]).cast("Q")):
                where[number] = (batch, row)
        server.wire.complete(where[2][0], [where[2][1]], {where[2][1]: (14, "später, 50 %")})
        assert await status_of(calls[1]) == ("UNAVAILABLE", "später, 50 %")
        assert not calls[0].done()
        server.wire.complete(where[2][0], [where[2][1]])  # it was told already
        for batch in {batch for batch, _ in where.values()}:
            server.wire.complete(batch)
            server.wire.complete(batch)
        assert await asyncio.gather(calls[0], calls[2]) == [b"\x08\x01", b"\x08\x03"]


async def test_an_undecodable_request_is_refused_alone(server: GrpcServerHarness) -> None:
    echo(server)
    async with connected(server) as channel:
        bad = channel.unary_unary(SEND)(b"\x1a\x7f")
        good = channel.unary_unary(SEND)(request(5))
        assert (await status_of(bad))[0] == "INVALID_ARGUMENT"
        assert await good == b"\x08\x05"


async def test_a_message_above_the_bound_is_an_invalid_argument(server: GrpcServerHarness) -> None:
    """Any other status would make clients of Danube send it again for ever."""
    echo(server)
    async with connected(server) as channel:
        code, details = await status_of(channel.unary_unary(ECHO)(bytes(MESSAGE_BYTES_MAX + 1)))
        assert (code, str(MESSAGE_BYTES_MAX) in details) == ("INVALID_ARGUMENT", True)
        assert await channel.unary_unary(ECHO)(bytes(MESSAGE_BYTES_MAX)) == bytes(MESSAGE_BYTES_MAX)


async def test_calls_beyond_the_queue_bound_wait_and_all_are_answered(server: GrpcServerHarness) -> None:
    async with connected(server) as channel:
        body = bytes(10_000 - ROW_COST)
        calls = []
        # One after another, and exactly up to the bound: one that arrives in pieces and does not fit would be refused.
        for number in range(1, PENDING_BYTES_MAX // 10_000 + 1):
            calls.append(asyncio.ensure_future(channel.unary_unary(ECHO)(body)))
            await until(lambda number=number: len(server.kinds(UNARY)) == number)
        assert server.wire.pending_bytes() == PENDING_BYTES_MAX
        for _ in range(3):
            assert (await status_of(channel.unary_unary(ECHO)(body, timeout=0.2)))[0] == "DEADLINE_EXCEEDED"
        assert len(server.kinds(UNARY)) == len(calls)
        waiting = asyncio.ensure_future(channel.unary_unary(ECHO)(body))
        echo(server)
        for _, call, *_ in server.kinds(UNARY):
            server.wire.reply(call, b"done")
        assert await asyncio.gather(*calls) == [b"done"] * len(calls)
        assert await waiting == body
    assert server.wire.pending_bytes() == 0


async def test_compressed_requests_are_refused(server: GrpcServerHarness) -> None:
    echo(server)
    async with aio.insecure_channel(f"127.0.0.1:{server.port}", compression=grpc.Compression.Gzip) as channel:
        assert (await status_of(channel.unary_unary(ECHO)(bytes(1000))))[0] == "UNIMPLEMENTED"


async def test_the_deadline_of_a_call_is_passed_on(server: GrpcServerHarness) -> None:
    echo(server)
    async with connected(server) as channel:
        before = time.monotonic_ns()
        await channel.unary_unary(ECHO)(b"", timeout=30)
        await channel.unary_unary(ECHO)(b"")
    with_deadline, without = (news[6] for news in server.kinds(UNARY))
    assert 0 < with_deadline - before <= 31 * 10**9 + (time.monotonic_ns() - before)
    assert without == 0


async def test_repeated_metadata_is_passed_on_once(server: GrpcServerHarness) -> None:
    echo(server)
    async with connected(server) as channel:
        for token in ("a", "a", "b", "a"):
            await channel.unary_unary(ECHO)(b"", metadata=(("authorization", token), ("other", "x")))
        await channel.unary_unary(ECHO)(b"")
    assert [news[3] for news in server.kinds(METADATA)] == [[("authorization", b"a")], [("authorization", b"b")]]
    a, b = (news[2] for news in server.kinds(METADATA))
    assert [news[5] for news in server.kinds(UNARY)] == [a, a, b, a, 0]


async def test_hazard_114_the_metadata_of_one_connection_does_not_push_out_that_of_another(
    server: GrpcServerHarness,
) -> None:
    echo(server)
    async with connected(server) as victim, connected(server) as flooding:
        await victim.unary_unary(ECHO)(b"", metadata=(("authorization", "victim"),))
        for number in range(30):
            await flooding.unary_unary(ECHO)(b"", metadata=(("authorization", f"flood {number}"),))
        await victim.unary_unary(ECHO)(b"", metadata=(("authorization", "victim"),))
    sets = server.kinds(METADATA)
    assert [news[3] for news in sets].count([("authorization", b"victim")]) == 1
    (first, *_, last) = server.kinds(UNARY)
    assert (first[4], first[5]) == (last[4], last[5])
    # The ninth set of a connection replaces its oldest one.
    assert [news[4] for news in sets if news[1] != first[4]] == [0] * 8 + list(range(1, 23))


@pytest.mark.parametrize("metadata", [
    (("authorization", "a"), ("authorization", "b")),
    (("authorization", "a" * (8192 + 1)),),
])  # fmt: skip
async def test_hazard_114_a_call_whose_identity_is_in_doubt_fails(
    server: GrpcServerHarness, metadata: tuple[tuple[str, str], ...]
) -> None:
    echo(server)
    async with connected(server) as channel:
        status, text = await status_of(channel.unary_unary(ECHO)(b"", metadata=metadata))
        assert (status, text) == ("UNAUTHENTICATED", "authorization: one value of at most 8 KiB is allowed")
        assert await channel.unary_unary(ECHO)(b"x", metadata=(("authorization", "a"),)) == b"x"


@pytest.mark.parametrize("head", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", bytes(64)])
async def test_hostile_peers_do_not_affect_others(server: GrpcServerHarness, head: bytes) -> None:
    echo(server)
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(OSError):  # it may be gone before all is said
            writer.write(head + os.urandom(2000))
            writer.write_eof()
            async with asyncio.timeout(30):
                await reader.read()
        writer.close()
    async with connected(server) as channel:
        assert await channel.unary_unary(ECHO)(b"still here") == b"still here"


async def test_a_connection_beyond_the_limit_replaces_an_idle_one(server: GrpcServerHarness) -> None:
    """Three places: a fourth client is served, and a connection that never said anything is not there any more."""
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    await until(lambda: len(server.kinds(CONNECTION)) == 3)
    echo(server)
    async with connected(server) as channel:
        assert await channel.unary_unary(ECHO)(b"served") == b"served"
    ended = [asyncio.create_task(reader.read()) for reader, _ in silent]
    await until(lambda: any(task.done() for task in ended))
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
    for _, writer in silent:
        writer.close()


async def test_no_wake_up_is_lost(server: GrpcServerHarness) -> None:
    """Many callers, each with one call under way: a wake-up that got lost would leave all of them waiting."""
    echo(server)

    async def caller(channel: aio.Channel) -> None:
        for number in range(1, 101):
            assert await channel.unary_unary(SEND)(request(number)) == b"\x08" + bytes([number])
            assert await channel.unary_unary(ECHO)(b"x") == b"x"

    async with asyncio.timeout(120), connected(server) as channel:
        await asyncio.gather(*(caller(channel) for _ in range(10)))


async def test_a_fork_cannot_use_it(server: GrpcServerHarness) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            server.wire.poll()
        except RuntimeError:
            code = 0
        os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    echo(server)
    async with connected(server) as channel:
        assert await channel.unary_unary(ECHO)(b"parent") == b"parent"


async def test_invalid_layouts_are_refused() -> None:
    assert native is not None
    for columns in ([(0, 32, 0)], [(0, 0, 0)], [(40, 1, 0)], [(0, 1, 9)], [(0, 1, 0)] * 17):
        with pytest.raises(ValueError, match="column"):
            native.decode_columns(columns, [])
