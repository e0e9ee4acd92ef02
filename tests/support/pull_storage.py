"""A storage without a streaming API: it can be asked for rows and for its end, and tells nothing by itself (R10).

`read_hot` has nothing, so every row is pulled with `read`. Followers hear of new rows only from a task that looks at
the end of each shard, as an adapter of an external store would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from icestream.broker.memory_storage import MemoryShard, MemoryStorage
from icestream.broker.storage import ShardRead
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.wal.tail import SectionRead


class PullShard(MemoryShard):
    """A shard that is only pulled. `reads`: how often, for tests."""

    def __init__(self, topic: TopicIdentity, number: int) -> None:
        super().__init__(topic, number)
        self.reads = 0
        self._waiting: list[Callable[[], None]] = []
        self._announced = 0

    def read_hot(self, offset: int, bytes_max: int) -> list[SectionRead]:
        return []

    async def read(self, offset: int, bytes_max: int, *, cache: bool = False) -> ShardRead:
        self.reads += 1
        await asyncio.sleep(0)  # a request takes a while
        sections = super().read_hot(offset, bytes_max)
        return ShardRead(sections, [], sections[-1].base_offset + sections[-1].rows if sections else offset)

    def follow(self, on_visible: Callable[[], None]) -> None:
        self._waiting.append(on_visible)

    def unfollow(self, on_visible: Callable[[], None]) -> None:
        self._waiting.remove(on_visible)

    def look(self) -> None:
        """Tells followers if there are more rows than at the last look."""
        if self.visible > self._announced:
            self._announced = self.visible
            for on_visible in list(self._waiting):
                on_visible()


class PullStorage(MemoryStorage):
    """The storage of these shards."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pulled: dict[ShardKey, PullShard] = {}
        self._tasks.start(self._look(), "looks at the ends of shards")

    def declare_topic(self, topic: TopicIdentity, shards: int) -> None:
        for number in range(shards):
            shard = self.pulled.setdefault(ShardKey(topic.id, number), PullShard(topic, number))
            self._shards.setdefault(shard.key, shard)

    async def _look(self) -> None:
        while True:
            for shard in list(self.pulled.values()):
                shard.look()
            await asyncio.sleep(0)

    @property
    def stored_shards(self) -> Sequence[PullShard]:
        """Those that have rows."""
        return [shard for shard in self.pulled.values() if shard.visible]
