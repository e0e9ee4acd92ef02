"""The outgoing bytes of a connection: all of a loop tick in one write, and how many of them the socket has not taken.

messages    are sent only while the outbox is not full, that is, while less than its share waits for the socket
responses   are sent when they are due, full or not; while too many of them wait for the socket (`is_flooded`), the
            connection stops reading requests (hazard 35)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from icestream import limits
from icestream.frontends.native.notifier import Notifier
from icestream.frontends.send_budget import SendBudget
from icestream.rpc import handshake
from icestream.rpc.frame import HEAD, encode_frame


class Outbox:
    def __init__(
        self, budget: SendBudget[Any], on_room: Callable[[], None], write_later: Callable[[Outbox], None] | None = None
    ) -> None:
        """`on_room` is called when the outbox was full and has room again.

        `write_later` has the outbox written at the end of this loop tick; None: by a write of its own.
        """
        self._budget = budget
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._write_later = write_later or (lambda outbox: self._loop.call_soon(outbox.write))
        self._transport: asyncio.Transport | None = None
        self.agreed: handshake.Agreement | None = None  # set after the handshake: limits and compression of the client
        self._pieces: list[bytes] = []
        self._bytes = 0  # of the pieces
        self._response_bytes = 0  # of responses that the socket may not have taken
        self._is_write_scheduled = False
        self._was_full = False  # before the pieces were taken
        self._is_paused = False
        self.written = Notifier()  # notifies when the socket has taken the pieces
        self.can_write = asyncio.Event()  # set while the socket takes more bytes
        self.can_write.set()

    def attach(self, transport: asyncio.Transport | None) -> None:
        self._transport = transport

    @property
    def is_full(self) -> bool:
        return self._is_paused or self._bytes >= self._budget.share

    @property
    def is_flooded(self) -> bool:
        return self._response_bytes >= limits.CONNECTION_ANSWER_BYTES_MAX

    # --- in ---

    def send(self, head: bytes, body: bytes = b"") -> None:
        """Schedules the bytes to be written at the end of this loop tick, together with all others."""
        if self._transport is None:
            return
        self._pieces.append(head)
        if body:
            self._pieces.append(body)
        self._bytes += len(head) + len(body)
        if not self._is_write_scheduled:
            self._is_write_scheduled = True
            self._write_later(self)

    def send_frame(self, kind: int, number: int, body: bytes) -> None:
        """Sends a response, or another frame that is not a message."""
        self._response_bytes += HEAD.size + len(body)
        if self.agreed is None or self.agreed.compression is None:
            self.send(encode_frame(kind, number, body))
        else:
            self.send(handshake.outgoing_frame(kind, number, body, self.agreed))

    # --- out ---

    def write(self) -> None:
        """Writes the pieces now."""
        pieces = self.take()
        if pieces and self._transport is not None:
            self._transport.writelines(pieces)
        self.taken()

    def take(self) -> list[bytes]:
        """Removes the pieces; the caller writes them and calls `taken`. Empty if the transport is closed."""
        self._was_full, self._is_write_scheduled = self.is_full, False
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        return pieces if self._transport is not None and not self._transport.is_closing() else []

    def taken(self) -> None:
        """Called when the transport has the pieces."""
        if not self._is_paused:
            self._on_written(was_full=self._was_full)

    def pause(self) -> None:
        """Called by the transport when its buffer is full."""
        self._is_paused = True
        self.can_write.clear()

    def resume(self) -> None:
        self._is_paused = False
        self.can_write.set()
        self._on_written(was_full=True)

    def _on_written(self, *, was_full: bool) -> None:
        self._response_bytes = 0
        self.written.notify()
        if was_full:
            self._on_room()
