"""Leases: keys that live while they are renewed. A renewal costs no log entry (hazard 46, ADR 35).

The log contains that there is a lease, its duration, and its end. Only the leader knows until when it is held at
present:

    until    the latest of: the deadline with which it was put; its last renewal plus its duration; the start of this
             leadership plus its duration
    ended    when that has passed. The end goes through the log as (key, revision), like that of every key (expiry.py).
             From the proposal on the lease is not renewed any more, and a renewal that arrives meanwhile is answered
             with False, even if the proposal is refused and the lease lives on: no renewal was noted (hazard 25)

A renewal is noted first and then confirmed like a linearizable read: this node still led after it had noted the renewal
(node_store.py). So the next leader began later, and gives each lease its whole duration from then on. A holder measures
from before it sent the renewal; therefore it knows that its lease is over before any other node can get it. A lease
that is not renewed ends late by at most its own duration for each change of leader, never early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from icestream import limits
from icestream.metadata.entry import Entry
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.store_time import StoreTime

KeysAtRevisions = list[tuple[str, int]]


class Renewal(NamedTuple):
    """The last renewal of a lease: until when it holds, for the entry at `revision`."""

    revision: int
    until_ms: int


class Leases:
    """The leases of one leadership; the next leader starts with new ones."""

    def __init__(self, machine: StateMachine, time: StoreTime) -> None:
        self._machine = machine
        self._time = time
        self._since_ms = time.now_ms()
        self._renewals: dict[str, Renewal] = {}
        self._ending: frozenset[str] = frozenset()

    def renew(self, key: str, revision: int) -> bool:
        """Extends the lease by its whole duration. False if it is gone or its expiry was proposed already."""
        is_held = self.is_held(key, revision)
        if is_held:
            self._renewals[key] = Renewal(revision, self._time.now_ms() + self._machine.leases[key].lease_ms)
        return is_held

    def is_held(self, key: str, revision: int) -> bool:
        """Whether the lease exists at this revision and its expiry was not proposed."""
        entry = self._machine.leases.get(key)
        return entry is not None and entry.mod_revision == revision and key not in self._ending

    def find_expired(self) -> tuple[KeysAtRevisions, int | None]:
        """Returns the expired leases, and when to check again (None if there is no lease)."""
        leases, now_ms = self._machine.leases, self._time.now_ms()
        self._renewals = {key: renewal for key, renewal in self._renewals.items() if key in leases}
        ended: KeysAtRevisions = []
        next_ms: int | None = None
        for key, entry in leases.items():
            until_ms = self._until_ms(key, entry)
            if until_ms <= now_ms:
                ended.append((key, entry.mod_revision))
            elif next_ms is None or until_ms < next_ms:
                next_ms = until_ms
        if ended:
            return ended, now_ms
        # Not more often than that: leases that end one after the other share a proposal.
        return ended, None if next_ms is None else max(next_ms, now_ms + limits.METADATA_LEASE_LOOK_MS)

    def _until_ms(self, key: str, entry: Entry) -> int:
        until_ms = max(entry.deadline_ms, self._since_ms + entry.lease_ms)
        renewal = self._renewals.get(key)
        # A lease that was released and put again by another holder has another revision: the old renewal must not
        # extend it.
        if renewal is not None and renewal.revision == entry.mod_revision:
            return max(until_ms, renewal.until_ms)
        return until_ms

    @contextmanager
    def ending(self, keys: Sequence[tuple[str, int]]) -> Iterator[None]:
        """Marks leases as expiring while their expiry is being proposed: they cannot be renewed meanwhile."""
        self._ending = frozenset(key for key, _ in keys)
        try:
            yield
        finally:
            self._ending = frozenset()
