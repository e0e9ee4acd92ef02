"""Plans what a transaction records about snapshots: the marks of those it removes, or adds in another catalog. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from icestream import limits
from icestream.catalog import catalog_keys, snapshot_block
from icestream.catalog.snapshot_block import MarkBlock
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.metadata import command as cmd


class OpenBlock(NamedTuple):
    """The open block of a topic as it was read."""

    block: MarkBlock
    revision: int  # 0: it does not exist yet


class MarkWrites(NamedTuple):
    """The part of a transaction that records marks, and the block that is open once it is applied."""

    comparisons: list[cmd.Compare]
    operations: list[cmd.Operation]
    open_block: MarkBlock


def plan_marks(topic_id: int, open_block: OpenBlock, marks: Iterable[SnapshotMark]) -> MarkWrites:
    """Plans to add marks to the open block of a topic, and to write the blocks that this fills."""
    full_blocks, new_block = snapshot_block.add_marks(open_block.block, marks)
    key = catalog_keys.open_marks_key(topic_id)
    comparison: cmd.Compare = cmd.AtRevision(key, open_block.revision) if open_block.revision else cmd.Absent(key)
    operations: list[cmd.Operation] = [
        cmd.Put(catalog_keys.marks_key(topic_id, block.number), snapshot_block.encode(block))
        for block in full_blocks[-limits.SNAPSHOT_BLOCKS_MAX :]  # older ones would be overwritten at once
    ]
    return MarkWrites([comparison], [*operations, cmd.Put(key, snapshot_block.encode(new_block))], new_block)
