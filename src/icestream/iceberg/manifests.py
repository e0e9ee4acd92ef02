"""Manifests and manifest lists: the one place that encodes and decodes them. Pure.

    manifest list    a record per manifest of a snapshot    ManifestFile
    manifest         an entry per file of the table         ManifestEntry (decoded), EncodedEntry (to be written)

Decoding accepts files of any writer and of the formats v1 to v3. Encoding writes format v2, for data files alone;
manifests of delete files are changed as their writer made them (delete_manifests.py). The record of a data file is
encoded once, when the file is new, and copied from manifest to manifest. Only the fields in front of it change: a new
file is ADDED and inherits its sequence numbers from the commit that adds it, so a retried commit need not rewrite the
manifest; later it is EXISTING with explicit numbers (hazard 24: engines decide by them which deletes apply). A file
that takes the place of others has the data sequence number of the snapshot that it was made from (hazard 77).

Entries are encoded by hand, in the order of the Avro schema below: fastavro inspects every value to choose the branch
of its union, which takes 0.7 ms for a file of 21 columns (measured); this takes 0.1 ms.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from icestream import errors
from icestream.iceberg import avro, conversions, types, values
from icestream.iceberg import transforms as transform
from icestream.iceberg.avro import AvroFile, Record, encode_bytes, encode_long, encode_optional_long
from icestream.iceberg.values import Object
from icestream.model.task_messages import WrittenFile

Item = TypeVar("Item")
AvroSchema = dict[str, Any]

# The status of a manifest entry. A DELETED entry records that its snapshot removed the file from the table.
EXISTING: Final = 0
ADDED: Final = 1
DELETED: Final = 2

# The content of a file, and of a manifest (DATA_CONTENT, or 1 for a manifest of delete files).
DATA_CONTENT: Final = 0
POSITION_DELETES_CONTENT: Final = 1
EQUALITY_DELETES_CONTENT: Final = 2

# --- Avro schemas, with Iceberg's field ids ---------------------------------------------------------------------------

# Iceberg's primitive types as Avro types: those that a partition value may have.
_AVRO_TYPES: Final[Mapping[str, Any]] = {
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


def _avro_field(field_id: int, name: str, avro_type: Any, is_optional: bool = False) -> AvroSchema:
    if is_optional:
        return {"name": name, "type": ["null", avro_type], "default": None, "field-id": field_id}
    return {"name": name, "type": avro_type, "field-id": field_id}


def _avro_map(key_id: int, value_id: int, value_type: str) -> AvroSchema:
    """Returns the schema of a map by field id: an array of pairs, because the keys of Avro's own maps are strings."""
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_avro_field(key_id, "key", "int"), _avro_field(value_id, "value", value_type)],
    }
    return {"type": "array", "items": pair, "logicalType": "map"}


def _data_file_schema(partition: AvroSchema) -> AvroSchema:
    fields = [
        _avro_field(134, "content", "int"),
        _avro_field(100, "file_path", "string"),
        _avro_field(101, "file_format", "string"),
        _avro_field(102, "partition", partition),
        _avro_field(103, "record_count", "long"),
        _avro_field(104, "file_size_in_bytes", "long"),
        _avro_field(108, "column_sizes", _avro_map(117, 118, "long"), True),
        _avro_field(109, "value_counts", _avro_map(119, 120, "long"), True),
        _avro_field(110, "null_value_counts", _avro_map(121, 122, "long"), True),
        _avro_field(137, "nan_value_counts", _avro_map(138, 139, "long"), True),
        _avro_field(125, "lower_bounds", _avro_map(126, 127, "bytes"), True),
        _avro_field(128, "upper_bounds", _avro_map(129, 130, "bytes"), True),
        _avro_field(131, "key_metadata", "bytes", True),
        _avro_field(132, "split_offsets", {"type": "array", "items": "long", "element-id": 133}, True),
        _avro_field(135, "equality_ids", {"type": "array", "items": "int", "element-id": 136}, True),
        _avro_field(140, "sort_order_id", "int", True),
    ]
    return {"type": "record", "name": "r2", "fields": fields}


