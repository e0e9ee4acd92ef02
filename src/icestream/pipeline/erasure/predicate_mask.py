"""Evaluates the predicate of an erasure (model/erasure_predicate.py) over Arrow columns.

A column that a file does not have is null in all its rows, as readers of Iceberg take it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream.model.erasure_predicate import (
    And,
    ComparedField,
    Comparison,
    IsNull,
    Literal,
    Not,
    Operator,
    Or,
    Predicate,
)

_COMPARE: Final = {
    Operator.EQUAL: pc.equal,
    Operator.UNEQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.AT_MOST: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.AT_LEAST: pc.greater_equal,
}


def predicate_mask(rows: Any, predicate: Predicate) -> Any:
    """Returns a boolean for each row of a table: whether the predicate is true. Null counts as not true."""
    mask = _evaluate(rows, predicate)
    return pc.fill_null(mask, False)


def _evaluate(rows: Any, predicate: Predicate) -> Any:
    match predicate:
        case Comparison(field, operator, value) if field.header:
            return _any_header(rows, field, operator, value)
        case Comparison(field, operator, value):
            values = _values(rows, field)
            if pa.types.is_null(values.type):
                return pa.nulls(rows.num_rows, pa.bool_())
            return _COMPARE[operator](values, _scalar(value, values.type))
        case IsNull(field):
            return pc.is_null(_values(rows, field))
        case Not(inner):
            return pc.invert(_evaluate(rows, inner))
        case And(left, right):
            return pc.and_kleene(_evaluate(rows, left), _evaluate(rows, right))
        case Or(left, right):
            return pc.or_kleene(_evaluate(rows, left), _evaluate(rows, right))


def _any_header(rows: Any, field: ComparedField, operator: Operator, value: Literal) -> Any:
    """A header may occur several times in a message (MQTT's user properties do): true if one of its values is meant."""
    if field.column not in rows.column_names:
        return pa.nulls(rows.num_rows, pa.bool_())
    column = rows.column(field.column)
    headers = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    lookups = pc.map_lookup(headers, pa.scalar(field.header, column.type.key_type), "all")
    outcomes = _COMPARE[operator](pc.list_flatten(lookups), pa.scalar(value, pa.utf8()))
    parents = pc.list_parent_indices(lookups).to_numpy()
    is_known, is_true = np.zeros(rows.num_rows, bool), np.zeros(rows.num_rows, bool)
    is_known[parents[outcomes.is_valid().to_numpy(zero_copy_only=False)]] = True
    is_true[parents[pc.fill_null(outcomes, False).to_numpy(zero_copy_only=False)]] = True
    return pa.chunked_array([pa.array(is_true, mask=~is_known)])


def _values(rows: Any, field: ComparedField) -> Any:
    if field.column not in rows.column_names:
        return pa.nulls(rows.num_rows)
    column = rows.column(field.column)
    if field.header:
        return pc.map_lookup(column, pa.scalar(field.header, column.type.key_type), "first")
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _scalar(value: Literal, kind: Any) -> Any:
    if isinstance(value, str) and (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ):
        value = value.encode()
    if pa.types.is_integer(kind):
        # Compared as 64 bits: a literal beyond the range of the column is greater or less than all of its values.
        return pa.scalar(value, pa.int64())
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, pa.timestamp("us", tz="UTC"))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.scalar(float(value), pa.float64())  # type: ignore[arg-type]
    return pa.scalar(value, kind)
