"""DialledConnection: the connecting side of every connection: client to broker, process to broker, node to node.

    opening   HELLO was sent            the subclass accepts a WELCOME (`opened` has a result) -> open
    open      calls are answered        in any order, by their numbers
    lost      invalid bytes, a closed socket, `end`: every waiting call fails with ConnectionLost, `error` says why

Nothing is sent twice here: only the caller knows whether a call may be repeated.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, cast

from icestream import errors
from icestream.rpc.document import Document
from icestream.rpc.frame import Frame, encode_frame
from icestream.rpc.pending_calls import OnReply, PendingCalls
from icestream.rpc.stream import FrameStream


class DialledConnection(asyncio.BufferedProtocol, ABC):
    """Base class. A subclass sends its HELLO in `connection_made`, and handles frames in `_on_frame`."""

    def __init__(self, peer: str, stream: FrameStream, calls_max: int | None = None) -> None:
        """`peer`: the other side, as errors name it: "the broker"."""
        self._peer = peer
        self._stream = stream
        self._transport: asyncio.Transport | None = None
        self._number = 0  # of the last frame that was sent with a number
        self._calls = PendingCalls(calls_max)
        self.opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.error: errors.IcestreamError | None = None

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is one by its methods only

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._stream.get_buffer()

    def buffer_updated(self, count: int) -> None:
        try:
            for frame in self._stream.received(count):
                self._on_frame(frame)
        except errors.IcestreamError as error:
            self.end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        reason = str(error) if error is not None else "closed by the other side"
        self.end(errors.ConnectionLost(f"connection to {self._peer} lost: {reason}"))

    # --- calls ---

    def start_call(self, kind: int, body: bytes, on_reply: OnReply | None = None) -> asyncio.Future[Document]:
        """Sends a frame that the other side answers; returns a future for the reply. Raises ConnectionLost."""
        if self.error is not None or self._transport is None:
            raise self.lost_error()
        # The number is taken after `add`, which may refuse: an unused number would look like a lost call.
        reply = self._calls.add(self._number + 1, on_reply)
        self._number += 1
        self._write(encode_frame(kind, self._number, body))
        return reply

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    # --- the end ---

    @property
    def is_lost(self) -> bool:
        return self.error is not None

    def end(self, error: errors.IcestreamError) -> None:
        """Ends the connection because of `error`. Only the first error counts: later ones are consequences of it."""
        if self.error is not None:
            return
        self.error = error
        if self._transport is not None:
            self._transport.abort()
        # The opener waits for `opened` and reports the error itself; there are no calls yet.
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # marks it as retrieved: the caller may have been cancelled
            return
        self._calls.fail(self.lost_error())
        self._on_lost(error)

    def lost_error(self) -> errors.ConnectionLost:
        """The error of a call on this connection: whatever ended it, the outcome of the call is not known."""
        if isinstance(self.error, errors.ConnectionLost):
            return self.error
        reason = "not open" if self.error is None else f"ended: {self.error}"
        return errors.ConnectionLost(f"connection to {self._peer} {reason}", hint="it is opened again automatically")

    # --- for subclasses ---

    @abstractmethod
    def _on_frame(self, frame: Frame) -> None:
        """Handles a frame. An error that it raises ends the connection."""

    def _on_lost(self, error: errors.IcestreamError) -> None:
        """The connection was open and has ended."""
