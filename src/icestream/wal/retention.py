"""How much of a topic the log may forget by itself, and which part that is. Pure: retainer.py carries it out.

A topic without a retention keeps everything until it is durable elsewhere, and is refused at its quota. With one, the
log drops the oldest part, in stretches of a whole log file, and declares a gap in its place (hazard 33):

by size    while what is left of the topic is still as much as it may keep
by age     when everything in the stretch is older than it may be

Time comes from a clock that may be wrong (hazard 32), and what is dropped never comes back. So the age is measured by a
time that runs no faster than the monotonic clock does, and one step drops at most a share of the topic's bytes by age:
who notices a wrong date still has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from icestream.model.shard import ShardKey
from icestream.wal.summary import Range

REASON: Final = "dropped by retention"
Stretch = Mapping[ShardKey, Range]  # what one sealed file holds of the topic


class Retention(NamedTuple):
    """What a topic may keep in the log, over all its shards; 0 is no bound."""

    bytes_max: int = 0
    age_max_us: int = 0


def to_drop(
    retention: Retention, held_bytes: int, stretches: Iterable[Stretch], now_us: int, share: float
) -> list[Stretch]:
    """Those of the topic's stretches that go, given from the oldest on. `held_bytes`: all that the log holds of the
    topic, in files that are not sealed too. `share`: how much of that may go by age in one step, if it is more than
    one stretch."""
    gone: list[Stretch] = []
    left, by_age = held_bytes, 0
    for stretch in stretches:
        size = sum(held.own_bytes for held in stretch.values())
        if retention.bytes_max and left - size >= retention.bytes_max:
            pass
        elif _is_old(retention, stretch, now_us) and (not by_age or by_age + size <= share * held_bytes):
            by_age += size
        else:
            break
        left -= size
        gone.append(stretch)
    return gone


def _is_old(retention: Retention, stretch: Stretch, now_us: int) -> bool:
    newest_us = max(held.max_time_us for held in stretch.values())
    return bool(retention.age_max_us) and newest_us < now_us - retention.age_max_us
