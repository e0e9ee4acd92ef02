"""Partition spec and sort order in words."""

from __future__ import annotations

from typing import Any

from icestream.cli.lake_tables import partition_text, sort_text

SCHEMA: dict[str, Any] = {
    "schema-id": 1,
    "fields": [
        {"id": 1, "name": "shard", "type": "int"},
        {"id": 2, "name": "publish_time", "type": "timestamptz"},
        {"id": 3, "name": "place", "type": {"type": "struct", "fields": [{"id": 4, "name": "city", "type": "string"}]}},
    ],
}
OLD = {"schema-id": 0, "fields": [{"id": 1, "name": "part", "type": "int"}, {"id": 9, "name": "gone", "type": "int"}]}


def metadata(partitions: list[dict[str, Any]], order: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schemas": [SCHEMA, OLD],
        "current-schema-id": 1,
        "partition-specs": [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": partitions}],
        "default-spec-id": 1,
        "sort-orders": [{"order-id": 0, "fields": []}, {"order-id": 1, "fields": order}],
        "default-sort-order-id": 1,
    }


def test_a_table_without_either() -> None:
    assert (partition_text(metadata([], [])), sort_text({})) == ("none", "none")


def test_transforms_show_the_current_column_names() -> None:
    fields = [
        {"source-id": 2, "transform": "day"},
        {"source-id": 1, "transform": "identity"},
        {"source-id": 4, "transform": "bucket[4]"},
        {"source-id": 9, "transform": "void"},
        {"source-ids": [1, 7], "transform": "bucket[2]"},
    ]
    assert partition_text(metadata(fields, [])) == (
        "day(publish_time), shard, bucket[4](place.city), void(gone), bucket[2](shard, column 7)"
    )


def test_a_sort_order_has_directions() -> None:
    order = [
        {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"},
        {"source-id": 2, "transform": "hour", "direction": "desc", "null-order": "nulls-last"},
    ]
    assert sort_text(metadata([], order)) == "shard asc nulls first, hour(publish_time) desc nulls last"
