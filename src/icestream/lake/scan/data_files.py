"""The files of a snapshot as a reader plans with them: where each lies, and which offsets it can hold.

A data file without bounds for `shard` or `offset` has to be looked into (`low` and `high` are None). A delete file
counts for every data file that is not younger; that is decided by sequence numbers, which an entry takes from its
manifest where it has none of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from icestream.lake.manifests import Record

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_DELETED: Final = 2  # the status of an entry that says that a file is gone
_ADDED: Final = 1
_FILE_PATH: Final = 2147483546  # the field id of `file_path` in a file of position deletes
_WIDTHS: Final = {4: "<i", 8: "<q"}


class Bounds(NamedTuple):
    """Both ends inclusive; None: not known."""

    low: int | None
    high: int | None

    def may_hold(self, value: int) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)


UNKNOWN: Final = Bounds(None, None)


class DataFile(NamedTuple):
    path: str
    format: str
    rows: int
    size_bytes: int
    sequence: int
    shards: Bounds = UNKNOWN
    offsets: Bounds = UNKNOWN
    times: Bounds = UNKNOWN


class DeleteFile(NamedTuple):
    path: str
    format: str
    content: int
    rows: int
    size_bytes: int
    sequence: int
    target: str | None = None  # the only data file that it can name

    def applies_to(self, file: DataFile) -> bool:
        if self.content == EQUALITY_DELETES:
            return file.sequence < self.sequence
        return file.sequence <= self.sequence and self.target in (None, file.path)


class SnapshotFiles(NamedTuple):
    data: tuple[DataFile, ...]
    deletes: tuple[DeleteFile, ...]

    def deletes_of(self, file: DataFile) -> tuple[DeleteFile, ...]:
        return tuple(one for one in self.deletes if one.applies_to(file))


def field_ids(schema: Mapping[str, Any]) -> dict[str, int]:
    return {str(field["name"]): int(field["id"]) for field in schema["fields"]}


def files_of(entries: Iterable[Record], sequence: int, ids: Mapping[str, int]) -> list[DataFile | DeleteFile]:
    return [_file(entry, sequence, ids) for entry in entries if entry.get("status") != _DELETED]


def _file(entry: Record, inherited: int, ids: Mapping[str, int]) -> DataFile | DeleteFile:
    file = entry["data_file"]
    sequence = entry.get("sequence_number")
    if sequence is None:
        sequence = inherited if entry.get("status") == _ADDED else 0
    path, format_ = str(file["file_path"]), str(file.get("file_format") or "").lower()
    rows, size = int(file.get("record_count") or 0), int(file.get("file_size_in_bytes") or 0)
    content = int(file.get("content") or DATA)
    lower, upper = _pairs(file.get("lower_bounds")), _pairs(file.get("upper_bounds"))
    if content != DATA:
        return DeleteFile(path, format_, content, rows, size, sequence, _target(file, lower, upper))
    found = [_bounds(lower, upper, ids.get(name)) for name in ("shard", "offset", "append_time")]
    return DataFile(path, format_, rows, size, sequence, *found)


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
