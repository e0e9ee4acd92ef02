"""The consensus core for several voters: the `raft` crate in the native part, as core.py describes a core.

The crate draws its election timeouts by chance that nobody can repeat. They are drawn here instead, from the source
that the driver gives, once for each term and role, so that a simulation with one seed is one history.
"""

from __future__ import annotations

from typing import Any

from icestream import errors
from icestream.metadata.core import HardState, Message, ReadState, Ready, SoftState, Status
from icestream.metadata.eraftpb import LogEntry
from icestream.metadata.stop_reasons import outdated
from icestream.runtime.native import native
from icestream.runtime.randomness import Randomness


def has_raft_core() -> bool:
    return hasattr(native, "RaftCore")


class RaftCore:
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
                "several nodes need the native part, which is not here",
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

    # --- what happens ---

    def tick(self) -> bool:
        self._draw_timeout()
        self._ticks += 1
        accepted: bool = self._core.tick()
        return accepted

    def step(self, message: bytes) -> None:
        """Raises DecodeError for what is no message: it came from a network. LogOutdated: the leader knows that this
        node has confirmed more than its log has."""
        try:
            commit: int | None = self._core.step(message)
        except ValueError as error:
            raise errors.DecodeError(f"these bytes are no Raft message: {error}") from None
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

    # --- what to do ---

    def ready(self) -> Ready | None:
        raw = self._core.ready()
        if raw is None:
            return None
        number, hard_state, must_sync, entries, now, after, snapshot, committed, reads, soft_state = raw
        if self._ticks > 1:
            now = dict.fromkeys(now)  # several ticks at once are one heartbeat
        self._ticks = 0
        return Ready(
            number,
            HardState(*hard_state) if hard_state is not None else None,
            must_sync,
            entries,
            [Message(*message) for message in now],
            [Message(*message) for message in after],
            snapshot,
            [LogEntry(*entry) for entry in committed],
            [ReadState(*read) for read in reads],
            SoftState(*soft_state) if soft_state is not None else None,
        )

    # --- what the driver tells ---

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
