"""`ManifestFile`: what a manifest list says of a manifest. Also how those that others wrote are read."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from icestream.iceberg.manifest_entry import Entry
from icestream.iceberg.manifest_layout import LIST, ManifestLayout

# Names that older writers use for three of the fields.
_OLD_NAMES: Final = {
    "added_files_count": "added_data_files_count",
    "existing_files_count": "existing_data_files_count",
    "deleted_files_count": "deleted_data_files_count",
}
_COUNTS: Final = (
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
)
_BYTES_OF: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "int": struct.Struct("<i").pack,
    "date": struct.Struct("<i").pack,
    "long": struct.Struct("<q").pack,
    "timestamptz": struct.Struct("<q").pack,
    "timestamp": struct.Struct("<q").pack,
    "string": str.encode,
    "binary": bytes,
    "boolean": lambda value: b"\x01" if value else b"\x00",
}


class ManifestFile(NamedTuple):
    path: str
    spec_id: int
    content: int
    sequence: int
    snapshot_id: int
    files: int  # those that are in the table
    rows: int
    encoded: bytes  # as a record of a manifest list


def _encoded(record: dict[str, Any]) -> bytes:
    import fastavro

    made = io.BytesIO()
    fastavro.schemaless_writer(made, _schema(), record)
    return made.getvalue()


_parsed: list[Any] = []


def _schema() -> Any:
    """Avro's library is loaded with the first commit."""
    import fastavro

    if not _parsed:
        _parsed.append(fastavro.parse_schema(LIST))
    return _parsed[0]


def read_manifest_file(record: Mapping[str, Any]) -> ManifestFile:
    """From a manifest list of any writer."""
    named = {name: record[old] for name, old in _OLD_NAMES.items() if name not in record and old in record}
    found = {**record, **named}
    counts = {name: found.get(name) or 0 for name in _COUNTS}
    kept = {field["name"]: found.get(field["name"]) for field in LIST["fields"]} | counts
    kept |= {name: kept[name] or 0 for name in ("content", "sequence_number", "min_sequence_number")}
    return _made(kept)


def new_manifest_file(
    layout: ManifestLayout, path: str, length: int, entries: Sequence[Entry], snapshot_id: int, sequence: int
) -> ManifestFile:
    new = [one for one in entries if one.is_new]
    old_rows = sum(one.rows for one in entries) - (new_rows := sum(one.rows for one in new))
    record = {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": layout.spec_id,
        "content": 0,
        "sequence_number": sequence,
        "min_sequence_number": min([sequence if one.sequence is None else one.sequence for one in entries]),
        "added_snapshot_id": snapshot_id,
        "added_files_count": len(new),
        "existing_files_count": len(entries) - len(new),
        "deleted_files_count": 0,
        "added_rows_count": new_rows,
        "existing_rows_count": old_rows,
        "deleted_rows_count": 0,
        "partitions": [_summary(layout, number, entries) for number in range(len(layout.partition))],
    }
    return _made(record)


def _summary(layout: ManifestLayout, number: int, entries: Sequence[Entry]) -> dict[str, Any]:
    """Of one partition field: engines skip manifests by it."""
    found = [one.partition[number] for one in entries]
    known = [one for one in found if one is not None]
    as_bytes = _BYTES_OF[layout.partition[number].kind]
    return {
        "contains_null": len(known) < len(found),
        "contains_nan": False,
        "lower_bound": as_bytes(min(known)) if known else None,
        "upper_bound": as_bytes(max(known)) if known else None,
    }


def _made(record: dict[str, Any]) -> ManifestFile:
    return ManifestFile(
        record["manifest_path"],
        record["partition_spec_id"],
        record["content"],
        record["sequence_number"],
        record["added_snapshot_id"],
        record["added_files_count"] + record["existing_files_count"],
        record["added_rows_count"] + record["existing_rows_count"],
        _encoded(record),
    )
