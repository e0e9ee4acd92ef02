"""`partitioning=auto`: the choice by size and growth, its stability, and how growth is read from snapshots."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.iceberg.shared_list import SharedList
from icestream.iceberg.table_metadata import TableMetadata
from icestream.pipeline.tables.auto_partitioning import DAY_MS, HOUR_MS, TableGrowth, choose, table_growth

TABLE, PART = limits.AUTO_PARTITIONED_TABLE_BYTES, limits.AUTO_PARTITION_BYTES


@pytest.mark.parametrize(
    ("present", "table_bytes", "bytes_per_day", "expected"),
    [
        ("none", TABLE - 1, 100 * PART, "none"),
        ("none", TABLE, PART - 1, "none"),
        ("none", TABLE, PART, "day"),
        ("none", TABLE, 24 * PART, "hour"),
        ("key", TABLE - 1, 0, "none"),
        ("key", TABLE, PART, "day"),
        ("day", 1, PART // 4, "day"),
        ("day", TABLE, PART // 4 - 1, "none"),
        ("day", TABLE, 24 * PART, "hour"),
        ("hour", TABLE, 24 * (PART // 4), "hour"),
        ("hour", TABLE, 24 * (PART // 4) - 1, "day"),
        ("hour", TABLE, 0, "none"),
    ],
)
def test_choice(present: str, table_bytes: int, bytes_per_day: int, expected: str) -> None:
    assert choose(present, TableGrowth(table_bytes, bytes_per_day)) == expected


def test_unknown_growth_changes_nothing() -> None:
    assert [choose(present, None) for present in ("none", "day", "hour")] == ["none", "day", "hour"]


@given(st.sampled_from(["none", "day", "hour"]), st.integers(0, 4 * TABLE), st.integers(0, 100 * PART))
def test_a_choice_is_stable(present: str, table_bytes: int, bytes_per_day: int) -> None:
    growth = TableGrowth(table_bytes, bytes_per_day)
    chosen = choose(present, growth)
    assert choose(chosen, growth) == chosen
    wobbled = TableGrowth(table_bytes, bytes_per_day * 9 // 10)
    if chosen != "none" and present == "none":
        assert choose(chosen, wobbled) == chosen, "a tenth less does not take back what was chosen"


def table(*snapshots: tuple[int, int, int, int], topic: str = "7") -> TableMetadata:
    """A table with snapshots of time, committed offset, bytes of files and rows; the last one is current."""
    documents = [
        {
            "snapshot-id": number + 1,
            "timestamp-ms": time_ms,
            "summary": {
                "icestream.topic-id": topic,
                "icestream.committed": json.dumps({"0": committed // 2, "1": committed - committed // 2}),
                "total-files-size": str(size),
                "total-records": str(rows),
            },
        }
        for number, (time_ms, committed, size, rows) in enumerate(snapshots)
    ]
    empty = SharedList([])
    return TableMetadata({"current-snapshot-id": len(documents)}, SharedList(documents), empty, empty)


def test_growth_is_messages_times_bytes_of_a_row() -> None:
    day = table((0, 1_000, 10, 1), (DAY_MS, 3_000, 50_000, 500), (2 * DAY_MS, 4_000, 90_000, 900))
    assert table_growth(day) == TableGrowth(90_000, 1_000 * 100)


def test_growth_needs_an_hour_of_history() -> None:
    assert table_growth(table((0, 10, 10, 1), (HOUR_MS - 1, 20, 10, 1))) is None
    assert table_growth(table((0, 0, 10, 1), (HOUR_MS, 20, 10, 1))) == TableGrowth(10, 20 * 24 * 10)


def test_growth_is_unknown_without_rows_or_summaries() -> None:
    assert table_growth(table()) is None
    assert table_growth(table((0, 0, 0, 0), (DAY_MS, 0, 0, 0))) is None
    known = table((0, 0, 10, 1), (DAY_MS, 9, 10, 1))
    earlier, current = known.snapshots
    for snapshots in ([current], [{**earlier, "summary": {}}, current], [earlier, {**current, "summary": {}}]):
        partial = TableMetadata(known.fields, SharedList(snapshots), known.snapshot_log, known.metadata_log)
        assert table_growth(partial) is None


def test_a_table_that_went_back_grows_by_nothing() -> None:
    assert table_growth(table((0, 100, 10, 1), (DAY_MS, 50, 10, 1))) == TableGrowth(10, 0)