def _entry_schema(data_file: AvroSchema) -> AvroSchema:
    fields = [
        _avro_field(0, "status", "int"),
        _avro_field(1, "snapshot_id", "long", True),
        _avro_field(3, "sequence_number", "long", True),
        _avro_field(4, "file_sequence_number", "long", True),
        _avro_field(2, "data_file", data_file),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


_PARTITION_SUMMARY_SCHEMA: Final[AvroSchema] = {
    "type": "record",
    "name": "r508",
    "fields": [
        _avro_field(509, "contains_null", "boolean"),
        _avro_field(518, "contains_nan", "boolean", True),
        _avro_field(510, "lower_bound", "bytes", True),
        _avro_field(511, "upper_bound", "bytes", True),
    ],
}
MANIFEST_LIST_SCHEMA: Final[AvroSchema] = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _avro_field(500, "manifest_path", "string"),
        _avro_field(501, "manifest_length", "long"),
        _avro_field(502, "partition_spec_id", "int"),
        _avro_field(517, "content", "int"),
        _avro_field(515, "sequence_number", "long"),
        _avro_field(516, "min_sequence_number", "long"),
        _avro_field(503, "added_snapshot_id", "long"),
        _avro_field(504, "added_files_count", "int"),
        _avro_field(505, "existing_files_count", "int"),
        _avro_field(506, "deleted_files_count", "int"),
        _avro_field(512, "added_rows_count", "long"),
        _avro_field(513, "existing_rows_count", "long"),
        _avro_field(514, "deleted_rows_count", "long"),
        _avro_field(507, "partitions", {"type": "array", "items": _PARTITION_SUMMARY_SCHEMA, "element-id": 508}, True),
        _avro_field(519, "key_metadata", "bytes", True),
    ],
}
_MANIFEST_LIST_SCHEMA_JSON: Final = orjson.dumps(MANIFEST_LIST_SCHEMA)

# --- layout: how the manifests of one partition spec are written ------------------------------------------------------


class PartitionField(NamedTuple):
    name: str
    source_id: int
    transform: str  # in canonical form
    value_type: str  # Iceberg's name for the type of the transform's result


class ManifestLayout(NamedTuple):
    """What all manifests of one partition spec, for files of one schema, have in common."""

    spec_id: int
    partition: tuple[PartitionField, ...]
    header: bytes  # of the Avro file


def manifest_layout(schema: Object, spec: Object) -> ManifestLayout:
    """Returns the layout of manifests for this schema and spec. Raises InvalidInput for a type that is not known."""
    source_types = {column["id"]: column["type"] for column in schema["fields"]}
    partition = tuple(_partition_field(spec_field, source_types) for spec_field in spec["fields"])
    partition_schema = {
        "type": "record",
        "name": "r102",
        "fields": [
            _avro_field(spec_field["field-id"], spec_field["name"], _AVRO_TYPES[partition_field.value_type], True)
            for spec_field, partition_field in zip(spec["fields"], partition, strict=True)
        ],
    }
    header = avro.encode_header(
        {
            "avro.schema": orjson.dumps(_entry_schema(_data_file_schema(partition_schema))),
            "schema": values.encode(schema),
            "schema-id": str(schema.get("schema-id", 0)).encode(),
            "partition-spec": values.encode(spec["fields"]),
            "partition-spec-id": str(spec["spec-id"]).encode(),
            "format-version": b"2",
            "content": b"data",
        }
    )
    return ManifestLayout(spec["spec-id"], partition, header)


def _partition_field(spec_field: Object, source_types: Mapping[int, Any]) -> PartitionField:
    name = transform.canonical(spec_field["transform"])
    source_id = spec_field["source-id"]
    return PartitionField(spec_field["name"], source_id, name, _result_type(name, source_types.get(source_id)))


def _result_type(transform_name: str, source_type: Any) -> str:
    """Returns the type of a transform's values. A column that the schema no longer has leaves nulls alone: any type."""
    if transform_name.startswith("bucket") or transform_name in ("year", "month", "hour"):
        return "int"
    if transform_name == "day":
        return "date"
    return types.family(source_type) if source_type is not None else "int"


# --- manifest entries: decoding ---------------------------------------------------------------------------------------


