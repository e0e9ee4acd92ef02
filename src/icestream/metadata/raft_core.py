"""The consensus core for several voters: the `raft` crate in the native extension, behind the interface of core.py.

The crate draws its election timeouts from a random source of its own. They are drawn here instead, from the source that
the driver passes in, once for each term and role, so that a simulation with one seed always takes the same course.
"""

from __future__ import annotations

from typing import Any

from icestream import errors
from icestream.metadata.core import HardState, RaftMessage, ReadState, Ready, SoftState, Status
from icestream.metadata.eraftpb import LogEntry
from icestream.metadata.stop_reasons import outdated
from icestream.runtime.native import native
from icestream.runtime.randomness import Randomness


def has_raft_core() -> bool:
    """Whether the native extension is there and contains the crate."""
    return hasattr(native, "RaftCore")


class RaftCore:
    """A thin wrapper: converts tuples of the native core to the types of core.py."""

    def __init__(
        self,
        randomness: Randomness,
        node_id: int,
        election_tick: int,
        heartbeat_tick: int,
        hard_state: HardState,
        conf: bytes,
        entries: list[bytes],
        snapshot: bytes | None = None,
        applied: int = 0,
    ) -> None:
        if not has_raft_core():
            raise errors.ConfigurationError(
                "a cluster needs the native extension, which is not installed",
                hint="install Rust (for example with rustup), then: make native",
            )
        self._randomness = randomness
        self._election_tick = election_tick
        self._drawn_for: tuple[int, int] | None = None
        self._ticks = 0  # since the last ready
        assert native is not None
        self._core: Any = native.RaftCore(
            node_id,
            election_tick,
            heartbeat_tick,
            tuple(hard_state),
            conf,
            entries,
            snapshot,
            applied,
            tells_commits=False,
        )
        self._draw_timeout()

    def _draw_timeout(self) -> None:
        status = self._core.status()
        if self._drawn_for != (status["term"], status["role"]):
            self._drawn_for = (status["term"], status["role"])
            chance = int.from_bytes(self._randomness.token(4))
            self._core.set_election_timeout(self._election_tick + chance % self._election_tick)

    # --- input ---

    def tick(self) -> bool:
        self._draw_timeout()
        self._ticks += 1
        accepted: bool = self._core.tick()
        return accepted

    def step(self, message: bytes) -> None:
        """Handles a message of another node.

        Raises DecodeError for bytes that are not a message: they came from a network. Raises LogOutdated if the leader
        knows of entries that this node has confirmed and that its log no longer contains.
        """
        try:
            commit: int | None = self._core.step(message)
        except ValueError as error:
            raise errors.DecodeError(f"not a Raft message: {error}") from None
        if commit is not None:
            raise outdated("the leader", f"entry {commit}", f"entry {self._core.status()['last']}")

    def campaign(self) -> None:
        self._core.campaign()

    def propose(self, batch: list[bytes]) -> bool:
        accepted: bool = self._core.propose(batch)
        return accepted

    def tell_commit(self) -> None:
        self._core.tell_commit()

    def read_index(self, context: bytes) -> None:
        self._core.read_index(context)

    def transfer_leader(self, to: int) -> None:
        self._core.transfer_leader(to)

    def propose_conf(self, changes: list[tuple[int, int]], transition: int, context: bytes) -> bool:
        accepted: bool = self._core.propose_conf(changes, transition, context)
        return accepted

    # --- output ---

    def ready(self) -> Ready | None:
        raw = self._core.ready()
        if raw is None:
            return None
        number, hard_state, must_sync, entries, now, after, snapshot, committed, reads, soft_state = raw
        # Several ticks in one call (an idle leader) produce the same heartbeat several times; one of each is enough.
        if self._ticks > 1:
            now = dict.fromkeys(now)
        self._ticks = 0
        return Ready(
            number,
            HardState(*hard_state) if hard_state is not None else None,
            must_sync,
            entries,
            [RaftMessage(*message) for message in now],
            [RaftMessage(*message) for message in after],
            snapshot,
            [LogEntry(*entry) for entry in committed],
            [ReadState(*read) for read in reads],
            SoftState(*soft_state) if soft_state is not None else None,
        )

    # --- reports of the driver ---

    def persisted(self, number: int) -> None:
        self._core.persisted(number)

    def applied(self, index: int) -> None:
        self._core.applied(index)

    def apply_conf(self, kind: int, data: bytes) -> bytes:
        conf: bytes = self._core.apply_conf(kind, data)
        return conf

    def snapshot(self, index: int, conf: bytes, data: bytes) -> bytes:
        encoded: bytes = self._core.snapshot(index, conf, data)
        return encoded

    def compact(self, index: int) -> None:
        self._core.compact(index)

    def report_snapshot(self, node_id: int, succeeded: bool) -> None:
        self._core.report_snapshot(node_id, succeeded)

    def report_unreachable(self, node_id: int) -> None:
        self._core.report_unreachable(node_id)

    def status(self) -> Status:
        state: Status = self._core.status()
        return state
