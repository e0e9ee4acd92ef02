"""The interface through which readers and `verify` load the tables of topics, whichever catalog they are in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.readers.table_view import TableView


class BoundTopic(NamedTuple):
    """A topic that is bound to a table, by its record."""

    topic: str
    topic_id: int
    problem: str | None = None  # why the record cannot be decoded; then the other fields are unknown


class DetachedTopic(NamedTuple):
    """A topic that was bound to a table and no longer is."""

    topic: str
    topic_id: int
    table: str
    committed: dict[int, int]  # per shard, when the table was detached
    problem: str | None = None


class TableViews(Protocol):
    """Loads and caches the views of topic tables."""

    async def view(self, topic_id: int) -> TableView | None:
        """Returns the cached view if it is current as far as known, else loads it; None if the topic has no table."""

    async def fresh(self, topic_id: int) -> TableView | None:
        """Loads the view from the catalog, bypassing the cache; None if the topic has no table."""

    async def mark(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        """Returns the recorded offsets of an expired snapshot; None if there is no record, or no longer."""

    async def bound_topics(self, after: str, limit: int) -> tuple[list[BoundTopic], str | None]:
        """Lists topics with a table, and where the next page begins. A record that cannot be decoded is listed with its
        problem."""

    async def detached_topics(self, after: str, limit: int) -> tuple[list[DetachedTopic], str | None]:
        """Lists topics whose table was detached, dropped or replaced by force, and where the next page begins."""

    async def detached_topic(self, topic_id: int) -> DetachedTopic | None: ...

    async def run(self) -> None:
        """Follows changes until it is cancelled."""
