"""Retention of a topic in the log: which messages are dropped. Pure: retention_job.py performs it.

A topic without retention keeps everything until it is durable elsewhere, and appends are refused at its quota. With
retention the log drops the oldest messages, in slices of one log file, and declares a gap in their place (hazard 33):

by size    as long as the rest of the topic is still at least `bytes_max`
by count   the same with the messages of the topic, `messages_max`
by age     if every message of the slice is older than `age_max_us`

Time comes from a clock that may be wrong (hazard 32), and dropped messages never come back. So the age is measured by a
clock that runs no faster than the monotonic clock, and one step drops at most a share of the topic's bytes by age: an
operator that notices a wrong date still has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from icestream.model.shard import ShardKey
from icestream.wal.file_summary import ShardRange

REASON: Final = "dropped by retention"
FileSlice = Mapping[ShardKey, ShardRange]  # the messages of one topic in one sealed file


class Retention(NamedTuple):
    """How much a topic keeps in the log, over all its shards; 0 means no bound."""

    bytes_max: int = 0
    age_max_us: int = 0
    messages_max: int = 0


def to_drop(
    retention: Retention,
    held_bytes: int,
    slices: Iterable[FileSlice],
    now_us: int,
    share: float,
    held_messages: int = 0,
) -> list[FileSlice]:
    """The slices to drop now, from the oldest on.

    `slices`: the topic's messages in sealed files, oldest first. `held_bytes`, `held_messages`: of the topic in
    the log, unsealed files included. `share`: the part of `held_bytes` that one step may drop by age; one slice always
    may.
    """
    dropped: list[FileSlice] = []
    remaining_bytes, remaining_messages, bytes_by_age = held_bytes, held_messages, 0
    for file_slice in slices:
        size = sum(file_range.own_bytes for file_range in file_slice.values())
        messages = sum(file_range.end - file_range.first for file_range in file_slice.values())
        # One slice always may: a topic with one file larger than the share would otherwise never drop anything.
        is_within_share = not bytes_by_age or bytes_by_age + size <= share * held_bytes
        is_beyond_bytes = retention.bytes_max and remaining_bytes - size >= retention.bytes_max
        is_beyond_count = retention.messages_max and remaining_messages - messages >= retention.messages_max
        # By size without a share: bytes and counts do not depend on a clock.
        if is_beyond_bytes or is_beyond_count:
            pass
        elif _is_expired(retention, file_slice, now_us) and is_within_share:
            bytes_by_age += size
        else:
            break
        remaining_bytes, remaining_messages = remaining_bytes - size, remaining_messages - messages
        dropped.append(file_slice)
    return dropped


def _is_expired(retention: Retention, file_slice: FileSlice, now_us: int) -> bool:
    newest_us = max(file_range.max_time_us for file_range in file_slice.values())
    return bool(retention.age_max_us) and newest_us < now_us - retention.age_max_us
