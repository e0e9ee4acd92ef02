"""What a transaction writes down of snapshots that go with it, or that it makes where others let them go. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from icestream import limits
from icestream.catalog import keys, snapshot_block
from icestream.catalog.snapshot_block import Block
from icestream.catalog.topic.snapshot_mark import Mark
from icestream.metadata import command as cmd


class Known(NamedTuple):
    """The open block of a topic as it was read."""

    block: Block
    revision: int  # 0: it is not there


class Added(NamedTuple):
    """What the transaction compares and does, and what is open when it is done."""

    compare: list[cmd.Compare]
    then: list[cmd.Operation]
    open_block: Block


def adding(topic_id: int, known: Known, marks: Iterable[Mark]) -> Added:
    full, open_block = snapshot_block.added(known.block, marks)
    key = keys.open_marks_key(topic_id)
    compare: cmd.Compare = cmd.AtRevision(key, known.revision) if known.revision else cmd.Absent(key)
    then: list[cmd.Operation] = [
        cmd.Put(keys.marks_key(topic_id, one.number), snapshot_block.encode(one))
        for one in full[-limits.SNAPSHOT_BLOCKS_MAX :]
    ]
    return Added([compare], [*then, cmd.Put(key, snapshot_block.encode(open_block))], open_block)
