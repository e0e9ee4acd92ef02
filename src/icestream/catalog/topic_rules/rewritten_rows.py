"""Whether the files of a rewrite hold the rows of the files that they replace, as far as manifests tell. Pure.

Files whose bounds overlap, of shards and then of offsets, form a *band*, replaced and added files alike. A rewrite
moves rows only between the files of a band, so in each band the replaced and the added files must have

    the same number of rows
    the same lowest and highest shard, and the same lowest and highest offset

    replaced    [0 …… 9] [10 …… 19]       [40 … 49]
    added       [0 …………………………………… 19]       [40 … 49]        two bands: 20 rows from 0 to 19, 10 rows from 40 to 49

That proves: no row is lost, doubled or moved to another range without another row taking its place in the same band. It
does not prove that the rows of a band are the same rows: a task that drops one row and doubles another one of the same
band, or that changes a payload, passes. The digests in the requirement of the rewrite find that (rewrite_check.py,
docs/adr/0064).

Rows that a delete file deletes are left out of the added files (hazard 77). A band with a file to which a delete may
apply has at most as many rows after it, within the bounds of before; every other band keeps its rows.

A file without bounds is left alone: nothing could be proven about it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from icestream import errors
from icestream.iceberg.conversions import integer_from_bytes
from icestream.iceberg.manifests import EQUALITY_DELETES_CONTENT, ManifestEntry
from icestream.iceberg.table_metadata import TableMetadata
from icestream.model.task_messages import WrittenFile

_FILE_PATH_FIELD: Final = 2_147_483_546  # of position delete files: the path of the data file


class Bounds(NamedTuple):
    """The lowest and the highest value of a column, both included."""

    low: int
    high: int


class DataFile(NamedTuple):
    """A data file of a topic's table, as a manifest describes it."""

    location: str
    rows: int
    shards: Bounds | None  # None: the manifest has no bounds
    offsets: Bounds | None
    sequence_number: int  # data sequence number; by it a delete file applies or does not


class DeleteFile(NamedTuple):
    """A delete file of a topic's table, as a manifest describes it."""

    location: str
    sequence_number: int
    is_by_value: bool
    paths: tuple[bytes, bytes] | None = None  # the lowest and highest data file that it names; None: any
    rows: int = 0  # of the delete file: so many rows it deletes at most, if it is not by value
    name: str = ""  # what tells it from all others (`ManifestEntry.delete_name`)

    def may_apply_to(self, file: DataFile) -> bool:
        """True if it may delete rows of the file. Partitions are not compared: a wrong answer only delays a rewrite."""
        # Iceberg's rule: deletes by value apply to files that are older, deletes by position also to files of the same
        # commit.
        if self.is_by_value:
            return self.sequence_number > file.sequence_number
        if self.sequence_number < file.sequence_number:
            return False
        return self.paths is None or self.paths[0] <= file.location.encode() <= self.paths[1]


class FileChanges(NamedTuple):
    """The files that a snapshot removes from those of its parent and adds to them."""

    removed: Sequence[DataFile]
    added: Sequence[DataFile]
    deletes: Sequence[DeleteFile] = ()  # of the parent
    removed_deletes: Sequence[DeleteFile] = ()  # those of them that the snapshot does not have
    live: Sequence[DataFile] = ()  # all data files of the snapshot; read only if it removes deletes


class BoundColumns(NamedTuple):
    """The field ids of the columns that make a row's position."""

    shard: int
    offset: int


def bound_columns(table: TableMetadata) -> BoundColumns:
    field_ids = {field["name"]: field["id"] for field in table.current_schema["fields"]}
    return BoundColumns(field_ids["shard"], field_ids["offset"])


