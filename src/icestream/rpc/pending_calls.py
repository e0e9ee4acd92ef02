"""PendingCalls: calls and pings of one connection that wait for their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from icestream import errors, limits
from icestream.rpc import document
from icestream.rpc.document import Document
from icestream.rpc.frame import Frame, FrameKind

OnReply = Callable[[Document], None]


class PendingCall(NamedTuple):
    """The future of a reply, and what runs before other frames are handled."""

    reply: asyncio.Future[Document]
    on_reply: OnReply | None


class PendingCalls:
    """The calls of one connection by their numbers."""

    def __init__(self, calls_max: int | None = None) -> None:
        """`calls_max`: how many calls may wait at the same time; None: any number."""
        self._loop = asyncio.get_running_loop()
        self._calls_max = calls_max
        self._calls: dict[int, PendingCall] = {}

    def add(self, number: int, on_reply: OnReply | None = None) -> asyncio.Future[Document]:
        """Returns a future for the reply to call `number`. Raises InFlightFull.

        `on_reply` runs before the next frame of the connection is handled, the future's callbacks only afterwards.
        """
        if self._calls_max is not None and len(self._calls) >= self._calls_max:
            raise errors.InFlightFull(
                f"{len(self._calls)} calls wait for a reply", hint="make fewer calls at the same time"
            )
        reply: asyncio.Future[Document] = self._loop.create_future()
        self._calls[number] = PendingCall(reply, on_reply)
        return reply

    def discard(self, number: int) -> None:
        """The reply to call `number` is not needed any more."""
        self._calls.pop(number, None)

    def resolve(self, frame: Frame) -> bool:
        """Resolves the call that a RESULT, PONG or ERROR frame answers. Returns False if no such call waits.

        Raises the error of an ERROR frame that answers no call (number 0): it is about the whole connection.
        """
        if frame.kind == FrameKind.ERROR and not frame.number:
            raise document.decode_error(frame.body)
        call = self._calls.pop(frame.number, None)
        if call is None:
            return False
        if call.reply.done():
            return True  # the caller was cancelled
        if frame.kind == FrameKind.ERROR:
            call.reply.set_exception(document.decode_error(frame.body))
            return True
        reply = {} if frame.kind == FrameKind.PONG else document.decode(frame.body, limits.FRAME_BYTES_MAX)
        if call.on_reply is not None:
            call.on_reply(reply)
        call.reply.set_result(reply)
        return True

    def fail(self, error: errors.IcestreamError) -> None:
        """Fails all calls: no reply will come."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.reply.done():
                call.reply.set_exception(error)
                call.reply.exception()  # marks it as retrieved: the caller may have been cancelled
