"""What the driver remembers of a table between two looks, to know which of its files nobody needs any more. Pure.

    known      the snapshots at the last look. One that is not there at the next has gone: whatever only it named was in
               the table and is no more
    waiting    what seems to be needed by nobody, until the delay is over. Then it is compared with the table again

A snapshot whose child only appended left all its data files to the child: they are looked at when the child goes. So a
table that only we write is kept clean without reading its manifests.
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


class KnownSnapshot(NamedTuple):
    manifest_list: str
    parent: int | None
    operation: str


class PendingRemoval(NamedTuple):
    due_ns: int
    location: str
    is_list: bool = False
    has_landed: bool = False  # the table named it
    is_carried: bool = False  # a list whose data files are all in a later one


@dataclass
class WatchedTable:
    topic_id: int
    identifier: Identifier
    uuid: str
    look_ns: int | None = 0  # when it is looked at next; None: not before something changes
    folders_ns: int = 0  # when its folders are looked through next
    known: dict[int, KnownSnapshot] = field(default_factory=dict)
    statistics: set[str] = field(default_factory=set)
    waiting: deque[PendingRemoval] = field(default_factory=lambda: deque(maxlen=limits.CLEAN_UP_WAITING_MAX))

    def look_before(self, time_ns: int) -> None:
        self.look_ns = time_ns if self.look_ns is None else min(self.look_ns, time_ns)

    def learn(self, table: TableMetadata) -> None:
        """Our own commit: its snapshot may go before the next look, where the driver was held up."""
        current = None if table.current_snapshot_id is None else table.snapshots.find(table.current_snapshot_id)
        known = None if current is None else _known(current)
        if current is not None and known is not None:
            self.known[current["snapshot-id"]] = known

    def forget(self, folders_ns: int) -> None:
        """It is not ours to clean, at present."""
        self.known.clear()
        self.statistics.clear()
        self.waiting.clear()
        self.folders_ns = folders_ns

    def observe(self, table: TableMetadata, due_ns: int) -> None:
        """The table as it is now: what went since the last look waits from now on."""
        before, statistics = self.known, self.statistics
        self.known = {one["snapshot-id"]: known for one in table.snapshots if (known := _known(one)) is not None}
        self.statistics = set(statistics_of(table))
        everyone = (before | self.known).values()
        carried = {one.parent for one in everyone if one.operation == _APPEND}
        for number, one in before.items():
            if number not in self.known:
                self.waiting.append(PendingRemoval(due_ns, one.manifest_list, True, True, number in carried))
        self.add(PendingRemoval(due_ns, one, has_landed=True) for one in sorted(statistics - self.statistics))

    def add(self, found: Iterable[PendingRemoval]) -> None:
        there = {one.location for one in self.waiting}
        self.waiting.extend(one for one in found if one.location not in there)

    def due(self, now_ns: int) -> list[PendingRemoval]:
        """Some of what has waited long enough; `done` lets go of them."""
        return [one for one in self.waiting if one.due_ns <= now_ns][: limits.CLEAN_UP_LISTS_AT_ONCE]

    def done(self, some: Sequence[PendingRemoval]) -> None:
        gone = set(some)
        kept = [one for one in self.waiting if one not in gone]
        self.waiting.clear()
        self.waiting.extend(kept)

    def lists_waiting(self, besides: Sequence[PendingRemoval] = ()) -> list[str]:
        """Whoever reads by them still may: what they name stays."""
        gone = set(besides)
        return [one.location for one in self.waiting if one.is_list and one not in gone]

    @property
    def next_due_ns(self) -> int | None:
        return min((one.due_ns for one in self.waiting), default=None)


def _known(one: Object) -> KnownSnapshot | None:
    manifest_list = normalize_or_none(one.get("manifest-list") or "")
    if manifest_list is None:
        return None
    operation = (one.get("summary") or {}).get("operation", "")
    return KnownSnapshot(manifest_list, one.get("parent-snapshot-id"), operation)


def statistics_of(table: TableMetadata) -> list[str]:
    names = ("statistics", "partition-statistics")
    paths = [normalize_or_none(one["statistics-path"]) for name in names for one in table.fields.get(name) or ()]
    return [one for one in paths if one is not None]
