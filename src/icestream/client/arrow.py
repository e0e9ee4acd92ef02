"""Messages as Arrow batches, with the columns of the topic's Iceberg table in the same order.

Columns of large blocks are wrapped without copying and validated as a whole; no work is done per message. pyarrow is
imported with the first batch: a client that uses no batches does not need it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from icestream import errors
from icestream.client.acks import check_delay_ms
from icestream.client.delivered_rows import BlockRows, column_values
from icestream.client.inbox import Chunk
from icestream.client.loop_thread import LoopThread
from icestream.client.message import COMPLETED_ACK, CompletedAck
from icestream.model import envelope
from icestream.model.block import CONSTANT, FIXED, NULLS, Value
from icestream.model.envelope import ColumnKind, EnvelopeColumn

if TYPE_CHECKING:
    from icestream.client.consumer import Consumer

# Below so many rows per block it is cheaper to convert the values one by one.
_ROWS_PER_BLOCK_MIN: Final = 16
_FIRST: Final = (envelope.PUBLISH_TIME,)  # then `append_time`, which is not a column of blocks
_REST: Final = tuple(column for column in envelope.COLUMNS if column.in_table and column not in _FIRST)
_CONVERTED_KINDS: Final = (ColumnKind.HEADERS, ColumnKind.BOOLEAN)  # their layout in a block is not that of Arrow
_NUMBERING_COLUMNS: Final = (envelope.PRODUCER_ID, envelope.SEQUENCE)


@cache
def pyarrow() -> Any:
    """The module pyarrow. Raises ConfigurationError if it is not installed."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
    except ImportError:
        raise errors.ConfigurationError(
            "batches() needs pyarrow, which is not installed", hint="install icestream[arrow]"
        ) from None
    return pa


@cache
def _types() -> dict[ColumnKind, Any]:
    """The Arrow type of each kind of column."""
    pyarrow()  # raises an error that names the fix, if it is not installed
    from icestream.model.arrow_types import ARROW_TYPES

    return ARROW_TYPES


@cache
def schema() -> Any:
    """Returns the schema of every batch."""
    pa, types = pyarrow(), _types()
    fields = [("shard", pa.int32()), ("offset", pa.int64())]
    fields += [(column.name, types[column.kind]) for column in _FIRST]
    fields.append(("append_time", types[ColumnKind.TIMESTAMP_US]))
    fields += [(column.name, types[column.kind]) for column in _REST]
    return pa.schema(fields)


class ArrowBatch:
    """Messages of a subscription as Arrow; DuckDB, Polars and pyarrow accept it without conversion.

    `Subscription.batches` makes them. `len(batch)` is the number of messages.
    """

    __slots__ = ("_chunks", "_data")

    def __init__(self, data: Any, chunks: list[Chunk]) -> None:
        self._data = data
        self._chunks = chunks  # of its rows, for acks

    @property
    def data(self) -> Any:
        """The messages as a pyarrow.RecordBatch with the columns of the topic's table."""
        return self._data

    def __len__(self) -> int:
        return int(self._data.num_rows)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        capsules: tuple[object, object] = self._data.__arrow_c_array__(requested_schema)
        return capsules

    def ack(self) -> CompletedAck:
        """Acknowledges all messages of the batch: they were processed and are not delivered again."""
        for delivered, first, end in self._chunks:
            delivered.consumer.ack_rows(delivered, first, end)
        return COMPLETED_ACK

    def nack(self, delay: float = 0.0) -> CompletedAck:
        """Rejects all messages of the batch: they are delivered again after `delay` seconds or later."""
        for delivered, first, end in self._chunks:
            delivered.consumer.nack_rows(delivered, first, end, delay)
        return COMPLETED_ACK


async def arrow_batches(consumer: Consumer, max_messages: int) -> AsyncIterator[ArrowBatch]:
    """Yields batches of the messages that have arrived, at least one message each."""
    if max_messages < 1:
        raise errors.InvalidInput(f"max_messages must be at least 1, got {max_messages}")
    pyarrow()
    while (chunk := await consumer.take_chunk(max_messages)) is not None:
        # Waits for the first chunk only, then takes what has arrived: a batch is never held back to become larger.
        chunks = [chunk]
        room = max_messages - (chunk.end - chunk.first)
        while room and (chunk := consumer.take_chunk_nowait(room)) is not None:
            chunks.append(chunk)
            room -= chunk.end - chunk.first
        yield ArrowBatch(_record_batch(chunks), chunks)


class BlockingArrowBatch(ArrowBatch):
    """A batch whose acks run in the client's thread; they are recorded when the call returns."""

    __slots__ = ("_thread",)

    def __init__(self, thread: LoopThread, batch: ArrowBatch) -> None:
        super().__init__(batch._data, batch._chunks)
        self._thread = thread

    def ack(self) -> CompletedAck:
        """Acknowledges all messages of the batch: they were processed and are not delivered again."""
        ack_here = super().ack

        async def ack() -> None:
            ack_here()

        self._thread.run(ack())
        return COMPLETED_ACK

    def nack(self, delay: float = 0.0) -> CompletedAck:
        """Rejects all messages of the batch: they are delivered again after `delay` seconds or later."""
        check_delay_ms(delay)
        nack_here = super().nack

        async def nack() -> None:
            nack_here(delay)

        self._thread.run(nack())
        return COMPLETED_ACK


def blocking_arrow_batches(thread: LoopThread, consumer: Consumer, max_messages: int) -> Iterator[ArrowBatch]:
    """`arrow_batches` for blocking callers."""
    batches = consumer.batches(max_messages)

    async def next_batch() -> ArrowBatch | None:
        return await anext(batches, None)

    while (batch := thread.run(next_batch())) is not None:
        yield BlockingArrowBatch(thread, batch)


