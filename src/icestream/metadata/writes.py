"""Writes of the core on their way to the disk: they wait for room, then for the sync; then dependent messages are sent.

    queued --room in a file--> planned (a ticket of the log) --synced up to the ticket--> done
Writes keep their order. One without a need for the disk waits only for those before it. A follower cannot refuse what
its leader sends: when the file is full, its writes wait for the next file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from icestream import errors
from icestream.metadata.core import HardState, RaftMessage
from icestream.metadata.log_format import ENTRY_OVERHEAD_BYTES, Base, Promise
from icestream.metadata.log_store import LogStore

Entries = Sequence[tuple[int, bytes]]


@dataclass(slots=True)
class Write:
    """One `Ready` of the core, as far as it has to be written."""

    number: int
    entries: Entries
    state: HardState | None
    base: Base | None
    messages: list[RaftMessage]
    needs_disk: bool
    is_install: bool = False
    commit: int = 0  # written too: a change of members up to here is committed
    promises: dict[int, Promise] | None = None  # of other nodes, as far as this node knows them
    term: int = 0  # of the core when it produced the write
    begins_term: bool = False  # the ready starts a new term: its entries may be those of an earlier leader
    last_index: int = 0  # of its entries, if they agree with the leader of `term`; 0 if that is unknown
    ticket: int = 0


class Writes:
    """The writes of one node, in order."""

    def __init__(self, log: LogStore, record_bytes_max: int) -> None:
        self._log = log
        self._record_bytes_max = record_bytes_max
        self._queued: deque[Write] = deque()
        self._planned: deque[Write] = deque()
        self._ticket = 0
        self.promise = Promise(0, 0)  # the highest that this run has synced
        self.is_closed = False  # nothing more is written: the last file is sealed

    @property
    def are_queued(self) -> bool:
        return bool(self._queued)

    @property
    def are_under_way(self) -> bool:
        return bool(self._queued or self._planned)

    def add(self, write: Write) -> None:
        """Queues a write and plans it if there is room."""
        if write.entries and not write.begins_term:
            write.last_index = write.entries[-1][0]
        self._queued.append(write)
        self.plan()

    def plan(self) -> None:
        """Submits the writes that have room to the log."""
        while self._queued and not self.is_closed:
            write = self._queued[0]
            if write.needs_disk and not self._append(write):
                return
            write.ticket = self._ticket
            self._planned.append(self._queued.popleft())

    def _append(self, write: Write) -> bool:
        """Writes the entries record by record. Returns False if there is no room now; the rest follows later."""
        for piece in tuple(_pieces(write.entries, self._record_bytes_max)):
            size = sum(len(entry) for _, entry in piece)
            if not self._log.plan.room_for(size, len(piece)):
                # An empty file is ready and still too small: waiting would never help.
                if self._log.plan.next_file is not None:
                    raise errors.LogError(f"a record of {size} bytes fits no file of the metadata log")
                return False
            self._ticket = self._log.append(piece, write.state, write.base, write.commit, write.promises)
            write.entries = write.entries[len(piece) :]
            write.base = None
        return True

    def take_synced(self, ticket: int, *, is_installing: bool) -> list[Write]:
        """Completes writes up to this synced ticket, in order; not past a snapshot that is being loaded."""
        done = []
        planned = self._planned
        while planned and planned[0].ticket <= ticket and not (is_installing and planned[0].is_install):
            done.append(planned.popleft())
            self.promise = max(self.promise, Promise(done[-1].term, done[-1].last_index))
        return done


def _pieces(entries: Entries, bytes_max: int) -> Iterator[Entries]:
    """Yields as many entries as fit a record; one empty list if there are none."""
    start = size = 0
    for at, (_, entry) in enumerate(entries):
        size += len(entry) + ENTRY_OVERHEAD_BYTES
        if at > start and size > bytes_max:
            yield entries[start:at]
            start, size = at, len(entry) + ENTRY_OVERHEAD_BYTES
    if start < len(entries) or not entries:
        yield entries[start:]
