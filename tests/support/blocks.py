"""Blocks for tests: with any columns and values, and forged ones whose directory says anything."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from icestream.model import envelope
from icestream.model.block import ConstantColumn, Numbering, encode_block
from icestream.model.envelope import COLUMNS, ColumnKind, EnvelopeColumn

I64_MAX = 2**63 - 1
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES: dict[ColumnKind, st.SearchStrategy[Any]] = {
    ColumnKind.INT32: st.integers(-(2**31), 2**31 - 1),
    ColumnKind.INT64: st.integers(-(2**63), I64_MAX),
    ColumnKind.TIMESTAMP_US: st.integers(-(2**63), I64_MAX),
    ColumnKind.BOOLEAN: st.booleans(),
    ColumnKind.BINARY: st.binary(max_size=20),
    ColumnKind.STRING: TEXT,
    ColumnKind.HEADERS: st.dictionaries(TEXT, TEXT, max_size=4),
}
NUMBERINGS = st.one_of(
    st.none(),
    st.builds(Numbering, st.integers(0, I64_MAX), st.integers(0, 2**31 - 1), st.integers(0, I64_MAX - 100)),
)


@st.composite
def blocks(draw: st.DrawFn, rows_max: int = 20, columns: tuple[EnvelopeColumn, ...] = COLUMNS) -> bytes:
    """A good block."""
    rows = draw(st.integers(1, rows_max))
    values_by_column: dict[EnvelopeColumn, Any] = {}
    for column in draw(st.lists(st.sampled_from(columns), unique=True, max_size=6)):
        value = st.one_of(st.none(), VALUES[column.kind])
        values_by_column[column] = draw(
            st.one_of(st.lists(value, min_size=rows, max_size=rows), value.map(ConstantColumn))
        )
    return encode_block(rows, values_by_column, draw(NUMBERINGS))


@st.composite
def bodies(draw: st.DrawFn, rows_max: int = 20, columns: tuple[EnvelopeColumn, ...] = COLUMNS) -> bytes:
    """One to four good blocks, one behind the other."""
    return b"".join(draw(st.lists(blocks(rows_max, columns), min_size=1, max_size=4)))


@st.composite
def forged_blocks(draw: st.DrawFn) -> bytes:
    """A head that adds up, and columns that say anything: often something that nearly fits."""
    rows = draw(st.integers(1, 9))
    directory, data, last = b"", b"", 0
    for _ in range(draw(st.integers(0, 4))):
        last += draw(st.integers(1, 12))
        content = draw(st.one_of(st.binary(max_size=60), st.just(bytes(8) * rows), variable_data(rows)))
        content = draw(st.sampled_from([b"", (2**rows - 1).to_bytes(8, "little")])) + content
        directory += struct.pack("<HBBI", last, draw(st.integers(0, 4)), draw(st.integers(0, 2)), len(content))
        data += content + bytes(-len(content) % 8)
    size = 32 + len(directory) + len(data)
    return struct.pack("<IIqiHHq", rows, size, -1, 0, len(directory) // 8, 0, -1) + directory + data


@st.composite
def variable_data(draw: st.DrawFn, rows: int) -> bytes:
    """Ends and bytes of a VARIABLE column whose values are parts of texts, headers and garbage."""
    headers = st.dictionaries(TEXT, TEXT, max_size=2).map(one_header_value)
    value = st.one_of(TEXT.map(str.encode), headers, st.binary(max_size=5))
    values = draw(st.lists(value, min_size=rows, max_size=rows))
    ends = [sum(map(len, values[:count])) for count in range(rows + 1)]
    ends[draw(st.integers(0, rows))] += draw(st.sampled_from([0, 0, 0, 1, 2**31]))
    return struct.pack(f"<{rows + 1}I", *ends) + b"".join(values)


def one_header_value(headers: dict[str, str]) -> bytes:
    """The encoded header value, cut out of a block in which it is the only column."""
    block = encode_block(1, {envelope.HEADERS: ConstantColumn(headers)})
    return block[40 : 40 + struct.unpack_from("<I", block, 36)[0]]
