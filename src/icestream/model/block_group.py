"""Blocks of several producers for one shard that arrived together: one value for all of them, a column for each fact.

A front end that receives many single messages hands them on as groups, so that validation, admission, the log and the
answers cost little for each of them. Each block is a batch of its own: it is numbered, deduplicated and refused by
itself, and gets its own offsets. In the log a group leaves no trace: the blocks lie one behind the other in a section,
as if each had been stored alone.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple


class BlockGroup(NamedTuple):
    """`blocks[i]` is the bytes `[ends[i - 1], ends[i])` of the joined blocks. All columns have one entry per block."""

    ends: Sequence[int]
    rows: Sequence[int]
    producer_ids: Sequence[int]
    producer_epochs: Sequence[int]
    first_sequences: Sequence[int]  # NOT_NUMBERED for a batch without numbers

    def __len__(self) -> int:
        return len(self.ends)

    def block(self, index: int, joined: bytes) -> bytes:
        return joined[self.ends[index - 1] if index else 0 : self.ends[index]]

    def without(self, rejected: Container[int], joined: bytes) -> tuple[int, bytes]:
        """Returns the number of rows and the joined blocks of all batches but the rejected ones."""
        indexes = [index for index in range(len(self.ends)) if index not in rejected]
        return sum([self.rows[index] for index in indexes]), b"".join([self.block(index, joined) for index in indexes])
