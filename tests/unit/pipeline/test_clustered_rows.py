"""The rows of files of MQTT topics: alike topics together, within parts of contiguous offsets, and none lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.mqtt.learned_structure import LearnedStructure
from icestream.pipeline.files.clustered_rows import cluster
from icestream.pipeline.round_plan import MqttTarget
from icestream.pipeline.rows.mqtt_columns import mqtt_columns, stream_place

PART, GROUP, GROUPS = 20_000, 2_000, 8
TARGET = MqttTarget("native", LearnedStructure().encode())


def table_of(topics: list[str], shards: list[int], payload_bytes: int = 100) -> Any:
    offsets = [shards[:at].count(shard) for at, shard in enumerate(shards)]
    return pa.table(
        {
            "shard": pa.array(shards, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([topic.encode() for topic in topics], pa.binary()),
            "payload": pa.array([b"%d" % at + bytes(payload_bytes) for at in range(len(topics))], pa.binary()),
            "level_1": pa.array([topic.split("/")[0] for topic in topics]).dictionary_encode(),
        }
    )


def ordered(table: Any) -> Any:
    return mqtt_columns({"key": table["key"]}, len(table), TARGET).order


@given(
    st.lists(st.tuples(st.sampled_from(["a/1", "a/2", "b/1", "b/2/c", "$x", "d"]), st.integers(0, 2)), max_size=300),
    st.sampled_from([0, 100, 3_000]),
)
def test_every_row_is_in_one_row_group_of_one_shard_and_part(messages: list[tuple[str, int]], size: int) -> None:
    topics, shards = [topic for topic, _ in messages], [shard for _, shard in messages]
    table = table_of(topics, shards, size)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BYTES", PART), ("GROUP_BYTES_MIN", GROUP), ("GROUPS_MAX", GROUPS)):
            patch.setattr(limits, f"CLUSTER_{name}", value)
        rows, counts = cluster(table, ordered(table))
    assert (
        rows.sort_by([("shard", "ascending"), ("offset", "ascending")])["payload"]
        == (table.sort_by([("shard", "ascending"), ("offset", "ascending")])["payload"])
    )
    if counts is None:
        assert table.nbytes < 2 * GROUP
        return
    assert sum(counts) == len(table)
    assert min(counts) > 0
    ends = np.cumsum(counts)
    groups = [rows.slice(end - count, count) for end, count in zip(ends.tolist(), counts, strict=True)]
    assert all(len(set(group["shard"].to_pylist())) == 1 for group in groups)
    # Row groups of a part overlap; a part has contiguous offsets, and is not larger than its bound by more than a row.
    for shard in set(shards):
        spans = sorted(
            (min(offsets), max(offsets), len(offsets))
            for group in groups
            if group["shard"][0].as_py() == shard and (offsets := group["offset"].to_pylist())
        )
        low, high, count = spans[0]
        for next_low, next_high, next_count in [*spans[1:], (1 << 60, 0, 0)]:
            if next_low > high:
                assert count == high - low + 1
                assert (count - 1) * (size + 128) <= PART
                low, high, count = next_low, next_high, next_count
            else:
                high, count = max(high, next_high), count + next_count


def test_a_large_stream_has_row_groups_of_its_own_and_small_ones_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_GROUP_BYTES_MIN", GROUP)
    topics = [("large/x" if at % 2 else f"small/{at % 20}") for at in range(400)]
    table = table_of(topics, [0] * len(topics))
    rows, counts = cluster(table, ordered(table))
    assert counts is not None
    ends = np.cumsum(counts).tolist()
    kinds = [
        {key.as_py().split(b"/")[0] for key in rows["key"].slice(end - count, count)}
        for end, count in zip(ends, counts, strict=True)
    ]
    assert {frozenset(kind) for kind in kinds} == {frozenset({b"large"}), frozenset({b"small"})}
    assert kinds.count({b"large"}) > 3, "the topics of a large stream are divided, too"


def test_rows_of_a_topic_stay_in_the_order_of_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_GROUP_BYTES_MIN", GROUP)
    topics = [f"t/{at % 7}" for at in range(300)]
    table = table_of(topics, [0] * len(topics))
    rows, _ = cluster(table, ordered(table))
    keys, offsets = rows["key"].to_pylist(), rows["offset"].to_pylist()
    for topic in set(keys):
        of_topic = [offset for key, offset in zip(keys, offsets, strict=True) if key == topic]
        assert of_topic == sorted(of_topic)
    changes = sum(first != second for first, second in pairwise(keys))
    assert changes == 6, "each topic in one piece"


def test_a_file_of_few_messages_stays_as_it_is() -> None:
    table = table_of(["b", "a", "c"], [0, 0, 0])
    assert cluster(table, ordered(table)) == (table, None)


def test_the_order_has_the_stream_in_front_of_the_topic() -> None:
    table = table_of(["b/2", "a", "b/1"], [0, 0, 0])
    order = ordered(table)
    assert np.argsort(order).tolist() == [1, 2, 0]
    assert len(set(stream_place(order).tolist())) == 3
