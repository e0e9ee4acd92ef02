"""The consensus core as its driver (node.py) sees it: bytes in, bytes out. No I/O, no clock, no threads.

Two cores have this interface: `SoloCore` (solo_core.py, one voter, pure Python) and, with the cluster, the `raft` crate
behind the native extension. Entries, ConfState and snapshots are the crate's bytes (eraftpb.py), so that a log that
one of them wrote is opened by the other.

    constructor     (node_id, election_tick, heartbeat_tick, hard_state, conf, entries, snapshot, applied)
    ready()         what to do next, None when there is nothing. The driver must, in this order
                        send `send_now`; write `entries` and `hard_state` (when `must_sync`), then send `send_after`;
                        install `snapshot`; apply `committed` and call `applied`
                    There is no call that says "taken": ready() does that. Several may be on their way to the disk.
    persisted(n)    everything of ready number n and before it is synced
    committed entries are handed out only when they are durable here (A7, rule 2)

Whatever a core raises ends the node, also what is not an Exception: a panic of the crate is a BaseException (trap 4).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol, TypedDict

import msgspec

from icestream.metadata.eraftpb import LogEntry, depends_on_no_write


class Role(IntEnum):
    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2
    PRE_CANDIDATE = 3


class HardState(NamedTuple):
    term: int
    vote: int
    commit: int


class Message(NamedTuple):
    to: int
    data: bytes
    is_snapshot: bool


def without_a_write(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """Splits messages into those that need not wait for a write (trap 3), and the rest."""
    free = [message for message in messages if depends_on_no_write(message.data)]
    return free, [message for message in messages if message not in free]


class ReadState(msgspec.Struct, frozen=True):
    """The read requested with `context` may be served from the state at `index` or later."""

    index: int
    context: bytes


class SoftState(NamedTuple):
    leader: int
    role: int


class Ready(NamedTuple):
    number: int
    hard_state: HardState | None
    must_sync: bool
    entries: list[tuple[int, bytes]]  # index and encoded Entry
    send_now: list[Message]
    send_after: list[Message]  # after persisted(number)
    snapshot: bytes | None
    committed: list[LogEntry]
    reads: list[ReadState]
    soft_state: SoftState | None


class Status(TypedDict):
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
    def tick(self) -> bool: ...

    def step(self, message: bytes) -> None: ...

    def campaign(self) -> None: ...

    def propose(self, batch: list[bytes]) -> bool:
        """Proposes one entry for each. False if nothing was proposed: this node is not the leader."""

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
