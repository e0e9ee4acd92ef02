"""Messages as they came: some rows of the blocks of one DELIVER. Columns are decoded once, when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from icestream import errors
from icestream.client.columns import rows_of, values_of
from icestream.model import envelope
from icestream.model.block import Block, Value
from icestream.model.envelope import Column
from icestream.rpc.frame import Delivery

if TYPE_CHECKING:
    from icestream.client.connection import Connection
    from icestream.client.consumer import Consumer


class BlockRows(NamedTuple):
    """Rows [first, end) of one block; the first of them is row `at` of what was delivered."""

    block: Block
    first: int
    end: int
    at: int


class Identity(NamedTuple):
    """Which subscription it is: one that is made again under the same name is another."""

    id: int
    created_ms: int


class Delivered:
    """Rows are counted from 0. They have the offsets `start` to `end` without a hole, or those of a PICK frame."""

    __slots__ = (
        "_blocks", "_body", "_columns", "_first_row", "append_time_us", "arrived_ns", "attempt", "bytes", "connection",
        "consumer", "generation", "identity", "offsets", "payloads", "rows", "shard", "start",
    )  # fmt: skip

    def __init__(
        self,
        consumer: Consumer,
        connection: Connection | None,
        identity: Identity | None,
        delivery: Delivery,
        arrived_ns: int,
    ) -> None:
        """Of a delivery that was checked (`check`)."""
        self.consumer = consumer
        self.connection = connection  # on which it came
        self.identity = identity  # of the subscription then
        self.shard = delivery.shard
        self.generation = delivery.generation
        self.attempt = delivery.attempt
        self.append_time_us = delivery.append_time_us
        self.arrived_ns = arrived_ns
        self.start = delivery.base_offset + delivery.first_row
        self.rows = delivery.rows
        self.offsets: list[int] | None = None  # of each row, where there are holes between them
        if delivery.ranges is not None:
            self.offsets = [offset for start, end in delivery.ranges for offset in range(start, end)]
        self.bytes = len(delivery.body)
        self._body = delivery.body
        self._first_row = delivery.first_row
        self.payloads: list[bytes] | None = None  # as soon as somebody has looked at one
        self._blocks: list[BlockRows] | None = None
        self._columns: dict[Column, Sequence[Value]] = {}

    def parts(self, ranges: Sequence[tuple[int, int]]) -> list[Delivered]:
        """The messages with the offsets [start, end) of each range alone; ranges rise."""
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

    def _part(self, first: int, end: int) -> Delivered:
        """Rows [first, end) alone."""
        part = copy(self)
        part.start, part.rows = self.offset(first), end - first
        part.offsets = None if self.offsets is None else self.offsets[first:end]
        part.bytes = max(1, self.bytes * part.rows // self.rows)
        part._first_row = self._first_row + first
        part.payloads, part._blocks, part._columns = None, None, {}
        return part

    @property
    def end(self) -> int:
        """Behind the last offset."""
        return self.start + self.rows if self.offsets is None else self.offsets[-1] + 1

    def offset(self, row: int) -> int:
        return self.start + row if self.offsets is None else self.offsets[row]

    def ranges(self, first: int, end: int) -> list[tuple[int, int]]:
        """The offsets of the rows [first, end), as ranges."""
        if first >= end:
            return []
        if self.offsets is None:
            return [(self.start + first, self.start + end)]
        found: list[tuple[int, int]] = []
        for offset in self.offsets[first:end]:
            if found and found[-1][1] == offset:
                found[-1] = (found[-1][0], offset + 1)
            else:
                found.append((offset, offset + 1))
        return found

    @property
    def is_current(self) -> bool:
        """Whether the connection on which it came still lives: the broker waits for an answer to it there."""
        return self.connection is not None and not self.connection.is_lost

    def values(self, column: Column) -> Sequence[Value]:
        """Of each row. Raises DecodeError when the broker sent what is none."""
        found = self._columns.get(column)
        if found is None:
            found = [value for block, first, end, _ in self.blocks() for value in values_of(block, column, first, end)]
            self._columns[column] = found
        return found

    def load_payloads(self) -> list[bytes]:
        """Nothing else is looked at as often. A message without one has an empty one."""
        found = [value if isinstance(value, bytes) else b"" for value in self.values(envelope.PAYLOAD)]
        self.payloads = found
        return found

    def blocks(self) -> list[BlockRows]:
        if self._blocks is None:
            counts = rows_of(self._body)
            before = accumulate((rows for rows, _ in counts), initial=0)
            low, high = self._first_row, self._first_row + self.rows
            self._blocks = [
                BlockRows(
                    Block(memoryview(self._body)[at:]),
                    max(low - first, 0),
                    min(high - first, rows),
                    max(first - low, 0),
                )
                for (rows, at), first in zip(counts, before, strict=False)
                if first < high and first + rows > low
            ]
        return self._blocks


def check(delivery: Delivery) -> None:
    """The blocks hold the rows that are meant. Raises DecodeError."""
    rows, named = sum(rows for rows, _ in rows_of(delivery.body)), delivery.first_row + delivery.rows
    if rows < named or (delivery.ranges is not None and rows > named):
        raise errors.DecodeError("a DELIVER or PICK names rows that its blocks do not have")
