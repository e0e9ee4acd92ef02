"""The files of a snapshot as a reader plans with them: where each lies, and which offsets it can hold.

A data file without bounds for `shard` or `offset` has to be looked into (`low` and `high` are None). A delete file
counts for every data file that is not younger; that is decided by sequence numbers, which an entry takes from its
manifest where it has none of its own. Deletes by value count for the data files of their own partition, or for all of
them where they were written without a partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from icestream.iceberg.avro_manifests import Record
from icestream.model.file_name import our_file

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_DELETED: Final = 2  # the status of an entry that says that a file is gone
_ADDED: Final = 1
_FILE_PATH: Final = 2147483546  # the field id of `file_path` in a file of position deletes
_NAME_MAPPING: Final = "schema.name-mapping.default"
_WIDTHS: Final = {4: "<i", 8: "<q"}


class Bounds(NamedTuple):
    """Both ends inclusive; None: not known."""

    low: int | None
    high: int | None

    def may_hold(self, value: int) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)


UNKNOWN: Final = Bounds(None, None)


class Partition(NamedTuple):
    """The partition of a file: the spec that it was written with, and the values of that spec's fields."""

    spec_id: int = 0
    values: tuple[Any, ...] = ()


class TableColumns(NamedTuple):
    """How the columns of a table are found in its files: by field id, or by name in files that carry no ids."""

    ids: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]]  # the column's own name first, then those of the table's name mapping


class DataFile(NamedTuple):
    path: str
    format: str
    rows: int
    size_bytes: int
    sequence: int
    shards: Bounds = UNKNOWN
    offsets: Bounds = UNKNOWN
    times: Bounds = UNKNOWN
    partition: Partition = Partition()

    @property
    def precedence(self) -> tuple[bool, int]:
        """The lowest counts where several files have a row of one offset: a file of the pipeline before those of other
        engines, then the one that was committed first."""
        return our_file(self.path) is None, self.sequence


class DeleteFile(NamedTuple):
    path: str
    format: str
    content: int
    rows: int
    size_bytes: int
    sequence: int
    target: str | None = None  # the only data file that it can name
    partition: Partition = Partition()
    equality_ids: tuple[int, ...] = ()  # deletes by value: the field ids of the columns that are compared
    blob: tuple[int, int] = (0, 0)  # a deletion vector: where it begins in its file, and how many bytes it has

    def applies_to(self, file: DataFile) -> bool:
        if self.content == EQUALITY_DELETES:
            return file.sequence < self.sequence and (not self.partition.values or self.partition == file.partition)
        return file.sequence <= self.sequence and self.target in (None, file.path)


class SnapshotFiles(NamedTuple):
    data: tuple[DataFile, ...]
    deletes: tuple[DeleteFile, ...]

    def deletes_of(self, file: DataFile) -> tuple[DeleteFile, ...]:
        return tuple(one for one in self.deletes if one.applies_to(file))


def field_ids(schema: Mapping[str, Any]) -> dict[str, int]:
    return {str(field["name"]): int(field["id"]) for field in schema["fields"]}


def table_columns(schema: Mapping[str, Any], properties: Mapping[str, str]) -> TableColumns:
    """Of a table. A name mapping that cannot be decoded counts as none: columns are then found by their own names."""
    ids = field_ids(schema)
    try:
        mapped = msgspec.json.decode(properties.get(_NAME_MAPPING, "[]"), type=list[_MappedField])
    except msgspec.MsgspecError:
        mapped = []
    by_id = {field.field_id: tuple(field.names) for field in mapped if field.field_id is not None}
    return TableColumns(ids, {name: (name, *by_id.get(id_, ())) for name, id_ in ids.items()})


class _MappedField(msgspec.Struct, rename="kebab"):
    field_id: int | None = None
    names: list[str] = []


def files_of(
    entries: Iterable[Record], sequence: int, ids: Mapping[str, int], spec_id: int = 0
) -> list[DataFile | DeleteFile]:
    return [_file(entry, sequence, ids, spec_id) for entry in entries if entry.get("status") != _DELETED]


def _file(entry: Record, inherited: int, ids: Mapping[str, int], spec_id: int) -> DataFile | DeleteFile:
    file = entry["data_file"]
    sequence = entry.get("sequence_number")
    if sequence is None:
        sequence = inherited if entry.get("status") == _ADDED else 0
    path, format_ = str(file["file_path"]), str(file.get("file_format") or "").lower()
    rows, size = int(file.get("record_count") or 0), int(file.get("file_size_in_bytes") or 0)
    content = int(file.get("content") or DATA)
    lower, upper = _pairs(file.get("lower_bounds")), _pairs(file.get("upper_bounds"))
    partition = Partition(spec_id, tuple((file.get("partition") or {}).values()))
    if content != DATA:
        equality_ids = tuple(file.get("equality_ids") or ())
        blob = int(file.get("content_offset") or 0), int(file.get("content_size_in_bytes") or 0)
        target = _target(file, lower, upper)
        return DeleteFile(path, format_, content, rows, size, sequence, target, partition, equality_ids, blob)
    shards, offsets, times = (_bounds(lower, upper, ids.get(name)) for name in ("shard", "offset", "append_time"))
    return DataFile(path, format_, rows, size, sequence, shards, offsets, times, partition)


def _pairs(bounds: Sequence[Mapping[str, Any]] | None) -> dict[int, bytes]:
    return {one["key"]: one["value"] for one in bounds or ()}


def _target(file: Mapping[str, Any], lower: Mapping[int, bytes], upper: Mapping[int, bytes]) -> str | None:
    """Bounds of a text may be cut short, so they name a file only where both are the same and whole."""
    named = file.get("referenced_data_file")
    if named:
        return str(named)
    low, high = lower.get(_FILE_PATH), upper.get(_FILE_PATH)
    return low.decode("utf-8", "replace") if low is not None and low == high else None


def _bounds(lower: Mapping[int, bytes], upper: Mapping[int, bytes], field_id: int | None) -> Bounds:
    if field_id is None:
        return UNKNOWN
    return Bounds(_number(lower.get(field_id)), _number(upper.get(field_id)))


def _number(value: bytes | None) -> int | None:
    """An int or a long, the lowest byte first."""
    form = _WIDTHS.get(len(value)) if value is not None else None
    return int(struct.unpack(form, value)[0]) if form is not None and value is not None else None