class ManifestEntry:
    """An entry of a manifest of any writer. What every user needs is checked at once, the rest is decoded on demand.

    Fields of the data file are attributes of the entry, as each entry has exactly one.
    """

    __slots__ = ("_data_file", "_record", "file_path", "status")

    def __init__(self, record: Record) -> None:
        """Raises KeyError or TypeError for a record that is not a manifest entry."""
        self._record = record
        self._data_file: Mapping[str, Any] = record["data_file"]
        self.status: int = record["status"]
        self.file_path = str(self._data_file["file_path"])

    @property
    def is_live(self) -> bool:
        """True if the file belongs to the table; False if the entry records its removal."""
        return self.status != DELETED

    @property
    def snapshot_id(self) -> int | None:
        return self._record.get("snapshot_id")

    @property
    def explicit_sequence_number(self) -> int | None:
        """The data sequence number in the entry; None if it is inherited from the manifest."""
        return self._record.get("sequence_number")

    def sequence_number(self, manifest_sequence_number: int) -> int:
        """Returns the data sequence number. Entries of v1 have none and count as 0; only ADDED ones may inherit."""
        number = self.explicit_sequence_number
        if number is not None:
            return number
        return manifest_sequence_number if self.status == ADDED else 0

    @property
    def explicit_file_sequence_number(self) -> int | None:
        return self._record.get("file_sequence_number")

    @property
    def content(self) -> int:
        return int(self._data_file.get("content") or DATA_CONTENT)

    @property
    def file_format(self) -> str:
        """The format in lower case, such as `parquet`."""
        return str(self._data_file.get("file_format") or "").lower()

    @property
    def record_count(self) -> int:
        return int(self._data_file.get("record_count") or 0)

    @property
    def file_size_bytes(self) -> int:
        return int(self._data_file.get("file_size_in_bytes") or 0)

    @property
    def partition(self) -> Mapping[str, Any]:
        """The partition values by the names of the spec's fields, as fastavro decodes them."""
        return self._data_file.get("partition") or {}

    @property
    def lower_bounds(self) -> dict[int, bytes]:
        return self._map("lower_bounds")

    @property
    def upper_bounds(self) -> dict[int, bytes]:
        return self._map("upper_bounds")

    @property
    def null_counts(self) -> dict[int, int]:
        return self._map("null_value_counts")

    @property
    def equality_ids(self) -> tuple[int, ...]:
        """For deletes by value: the field ids of the compared columns."""
        return tuple(self._data_file.get("equality_ids") or ())

    @property
    def referenced_data_file(self) -> str | None:
        """For position deletes: the only data file that they apply to, if the entry says so."""
        return self._data_file.get("referenced_data_file") or None

    @property
    def delete_name(self) -> str:
        """The unique name of a delete file. The path is not enough: a Puffin file has vectors of many data files."""
        start, size = self.content_range
        return f"{self.file_path}@{start}" if size else self.file_path

    @property
    def content_range(self) -> tuple[int, int]:
        """For a deletion vector: where its blob begins in the file, and its size in bytes."""
        return int(self._data_file.get("content_offset") or 0), int(self._data_file.get("content_size_in_bytes") or 0)

    def _map(self, name: str) -> dict[int, Any]:
        return {pair["key"]: pair["value"] for pair in self._data_file.get(name) or ()}

    def as_written_file(self, layout: ManifestLayout) -> WrittenFile:
        """Returns the data file of an entry that this code wrote, with all that a manifest records about it."""
        names = [partition_field.name for partition_field in layout.partition]
        return WrittenFile(
            topic_id=0,  # this and `covered`: a manifest does not record them
            location=self.file_path,
            size_bytes=self.file_size_bytes,
            rows=self.record_count,
            covered=[],
            schema_id=0,
            spec_id=layout.spec_id,
            partition=[plain_partition_value(self.partition[name]) for name in names],
            column_sizes=self._map("column_sizes"),
            value_counts=self._map("value_counts"),
            null_counts=self._map("null_value_counts"),
            lower_bounds=self.lower_bounds,
            upper_bounds=self.upper_bounds,
            split_offsets=list(self._data_file.get("split_offsets") or ()),
        )


