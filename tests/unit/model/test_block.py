"""Blocks: every value of every column comes back as it went in, or is refused before it is stored (hazard 9)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model import envelope
from icestream.model.block import (
    CONSTANT,
    FIXED,
    VARIABLE,
    Block,
    ConstantColumn,
    Numbering,
    check_block,
    encode_block,
    iter_blocks,
)
from icestream.model.envelope import COLUMNS, ColumnKind, EnvelopeColumn
from tests.support.hypothesis_effort import QUARTER
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

I32_MAX, I64_MAX, U64_MAX = 2**31 - 1, 2**63 - 1, 2**64 - 1
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES: dict[ColumnKind, st.SearchStrategy[Any]] = {
    ColumnKind.INT32: st.integers(-(2**31), I32_MAX),
    ColumnKind.INT64: st.integers(-(2**63), I64_MAX),
    ColumnKind.TIMESTAMP_US: st.integers(-(2**63), I64_MAX),
    ColumnKind.BOOLEAN: st.booleans(),
    ColumnKind.BINARY: st.binary(max_size=20),
    ColumnKind.STRING: TEXT,
    ColumnKind.HEADERS: st.dictionaries(TEXT, TEXT, max_size=4),
}
EXAMPLES: dict[ColumnKind, list[Any]] = {
    ColumnKind.INT32: [0, -1, I32_MAX, -(2**31)],
    ColumnKind.INT64: [0, -1, I64_MAX, -(2**63)],
    ColumnKind.TIMESTAMP_US: [0, -62_135_596_800_000_000, I64_MAX, -(2**63)],  # the year 1, and the year 294,247
    ColumnKind.BOOLEAN: [True, False],
    ColumnKind.BINARY: [b"", b"\0", b"\xff\xfe", bytes(300)],
    ColumnKind.STRING: ["", "\0", "ü\U0010ffff", "x" * 300],
    ColumnKind.HEADERS: [{}, {"": ""}, {"b": "2", "a": "1", "ä": "\0"}],
}
NUMBERINGS = st.one_of(
    st.none(),
    st.builds(Numbering, st.integers(0, I64_MAX), st.integers(0, I32_MAX), st.integers(0, I64_MAX - 100)),
)
every_column = pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)


@st.composite
def any_columns(draw: st.DrawFn, rows: int) -> dict[EnvelopeColumn, Any]:
    columns: dict[EnvelopeColumn, Any] = {}
    for column in draw(st.lists(st.sampled_from(COLUMNS), unique=True, max_size=6)):
        value = st.one_of(st.none(), VALUES[column.kind])
        whole = st.lists(value, min_size=rows, max_size=rows)
        columns[column] = draw(st.one_of(whole, value.map(ConstantColumn)))
    return columns


def rows_of(values: Any, rows: int) -> list[Any]:
    return [values.value] * rows if isinstance(values, ConstantColumn) else list(values)


# --- round trip -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 20), NUMBERINGS, st.data())
def test_round_trip(rows: int, numbering: Numbering | None, data: st.DataObject) -> None:
    columns = data.draw(any_columns(rows))
    encoded = encode_block(rows, columns, numbering)
    block = check_block(encoded)
    assert (block.rows, block.block_bytes, block.numbering) == (rows, len(encoded), numbering)
    assert len(encoded) % 8 == 0
    for column in COLUMNS:
        assert block.values(column) == rows_of(columns.get(column, ConstantColumn(None)), rows), column.name
    stored = {column for column, values in columns.items() if any(value is not None for value in rows_of(values, rows))}
    assert set(block.columns()) == stored


@every_column
def test_the_edges_of_a_column(column: EnvelopeColumn) -> None:
    values = EXAMPLES[column.kind]
    assert check_block(encode_block(len(values), {column: values})).values(column) == values
    for value in values:
        assert check_block(encode_block(3, {column: ConstantColumn(value)})).values(column) == [value] * 3


@every_column
@QUARTER
@given(pattern=st.lists(st.booleans(), min_size=1, max_size=70), data=st.data())
def test_nulls_keep_their_rows(column: EnvelopeColumn, pattern: list[bool], data: st.DataObject) -> None:
    values = [data.draw(VALUES[column.kind]) if there else None for there in pattern]
    assert check_block(encode_block(len(values), {column: values})).values(column) == values


@every_column
def test_a_column_of_nulls_is_omitted(column: EnvelopeColumn) -> None:
    empty = encode_block(4, {})
    assert encode_block(4, {column: [None] * 4}) == empty
    assert encode_block(4, {column: ConstantColumn(None)}) == empty
    assert check_block(empty).values(column) == [None] * 4


@every_column
def test_a_constant_column_equals_its_values(column: EnvelopeColumn) -> None:
    value = EXAMPLES[column.kind][-1]
    short, long = encode_block(500, {column: ConstantColumn(value)}), encode_block(500, {column: [value] * 500})
    assert check_block(short).values(column) == check_block(long).values(column)
    assert len(short) < len(long)


def test_values_are_copies() -> None:
    """hazard 15: what a reader got does not change when the buffer it came from is used again."""
    buffer = bytearray(encode_block(2, {envelope.PAYLOAD: [b"one", b"two"], envelope.KEY: ConstantColumn(b"key")}))
    block = Block(memoryview(buffer))
    payloads, keys = block.values(envelope.PAYLOAD), block.values(envelope.KEY)
    buffer[:] = bytes(len(buffer))
    assert (payloads, keys) == ([b"one", b"two"], [b"key", b"key"])


@given(st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=4), max_size=4))
def test_a_section_is_its_blocks_in_order(batches: list[list[bytes]]) -> None:
    body = b"".join(encode_block(len(batch), {envelope.PAYLOAD: batch}) for batch in batches)
    for view in (body, memoryview(body)):
        assert [block.values(envelope.PAYLOAD) for block in iter_blocks(view)] == batches


@pytest.mark.parametrize("garbage", [b"\0", bytes(31), bytes(32), b"\xff" * 64])
def test_bytes_after_the_last_block_are_detected(garbage: bytes) -> None:
    body = encode_block(1, {envelope.PAYLOAD: [b"x"]}) + garbage
    with pytest.raises(errors.DecodeError):
        list(iter_blocks(body))
    with pytest.raises(errors.DecodeError):
        check_block(body)


# --- the bytes --------------------------------------------------------------------------------------------------------


def test_a_block_matches_the_documented_bytes() -> None:
    columns: dict[EnvelopeColumn, Any] = {
        envelope.RETAIN: ConstantColumn(True),
        envelope.PAYLOAD: [b"ab", b"", b"c"],
        envelope.PUBLISH_TIME: [-1, None, 2],
        envelope.HEADERS: ConstantColumn({"b": "2", "a": "1"}),
    }
    times = bytes([0b101]) + bytes(7) + struct.pack("<qqq", -1, 0, 2)
    payloads = struct.pack("<IIII", 0, 2, 2, 3) + b"abc"
    headers = struct.pack("<HH1sI1sH1sI1s", 2, 1, b"a", 1, b"1", 1, b"b", 1, b"2")
    directory = b"".join(
        struct.pack("<HBBI", *entry) for entry in ((1, 2, 1, 32), (3, 3, 0, 19), (4, 1, 0, len(headers)), (17, 1, 0, 1))
    )
    body = directory + times + payloads + bytes(5) + headers + bytes(-len(headers) % 8) + b"\x01" + bytes(7)
    head = struct.pack("<IIqiHHq", 3, 32 + len(body), 77, 5, 4, 0, 1_000)
    assert encode_block(3, columns, Numbering(77, 5, 1_000)) == head + body
    assert encode_block(1, {}) == struct.pack("<IIqiHHq", 1, 32, -1, 0, 0, 0, -1)


def test_columns_keep_their_ids_and_kinds() -> None:
    """Column ids are on disk: they are never renumbered or reused."""
    columns = {column.id: (column.name, column.kind.value, column.in_table) for column in COLUMNS}
    assert columns == {
        1: ("publish_time", 3, True), 2: ("key", 5, True), 3: ("payload", 5, True), 4: ("headers", 7, True),
        5: ("producer_name", 6, True), 6: ("producer_id", 2, True), 7: ("request_id", 2, True),
        8: ("sequence", 2, True), 9: ("topic_name", 6, True), 10: ("broker_addr", 6, True),
        11: ("subscription_name", 6, True), 12: ("schema_id", 2, True), 13: ("schema_version", 1, True),
        14: ("schema_error", 6, True), 15: ("wire", 5, True), 16: ("qos", 1, True), 17: ("retain", 4, True),
        18: ("content_type", 6, True), 64: ("qos2_client", 6, False), 65: ("qos2_packet_id", 1, False),
        66: ("origin_epoch", 2, False), 67: ("origin_offset", 2, False),
    }  # fmt: skip


# --- what is refused at the door --------------------------------------------------------------------------------------

UNFIT: dict[ColumnKind, list[Any]] = {
    ColumnKind.INT32: [2**31, -(2**31) - 1, U64_MAX, 10**40, 1.0, "1", b"1"],
    ColumnKind.INT64: [2**63, -(2**63) - 1, U64_MAX, 10**40, 1.0, "1", b"1"],
    ColumnKind.TIMESTAMP_US: [2**63, U64_MAX, U64_MAX * 1_000, 1.5, "now"],
    ColumnKind.BOOLEAN: [0, 1, "yes", b"\x01"],
    ColumnKind.BINARY: ["text", 1, [1]],
    ColumnKind.STRING: ["\ud800", "a\udfffb", b"bytes", 1],
    ColumnKind.HEADERS: [
        {"\ud800": ""},
        {"": "\udc00"},
        {"k" * 65_536: ""},
        {str(number): "" for number in range(65_536)},
        [("a", "b")],
        "a=b",
    ],
}


@every_column
def test_hazard_09_values_that_do_not_fit_their_column_are_refused(column: EnvelopeColumn) -> None:
    good = EXAMPLES[column.kind][0]
    for value in UNFIT[column.kind]:
        for values in ([value], ConstantColumn(value), [good, None, value]):
            rows = len(values) if isinstance(values, list) else 1
            with pytest.raises(errors.InvalidInput):
                encode_block(rows, {column: values})


@pytest.mark.parametrize("headers", [{"key": 1}, {"key": None}, {"key": b"value"}, {1: "value"}, {b"key": "value"}])
def test_hazard_09_headers_that_are_not_text_are_refused(headers: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        encode_block(1, {envelope.HEADERS: [headers]})


@pytest.mark.parametrize(
    "numbering",
    [
        Numbering(2**63, 0, 0),
        Numbering(U64_MAX, 0, 0),
        Numbering(-2, 0, 0),
        Numbering(-1, 0, 0),
        Numbering(0, 0, -1),
        Numbering(0, 2**31, 0),
        Numbering(0, -(2**31) - 1, 0),
        Numbering(0, 0, 2**63),
        Numbering(0, 0, I64_MAX),
        Numbering(0, 0, I64_MAX - 2),
    ],
)
def test_hazard_09_numbers_of_producers_that_do_not_fit_are_refused(numbering: Numbering) -> None:
    """A number that the block check refuses is refused by the encoder too: a u64 from a front end is never stored."""
    with pytest.raises(errors.InvalidInput):
        encode_block(3, {envelope.PAYLOAD: ConstantColumn(b"x")}, numbering)


ANY_INTEGER = st.integers(-(2**65), 2**65)


@given(st.builds(Numbering, ANY_INTEGER, ANY_INTEGER, ANY_INTEGER), ANY_INTEGER, st.text(max_size=5))
def test_hazard_09_accepted_blocks_can_always_be_read(numbering: Numbering, number: int, text: str) -> None:
    columns = {envelope.REQUEST_ID: [number], envelope.QOS: [number], envelope.PRODUCER_NAME: [text]}
    try:
        encoded = encode_block(1, columns, numbering)
    except errors.InvalidInput:
        return
    block = check_block(encoded)
    assert block.numbering == (None if numbering.producer_id == -1 else numbering)
    assert block.values(envelope.REQUEST_ID) == [number]
    assert block.values(envelope.PRODUCER_NAME) == [text]


@pytest.mark.parametrize("rows", [0, -1, limits.BLOCK_ROWS_MAX + 1, 2**32])
def test_the_number_of_rows_is_bounded(rows: int) -> None:
    with pytest.raises(errors.InvalidInput):
        encode_block(rows, {envelope.PAYLOAD: ConstantColumn(b"x")})
    with pytest.raises(errors.DecodeError):
        check_block(struct.pack("<IIqiHHq", rows % 2**32, 32, -1, 0, 0, 0, -1))


@pytest.mark.parametrize("values", [[], [b"a"], [b"a"] * 3])
def test_a_column_has_a_value_for_each_row(values: list[Any]) -> None:
    with pytest.raises(errors.InvalidInput, match="values for 2 messages"):
        encode_block(2, {envelope.PAYLOAD: values})


def test_the_largest_number_of_rows() -> None:
    rows = limits.BLOCK_ROWS_MAX
    block = check_block(encode_block(rows, {envelope.PAYLOAD: ConstantColumn(b"x")}, Numbering(1, 0, I64_MAX - rows)))
    assert block.rows == rows
    assert len(block.values(envelope.KEY)) == rows


# --- hostile bytes ----------------------------------------------------------------------------------------------------

SMALL = encode_block(
    3,
    {
        envelope.PUBLISH_TIME: [1, None, 3],
        envelope.PAYLOAD: [b"a", b"", b"ccc"],
        envelope.HEADERS: [{"k": "v"}, {}, {"a": "1", "b": "2"}],
        envelope.PRODUCER_NAME: ConstantColumn("me"),
        envelope.RETAIN: [True, False, True],
    },
    Numbering(7, 1, 40),
)


def all_values(data: bytes) -> tuple[Numbering | None, dict[str, list[Any]]]:
    block = check_block(data)
    return block.numbering, {column.name: block.values(column) for column in block.columns()}


def test_every_truncation_is_refused() -> None:
    assert all_values(SMALL)[0] == Numbering(7, 1, 40)
    for cut in truncations(SMALL):
        with pytest.raises(errors.DecodeError):
            check_block(cut)


def test_every_flip_is_read_or_refused() -> None:
    """Whether it is the same block the section's CRC knows; the door only keeps out what cannot be read."""
    refused = sum(decoded_or_refused(all_values, flipped) is None for _, flipped in bit_flips(SMALL))
    assert 0 < refused < 8 * len(SMALL)


