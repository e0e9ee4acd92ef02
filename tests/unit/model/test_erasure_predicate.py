"""The predicates of erasures: their grammar, their types, and their meaning against brute force over Python values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model.erasure_predicate import (
    And,
    ComparedField,
    Comparison,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    check_columns,
    fields_of,
    parse_predicate,
)
from icestream.pipeline.erasure.predicate_mask import predicate_mask

COLUMNS = {
    "shard": "int",
    "offset": "long",
    "append_time": "timestamptz",
    "key": "binary",
    "headers": "map",
    "producer_name": "string",
    "retain": "boolean",
    "born": "date",
}
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


# --- text -------------------------------------------------------------------------------------------------------------


def test_a_predicate_has_the_structure_of_its_text() -> None:
    predicate = parse_predicate("key = 'al''ice' OR not (offset >= 10 and header 'user' in ('a', 'b')) and key IS NULL")
    user = ComparedField("headers", "user")
    assert predicate == Or(
        Comparison(ComparedField("key"), Operator.EQUAL, "al'ice"),
        And(
            Not(
                And(
                    Comparison(ComparedField("offset"), Operator.AT_LEAST, 10),
                    Or(Comparison(user, Operator.EQUAL, "a"), Comparison(user, Operator.EQUAL, "b")),
                )
            ),
            IsNull(ComparedField("key")),
        ),
    )
    assert [str(field) for field in fields_of(predicate)] == ["key", "offset", "header 'user'"]


def test_literals_have_their_types() -> None:
    values = [
        parse_predicate(f"key = {text}").value  # type: ignore[union-attr]
        for text in ("x'00fF'", "-12", "1.5", "TRUE", "timestamp '2026-01-01T02:00:00+02:00'", "''")
    ]
    assert values == [b"\x00\xff", -12, 1.5, True, EPOCH, ""]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("key", "ends where"),
        ("key =", "ends where a literal"),
        ("key = alice", "'alice' instead of a literal"),
        ("key = 'alice", "character 7"),
        ("key = 'a' 'b'", "the end of the predicate"),
        ("key like 'a%'", "'like' instead of one of"),
        ("lower(key) = 'a'", "'(' instead of one of"),
        ("(key = 'a'", "ends where ) should follow"),
        ("key in ()", "instead of a literal"),
        ("key is 'a'", "instead of null"),
        ("and = 'a'", "instead of a column"),
        ("key = x'0g'", "not hexadecimal"),
        ("offset = 99999999999999999999999", "64 bits"),
        ("append_time < timestamp '2026-01-01'", "no offset"),
        ("append_time < timestamp 'yesterday'", "not a time"),
        ("key = 'a'; drop table t", "character 10"),
        ("(" * 100 + "key = 'a'" + ")" * 100, "nested deeper"),
        ("key in (" + ",".join(["1"] * (limits.ERASURE_COMPARISONS_MAX + 1)) + ")", "comparisons"),
        ("key = '" + "a" * limits.ERASURE_PREDICATE_BYTES_MAX + "'", "bytes"),
    ],
)
def test_a_text_that_is_no_predicate_is_refused(text: str, problem: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        parse_predicate(text)
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = 'a'", "no column 'name'"),
        ("offset = 'a'", "offset is a long"),
        ("offset = true", "offset is a long"),
        ("key = 12", "key is a binary"),
        ("append_time = 12", "append_time is a timestamptz"),
        ("producer_name = x'00'", "producer_name is a string"),
        ("header 'a' = 1", "header 'a' is a string"),
        ("headers = 'a'", "cannot be compared"),
        ("retain = 1", "retain is a boolean"),
        ("born = 'a'", "born is a date"),
    ],
)
def test_a_literal_of_another_type_is_refused(text: str, problem: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        check_columns(parse_predicate(text), COLUMNS)
    assert problem in caught.value.message


def test_predicates_over_the_columns_of_the_table_are_accepted() -> None:
    for text in ("key = 'a' and key = x'00'", "header 'a' = 'b'", "retain = true", "shard = 1 and offset in (1, 2)"):
        check_columns(parse_predicate(text), COLUMNS)


# --- meaning ----------------------------------------------------------------------------------------------------------

Row = dict[str, Any]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "offset": st.integers(0, 5),
            "key": st.none() | st.sampled_from([b"", b"a", b"alice", b"\xff"]),
            "append_time": st.integers(0, 3).map(lambda days: EPOCH + timedelta(days=days)),
            "headers": st.none()
            | st.lists(st.tuples(st.sampled_from("uv"), st.none() | st.sampled_from("ab")), max_size=3),
            "retain": st.none() | st.booleans(),
        }
    ),
    max_size=8,
)
LITERALS = {
    "offset": st.integers(-1, 6),
    "key": st.sampled_from(["", "a", "alice", "b"]) | st.sampled_from([b"\xff", b"a"]),
    "append_time": st.integers(0, 3).map(lambda days: EPOCH + timedelta(days=days)),
    "retain": st.booleans(),
}
FIELDS = st.sampled_from(
    [ComparedField(name) for name in LITERALS] + [ComparedField("headers", "u"), ComparedField("headers", "w")]
)
OPERATORS = st.sampled_from(list(Operator))


def _leaf(field: ComparedField) -> st.SearchStrategy[Predicate]:
    values = st.sampled_from("ab") if field.header else LITERALS[field.column]
    operators = st.sampled_from([Operator.EQUAL, Operator.UNEQUAL]) if field.column == "retain" else OPERATORS
    return st.builds(Comparison, st.just(field), operators, values) | st.just(IsNull(field))


PREDICATES = st.recursive(
    FIELDS.flatmap(_leaf),
    lambda inner: st.builds(Not, inner) | st.builds(And, inner, inner) | st.builds(Or, inner, inner),
    max_leaves=6,
)
_OPERATIONS = {
    Operator.EQUAL: lambda left, right: left == right,
    Operator.UNEQUAL: lambda left, right: left != right,
    Operator.LESS: lambda left, right: left < right,
    Operator.AT_MOST: lambda left, right: left <= right,
    Operator.GREATER: lambda left, right: left > right,
    Operator.AT_LEAST: lambda left, right: left >= right,
}


def _oracle(row: Row, predicate: Predicate) -> bool | None:
    match predicate:
        case Comparison(field, operator, value):
            values = (
                [item for name, item in row["headers"] or () if name == field.header]
                if field.header
                else [row[field.column]]
            )
            value = value.encode() if field.column == "key" and isinstance(value, str) else value
            outcomes = [None if item is None else _OPERATIONS[operator](item, value) for item in values]
            if any(outcomes):
                return True
            # A header with several values of which none is meant: unknown only if none of them is known.
            return False if any(outcome is False for outcome in outcomes) else None
        case IsNull(field):
            if field.header:
                first = next((item for name, item in row["headers"] or () if name == field.header), None)
                return first is None
            return row[field.column] is None
        case Not(inner):
            outcome = _oracle(row, inner)
            return None if outcome is None else not outcome
        case And(left, right):
            both = _oracle(row, left), _oracle(row, right)
            return False if False in both else None if None in both else True
        case Or(left, right):
            both = _oracle(row, left), _oracle(row, right)
            return True if True in both else None if None in both else False


def _table(rows: list[Row]) -> Any:
    schema = pa.schema(
        [
            ("offset", pa.int64()),
            ("key", pa.binary()),
            ("append_time", pa.timestamp("us", tz="UTC")),
            ("headers", pa.map_(pa.utf8(), pa.utf8())),
            ("retain", pa.bool_()),
        ]
    )
    parts = [pa.Table.from_pylist(rows[:3], schema=schema), pa.Table.from_pylist(rows[3:], schema=schema)]
    return pa.concat_tables(parts)


@given(ROWS, PREDICATES)
def test_a_mask_selects_the_rows_for_which_the_predicate_is_true(rows: list[Row], predicate: Predicate) -> None:
    assert predicate_mask(_table(rows), predicate).to_pylist() == [_oracle(row, predicate) is True for row in rows]


def test_a_column_that_a_file_does_not_have_is_null() -> None:
    rows = _table([{"offset": 1, "key": b"a", "append_time": EPOCH, "headers": None, "retain": None}]).drop(["key"])
    assert predicate_mask(rows, parse_predicate("key = 'a' or not (key = 'a')")).to_pylist() == [False]
    assert predicate_mask(rows, parse_predicate("key is null")).to_pylist() == [True]
