"""The native encoder against the Python one: the same bytes for every record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.wal import format as wire

native = pytest.importorskip("icestream_native", reason="the native extension is not built (make native)")

U8 = st.integers(0, 2**8 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
# Sizes around the padding (8) and around the bytes that are joined for one CRC (256 - 60).
SIZES = st.one_of(st.integers(0, 40), st.integers(180, 210), st.integers(1000, 5000))
BODIES = SIZES.flatmap(lambda size: st.binary(min_size=size, max_size=size))
SECTIONS = st.builds(wire.RecordSection, U64, U32, U8, U8, U64, I64, I64, U32, U32, BODIES)
POSITIONS = st.integers(0, 2**28).map(lambda number: number * 8)
ALIGNS = st.sampled_from([8, 512, 4096])


@given(st.tuples(U8, U64, U64, U64, I64, POSITIONS, ALIGNS, st.lists(SECTIONS, max_size=6)))
def test_encodes_as_the_oracle(arguments: tuple[Any, ...]) -> None:
    assert native.encode_record(*arguments) == wire.encode_record_python(*arguments)


@given(st.lists(SECTIONS, min_size=1, max_size=4), st.data())
def test_joins_the_parts_of_a_body(sections: list[wire.RecordSection], data: st.DataObject) -> None:
    cut = [section._replace(body=in_parts(section.body, data)) for section in sections]
    arguments = (wire.RecordKind.DATA, 1, 2, 0, 3, 4096, 8)
    assert native.encode_record(*arguments, cut) == wire.encode_record_python(*arguments, sections)


def in_parts(body: bytes, data: st.DataObject) -> Any:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=4)))
    parts = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    views = [data.draw(st.sampled_from([bytes, bytearray, memoryview]))(part) for part in parts]
    return data.draw(st.sampled_from([list, tuple]))(views)


def section(**fields: Any) -> wire.RecordSection:
    return wire.RecordSection(1, 0, 1, 0, 1, 0, 0, 1, 0, b"body")._replace(**fields)


def test_encodes_many_sections_and_a_large_one() -> None:
    for sections in (
        [section(topic_id=number, body=bytes([number % 256]) * 100) for number in range(3000)],
        [section(body=bytes(range(256)) * 16_384)],
    ):
        arguments = (wire.RecordKind.DATA, 9, 2, 8, 3, 4096, 8, sections)
        assert native.encode_record(*arguments) == wire.encode_record_python(*arguments)


def test_any_sequence_of_sections_is_accepted() -> None:
    front = (wire.RecordKind.DATA, 1, 2, 0, 3, 4096, 8)
    expected = wire.encode_record_python(*front, [section(), section(shard=3)])
    assert native.encode_record(*front, (section(), section(shard=3))) == expected
    assert native.encode_record(*front, [tuple(section()), tuple(section(shard=3))]) == expected


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("topic_id", 2**64, OverflowError),
        ("topic_id", -1, OverflowError),
        ("shard", 2**32, OverflowError),
        ("kind", 256, OverflowError),
        ("base_offset", 2**63, OverflowError),
        ("rows", -1, OverflowError),
        ("epoch", "1", TypeError),
        ("body", 7, TypeError),
        ("body", ["text"], TypeError),
        ("body", [memoryview(b"abcd")[::2]], BufferError),
    ],
)
def test_values_that_do_not_fit_are_refused(field: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        native.encode_record(1, 1, 1, 0, 0, 4096, 8, [section(**{field: value})])


def test_refuses_positions_beyond_32_bits() -> None:
    with pytest.raises(OverflowError, match="32 bits"):
        native.encode_record(1, 1, 1, 0, 0, 2**32 - 8, 8, [section()])
    with pytest.raises(OverflowError):
        native.encode_record(1, 1, 1, 0, 0, 2**32, 8, [])


def test_invalid_sections_are_refused() -> None:
    with pytest.raises(IndexError):
        native.encode_record(1, 1, 1, 0, 0, 4096, 8, [(1, 2)])
    with pytest.raises(TypeError):
        native.encode_record(1, 1, 1, 0, 0, 4096, 8, [b"x"])
    with pytest.raises(ValueError, match="align"):
        native.encode_record(1, 1, 1, 0, 0, 4096, 0, [])
