"""A consensus core for exactly one voter, in pure Python: always the leader; commits what is synced.

    FOLLOWER --campaign--> LEADER      a new term with its own vote, and an empty entry of that term

An entry counts as committed when it is persisted and the empty entry of this term is too: the rule of Raft, with a
quorum of one. Proposals before the campaign are refused. Any other membership is refused: it needs the native core,
which opens the same log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from icestream import errors
from icestream.metadata import eraftpb
from icestream.metadata.core import HardState, ReadState, Ready, Role, SoftState, Status
from icestream.metadata.eraftpb import LogEntry, Membership, SnapshotParts


class SoloCore:
    """The core of a node without peers: always elected, commits what is synced."""

    def __init__(
        self,
        node_id: int,
        election_tick: int,
        heartbeat_tick: int,
        hard_state: HardState,
        conf: bytes,
        entries: list[bytes],
        snapshot: bytes | None = None,
        applied: int = 0,
    ) -> None:
        """Ticks have no effect: there is no election."""
        decoded = [eraftpb.decode_entry(entry) for entry in entries]
        _check_alone(node_id, eraftpb.decode_conf(conf), decoded)
        self._id = node_id
        self._conf = conf
        self._uncommitted = deque(entry for entry in decoded if entry.index > applied)
        _check_indexes(self._uncommitted, applied)
        self._first = applied + 1
        self._last = self._persisted = applied + len(self._uncommitted)
        self._term, self._vote = hard_state.term, hard_state.vote
        # The stored commit index may be behind (it is not synced on its own) or, after a lost tail, ahead of the
        # entries.
        self._commit = min(max(hard_state.commit, applied), self._last)
        self._role = Role.FOLLOWER
        self._own_first = 0  # the empty entry of this term
        self._reported_state = HardState(self._term, self._vote, self._commit)
        self._has_changes = self._commit > applied
        self._reported_role = Role.FOLLOWER
        self._number = 0
        self._new_entries: list[tuple[int, bytes]] = []
        self._unsynced: deque[tuple[int, int]] = deque()  # ready number, last index
        self._reads: list[ReadState] = []
        self._terms = _Terms(eraftpb.decode_snapshot(snapshot) if snapshot else None, decoded)

    # --- input ---

    def campaign(self) -> None:
        if self._role is Role.LEADER:
            return
        self._role, self._vote = Role.LEADER, self._id
        self._has_changes = True
        self._term += 1
        self._own_first = self._last + 1
        self._terms.begin(self._own_first, self._term)
        self._add(eraftpb.NORMAL, b"")

    def tick(self) -> bool:
        self.campaign()
        return True

    def propose(self, batch: list[bytes]) -> bool:
        if self._role is not Role.LEADER:
            return False
        for data in batch:
            self._add(eraftpb.NORMAL, data)
        return True

    def _add(self, kind: int, data: bytes) -> None:
        self._last += 1
        self._new_entries.append((self._last, eraftpb.encode_entry(self._last, self._term, kind, data)))
        self._uncommitted.append(LogEntry(self._last, self._term, kind, data, b""))

    def tell_commit(self) -> None:
        """No effect: there are no followers."""

    def read_index(self, context: bytes) -> None:
        """Serves at once: no other node can be leader, so a read must see everything accepted so far."""
        self._reads.append(ReadState(self._last, context))

    def persisted(self, number: int) -> None:
        while self._unsynced and self._unsynced[0][0] <= number:
            self._persisted = self._unsynced.popleft()[1]
        # Raft commits an older term only together with an entry of the present one. With one voter the quorum is this
        # disk.
        if 0 < self._own_first <= self._persisted != self._commit:
            self._commit = self._persisted
            self._has_changes = True

    # --- output ---

    def ready(self) -> Ready | None:
        if not (self._new_entries or self._reads or self._has_changes):
            return None
        self._has_changes = False
        committed = self._take_committed()
        hard_state = HardState(self._term, self._vote, self._commit)
        is_news = hard_state != self._reported_state
        self._number += 1
        # A commit index that moved alone is not worth a sync: it is computed again after a restart (node.py, rule 4).
        must_sync = bool(self._new_entries) or hard_state[:2] != self._reported_state[:2]
        if self._new_entries:
            self._unsynced.append((self._number, self._last))
        soft = SoftState(self._id, self._role) if self._role is not self._reported_role else None
        changed_state = hard_state if is_news else None
        ready = Ready(
            self._number, changed_state, must_sync, self._new_entries, [], [], None, committed, self._reads, soft
        )
        self._new_entries, self._reads, self._reported_state, self._reported_role = [], [], hard_state, self._role
        return ready

    def _take_committed(self) -> list[LogEntry]:
        waiting, entries = self._uncommitted, []
        while waiting and waiting[0].index <= self._commit:
            entries.append(waiting.popleft())
        return entries

    # --- reports of the driver ---

    def applied(self, index: int) -> None:
        """No effect: no entries are kept."""

    def apply_conf(self, kind: int, data: bytes) -> bytes:
        """Never called: a log with changes of members is not opened."""
        return self._conf

    def snapshot(self, index: int, conf: bytes, data: bytes) -> bytes:
        return eraftpb.encode_snapshot(SnapshotParts(index, self._terms.at(index), conf, data))

    def compact(self, index: int) -> None:
        self._first = max(self._first, index + 1)

    def status(self) -> Status:
        return {
            "term": self._term,
            "leader": self._id if self._role is Role.LEADER else 0,
            "role": self._role,
            "commit": self._commit,
            "last": self._last,
            "first": self._first,
            "voters": [self._id],
            "learners": [],
            "progress": {},
        }

    # --- only for clusters ---

    def step(self, message: bytes) -> None:
        """Never called: there are no other nodes."""

    def transfer_leader(self, to: int) -> None:
        """No effect: there is no other voter."""

    def propose_conf(self, changes: list[tuple[int, int]], transition: int, context: bytes) -> bool:
        raise errors.ConfigurationError(
            "this node cannot change the membership", hint="install the native part, which has the core for it"
        )

    def report_snapshot(self, node_id: int, succeeded: bool) -> None:
        """Never called: there are no followers."""

    def report_unreachable(self, node_id: int) -> None:
        """Never called: there are no peers."""


class _Terms:
    """The term of each index, as runs."""

    def __init__(self, snapshot: SnapshotParts | None, entries: list[LogEntry]) -> None:
        self._firsts: list[int] = []
        self._terms: list[int] = []
        if snapshot is not None:
            self.begin(snapshot.index, snapshot.term)
        for entry in entries:
            if not self._terms or self._terms[-1] != entry.term:
                self.begin(entry.index, entry.term)

    def begin(self, index: int, term: int) -> None:
        self._firsts.append(index)
        self._terms.append(term)

    def at(self, index: int) -> int:
        run = bisect_right(self._firsts, index) - 1
        return self._terms[run] if run >= 0 else 0


def _check_alone(node_id: int, conf: Membership, entries: list[LogEntry]) -> None:
    """Raises ConfigurationError for a log with other members or a change of members: it needs the native core."""
    if conf != Membership((node_id,)) or any(entry.kind != eraftpb.NORMAL for entry in entries):
        raise errors.ConfigurationError(
            f"the metadata log belongs to a cluster: {conf}",
            hint="install the native part, which has the core for several voters",
        )


def _check_indexes(entries: deque[LogEntry], applied: int) -> None:
    """Raises DecodeError if the entries do not follow `applied` without a hole."""
    for expected, entry in enumerate(entries, applied + 1):
        if entry.index != expected:
            raise errors.DecodeError(f"entry {entry.index} of the metadata log, expected entry {expected}")
