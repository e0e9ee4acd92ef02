"""Link: the connection of one of our processes to its broker's local socket; many calls may wait at the same time.

opening    HELLO was sent          WELCOME -> open; anything else, or no answer in time -> its error
open       calls are answered      in any order, by their numbers; events go to the handler of their handle
lost       every waiting call fails with ConnectionLost, and so does every later one; `lost` is set
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from icestream import errors, limits
from icestream.rpc import document, handshake, local_socket
from icestream.rpc.dialled_connection import DialledConnection
from icestream.rpc.document import Document
from icestream.rpc.frame import FIRST_FROM_BROKER, FROM_BROKER, Frame, FrameKind, encode_frame
from icestream.rpc.stream import FrameStream

OnEvent = Callable[[Document], None]
LOST = "lost"  # the last event of every handler: the link is lost


async def open_link(path: Path, client: str, credential: handshake.HelloCredential | None = None) -> Link:
    """Connects to the local socket of a broker. Raises ConnectionLost, or the broker's refusal."""
    loop = asyncio.get_running_loop()
    link = Link(handshake.Hello(client=client, credential=credential))
    await loop.create_unix_connection(lambda: link, sock=local_socket.connect(path))
    try:
        async with asyncio.timeout(limits.LINK_OPEN_SECONDS_MAX):
            await link.opened
    except TimeoutError:
        link.close()
        raise errors.ConnectionLost(
            f"the broker at {path} does not answer within {limits.LINK_OPEN_SECONDS_MAX:g} s", hint="is it overloaded?"
        ) from None
    return link


class Link(DialledConnection):
    """One open connection to a broker's local socket; `open_link` opens it."""

    def __init__(self, hello: handshake.Hello) -> None:
        super().__init__("the broker", FrameStream(kinds=FIRST_FROM_BROKER))
        self._hello = hello
        self._event_handlers: dict[int, OnEvent] = {}  # by handle
        self._call_slots = asyncio.Semaphore(limits.LINK_CALLS_MAX)
        self.instance = ""  # of the broker (runtime/instance.py), once the link is open
        self.lost = asyncio.Event()

    async def call(self, method: str, arguments: Document, on_event: OnEvent | None = None) -> Document:
        """Returns the broker's reply. Raises the broker's error, or ConnectionLost.

        `on_event` gets the events of the handle that the reply names.
        """

        def add_event_handler(reply: Document) -> None:
            if on_event is not None:
                self._event_handlers[document.number_of(reply, "handle", 0, 2**63 - 1)] = on_event

        async with self._call_slots:
            body = document.encode_call(method, arguments, limits.LOCAL_CALL_BYTES_MAX)
            # The handler is added with the reply, not after this task has run: the first event may be the next frame.
            reply = self.start_call(FrameKind.CALL, body, add_event_handler)
            number = self._number
            try:
                return await reply
            finally:
                self._calls.discard(number)

    def remove_event_handler(self, handle: int) -> None:
        self._event_handlers.pop(handle, None)

    def close(self) -> None:
        self.end(errors.ConnectionLost("the connection to the broker was closed by this process"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._write(encode_frame(FrameKind.HELLO, 0, handshake.encode_hello(self._hello)))

    def _on_frame(self, frame: Frame) -> None:
        if not self.opened.done():
            _, welcome = handshake.accept_welcome(self._hello, frame)
            self.instance = welcome.instance
            self._stream.kinds = FROM_BROKER
            self.opened.set_result(welcome)
        elif frame.kind == FrameKind.EVENT:
            if (on_event := self._event_handlers.get(frame.number)) is not None:
                on_event(document.decode(frame.body))
        else:
            self._calls.resolve(frame)  # a reply to a call that was cancelled is ignored

    def _on_lost(self, error: errors.IcestreamError) -> None:
        # Emptied first: a handler may start a new watch on the next link.
        handlers, self._event_handlers = self._event_handlers, {}
        for on_event in handlers.values():
            on_event({"event": LOST})
        self.lost.set()
