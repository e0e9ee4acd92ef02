"""How compaction orders the rows of a file, by the policy `clustering` of its topic (docs/adr/0088).

    offset                      by shard and offset; a row group has rows of one shard
    stream                      MQTT tables without a policy: by stream and topic, as ingest orders them
    key,publish_time            by the values of up to four columns, the first one first
    zorder(key,publish_time)    by the bits of their ranks in turn: queries by either column read few row groups

All but the first order rows within parts alone: contiguous offsets of one shard, of a size that a reader by offset
decodes at once anyway (files/clustered_rows.py, hazard 94). So offsets stay what they are, a replay decodes each row
group once, and a query finds its values in a few row groups of each part. A null comes first.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icestream.catalog.topic_rules.topic_schema import LEVELS, STREAM
from icestream.model.table_layout import BY_OFFSET, Clustering, parse_clustering
from icestream.pipeline.files.clustered_rows import RowGroups, cluster, stream_order, value_ranks
from icestream.pipeline.files.data_file import row_group_counts
from icestream.pipeline.files.parquet_layout import ParquetLayout

Ints = NDArray[np.int64]
OFFSET_LAYOUT: Final = "offset-1"
_BITS: Final = 60  # of a place on the curve, shared by its columns


def layout_id(text: str, layout: ParquetLayout) -> str:
    """Returns what the footer says about the order of rows. `text`: the policy, empty where it is unset."""
    clustering = parse_clustering(text)
    if clustering is None:
        return "stream-1" if _has_streams(layout) else OFFSET_LAYOUT
    if clustering.columns == (BY_OFFSET,):
        return OFFSET_LAYOUT
    return f"{'zorder' if clustering.is_zorder else 'columns'}-1:{','.join(clustering.columns)}"


def row_groups(rows: Any, text: str, layout: ParquetLayout) -> RowGroups:
    """Returns the rows of a file in the order of the policy, and how many are in each row group. `rows`: by shard and
    offset."""
    order = _order(rows, parse_clustering(text), layout)
    clustered = RowGroups(rows) if order is None else cluster(rows, order)
    if clustered.counts is None:
        return RowGroups(clustered.rows, shard_groups(clustered.rows))
    return clustered


def shard_groups(rows: Any) -> list[int]:
    """Row groups of sorted rows: each of one shard, as large as those of ingest."""
    shard: NDArray[np.int32] = rows.column("shard").to_numpy()
    ends = [*(1 + np.flatnonzero(shard[1:] != shard[:-1])).tolist(), len(shard)]
    counts: list[int] = []
    start = 0
    for end in ends:
        counts += row_group_counts(rows.slice(start, end - start))
        start = end
    return counts


def _has_streams(layout: ParquetLayout) -> bool:
    names = {column.name for column in layout.columns}
    return STREAM in names and LEVELS[0] in names


def _order(rows: Any, clustering: Clustering | None, layout: ParquetLayout) -> Ints | None:
    """Returns the place of each row in the order; None for that of the offsets."""
    if clustering is None:
        return stream_order(rows) if _has_streams(layout) and STREAM in rows.column_names else None
    # A column that is null in all rows is in no file, and orders nothing.
    columns = [rows.column(name) for name in clustering.columns if name in rows.column_names]
    if not columns or clustering.columns == (BY_OFFSET,):
        return None
    ranks = [value_ranks(column) for column in columns]
    return _curve(ranks) if clustering.is_zorder else _lexicographic(ranks)


def _lexicographic(ranks: list[Ints]) -> Ints:
    place = ranks[0]
    for rank in ranks[1:]:
        # Both are below the number of rows, so the product fits; made dense again for the next column.
        place = _dense(place * (int(rank.max(initial=0)) + 1) + rank)
    return place


def _curve(ranks: list[Ints]) -> Ints:
    """The place of each row on a Z-order curve over the ranks of its values, each scaled to the same number of bits."""
    bits = min(_BITS // len(ranks), 16)
    place = np.zeros(len(ranks[0]), np.int64)
    scaled = [rank * ((1 << bits) - 1) // max(1, int(rank.max(initial=0))) for rank in ranks]
    for bit in range(bits):
        for number, rank in enumerate(reversed(scaled)):
            place |= (rank >> bit & 1) << (bit * len(ranks) + number)
    return _dense(place)


def _dense(values: Ints) -> Ints:
    _, places = np.unique(values, return_inverse=True)
    dense: Ints = places.astype(np.int64)
    return dense
