"""Encodes one Parquet file in memory, with the column metrics for its manifest entry, from the writer's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from icestream import limits
from icestream.iceberg.conversions import lower_bound, upper_bound
from icestream.pipeline.files.parquet_layout import ParquetColumn, ParquetLayout, writer_options

# zstd's default is 3. Most of the time of a file is compression, and payloads seldom get much smaller at higher levels.
_ZSTD_LEVEL: Final = 1
# Of a decoded row group: readers hold one as a whole, and our own cache a few of them (limits.SCAN_GROUP_BYTES_MAX).
ROW_GROUP_ROWS: Final = 1_048_576
ROW_GROUP_BYTES: Final = 32 * limits.MIB
# Codec and level of a file, as in `zstd-1`: its footer states the codec, and a rewrite may copy its pages only if the
# level is that of the topic, too.
CODEC_KEY: Final = b"icestream.codec"
_FEW_ROWS: Final = 16_384  # these fit one row group, unless they are large in memory
# Without bounds: the first 16 bytes of these columns do not help to skip files.
_WITHOUT_BOUNDS: Final = frozenset({"payload", "wire", "headers"})


class ColumnMetrics(NamedTuple):
    """Metrics of columns, by field id."""

    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: list[int]


def encode_parquet(
    table: Any,
    layout: ParquetLayout,
    codec: str,
    level: int | None,
    group_rows: Sequence[int] | None = None,
    footer: Mapping[bytes, bytes] | None = None,
) -> tuple[Any, ColumnMetrics]:
    """Returns the file as an Arrow buffer, and its metrics. `codec`: zstd, snappy, gzip, lz4, or uncompressed.
    `group_rows`: the number of rows in each row group; None: by size. `footer`: more metadata for its footer."""
    name = codec.lower()
    compression = {"uncompressed": "none", "lz4": "lz4_raw"}.get(name, name)
    if name == "zstd" and level is None:
        level = _ZSTD_LEVEL
    bounded_columns = [column for column in table.schema.names if column not in _WITHOUT_BOUNDS]
    has_level = name in ("zstd", "gzip", "brotli")
    stored_codec = f"{name}-{level}" if has_level and level is not None else name
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=compression,
        compression_level=level if has_level else None,
        write_statistics=bounded_columns,
        store_schema=False,
        **writer_options(table),
    ) as writer:
        if group_rows is None:
            writer.write_table(table, _group_rows(table))
        else:
            start = 0
            for count in group_rows:
                writer.write_table(table.slice(start, count), count)
                start += count
        writer.add_key_value_metadata({CODEC_KEY: stored_codec.encode(), **(footer or {})})
    nulls = {name: table.column(name).null_count for name in table.schema.names}
    return sink.getvalue(), column_metrics(layout, writer.writer.metadata, nulls)


def row_group_counts(table: Any) -> list[int]:
    """Returns the number of rows in each row group of a table that is written by size."""
    rows = _group_rows(table)
    return [min(rows, table.num_rows - start) for start in range(0, table.num_rows, rows)]


def _group_rows(table: Any) -> int:
    """Returns the number of rows in a row group, so that it stays small when decoded, however often its values repeat.
    Small files are not measured."""
    if table.num_rows <= _FEW_ROWS and table.nbytes <= ROW_GROUP_BYTES:
        return _FEW_ROWS
    row_bytes = sum(decoded_bytes(column) for column in table.columns) / max(table.num_rows, 1)
    return max(1, min(ROW_GROUP_ROWS, int(ROW_GROUP_BYTES / max(row_bytes, 1))))


def decoded_bytes(column: Any) -> int:
    """Returns the size of a column once it is decoded: values of a dictionary count for each row."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return sum(
        int(pc.sum(pc.binary_length(chunk.dictionary).cast(pa.int64()).take(chunk.indices)).as_py() or 0)
        if pa.types.is_binary(chunk.type.value_type) or pa.types.is_string(chunk.type.value_type)
        else 8 * len(chunk)
        for chunk in column.chunks
    )


def column_metrics(layout: ParquetLayout, metadata: Any, nulls: Mapping[str, int]) -> ColumnMetrics:
    """Returns the column metrics of a written file, from its metadata. `nulls`: how many of them each column has."""
    metrics = ColumnMetrics({}, {}, {}, {}, {}, [])
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    metrics.split_offsets.extend(_offset(group.column(0)) for group in groups)
    places = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    for column in layout.columns:
        if column.type == "map":
            _add_map(metrics, column, groups, places)
            continue
        rows = metadata.num_rows
        place = places.get(column.name)
        metrics.value_counts[column.field_id] = rows
        metrics.null_counts[column.field_id] = rows if place is None else nulls[column.name]
        if place is not None:
            chunks = [group.column(place) for group in groups]
            metrics.column_sizes[column.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
            _add_bounds(metrics, column, chunks)
    return metrics


def _offset(chunk: Any) -> int:
    first = chunk.dictionary_page_offset
    return int(chunk.data_page_offset if first is None else min(first, chunk.data_page_offset))


def _add_map(metrics: ColumnMetrics, column: ParquetColumn, groups: list[Any], places: dict[str, int]) -> None:
    """Adds sizes and counts of keys and values: Iceberg has no bounds of repeated fields."""
    for part, field_id in (("key", column.key_id), ("value", column.value_id)):
        place = places.get(f"{column.name}.key_value.{part}")
        if place is None:
            continue
        chunks = [group.column(place) for group in groups]
        metrics.column_sizes[field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        metrics.value_counts[field_id] = sum(chunk.num_values for chunk in chunks)


def _add_bounds(metrics: ColumnMetrics, column: ParquetColumn, chunks: list[Any]) -> None:
    """Adds lower and upper bound of a column, if every chunk with values has statistics."""
    statistics = [chunk.statistics for chunk in chunks]
    complete = [chunk for chunk in statistics if chunk is not None and chunk.has_min_max]
    has_values = [chunk is None or chunk.num_values > 0 for chunk in statistics]
    # Bounds must cover every chunk with values, or engines would skip rows.
    if not complete or len(complete) < sum(has_values):
        return
    metrics.lower_bounds[column.field_id] = lower_bound(column.type, min(chunk.min_raw for chunk in complete))
    upper = upper_bound(column.type, max(chunk.max_raw for chunk in complete))
    if upper is not None:
        metrics.upper_bounds[column.field_id] = upper
