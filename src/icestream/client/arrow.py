"""Messages as Arrow: the columns of the topic's Iceberg table, in the same order, whatever a message has of them.

Columns of large blocks are taken as they stand in memory and checked as a whole; nothing is done for each message.
pyarrow is imported when the first batch is asked for: a client that does not ask does not need it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from icestream import errors
from icestream.client.columns import values_of
from icestream.client.delivered import BlockRows
from icestream.client.inbox import Chunk
from icestream.client.message import NOTED, Noted
from icestream.model import envelope
from icestream.model.block import CONSTANT, FIXED, NULLS, Value
from icestream.model.envelope import Column, ColumnKind

if TYPE_CHECKING:
    from icestream.client.consumer import Consumer

# Below so many rows for each block it is cheaper to make the values one by one.
_ROWS_PER_BLOCK_MIN: Final = 16
_FIRST: Final = (envelope.PUBLISH_TIME,)  # then `append_time`, which is none of a block's columns
_REST: Final = tuple(column for column in envelope.COLUMNS if column.in_table and column not in _FIRST)
_ONE_BY_ONE: Final = (ColumnKind.HEADERS, ColumnKind.BOOLEAN)  # not in memory as Arrow has them
_NUMBERS: Final = (envelope.PRODUCER_ID, envelope.SEQUENCE)


@cache
def pyarrow() -> Any:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
    except ImportError:
        raise errors.ConfigurationError(
            "batches() needs pyarrow, which is not installed", hint="install icestream[arrow]"
        ) from None
    return pa


@cache
def _types() -> dict[ColumnKind, Any]:
    pyarrow()  # or its error, which names the fix
    from icestream.model.arrow_types import ARROW_TYPES

    return ARROW_TYPES


@cache
def schema() -> Any:
    """Of every batch."""
    pa, types = pyarrow(), _types()
    fields = [("shard", pa.int32()), ("offset", pa.int64())]
    fields += [(column.name, types[column.kind]) for column in _FIRST]
    fields.append(("append_time", types[ColumnKind.TIMESTAMP_US]))
    fields += [(column.name, types[column.kind]) for column in _REST]
    return pa.schema(fields)


class ArrowBatch:
    """Messages of a subscription as Arrow. Whatever takes Arrow takes it as it is: DuckDB, Polars, pyarrow.

    `Subscription.batches` makes them. `len(batch)` is the number of messages.
    """

    __slots__ = ("_chunks", "_data")

    def __init__(self, data: Any, chunks: list[Chunk]) -> None:
        self._data = data
        self._chunks = chunks  # where its rows came from

    @property
    def data(self) -> Any:
        """The messages as a pyarrow.RecordBatch with the columns of the topic's table."""
        return self._data

    def __len__(self) -> int:
        return int(self._data.num_rows)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        found: tuple[object, object] = self._data.__arrow_c_array__(requested_schema)
        return found

    def ack(self) -> Noted:
        """All messages of the batch are done with: they do not come again."""
        for delivered, first, end in self._chunks:
            delivered.consumer.ack_rows(delivered, first, end)
        return NOTED

    def nack(self, delay: float = 0.0) -> Noted:
        """All messages of the batch failed: they come again, after `delay` seconds or later."""
        for delivered, first, end in self._chunks:
            delivered.consumer.nack_rows(delivered, first, end, delay)
        return NOTED


async def arrow_batches(consumer: Consumer, max_messages: int) -> AsyncIterator[ArrowBatch]:
    """Each has what was there when it was asked for, at least one message."""
    if max_messages < 1:
        raise errors.InvalidInput(f"batches of {max_messages} messages")
    pyarrow()
    while (chunk := await consumer.take_chunk(max_messages)) is not None:
        chunks = [chunk]
        left = max_messages - (chunk.end - chunk.first)
        while left and (chunk := consumer.take_waiting(left)) is not None:
            chunks.append(chunk)
            left -= chunk.end - chunk.first
        yield ArrowBatch(_record_batch(chunks), chunks)


