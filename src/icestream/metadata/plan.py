"""The changes of one command over the map: nothing is changed before all of it is known to be allowed.

Operations of a transaction see those before them. The result is one change for each key, from its old entry to its new
one: a key that was created and deleted by the same command leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator

from icestream import limits
from icestream.metadata import command as cmd
from icestream.metadata.bounds import key_bytes
from icestream.metadata.entry import Entry
from icestream.metadata.ordered_map import OrderedMap


class Plan:
    """Collects the changes of one command."""

    __slots__ = (
        "_entries",
        "_revision",
        "_time_ms",
        "changes",
        "deleted",
        "grown_bytes",
        "grown_keys",
        "grown_leases",
        "more",
    )

    def __init__(self, entries: OrderedMap[str, Entry], revision: int, time_ms: int) -> None:
        self._entries = entries
        self._revision = revision
        self._time_ms = time_ms
        self.changes: dict[str, Entry | None] = {}  # None: deleted
        self.grown_keys = 0
        self.grown_bytes = 0
        self.grown_leases = 0
        self.deleted = 0
        self.more = False  # keys with the prefix are left: one command deletes a bounded number

    def add(self, operation: cmd.Operation) -> None:
        """Adds an operation."""
        if type(operation) is cmd.Put:  # the most frequent operation costs no match
            self.put(operation.key, operation.value, 0)
            return
        match operation:
            case cmd.PutWithTtl(key, value, ttl_ms):
                self.put(key, value, self._time_ms + ttl_ms)
            case cmd.PutLease(key, value, ttl_ms):
                self.put(key, value, self._time_ms + ttl_ms, ttl_ms)
            case cmd.Delete(key):
                self.delete(key)
            case cmd.DeletePrefix(prefix):
                self._delete_prefix(prefix)

    def get(self, key: str) -> Entry | None:
        """The entry as this command sees it."""
        changes = self.changes
        return changes[key] if key in changes else self._entries.get(key)

    def put(self, key: str, value: bytes, deadline_ms: int, lease_ms: int = 0) -> None:
        """Puts a key; `deadline_ms` 0 for none, `lease_ms` above 0 for a lease."""
        changes, revision = self.changes, self._revision
        old = changes[key] if key in changes else self._entries.get(key)
        if old is None:
            self.grown_keys += 1
            self.grown_bytes += key_bytes(key) + len(value)
            entry = Entry(value, revision, revision, 1, deadline_ms, lease_ms)
        else:
            self.grown_bytes += len(value) - len(old.value)
            # Two puts in one transaction are one revision, and count as one version.
            version = old.version if old.mod_revision == revision else old.version + 1
            entry = Entry(value, old.create_revision, revision, version, deadline_ms, lease_ms)
        if lease_ms or (old is not None and old.lease_ms):
            self.grown_leases += bool(lease_ms) - bool(old and old.lease_ms)
        changes[key] = entry

    def delete(self, key: str) -> None:
        """Deletes a key; does nothing if it does not exist."""
        old = self.get(key)
        if old is None:
            return
        self.deleted += 1
        self.grown_keys -= 1
        self.grown_leases -= bool(old.lease_ms)
        self.grown_bytes -= key_bytes(key) + len(old.value)
        # A key that this command created has no entry in the map: its change disappears.
        if key in self._entries:
            self.changes[key] = None
        else:
            del self.changes[key]

    def _delete_prefix(self, prefix: str) -> None:
        created = [key for key in self.changes if key.startswith(prefix) and key not in self._entries]
        for key in (*created, *self._below(prefix)):
            if self.deleted >= limits.METADATA_DELETE_KEYS_MAX:
                self.more = True
                return
            self.delete(key)

    def _below(self, prefix: str) -> Iterator[str]:
        """The keys with this prefix that the plan has not deleted."""
        for key in self._entries.irange(prefix):
            if not key.startswith(prefix):
                return
            if self.get(key) is not None:
                yield key
