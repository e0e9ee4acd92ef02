"""The short way for plain records: one section, one batch without numbers. Most of a log is that when its messages came
one by one, and a start goes through hundreds of thousands of them.

`take` does exactly what `add_record` and `LogState.apply` do for such a record, with nothing made on the way; any other
record, and one whose offsets do not go on where their shard stands, it leaves to them.
"""

from __future__ import annotations

from icestream.model.block import HEAD, NOT_NUMBERED
from icestream.model.shard import ShardKey
from icestream.wal import format as wire
from icestream.wal.index import FileIndex, ShardIndex
from icestream.wal.state import LogState, Shard


class FastReplay:
    def __init__(self, state: LogState, index: FileIndex, covered: int) -> None:
        self._state = state
        self._index = index
        self._covered = covered
        self._known: dict[tuple[int, int], tuple[Shard, ShardIndex]] = {}

    def take(self, data: bytes, position: int, lsn: int) -> bool:
        """Whether the good DATA record with one section at `position` was plain; then it is applied and indexed."""
        at = position - wire.RECORDS_START + wire.HEADER_BYTES
        entry = wire.ENTRY.unpack_from(data, at)
        topic_id, number, kind, _, _, epoch, base, time_us, rows, body_position, body_bytes, _, _ = entry
        if kind != wire.SectionKind.MESSAGES:
            return False
        head = HEAD.unpack_from(data, body_position - wire.RECORDS_START)
        if head[1] != body_bytes or head[2] != NOT_NUMBERED or head[6] != NOT_NUMBERED or head[0] != rows:
            return False
        known = self._known.get((topic_id, number)) or self._look_up(topic_id, number)
        if known is None:
            return False
        shard, held = known
        if lsn > self._covered:
            if base != shard.assigned:
                return False
            end = base + rows
            shard.assigned = shard.written = shard.synced = end
            if end > shard.reserved:
                shard.reserved = shard.reserve_pending = end
            shard.epoch, shard.append_time_us = epoch, time_us
            self._state.lsn = lsn
        if held.own_bytes >= held.point_due_bytes:
            self._index.add_point(held, base, position + wire.HEADER_BYTES)
        held.end_offset, held.epoch, held.append_time_us = base + rows, epoch, time_us
        if time_us > held.max_time_us:  # noqa: PLR1730 (a call to max costs more than the rest of the line)
            held.max_time_us = time_us
        held.own_bytes += body_bytes + wire.ENTRY_BYTES
        held.last_position = position + wire.HEADER_BYTES
        return True

    def _look_up(self, topic_id: int, number: int) -> tuple[Shard, ShardIndex] | None:
        """The shard and its part of the index, once the long way has met it in this file."""
        key = ShardKey(topic_id, number)
        held = self._index.shards.get(key)
        shard = self._state.shards.get(key)
        if held is None or shard is None:
            return None
        self._known[topic_id, number] = shard, held
        return shard, held