@given(mutated(SMALL))
def test_mutated_blocks_are_read_or_refused(data: bytes) -> None:
    decoded = decoded_or_refused(all_values, data)
    assert decoded is None or all(len(values) == Block(data).rows for values in decoded[1].values())


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    decoded = decoded_or_refused(all_values, data)
    assert decoded is None or len(data) >= 32


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """A block whose head adds up, with columns that say anything."""
    rows = draw(st.integers(1, 9))
    directory, data = b"", b""
    last = 0
    for _ in range(draw(st.integers(0, 4))):
        last += draw(st.integers(1, 20))
        content = draw(st.one_of(st.binary(max_size=60), st.just(bytes(8) * rows), st.just(bytes(4 * rows + 4))))
        directory += struct.pack("<HBBI", last, draw(st.integers(0, 4)), draw(st.integers(0, 2)), len(content))
        data += content + bytes(-len(content) % 8)
    size = 32 + len(directory) + len(data)
    return struct.pack("<IIqiHHq", rows, size, -1, 0, len(directory) // 8, 0, -1) + directory + data


@given(forged())
def test_forged_columns_are_read_or_refused(data: bytes) -> None:
    decoded = decoded_or_refused(all_values, data)
    for name, values in (decoded[1] if decoded else {}).items():
        column = next(column for column in COLUMNS if column.name == name)
        encode_block(len(values), {column: values})  # what is read fits its column
        assert len(values) == Block(data).rows


def one_column(column: int, encoding: int, flags: int, content: bytes, *, rows: int = 2) -> bytes:
    data = struct.pack("<HBBI", column, encoding, flags, len(content)) + content + bytes(-len(content) % 8)
    return struct.pack("<IIqiHHq", rows, 32 + len(data), -1, 0, 1, 0, -1) + data


def headers_of(*pairs: tuple[bytes, bytes], count: int | None = None) -> bytes:
    parts = [struct.pack("<H", len(pairs) if count is None else count)]
    parts += [struct.pack("<H", len(key)) + key + struct.pack("<I", len(value)) + value for key, value in pairs]
    return b"".join(parts)


def variable(*ends: int, body: bytes = b"") -> bytes:
    return struct.pack(f"<{len(ends)}I", *ends) + body


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(one_column(99, CONSTANT, 0, b""), id="unknown column"),
        pytest.param(one_column(0, CONSTANT, 0, b""), id="column 0"),
        pytest.param(one_column(3, 0, 0, b""), id="encoding 0"),
        pytest.param(one_column(3, 4, 0, b""), id="encoding 4"),
        pytest.param(one_column(3, CONSTANT, 2, b""), id="unknown flag"),
        pytest.param(one_column(7, FIXED, 0, bytes(15)), id="fixed too short"),
        pytest.param(one_column(7, FIXED, 0, bytes(17)), id="fixed too long"),
        pytest.param(one_column(3, FIXED, 0, bytes(16)), id="bytes as fixed"),
        pytest.param(one_column(7, VARIABLE, 0, variable(0, 8, 16, body=bytes(16))), id="numbers as variable"),
        pytest.param(one_column(7, CONSTANT, 0, bytes(7)), id="constant too short"),
        pytest.param(one_column(16, CONSTANT, 0, bytes(8)), id="constant too long"),
        pytest.param(one_column(17, CONSTANT, 0, b"\x02"), id="constant boolean 2"),
        pytest.param(one_column(17, CONSTANT, 0, b""), id="constant boolean of no bytes"),
        pytest.param(one_column(17, FIXED, 0, b"\x01\x02"), id="boolean 2"),
        pytest.param(one_column(17, FIXED, 1, bytes(7)), id="bitmap cut off"),
        pytest.param(one_column(3, VARIABLE, 0, variable(0, 0)), id="ends cut off"),
        pytest.param(one_column(3, VARIABLE, 0, variable(1, 1, 1, body=b"x")), id="ends do not begin at 0"),
        pytest.param(one_column(3, VARIABLE, 0, variable(0, 2, 1, body=b"x")), id="ends fall"),
        pytest.param(one_column(3, VARIABLE, 0, variable(0, 1, 1, body=b"xy")), id="bytes behind the ends"),
        pytest.param(one_column(3, VARIABLE, 0, variable(0, 1, 2**32 - 1, body=b"x")), id="ends beyond the bytes"),
        pytest.param(one_column(5, CONSTANT, 0, b"\xff"), id="text is not UTF-8"),
        pytest.param(one_column(5, CONSTANT, 0, b"\xed\xa0\x80"), id="text is a surrogate"),
        pytest.param(one_column(4, CONSTANT, 0, b""), id="headers of no bytes"),
        pytest.param(one_column(4, CONSTANT, 0, headers_of(count=1)), id="headers cut off"),
        pytest.param(one_column(4, CONSTANT, 0, headers_of((b"a", b"1"))[:-1]), id="header value cut off"),
        pytest.param(one_column(4, CONSTANT, 0, headers_of((b"a", b"1")) + b"x"), id="bytes behind the headers"),
        pytest.param(one_column(4, CONSTANT, 0, headers_of((b"b", b""), (b"a", b""))), id="keys fall"),
        pytest.param(one_column(4, CONSTANT, 0, headers_of((b"a", b"1"), (b"a", b"2"))), id="a key twice"),
        pytest.param(one_column(4, CONSTANT, 0, headers_of((b"", b"1"), (b"", b"2"))), id="the empty key twice"),
        pytest.param(one_column(4, CONSTANT, 0, headers_of((b"\xff", b""))), id="key is not UTF-8"),
        pytest.param(one_column(4, CONSTANT, 0, headers_of((b"", b"\xff"))), id="value is not UTF-8"),
    ],
)
def test_invalid_blocks_are_refused_by_validation(data: bytes) -> None:
    with pytest.raises(errors.DecodeError):
        check_block(data)


