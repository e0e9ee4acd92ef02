"""The blocks of many sections at once (model/block.py defines their bytes): rows, numbers, and where each column's data
is.

These bytes passed the validation of the broker and their CRC, so values are not checked again. But no length may lead
outside of the bytes, because Arrow would follow it: that raises DecodeError.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icestream import errors
from icestream.model.block import COLUMN, HEAD
from icestream.pipeline.rows.log_sections import Ints, Sections

_LOW: Final = np.uint64(0xFFFF_FFFF)
_HALF: Final = np.uint64(32)


@dataclass(frozen=True)
class StoredColumn:
    """One column in all blocks that have it, in their order."""

    block: Ints
    encoding: NDArray[Any]
    has_nulls: NDArray[np.bool_]
    start: Ints
    size: Ints


class Blocks:
    """All blocks of some sections, in the order of their bytes."""

    def __init__(self, sections: Sections) -> None:
        self.data = sections.data
        self.section, self.start = _block_starts(sections)
        at = self.start >> 3
        # The 64-bit words of a block head (model/block.py): 0 rows, bytes | 1 producer id | 2 producer epoch, column
        # count, flags | 3 first sequence. A directory entry is one word: id, encoding, flags, size.
        head = self.words[at]
        self.rows: Ints = (head & _LOW).astype(np.int64)
        self.end = self.start + (head >> _HALF).astype(np.int64)
        self.producer_id = self.words[at + 1].view(np.int64)
        self.column_count = ((self.words[at + 2] >> _HALF) & np.uint64(0xFFFF)).astype(np.int64)
        self.first_sequence = self.words[at + 3].view(np.int64)
        self.first_row: Ints = np.cumsum(self.rows) - self.rows
        first_block = np.searchsorted(self.section, np.arange(len(sections)))
        counted = np.add.reduceat(self.rows, first_block) if len(sections) else self.rows
        if not np.array_equal(counted, sections.rows):
            raise errors.DecodeError("the blocks of a section have another number of messages than the section")
        self.base: Ints = sections.base[self.section] + self.first_row - self.first_row[first_block][self.section]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def row_count(self) -> int:
        return int(self.rows.sum())

    @cached_property
    def words(self) -> NDArray[np.uint64]:
        return np.frombuffer(self.data, "<u8", len(self.data) // 8)

    @cached_property
    def halves(self) -> NDArray[np.uint32]:
        return np.frombuffer(self.data, "<u4", len(self.data) // 4)

    @cached_property
    def octets(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.data, np.uint8)

    def viewed(self, width: int) -> NDArray[Any]:
        """Returns the bytes as unsigned numbers of this width."""
        views: dict[int, NDArray[Any]] = {8: self.words, 4: self.halves, 1: self.octets}
        return views[width]

    @cached_property
    def columns(self) -> dict[int, StoredColumn]:
        """By column id."""
        count = self.column_count
        ends = np.cumsum(count)
        block = np.repeat(np.arange(len(self)), count)
        number = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - count, count)
        entry = self.words[(self.start[block] + HEAD.size >> 3) + number]
        ids = (entry & np.uint64(0xFFFF)).astype(np.int64)
        encoding = (entry >> np.uint64(16)) & np.uint64(0xFF)
        nulls = (entry >> np.uint64(24)) & np.uint64(1) != 0
        size = (entry >> _HALF).astype(np.int64)
        starts = self._data_starts(block, size, ends - count)
        return {
            int(column_id): StoredColumn(block[mask], encoding[mask], nulls[mask], starts[mask], size[mask])
            for column_id in np.unique(ids)
            for mask in (ids == column_id,)
        }

    def _data_starts(self, block: Ints, size: Ints, first_entry: Ints) -> Ints:
        """Returns where each column's data starts: after the directory, one after the other, each at a multiple of
        8."""
        space = (size + 7) & ~7
        before = np.cumsum(space) - space
        has_any = self.column_count > 0
        base = np.zeros(len(self), np.int64)
        base[has_any] = before[first_entry[has_any]]
        start: Ints = self.start[block] + HEAD.size + COLUMN.size * self.column_count[block] + before - base[block]
        if np.any(start + size > self.end[block]):
            raise errors.DecodeError("a column does not fit its block")
        return start


def _block_starts(sections: Sections) -> tuple[Ints, Ints]:
    """Returns, for each block, the index of its section and its start. Most sections have one block."""
    if not len(sections):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if len(sections.data) % 8:
        raise errors.DecodeError("the bytes of sections are not a multiple of 8")
    end = sections.start + sections.size
    if np.any(sections.start & 7) or np.any(end > len(sections.data)) or np.any(sections.size < HEAD.size):
        raise errors.DecodeError("a section does not lie in its bytes")
    words = np.frombuffer(sections.data, "<u8", len(sections.data) // 8)
    is_single = (words[sections.start >> 3] >> _HALF).astype(np.int64) == sections.size
    # The common case without a loop: a batch is usually one block, and a section one batch.
    if is_single.all():
        return np.arange(len(sections)), sections.start
    numbers: list[int] = []
    starts: list[int] = []
    halves = memoryview(sections.data).cast("B")[: len(words) * 8].cast("I")
    for number, (at, stop) in enumerate(zip((sections.start >> 2).tolist(), (end >> 2).tolist(), strict=True)):
        while at < stop:
            numbers.append(number)
            starts.append(at << 2)
            size = halves[at + 1]
            if size < HEAD.size or size & 7:
                raise errors.DecodeError(f"a block declares an invalid size of {size} bytes")
            at += size >> 2  # noqa: PLW2901
        if at != stop:
            raise errors.DecodeError("blocks do not fill their section")
    return np.array(numbers), np.array(starts)
