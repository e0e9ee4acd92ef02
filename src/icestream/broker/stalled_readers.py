"""The readers of a broker that cannot go on: shards of subscriptions whose next messages cannot be read now.

It is what metrics and `verify` show; consumers and readiness are told by the delivery itself (stall.py,
delivery_health.py). All of them are counted, STALLED_READERS_NAMED_MAX of a topic are named. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from icestream import errors, limits
from icestream.model.shard import ShardKey
from icestream.observability import metrics

OTHER = "os_error"  # the code of what is no error of ours


class StalledReader(NamedTuple):
    name: str  # topic:subscription:shard
    key: ShardKey
    offset: int
    code: str
    reason: str
    is_transient: bool  # a retry may succeed without anybody's help


class StalledReaders:
    def __init__(self) -> None:
        self._readers: dict[str, StalledReader] = {}

    def begin(self, name: str, key: ShardKey, offset: int, error: Exception) -> None:
        """Notes a reader, or what it is stalled by now."""
        is_own = isinstance(error, errors.IcestreamError)
        code = error.code if isinstance(error, errors.IcestreamError) else OTHER
        reason = error.message if isinstance(error, errors.IcestreamError) else str(error)
        is_transient = not is_own or (isinstance(error, errors.IcestreamError) and error.retryable)
        self._readers[name] = StalledReader(name, key, offset, code, reason, is_transient)
        self._count()

    def end(self, name: str) -> None:
        """Does nothing when that reader is not stalled."""
        if self._readers.pop(name, None) is not None:
            self._count()

    def of_topic(self, topic_id: int) -> list[StalledReader]:
        """At most STALLED_READERS_NAMED_MAX, in the order of their names."""
        found = [reader for reader in self._readers.values() if reader.key.topic_id == topic_id]
        return sorted(found)[: limits.STALLED_READERS_NAMED_MAX]

    def __len__(self) -> int:
        return len(self._readers)

    def _count(self) -> None:
        metrics.STALLED_READERS.values = dict(Counter(reader.code for reader in self._readers.values()))
