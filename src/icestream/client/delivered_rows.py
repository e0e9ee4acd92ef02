"""DeliveredRows: the messages of one DELIVER or PICK frame. Columns are decoded on first access, all rows at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from icestream import errors
from icestream.model import envelope
from icestream.model.block import VARIABLE, Block, Value, decode_block_head
from icestream.model.envelope import ColumnKind, EnvelopeColumn
from icestream.rpc.frame import Delivery

if TYPE_CHECKING:
    from icestream.client.client_connection import ClientConnection
    from icestream.client.consumer import Consumer
    from icestream.client.subscribe_call import SubscriptionIdentity

_BINARY: Final = ColumnKind.BINARY


class BlockRows(NamedTuple):
    """Rows [first, end) of a block; the first of them is row `at` of the delivery."""

    block: Block
    first: int
    end: int
    at: int


class DeliveredRows:
    """Rows are numbered from 0. Their offsets are consecutive from `start` on, or those of a PICK frame."""

    __slots__ = (
        "_blocks", "_body", "_columns", "_first_row", "append_time_us", "arrived_ns", "attempt", "bytes", "connection",
        "consumer", "generation", "identity", "offsets", "payloads", "rows", "shard", "start",
    )  # fmt: skip

    def __init__(
        self,
        consumer: Consumer,
        connection: ClientConnection | None,
        identity: SubscriptionIdentity | None,
        delivery: Delivery,
        arrived_ns: int,
    ) -> None:
        """`delivery` has passed `check_delivery`."""
        self.consumer = consumer
        self.connection = connection  # that delivered it
        self.identity = identity  # of the subscription at that time
        self.shard = delivery.shard
        self.generation = delivery.generation
        self.attempt = delivery.attempt
        self.append_time_us = delivery.append_time_us
        self.arrived_ns = arrived_ns
        self.start = delivery.base_offset + delivery.first_row
        self.rows = delivery.rows
        self.offsets: list[int] | None = None  # of each row, if they are not consecutive
        if delivery.ranges is not None:
            self.offsets = [offset for start, end in delivery.ranges for offset in range(start, end)]
        self.bytes = len(delivery.body)
        self._body = delivery.body
        self._first_row = delivery.first_row
        self.payloads: list[bytes] | None = None  # set by `load_payloads`
        self._blocks: list[BlockRows] | None = None
        self._columns: dict[EnvelopeColumn, Sequence[Value]] = {}

    def parts(self, ranges: Sequence[tuple[int, int]]) -> list[DeliveredRows]:
        """Returns the rows with offsets in the ranges [start, end), which rise, as deliveries of their own."""
        if self.offsets is None:
            return [self._part(start - self.start, end - self.start) for start, end in ranges]
        rows: list[tuple[int, int]] = []
        for start, end in ranges:
            low, high = bisect_left(self.offsets, start), bisect_left(self.offsets, end)
            if rows and rows[-1][1] == low:
                rows[-1] = (rows[-1][0], high)
            elif low < high:
                rows.append((low, high))
        return [self._part(low, high) for low, high in rows]

    def _part(self, first: int, end: int) -> DeliveredRows:
        """The rows [first, end) as a delivery of their own; it shares the body."""
        part = copy(self)
        part.start, part.rows = self.offset(first), end - first
        part.offsets = None if self.offsets is None else self.offsets[first:end]
        part.bytes = max(1, self.bytes * part.rows // self.rows)  # an estimate: the body stays whole
        part._first_row = self._first_row + first
        part.payloads, part._blocks, part._columns = None, None, {}
        return part

    @property
    def end(self) -> int:
        """The offset behind the last row."""
        return self.start + self.rows if self.offsets is None else self.offsets[-1] + 1

    def offset(self, row: int) -> int:
        """The offset of a row."""
        return self.start + row if self.offsets is None else self.offsets[row]

    def ranges(self, first: int, end: int) -> list[tuple[int, int]]:
        """Returns the offsets of the rows [first, end) as ranges."""
        if first >= end:
            return []
        if self.offsets is None:
            return [(self.start + first, self.start + end)]
        ranges: list[tuple[int, int]] = []
        for offset in self.offsets[first:end]:
            if ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + 1)
            else:
                ranges.append((offset, offset + 1))
        return ranges

    @property
    def is_current(self) -> bool:
        """True if the connection that delivered it is open: only there does the broker wait for acks of these rows."""
        return self.connection is not None and not self.connection.is_lost

    def values(self, column: EnvelopeColumn) -> Sequence[Value]:
        """Returns the column's value of each row. Raises DecodeError for an invalid column."""
        values = self._columns.get(column)
        if values is None:
            values = [
                value for block, first, end, _ in self.blocks() for value in column_values(block, column, first, end)
            ]
            self._columns[column] = values
        return values

    def load_payloads(self) -> list[bytes]:
        """Decodes all payloads and stores them in `payloads`; a null payload is empty. Raises DecodeError."""
        payloads = [value if isinstance(value, bytes) else b"" for value in self.values(envelope.PAYLOAD)]
        self.payloads = payloads
        return payloads

    def blocks(self) -> list[BlockRows]:
        """Returns the blocks of the delivery with the rows of them that belong to it."""
        if self._blocks is None:
            extents = block_extents(self._body)
            rows_before = accumulate((rows for rows, _ in extents), initial=0)
            low, high = self._first_row, self._first_row + self.rows
            self._blocks = [
                BlockRows(
                    Block(memoryview(self._body)[at:]),
                    max(low - first, 0),
                    min(high - first, rows),
                    max(first - low, 0),
                )
                for (rows, at), first in zip(extents, rows_before, strict=False)
                if first < high and first + rows > low
            ]
        return self._blocks


