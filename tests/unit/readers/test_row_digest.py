"""The digest of rows: the same for the same rows however they are stored, another one for any other rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from icestream import errors
from icestream.model.row_digest import RowDigest, parse_digest, sum_of
from icestream.readers import row_hashes
from icestream.readers.row_hashes import digest_of

ROWS = 40


def rows_of(count: int = ROWS) -> pa.Table:
    numbers = range(count)
    return pa.table(
        {
            "shard": pa.array([number % 3 for number in numbers], pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
            "append_time": pa.array([10**15 + number for number in numbers], pa.timestamp("us", tz="UTC")),
            "key": pa.array([b"k" * (number % 19) if number % 4 else None for number in numbers], pa.binary()),
            "payload": pa.array([bytes([number]) * (number * 7) for number in numbers], pa.binary()),
            "headers": pa.array(
                [[("a", str(number)), ("b", None)] if number % 3 else None for number in numbers],
                pa.map_(pa.utf8(), pa.utf8()),
            ),
            "producer_name": pa.array([("x", "yy", None)[number % 3] for number in numbers], pa.utf8()),
            "retain": pa.array([(True, False, None)[number % 3] for number in numbers], pa.bool_()),
        }
    )


def with_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


def change(rows: pa.Table, name: str, value: Any, row: int = 7) -> pa.Table:
    values = rows[name].to_pylist()
    values[row] = value
    return with_column(rows, name, pa.array(values, rows[name].type))


def test_the_digest_is_a_format_that_stays() -> None:
    """Files carry digests for years: the number is written down."""
    assert digest_of(rows_of()).text == "1:40:c27d2373b1081337dc85c7448e40fc9d"


def test_both_twins_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = with_column(rows_of(), "producer_name", rows_of()["producer_name"].dictionary_encode())
    in_rust = digest_of(rows)
    monkeypatch.setattr(row_hashes, "_native_digest", None)
    assert digest_of(rows) == in_rust


@pytest.mark.parametrize("is_native", [True, False])
def test_the_digest_does_not_depend_on_how_rows_are_stored(is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_native:
        monkeypatch.setattr(row_hashes, "_native_digest", None)
    rows = rows_of()
    digest = digest_of(rows)
    assert digest_of(rows.take(pa.array([*range(20, ROWS), *range(20)]))) == digest
    assert sum_of([digest_of(rows.slice(0, 13)), digest_of(rows.slice(13))]) == digest
    assert digest_of(pa.concat_tables([rows.slice(0, 13), rows.slice(13)])) == digest
    assert digest_of(with_column(rows, "producer_name", rows["producer_name"].dictionary_encode())) == digest
    assert digest_of(with_column(rows, "payload", rows["payload"].cast(pa.large_binary()))) == digest
    assert digest_of(rows.append_column("wire", pa.nulls(ROWS, pa.binary()))) == digest
    assert digest_of(rows.append_column("level_1", pa.array(["a"] * ROWS))) == digest
    assert digest_of(rows.slice(0, 0)) == RowDigest()


CHANGES = {
    "a row is missing": lambda rows: pa.concat_tables([rows.slice(0, 9), rows.slice(10)]),
    "a row is twice": lambda rows: pa.concat_tables([rows, rows.slice(9, 1)]),
    "a row is there twice and another one not": lambda rows: pa.concat_tables(
        [rows.slice(0, 9), rows.slice(10), rows.slice(3, 1)]
    ),
    "two payloads are swapped": lambda rows: change(
        change(rows, "payload", rows["payload"][8].as_py(), 7), "payload", rows["payload"][7].as_py(), 8
    ),
    "one byte of a payload": lambda rows: change(rows, "payload", bytes([7]) * 48 + b"\x08"),
    "a zero behind a payload": lambda rows: change(rows, "payload", bytes([7]) * 49 + b"\x00"),
    "an empty key instead of none": lambda rows: change(rows, "key", b"", 8),
    "no key instead of one": lambda rows: change(rows, "key", None),
    "a column is null": lambda rows: with_column(rows, "payload", pa.nulls(ROWS, pa.binary())),
    "a column is missing": lambda rows: rows.drop_columns(["headers"]),
    "key and payload are swapped": lambda rows: with_column(
        with_column(rows, "key", rows["payload"]), "payload", rows["key"]
    ),
    "a header has another value": lambda rows: change(rows, "headers", [("a", "8"), ("b", None)]),
    "a header is empty instead of null": lambda rows: change(rows, "headers", [("a", "7"), ("b", "")]),
    "headers are empty instead of none": lambda rows: change(rows, "headers", [], 9),
    "a time is a microsecond later": lambda rows: change(rows, "append_time", rows["append_time"][8].as_py()),
    "a flag": lambda rows: change(rows, "retain", True),
}


@pytest.mark.parametrize("mistake", CHANGES)
@pytest.mark.parametrize("is_native", [True, False])
def test_other_rows_have_another_digest(mistake: str, is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_native:
        monkeypatch.setattr(row_hashes, "_native_digest", None)
    rows = rows_of()
    assert digest_of(CHANGES[mistake](rows)) != digest_of(rows)


def test_a_part_is_subtracted() -> None:
    rows = rows_of()
    is_deleted = pc.equal(pc.bit_wise_and(rows["offset"], 3), 0)
    deleted, kept = rows.filter(is_deleted), rows.filter(pc.invert(is_deleted))
    assert digest_of(rows).minus(digest_of(deleted)) == digest_of(kept)


def test_text_is_read_back_and_other_text_is_refused() -> None:
    digest = digest_of(rows_of())
    assert parse_digest(digest.text) == digest
    for text in ("", "2:1:" + 32 * "0", "1:1:" + 31 * "0", "1:-1:" + 32 * "0", "1:1:" + 32 * "g"):
        with pytest.raises(errors.InvalidInput, match="is not a digest of rows"):
            parse_digest(text)


def test_a_column_of_another_type_has_no_digest() -> None:
    with pytest.raises(errors.InvalidInput, match="column payload is int64"):
        digest_of(pa.table({"payload": pa.array([1], pa.int64())}))
