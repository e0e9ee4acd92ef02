"""Which offsets of what was found go on without a hole: for each shard the front of it, up to the first hole.

The rows before a hole are good. A task that reads the middle of the log does not know where its topics begin: that is
for the driver to judge (judgement.py). Declared gaps are no holes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from icestream.pipeline import offset_gaps
from icestream.pipeline.round_plan import ShardPlan
from icestream.pipeline.rows.log_sections import Ints, Sections
from icestream.pipeline.rows.topic_rows import Span

Key = tuple[int, int]


def spans_of(found: Sections, shards: Mapping[Key, ShardPlan], ends: Mapping[Key, int]) -> tuple[list[Span], list[Key]]:
    """The offsets of each shard that can be written, by topic and shard, and the shards with a hole in them.

    `ends`: where what was found of a shard before ends; nothing is said of one that was not found yet."""
    order = np.lexsort((found.base, found.shard, found.topic_id))
    topic, shard = found.topic_id[order], found.shard[order]
    changes = 1 + np.flatnonzero((topic[1:] != topic[:-1]) | (shard[1:] != shard[:-1]))
    bounds = [0, *changes.tolist(), len(order)] if len(order) else []
    spans: list[Span] = []
    broken: list[Key] = []
    for first, stop in pairwise(bounds):
        key = int(topic[first]), int(shard[first])
        base, end = found.base[order[first:stop]], found.end[order[first:stop]]
        plan = shards[key]
        start = max(int(base[0]), plan.start)
        if key in ends and start != offset_gaps.past(plan.gaps, ends[key]):
            broken.append(key)
            continue
        last = _contiguous(base, end, plan)
        if last < len(base) - 1:
            broken.append(key)
        spans.append(Span(*key, start, min(int(end[last]), plan.end)))
    return spans, broken


def _contiguous(base: Ints, end: Ints, plan: ShardPlan) -> int:
    """The last section that goes on from the first one."""
    for place in np.flatnonzero(base[1:] != end[:-1]).tolist():
        if offset_gaps.past(plan.gaps, int(end[place])) != base[place + 1]:
            return int(place)
    return len(base) - 1
