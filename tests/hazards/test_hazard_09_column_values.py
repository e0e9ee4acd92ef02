"""Hazard 9, the log's part: what is acked can always become a row. Every value is checked at the door.

That rows survive Parquet and its readers waits for the pipeline; per front end it waits for the front ends.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.model import envelope
from icestream.model.block import (
    COLUMN,
    CONSTANT,
    FIXED,
    HEAD,
    VARIABLE,
    ConstantColumn,
    Numbering,
    check_block,
    encode_block,
)
from icestream.model.envelope import COLUMNS, ColumnKind, EnvelopeColumn
from tests.support.machine import A, Machine

U64_MAX = 2**64 - 1
YEAR_300000_MS = 9_404_649_600_000_000


def of_kind(*kinds: ColumnKind) -> list[EnvelopeColumn]:
    return [column for column in COLUMNS if column.kind in kinds]


UNFIT: list[tuple[EnvelopeColumn, object]] = [
    *((column, value) for column in of_kind(ColumnKind.INT64) for value in (U64_MAX, 2**63, -(2**63) - 1, 1.5, "7")),
    *((column, value) for column in of_kind(ColumnKind.INT32) for value in (2**31, -(2**31) - 1, U64_MAX)),
    *(
        (column, value)
        for column in of_kind(ColumnKind.TIMESTAMP_US)
        for value in (YEAR_300000_MS * 1000, U64_MAX * 1000)
    ),
    *((column, value) for column in of_kind(ColumnKind.STRING) for value in ("\ud800", "a\udfff", b"bytes", 7)),
    *((column, value) for column in of_kind(ColumnKind.BINARY) for value in ("text", 7)),
    *((column, value) for column in of_kind(ColumnKind.BOOLEAN) for value in (2, 0, "yes")),
    (envelope.HEADERS, {"\ud800": "lone"}),
    (envelope.HEADERS, {"lone": "\udfff"}),
    (envelope.HEADERS, {"k" * 65_536: "longer than its length field"}),
    (envelope.HEADERS, {str(number): "" for number in range(65_536)}),
    (envelope.HEADERS, [("a", "b")]),
]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("column", "value"), UNFIT, ids=lambda value: getattr(value, "name", f"{value!r:.24}"))
def test_hazard_09_a_value_that_does_not_fit_its_column_is_refused(
    column: EnvelopeColumn, value: object, constant: bool
) -> None:
    values = ConstantColumn(value) if constant else [value]  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput, match=column.name):
        encode_block(1, {column: values})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "numbering",
    [
        Numbering(U64_MAX, 0, 0),
        Numbering(2**63, 0, 0),
        Numbering(1, 2**31, 0),
        Numbering(1, 0, 2**63),
        Numbering(1, 0, U64_MAX),
        Numbering(1, 0, -5),
        Numbering(-7, 0, 1),
        Numbering(1, 0, 2**63 - 1),  # its last row would be 2^63
    ],
    ids=str,
)
def test_hazard_09_a_numbering_that_does_not_fit_is_refused(numbering: Numbering) -> None:
    with pytest.raises(errors.InvalidInput):
        encode_block(2, {envelope.PAYLOAD: [b"a", b"b"]}, numbering)


EDGES: list[tuple[EnvelopeColumn, list[object]]] = [
    *((column, [2**63 - 1, -(2**63), 0]) for column in of_kind(ColumnKind.INT64, ColumnKind.TIMESTAMP_US)),
    *((column, [2**31 - 1, -(2**31), 0]) for column in of_kind(ColumnKind.INT32)),
    *((column, [b"", b"\x00" * 3, bytes(range(256))]) for column in of_kind(ColumnKind.BINARY)),
    *((column, ["", "\x00", "\U0010ffff ¶ 日本"]) for column in of_kind(ColumnKind.STRING)),
    *((column, [True, False, None]) for column in of_kind(ColumnKind.BOOLEAN)),
    (envelope.HEADERS, [{}, {"": ""}, {"k" * 65_535: "v", "a": "\U0010ffff"}]),
    (envelope.KEY, [b"k" * 4 * 2**20, b"", None]),
]


@pytest.mark.parametrize(("column", "values"), EDGES, ids=lambda value: getattr(value, "name", "edges"))
def test_hazard_09_boundary_values_are_returned_unchanged(column: EnvelopeColumn, values: list[object]) -> None:
    data = encode_block(3, {column: values})  # type: ignore[dict-item]
    assert check_block(data).values(column) == values


def raw_block(column: EnvelopeColumn, encoding: int, flags: int, content: bytes, rows: int = 1) -> bytes:
    """A block as a hostile client sends it: the structure is right, the content is not."""
    padding = bytes(-len(content) % 8)
    size = HEAD.size + COLUMN.size + len(content) + len(padding)
    return (
        HEAD.pack(rows, size, -1, 0, 1, 0, -1)
        + COLUMN.pack(column.id, encoding, flags, len(content))
        + content
        + padding
    )


def variable(*values: bytes) -> bytes:
    ends = [sum(map(len, values[:count])) for count in range(len(values) + 1)]
    return struct.pack(f"<{len(ends)}I", *ends) + b"".join(values)


HOSTILE = {
    "not UTF-8": raw_block(envelope.PRODUCER_NAME, VARIABLE, 0, variable(b"\xff\xfe")),
    "a surrogate in UTF-8": raw_block(envelope.TOPIC_NAME, CONSTANT, 0, "\ud800".encode("utf-8", "surrogatepass")),
    "an overlong form": raw_block(envelope.CONTENT_TYPE, CONSTANT, 0, b"\xc0\x80"),
    "a boolean of 2": raw_block(envelope.RETAIN, FIXED, 0, b"\x02"),
    "a constant boolean of 2": raw_block(envelope.RETAIN, CONSTANT, 0, b"\x02"),
    "an INT64 of four bytes": raw_block(envelope.REQUEST_ID, CONSTANT, 0, bytes(4)),
    "two values for one row": raw_block(envelope.REQUEST_ID, FIXED, 0, bytes(16)),
    "fixed text": raw_block(envelope.PRODUCER_NAME, FIXED, 0, bytes(8)),
    "a variable number": raw_block(envelope.REQUEST_ID, VARIABLE, 0, variable(bytes(8))),
    "ends that fall": raw_block(envelope.PAYLOAD, VARIABLE, 0, struct.pack("<3I", 0, 9, 4) + b"abcd", rows=2),
    "ends beyond the data": raw_block(envelope.PAYLOAD, VARIABLE, 0, struct.pack("<2I", 0, 99)),
    "a bitmap cut off": raw_block(envelope.PAYLOAD, VARIABLE, 1, b"\x01"),
    "headers with a key twice": raw_block(
        envelope.HEADERS, CONSTANT, 0, struct.pack("<H", 2) + 2 * (struct.pack("<H", 1) + b"a" + struct.pack("<I", 0))
    ),
    "headers that are not UTF-8": raw_block(
        envelope.HEADERS, CONSTANT, 0, struct.pack("<HH", 1, 1) + b"\xff" + struct.pack("<I", 0)
    ),
    "headers cut off": raw_block(envelope.HEADERS, CONSTANT, 0, struct.pack("<HH", 9, 1) + b"a"),
    "an unknown column": raw_block(EnvelopeColumn(999, "what", ColumnKind.INT64), CONSTANT, 0, bytes(8)),
    "an unknown encoding": raw_block(envelope.REQUEST_ID, 9, 0, bytes(8)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hazard_09_hostile_blocks_are_refused_by_validation(name: str) -> None:
    with pytest.raises(errors.DecodeError):
        check_block(HOSTILE[name])


@given(
    key=st.none() | st.binary(max_size=40),
    payload=st.binary(max_size=200),
    headers=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4),
    request=st.none() | st.integers(-(2**63), 2**63 - 1),
    name=st.none() | st.text(max_size=8),
    time=st.integers(-(2**63), 2**63 - 1),
    retain=st.none() | st.booleans(),
)
def test_hazard_09_any_accepted_message_is_returned_unchanged(**fields: object) -> None:
    columns = {
        envelope.KEY: [fields["key"]],
        envelope.PAYLOAD: [fields["payload"]],
        envelope.HEADERS: [fields["headers"]],
        envelope.REQUEST_ID: [fields["request"]],
        envelope.PRODUCER_NAME: [fields["name"]],
        envelope.PUBLISH_TIME: [fields["time"]],
        envelope.RETAIN: [fields["retain"]],
    }
    block = check_block(encode_block(1, columns))  # type: ignore[arg-type]
    assert {column: block.values(column) for column in columns} == columns


@pytest.mark.asyncio
async def test_hazard_09_a_refused_message_is_not_in_the_log() -> None:
    machine = Machine()
    log = await machine.start()
    with pytest.raises(errors.MessageTooLarge):
        log.batch(log.shard(*A), encode_block(1, {envelope.PAYLOAD: [bytes(9_000_000)]}))
    with pytest.raises(errors.DecodeError):
        log.batch(log.shard(*A), bytes(40))
    with pytest.raises(errors.InvalidInput):
        log.batch(log.shard(*A), encode_block(1, {envelope.PAYLOAD: [b"x"]}) + bytes(8))
    assert (log.state.lsn, log.shard(*A).assigned) == (0, 0)
