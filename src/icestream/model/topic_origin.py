"""Which topic another one was restored from. Offsets below its ends are messages of both (ADR 124)."""

from __future__ import annotations

import msgspec


class TopicOrigin(msgspec.Struct, frozen=True):
    """A topic of a backup, by the log that had it: ids of topics mean something within one metadata store. `ends`: of
    the shards of the restored topic; what either of the two published behind them is its own."""

    log_id: str
    topic_id: int
    ends: dict[int, int]
