"""Which topics an answer about what is in no table has room for (hazard 24): those that wait longest. Pure.

    told     it was in an answer, and what is in its table has not moved since
    stuck    the same for so long that nobody writes it (BACKLOG_STUCK_SECONDS): its table takes nothing

Where more wait than there is room for, stuck ones have half of it at most, and who gets that goes around: else as many
as an answer has would stand before all others for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

from icestream import limits


class _Told(NamedTuple):
    floor: int
    since_us: int


class ToldTopics:
    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}  # of those that wait
        self._turn = 0

    def choose(self, waiting: Mapping[int, int], floor_of: Callable[[int], int], now_us: int) -> list[int]:
        """`waiting`: topics, and since when their oldest message waits. `floor_of`: grows as a topic is written."""
        chosen = self._chosen(waiting, floor_of, now_us)
        told = {topic: known for topic, known in self._told.items() if topic in waiting}
        for topic in chosen:
            known = told.get(topic)
            if known is None or known.floor != floor_of(topic):
                told[topic] = _Told(floor_of(topic), now_us)
        self._told = told
        return chosen

    def _chosen(self, waiting: Mapping[int, int], floor_of: Callable[[int], int], now_us: int) -> list[int]:
        room = limits.BACKLOG_TOPICS_MAX
        if len(waiting) <= room:
            return sorted(waiting, key=waiting.__getitem__)
        stuck = {
            topic: None  # in order, for the turns
            for topic, known in self._told.items()
            if topic in waiting
            and now_us - known.since_us >= limits.BACKLOG_STUCK_SECONDS * 1e6
            and known.floor == floor_of(topic)
        }
        going = (topic for topic in waiting if topic not in stuck)
        first = heapq.nsmallest(room - min(len(stuck), room // 2), going, key=waiting.__getitem__)
        return sorted([*first, *self._in_turn(list(stuck), room - len(first))], key=waiting.__getitem__)

    def _in_turn(self, stuck: list[int], room: int) -> list[int]:
        begin = self._turn % max(len(stuck), 1)
        self._turn += room
        return (stuck[begin:] + stuck[:begin])[:room]
