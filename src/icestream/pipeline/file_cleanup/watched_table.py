"""What the driver remembers of a table between two checks, to find files that are not needed any more. Pure.

    snapshots   at the last check. A snapshot that is missing at the next check has expired: files that only it refers
                to were in the table and are no more
    pending     files that seem to be unneeded, until the delay is over. Then they are compared with the table again,
                and condemned (catalog/condemned_files.py). More than fit are found again by a listing of the folders
    leftovers   files of the present epoch that the last listing found in no snapshot

A snapshot whose child only appended left all its data files to the child: they are considered when the child expires.
So a table that only the pipeline writes is kept clean without reading its manifests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream import limits
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.location import normalize_or_none
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

_APPEND = "append"


class WatchedSnapshot(NamedTuple):
    """What is needed of a snapshot once it has expired."""

    manifest_list: str
    parent_id: int | None
    operation: str


class PendingRemoval(NamedTuple):
    """A file that is removed when its delay is over, if the table still does not need it."""

    due_ns: int
    location: str
    is_list: bool = False
    was_committed: bool = False  # the table referred to it
    is_carried: bool = False  # a list whose data files are all in a later list


@dataclass
class WatchedTable:
    """One table between two checks."""

    topic_id: int
    identifier: Identifier
    uuid: str
    check_ns: int | None = 0  # when it is checked next; None: not before something changes
    list_folders_ns: int = 0  # when its folders are listed next
    snapshots: dict[int, WatchedSnapshot] = field(default_factory=dict)
    statistics: set[str] = field(default_factory=set)
    pending: deque[PendingRemoval] = field(default_factory=deque)
    condemned_files: int = 0  # that a later pass removes, as of the last look
    leftovers: frozenset[str] = frozenset()
    leftovers_epoch: int = 0

    def check_by(self, time_ns: int) -> None:
        """Has the table checked at this time at the latest."""
        self.check_ns = time_ns if self.check_ns is None else min(self.check_ns, time_ns)

    def add_current_snapshot(self, table: TableMetadata) -> None:
        """Remembers the snapshot of our own commit: it may expire before the next check, if the driver is delayed."""
        current = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
        watched = None if current is None else _watched(current)
        if current is not None and watched is not None:
            self.snapshots[current["snapshot-id"]] = watched

    def reset(self, list_folders_ns: int) -> None:
        """Drops everything: the table is not ours to clean at present."""
        self.snapshots.clear()
        self.statistics.clear()
        self.pending.clear()
        self.leftovers = frozenset()
        self.list_folders_ns = list_folders_ns

    def observe(self, table: TableMetadata, due_ns: int) -> None:
        """Compares the table with the last check: files of what has gone since become pending."""
        before, statistics_before = self.snapshots, self.statistics
        self.snapshots = {
            snapshot["snapshot-id"]: watched
            for snapshot in table.snapshots
            if (watched := _watched(snapshot)) is not None
        }
        self.statistics = set(statistics_of(table))
        carried_ids = {
            snapshot.parent_id for snapshot in (before | self.snapshots).values() if snapshot.operation == _APPEND
        }
        for snapshot_id, snapshot in before.items():
            watched = self.snapshots.get(snapshot_id)
            if watched is None:
                # Its data files live on in a child that only appended, so that its manifests need not be read.
                is_carried = snapshot_id in carried_ids
                self._append([PendingRemoval(due_ns, snapshot.manifest_list, True, True, is_carried)])
            elif watched.manifest_list != snapshot.manifest_list:
                # An erasure has given it another list, without files that the child of an earlier commit has, too.
                self._append([PendingRemoval(due_ns, snapshot.manifest_list, True, True)])
        gone_statistics = sorted(statistics_before - self.statistics)
        self.add(PendingRemoval(due_ns, location, was_committed=True) for location in gone_statistics)

    def add(self, removals: Iterable[PendingRemoval]) -> None:
        # The same file comes again with every listing of the folders, until its delay is over.
        locations = {pending.location for pending in self.pending}
        self._append(removal for removal in removals if removal.location not in locations)

    def _append(self, removals: Iterable[PendingRemoval]) -> None:
        for removal in removals:
            if len(self.pending) >= limits.CLEAN_UP_WAITING_MAX:
                # Not forgotten: its file is in the folders of the table, and the next listing finds it there.
                self.list_folders_ns = min(self.list_folders_ns, removal.due_ns)
                return
            self.pending.append(removal)

    def due(self, now_ns: int) -> list[PendingRemoval]:
        """Returns a few files whose delay is over. They stay pending until `drop`."""
        return [pending for pending in self.pending if pending.due_ns <= now_ns][: limits.CLEAN_UP_LISTS_AT_ONCE]

    def drop(self, removals: Sequence[PendingRemoval]) -> None:
        dropped = set(removals)
        remaining = [pending for pending in self.pending if pending not in dropped]
        self.pending.clear()
        self.pending.extend(remaining)

    def pending_lists(self, besides: Sequence[PendingRemoval] = ()) -> list[str]:
        """Lists whose delay is not over: queries may still read by them, so that their files stay."""
        excluded = set(besides)
        return [pending.location for pending in self.pending if pending.is_list and pending not in excluded]

    @property
    def next_due_ns(self) -> int | None:
        return min((pending.due_ns for pending in self.pending), default=None)


def _watched(snapshot: Object) -> WatchedSnapshot | None:
    manifest_list = normalize_or_none(snapshot.get("manifest-list") or "")
    if manifest_list is None:
        return None
    operation = (snapshot.get("summary") or {}).get("operation", "")
    return WatchedSnapshot(manifest_list, snapshot.get("parent-snapshot-id"), operation)


def statistics_of(table: TableMetadata) -> list[str]:
    """Returns the locations of the table's statistics files."""
    names = ("statistics", "partition-statistics")
    locations = [
        normalize_or_none(entry["statistics-path"]) for name in names for entry in table.fields.get(name) or ()
    ]
    return [location for location in locations if location is not None]