def check_delivery(delivery: Delivery) -> None:
    """Raises DecodeError unless the blocks of a delivery have its rows."""
    # Checked on arrival, by the heads of the blocks alone: columns are decoded on access, when an error would come too
    # late to end the connection.
    rows = sum(rows for rows, _ in block_extents(delivery.body))
    rows_declared = delivery.first_row + delivery.rows
    if rows < rows_declared or (delivery.ranges is not None and rows > rows_declared):
        raise errors.DecodeError(f"DELIVER or PICK declares {rows_declared} rows, its blocks have {rows}")


def block_extents(body: bytes) -> list[tuple[int, int]]:
    """Returns (rows, position) of each block in a body. Raises DecodeError."""
    extents: list[tuple[int, int]] = []
    view, at = memoryview(body), 0
    while at < len(body):
        rows, size, _ = decode_block_head(view[at:])
        extents.append((rows, at))
        at += size
    return extents


def column_values(block: Block, column: EnvelopeColumn, first: int, end: int) -> Sequence[Value]:
    """Returns the column's values of the rows [first, end) of a block. Raises DecodeError."""
    stored = block.stored(column)
    if stored is None:
        return [None] * (end - first)
    encoding, flags, data = stored
    if column.kind is _BINARY and encoding == VARIABLE and not flags:
        return _binary_values(column, bytes(data), block.rows, first, end)
    return block.values(column)[first:end]


def _binary_values(column: EnvelopeColumn, data: bytes, rows: int, first: int, end: int) -> list[Value]:
    """`column_values` for keys and payloads without nulls, the most frequent columns: checked as a whole."""
    start = 4 * (rows + 1)
    if len(data) < start:
        raise errors.DecodeError(f"column {column.name}: ends cut off")
    size = len(data) - start
    all_ends = memoryview(data)[:start].cast("I")
    ends = all_ends[first : end + 1].tolist()
    values: list[Value] = [data[start + low : start + high] for low, high in pairwise(ends)]
    # Inside of the data, falling ends give an empty slice, so the sum of the sizes does not match.
    is_valid = not all_ends[0] and all_ends[rows] == size and max(ends) <= size
    if not is_valid or sum(map(len, values)) != ends[-1] - ends[0]:  # type: ignore[arg-type]  # all of them are bytes
        raise errors.DecodeError(f"column {column.name}: ends do not rise to {size}")
    return values
