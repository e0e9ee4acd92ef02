"""The tables of topics as readers and `verify` ask for them, whichever catalog they are in."""

from __future__ import annotations

from typing import Protocol

from icestream.catalog.records import BoundRecord
from icestream.catalog.topic.snapshot_mark import Mark
from icestream.lake.scan.table_view import TableView


class TopicViews(Protocol):
    async def view(self, topic_id: int) -> TableView | None:
        """As far as we know. None: the topic has no table."""

    async def fresh(self, topic_id: int) -> TableView | None:
        """As it is now, whatever that costs."""

    async def mark(self, topic_id: int, snapshot_id: int) -> Mark | None:
        """What a snapshot held that is in the table no more. None: nobody knows it, or any more."""

    async def bound(self, after: str, limit: int) -> tuple[list[BoundRecord], str | None]:
        """Topics that have a table, and where the next page begins."""

    async def run(self) -> None:
        """Follows what changes, until it is cancelled."""
