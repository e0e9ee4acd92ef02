"""The broker's floors follow the tables: by what the catalog answered, never by what a driver remembers.

    the table is ahead    a driver ended between commit and advance, or the broker was away: the floor goes up
    the floor is ahead    an operator rewound the table, or made it anew (hazard 21): the floor goes down as far as the
                          log still has it, and that is written again. What the log has no longer stops the topic: it is
                          lost only on somebody's word
    either                the table is looked at again before anything is done about it

A word to the broker names the backlog that it was known by: when the shard went back since, it counts for nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from icestream.model.backlog_messages import Backlog
from icestream.pipeline import offset_gaps
from icestream.pipeline.driver.broker_api import BrokerApi
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.topic_tables import TopicTables
from icestream.pipeline.tables.topic_table import TopicTable

Positions = list[tuple[int, int, int]]  # topic, shard, offset
Passable = Callable[[Backlog, Sequence[TopicTable], Positions], Awaitable[Positions]]


class OffsetDivergence(NamedTuple):
    """Where floors and tables disagree, by what the tables say."""

    behind: Positions
    ahead: Positions

    @property
    def topics(self) -> set[int]:
        return {topic_id for topic_id, _, _ in (*self.behind, *self.ahead)}


def find_divergence(backlog: Backlog, positions: Mapping[int, Mapping[int, int]]) -> OffsetDivergence:
    """Of the topics with positions. A table that is ahead of what is synced counts up to there. A floor that is ahead
    by a gap alone is where it should be: a retention takes it there. By a table that ends before a gap no floor goes
    over it: it goes when the table does."""
    found = OffsetDivergence([], [])
    for topic in backlog.topics:
        ends = positions.get(topic.topic_id, {})
        for shard in topic.shards:
            end = min(ends.get(shard.shard, shard.committed), shard.synced)
            if end > shard.committed:
                found.behind.append((topic.topic_id, shard.shard, end))
            elif (goes_on := offset_gaps.past(shard.gaps, end)) < shard.committed:
                found.ahead.append((topic.topic_id, shard.shard, goes_on))
    return found


class OffsetSync:
    def __init__(self, broker: BrokerApi, topics: TopicTables, effects: Effects, passable: Passable) -> None:
        """`passable`: which positions of tables that another driver wrote a floor may follow (commits.py)."""
        self._broker = broker
        self._passable = passable
        self._topics = topics
        self._effects = effects
        self._reopenings = 0  # of the backlog that the round is planned by

    async def settled(self, backlog: Backlog) -> tuple[Backlog, list[TopicTable]]:
        """The backlog as it is when its floors agree with the tables, as far as they can; and the tables."""
        tables, found = await self._looked_at(backlog)
        if found.ahead:
            with self._effects.happens(Effect.ADVANCE):
                await self._broker.reopen(found.ahead)
            with self._effects.happens(Effect.ASK):
                backlog = await self._broker.backlog(0, 0, self._topics.standing())
            tables, found = await self._looked_at(backlog)
        self._reopenings = backlog.reopenings
        if found.behind:
            with self._effects.happens(Effect.LOOK_AGAIN):
                behind = await self._passable(backlog, tables, found.behind)
            await self.advance(behind)
            if len(behind) < len(found.behind):
                tables = await self._topics.ready(backlog.topics)
        return backlog, tables

    async def _looked_at(self, backlog: Backlog) -> tuple[list[TopicTable], OffsetDivergence]:
        tables = await self._topics.ready(backlog.topics)
        found = find_divergence(backlog, self._topics.positions(tables))
        if found.topics:
            self._topics.doubt(found.topics)
            tables = await self._topics.ready(backlog.topics)
            found = find_divergence(backlog, self._topics.positions(tables))
        return tables, found

    async def advance(self, positions: Sequence[tuple[int, int, int]]) -> None:
        if positions:
            with self._effects.happens(Effect.ADVANCE):
                await self._broker.advance(positions, self._reopenings)
