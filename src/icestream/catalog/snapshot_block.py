"""The encoding of a block of snapshot marks in the metadata store. Pure.

    msgpack   [1, number, [row, …]]                the oldest mark first
    row       [snapshot id, time, {shard: end}]    time in ms and ends as differences from the row before, the first
                                                   from 0; a shard whose end has not changed is left out, and one
                                                   that is not there any more goes back to 0

A row of a topic with one shard is 17 bytes, half of them the id, which is random. Blocks are numbered from 0. The one
with the highest number is open; it is full with SNAPSHOT_MARKS_PER_BLOCK rows, or with SNAPSHOT_BLOCK_ENDS ends in all,
whichever comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark

VERSION: Final = 1
Row = tuple[int, int, dict[int, int]]


class MarkBlock(NamedTuple):
    """Marks of consecutive snapshots, as differences."""

    number: int = 0
    rows: tuple[Row, ...] = ()
    last: SnapshotMark = SnapshotMark(0, 0, {})  # the mark that the rows add up to

    @property
    def is_full(self) -> bool:
        return (
            len(self.rows) >= limits.SNAPSHOT_MARKS_PER_BLOCK
            or sum(len(ends) for _, _, ends in self.rows) >= limits.SNAPSHOT_BLOCK_ENDS
        )

    def plus(self, mark: SnapshotMark) -> MarkBlock:
        """Returns the block with one more mark, stored as differences from the last one."""
        # An end of 0 is stored as absence, so that equal marks have equal rows.
        mark = mark._replace(committed={shard: end for shard, end in mark.committed.items() if end})
        before, after = self.last.committed, mark.committed
        shards = sorted({*before, *after})
        ends = {
            changed: after.get(changed, 0) - before.get(changed, 0)
            for changed in shards
            if after.get(changed) != before.get(changed)
        }
        return MarkBlock(self.number, (*self.rows, (mark.snapshot_id, mark.time_ms - self.last.time_ms, ends)), mark)

    def marks(self) -> Iterator[SnapshotMark]:
        time_ms, committed = 0, dict[int, int]()
        for snapshot_id, passed_ms, ends in self.rows:
            time_ms += passed_ms
            for shard, more in ends.items():
                committed[shard] = committed.get(shard, 0) + more
            yield SnapshotMark(snapshot_id, time_ms, {shard: end for shard, end in committed.items() if end})


def add_marks(open_block: MarkBlock, marks: Iterable[SnapshotMark]) -> tuple[list[MarkBlock], MarkBlock]:
    """Adds marks; returns the blocks that became full, and the block that is open now."""
    full = []
    for mark in marks:
        open_block = open_block.plus(mark)
        if open_block.is_full:
            full.append(open_block)
            open_block = MarkBlock(open_block.number + 1)
    return full, open_block


def encode(block: MarkBlock) -> bytes:
    return msgspec.msgpack.encode((VERSION, block.number, block.rows))


def may_hold(value: bytes, snapshot_id: int) -> bool:
    """False if the block has no mark of that snapshot. Searches for the bytes of the id: a rare false positive is
    decoded in vain."""
    return msgspec.msgpack.encode(snapshot_id) in value


_decoder: Final = msgspec.msgpack.Decoder(tuple[int, int, tuple[Row, ...]])


def decode(key: str, value: bytes) -> MarkBlock:
    """Raises MetadataDamaged for a value that `encode` does not produce."""
    try:
        version, number, rows = _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(key, str(error)) from None
    if version != VERSION or not 0 <= number <= limits.METADATA_COUNTER_MAX:
        raise _damaged(key, f"version {version}, number {number}")
    if len(rows) > limits.SNAPSHOT_MARKS_PER_BLOCK:
        raise _damaged(key, f"{len(rows)} marks")
    block = MarkBlock(number, rows)
    for mark in block.marks():
        if not _is_sound(mark):
            raise _damaged(key, f"of snapshot {mark.snapshot_id}")
        block = block._replace(last=mark)
    return block


def _is_sound(mark: SnapshotMark) -> bool:
    """True if the values of a decoded mark are within their bounds."""
    return (
        0 <= mark.time_ms <= limits.METADATA_TIME_MS_MAX
        and -(2**63) <= mark.snapshot_id < 2**63
        and all(
            0 <= shard < limits.SHARDS_PER_TOPIC_MAX and 0 <= end <= limits.OFFSET_MAX
            for shard, end in mark.committed.items()
        )
    )


def _damaged(key: str, reason: str) -> errors.MetadataDamaged:
    return errors.MetadataDamaged(
        f"{key} in the metadata store is not a block of snapshot marks: {reason}",
        hint="delete it: subscriptions that start at one of these snapshots start at a time or an offset instead",
    )
