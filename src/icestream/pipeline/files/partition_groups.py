"""Rows by partition value: a file never spans two of them (hazard 12).

Each value is a file, so there is a bound to them. Where rows have more values, the front of them is taken: of each
shard the first ones, in turn, up to the row that would bring one value too many. The rest comes with another round.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import errors, limits
from icestream.iceberg.arrow_transforms import transform_column

Ints = NDArray[np.int64]
Value = int | bool | bytes | str | None


class PartitionGroup(NamedTuple):
    """The rows of one partition value."""

    values: list[Value]  # one for each field of the spec
    rows: Any  # which rows, in their order; None: all


class PartitionedRows(NamedTuple):
    """Rows by partition value."""

    groups: list[PartitionGroup]
    front_rows: Any  # which rows, rising: the front of each shard; None: all


def group_by_partition(table: Any, spec: dict[str, Any], names: dict[int, str]) -> PartitionedRows:
    """`names`: of the columns, by field id. Raises InvalidInput for a spec that we cannot follow."""
    if not spec["fields"]:
        return PartitionedRows([PartitionGroup([], None)], None)
    columns = [_values(table, field, names) for field in spec["fields"]]
    codes = _codes(columns, table.num_rows)
    count = int(codes.max(initial=0)) + 1
    if count == 1:
        return PartitionedRows([PartitionGroup([_plain(column[0]) for column in columns], None)], None)
    front_rows = None
    if count > limits.ROUND_PARTITIONS_MAX:
        front_rows = _front(table, codes, limits.ROUND_PARTITIONS_MAX)
        _, codes = np.unique(codes[front_rows], return_inverse=True)
        count = limits.ROUND_PARTITIONS_MAX
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(count + 1))
    rows = order if front_rows is None else front_rows[order]
    groups = [
        PartitionGroup([_plain(column[int(rows[low])]) for column in columns], rows[low:high])
        for low, high in pairwise(bounds)
    ]
    return PartitionedRows(groups, front_rows)


def _codes(columns: list[Any], rows: int) -> Ints:
    """Returns a number for each row: the same for the same values, from 0 without a hole."""
    codes: Ints = np.zeros(rows, np.int64)
    for column in columns:
        # Combined one column at a time and renumbered, so that the codes stay below rows times values and never
        # overflow.
        coded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy()
        _, codes = np.unique(codes, return_inverse=True)
    return codes


def _front(table: Any, codes: Ints, values_max: int) -> Ints:
    """Returns the rows with these many values. Shards take turns, so that none waits for all of another."""
    shard, offset = (table.column(name).to_numpy() for name in ("shard", "offset"))
    by_shard = np.lexsort((offset, shard))
    first = np.searchsorted(shard[by_shard], shard[by_shard])  # where its shard begins
    turn = np.empty(len(codes), np.int64)
    turn[by_shard] = np.arange(len(codes)) - first
    # By turn, then shard: the first row of every shard, then the second of every shard, and so on.
    order = np.lexsort((shard, turn))
    _, first_seen = np.unique(codes[order], return_index=True)
    return np.sort(order[: np.sort(first_seen)[values_max]])


def _values(table: Any, field: dict[str, Any], names: dict[int, str]) -> Any:
    """Returns the partition value of each row for one field of the spec. Raises InvalidInput for an unknown column."""
    name = names.get(field["source-id"])
    if name is None:
        raise errors.InvalidInput(
            f"the table is partitioned by {field['name']}, which no message has", hint="partition by another column"
        )
    if name not in table.schema.names:
        return pa.nulls(table.num_rows, pa.int32())
    return transform_column(field["transform"], table.column(name))


def _plain(value: Any) -> Value:
    """The value as a manifest has it: times as numbers."""
    if pa.types.is_timestamp(value.type):
        return None if not value.is_valid else int(value.value)
    plain: Value = value.as_py()
    return plain
