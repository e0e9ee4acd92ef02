"""A proxy in front of a server that does to one request what networks and gateways do. It knows no protocol: a request
begins with bytes from the client, its answer with the next bytes from the server.

    pass            nothing
    cut-before      the connection is cut, and the server never sees the request
    cut-after       the server carries it out; its answer is thrown away and the connection cut
    cut-in-answer   the same, but half of the answer arrives
    late            the connection is cut, and the server gets the request when it is sent again, just before the repeat
    hold            the connection is cut, and the server gets the request much later: `release` lets it through
    silence         the server carries it out; the client hears nothing until it gives up
    500, 502, …     that answer instead, and the server never sees the request
    500-after, …    that answer instead, though the server carried it out
    twice           the server gets it twice; the second answer arrives, whole (as with gateways that try again); of
                    HTTP alone
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_BODY: Final = b'{"error":{"message":"by the proxy","type":"FromTheProxy","code":%d}}'
_REASONS: Final = {401: b"Who", 409: b"Conflict", 429: b"Later", 500: b"Oops", 502: b"Bad", 503: b"Later", 504: b"Late"}


class DelayedRequest(NamedTuple):
    """A request on its way, on the connection that the server knows: what a slow network would deliver."""

    data: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def deliver(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self.writer.write(self.data)
            async with asyncio.timeout(5):
                await self.reader.read(65536)
        self.writer.transport.abort()


class FaultProxy:
    def __init__(self, host: str, port: int, matches: bytes) -> None:
        """`matches`: a pattern that the first bytes of a request must hold, or it passes."""
        self._host, self._port = host, port
        self._matches = re.compile(matches, re.DOTALL)
        self._faults: list[str] = []
        self._delayed: list[DelayedRequest] = []
        self._late: list[DelayedRequest] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen = 0  # requests that matched
        self.port = 0
        self._was_seen = asyncio.Event()

    def plan(self, *faults: str) -> None:
        """For the next requests that match; those behind pass."""
        self._faults = list(faults)
        self.seen = 0
        self._was_seen.clear()

    async def until_seen(self) -> None:
        """Waits until a request has matched."""
        await self._was_seen.wait()

    async def release(self) -> None:
        """Delivers the delayed requests, long after their clients gave up; waits for their answers, or the end."""
        for exchange in (*self._late, *self._delayed):
            await exchange.deliver()
        self._late, self._delayed = [], []

    async def _exchange(self, request: bytes) -> bytes:
        """With the whole answer: half of one would be another fault."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(request)
            async with asyncio.timeout(30):
                return await whole_answer(reader)
        finally:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            there_reader, there = await asyncio.open_connection(self._host, self._port)
            await self._relay(reader, writer, there_reader, there)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the exchange ends here, whichever side closed it
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if there is not None and all(exchange.writer is not there for exchange in (*self._delayed, *self._late)):
                there.transport.abort()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there_reader: asyncio.StreamReader,
        there: asyncio.StreamWriter,
    ) -> None:
        """Both ways at once, until a request matches and has a fault; then what the fault says, and the end."""
        answers = asyncio.create_task(_pump(there_reader, writer))
        try:
            while data := await reader.read(1 << 20):
                fault = await self._fault_of(data)
                if fault == "pass":
                    there.write(data)
                    continue
                data = await _whole(reader, data)
                answers.cancel()
                await asyncio.gather(answers, return_exceptions=True)
                await self._do(fault, data, reader, writer, there_reader, there)
                return
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    async def _fault_of(self, data: bytes) -> str:
        if self._matches.search(data) is None:
            return "pass"
        self.seen += 1
        self._was_seen.set()
        while self._late:
            await self._late.pop(0).deliver()
        return self._faults.pop(0) if self._faults else "pass"

    async def _do(
        self,
        fault: str,
        data: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there_reader: asyncio.StreamReader,
        there: asyncio.StreamWriter,
    ) -> None:
        status, _, when = fault.partition("-")
        if fault in ("hold", "late"):
            (self._delayed if fault == "hold" else self._late).append(DelayedRequest(data, there_reader, there))
            return
        if fault != "cut-before" and not (status.isdigit() and when != "after"):
            there.write(data)
            answer = await there_reader.read(1 << 20)
            if fault == "twice":
                answer = await self._exchange(data)
                writer.write(answer)
                await writer.drain()
                await reader.read(1)
            if fault == "cut-in-answer":
                writer.write(answer[: len(answer) // 2])
                await writer.drain()
            if fault == "silence":
                await reader.read(1)
        if status.isdigit():
            body = _BODY % int(status)
            head = b"HTTP/1.1 %s %s\r\n" % (status.encode(), _REASONS[int(status)])
            writer.write(
                head + b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            writer.write(body)
            await writer.drain()
            writer.write_eof()
            await reader.read(1)

    async def close(self) -> None:
        for exchange in (*self._delayed, *self._late):
            exchange.writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 20):
            writer.write(data)
        writer.write_eof()


async def _whole(reader: asyncio.StreamReader, data: bytes) -> bytes:
    """The rest of an HTTP request whose body did not come with its head."""
    head, end, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if end and length is not None:
        missing = int(length[1]) - len(body)
        if missing > 0:
            data += await reader.readexactly(missing)
    return data


async def whole_answer(reader: asyncio.StreamReader) -> bytes:
    """Of an HTTP server that keeps the connection: by the length that it says, or piece by piece up to an empty one."""
    head = await reader.readuntil(b"\r\n\r\n")
    if (length := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)) is not None:
        return head + await reader.readexactly(int(length[1]))
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head) is None:
        return head  # no body: 204, 304
    answer = head
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        answer += line + await reader.readexactly(size + 2)
        if size == 0:
            return answer


@asynccontextmanager
async def fault_proxy(address: str, matches: bytes) -> AsyncIterator[FaultProxy]:
    """`address`: a URI, or host:port."""
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = FaultProxy(parts.hostname, parts.port, matches)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 22)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
