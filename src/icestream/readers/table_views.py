"""The tables of topics as readers and `verify` ask for them, whichever catalog they are in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.readers.table_view import TableView


class BoundTopic(NamedTuple):
    """A topic that has a table, by what is noted of it."""

    topic: str
    topic_id: int
    problem: str | None = None  # why the note cannot be read; then the others are not known


class DetachedTopic(NamedTuple):
    """A topic that had a table, and has none."""

    topic: str
    topic_id: int
    table: str
    committed: dict[int, int]  # per shard, when they were parted
    problem: str | None = None


class TableViews(Protocol):
    async def view(self, topic_id: int) -> TableView | None:
        """As far as we know. None: the topic has no table."""

    async def fresh(self, topic_id: int) -> TableView | None:
        """As it is now, whatever that costs."""

    async def mark(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        """What a snapshot held that is in the table no more. None: nobody knows it, or any more."""

    async def bound(self, after: str, limit: int) -> tuple[list[BoundTopic], str | None]:
        """Topics that have a table, and where the next page begins. One that cannot be read does not end it."""

    async def parted(self, after: str, limit: int) -> tuple[list[DetachedTopic], str | None]:
        """The same of topics that had one: detached, dropped or replaced by force."""

    async def parted_of(self, topic_id: int) -> DetachedTopic | None: ...

    async def run(self) -> None:
        """Follows what changes, until it is cancelled."""