_EPOCH: Final = date(1970, 1, 1)


def plain_partition_value(value: Any) -> Any:
    """Returns the stored number of a date: fastavro decodes Avro's logical type `date` to Python's."""
    return (value - _EPOCH).days if isinstance(value, date) else value


def decode_entries(location: str, data: bytes, select: Callable[[Iterator[ManifestEntry]], list[Item]]) -> list[Item]:
    """Returns what `select` makes of the entries of a manifest; `list` returns all of them.

    Decoding takes a while: call it off the event loop. Raises MetadataFileDamaged, also for errors in `select`.
    """
    try:
        return select(map(ManifestEntry, avro.decode_file(data)))
    except Exception as error:  # noqa: BLE001  # fastavro raises exceptions of any class for invalid bytes
        raise errors.MetadataFileDamaged(f"{location} is not a manifest: {error!r}") from None


def live_entries(location: str, data: bytes) -> list[ManifestEntry]:
    """Returns the live entries of a manifest. Raises MetadataFileDamaged."""
    return decode_entries(location, data, lambda entries: [entry for entry in entries if entry.is_live])


def read_manifest_file(location: str, data: bytes) -> AvroFile:
    """Returns a manifest or a manifest list with all fields that its writer gave it. Raises MetadataFileDamaged."""
    try:
        return avro.read_file(data)
    except Exception as error:  # noqa: BLE001  # fastavro raises exceptions of any class for invalid bytes
        raise errors.MetadataFileDamaged(f"{location} is not an Avro file: {error!r}") from None


# --- manifest entries: encoding ---------------------------------------------------------------------------------------

_NULL: Final = b"\x00"
_NOT_NULL: Final = b"\x02"  # the second branch of a union with null
_ARRAY_END: Final = b"\x00"
_DATA_CONTENT: Final = encode_long(DATA_CONTENT)  # the first field of an encoded data file; its path follows


class EncodedEntry(NamedTuple):
    """An entry to be written, with its data file already encoded."""

    data_file: bytes
    rows: int
    partition: tuple[Any, ...]
    snapshot_id: int
    sequence_number: int | None = None  # None: inherited from the commit that adds it
    file_sequence_number: int | None = None  # None: new
    size_bytes: int = 0  # of the data file
    is_deleted: bool = False

    @property
    def is_new(self) -> bool:
        return self.file_sequence_number is None

    @property
    def file_path(self) -> str:
        """Decoded from the data file: only commits that remove files need it."""
        length, start = avro.decode_long(self.data_file, len(_DATA_CONTENT))
        return self.data_file[start : start + length].decode()

    def as_deleted(self, snapshot_id: int) -> EncodedEntry:
        """Returns the entry that records the removal of the file by this snapshot. The file keeps its sequence
        numbers."""
        return self._replace(snapshot_id=snapshot_id, is_deleted=True)

    def encode(self) -> bytes:
        status = DELETED if self.is_deleted else ADDED if self.is_new else EXISTING
        return b"".join(
            (
                encode_long(status),
                encode_optional_long(self.snapshot_id),
                encode_optional_long(self.sequence_number),
                encode_optional_long(self.file_sequence_number),
                self.data_file,
            )
        )

    def with_sequence_number(self, number: int) -> EncodedEntry:
        """Returns the entry as later manifests carry it, once the commit that added it got this sequence number."""
        if not self.is_new:
            return self
        data_number = number if self.sequence_number is None else self.sequence_number
        return self._replace(sequence_number=data_number, file_sequence_number=number)


def new_entry(
    layout: ManifestLayout, file: WrittenFile, snapshot_id: int, sequence_number: int | None = None
) -> EncodedEntry:
    """`sequence_number`: the data sequence number of a file with the rows of older files; None: that of the commit."""
    data_file = _encode_data_file(layout, file)
    return EncodedEntry(
        data_file, file.rows, tuple(file.partition), snapshot_id, sequence_number, size_bytes=file.size_bytes
    )