def data_file_of_entry(entry: ManifestEntry, columns: BoundColumns, manifest_sequence_number: int) -> DataFile:
    """The data file of a manifest entry of any writer."""
    lower, upper = entry.lower_bounds, entry.upper_bounds
    return DataFile(
        entry.file_path,
        entry.record_count,
        _bounds(lower.get(columns.shard), upper.get(columns.shard)),
        _bounds(lower.get(columns.offset), upper.get(columns.offset)),
        entry.sequence_number(manifest_sequence_number),
    )


def data_file_of_written(file: WrittenFile, columns: BoundColumns, sequence_number: int) -> DataFile:
    """A file that a task wrote, as the manifest of the commit with this sequence number will describe it."""
    lower, upper = file.lower_bounds, file.upper_bounds
    return DataFile(
        file.location,
        file.rows,
        _bounds(lower.get(columns.shard), upper.get(columns.shard)),
        _bounds(lower.get(columns.offset), upper.get(columns.offset)),
        sequence_number,
    )


def delete_file_of_entry(entry: ManifestEntry, manifest_sequence_number: int) -> DeleteFile:
    """The delete file of a manifest entry of any writer, with the data files that it can name."""
    number = entry.sequence_number(manifest_sequence_number)
    paths: tuple[bytes, bytes] | None = None
    if entry.content != EQUALITY_DELETES_CONTENT:
        paths = _named_paths(entry)
    return DeleteFile(
        entry.file_path,
        number,
        entry.content == EQUALITY_DELETES_CONTENT,
        paths,
        entry.record_count,
        entry.delete_name,
    )


def _named_paths(entry: ManifestEntry) -> tuple[bytes, bytes] | None:
    """The lowest and the highest data file that position deletes name; None if the manifest does not tell."""
    if entry.referenced_data_file is not None:
        path = entry.referenced_data_file.encode()
        return path, path
    low, high = entry.lower_bounds.get(_FILE_PATH_FIELD), entry.upper_bounds.get(_FILE_PATH_FIELD)
    # A bound of a text may be cut off: the lower one still lies below the text, the upper one need not lie above it.
    return None if low is None or high is None else (low, _upper_end(high, low))


def _upper_end(high: bytes, low: bytes) -> bytes:
    """A value that no path within the bounds exceeds, also where an engine cut the bound off without raising it."""
    return high if high == low else high + b"\xff"


def _bounds(low: bytes | None, high: bytes | None) -> Bounds | None:
    lowest, highest = integer_from_bytes(low), integer_from_bytes(high)
    return None if lowest is None or highest is None else Bounds(lowest, highest)


# --- the rule ---------------------------------------------------------------------------------------------------------


def find_unapplied(
    changes: FileChanges, sequence_number: int, applied: Collection[str]
) -> tuple[DeleteFile, DataFile] | None:
    """A delete file whose rows a rewrite would bring back, and the replaced file that has them; None if there is none.

    `applied`: the names of the delete files that the rewrite has looked at. A delete by value that is younger than
    `sequence_number`, that of the added files, goes on to apply to these.
    """
    for delete in changes.deletes:
        if delete.name in applied or (delete.is_by_value and delete.sequence_number > sequence_number):
            continue
        for file in changes.removed:
            if delete.may_apply_to(file):
                return delete, file
    return None


def find_needed(changes: FileChanges) -> tuple[DeleteFile, DataFile] | None:
    """A delete file that the snapshot removes although it may apply to one of its files, and that file."""
    for delete in changes.removed_deletes:
        for file in changes.live:
            if delete.may_apply_to(file):
                return delete, file
    return None