def _record_batch(chunks: list[Chunk]) -> Any:
    pa = pyarrow()
    parts = [part for chunk in chunks for part in _parts(chunk)]
    time = _types()[ColumnKind.TIMESTAMP_US]
    rows = [chunk.end - chunk.first for chunk in chunks]
    arrays = [
        _runs([chunk.delivered.shard for chunk in chunks], rows, pa.int32()),
        _offsets(chunks, rows),
        *(_column(parts, column) for column in _FIRST),
        _runs([chunk.delivered.append_time_us for chunk in chunks], rows, time),
        *(_column(parts, column) for column in _REST),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def _offsets(chunks: list[Chunk], rows: list[int]) -> Any:
    if all(delivered.offsets is None for delivered, _, _ in chunks):
        return _counts([chunk.delivered.start + chunk.first for chunk in chunks], rows)
    pieces = [(delivered.offsets, delivered.start, first, end) for delivered, first, end in chunks]
    return pyarrow().array(
        [
            offset
            for offsets, start, first, end in pieces
            for offset in (range(start + first, start + end) if offsets is None else offsets[first:end])
        ],
        pyarrow().int64(),
    )


def _parts(chunk: Chunk) -> Iterator[BlockRows]:
    """The rows of the chunk, block by block."""
    delivered, first, end = chunk
    for block in delivered.blocks():
        low, high = max(first, block.at), min(end, block.at + block.end - block.first)
        if low < high:
            shifted = block.first - block.at
            yield BlockRows(block.block, low + shifted, high + shifted, low)


def _column(parts: list[BlockRows], column: Column) -> Any:
    kind = _types()[column.kind]
    rows = sum(part.end - part.first for part in parts)
    if column in _NUMBERS and any(part.block.numbering is not None for part in parts):
        return _joined([_numbers(part, column) for part in parts])
    stored = [part.block.stored(column) for part in parts]
    if all(one is None for one in stored):
        return pyarrow().nulls(rows, kind)
    if column.kind not in _ONE_BY_ONE and all(one is not None and one[0] == CONSTANT for one in stored):
        values = [part.block.values(column)[0] for part in parts]
        return _runs(values, [part.end - part.first for part in parts], kind)
    if rows < _ROWS_PER_BLOCK_MIN * len(parts):
        return _array(
            column, [value for part in parts for value in values_of(part.block, column, part.first, part.end)]
        )
    return _joined([_taken(part, column) for part in parts])


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pyarrow().concat_arrays(arrays)


def _repeated(value: Value, kind: Any, rows: int) -> Any:
    pa = pyarrow()
    return pa.repeat(pa.scalar(value, kind), rows)


def _runs(values: list[Any], rows: list[int], kind: Any) -> Any:
    """Each value so many times. Most of them are the same."""
    found: list[tuple[Any, int]] = []
    for value, count in zip(values, rows, strict=True):
        if found and found[-1][0] == value:
            found[-1] = value, found[-1][1] + count
        else:
            found.append((value, count))
    return _joined([_repeated(value, kind, count) for value, count in found])


def _counts(starts: list[int], rows: list[int]) -> Any:
    """From each start on, so many numbers. Most of them go on where the last one ended."""
    found: list[tuple[int, int]] = []
    for start, count in zip(starts, rows, strict=True):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], start + count
        else:
            found.append((start, start + count))
    return _joined([pyarrow().arange(start, end) for start, end in found])


def _array(column: Column, values: list[Value]) -> Any:
    pairs = [list(value.items()) if isinstance(value, dict) else value for value in values]
    return pyarrow().array(pairs, _types()[column.kind])


def _numbers(part: BlockRows, column: Column) -> Any:
    """Who numbered the rows, or with which numbers: in the head of a block; of rows from a table in its columns."""
    pa, numbering, rows = pyarrow(), part.block.numbering, part.end - part.first
    if numbering is None:
        return _taken(part, column)
    if column is envelope.PRODUCER_ID:
        return _repeated(numbering.producer_id, pa.int64(), rows)
    start = numbering.first_sequence + part.first
    return pa.arange(start, start + rows)


def _taken(part: BlockRows, column: Column) -> Any:
    """The column of one block, as it stands in memory where that is possible."""
    pa, kind = pyarrow(), _types()[column.kind]
    rows = part.end - part.first
    stored = part.block.stored(column)
    if stored is None:
        return pa.nulls(rows, kind)
    encoding, flags, data = stored
    if column.kind in _ONE_BY_ONE:
        return _array(column, list(values_of(part.block, column, part.first, part.end)))
    if encoding == CONSTANT:
        return _repeated(part.block.values(column)[0], kind, rows)
    try:
        whole = pa.Array.from_buffers(kind, part.block.rows, _buffers(column, encoding, flags, data, part.block.rows))
        whole.validate(full=True)
    except pa.ArrowException as error:
        raise errors.DecodeError(f"column {column.name}: {error}") from None
    return whole.slice(part.first, rows)


def _buffers(column: Column, encoding: int, flags: int, data: memoryview, rows: int) -> list[Any]:
    pa = pyarrow()
    validity = None
    if flags & NULLS:
        bitmap_bytes = (rows + 63) // 64 * 8
        validity, data = pa.py_buffer(data[:bitmap_bytes]), data[bitmap_bytes:]
    if encoding == FIXED:
        return [validity, pa.py_buffer(data)]
    ends_bytes = 4 * (rows + 1)
    if len(data) < ends_bytes:
        raise errors.DecodeError(f"column {column.name}: ends cut off")
    return [validity, pa.py_buffer(data[:ends_bytes]), pa.py_buffer(data[ends_bytes:])]
