"""Keeps the broker's committed offsets in line with the tables: by what the catalog answered, never from memory.

    the table is ahead     a driver ended between commit and advance, or the broker was away: the committed offset
                           goes up
    the broker is ahead    an operator rewound the table, or created it anew (hazard 21): the committed offset goes down
                           as far as the log still has the messages, which are then written again. Messages that the log
                           has no longer halt the topic: they are given up only by an operator's decision
    either                 the table is reloaded before anything is done about it

Each request to the broker names the backlog that it was derived from: the broker ignores it for a shard that was
reopened since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from icestream.model.backlog_messages import Backlog
from icestream.pipeline import offset_gaps
from icestream.pipeline.driver.broker_api import BrokerApi
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.tables.topic_table import TopicTable

Positions = list[tuple[int, int, int]]  # topic id, shard, offset
VerifyFiles = Callable[[Backlog, Sequence[TopicTable], Positions], Awaitable[Positions]]


class OffsetDivergence(NamedTuple):
    """Shards whose committed offset in the broker differs from their table, with the offset of the table."""

    broker_behind: Positions
    broker_ahead: Positions

    @property
    def topic_ids(self) -> set[int]:
        return {topic_id for topic_id, _, _ in (*self.broker_behind, *self.broker_ahead)}


def find_divergence(backlog: Backlog, positions: Mapping[int, Mapping[int, int]]) -> OffsetDivergence:
    """Compares the topics that have positions. Pure.

    A table that is ahead of the synced offset counts up to there. A broker that is ahead by a declared gap alone is
    right: retention moved it. The broker never steps over a gap before the table has: it follows the table.
    """
    divergence = OffsetDivergence([], [])
    for topic in backlog.topics:
        next_offsets = positions.get(topic.topic_id, {})
        for shard in topic.shards:
            next_offset = min(next_offsets.get(shard.shard, shard.committed), shard.synced)
            if next_offset > shard.committed:
                divergence.broker_behind.append((topic.topic_id, shard.shard, next_offset))
            elif (past_gap := offset_gaps.past(shard.gaps, next_offset)) < shard.committed:
                divergence.broker_ahead.append((topic.topic_id, shard.shard, past_gap))
    return divergence


class OffsetSync:
    """Compares broker and tables before a round, and advances the broker after it."""

    def __init__(self, broker: BrokerApi, tables: TopicTableSet, effects: Effects, verify_files: VerifyFiles) -> None:
        """`verify_files`: returns the positions, of tables that another driver wrote, whose files exist."""
        self._broker = broker
        self._verify_files = verify_files
        self._tables = tables
        self._effects = effects
        self._reopenings = 0  # of the backlog that the round is planned from

    async def align(self, backlog: Backlog) -> tuple[Backlog, list[TopicTable]]:
        """Brings broker and tables in line, as far as possible. Returns the backlog as it is then, and the tables."""
        tables, divergence = await self._compare(backlog)
        if divergence.broker_ahead:
            with self._effects.happens(Effect.ADVANCE):
                await self._broker.reopen(divergence.broker_ahead)
            with self._effects.happens(Effect.ASK):
                # The reopened messages are backlog again: the round is planned from a backlog that contains them.
                backlog = await self._broker.backlog(0, self._tables.halted_ids())
            tables, divergence = await self._compare(backlog)
        self._reopenings = backlog.reopenings
        if divergence.broker_behind:
            # The driver that committed this may have ended before it verified its files: that is done here instead.
            with self._effects.happens(Effect.LOOK_AGAIN):
                verified = await self._verify_files(backlog, tables, divergence.broker_behind)
            await self.advance(verified)
            if len(verified) < len(divergence.broker_behind):
                tables = await self._tables.open_all(backlog.topics)
        return backlog, tables

    async def _compare(self, backlog: Backlog) -> tuple[list[TopicTable], OffsetDivergence]:
        """Opens the tables and compares them with the broker; tables that differ are reloaded and compared again."""
        tables = await self._tables.open_all(backlog.topics)
        divergence = find_divergence(backlog, self._tables.positions(tables))
        if divergence.topic_ids:
            # The positions in memory may be older than the tables. Only a table that was loaded now proves a
            # divergence, and moving committed offsets down must never follow from an outdated one.
            self._tables.mark_stale(divergence.topic_ids)
            tables = await self._tables.open_all(backlog.topics)
            divergence = find_divergence(backlog, self._tables.positions(tables))
        return tables, divergence

    async def advance(self, positions: Sequence[tuple[int, int, int]]) -> None:
        """Moves the broker's committed offsets up to these positions."""
        if positions:
            with self._effects.happens(Effect.ADVANCE):
                await self._broker.advance(positions, self._reopenings)