def check_same_rows(changes: FileChanges, applied: Collection[str] = (), *, is_erasing: bool = False) -> None:
    """Raises Contradiction unless the added files hold, as far as their bounds tell, the rows of the removed ones.
    `applied`: the names of the delete files whose rows are left out. `is_erasing`: any band may lose rows."""
    deletes = [delete for delete in changes.deletes if delete.name in applied]
    removed_rows, added_rows = _rows(changes.removed), _rows(changes.added)
    if removed_rows != added_rows and not deletes and not is_erasing:
        raise _contradiction(f"a rewrite removes {removed_rows} rows and adds {added_rows}")
    for band in bands(changes):
        removed_rows, added_rows = _rows(band.removed), _rows(band.added)
        if is_erasing or any(delete.may_apply_to(file) for delete in deletes for file in band.removed):
            _check_fewer_rows(band)
            continue
        if removed_rows != added_rows:
            raise _contradiction(
                f"a rewrite removes {removed_rows} rows and adds {added_rows} in {_words(*_extent(band.files))}"
            )
        before, after = _extent(band.removed), _extent(band.added)
        if before != after:
            raise _contradiction(f"a rewrite moves rows from {_words(*before)} to {_words(*after)}")


def _check_fewer_rows(band: Band) -> None:
    """Raises Contradiction if a band whose rows may be deleted has more rows than before, or rows elsewhere."""
    removed_rows, added_rows = _rows(band.removed), _rows(band.added)
    if added_rows > removed_rows:
        raise _contradiction(
            f"a rewrite removes {removed_rows} rows and adds {added_rows} in {_words(*_extent(band.files))}"
        )
    if not band.added:
        return
    before, after = _extent(band.removed), _extent(band.added)
    if any(inner.low < outer.low or inner.high > outer.high for inner, outer in zip(after, before, strict=True)):
        raise _contradiction(f"a rewrite moves rows from {_words(*before)} to {_words(*after)}")


class Band(NamedTuple):
    """The files of a rewrite whose bounds overlap, directly or by way of others."""

    removed: list[DataFile]
    added: list[DataFile]

    @property
    def files(self) -> list[DataFile]:
        return self.removed + self.added


def bands(changes: FileChanges) -> list[Band]:
    """The bands of a rewrite. Raises Contradiction for a file without bounds."""
    removed_locations = {file.location for file in changes.removed}
    files = [*changes.removed, *changes.added]
    by_shards = _overlapping(files, lambda file: _box(file)[0])
    return [
        Band(
            [file for file in group if file.location in removed_locations],
            [file for file in group if file.location not in removed_locations],
        )
        for shard_group in by_shards
        for group in _overlapping(shard_group, lambda file: _box(file)[1])
    ]


def _overlapping(files: Iterable[DataFile], bounds_of: Callable[[DataFile], Bounds]) -> list[list[DataFile]]:
    """The files in groups: two files whose bounds overlap are in the same group, and so is what overlaps either."""
    groups: list[list[DataFile]] = []
    highest = 0
    for file in sorted(files, key=bounds_of):
        bounds = bounds_of(file)
        if groups and bounds.low <= highest:
            groups[-1].append(file)
            highest = max(highest, bounds.high)
        else:
            groups.append([file])
            highest = bounds.high
    return groups


def _box(file: DataFile) -> tuple[Bounds, Bounds]:
    if file.shards is None or file.offsets is None:
        raise _contradiction(f"{file.location} has no bounds of shard and offset: its rows cannot be compared")
    return file.shards, file.offsets


def _extent(files: Iterable[DataFile]) -> tuple[Bounds, Bounds]:
    boxes = [_box(file) for file in files]
    return _union(shards for shards, _ in boxes), _union(offsets for _, offsets in boxes)


def _union(bounds: Iterable[Bounds]) -> Bounds:
    lows, highs = zip(*bounds, strict=True)
    return Bounds(min(lows), max(highs))


def _rows(files: Iterable[DataFile]) -> int:
    return sum(file.rows for file in files)


def _words(shards: Bounds, offsets: Bounds) -> str:
    shard_words = f"shard {shards.low}" if shards.low == shards.high else f"shards {shards.low} to {shards.high}"
    return f"{shard_words}, offsets {offsets.low} to {offsets.high}"


def _contradiction(problem: str) -> errors.Contradiction:
    return errors.Contradiction(problem, hint="the table is unchanged; its files stay as they are")
