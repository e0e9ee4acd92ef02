"""The files of a snapshot as a scan plans with them: where each is, and which offsets it can hold.

A data file without bounds of `shard` or `offset` must be opened to find out (`low` and `high` are None). A delete file
applies to every data file that is not younger, by sequence numbers, which an entry may inherit from its manifest.
Deletes by value apply to data files of their own partition, or to all if they were written without a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from icestream.catalog.topic_rules.topic_schema import LEVELS
from icestream.iceberg.conversions import integer_from_bytes
from icestream.iceberg.manifests import DATA_CONTENT, EQUALITY_DELETES_CONTENT, ManifestEntry
from icestream.model.pipeline_file_name import parse_pipeline_file
from icestream.readers.level_bounds import GroupLevels, LevelBounds, known_levels

_FILE_PATH: Final = 2147483546  # the field id of `file_path` in a file of position deletes
_NAME_MAPPING: Final = "schema.name-mapping.default"


class ScanBounds(NamedTuple):
    """Both ends are inclusive; None: unknown."""

    low: int | None
    high: int | None

    def may_hold(self, value: int) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)


UNKNOWN: Final = ScanBounds(None, None)


class Partition(NamedTuple):
    """The partition of a file: the spec that it was written with, and the values of that spec's fields."""

    spec_id: int = 0
    values: tuple[Any, ...] = ()


class TableColumns(NamedTuple):
    """How the columns of a table are found in its files: by field id, or by name in files that carry no ids."""

    ids: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]]  # the column's own name first, then those of the table's name mapping


class ScanDataFile(NamedTuple):
    """A data file of a snapshot, with the shards, offsets and times that it can hold."""

    path: str
    format: str
    rows: int
    size_bytes: int
    sequence: int
    shards: ScanBounds = UNKNOWN
    offsets: ScanBounds = UNKNOWN
    times: ScanBounds = UNKNOWN
    partition: Partition = Partition()
    levels: GroupLevels | None = None  # of the topics of its rows; None: unknown

    @property
    def precedence(self) -> tuple[bool, int]:
        """Where several files have a row of the same offset, the file with the lowest precedence wins: files of the
        pipeline before those of other engines, then the one that was committed first."""
        return parse_pipeline_file(self.path) is None, self.sequence


class ScanDeleteFile(NamedTuple):
    """A delete file of a snapshot: position deletes, a deletion vector, or equality deletes."""

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

    def applies_to(self, file: ScanDataFile) -> bool:
        if self.content == EQUALITY_DELETES_CONTENT:
            # Equality deletes apply to older files only; position deletes also to files of their own commit (Iceberg's
            # specification).
            return file.sequence < self.sequence and (not self.partition.values or self.partition == file.partition)
        return file.sequence <= self.sequence and self.target in (None, file.path)


class SnapshotFiles(NamedTuple):
    """The live files of a snapshot."""

    data: tuple[ScanDataFile, ...]
    deletes: tuple[ScanDeleteFile, ...]

    def deletes_of(self, file: ScanDataFile) -> tuple[ScanDeleteFile, ...]:
        return tuple(delete for delete in self.deletes if delete.applies_to(file))


def field_ids(schema: Mapping[str, Any]) -> dict[str, int]:
    return {str(field["name"]): int(field["id"]) for field in schema["fields"]}


def table_columns(schema: Mapping[str, Any], properties: Mapping[str, str]) -> TableColumns:
    """Returns the columns of a table. A name mapping that cannot be decoded is ignored: columns are then found by their
    own names."""
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
    entries: Iterable[ManifestEntry], manifest_sequence_number: int, ids: Mapping[str, int], spec_id: int = 0
) -> list[ScanDataFile | ScanDeleteFile]:
    """Returns the live files of a manifest."""
    return [_file(entry, manifest_sequence_number, ids, spec_id) for entry in entries if entry.is_live]


def _file(
    entry: ManifestEntry, manifest_sequence_number: int, ids: Mapping[str, int], spec_id: int
) -> ScanDataFile | ScanDeleteFile:
    """Returns the file of a manifest entry, with its bounds decoded."""
    lower, upper = entry.lower_bounds, entry.upper_bounds
    sequence = entry.sequence_number(manifest_sequence_number)
    partition = Partition(spec_id, tuple(entry.partition.values()))
    if entry.content != DATA_CONTENT:
        return ScanDeleteFile(
            entry.file_path,
            entry.file_format,
            entry.content,
            entry.record_count,
            entry.file_size_bytes,
            sequence,
            _target(entry, lower, upper),
            partition,
            entry.equality_ids,
            entry.content_range,
        )
    return ScanDataFile(
        entry.file_path,
        entry.file_format,
        entry.record_count,
        entry.file_size_bytes,
        sequence,
        _bounds(lower, upper, ids.get("shard")),
        _bounds(lower, upper, ids.get("offset")),
        _bounds(lower, upper, ids.get("append_time")),
        partition,
        _levels(entry, lower, upper, ids) if LEVELS[0] in ids else None,
    )


def _levels(
    entry: ManifestEntry, lower: Mapping[int, bytes], upper: Mapping[int, bytes], ids: Mapping[str, int]
) -> GroupLevels | None:
    """Returns the bounds of the level columns. Bounds of texts may be truncated, and still enclose the values."""
    nulls = entry.null_counts
    bounds = []
    for name in LEVELS:
        field_id = ids.get(name, -1)
        count = nulls.get(field_id)
        is_known = count is not None
        bounds.append(
            LevelBounds(
                lower.get(field_id), upper.get(field_id), not is_known or count != entry.record_count, count != 0
            )
        )
    return known_levels(bounds)


def _target(entry: ManifestEntry, lower: Mapping[int, bytes], upper: Mapping[int, bytes]) -> str | None:
    """Returns the only data file that position deletes apply to; None if unknown.

    Bounds of a text may be truncated, so they name a file only where both are equal.
    """
    if entry.referenced_data_file is not None:
        return entry.referenced_data_file
    low, high = lower.get(_FILE_PATH), upper.get(_FILE_PATH)
    return low.decode("utf-8", "replace") if low is not None and low == high else None


def _bounds(lower: Mapping[int, bytes], upper: Mapping[int, bytes], field_id: int | None) -> ScanBounds:
    if field_id is None:
        return UNKNOWN
    return ScanBounds(integer_from_bytes(lower.get(field_id)), integer_from_bytes(upper.get(field_id)))
