"""Rows by partition value: a file never spans two of them (hazard 12)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from icestream import errors, limits
from icestream.pipeline.files.transform import transformed

Value = int | bool | bytes | str | None


class Group(NamedTuple):
    values: list[Value]  # one for each field of the spec
    rows: Any  # which rows, in their order; None: all


def groups_of(table: Any, spec: dict[str, Any], names: dict[int, str]) -> list[Group]:
    """`names`: of the columns, by field id. Raises InvalidInput for a spec that we cannot follow."""
    if not spec["fields"]:
        return [Group([], None)]
    columns = [_values(table, field, names) for field in spec["fields"]]
    codes = np.zeros(table.num_rows, np.int64)
    for column in columns:
        coded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy()
        _, codes = np.unique(codes, return_inverse=True)
    count = int(codes.max(initial=0)) + 1
    if count > limits.ROUND_PARTITIONS_MAX:
        raise errors.InvalidInput(
            f"{table.num_rows} messages have {count} partition values",
            hint=f"at most {limits.ROUND_PARTITIONS_MAX} in one round; partition by a bucket of the key instead",
        )
    if count == 1:
        return [Group([_plain(column[0]) for column in columns], None)]
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(count + 1))
    return [
        Group([_plain(column[int(order[low])]) for column in columns], order[low:high])
        for low, high in pairwise(bounds)
    ]


def _values(table: Any, field: dict[str, Any], names: dict[int, str]) -> Any:
    name = names.get(field["source-id"])
    if name is None:
        raise errors.InvalidInput(
            f"the table is partitioned by {field['name']}, which no message has", hint="partition by another column"
        )
    if name not in table.schema.names:
        return pa.nulls(table.num_rows, pa.int32())
    return transformed(field["transform"], table.column(name))


def _plain(value: Any) -> Value:
    """As a manifest has it: times as numbers."""
    if pa.types.is_timestamp(value.type):
        return None if not value.is_valid else int(value.value)
    found: Value = value.as_py()
    return found
