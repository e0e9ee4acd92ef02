"""How each offset gets into its table once: by our own catalog, or by what we compare ourselves.

OwnBooks       the catalog is ours: the commit claims its offsets, and the catalog lets each in once (hazard 14)
ForeignBooks   any other: the snapshot says how far the table has come, and so does a mirror in our metadata store.
               Before each attempt and after each answer that says too little, both and the bounds of the files are
               compared (hazards 13, 21)
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from icestream.catalog.topic_rules.claim import CLAIM_TYPE
from icestream.catalog.topic_rules.operation_preview import ShardLog
from icestream.iceberg.values import Object
from icestream.model.backlog_messages import TopicBacklog
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.round_judgement import OffsetClaim
from icestream.pipeline.tables.topic_table import TopicTable


class TopicCommit(NamedTuple):
    """What a round brings to one table."""

    table: TopicTable
    round_id: bytes
    epoch: int  # of the pipeline
    claims: Sequence[OffsetClaim]
    files: Sequence[WrittenFile]
    snapshot_id: int

    @property
    def ends(self) -> dict[int, int]:
        return {one.shard: one.end for one in self.claims}

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class OffsetLedger(Protocol):
    @property
    def is_own(self) -> bool:
        """Our own catalog: all tables of a round go in one request."""

    async def open(self, topic: TopicBacklog) -> TopicTable:
        """The table of a topic, made where it has none. Raises TopicTable where somebody must decide."""

    async def make_all(self, topics: Sequence[TopicBacklog]) -> dict[int, TopicTable]:
        """Tables of topics that have none, as far as many can be made at once; the others are opened one by one, which
        says what is wrong with them."""

    async def look(self, known: TopicTable) -> TopicTable:
        """The same, as it is now. Raises TopicTable where table and topic do not agree any more."""

    async def widen(self, known: TopicTable, topic: TopicBacklog) -> TopicTable:
        """The topic has shards that the table does not know yet."""

    async def undo(self, table: TopicTable, snapshot_id: int, shards: Mapping[int, ShardLog]) -> None:
        """Takes back a commit whose files are gone: main goes to the parent of `snapshot_id`, which must be main. The
        table must be looked at again. `shards`: what the log has. Raises CommitConflict or TopicTable where that cannot
        be."""

    def requirements(self, brought: TopicCommit) -> list[Object]:
        """What a commit requires beyond what every commit does."""

    def summary(self, brought: TopicCommit) -> Mapping[str, str]:
        """What its snapshot says."""

    async def note(self, done: Sequence[TopicCommit]) -> Collection[int]:
        """These are in their tables. Returns the topics whose rows do not count, because an operator gave the topic
        another table or another position meanwhile: their messages stay in the log."""


def claim(brought: TopicCommit) -> Object:
    return {
        "type": CLAIM_TYPE,
        "topic-id": brought.table.topic_id,
        "round-id": str(uuid.UUID(bytes=brought.round_id)),
        "pipeline-epoch": brought.epoch,
        "ranges": [
            {"shard": one.shard, "epoch": one.epoch, "start": one.start, "end": one.end} for one in brought.claims
        ],
    }
