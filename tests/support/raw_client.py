"""The native protocol as bytes on a socket: what a client in any language may do, and what none should.

Nothing is read before a test asks for it, so that a test can be a client that does not read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from icestream.client.address import parse_address
from icestream.model import envelope
from icestream.model.block import Numbering, encode_block
from icestream.rpc import document, frame, handshake
from icestream.rpc.frame import AckRanges, Frame, FrameKind, PartResult, PublishPart
from icestream.rpc.handshake import Hello
from icestream.rpc.stream import FrameStream

WAIT_SECONDS = 20.0
HELLO = Hello()


class ClosedByBroker(Exception):
    """The broker ended the connection."""


class RawClient:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._stream = FrameStream(2**27)
        self._frames: deque[Frame] = deque()
        self._number = 0

    def close(self) -> None:
        self._socket.close()

    def next_number(self) -> int:
        self._number += 1
        return self._number

    # --- out ---

    async def write(self, *frames: bytes) -> None:
        """Waits while the broker takes nothing."""
        await self._loop.sock_sendall(self._socket, b"".join(frames))

    def write_now(self, data: bytes) -> int:
        """Writes as many bytes as go out without waiting; returns their number."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call. Raises its error. Other frames that arrive meanwhile are kept for `read`."""
        number = self.next_number()
        await self.write(frame.encode_frame(FrameKind.CALL, number, document.encode_call(method, arguments)))
        others: list[Frame] = []
        while True:
            received = await self.read()
            if received.number == number and received.kind in (FrameKind.RESULT, FrameKind.ERROR):
                break
            others.append(received)
        self._frames.extendleft(reversed(others))
        if received.kind == FrameKind.ERROR:
            raise document.decode_error(received.body)
        return document.decode(received.body)

    # --- in ---

    def reset(self) -> None:
        """Ends the connection at once, and tells the other end that nothing more is read."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    @property
    def name(self) -> str:
        """The address under which the broker lists this connection."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    async def read(self, seconds: float = WAIT_SECONDS) -> Frame:
        """The next frame. Raises Closed at the end of the connection."""
        async with asyncio.timeout(seconds):
            while not self._frames:
                try:  # before any wait: time may pass without a turn of the loop, and what has arrived counts
                    data = self._socket.recv(65536)
                except BlockingIOError:
                    await self._until_readable()
                    continue
                except ConnectionError:
                    raise ClosedByBroker from None
                if not data:
                    self.close()  # the broker waits for that
                    raise ClosedByBroker
                self._frames += self._stream.feed(data)
        return self._frames.popleft()

    async def _until_readable(self) -> None:
        """Waits for bytes without taking them from the socket, so that a timeout loses nothing."""
        readable = asyncio.Event()
        self._loop.add_reader(self._socket, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(self._socket)

    async def read_all(self) -> list[Frame]:
        """All frames up to the end of the connection."""
        frames: list[Frame] = []
        try:
            while True:
                frames.append(await self.read())
        except ClosedByBroker:
            return frames

    async def published(self, number: int) -> list[PartResult]:
        received = await self.read()
        assert (received.kind, received.number) == (FrameKind.PUBLISHED, number), received
        return frame.decode_part_results(received.body)


def publish(number: int, *parts: PublishPart) -> bytes:
    return frame.encode_frame(FrameKind.PUBLISH, number, frame.encode_parts(parts))


def call(number: int, method: str, **arguments: Any) -> bytes:
    return frame.encode_frame(FrameKind.CALL, number, document.encode_call(method, arguments))


def ping(number: int, body: bytes = b"") -> bytes:
    return frame.encode_frame(FrameKind.PING, number, body)


def credit(handle: int, messages: int) -> bytes:
    return frame.encode_frame(FrameKind.CREDIT, 0, frame.encode_credit(handle, messages))


def ack(handle: int, start: int, end: int, flags: int = 0) -> bytes:
    return frame.encode_frame(FrameKind.ACK, 0, frame.encode_ranges(AckRanges(handle, 0, 0, flags, [(start, end)])))


def block(*payloads: bytes, numbering: Numbering | None = None) -> bytes:
    return encode_block(len(payloads), {envelope.PAYLOAD: list(payloads)}, numbering)


@asynccontextmanager
async def raw_client(address: str, hello: Hello | None = HELLO, *, receive_bytes: int = 0) -> AsyncIterator[RawClient]:
    """`hello` None: nothing was said yet. `receive_bytes`: a small buffer of the kernel for what is not read."""
    target = parse_address(address)
    connection = socket.socket(socket.AF_UNIX if target.path else socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)  # its name says what
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client = RawClient(connection)
    try:
        await asyncio.get_running_loop().sock_connect(connection, target.path or (target.host, target.port))
        if hello is not None:
            number = client.next_number()
            await client.write(frame.encode_frame(FrameKind.HELLO, number, handshake.encode_hello(hello)))
            assert (await client.read()).kind == FrameKind.WELCOME
        yield client
    finally:
        client.close()
