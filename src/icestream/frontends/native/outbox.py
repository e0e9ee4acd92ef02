"""What leaves a connection: all of a loop tick in one write, and how much of it its socket has not taken.

messages   are sent while it is not full: full means that more than its share waits for the socket, or is about to
answers    leave when they are due, full or not; while too many of them are not taken (`is_flooded`) the connection
           does not read what the client asks for next (hazard 35)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from icestream import limits
from icestream.frontends.native.notifier import Notifier
from icestream.frontends.native.send_budget import SendBudget
from icestream.rpc import handshake
from icestream.rpc.frame import HEAD, encode_frame


class Outbox:
    def __init__(self, budget: SendBudget, on_room: Callable[[], None]) -> None:
        """`on_room`: it was full, and is not any more."""
        self._budget = budget
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.agreed: handshake.Agreed | None = None  # what the other side takes
        self._pieces: list[bytes] = []
        self._bytes = 0  # of these
        self._answer_bytes = 0  # of answers that the socket may not have taken
        self._is_planned = False
        self._is_paused = False
        self.written = Notifier()  # beats when the socket has taken them
        self.can_write = asyncio.Event()  # the socket takes more
        self.can_write.set()

    def use(self, transport: asyncio.Transport | None) -> None:
        self._transport = transport

    @property
    def is_full(self) -> bool:
        return self._is_paused or self._bytes >= self._budget.share

    @property
    def is_flooded(self) -> bool:
        return self._answer_bytes >= limits.CONNECTION_ANSWER_BYTES_MAX

    # --- in ---

    def send(self, *pieces: bytes) -> None:
        """Leaves at the end of this tick, with everything else."""
        if self._transport is None:
            return
        for piece in pieces:
            self._pieces.append(piece)
            self._bytes += len(piece)
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self.write)

    def send_frame(self, kind: int, number: int, body: bytes) -> None:
        """An answer, or whatever else is no message."""
        self._answer_bytes += HEAD.size + len(body)
        if self.agreed is None or self.agreed.compression is None:
            self.send(encode_frame(kind, number, body))
        else:
            self.send(handshake.sealed(kind, number, body, self.agreed))

    # --- out ---

    def write(self) -> None:
        was_full, self._is_planned = self.is_full, False
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)
        if not self._is_paused:
            self._taken(was_full=was_full)

    def pause(self) -> None:
        """The socket takes no more for now."""
        self._is_paused = True
        self.can_write.clear()

    def resume(self) -> None:
        self._is_paused = False
        self.can_write.set()
        self._taken(was_full=True)

    def _taken(self, *, was_full: bool) -> None:
        self._answer_bytes = 0
        self.written.beat()
        if was_full:
            self._on_room()
