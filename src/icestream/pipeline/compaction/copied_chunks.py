"""Puts a file together from the column chunks of files that follow one another, most of which are not decoded.

A column chunk is a run of pages, each compressed and decoded by itself; only a dictionary is shared, and precedes them.
So the chunks of a column without a dictionary, put one behind another, are a chunk (docs/adr/0136):

    row group of the output    ... | payload of file 1 | payload of file 2 | ... | producer_name, encoded anew | ...

    which files      nothing of them is deleted, and their rows follow one another: by shard and offset as the sources
                     are sorted here, which is checked row by row. A row group is of one shard (hazard 94)
    which columns    that are in every source, without dictionary, and have the codec, level, encodings and levels that
                     a file has which is written now; its writer is the same, too. Of small columns, and of all columns
                     of small files, nothing is copied: pages would stay as small as they are. Most often it is the
                     payload alone, which is most of the bytes. All others are decoded and encoded
    how large        row groups are as large as those of rows that are encoded

It decides by footers, which may be wrong: what was put together is read back and compared like any other rewrite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from icestream import limits
from icestream.catalog.topic_rules.topic_schema import COLUMNS, MQTT_COLUMNS
from icestream.pipeline.files import parquet_footer as footer
from icestream.pipeline.files.data_file import CODEC_KEY, ROW_GROUP_BYTES, ROW_GROUP_ROWS, decoded_bytes, encode_parquet
from icestream.pipeline.files.parquet_layout import ARROW, REPEATED, ParquetLayout
from icestream.pipeline.round_plan import TableTarget

_NUMBER_BYTES: Final = 8  # of a value that is not text, once it is decoded
_ORDER: Final = ("shard", "offset")
_TEXTS: Final = tuple(name for name, kind in (COLUMNS | MQTT_COLUMNS).items() if kind in ("binary", "string", "map"))
_PHYSICAL_BYTES: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8}
_VALUES: Final[dict[str, Any]] = {  # any value of each type
    "int": 0,
    "long": 0,
    "timestamptz": 0,
    "boolean": False,
    "binary": b"",
    "string": "",
    "map": [("", "")],
}
_SHAPE: Final = (1, 2, 3, 4)  # of ColumnMetaData: what does not depend on the rows


class Source(NamedTuple):
    """A file as it was read."""

    data: Any
    metadata: Any


class AssembledFile(NamedTuple):
    """The bytes of a file, in pieces, and the columns of its rows that were decoded: shard and offset among them."""

    pieces: list[Any]
    rows: Any


class _RowGroup(NamedTuple):
    """A row group of a source, with the place of each of its Parquet columns."""

    source: Source
    number: int
    first_row: int  # of its file
    rows: int
    shard: int
    first_offset: int
    places: dict[str, int]

    def chunk(self, path: str) -> Any:
        return self.source.metadata.row_group(self.number).column(self.places[path])


class _Template(NamedTuple):
    """A file with all columns, as it is written now: its one row shows the encodings."""

    columns: list[str]
    metadata: Any
    tree: footer.Struct

    @property
    def leaves(self) -> list[str]:
        """The paths of the Parquet columns."""
        return _paths(self.metadata.schema)


def copy_chunks(
    sources: Sequence[Source], layout: ParquetLayout, target: TableTarget, entries: Mapping[bytes, bytes]
) -> AssembledFile | None:
    """Returns one file with the rows of all sources; None if they are to be decoded. `entries`: metadata of its footer,
    beside the codec. The columns of the sources are known to be those of the layout."""
    template = _template(sources, layout, target)
    groups = sorted(_row_groups(sources, template), key=lambda group: (group.shard, group.first_offset))
    copied = {column for column in template.columns if groups and _is_copied(column, groups, template)}
    if not copied:
        return None
    encoded = [column for column in template.columns if column not in copied]
    rows = _decoded(groups, sources, {*_ORDER, *encoded})
    if not _is_in_order(rows, groups):
        return None
    runs = list(_runs(groups, rows.select(encoded), template, copied))
    parts = None if not encoded else _encoded(rows, encoded, layout, target, runs)
    return AssembledFile(_assembled(template, copied, runs, parts, entries), rows)


# --- what can be copied -----------------------------------------------------------------------------------------------


def _template(sources: Sequence[Source], layout: ParquetLayout, target: TableTarget) -> _Template:
    stored = {_column_of(path) for source in sources for path in _paths(source.metadata.schema)}
    columns = [column for column in layout.columns if column.name in stored]
    row = {
        column.name: pa.array([_VALUES[column.type]], column.map_type if column.type == "map" else ARROW[column.type])
        for column in columns
    }
    some = ParquetLayout(layout.schema_id, tuple(columns))
    data, _ = encode_parquet(some.table(row, 1), some, target.codec, target.codec_level)
    metadata = pq.read_metadata(pa.BufferReader(data))
    return _Template([column.name for column in columns], metadata, footer.read_footer(memoryview(data)))


def _paths(schema: Any) -> list[str]:
    return [schema.column(number).path for number in range(len(schema))]


def _column_of(path: str) -> str:
    """The column of the table that a Parquet column is part of."""
    return path.split(".", maxsplit=1)[0]


def _row_groups(sources: Sequence[Source], template: _Template) -> list[_RowGroup]:
    """All row groups; none if one of them cannot be copied: it was written by another program or with another codec or
    level, or does not state that its rows are of one shard."""
    codec, writer = template.metadata.metadata[CODEC_KEY], template.metadata.created_by
    groups: list[_RowGroup] = []
    schema, places = None, {}
    for source in sources:
        metadata = source.metadata
        if metadata.created_by != writer or (metadata.metadata or {}).get(CODEC_KEY) != codec:
            return []
        # Most files have the schema of the one before.
        if schema is None or not metadata.schema.equals(schema):
            schema = metadata.schema
            places = {path: number for number, path in enumerate(_paths(schema))}
        start = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            shard, offset = (group.column(places[name]).statistics for name in _ORDER)
            if shard is None or offset is None or not (shard.has_min_max and offset.has_min_max):
                return []
            if shard.min_raw != shard.max_raw:
                return []
            groups.append(_RowGroup(source, number, start, group.num_rows, shard.min_raw, offset.min_raw, places))
            start += group.num_rows
    return groups


def _is_copied(column: str, groups: Sequence[_RowGroup], template: _Template) -> bool:
    """Whether the pages of a column are such as would be written now, in each row group, and large enough."""
    size = 0
    for number, path in enumerate(template.leaves):
        if _column_of(path) != column:
            continue
        expected, descriptor = template.metadata.row_group(0).column(number), template.metadata.schema.column(number)
        encodings = set(expected.encodings)
        if expected.has_dictionary_page or not all(path in group.places for group in groups):
            return False
        schemas = {id(group.places): (group.source.metadata.schema, group.places[path]) for group in groups}
        if not all(schema.column(place).equals(descriptor) for schema, place in schemas.values()):
            return False
        for group in groups:
            chunk = group.chunk(path)
            if chunk.has_dictionary_page or set(chunk.encodings) != encodings:
                return False
            if chunk.compression != expected.compression:
                return False
            size += chunk.total_uncompressed_size
    return size >= len(groups) * limits.COPIED_CHUNK_BYTES_MIN


# --- what is decoded --------------------------------------------------------------------------------------------------


def _decoded(groups: Sequence[_RowGroup], sources: Sequence[Source], columns: set[str]) -> Any:
    """These columns of all row groups, in the order of the groups. A source without one has nulls in it."""
    tables = {id(source): _read(source, columns) for source in sources}
    slices = [tables[id(group.source)].slice(group.first_row, group.rows) for group in groups]
    return pa.concat_tables(slices, promote_options="default").unify_dictionaries()


def _read(source: Source, columns: set[str]) -> Any:
    stored = [column for column in dict.fromkeys(map(_column_of, _paths(source.metadata.schema))) if column in columns]
    repeated = [name for name in stored if name in REPEATED]
    with (
        pa.BufferReader(source.data) as data,
        pq.ParquetFile(data, metadata=source.metadata, read_dictionary=repeated, pre_buffer=False) as parquet,
    ):
        return parquet.read(columns=stored, use_threads=False)


def _is_in_order(rows: Any, groups: Sequence[_RowGroup]) -> bool:
    """Whether each row group has rows of its shard alone, and offsets rise from row to row of a shard."""
    shard, offset = (rows.column(name).to_numpy() for name in _ORDER)
    stated = np.repeat([group.shard for group in groups], [group.rows for group in groups])
    rises = (offset[1:] > offset[:-1]) | (shard[1:] > shard[:-1])
    return bool(np.array_equal(shard, stated) and rises.all())


def _runs(
    groups: Sequence[_RowGroup], encoded: Any, template: _Template, copied: set[str]
) -> Iterator[list[_RowGroup]]:
    """Yields the row groups that become one: of one shard, and not larger than a row group that is encoded."""
    paths = [path for path in template.leaves if _column_of(path) in copied]
    numbers = sum(not path.startswith(_TEXTS) for path in paths)
    row_bytes = numbers * _NUMBER_BYTES + sum(map(decoded_bytes, encoded.columns)) / max(encoded.num_rows, 1)
    run: list[_RowGroup] = []
    size = 0.0
    for group in groups:
        copied_bytes = sum(group.chunk(path).total_uncompressed_size for path in paths)
        group_bytes = copied_bytes + group.rows * row_bytes
        is_full = size + group_bytes > ROW_GROUP_BYTES or sum(each.rows for each in run) + group.rows > ROW_GROUP_ROWS
        if run and (is_full or group.shard != run[0].shard):
            yield run
            run, size = [], 0.0
        run.append(group)
        size += group_bytes
    yield run


def _encoded(
    rows: Any, columns: Sequence[str], layout: ParquetLayout, target: TableTarget, runs: Sequence[Sequence[_RowGroup]]
) -> Source:
    """A file with the columns that are encoded, in the row groups of the output."""
    some = ParquetLayout(layout.schema_id, tuple(column for column in layout.columns if column.name in columns))
    table = some.table({name: rows.column(name) for name in columns}, rows.num_rows)
    counts = [sum(group.rows for group in run) for run in runs]
    data, _ = encode_parquet(table, some, target.codec, target.codec_level, counts)
    return Source(data, None)


# --- the file ---------------------------------------------------------------------------------------------------------


def _assembled(
    template: _Template,
    copied: set[str],
    runs: Sequence[Sequence[_RowGroup]],
    encoded: Source | None,
    entries: Mapping[bytes, bytes],
) -> list[Any]:
    """Returns the pieces of the file, the footer last."""
    out = _Pieces()
    parts = [] if encoded is None else footer.read_footer(memoryview(encoded.data))[4][1][1]
    shapes = template.tree[4][1][1][0][1][1][1]
    row_groups: list[footer.Struct] = []
    for number, run in enumerate(runs):
        start = out.size
        encoded_chunks = iter(parts[number][1][1][1]) if parts else iter(())
        chunks: list[footer.Struct] = []
        for path, shape in zip(template.leaves, shapes, strict=True):
            if _column_of(path) in copied:
                chunks.append(_copied_chunk(out, shape[3][1], [(group, group.chunk(path)) for group in run]))
            else:
                assert encoded is not None
                chunks.append(_moved_chunk(out, next(encoded_chunks)[3][1], encoded.data))
        row_groups.append(
            {
                1: (
                    footer.LIST,
                    (footer.STRUCT, [{2: (footer.I64, 0), 3: (footer.STRUCT, chunk)} for chunk in chunks]),
                ),
                2: (footer.I64, sum(chunk[6][1] for chunk in chunks)),
                3: (footer.I64, sum(group.rows for group in run)),
                5: (footer.I64, start),
                6: (footer.I64, out.size - start),
            }
        )
    metadata = dict(template.tree)
    metadata[3] = (footer.I64, sum(group[3][1] for group in row_groups))
    metadata[4] = (footer.LIST, (footer.STRUCT, row_groups))
    metadata[5] = (footer.LIST, footer.key_values(template.metadata.metadata | entries))
    out.add(footer.encode_footer(metadata))
    return out.pieces


class _Pieces:
    """The bytes of a file, one piece behind another."""

    def __init__(self) -> None:
        self.pieces: list[Any] = [footer.MAGIC]
        self.size = len(footer.MAGIC)

    def add(self, piece: Any) -> int:
        """Returns where the piece starts."""
        self.pieces.append(piece)
        self.size += len(piece)
        return self.size - len(piece)


def _copied_chunk(out: _Pieces, shape: footer.Struct, parts: Sequence[tuple[_RowGroup, Any]]) -> footer.Struct:
    """Adds the chunks of several row groups as one, and returns its ColumnMetaData."""
    start = out.size
    for group, chunk in parts:
        place = chunk.data_page_offset
        out.add(memoryview(group.source.data)[place : place + chunk.total_compressed_size])
    chunks = [chunk for _, chunk in parts]
    return {
        **{field_id: shape[field_id] for field_id in _SHAPE},
        5: (footer.I64, sum(chunk.num_values for chunk in chunks)),
        6: (footer.I64, sum(chunk.total_uncompressed_size for chunk in chunks)),
        7: (footer.I64, out.size - start),
        9: (footer.I64, start),
        **_statistics(chunks),
    }


def _statistics(chunks: Sequence[Any]) -> footer.Struct:
    """The statistics of several chunks as a field, if each of them has some."""
    parts = [chunk.statistics for chunk in chunks]
    if not all(part is not None and part.has_null_count for part in parts):
        return {}
    statistics: footer.Struct = {3: (footer.I64, sum(part.null_count for part in parts))}
    # A chunk of nulls has no bounds, and needs none.
    bounded = [part for part in parts if part.num_values]
    if bounded and all(part.has_min_max for part in bounded):
        low, high = min(part.min_raw for part in bounded), max(part.max_raw for part in bounded)
        physical = bounded[0].physical_type
        statistics[5], statistics[6] = ((footer.BINARY, _stored(value, physical)) for value in (high, low))
        statistics[7] = statistics[8] = (footer.BOOLEAN, True)
    return {12: (footer.STRUCT, statistics)}


def _stored(value: Any, physical: str) -> bytes:
    if isinstance(value, bytes):
        return value
    return int(value).to_bytes(_PHYSICAL_BYTES[physical], "little", signed=physical != "BOOLEAN")


def _moved_chunk(out: _Pieces, chunk: footer.Struct, data: Any) -> footer.Struct:
    """Adds a chunk of another file, and returns its ColumnMetaData with the offsets that it has here."""
    places = [field_id for field_id in (9, 11) if field_id in chunk]
    start = min(chunk[field_id][1] for field_id in places)
    moved = out.add(memoryview(data)[start : start + chunk[7][1]]) - start
    return chunk | {field_id: (footer.I64, chunk[field_id][1] + moved) for field_id in places}
