"""Which offsets of the sections continue without a hole: for each shard those before the first hole.

The rows before a hole are good. A task that reads the middle of the log does not know where its topics start: the
driver judges that (round_judgement.py). Declared gaps are not holes.
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


def spans_of(
    sections: Sections, shards: Mapping[Key, ShardPlan], ends: Mapping[Key, int]
) -> tuple[list[Span], list[Key]]:
    """Returns the offsets of each shard that can be written, by topic and shard, and the shards with a hole.

    `ends`: the end of the sections of a shard that were read before, if there were any."""
    order = np.lexsort((sections.base, sections.shard, sections.topic_id))
    topic, shard = sections.topic_id[order], sections.shard[order]
    changes = 1 + np.flatnonzero((topic[1:] != topic[:-1]) | (shard[1:] != shard[:-1]))
    bounds = [0, *changes.tolist(), len(order)] if len(order) else []
    spans: list[Span] = []
    broken: list[Key] = []
    for first, stop in pairwise(bounds):
        key = int(topic[first]), int(shard[first])
        base, end = sections.base[order[first:stop]], sections.end[order[first:stop]]
        plan = shards[key]
        start = max(int(base[0]), plan.start)
        if key in ends and start != offset_gaps.past(plan.gaps, ends[key]):
            broken.append(key)
            continue
        last = _last_contiguous(base, end, plan)
        if last < len(base) - 1:
            broken.append(key)
        spans.append(Span(*key, start, min(int(end[last]), plan.end)))
    return spans, broken


def _last_contiguous(base: Ints, end: Ints, plan: ShardPlan) -> int:
    """The index of the last section that continues the first one without a hole."""
    for index in np.flatnonzero(base[1:] != end[:-1]).tolist():
        if offset_gaps.past(plan.gaps, int(end[index])) != base[index + 1]:
            return int(index)
    return len(base) - 1
