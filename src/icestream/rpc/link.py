"""A process's end of a connection to its broker: calls and events (rpc/frame.py), many calls under way at once.

    opening    HELLO was sent          WELCOME -> open; anything else, or nothing in time -> its error
    open       calls are answered      each by its number, in any order; events go to whoever asked for them
    lost       every call under way gets ConnectionLost, and so does every later one; `lost` is set

Nothing is sent twice here: whether a call may be repeated is known to whoever makes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from icestream import errors, limits
from icestream.rpc import document, frame, handshake, local_socket
from icestream.rpc.frame import FIRST_FROM_BROKER, FROM_BROKER, Frame, Kind
from icestream.rpc.stream import FrameStream

Document = dict[str, Any]
OnEvent = Callable[[Document], None]
LOST = "lost"  # the last event of everybody: the link is gone


class Pending(NamedTuple):
    answer: asyncio.Future[Document]
    on_event: OnEvent | None


async def open_link(path: Path, client: str) -> Link:
    """Connects to the local socket of a broker. Raises ConnectionLost, or the broker's refusal."""
    loop = asyncio.get_running_loop()
    link = Link(handshake.Hello(client=client))
    await loop.create_unix_connection(lambda: link, sock=local_socket.connect(path))
    try:
        async with asyncio.timeout(limits.LINK_OPEN_SECONDS_MAX):
            await link.opened
    except TimeoutError:
        link.close()
        raise errors.ConnectionLost(f"the broker at {path} does not answer", hint="is it overloaded?") from None
    return link


class Link(asyncio.BufferedProtocol):
    """Open one with `open_link`."""

    def __init__(self, hello: handshake.Hello) -> None:
        loop = asyncio.get_running_loop()
        self._hello = hello
        self._stream = FrameStream(kinds=FIRST_FROM_BROKER)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, Pending] = {}
        self._events: dict[int, OnEvent] = {}
        self._number = 0
        self._in_turn = asyncio.Semaphore(limits.LINK_CALLS_MAX)
        self._error: errors.IcestreamError | None = None
        self.instance = ""  # of the broker, once the link is open
        self.opened: asyncio.Future[None] = loop.create_future()
        self.lost = asyncio.Event()

    # --- calls ---

    async def call(self, method: str, arguments: Document, on_event: OnEvent | None = None) -> Document:
        """The answer, or the broker's error. `on_event` hears the events of the handle that the answer names."""
        async with self._in_turn:
            return await self._ask(document.encode_call(method, arguments, limits.LOCAL_CALL_BYTES_MAX), on_event)

    async def _ask(self, body: bytes, on_event: OnEvent | None) -> Document:
        if self._error is not None or self._transport is None:
            raise self._error or errors.ConnectionLost("the connection to the broker is not open")
        self._number += 1
        number = self._number
        answer: asyncio.Future[Document] = asyncio.get_running_loop().create_future()
        self._pending[number] = Pending(answer, on_event)
        self._transport.write(frame.encode_frame(Kind.CALL, number, body))
        try:
            return await answer
        finally:
            self._pending.pop(number, None)

    def forget(self, handle: int) -> None:
        """Nobody listens to its events any more."""
        self._events.pop(handle, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._lose(errors.ConnectionLost("the connection to the broker was closed here"))

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        self._transport.write(frame.encode_frame(Kind.HELLO, 0, handshake.encode_hello(self._hello)))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._stream.get_buffer()

    def buffer_updated(self, count: int) -> None:
        try:
            for one in self._stream.received(count):
                self._receive(one)
        except errors.IcestreamError as error:
            self._lose(error)
            if self._transport is not None:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lose(errors.ConnectionLost(f"the connection to the broker broke: {error or 'it was closed'}"))

    def _lose(self, error: errors.IcestreamError) -> None:
        """The first reason counts."""
        if self._error is not None:
            return
        self._error = error
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # whoever opened it may have gone: that is no news to anybody
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(_lost(error))
        self._pending.clear()
        listening, self._events = self._events, {}
        for on_event in listening.values():
            on_event({"event": LOST})
        self.lost.set()

    # --- frames ---

    def _receive(self, one: Frame) -> None:
        if not self.opened.done():
            _, welcome = handshake.welcomed(self._hello, one)
            self.instance = welcome.instance
            self._stream.kinds = FROM_BROKER
            self.opened.set_result(None)
        elif one.kind == Kind.EVENT:
            if (on_event := self._events.get(one.number)) is not None:
                on_event(document.decode(one.body))
        elif one.number in self._pending:
            self._answer(one)
        elif one.kind == Kind.ERROR and not one.number:
            raise document.decode_error(one.body)

    def _answer(self, one: Frame) -> None:
        pending = self._pending.pop(one.number)
        if pending.answer.done():
            return
        if one.kind == Kind.ERROR:
            pending.answer.set_exception(document.decode_error(one.body))
            return
        found = document.decode(one.body)
        if pending.on_event is not None:  # before anything else is read: its first event may follow at once
            self._events[document.number_of(found, "handle", 0, 2**63 - 1)] = pending.on_event
        pending.answer.set_result(found)


def _lost(error: errors.IcestreamError) -> errors.ConnectionLost:
    """A call that was under way: whatever ended the connection, its answer is not known."""
    if isinstance(error, errors.ConnectionLost):
        return error
    return errors.ConnectionLost(f"the connection to the broker ended: {error}", hint="it is opened again by itself")
