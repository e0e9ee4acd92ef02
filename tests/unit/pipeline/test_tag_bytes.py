"""Which tags of the pipeline go when they keep too many bytes."""

from __future__ import annotations

import pytest

from icestream.iceberg import table_metadata as tables
from icestream.pipeline.expiry.tag_bytes import TagBytesCount, kept_snapshots


def counted(bytes_max: int, named: set[str], *tagged: tuple[str, dict[str, int]]) -> tuple[int, tuple[str, ...]]:
    count = TagBytesCount(bytes_max, named)
    for tag, files in tagged:
        count.add([tag], files)
    return tuple(count.result)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("bytes_max", "kept", "surplus"),
    [(100, 60, ()), (60, 60, ()), (59, 30, ("c",)), (29, 10, ("b", "c")), (9, 0, ("a", "b", "c"))],
)
def test_the_oldest_tags_go_first(bytes_max: int, kept: int, surplus: tuple[str, ...]) -> None:
    tagged = [("a", {"a": 10, "live": 500}), ("b", {"b": 20, "a": 10}), ("c", {"c": 30})]
    assert counted(bytes_max, {"live"}, *tagged) == (kept, surplus)


def test_a_file_of_several_tags_counts_once_and_one_of_another_reference_never() -> None:
    files = {"shared": 10, "of a user": 500, "live": 500}
    assert counted(10, {"live", "of a user"}, ("a", files), ("b", files), ("c", files)) == (10, ())


def test_older_tags_go_with_a_surplus_one_although_they_keep_nothing() -> None:
    assert counted(15, set(), ("a", {"a": 10}), ("b", {"b": 10}), ("c", {"a": 10})) == (10, ("b", "c"))


def test_only_tags_of_the_pipeline_may_go() -> None:
    snapshots = [{"snapshot-id": number, "timestamp-ms": 1_000 * number} for number in range(1, 8)]
    refs = {
        "main": (7, "branch"),
        "icestream-hour-2026-01-01T01": (1, "tag"),
        "icestream-day-2026-01-01": (2, "tag"),
        "icestream-hour-2026-01-01T02": (2, "tag"),
        "icestream-backup-b1": (3, "tag"),
        "icestream-hour-2026-01-01T03": (3, "tag"),  # the backup keeps it anyway
        "mine": (4, "tag"),
        "audit": (5, "branch"),
        "icestream-hour-2026-01-01T06": (6, "tag"),
    }
    table = tables.load(
        {
            "format-version": 2,
            "table-uuid": "7a2b8a5e-0f4e-4f8e-9d5c-0d2f0c1d2e3f",
            "location": "file:/t",
            "last-sequence-number": 7,
            "last-updated-ms": 7_000,
            "last-column-id": 1,
            "current-schema-id": 0,
            "schemas": [{"schema-id": 0, "type": "struct", "fields": []}],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": 7,
            "snapshots": [
                {**snapshot, "sequence-number": 1, "manifest-list": "file:/l", "summary": {}} for snapshot in snapshots
            ],
            "refs": {name: {"snapshot-id": number, "type": kind} for name, (number, kind) in refs.items()},
        }
    )
    kept = kept_snapshots(table, ["icestream-hour-2026-01-01T06"])
    assert kept.tagged == [
        (2, ("icestream-day-2026-01-01", "icestream-hour-2026-01-01T02")),
        (1, ("icestream-hour-2026-01-01T01",)),
    ]
    assert kept.others == {3, 4, 5, 7}
