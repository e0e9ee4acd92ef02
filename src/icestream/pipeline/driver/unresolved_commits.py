"""Commits without a known outcome: their files are kept, and sent again instead of being written again.

    --the catalog cannot tell the outcome-->    kept
    kept  --after a pause-->                    the table is reloaded, and the same files are sent again
    kept  --the table went on, was replaced, or its schema changed too much-->    dropped: the topic is planned again
    kept  --the driver has another epoch-->                                       dropped: its files may be removed

Pure. No part of the log is held for them: committed offsets move after a commit, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from icestream import limits
from icestream.pipeline.commit import schema_compat
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.tables.topic_table import TopicTable


class UnresolvedCommit(NamedTuple):
    """A commit whose files may still be committed."""

    commit: TopicCommit
    table_uuid: str | None  # of the table whose folder has the files

    def obstacle(self, table: TopicTable) -> str:
        """Returns why the commit cannot be sent again to the table as it is now; empty if it can."""
        if table.table.uuid != self.table_uuid:
            return "the topic has another table"
        if any(table.next_offsets.get(claim.shard) != claim.start for claim in self.commit.claims):
            return "other commits have advanced the table"
        return schema_compat.incompatibility(table.table, self.commit.files)


class UnresolvedCommits:
    """Unresolved commits, at most one of each topic."""

    def __init__(self, files_max: int = limits.OPEN_ROUND_FILES_MAX) -> None:
        """`files_max`: of all commits together; what exceeds it is written again instead."""
        self._files_max = files_max
        self._by_topic: dict[int, UnresolvedCommit] = {}

    def add(self, commit: TopicCommit) -> None:
        """Keeps a commit without a known outcome, instead of an earlier one of the same topic."""
        self.drop(commit.table.topic_id)
        files = sum(len(unresolved.commit.files) for unresolved in self._by_topic.values())
        if files + len(commit.files) <= self._files_max:
            self._by_topic[commit.table.topic_id] = UnresolvedCommit(commit, commit.table.table.uuid)

    def drop(self, topic_id: int) -> None:
        self._by_topic.pop(topic_id, None)

    def due(self, epoch: int, is_halted: Callable[[int], bool]) -> list[UnresolvedCommit]:
        """Returns those of this epoch whose pause is over, and drops those of other epochs."""
        # A commit of an earlier epoch is refused for ever, and the clean-up may have removed its files.
        self._by_topic = {
            topic_id: unresolved for topic_id, unresolved in self._by_topic.items() if unresolved.commit.epoch == epoch
        }
        return [unresolved for topic_id, unresolved in self._by_topic.items() if not is_halted(topic_id)]