def test_valid_blocks_of_the_same_builders_are_accepted() -> None:
    """The builders above make good blocks too, so each refusal is for its one fault."""
    assert check_block(one_column(3, VARIABLE, 0, variable(0, 1, 2, body=b"xy"))).values(envelope.PAYLOAD) == [
        b"x",
        b"y",
    ]
    assert check_block(one_column(7, FIXED, 0, bytes(16))).values(envelope.REQUEST_ID) == [0, 0]
    assert check_block(one_column(17, FIXED, 1, b"\x02" + bytes(9))).values(envelope.RETAIN) == [None, False]
    content = headers_of((b"", b""), (b"a", b"1"))
    assert check_block(one_column(4, CONSTANT, 0, content)).values(envelope.HEADERS) == [{"": "", "a": "1"}] * 2


@pytest.mark.parametrize(
    "head",
    [
        (2, 40, -1, 0, 0, 0, -1),  # longer than it is
        (2, 24, -1, 0, 0, 0, -1),  # shorter than its head
        (2, 31, -1, 0, 0, 0, -1),
        (2, 32, -1, 0, 0, 1, -1),  # a flag
        (2, 32, -1, 0, 1, 0, -1),  # a directory beyond the end
        (2, 32, -1, 0, 65_535, 0, -1),
        (2, 32, -2, 0, 0, 0, -2),
        (2, 32, -1, 0, 0, 0, 0),
        (2, 32, 0, 0, 0, 0, -1),
        (2, 32, 0, 0, 0, 0, I64_MAX - 1),  # the second row's number does not fit
    ],
)
def test_a_head_that_does_not_add_up(head: tuple[int, ...]) -> None:
    with pytest.raises(errors.DecodeError):
        check_block(struct.pack("<IIqiHHq", *head))


def test_columns_must_rise_and_fill_the_block() -> None:
    entry = struct.pack("<HBBI", 3, CONSTANT, 0, 0)
    lower = struct.pack("<HBBI", 2, CONSTANT, 0, 0)
    for directory in (entry + entry, entry + lower):
        with pytest.raises(errors.DecodeError):
            check_block(struct.pack("<IIqiHHq", 1, 48, -1, 0, 2, 0, -1) + directory)
    with pytest.raises(errors.DecodeError, match="fill"):
        check_block(struct.pack("<IIqiHHq", 1, 48, -1, 0, 1, 0, -1) + entry + bytes(8))


def test_hazard_35_a_hostile_count_costs_no_memory() -> None:
    """A million rows in a few bytes: refused by the sizes, before anything of that size is made."""
    for column, encoding in ((3, VARIABLE), (7, FIXED), (17, FIXED)):
        with pytest.raises(errors.DecodeError):
            check_block(one_column(column, encoding, 0, bytes(64), rows=limits.BLOCK_ROWS_MAX))
