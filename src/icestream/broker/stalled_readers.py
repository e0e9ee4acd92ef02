"""The readers of a broker that are stalled: shards of subscriptions that cannot read their next messages now.

Metrics and `verify` show them; consumers and readiness are informed by the delivery itself (stall.py,
delivery_health.py). All of them are counted, at most STALLED_READERS_NAMED_MAX of a topic are named. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from icestream import errors, limits
from icestream.model.shard import ShardKey
from icestream.observability import metrics

OS_ERROR = "os_error"  # the code of errors from outside our own error tree


class StalledReader(NamedTuple):
    """One stalled reader, and the error of its last read."""

    name: str  # topic:subscription:shard
    key: ShardKey
    offset: int
    code: str
    reason: str
    is_transient: bool  # a retry may succeed without intervention


class StalledReaders:
    """The stalled readers of a broker, by name."""

    def __init__(self) -> None:
        self._readers: dict[str, StalledReader] = {}

    def begin(self, name: str, key: ShardKey, offset: int, error: Exception) -> None:
        """Records a stalled reader, or the present error of one that is recorded already."""
        if isinstance(error, errors.IcestreamError):
            code, reason, is_transient = error.code, error.message, error.retryable
        else:
            code, reason, is_transient = OS_ERROR, str(error), True
        self._readers[name] = StalledReader(name, key, offset, code, reason, is_transient)
        self._update_metric()

    def end(self, name: str) -> None:
        """Removes a reader; does nothing if it is not stalled."""
        if self._readers.pop(name, None) is not None:
            self._update_metric()

    def of_topic(self, topic_id: int) -> list[StalledReader]:
        """At most STALLED_READERS_NAMED_MAX of a topic, in the order of their names."""
        readers = [reader for reader in self._readers.values() if reader.key.topic_id == topic_id]
        return sorted(readers)[: limits.STALLED_READERS_NAMED_MAX]

    def __len__(self) -> int:
        return len(self._readers)

    def _update_metric(self) -> None:
        metrics.STALLED_READERS.values = dict(Counter(reader.code for reader in self._readers.values()))
