"""The order of rows in the files of MQTT topics: alike topics together, so that a topic filter reads few row groups.

    file     as any other: contiguous offsets of each of its shards
    part     contiguous offsets of one shard, at most CLUSTER_BYTES: what a reader by offset decodes at once
    in it    rows by stream, then by topic, then by offset (rows/mqtt_columns.py); streams that fill a row group by
             themselves come after the small ones, which share row groups

Readers restore the order of offsets within a part, and choose row groups by the bounds of their level columns alone:
neither the order nor the streams are promised to anyone (hazard 70). A file of a few messages stays as it is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import limits
from icestream.catalog.topic_rules.topic_schema import STREAM
from icestream.model import envelope
from icestream.pipeline.rows.mqtt_columns import STREAM_SHIFT, stream_place

Ints = NDArray[np.int64]
_ROW_BYTES: Final = 128  # of a row beside its key, payload and properties, once it is decoded
_SIZED: Final = ("key", "payload", "wire")


class RowGroups(NamedTuple):
    """The rows of a file in their order, and how many of them are in each row group."""

    rows: Any
    counts: list[int] | None = None  # None: as the writer divides them


class _Part(NamedTuple):
    """The rows of a part in the order of offsets: which rows, their places in the order of streams, their bytes."""

    rows: Ints
    order: Ints
    sizes: Ints


def cluster(table: Any, order: Ints) -> RowGroups:
    """Returns the rows of a file in the order above. `order`: `MqttColumns.order` of these rows."""
    sizes = _row_bytes(table)
    if sizes.sum() <= limits.CLUSTER_GROUP_BYTES_MIN:
        return RowGroups(table)
    rows: list[Ints] = []
    counts: list[int] = []
    for part in _parts(table, order, sizes):
        ordered, part_counts = _cluster_part(part)
        rows.append(ordered)
        counts += part_counts
    # Values instead of dictionaries: the writer would put the whole dictionary of the file into every row group.
    plain = pa.table([_plain(column) for column in table.columns], _plain_schema(table.schema))
    return RowGroups(plain.take(pa.array(np.concatenate(rows))), counts)


def stream_order(table: Any) -> Ints:
    """Returns the `MqttColumns.order` of rows that were written before: by stream and topic, as their columns have
    them. Rows without a stream, whose topics were new, come first."""
    stream, key = (
        value_ranks(table.column(name)) if name in table.schema.names else np.zeros(table.num_rows, np.int64)
        for name in (STREAM, envelope.KEY.name)
    )
    return stream << STREAM_SHIFT | key


def value_ranks(column: Any) -> Ints:
    """The place of each value among the values of a column, from 1; a null is 0."""
    values = _plain(column).combine_chunks()
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    if is_null.all():
        return np.zeros(len(values), np.int64)
    # Ranking sorts: numbers by numpy, which is faster; of text each value once, however many rows have it.
    if not (pa.types.is_binary(values.type) or pa.types.is_string(values.type)):
        ranks = _number_ranks(values.cast(pa.int64()).drop_null().to_numpy())
    else:
        encoded = values.drop_null().dictionary_encode()
        places = pc.rank(encoded.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
        ranks = places[encoded.indices.to_numpy()]
    if not values.null_count:
        return ranks
    all_ranks = np.zeros(len(values), np.int64)
    all_ranks[~is_null] = ranks
    return all_ranks


def _number_ranks(values: Ints) -> Ints:
    rises = values[1:] > values[:-1]
    if bool((values[1:] >= values[:-1]).all()):  # times rise with the offsets
        return np.concatenate((np.ones(1, np.int64), 1 + np.cumsum(rises)))
    _, places = np.unique(values, return_inverse=True)
    ranks: Ints = places.astype(np.int64) + 1
    return ranks


def _row_bytes(table: Any) -> Ints:
    """About the bytes of each row once it is decoded."""
    sizes = np.full(table.num_rows, _ROW_BYTES, np.int64)
    for name in _SIZED:
        if name in table.schema.names:
            sizes += pc.fill_null(pc.binary_length(table.column(name)), 0).to_numpy()
    return sizes


def _parts(table: Any, order: Ints, sizes: Ints) -> list[_Part]:
    shard, offset = (table.column(name).to_numpy() for name in ("shard", "offset"))
    rows = np.lexsort((offset, shard))
    shards = shard[rows]
    starts = [0, *(1 + np.flatnonzero(shards[1:] != shards[:-1])).tolist(), len(rows)]
    parts: list[_Part] = []
    for start, end in pairwise(starts):
        of_shard = rows[start:end]
        for low, high in _cut(np.cumsum(sizes[of_shard]), limits.CLUSTER_BYTES):
            some = of_shard[low:high]
            parts.append(_Part(some, order[some], sizes[some]))
    return parts


def _cut(totals: Ints, bytes_max: int) -> list[tuple[int, int]]:
    """Divides rows with these running totals of bytes into pieces of about the same size, none of which is larger than
    `bytes_max` by more than a row."""
    pieces = max(1, -(-int(totals[-1]) // bytes_max))
    bounds = np.searchsorted(totals, totals[-1] * np.arange(1, pieces) // pieces, "left") + 1
    ends = [*dict.fromkeys(min(int(bound), len(totals)) for bound in bounds), len(totals)]
    return [(low, high) for low, high in pairwise([0, *ends]) if low < high]


def _cluster_part(part: _Part) -> tuple[Ints, list[int]]:
    """Returns the rows of a part in the order of streams, and the number of rows in each row group."""
    total = int(part.sizes.sum())
    group_bytes = max(limits.CLUSTER_GROUP_BYTES_MIN, total // limits.CLUSTER_GROUPS_MAX)
    _, stream = np.unique(stream_place(part.order), return_inverse=True)
    is_large = np.bincount(stream, part.sizes) >= group_bytes
    # Stable: rows of one topic stay in the order of offsets.
    by = np.lexsort((part.order, is_large[stream]))
    streams, sizes = stream[by], part.sizes[by]
    small = int(np.count_nonzero(~is_large[streams]))
    changes = (1 + np.flatnonzero(streams[1:] != streams[:-1])).tolist()
    starts = [0, *(start for start in changes if start >= small)] if small else [0, *changes]
    counts: list[int] = []
    # All small streams are divided as if they were one, and each large stream by itself.
    for start, end in zip(starts, [*starts[1:], len(by)], strict=True):
        counts += [high - low for low, high in _cut(np.cumsum(sizes[start:end]), group_bytes)]
    return part.rows[by], counts


def _plain(column: Any) -> Any:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _plain_schema(schema: Any) -> Any:
    return pa.schema(
        [field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema]
    )
