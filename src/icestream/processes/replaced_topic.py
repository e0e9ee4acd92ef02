"""What a restore in place takes away: shown before it begins (ADR 116). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from icestream.backup.backup_root import TopicCut
from icestream.observability.words import counted


class LostOffsets(NamedTuple):
    """Messages of the live topic in [start, end) that the backup does not have; declared gaps are not counted."""

    shard: int
    start: int
    end: int
    messages: int


class ReplacedTopic(NamedTuple):
    """The difference between a live topic and what is restored in its place."""

    topic: str
    id: int
    is_same: bool  # the live topic is the one of the backup; else all of its messages count as lost
    lost: list[LostOffsets]
    subscriptions: list[str]  # made since the cut: they are gone
    set_back: list[tuple[str, int, int, int]]  # subscription, shard, from, to: what it has acked since is sent again

    @property
    def messages(self) -> int:
        return sum(lost.messages for lost in self.lost)

    def lines(self) -> list[str]:
        """The difference in words."""
        which = "" if self.is_same else f" (id {self.id}: it is not the topic of the backup)"
        lines = [f"{self.topic}{which}: {counted(self.messages, 'message')} will be lost"]
        lines += [f"  shard {lost.shard}: {lost.messages} in [{lost.start}, {lost.end})" for lost in self.lost]
        lines += [f"  subscription {name} will be lost: it was made after the cut" for name in self.subscriptions]
        lines += [
            f"  subscription {name} goes back in shard {shard} from {now} to {then}"
            for name, shard, now, then in self.set_back
        ]
        return lines


def replaced_topic(
    cut: TopicCut, cursors: Mapping[str, Mapping[int, int]], live: Mapping[str, Any], name: str
) -> ReplacedTopic:
    """Compares a topic of a backup with the live topic that it replaces, as the call `restore_live` has it.

    `cursors`: the offsets of the backup's subscriptions by shard.
    """
    is_same = live["id"] == cut.id
    ends = {shard.shard: shard.end for shard in cut.shards} if is_same else {}
    lost = []
    for shard, end, gaps in live["shards"]:
        start = ends.get(shard, 0)
        messages = max(0, end - start) - _covered(gaps, start, end)
        if messages > 0:
            lost.append(LostOffsets(shard, start, end, messages))
    subscriptions, set_back = [], []
    for subscription, offsets in sorted(live["subscriptions"].items()):
        if subscription not in cursors:
            subscriptions.append(subscription)
            continue
        for shard, now in offsets:
            then = cursors[subscription].get(shard, 0)
            if then < now:
                set_back.append((subscription, shard, now, then))
    return ReplacedTopic(name, live["id"], is_same, lost, subscriptions, set_back)


def _covered(gaps: Sequence[Sequence[int]], start: int, end: int) -> int:
    """The offsets of [start, end) that are in gaps, which do not overlap."""
    return sum(max(0, min(stop, end) - max(first, start)) for first, stop in gaps)
