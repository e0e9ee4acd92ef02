"""Clustering by compaction (docs/adr/0088): queries read few row groups, a reader by offset decodes each row once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.catalog.topic_rules import topic_schema
from icestream.model.table_layout import CLUSTERING_COLUMNS, Clustering, parse_clustering
from icestream.pipeline.compaction.group_messages import GroupJob, InputFile, decode_result, encode
from icestream.pipeline.compaction.group_rewrite import LAYOUT_KEY, rewrite_group
from icestream.pipeline.compaction.row_order import layout_id, row_groups
from icestream.pipeline.files.data_file import encode_parquet
from icestream.pipeline.files.parquet_layout import ParquetLayout, layout_of
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.task.task_run import fresh_name, open_store
from icestream.readers.offset_windows import OffsetSpan, SpanIndex
from icestream.readers.row_hashes import digest_of

ROWS, KEYS, SHARDS = 24_000, 200, 2
ORDERS = ("", "offset", "key", "key,publish_time", "zorder(key,publish_time)", "zorder(key,publish_time,qos)")


def rows_of(start: int, count: int, chance: random.Random, keys: int = KEYS) -> Any:
    """Rows of two shards in turn; keys and publish times by chance."""
    offsets = [(start + at) // SHARDS for at in range(count)]
    return pa.table(
        {
            "shard": pa.array([(start + at) % SHARDS for at in range(count)], pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "publish_time": pa.array([chance.randrange(10**9) for _ in range(count)], pa.timestamp("us", tz="UTC")),
            "append_time": pa.array([start + at for at in range(count)], pa.timestamp("us", tz="UTC")),
            "key": pa.array([b"key %03d" % chance.randrange(keys) for _ in range(count)], pa.binary()),
            "payload": pa.array([chance.randbytes(100) for _ in range(count)], pa.binary()),
        }
    )


def target_of(folder: Path, clustering: str = "") -> TableTarget:
    schema = topic_schema.new_schema()
    return TableTarget(f"file:{folder}", schema, {"spec-id": 0, "fields": []}, clustering=clustering)


def table_of(layout: ParquetLayout, rows: Any) -> Any:
    return layout.table({name: rows.column(name) for name in rows.column_names}, rows.num_rows)


def rewritten(folder: Path, clustering: str) -> tuple[Any, Any]:
    """Four files of neighbouring offsets made one; returns its footer and all its rows."""
    chance, target = random.Random(7), target_of(folder, clustering)
    layout = layout_of(target)
    inputs = []
    for number in range(4):
        rows = table_of(layout, rows_of(number * ROWS // 4, ROWS // 4, chance))
        path = folder / f"input-{number}.parquet"
        path.write_bytes(encode_parquet(rows, layout, "zstd", None)[0])
        inputs.append(InputFile(f"file:{path}", rows.num_rows))
    result = decode_result(rewrite_group(encode(GroupJob(0, 1, target, [], inputs)), open_store, fresh_name))
    assert (result.reason, result.replaced_rows) == ("", result.added_rows)
    (written,) = result.files
    path = Path(written.location.removeprefix("file:"))
    return pq.read_metadata(path), pq.read_table(path)


def bounds(metadata: Any, name: str) -> list[tuple[Any, Any]]:
    """The bounds of a column in each row group, by its footer."""
    place = [metadata.schema.column(number).name for number in range(metadata.num_columns)].index(name)
    statistics = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)]
    return [(group.min, group.max) for group in statistics]


@pytest.mark.parametrize("clustering", ORDERS)
def test_a_file_of_each_order_is_read_by_offset_without_decoding_anything_twice(
    tmp_path: Path, clustering: str
) -> None:
    """Hazard 94."""
    metadata, rows = rewritten(tmp_path, clustering)
    assert metadata.metadata[LAYOUT_KEY].decode() == layout_id(clustering, layout_of(target_of(tmp_path)))
    assert rows.num_rows == ROWS
    shards, offsets = bounds(metadata, "shard"), bounds(metadata, "offset")
    assert all(low == high for low, high in shards)
    for shard in range(SHARDS):
        groups = [number for number, (low, _) in enumerate(shards) if low == shard]
        spans = SpanIndex(
            OffsetSpan(*offsets[number], metadata.row_group(number).num_rows, size_of(metadata, number), number)
            for number in groups
        )
        decoded, position = [], 0
        window_bytes = limits.SCAN_WINDOW_BYTES
        while (window := spans.next_window(position, window_bytes, joined_bytes=window_bytes)) is not None:
            decoded += [span.source for span in window.spans]
            position = window.stop
        assert position == ROWS // SHARDS
        assert sorted(decoded) == groups, "each row group once"


def size_of(metadata: Any, number: int) -> int:
    return int(metadata.row_group(number).total_byte_size)


@pytest.mark.parametrize(
    ("clustering", "share"),
    [("offset", 1.0), ("key", 0.2), ("key,publish_time", 0.2), ("zorder(key,publish_time)", 0.7)],
)
def test_a_query_for_one_key_reads_few_row_groups(tmp_path: Path, clustering: str, share: float) -> None:
    metadata, _ = rewritten(tmp_path, clustering)
    groups = bounds(metadata, "key")
    matching = [low <= b"key 077" <= high for low, high in groups]
    assert 0 < sum(matching) <= share * len(groups)


def test_a_z_order_serves_queries_by_either_column(tmp_path: Path) -> None:
    metadata, rows = rewritten(tmp_path, "zorder(key,publish_time)")
    low, high = sorted(rows["publish_time"].to_pylist())[:: ROWS - 1]
    middle = low + (high - low) / 3
    by_time = [first <= middle <= last for first, last in bounds(metadata, "publish_time")]
    by_key = [first <= b"key 077" <= last for first, last in bounds(metadata, "key")]
    assert sum(by_time) <= 0.7 * len(by_time)
    assert sum(by_key) <= 0.7 * len(by_key)


@given(st.integers(0, 60), st.sampled_from(ORDERS), st.integers(1, 4), st.randoms(use_true_random=False))
def test_no_order_loses_or_changes_a_row(count: int, clustering: str, keys: int, chance: random.Random) -> None:
    layout = layout_of(target_of(Path("/t")))
    rows = table_of(layout, rows_of(0, count, chance, keys))
    rows = rows.sort_by([("shard", "ascending"), ("offset", "ascending")]) if count else rows
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BYTES", 4_000), ("GROUP_BYTES_MIN", 600), ("GROUPS_MAX", 8)):
            patch.setattr(limits, f"CLUSTER_{name}", value)
        ordered, counts = row_groups(rows, clustering, layout)
    assert digest_of(ordered) == digest_of(rows)
    assert counts is not None
    assert sum(counts) == count
    start = 0
    for size in counts:
        assert len(set(ordered["shard"].slice(start, size).to_pylist())) <= 1
        start += size


@pytest.mark.parametrize(
    "text", ["keys", "payload", "headers", "key,key", "key,", "zorder(key)", "zorder()", "a" * 50, "offset,key", "KEY"]
)
def test_an_invalid_clustering_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="is not a clustering"):
        parse_clustering(text)


def test_more_than_four_columns_are_refused() -> None:
    names = sorted(CLUSTERING_COLUMNS)
    assert parse_clustering(",".join(names[:4])) == Clustering(tuple(names[:4]))
    with pytest.raises(errors.InvalidInput):
        parse_clustering(",".join(names[:5]))


def test_columns_that_a_policy_may_name_are_columns_of_tables() -> None:
    assert (topic_schema.COLUMNS | topic_schema.MQTT_COLUMNS).keys() >= CLUSTERING_COLUMNS
