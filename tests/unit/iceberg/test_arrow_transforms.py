"""Partition values and bounds: exactly those of Iceberg, judged by PyIceberg."""

from __future__ import annotations

from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from icestream import errors
from icestream.iceberg import arrow_transforms
from icestream.iceberg.arrow_transforms import transform_column
from icestream.iceberg.conversions import lower_bound, upper_bound
from icestream.pipeline.files.parquet_layout import ARROW
from tests.support.hypothesis_effort import QUARTER

TYPES: dict[str, PrimitiveType] = {
    "int": IntegerType(),
    "long": LongType(),
    "timestamptz": TimestamptzType(),
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=24)
# PyIceberg makes datetimes of months and years, so these stay where there are some.
TIMES = st.integers(-60_000_000_000_000_000, 250_000_000_000_000_000)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "timestamptz": TIMES,
    "string": TEXT,
    "binary": st.binary(max_size=24),
}


def plain(array: Any) -> list[Any]:
    return (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist()


def hashes(values: list[bytes]) -> list[int]:
    ends = np.cumsum([0, *map(len, values)])
    return arrow_transforms.murmur3(b"".join(values), ends[:-1], ends[1:]).tolist()


@pytest.mark.parametrize(("few", "short_words"), [(0, 0), (2, 0), (2, 3), (100, 64), (100, 0)])
@QUARTER
@given(values=st.lists(st.one_of(st.binary(max_size=40), st.binary(min_size=250, max_size=600)), max_size=6))
def test_hashes_are_equal_by_every_method(few: int, short_words: int, values: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_transforms, "_FEW_VALUES", few)
        patch.setattr(arrow_transforms, "_SHORT_WORDS", short_words)
        patch.setattr(arrow_transforms, "_CHAIN_BYTES", 64)
        assert hashes(values) == [mmh3.hash(value, 0, signed=False) for value in values]


def test_long_keys_are_hashed_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is a few calls of NumPy: one per word took half a minute for a key of megabytes."""
    steps = []
    word = arrow_transforms._word
    monkeypatch.setattr(arrow_transforms, "_word", lambda *arguments: steps.append(1) or word(*arguments))
    values = [bytes(range(251)) * 5000, b"short", b""]
    assert hashes(values) == [mmh3.hash(value, 0, signed=False) for value in values]
    assert len(steps) < 100


@pytest.mark.parametrize("kind", ["int", "long", "timestamptz", "string", "binary"])
@pytest.mark.parametrize("transform", ["identity", "bucket[16]", "bucket[7]", "void"])
@QUARTER
@given(data=st.data())
def test_transforms_match_iceberg(kind: str, transform: str, data: st.DataObject) -> None:
    check(kind, transform, data.draw(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=6)))


@pytest.mark.parametrize("transform", ["year", "month", "day", "hour"])
@QUARTER
@given(values=st.lists(st.one_of(st.none(), TIMES), max_size=6))
def test_times_match_iceberg(transform: str, values: list[int | None]) -> None:
    check("timestamptz", transform, values)


@pytest.mark.parametrize("kind", ["string", "binary"])
@QUARTER
@given(data=st.data())
def test_truncated_values_match_iceberg(kind: str, data: st.DataObject) -> None:
    check(kind, "truncate[5]", data.draw(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=6)))


def check(kind: str, transform: str, values: list[Any]) -> None:
    oracle = parse_transform(transform).transform(TYPES[kind])
    assert plain(transform_column(transform, pa.array(values, ARROW[kind]))) == [oracle(value) for value in values]


def test_slices_and_chunks_are_transformed() -> None:
    keys = pa.chunked_array([pa.array([b"a", b"b", b"c"]).slice(1), pa.array([b"b", None])])
    buckets = transform_column("bucket[100]", keys).to_pylist()
    oracle = parse_transform("bucket[100]").transform(BinaryType())
    assert buckets == [oracle(b"b"), oracle(b"c"), oracle(b"b"), None]


@pytest.mark.parametrize("transform", ["bucket[0]", "hour", "zorder", "truncate[x]"])
def test_unknown_transforms_are_refused(transform: str) -> None:
    with pytest.raises(errors.InvalidInput, match="partitioned by"):
        transform_column(transform, pa.array([b"a"]))


@pytest.mark.parametrize("kind", ["int", "long", "timestamptz"])
@QUARTER
@given(data=st.data())
def test_bounds_of_numbers_are_the_bytes_of_iceberg(kind: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    assert lower_bound(kind, value) == upper_bound(kind, value) == to_bytes(TYPES[kind], value)


@pytest.mark.parametrize("value", [True, False])
def test_bounds_of_booleans(value: bool) -> None:
    assert lower_bound("boolean", value) == upper_bound("boolean", value) == to_bytes(BooleanType(), value)


@QUARTER
@given(st.binary(max_size=40))
def test_bounds_of_bytes_enclose_them(value: bytes) -> None:
    lower, upper = lower_bound("binary", value), upper_bound("binary", value)
    assert lower <= value
    assert len(lower) <= 16
    assert upper is None or (value <= upper and len(upper) <= 16)
    assert (upper is None) == (len(value) > 16 and value[:16] == b"\xff" * 16)


ANY_TEXT = st.text(st.sampled_from(["a", "\ud7ff", "\ue000", "\U0010ffff", "ß"]) | st.characters(), max_size=40)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@QUARTER
@given(ANY_TEXT.filter(_is_text))
def test_bounds_of_text_enclose_it_and_are_text(value: str) -> None:
    data = value.encode()
    lower, upper = lower_bound("string", data), upper_bound("string", data)
    assert lower <= data
    assert len(lower.decode()) <= 16
    if upper is None:
        assert value[:16] == "\U0010ffff" * 16
    else:
        assert data <= upper
        assert len(upper.decode()) <= 16


@pytest.mark.parametrize(
    ("value", "upper"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 15 + "\ud7ff" + "x", "a" * 15 + "\ue000"),
        ("a" * 15 + "\U0010ffff" + "x", "a" * 14 + "b"),
    ],
)
def test_an_upper_bound_is_raised_at_its_end(value: str, upper: str) -> None:
    assert upper_bound("string", value.encode()) == upper.encode()
    assert upper_bound("binary", b"a" * 15 + b"\xff" + b"x") == b"a" * 14 + b"b"
