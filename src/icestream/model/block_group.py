"""Blocks that arrived together, of any number of producers for any number of shards: one value for all of them.

A front end that receives many single messages hands them on as groups, so that validation, admission, the log and the
answers cost little for each of them. A group has a column for each fact, and is ordered by shard:

    blocks       0    1    2    3    4    5
    shards       A    A    A    B    C    C         shard_ends = 3, 4, 6

Each block is a batch of its own: it is numbered, deduplicated and refused by itself, and gets its own offsets. In the
log a group leaves no trace: the blocks of a shard lie one behind the other in a section, as if each had been stored
alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class BlockGroup(NamedTuple):
    """`blocks[i]` is the bytes `[ends[i - 1], ends[i])` of the joined blocks. The columns have one entry per block.

    `shard_ends` has one entry per shard: how many blocks there are up to the end of its own.
    """

    ends: Sequence[int]
    rows: Sequence[int]
    producer_ids: Sequence[int]
    producer_epochs: Sequence[int]
    first_sequences: Sequence[int]  # NOT_NUMBERED for a batch without numbers
    shard_ends: Sequence[int]

    @property
    def block_count(self) -> int:
        return len(self.ends)

    @property
    def has_single_blocks(self) -> bool:
        """True if every shard has one block."""
        return len(self.shard_ends) == len(self.ends)

    def block(self, index: int, joined: bytes) -> bytes:
        return joined[self.ends[index - 1] if index else 0 : self.ends[index]]

    def shard_ranges(self) -> Iterator[tuple[int, int]]:
        """The range of block indexes of each shard."""
        return pairwise((0, *self.shard_ends))

    def stored(self, rejected: Collection[int], joined: bytes) -> tuple[list[int], list[bytes]]:
        """Returns the rows and the joined blocks of each shard, without the rejected batches."""
        if not rejected:
            ends = [self.ends[end - 1] for end in self.shard_ends]
            bodies = [joined[start:end] for start, end in pairwise((0, *ends))]
            if self.has_single_blocks:
                return list(self.rows), bodies
            return [sum(self.rows[start:end]) for start, end in self.shard_ranges()], bodies
        accepted = [
            [index for index in range(start, end) if index not in rejected] for start, end in self.shard_ranges()
        ]
        rows = [sum([self.rows[index] for index in indexes]) for indexes in accepted]
        return rows, [b"".join([self.block(index, joined) for index in indexes]) for indexes in accepted]

    def split(self, joined: bytes) -> list[tuple[BlockGroup, bytes]]:
        """Returns a group and its joined blocks for each shard."""
        groups: list[tuple[BlockGroup, bytes]] = []
        for start, end in self.shard_ranges():
            first_byte = self.ends[start - 1] if start else 0
            group = BlockGroup(
                [position - first_byte for position in self.ends[start:end]],
                self.rows[start:end],
                self.producer_ids[start:end],
                self.producer_epochs[start:end],
                self.first_sequences[start:end],
                (end - start,),
            )
            groups.append((group, joined[first_byte : self.ends[end - 1]]))
        return groups