def _record_batch(chunks: list[Chunk]) -> Any:
    """The rows of the chunks as one pyarrow.RecordBatch. Raises DecodeError."""
    pa = pyarrow()
    parts = [part for chunk in chunks for part in _parts(chunk)]
    time = _types()[ColumnKind.TIMESTAMP_US]
    rows = [chunk.end - chunk.first for chunk in chunks]
    arrays = [
        _repeat_each([chunk.delivered.shard for chunk in chunks], rows, pa.int32()),
        _offsets(chunks, rows),
        *(_column(parts, column) for column in _FIRST),
        _repeat_each([chunk.delivered.append_time_us for chunk in chunks], rows, time),
        *(_column(parts, column) for column in _REST),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema())


def _offsets(chunks: list[Chunk], rows: list[int]) -> Any:
    """The offset of each row; without work per message unless a chunk has holes between its offsets."""
    if all(delivered.offsets is None for delivered, _, _ in chunks):
        return _consecutive_offsets([chunk.delivered.start + chunk.first for chunk in chunks], rows)
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
    """Yields the rows of the chunk, block by block."""
    delivered, first, end = chunk
    for block in delivered.blocks():
        low, high = max(first, block.at), min(end, block.at + block.end - block.first)
        if low < high:
            shift = block.first - block.at
            yield BlockRows(block.block, low + shift, high + shift, low)


def _column(parts: list[BlockRows], column: EnvelopeColumn) -> Any:
    """The column of all parts as one array, by the cheapest way that its encodings allow. Raises DecodeError."""
    kind = _types()[column.kind]
    rows = sum(part.end - part.first for part in parts)
    if column in _NUMBERING_COLUMNS and any(part.block.numbering is not None for part in parts):
        return _concat([_numbering_column(part, column) for part in parts])
    stored = [part.block.stored(column) for part in parts]
    if all(content is None for content in stored):
        return pyarrow().nulls(rows, kind)
    is_constant = all(content is not None and content[0] == CONSTANT for content in stored)
    if is_constant and column.kind not in _CONVERTED_KINDS:
        values = [part.block.values(column)[0] for part in parts]
        return _repeat_each(values, [part.end - part.first for part in parts], kind)
    if rows < _ROWS_PER_BLOCK_MIN * len(parts):
        return _array(
            column, [value for part in parts for value in column_values(part.block, column, part.first, part.end)]
        )
    return _concat([_block_column(part, column) for part in parts])


def _concat(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pyarrow().concat_arrays(arrays)


def _repeat(value: Value, kind: Any, rows: int) -> Any:
    """An array of `rows` times the same value."""
    pa = pyarrow()
    return pa.repeat(pa.scalar(value, kind), rows)


def _repeat_each(values: list[Any], rows: list[int], kind: Any) -> Any:
    """Repeats each value for its number of rows. Most neighbours are equal, so they are merged first."""
    runs: list[tuple[Any, int]] = []
    for value, count in zip(values, rows, strict=True):
        if runs and runs[-1][0] == value:
            runs[-1] = value, runs[-1][1] + count
        else:
            runs.append((value, count))
    return _concat([_repeat(value, kind, count) for value, count in runs])


def _consecutive_offsets(starts: list[int], rows: list[int]) -> Any:
    """Counts from each start for its number of rows. Most ranges continue the one before, so they are merged first."""
    ranges: list[tuple[int, int]] = []
    for start, count in zip(starts, rows, strict=True):
        if ranges and ranges[-1][1] == start:
            ranges[-1] = ranges[-1][0], start + count
        else:
            ranges.append((start, start + count))
    return _concat([pyarrow().arange(start, end) for start, end in ranges])


def _array(column: EnvelopeColumn, values: list[Value]) -> Any:
    """An array from Python values; headers become a map, which pyarrow takes as pairs."""
    pairs = [list(value.items()) if isinstance(value, dict) else value for value in values]
    return pyarrow().array(pairs, _types()[column.kind])


def _numbering_column(part: BlockRows, column: EnvelopeColumn) -> Any:
    """Producer id or sequence numbers: from the head of a block; for rows from a table from its columns."""
    pa, numbering, rows = pyarrow(), part.block.numbering, part.end - part.first
    if numbering is None:
        return _block_column(part, column)
    if column is envelope.PRODUCER_ID:
        return _repeat(numbering.producer_id, pa.int64(), rows)
    start = numbering.first_sequence + part.first
    return pa.arange(start, start + rows)


def _block_column(part: BlockRows, column: EnvelopeColumn) -> Any:
    """Returns the column of one block, without copying if possible. Raises DecodeError."""
    pa, kind = pyarrow(), _types()[column.kind]
    rows = part.end - part.first
    stored = part.block.stored(column)
    if stored is None:
        return pa.nulls(rows, kind)
    encoding, flags, data = stored
    if column.kind in _CONVERTED_KINDS:
        return _array(column, list(column_values(part.block, column, part.first, part.end)))
    if encoding == CONSTANT:
        return _repeat(part.block.values(column)[0], kind, rows)
    try:
        whole = pa.Array.from_buffers(kind, part.block.rows, _buffers(column, encoding, flags, data, part.block.rows))
        # The bytes come from another process: ends that point out of the buffer would crash, or read foreign memory.
        whole.validate(full=True)
    except pa.ArrowException as error:
        raise errors.DecodeError(f"column {column.name}: {error}") from None
    return whole.slice(part.first, rows)


def _buffers(column: EnvelopeColumn, encoding: int, flags: int, data: memoryview, rows: int) -> list[Any]:
    """Arrow's buffers of a column: validity, ends of variable values, values. A block has them in the same layout."""
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
