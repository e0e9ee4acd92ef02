"""What a transaction writes down of snapshots that go with it, or that it makes where others let them go. Pure."""

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
    revision: int  # 0: it is not there


class MarkWrites(NamedTuple):
    """What the transaction compares and does, and what is open when it is done."""

    compare: list[cmd.Compare]
    then: list[cmd.Operation]
    open_block: MarkBlock


def plan_marks(topic_id: int, known: OpenBlock, marks: Iterable[SnapshotMark]) -> MarkWrites:
    full, open_block = snapshot_block.add_marks(known.block, marks)
    key = catalog_keys.open_marks_key(topic_id)
    compare: cmd.Compare = cmd.AtRevision(key, known.revision) if known.revision else cmd.Absent(key)
    then: list[cmd.Operation] = [
        cmd.Put(catalog_keys.marks_key(topic_id, one.number), snapshot_block.encode(one))
        for one in full[-limits.SNAPSHOT_BLOCKS_MAX :]
    ]
    return MarkWrites([compare], [*then, cmd.Put(key, snapshot_block.encode(open_block))], open_block)
