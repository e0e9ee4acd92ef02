"""The consensus core as its driver (node.py) sees it: bytes in, bytes out. No I/O, no clock, no threads.

Two cores have this interface: `SoloCore` (solo_core.py, one voter, pure Python) and `RaftCore` (raft_core.py, the
`raft` crate in the native extension). Entries, ConfState and snapshots are the crate's bytes (eraftpb.py), so either
core opens a log that the other has written.

    constructor     (node_id, election_tick, heartbeat_tick, hard_state, conf, entries, snapshot, applied)
    ready()         what to do next, None when there is nothing. The driver must, in this order
                        send `send_now`; write `entries` and `hard_state` (when `must_sync`), then send `send_after`;
                        install `snapshot`; apply `committed` and call `applied`
                    There is no separate acknowledgement: calling ready() again accepts the one before. Several may be
                    on their way to the disk.
    persisted(n)    everything of ready number n and before it is synced
    committed entries are handed out only when they are durable here (node.py, rule 2)

Any exception of a core stops the node, BaseException included: a panic of the crate is one (trap 4).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol, TypedDict

import msgspec

from icestream.metadata.eraftpb import LogEntry, depends_on_no_write


class Role(IntEnum):
    """The role of a node in its present term; the numbers of the `raft` crate."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2
    PRE_CANDIDATE = 3


class HardState(NamedTuple):
    """What a voter must have on disk before it answers: term, vote, and the commit index."""

    term: int
    vote: int
    commit: int


class RaftMessage(NamedTuple):
    """An encoded Raft message for node `to`. Snapshots travel on a connection of their own."""

    to: int
    data: bytes
    is_snapshot: bool


def without_a_write(messages: list[RaftMessage]) -> tuple[list[RaftMessage], list[RaftMessage]]:
    """Splits messages into those that may be sent before the pending write is synced (trap 3), and the rest."""
    free = [message for message in messages if depends_on_no_write(message.data)]
    return free, [message for message in messages if message not in free]


class ReadState(msgspec.Struct, frozen=True):
    """The read requested with `context` may be served from the state at `index` or later."""

    index: int
    context: bytes


class SoftState(NamedTuple):
    """The leader as this node knows it (0 for none), and its own role. Not stored."""

    leader: int
    role: int


class Ready(NamedTuple):
    """One step of work from the core; the module says in which order the driver does it."""

    number: int
    hard_state: HardState | None
    must_sync: bool
    entries: list[tuple[int, bytes]]  # index and encoded Entry
    send_now: list[RaftMessage]
    send_after: list[RaftMessage]  # after persisted(number)
    snapshot: bytes | None
    committed: list[LogEntry]
    reads: list[ReadState]
    soft_state: SoftState | None


class Status(TypedDict):
    """The core's view of itself, for metrics and commands."""

    term: int
    leader: int
    role: int
    commit: int
    last: int
    first: int
    voters: list[int]
    learners: list[int]
    progress: dict[int, tuple[int, int, bool]]  # of a leader: match, next, recently active


class Core(Protocol):
    """A consensus core; see the module."""

    def tick(self) -> bool: ...

    def step(self, message: bytes) -> None: ...

    def campaign(self) -> None: ...

    def propose(self, batch: list[bytes]) -> bool:
        """Proposes one entry for each of `batch`; False if nothing was proposed because this node is not the leader."""

    def tell_commit(self) -> None:
        """Sends the commit index to the followers now; the core does so only with entries and heartbeats."""

    def read_index(self, context: bytes) -> None: ...

    def transfer_leader(self, to: int) -> None: ...

    def propose_conf(self, changes: list[tuple[int, int]], transition: int, context: bytes) -> bool: ...

    def apply_conf(self, kind: int, data: bytes) -> bytes:
        """Applies a committed change of members and returns the resulting ConfState."""

    def ready(self) -> Ready | None: ...

    def persisted(self, number: int) -> None: ...

    def applied(self, index: int) -> None: ...

    def snapshot(self, index: int, conf: bytes, data: bytes) -> bytes:
        """Registers a snapshot that the driver has taken; returns the encoded Snapshot."""

    def compact(self, index: int) -> None:
        """Discards entries up to this index."""

    def report_snapshot(self, node_id: int, succeeded: bool) -> None: ...

    def report_unreachable(self, node_id: int) -> None: ...

    def status(self) -> Status: ...


class CoreFactory(Protocol):
    """Creates a core from what recovery has read."""

    def __call__(
        self,
        node_id: int,
        election_tick: int,
        heartbeat_tick: int,
        hard_state: HardState,
        conf: bytes,
        entries: list[bytes],
        snapshot: bytes | None,
        applied: int,
    ) -> Core: ...
