"""The dialling end of a connection between two nodes: messages without an answer, calls with one.

opening    HELLO was sent          WELCOME -> open; anything else, or nothing in time -> its error
open       messages are written, or dropped when too much waits for the socket: Raft repeats what matters
lost       every call under way gets ConnectionLost; `lost` is set. Also when the other machine takes nothing any more
           (runtime/keep_alive.py)
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Any, cast

from icestream import errors, limits
from icestream.cluster import wire
from icestream.cluster.wire import Hello, Kind, Welcome
from icestream.rpc import document
from icestream.rpc.frame import Frame, encode_frame
from icestream.rpc.stream import FrameStream
from icestream.runtime.keep_alive import keep_alive

Document = dict[str, Any]


async def dial(address: str, hello: Hello, context: ssl.SSLContext | None = None) -> PeerLink:
    """Raises ConnectionLost when nobody is there, or what the other node says against it."""
    link = PeerLink(hello)
    loop = asyncio.get_running_loop()
    try:
        host, port = wire.dialled(address)
        async with asyncio.timeout(limits.PEER_OPEN_SECONDS_MAX):
            name = host if context is not None else None
            await loop.create_connection(lambda: link, host, port, ssl=context, server_hostname=name)
            await link.opened
    except (TimeoutError, OSError) as error:
        link.close()
        silence = f"nothing came in {limits.PEER_OPEN_SECONDS_MAX:g} s"
        reason = os.strerror(error.errno) if error.errno else str(error) or silence
        raise errors.ConnectionLost(f"no node answers at {address}: {reason}") from None
    return link


class PeerLink(asyncio.BufferedProtocol):
    """Open one with `dial`."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._stream = FrameStream(limits.PEER_FRAME_BYTES_MAX, wire.FROM_DIALLED)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[Document]] = {}
        self._number = 0
        self._error: errors.IcestreamError | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.opened: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()

    @property
    def welcome(self) -> Welcome:
        return self.opened.result()

    # --- out ---

    def send(self, messages: list[bytes]) -> bool:
        """False when they were dropped."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > limits.PEER_UNSENT_BYTES_MAX:
            return False
        transport.write(b"".join(map(wire.encode_message, messages)))
        return True

    async def call(self, method: str, arguments: Document) -> Document:
        """Raises the other node's error, or ConnectionLost when the connection breaks or nothing comes in time."""
        return await self._ask(Kind.CALL, document.encode_call(method, arguments, limits.LOCAL_CALL_BYTES_MAX))

    async def write(self, kind: Kind, body: bytes) -> None:
        """Waits while the socket takes nothing: for snapshots, which have a connection of their own."""
        async with asyncio.timeout(limits.PEER_CALL_SECONDS_MAX):
            await self._can_write.wait()
        self._check_open().write(encode_frame(kind, 0, body))

    def be_patient(self) -> None:
        """The other node may take nothing for as long as `write` waits: its disk is slow, and its machine is there."""
        keep_alive(self._check_open(), limits.PEER_KEEP_ALIVE_SECONDS, limits.PEER_CALL_SECONDS_MAX)

    async def end(self) -> None:
        """Until the other node has confirmed what was written."""
        await self._ask(Kind.END, b"")

    async def _ask(self, kind: Kind, body: bytes) -> Document:
        transport = self._check_open()
        self._number += 1
        number = self._number
        answer: asyncio.Future[Document] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        transport.write(encode_frame(kind, number, body))
        try:
            async with asyncio.timeout(limits.PEER_CALL_SECONDS_MAX):
                return await answer
        except TimeoutError:
            raise errors.ConnectionLost("the other node does not answer", hint="it is tried again by itself") from None
        finally:
            self._pending.pop(number, None)

    def _check_open(self) -> asyncio.Transport:
        if self._error is not None or self._transport is None:
            raise self._error or errors.ConnectionLost("the connection to the other node is not open")
        return self._transport

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._lose(errors.ConnectionLost("the connection to the other node was closed here"))

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport, limits.PEER_KEEP_ALIVE_SECONDS, limits.PEER_UNACKED_SECONDS_MAX)
        self._transport.write(encode_frame(Kind.HELLO, 0, wire.encode_hello(self._hello)))

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._stream.get_buffer()

    def buffer_updated(self, count: int) -> None:
        try:
            for one in self._stream.received(count):
                self._receive(one)
        except errors.IcestreamError as error:
            self._lose(error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lose(errors.ConnectionLost(f"the connection to the other node broke: {error or 'it was closed'}"))

    def _lose(self, error: errors.IcestreamError) -> None:
        """The first reason counts."""
        if self._error is not None:
            return
        self._error = error
        self._can_write.set()
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # whoever dialled may have gone
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(errors.ConnectionLost(f"the connection to the other node ended: {error}"))
        self._pending.clear()
        self.lost.set()

    def _receive(self, one: Frame) -> None:
        if one.kind == Kind.ERROR and not one.number:
            raise document.decode_error(one.body)
        if not self.opened.done():
            if one.kind != Kind.WELCOME:
                raise errors.DecodeError("an answer before the WELCOME")
            self.opened.set_result(wire.decode_welcome(one.body))
        elif (answer := self._pending.pop(one.number, None)) is not None and not answer.done():
            if one.kind == Kind.ERROR:
                answer.set_exception(document.decode_error(one.body))
            else:
                answer.set_result(document.decode(one.body))
