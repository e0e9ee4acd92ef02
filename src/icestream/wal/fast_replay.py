"""The fast path of replay for simple records: one section with one batch without sequence numbers.

Most records of a log are like that if its messages came one by one, and a start replays hundreds of thousands of them.
`FastReplay.apply` has the same effect as `add_record` and `LogState.apply` for such a record, without building objects
in between. It leaves every other record to them, also one whose offsets do not continue its shard.
"""

from __future__ import annotations

from icestream.model.block import HEAD, NOT_NUMBERED
from icestream.model.shard import ShardKey
from icestream.wal import format as wire
from icestream.wal.index import FileIndex, ShardIndex
from icestream.wal.state import LogState, Shard


class FastReplay:
    """`covered`: records up to this LSN are in the checkpoint already; they are indexed but not applied."""

    def __init__(self, state: LogState, index: FileIndex, covered: int) -> None:
        self._state = state
        self._index = index
        self._covered = covered
        self._shards: dict[tuple[int, int], tuple[Shard, ShardIndex]] = {}

    def apply(self, data: bytes, position: int, lsn: int) -> bool:
        """Applies and indexes the good DATA record with one section at `position`; False if it is not simple."""
        at = position - wire.RECORDS_START + wire.HEADER_BYTES
        entry = wire.ENTRY.unpack_from(data, at)
        topic_id, number, kind, _, _, epoch, base, time_us, rows, body_position, body_bytes, _, _ = entry
        if kind != wire.SectionKind.MESSAGES:
            return False
        head = HEAD.unpack_from(data, body_position - wire.RECORDS_START)
        if head[1] != body_bytes or head[2] != NOT_NUMBERED or head[6] != NOT_NUMBERED or head[0] != rows:
            return False
        shard_and_index = self._shards.get((topic_id, number)) or self._look_up(topic_id, number)
        if shard_and_index is None:
            return False
        shard, shard_index = shard_and_index
        if lsn > self._covered:
            if base != shard.assigned:
                return False
            end = base + rows
            shard.assigned = shard.written = shard.synced = end
            if end > shard.reserved:
                shard.reserved = shard.reserve_pending = end
            shard.epoch, shard.append_time_us = epoch, time_us
            self._state.lsn = lsn
        if shard_index.own_bytes >= shard_index.point_due_bytes:
            self._index.add_point(shard_index, base, position + wire.HEADER_BYTES)
        shard_index.end_offset, shard_index.epoch, shard_index.append_time_us = base + rows, epoch, time_us
        if time_us > shard_index.max_time_us:  # noqa: PLR1730 (a call to max costs more than the rest of the line)
            shard_index.max_time_us = time_us
        shard_index.own_bytes += body_bytes + wire.ENTRY_BYTES
        shard_index.last_position = position + wire.HEADER_BYTES
        return True

    def _look_up(self, topic_id: int, number: int) -> tuple[Shard, ShardIndex] | None:
        """The shard and its part of the index; None until the slow path has met the shard in this file."""
        key = ShardKey(topic_id, number)
        shard_index = self._index.shards.get(key)
        shard = self._state.shards.get(key)
        if shard_index is None or shard is None:
            return None
        self._shards[topic_id, number] = shard, shard_index
        return shard, shard_index
