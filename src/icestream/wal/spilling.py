"""What is spilled, and when. Pure: spiller.py carries it out (hazard 8, docs/adr/0034).

A shard is stuck when its floor has not moved for a while, although the log holds something of it for as long. Under
pressure (more than half of the quota, or more files than a round should have to look through) the oldest log files that
only stuck shards hold are let go: what those have in them is copied first. That must pay: a quarter of what the files
take becomes free. Where everything is stuck, because the catalog or the pipeline is away, it does not, and nothing is
copied; nor is what was spilled once, however long its topic stays stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.wal.summary import FileSummary, Range

Ends = dict[ShardKey, int]  # up to which offset each shard is spilled


def is_pressed(held_bytes: int, held_files: int, quota_bytes: int) -> bool:
    return held_bytes > limits.SPILL_QUOTA_SHARE * quota_bytes or held_files > limits.SPILL_HELD_FILES_MAX


def to_spill(
    files: Sequence[FileSummary],
    floor_of: Callable[[ShardKey], int],
    is_stuck: Callable[[ShardKey, FileSummary], bool],
    bytes_max: int = limits.SPILL_STEP_BYTES,
) -> Ends:
    """Of the files, the oldest first: as many as can be let go for at most `bytes_max` of copies, or as few as pay.
    `floor_of`: what a log file need not hold. Nothing where it does not pay."""
    ends: Ends = {}
    chosen: Ends = {}
    copied = freed = 0
    for file in files:
        held = [(key, one) for key, one in file.ranges() if one.end > floor_of(key)]
        if not held and not ends:
            continue  # it goes by itself
        if not all(is_stuck(key, file) for key, _ in held):
            break
        copied += sum(_live_bytes(one, floor_of(key)) for key, one in held)
        freed += file.size
        ends.update((key, one.end) for key, one in held)
        if chosen and copied > bytes_max:
            break
        if freed - copied >= limits.SPILL_GAIN_SHARE * freed:
            chosen = dict(ends)
    return chosen


def _live_bytes(held: Range, floor: int) -> int:
    return held.own_bytes * (held.end - max(held.first, floor)) // (held.end - held.first)
