"""Writes the files of one topic: its rows by partition value, each value in one file, or in several if it is large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from icestream.model.pipeline_file_name import data_name
from icestream.model.row_digest import FOOTER_KEY
from icestream.model.task_messages import CoveredRange, WrittenFile
from icestream.pipeline.files.clustered_rows import RowGroups, cluster
from icestream.pipeline.files.data_file import ColumnMetrics, encode_parquet
from icestream.pipeline.files.file_store import FileStore
from icestream.pipeline.files.parquet_layout import layout_of
from icestream.pipeline.files.partition_groups import PartitionGroup, group_by_partition
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.rows.mqtt_columns import mqtt_columns
from icestream.pipeline.rows.topic_rows import TopicRows
from icestream.readers.row_hashes import digest_of

_ORDER: Final = "_order"  # beside the columns of the table while its rows are divided: their order by stream


class TopicFiles(NamedTuple):
    """The files that a task wrote for one topic."""

    files: list[WrittenFile]
    ends: dict[int, int] | None = None  # the end of each shard with rows in the files; None: all rows were written
    new_topics: Sequence[str] = ()  # MQTT topics that the learned structure has no stream for


def write_topic(
    parts: Sequence[TopicRows], target: TableTarget, store: FileStore, name: Callable[[], str]
) -> TopicFiles:
    """Writes all rows, or the first ones if they have too many partition values. If it raises, no file counts."""
    layout = layout_of(target)
    values, count = _join(parts), sum(part.rows for part in parts)
    derived = mqtt_columns(values, count, target.mqtt) if target.mqtt is not None else None
    table = layout.table(values if derived is None else values | derived.columns, count)
    if derived is not None:
        table = table.append_column(_ORDER, pa.array(derived.order))
    names = {column.field_id: column.name for column in layout.columns}
    ids = {name: field_id for field_id, name in names.items()}
    files = []
    grouped = group_by_partition(table, target.spec, names)
    for group in grouped.groups:
        for rows in _sized(_rows_of(table, group), target.target_bytes):
            ordered, group_rows = _row_groups(rows)
            # From the decoded log, before anything of the file exists: what a rewrite is later compared with.
            digest = digest_of(rows).text
            footer = {FOOTER_KEY: digest.encode()}
            data, metrics = encode_parquet(ordered, layout, target.codec, target.codec_level, group_rows, footer)
            location = f"{target.location.rstrip('/')}/{data_name(target.epoch, name())}"
            store.put(location, data)
            covered = covered_ranges(rows, metrics, ids)
            files.append(
                WrittenFile(
                    parts[0].topic_id,
                    location,
                    data.size,
                    rows.num_rows,
                    covered,
                    layout.schema_id,
                    target.spec["spec-id"],
                    list(group.values),
                    *metrics,
                    digest,
                )
            )
    ends = None if grouped.front_rows is None else _ends(table, grouped.front_rows)
    return TopicFiles(files, ends, () if derived is None else derived.new_topics)


def _row_groups(table: Any) -> RowGroups:
    """Returns the rows of a file as they are written."""
    if _ORDER not in table.schema.names:
        return RowGroups(table)
    return cluster(table.drop_columns([_ORDER]), table.column(_ORDER).to_numpy())


def _ends(table: Any, rows: Any) -> dict[int, int]:
    shard, offset = (table.column(name).to_numpy()[rows] for name in ("shard", "offset"))
    return {int(number): int(offset[shard == number].max()) + 1 for number in np.unique(shard)}


def _join(parts: Sequence[TopicRows]) -> dict[str, Any]:
    """Joins the columns of all parts. A part without a column has nulls in it."""
    if len(parts) == 1:
        return parts[0].columns
    types = {name: column.type for part in parts for name, column in part.columns.items()}
    columns: dict[str, Any] = {}
    for name, kind in types.items():
        chunks = [part.columns.get(name) for part in parts]
        plain = [
            pa.nulls(part.rows, kind) if chunk is None else chunk for part, chunk in zip(parts, chunks, strict=True)
        ]
        joined = pa.chunked_array(plain, kind)
        columns[name] = joined.unify_dictionaries() if pa.types.is_dictionary(kind) else joined
    return columns


def _rows_of(table: Any, group: PartitionGroup) -> Any:
    return table if group.rows is None else table.take(pa.array(group.rows))


def _sized(table: Any, target_bytes: int) -> Iterator[Any]:
    """Yields slices that are not larger than the target even if nothing can be compressed."""
    # By the size in memory, an upper bound of the file: compression is known only after encoding.
    count = max(1, -(-table.nbytes // max(target_bytes, 1)))
    rows = -(-table.num_rows // count)
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def covered_ranges(rows: Any, metrics: ColumnMetrics, ids: Mapping[str, int]) -> list[CoveredRange]:
    """Returns the first to the last offset of each shard; in a partitioned table other files may have offsets in
    between. Most files have one shard: then the column bounds are used."""
    low, high = (_bound(bounds, ids["shard"]) for bounds in (metrics.lower_bounds, metrics.upper_bounds))
    if low == high:
        offset = ids["offset"]
        return [CoveredRange(low, _bound(metrics.lower_bounds, offset), _bound(metrics.upper_bounds, offset) + 1)]
    shard, offset = rows.column("shard").to_numpy(), rows.column("offset").to_numpy()
    return [
        CoveredRange(int(number), int(offset[shard == number].min()), int(offset[shard == number].max()) + 1)
        for number in np.unique(shard)
    ]


def _bound(bounds: Mapping[int, bytes], field_id: int) -> int:
    return int.from_bytes(bounds[field_id], "little", signed=True)
