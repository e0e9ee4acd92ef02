"""Decides what is spilled, and when. Pure: spill_job.py performs it (hazard 8, docs/adr/0034).

A shard is stuck when its floor has not moved for a while although the log has held messages of it all that time. Under
pressure (more than half of the quota, or more files than a round should have to read) the oldest log files that only
stuck shards need are freed, after their messages are copied to spill files. It must pay: at least a quarter of the
files' bytes must become free. If everything is stuck, because the catalog or the pipeline is unavailable, it does not
pay and nothing is copied. Spilled messages are not copied again, however long their topic stays stuck.

Apart from spill_job.py so that the rule is tested on plain values, without files or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.wal.file_summary import FileSummary, ShardRange

Ends = dict[ShardKey, int]  # the offset up to which each shard is to be spilled


def is_pressed(held_bytes: int, held_files: int, quota_bytes: int) -> bool:
    """Whether the log holds so many bytes or files that spilling is worthwhile."""
    return held_bytes > limits.SPILL_QUOTA_SHARE * quota_bytes or held_files > limits.SPILL_HELD_FILES_MAX


def to_spill(
    files: Sequence[FileSummary],
    floor_of: Callable[[ShardKey], int],
    is_stuck: Callable[[ShardKey, FileSummary], bool],
    bytes_max: int = limits.SPILL_STEP_BYTES,
) -> Ends:
    """Up to where each shard is to be spilled; empty if it does not pay.

    Goes through the files, oldest first, and takes as many as can be freed by copying at most `bytes_max`, at least the
    fewest that pay. `floor_of`: the offset of a shard below which log files need not keep it.
    """
    ends: Ends = {}
    worthwhile_ends: Ends = {}
    copied_bytes = freed_bytes = 0
    for file in files:
        live_ranges = [(key, file_range) for key, file_range in file.ranges() if file_range.end > floor_of(key)]
        if not live_ranges and not ends:
            continue  # freed without a copy
        # Files are freed strictly from the oldest on. A file that a healthy topic needs stays, so copying anything
        # behind it would free nothing.
        if not all(is_stuck(key, file) for key, _ in live_ranges):
            break
        copied_bytes += sum(_live_bytes(file_range, floor_of(key)) for key, file_range in live_ranges)
        freed_bytes += file.size
        ends.update((key, file_range.end) for key, file_range in live_ranges)
        # The bound counts only once it pays: a step that stopped before would copy bytes and free nothing.
        if worthwhile_ends and copied_bytes > bytes_max:
            break
        if freed_bytes - copied_bytes >= limits.SPILL_GAIN_SHARE * freed_bytes:
            worthwhile_ends = dict(ends)
    return worthwhile_ends


def _live_bytes(file_range: ShardRange, floor: int) -> int:
    """About how many bytes of the range lie above the floor."""
    live_rows = file_range.end - max(file_range.first, floor)
    return file_range.own_bytes * live_rows // (file_range.end - file_range.first)
