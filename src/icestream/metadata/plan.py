"""The changes of one command, laid over the map: nothing is touched before all of it is known to be allowed.

Operations of a transaction see those before them. What counts in the end is one change for each key, from what it was
to what it is: one that was made and deleted again in the same command never was.
"""

from __future__ import annotations

from collections.abc import Iterator

from icestream import limits
from icestream.metadata import command as cmd
from icestream.metadata.bounds import key_bytes
from icestream.metadata.entry import Entry
from icestream.metadata.ordered_map import OrderedMap


class Plan:
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
        self.more = False  # keys below a prefix were left because one command deletes no more

    def add(self, operation: cmd.Operation) -> None:
        if type(operation) is cmd.Put:  # the most frequent one, the short way
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
        changes = self.changes
        return changes[key] if key in changes else self._entries.get(key)

    def put(self, key: str, value: bytes, deadline_ms: int, lease_ms: int = 0) -> None:
        changes, revision = self.changes, self._revision
        old = changes[key] if key in changes else self._entries.get(key)
        if old is None:
            self.grown_keys += 1
            self.grown_bytes += key_bytes(key) + len(value)
            entry = Entry(value, revision, revision, 1, deadline_ms, lease_ms)
        else:
            self.grown_bytes += len(value) - len(old.value)
            version = old.version if old.mod_revision == revision else old.version + 1
            entry = Entry(value, old.create_revision, revision, version, deadline_ms, lease_ms)
        if lease_ms or (old is not None and old.lease_ms):
            self.grown_leases += bool(lease_ms) - bool(old and old.lease_ms)
        changes[key] = entry

    def delete(self, key: str) -> None:
        old = self.get(key)
        if old is None:
            return
        self.deleted += 1
        self.grown_keys -= 1
        self.grown_leases -= bool(old.lease_ms)
        self.grown_bytes -= key_bytes(key) + len(old.value)
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
