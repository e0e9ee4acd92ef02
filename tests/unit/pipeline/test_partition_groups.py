"""Which rows go into a file of one partition value, and which wait where there are too many of them."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.pipeline.files.partition_groups import group_by_partition


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=40),
    st.integers(1, 5),
)
def test_the_selected_rows_are_the_longest_prefix_of_each_shard(rows: list[tuple[int, int]], values_max: int) -> None:
    """`rows`: shard and key; offsets rise by shard, the rows lie in any order."""
    counts: Counter[int] = Counter()
    offsets = []
    for shard, _ in rows:
        counts[shard] += 1
        offsets.append(counts[shard])
    table = pa.table(
        {
            "shard": pa.array([shard for shard, _ in rows], pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([b"%d" % key for _, key in rows], pa.binary()),
        }
    )
    spec = {"fields": [{"name": "key", "source-id": 3, "transform": "identity"}]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ROUND_PARTITIONS_MAX", values_max)
        partitions = group_by_partition(table, spec, {3: "key"})
    if partitions.front_rows is None:
        assert len({key for _, key in rows}) <= values_max
        return
    front_rows = set(partitions.front_rows.tolist())
    assert sorted(row for group in partitions.groups for row in group.rows.tolist()) == sorted(front_rows)
    assert len({rows[row][1] for row in front_rows}) == len(partitions.groups) == values_max
    for group in partitions.groups:
        assert {b"%d" % rows[row][1] for row in group.rows.tolist()} == {group.values[0]}
    taken_of = {}
    for shard, all_of_it in counts.items():
        front = [row in front_rows for row in range(len(rows)) if rows[row][0] == shard]
        assert front == sorted(front, reverse=True)
        if sum(front) < all_of_it:
            taken_of[shard] = sum(front)
    assert max(taken_of.values()) - min(taken_of.values()) <= 1, "shards with more take turns"
    rest = [row for row in range(len(rows)) if row not in front_rows and offsets[row] - 1 == taken_of[rows[row][0]]]
    assert any(rows[row][1] not in {rows[taken_row][1] for taken_row in front_rows} for row in rest), (
        "it ends at a new value"
    )