def reencode_entries(
    layout: ManifestLayout, entries: Sequence[ManifestEntry], snapshot_id: int, sequence_number: int
) -> list[EncodedEntry]:
    """Returns the live entries of a manifest that this code wrote, ready to be copied into another manifest.

    `snapshot_id` and `sequence_number` belong to the commit that added the manifest: entries inherit them.
    """
    encoded = []
    for entry in entries:
        if not entry.is_live:
            continue
        file = entry.as_written_file(layout)
        number, file_number = entry.explicit_sequence_number, entry.explicit_file_sequence_number
        encoded.append(
            EncodedEntry(
                _encode_data_file(layout, file),
                file.rows,
                tuple(file.partition),
                entry.snapshot_id or snapshot_id,
                sequence_number if number is None else number,
                sequence_number if file_number is None else file_number,
                file.size_bytes,
            )
        )
    return encoded


def _encode_data_file(layout: ManifestLayout, file: WrittenFile) -> bytes:
    partition = zip(layout.partition, file.partition, strict=True)
    return b"".join(
        (
            _DATA_CONTENT,
            encode_bytes(file.location.encode()),
            encode_bytes(b"PARQUET"),
            *(_encode_partition_value(partition_field.value_type, value) for partition_field, value in partition),
            encode_long(file.rows),
            encode_long(file.size_bytes),
            _encode_map(file.column_sizes, encode_long),
            _encode_map(file.value_counts, encode_long),
            _encode_map(file.null_counts, encode_long),
            _NULL,  # nan_value_counts
            _encode_map(file.lower_bounds, encode_bytes),
            _encode_map(file.upper_bounds, encode_bytes),
            _NULL,  # key_metadata
            _encode_long_array(file.split_offsets),
            _NULL,  # equality_ids
            _NULL,  # sort_order_id
        )
    )


def _encode_map(pairs: Mapping[int, Any], encode_value: Callable[[Any], bytes]) -> bytes:
    if not pairs:
        return _NULL
    body = b"".join([encode_long(key) + encode_value(value) for key, value in pairs.items()])
    return b"".join((_NOT_NULL, encode_long(len(pairs)), body, _ARRAY_END))


def _encode_long_array(numbers: Sequence[int]) -> bytes:
    return (
        b"".join((_NOT_NULL, encode_long(len(numbers)), *map(encode_long, numbers), _ARRAY_END)) if numbers else _NULL
    )


def _encode_partition_value(value_type: str, value: Any) -> bytes:
    if value is None:
        return _NULL
    match value_type:
        case "binary":
            return _NOT_NULL + encode_bytes(value)
        case "string":
            return _NOT_NULL + encode_bytes(value.encode())
        case "boolean":
            return _NOT_NULL + (b"\x01" if value else b"\x00")
        case _:
            return _NOT_NULL + encode_long(value)


# --- manifest lists ---------------------------------------------------------------------------------------------------

# Older writers use other names for three of the fields.
_OLD_FIELD_NAMES: Final = {
    "added_files_count": "added_data_files_count",
    "existing_files_count": "existing_data_files_count",
    "deleted_files_count": "deleted_data_files_count",
}
# Fields that v1 may leave out or set to null; v2 requires them.
_NUMBERS_WITH_DEFAULT: Final = (
    "manifest_length",
    "partition_spec_id",
    "content",
    "sequence_number",
    "min_sequence_number",
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
)


@dataclass(slots=True)
class ManifestFile:
    """What a manifest list records about one manifest."""

    path: str
    length: int
    spec_id: int
    content: int
    sequence_number: int
    snapshot_id: int  # of the commit that added the manifest
    live_files: int
    live_rows: int
    record: Record = field(default_factory=dict, repr=False, compare=False)  # the whole Avro record
    _encoded: bytes | None = field(default=None, repr=False, compare=False)

    def encode(self) -> bytes:
        """Returns the record of a manifest list. Encoded once: a manifest is in the lists of many snapshots."""
        if self._encoded is None:
            self._encoded = _encode_list_record(self.record)
        return self._encoded


