"""Summaries of sealed files: ranges by shard, found as a plain dictionary would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream.model.shard import ShardKey
from icestream.wal.file_summary import FileSummary, ShardRange
from icestream.wal.index import FileIndex
from icestream.wal.log_file import Seal
from tests.support.hypothesis_effort import QUARTER

KEYS = st.builds(ShardKey, st.integers(1, 5), st.integers(0, 3))
SHARDS = st.dictionaries(KEYS, st.tuples(st.integers(0, 2**62), st.integers(1, 100), st.integers(-(2**63), 2**63 - 1)))


@QUARTER
@given(SHARDS)
def test_each_shard_is_found_and_no_other(shards: dict[ShardKey, tuple[int, int, int]]) -> None:
    index = FileIndex()
    for key, (base, rows, time_us) in shards.items():
        index.add(key, base, rows, 1, time_us, 4160, 100)
    summary = FileSummary.of(Seal(9, 1, 5, 8192, 8192, 64), 8256, index)
    expected = {key: ShardRange(base, base + rows, 164, time_us) for key, (base, rows, time_us) in shards.items()}
    assert dict(summary.ranges()) == expected
    assert list(summary.keys) == sorted(expected)
    assert (summary.number, summary.size) == (9, 8256)
    for topic_id in range(7):
        for shard in range(5):
            key = ShardKey(topic_id, shard)
            assert summary.find(key) == expected.get(key)
