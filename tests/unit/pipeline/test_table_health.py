"""The score of a table, and its reasons."""

from __future__ import annotations

from typing import Any

from icestream import limits
from icestream.pipeline.table_health import table_health, tagged_snapshots

METADATA: dict[str, Any] = {
    "current-snapshot-id": 3,
    "snapshots": [{"snapshot-id": 1, "timestamp-ms": 100}, {"snapshot-id": 3, "timestamp-ms": 300}],
    "refs": {"main": {"snapshot-id": 3}, "icestream-hour-x": {"snapshot-id": 1}},
}


def files(count: int, size: int, content: str = "data") -> list[dict[str, Any]]:
    return [{"path": f"{content}{number}", "content": content, "bytes": size} for number in range(count)]


def test_a_table_of_large_files_has_nothing_to_mend() -> None:
    health = table_health("t", METADATA, files(20, limits.COMPACTION_GROUP_BYTES), {}, is_cut=False)
    assert (health.score, health.reasons, health.small_files) == (100, (), 0)
    assert (health.snapshots, health.oldest_snapshot_ms) == (2, 100)


def test_small_files_deletes_and_tags_cost_points_with_reasons() -> None:
    some = [*files(8, 10), *files(2, 5, "position-deletes")]
    health = table_health("t", METADATA, some, {"data0": 10, "gone": 1_000}, is_cut=True)
    assert (health.files, health.small_files, health.delete_files) == (8, 8, 2)
    assert (health.live_bytes, health.tag_bytes) == (90, 1_000)
    assert health.score == 100 - 50 - 6 - 10
    assert [reason.split(":")[0] for reason in health.reasons] == [
        "8 of 8 files are small",
        "2 delete files",
        "tags keep 1000 B",
        f"only the first {limits.HEALTH_FILES_MAX} files were looked at",
    ]


def test_a_few_small_files_are_the_newest_rounds() -> None:
    assert table_health("t", METADATA, files(7, 10), {}, is_cut=False).score == 100
    assert table_health("t", {}, [], {}, is_cut=False).oldest_snapshot_ms is None


def test_tags_and_branches_keep_snapshots_beside_the_current_one() -> None:
    assert tagged_snapshots(METADATA) == [1]
    assert tagged_snapshots({}) == []
