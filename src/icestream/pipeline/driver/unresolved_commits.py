"""Rounds whose commit has no known outcome: their files are kept, and brought again instead of being written again.

    --the catalog says too little-->    kept
    kept  --after a pause-->            the table is looked at, and the same files are sent again
    kept  --the table has gone on, is another one, or has changed too much-->   let go: the topic is planned anew
    kept  --the driver has another epoch-->                                     let go: its files may be removed

Pure. Nothing of the log is held for them: floors move when something is committed, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from icestream import limits
from icestream.pipeline.commit import schema_compat
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.tables.topic_table import TopicTable


class UnresolvedCommit(NamedTuple):
    brought: TopicCommit
    table_uuid: str | None  # whose folder the files are in

    def why_not(self, table: TopicTable) -> str:
        """Why it cannot be brought to the table as it is now. Empty: it can."""
        if table.table.uuid != self.table_uuid:
            return "the topic has another table"
        if any(table.next_offsets.get(one.shard) != one.start for one in self.brought.claims):
            return "the table has gone on"
        return schema_compat.incompatibility(table.table, self.brought.files)


class UnresolvedCommits:
    def __init__(self, files_max: int = limits.OPEN_ROUND_FILES_MAX) -> None:
        self._files_max = files_max
        self._kept: dict[int, UnresolvedCommit] = {}

    def keep(self, brought: TopicCommit) -> None:
        """Where there is no room, it is written again instead."""
        self.drop(brought.table.topic_id)
        if sum(len(one.brought.files) for one in self._kept.values()) + len(brought.files) <= self._files_max:
            self._kept[brought.table.topic_id] = UnresolvedCommit(brought, brought.table.table.uuid)

    def drop(self, topic_id: int) -> None:
        self._kept.pop(topic_id, None)

    def due(self, epoch: int, is_halted: Callable[[int], bool]) -> list[UnresolvedCommit]:
        """Those of this epoch whose pause is over; those of others are let go."""
        self._kept = {topic_id: one for topic_id, one in self._kept.items() if one.brought.epoch == epoch}
        return [one for topic_id, one in self._kept.items() if not is_halted(topic_id)]
