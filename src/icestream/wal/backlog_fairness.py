"""Which topics fit a backlog answer of bounded size: those that wait longest (hazard 24). Pure.

    offered  the topic was in an answer, and its committed offsets have not moved since
    stuck    offered for BACKLOG_STUCK_SECONDS without progress: its table cannot be committed

If more topics wait than fit an answer, stuck topics get at most half of the room, in rotation. Otherwise as many stuck
topics as fit an answer would block all others for ever. A module of its own, because the rule can be tested without a
log.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

from icestream import limits


class _Offer(NamedTuple):
    """The sum of a topic's floors when it was first offered, and when that was."""

    floor: int
    since_us: int


class BacklogFairness:
    """Remembers which topics were offered, and for how long without progress."""

    def __init__(self) -> None:
        self._offers: dict[int, _Offer] = {}  # by topic id: topics that wait and were in an answer
        self._rotation = 0

    def choose(self, waiting: Mapping[int, int], floor_of: Callable[[int], int], now_us: int) -> list[int]:
        """The topic ids for the next answer, longest waiting first.

        `waiting`: topic id and the append time of its oldest uncommitted message. `floor_of`: a number that grows as a
        topic is committed.
        """
        chosen = self._choose(waiting, floor_of, now_us)
        offers = {topic_id: offer for topic_id, offer in self._offers.items() if topic_id in waiting}
        for topic_id in chosen:
            offer = offers.get(topic_id)
            # Any movement of the floor restarts the time: a topic that is committed slowly is not stuck.
            if offer is None or offer.floor != floor_of(topic_id):
                offers[topic_id] = _Offer(floor_of(topic_id), now_us)
        self._offers = offers
        return chosen

    def _choose(self, waiting: Mapping[int, int], floor_of: Callable[[int], int], now_us: int) -> list[int]:
        room = limits.BACKLOG_TOPICS_MAX
        if len(waiting) <= room:
            return sorted(waiting, key=waiting.__getitem__)
        stuck = {
            topic_id: None  # a dict instead of a set: the rotation needs a stable order
            for topic_id, offer in self._offers.items()
            if topic_id in waiting
            and now_us - offer.since_us >= limits.BACKLOG_STUCK_SECONDS * 1e6
            and offer.floor == floor_of(topic_id)
        }
        progressing = (topic_id for topic_id in waiting if topic_id not in stuck)
        first = heapq.nsmallest(room - min(len(stuck), room // 2), progressing, key=waiting.__getitem__)
        return sorted([*first, *self._rotate(list(stuck), room - len(first))], key=waiting.__getitem__)

    def _rotate(self, stuck: list[int], room: int) -> list[int]:
        """The next `room` stuck topics in rotation."""
        start = self._rotation % max(len(stuck), 1)
        self._rotation += room
        return (stuck[start:] + stuck[:start])[:room]
