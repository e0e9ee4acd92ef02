"""The proxy of the fault tests forwards answers complete, however the server sends them."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fault_proxy import fault_proxy

BODY = b"x" * 100_000
LENGTH = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY), BODY[:7], BODY[7:]]
CHUNKS = [
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"%x\r\n" % len(BODY),
    BODY,
    b"\r\n0\r\n",
    b"\r\n",
]
NOTHING = [b"HTTP/1.1 204 No Content\r\n", b"\r\n"]


@pytest.mark.parametrize("pieces", [LENGTH, CHUNKS, NOTHING], ids=["length", "chunks", "nothing"])
def test_the_reply_to_a_doubled_request_is_complete(pieces: list[bytes]) -> None:
    """The server keeps the connection, and sends piece by piece."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()
        writer.close()

    async def run() -> bytes:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, fault_proxy(f"127.0.0.1:{port}", b"^GET") as proxy:
            proxy.plan("twice")
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            reply = await reader.readexactly(sum(map(len, pieces)))
            writer.close()
        return reply

    assert asyncio.run(run()) == b"".join(pieces)
    assert len(requests) == 2