def decode_manifest_list(location: str, data: bytes) -> list[ManifestFile]:
    """Returns the manifests that a manifest list of any writer names. Raises MetadataFileDamaged."""
    try:
        return [_decode_list_record(record) for record in avro.decode_file(data)]
    except Exception as error:  # noqa: BLE001  # fastavro raises exceptions of any class for invalid bytes
        raise errors.MetadataFileDamaged(f"{location} is not a manifest list: {error!r}") from None


def _decode_list_record(record: Record) -> ManifestFile:
    renamed = {
        name: record[old_name]
        for name, old_name in _OLD_FIELD_NAMES.items()
        if name not in record and old_name in record
    }
    complete = {**record, **renamed}
    complete |= {name: complete.get(name) or 0 for name in _NUMBERS_WITH_DEFAULT}
    return manifest_file_of_record(complete)


def new_manifest_file(
    layout: ManifestLayout,
    path: str,
    length: int,
    entries: Sequence[EncodedEntry],
    snapshot_id: int,
    sequence_number: int,
) -> ManifestFile:
    """Returns the description of a new manifest with these entries. The numbers are those of the commit."""
    added = [entry for entry in entries if entry.is_new]
    deleted = [entry for entry in entries if entry.is_deleted]
    added_rows, deleted_rows = sum(entry.rows for entry in added), sum(entry.rows for entry in deleted)
    existing_rows = sum(entry.rows for entry in entries) - added_rows - deleted_rows
    numbers = [sequence_number if entry.sequence_number is None else entry.sequence_number for entry in entries]
    return manifest_file_of_record(
        {
            "manifest_path": path,
            "manifest_length": length,
            "partition_spec_id": layout.spec_id,
            "content": DATA_CONTENT,
            "sequence_number": sequence_number,
            "min_sequence_number": min(numbers),
            "added_snapshot_id": snapshot_id,
            "added_files_count": len(added),
            "existing_files_count": len(entries) - len(added) - len(deleted),
            "deleted_files_count": len(deleted),
            "added_rows_count": added_rows,
            "existing_rows_count": existing_rows,
            "deleted_rows_count": deleted_rows,
            "partitions": [_partition_summary(layout, number, entries) for number in range(len(layout.partition))],
        }
    )


def _partition_summary(layout: ManifestLayout, number: int, entries: Sequence[EncodedEntry]) -> Record:
    """Returns the range of a partition field's values: engines skip manifests by it."""
    partition_values = [entry.partition[number] for entry in entries]
    not_null = [value for value in partition_values if value is not None]
    value_type = layout.partition[number].value_type
    return {
        "contains_null": len(not_null) < len(partition_values),
        "contains_nan": False,
        "lower_bound": conversions.to_bytes(value_type, min(not_null)) if not_null else None,
        "upper_bound": conversions.to_bytes(value_type, max(not_null)) if not_null else None,
    }


def manifest_file_of_record(record: Record) -> ManifestFile:
    return ManifestFile(
        path=str(record["manifest_path"]),
        length=record["manifest_length"],
        spec_id=record["partition_spec_id"],
        content=record["content"],
        sequence_number=record["sequence_number"],
        snapshot_id=record.get("added_snapshot_id") or 0,
        live_files=record["added_files_count"] + record["existing_files_count"],
        live_rows=record["added_rows_count"] + record["existing_rows_count"],
        record=record,
    )


def encode_list_header(snapshot_id: int, parent_id: int | None, sequence_number: int) -> bytes:
    """Returns the Avro header of the manifest list of a snapshot."""
    return avro.encode_header(
        {
            "avro.schema": _MANIFEST_LIST_SCHEMA_JSON,
            "snapshot-id": str(snapshot_id).encode(),
            "parent-snapshot-id": b"null" if parent_id is None else str(parent_id).encode(),
            "sequence-number": str(sequence_number).encode(),
            "format-version": b"2",
        }
    )


_parsed_list_schema: list[Any] = []


def _encode_list_record(record: Record) -> bytes:
    import fastavro  # loaded with the first commit

    if not _parsed_list_schema:
        _parsed_list_schema.append(fastavro.parse_schema(MANIFEST_LIST_SCHEMA))
    encoded = io.BytesIO()
    fastavro.schemaless_writer(encoded, _parsed_list_schema[0], record)
    return encoded.getvalue()
