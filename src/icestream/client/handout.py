"""What is being handed out to the application, row by row: a chunk of the inbox that is not yet noted as handed out.

Nothing is done for each message but a step from one row to the next (`Consumer.__anext__` does it by itself). The
chunk is noted as a whole when it is used up, and before something comes that must know how far it got: a copy of it, a
nack, an ack of a copy, a seek, the end of its connection. Pure.
"""

from __future__ import annotations

from icestream.client.delivered import Delivered
from icestream.client.inbox import Chunk, Inbox


class Handout:
    __slots__ = ("_chunk", "_inbox", "chunks", "delivered", "end", "row")

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._chunk: Chunk | None = None
        self.delivered: Delivered = None  # type: ignore[assignment]  # of the chunk; there is one while rows are left
        self.row = self.end = 0  # of the chunk: the next one, and behind the last
        self.chunks = 0  # how many there were

    @property
    def is_used_up(self) -> bool:
        """There is a chunk, and all of it was handed out."""
        return self._chunk is not None and self.row >= self.end

    @property
    def waiting_messages(self) -> int:
        """Here and in the inbox."""
        handed_out = self.row - self._chunk.first if self._chunk is not None else 0
        return self._inbox.credit.held - handed_out

    # --- out ---

    def start(self, rows_max: int, now_ns: int) -> bool:
        """Goes on with the next chunk; the one before is used up. False: nothing waits."""
        self.finish()
        chunk = self._inbox.take(rows_max, now_ns)
        if chunk is None:
            return False
        self._chunk, self.delivered, self.row, self.end = chunk, *chunk
        self.chunks += 1
        return True

    def rows(self, rows_max: int) -> Chunk:
        """The next rows of the chunk at once, at most so many."""
        delivered, first, end = self.delivered, self.row, min(self.end, self.row + rows_max)
        self.row = end
        return Chunk(delivered, first, end)

    # --- what becomes of the chunk ---

    def finish(self) -> None:
        """What was handed out of it is noted; the rest is given up, and comes again."""
        if self._chunk is not None:
            self._inbox.finish(self._chunk, self.row)
        self._forget()

    def note(self) -> None:
        """What was handed out of it is noted; the rest goes on."""
        if self._chunk is not None and self.row > self._chunk.first:
            self._inbox.finish(self._chunk._replace(end=self.row), self.row)
            self._chunk = self._chunk._replace(first=self.row)

    def note_before(self, shard: int, offset: int) -> None:
        """Messages of the shard come from this offset on: if they come again, that must not be taken for waiting."""
        if (
            self._chunk is not None
            and self.delivered.shard == shard
            and self.row
            and offset <= self.delivered.offset(self.row - 1)
        ):
            self.note()

    def acked(self, shard: int, generation: int, start: int, end: int) -> None:
        """Copies of these messages are handed out no more, neither from the chunk nor from the inbox."""
        if self._chunk is not None and self.delivered.shard == shard:
            out = self.delivered
            if self.row < self.end and out.offset(self.row) < end and start <= out.offset(self.end - 1):
                self._inbox.hand_back(self._chunk, self.row)
                self._forget()
        self._inbox.acked(shard, generation, [(start, end)])

    def drop_old(self) -> None:
        """It may belong to a time before a seek."""
        if self._chunk is not None and self.delivered.generation != self._inbox.generation(self.delivered.shard):
            self.finish()

    def _forget(self) -> None:
        self._chunk, self.row, self.end = None, 0, 0
        self.delivered = None  # type: ignore[assignment]
