"""The Avro schemas of manifests and manifest lists of format v2, with Iceberg's field ids, and the heads of such files.

A manifest holds entries of one partition spec; its head says which, and the schema that its files were written with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from icestream.iceberg import avro, types, values
from icestream.iceberg import transforms as transform
from icestream.iceberg.values import Object

ADDED: Final = 1
EXISTING: Final = 0
DELETED: Final = 2
DATA: Final = 0
Schema = dict[str, Any]

# Iceberg's types as Avro has them: those that a partition value may have.
_PLAIN: Final[Mapping[str, Any]] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
}


def _field(number: int, name: str, kind: Any, is_optional: bool = False) -> Schema:
    if is_optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": number}
    return {"name": name, "type": kind, "field-id": number}


def _map(key_id: int, value_id: int, value: str) -> Schema:
    """Avro's own maps have keys of text, so a map by field id is a list of pairs."""
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field(key_id, "key", "int"), _field(value_id, "value", value)],
    }
    return {"type": "array", "items": pair, "logicalType": "map"}


def _data_file(partition: Schema) -> Schema:
    fields = [
        _field(134, "content", "int"),
        _field(100, "file_path", "string"),
        _field(101, "file_format", "string"),
        _field(102, "partition", partition),
        _field(103, "record_count", "long"),
        _field(104, "file_size_in_bytes", "long"),
        _field(108, "column_sizes", _map(117, 118, "long"), True),
        _field(109, "value_counts", _map(119, 120, "long"), True),
        _field(110, "null_value_counts", _map(121, 122, "long"), True),
        _field(137, "nan_value_counts", _map(138, 139, "long"), True),
        _field(125, "lower_bounds", _map(126, 127, "bytes"), True),
        _field(128, "upper_bounds", _map(129, 130, "bytes"), True),
        _field(131, "key_metadata", "bytes", True),
        _field(132, "split_offsets", {"type": "array", "items": "long", "element-id": 133}, True),
        _field(135, "equality_ids", {"type": "array", "items": "int", "element-id": 136}, True),
        _field(140, "sort_order_id", "int", True),
    ]
    return {"type": "record", "name": "r2", "fields": fields}


def _entry(data_file: Schema) -> Schema:
    fields = [
        _field(0, "status", "int"),
        _field(1, "snapshot_id", "long", True),
        _field(3, "sequence_number", "long", True),
        _field(4, "file_sequence_number", "long", True),
        _field(2, "data_file", data_file),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


_SUMMARY: Final[Schema] = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field(509, "contains_null", "boolean"),
        _field(518, "contains_nan", "boolean", True),
        _field(510, "lower_bound", "bytes", True),
        _field(511, "upper_bound", "bytes", True),
    ],
}
LIST: Final[Schema] = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
        _field(517, "content", "int"),
        _field(515, "sequence_number", "long"),
        _field(516, "min_sequence_number", "long"),
        _field(503, "added_snapshot_id", "long"),
        _field(504, "added_files_count", "int"),
        _field(505, "existing_files_count", "int"),
        _field(506, "deleted_files_count", "int"),
        _field(512, "added_rows_count", "long"),
        _field(513, "existing_rows_count", "long"),
        _field(514, "deleted_rows_count", "long"),
        _field(507, "partitions", {"type": "array", "items": _SUMMARY, "element-id": 508}, True),
        _field(519, "key_metadata", "bytes", True),
    ],
}


class PartitionField(NamedTuple):
    name: str
    source_id: int
    transform: str  # in its one form
    kind: Any  # of its values, as Iceberg calls it


class ManifestLayout(NamedTuple):
    """Of the manifests of one spec, for files of one schema."""

    spec_id: int
    partition: tuple[PartitionField, ...]
    head: bytes


def partition_fields(schema: Object, spec: Object) -> tuple[PartitionField, ...]:
    """Raises InvalidInput for a spec that the pipeline cannot write."""
    kinds = {field["id"]: field["type"] for field in schema["fields"]}
    return tuple(
        PartitionField(
            one["name"],
            one["source-id"],
            (name := transform.canonical(one["transform"])),
            _result(name, kinds.get(one["source-id"])),
        )
        for one in spec["fields"]
    )


def _result(name: str, source: Any) -> str:
    if name.startswith("bucket") or name in ("year", "month", "hour"):
        return "int"
    if name == "day":
        return "date"
    return types.family(source) if source is not None else "int"


def manifest_layout(schema: Object, spec: Object) -> ManifestLayout:
    fields = partition_fields(schema, spec)
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [
            _field(one["field-id"], one["name"], _PLAIN[field.kind], True)
            for one, field in zip(spec["fields"], fields, strict=True)
        ],
    }
    data_file = _data_file(partition)
    head = avro.head(
        {
            "avro.schema": orjson.dumps(_entry(data_file)),
            "schema": values.encode(schema),
            "schema-id": str(schema.get("schema-id", 0)).encode(),
            "partition-spec": values.encode(spec["fields"]),
            "partition-spec-id": str(spec["spec-id"]).encode(),
            "format-version": b"2",
            "content": b"data",
        }
    )
    return ManifestLayout(spec["spec-id"], fields, head)


_LIST_SCHEMA: Final = orjson.dumps(LIST)


def list_head(snapshot_id: int, parent_id: int | None, sequence: int) -> bytes:
    return avro.head(
        {
            "avro.schema": _LIST_SCHEMA,
            "snapshot-id": str(snapshot_id).encode(),
            "parent-snapshot-id": b"null" if parent_id is None else str(parent_id).encode(),
            "sequence-number": str(sequence).encode(),
            "format-version": b"2",
        }
    )
