"""Messages as Arrow: what the blocks hold, in the columns of the table; nothing that was forged gets in."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.client.arrow import _record_batch, schema
from icestream.client.delivered_rows import DeliveredRows, block_extents
from icestream.client.inbox import Chunk
from icestream.model import envelope
from icestream.model.block import Block, ConstantColumn, Numbering, encode_block
from icestream.model.envelope import COLUMNS, ColumnKind
from icestream.rpc.frame import Delivery
from tests.support.blocks import bodies, forged_blocks

NO_CONSUMER: Any = None
TABLE = tuple(column for column in COLUMNS if column.in_table)
NUMBERS = (envelope.PRODUCER_ID, envelope.SEQUENCE)


def delivered(body: bytes, first_row: int = 0, rows: int = 0) -> DeliveredRows:
    rows = rows or sum(count for count, _ in block_extents(body))
    return DeliveredRows(NO_CONSUMER, None, None, Delivery(1, 3, 0, 0, 100, 5_000_000, first_row, rows, body), 0)


def shown(column: envelope.EnvelopeColumn, value: Any) -> Any:
    return sorted(value.items(), key=lambda pair: pair[0].encode()) if isinstance(value, dict) else value


def column_of(data: Any, column: envelope.EnvelopeColumn) -> list[Any]:
    array = data.column(column.name)
    is_time = column.kind is ColumnKind.TIMESTAMP_US  # a datetime cannot hold all of them
    return list((array.cast(pa.int64()) if is_time else array).to_pylist())


@given(bodies(rows_max=60, columns=tuple(column for column in TABLE if column not in NUMBERS)), st.data())
def test_a_batch_has_every_value_of_its_rows(body: bytes, draw: st.DataObject) -> None:
    whole = delivered(body)
    first = draw.draw(st.integers(0, whole.rows - 1))
    end = draw.draw(st.integers(first + 1, whole.rows))
    data = _record_batch([Chunk(whole, first, end)])
    data.validate(full=True)
    assert data.schema == schema()
    assert data.column("offset").to_pylist() == list(range(100 + first, 100 + end))
    assert set(data.column("shard").to_pylist()) == {3}
    for column in TABLE:
        if column not in NUMBERS:
            expected = [shown(column, value) for value in whole.values(column)[first:end]]
            assert column_of(data, column) == expected


def test_producer_and_number_of_a_message_are_columns() -> None:
    for rows in (2, 40):
        body = encode_block(rows, {envelope.PAYLOAD: [b"x"] * rows}, Numbering(7, 1, 30))
        body += encode_block(1, {envelope.PAYLOAD: [b"y"]})
        data = _record_batch([Chunk(delivered(body), 1, rows + 1)])
        assert data.column("producer_id").to_pylist() == [7] * (rows - 1) + [None]
        assert data.column("sequence").to_pylist() == [*range(31, 30 + rows), None]


def test_several_deliveries_are_one_batch() -> None:
    body = encode_block(40, {envelope.PAYLOAD: [b"%d" % row for row in range(40)]})
    data = _record_batch([Chunk(delivered(body), 38, 40), Chunk(delivered(body, 5, 3), 0, 2)])
    assert data.column("payload").to_pylist() == [b"38", b"39", b"5", b"6"]
    assert data.column("offset").to_pylist() == [138, 139, 105, 106]
    assert data.column("append_time").to_pylist()[0] == datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)


@given(forged_blocks())
def test_forged_columns_are_refused_before_arrow_reads_them(data: bytes) -> None:
    try:
        Block(data)
    except errors.DecodeError:
        return
    whole = delivered(data)
    try:
        record_batch = _record_batch([Chunk(whole, 0, whole.rows)])
    except errors.DecodeError:
        return
    record_batch.validate(full=True)
    assert record_batch.num_rows == whole.rows


def test_forged_ends_of_a_large_block_are_refused() -> None:
    good = encode_block(64, {envelope.PAYLOAD: [b"abc"] * 64})
    at = good.index((3).to_bytes(4, "little") + (6).to_bytes(4, "little"))
    bad = good[:at] + (2**31 - 1).to_bytes(4, "little") + good[at + 4 :]
    with pytest.raises(errors.DecodeError, match="payload"):
        _record_batch([Chunk(delivered(bad), 0, 64)])


def test_without_pyarrow_the_error_names_the_package() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from icestream.client.arrow import pyarrow\n"
        "from icestream import errors\n"
        "try: pyarrow()\n"
        "except errors.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "icestream[arrow]" in done.stdout


def test_numbers_from_a_table_and_from_the_log_are_in_one_column() -> None:
    """The head of a block has them while it is new; what comes from a table has them in columns."""
    new = encode_block(2, {envelope.PAYLOAD: [b"a", b"b"]}, Numbering(7, 0, 40))
    old = encode_block(
        2, {envelope.PAYLOAD: [b"c", b"d"], envelope.PRODUCER_ID: [7, None], envelope.SEQUENCE: [42, None]}
    )
    for bodies_of, expected in ((old, [(7, 42), (None, None)]), (new + old, [(7, 40), (7, 41), (7, 42), (None, None)])):
        whole = delivered(bodies_of)
        data = _record_batch([Chunk(whole, 0, whole.rows)])
        numbers = zip(data.column("producer_id").to_pylist(), data.column("sequence").to_pylist(), strict=True)
        assert list(numbers) == expected


def test_rows_of_many_deliveries_are_one_batch_in_their_order() -> None:
    """Constant columns and consecutive offsets over several deliveries are built in one piece."""
    chunks = []
    for start, time_us, key in ((0, 5, b"k"), (2, 5, b"k"), (4, 6, b"k"), (9, 6, b"l")):
        body = encode_block(2, {envelope.PAYLOAD: [b"%d" % start, b""], envelope.KEY: ConstantColumn(key)})
        chunks.append(
            Chunk(DeliveredRows(NO_CONSUMER, None, None, Delivery(1, 3, 0, 0, start, time_us, 0, 2, body), 0), 0, 2)
        )
    data = _record_batch(chunks)
    data.validate(full=True)
    assert data.column("offset").to_pylist() == [0, 1, 2, 3, 4, 5, 9, 10]
    assert data.column("append_time").cast(pa.int64()).to_pylist() == [5] * 4 + [6] * 4
    assert data.column("key").to_pylist() == [b"k"] * 6 + [b"l"] * 2
    assert data.column("payload").to_pylist() == [b"0", b"", b"2", b"", b"4", b"", b"9", b""]
