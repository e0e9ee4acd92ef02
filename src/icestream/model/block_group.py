"""Blocks that arrived together, of any number of producers for any number of shards: one value for all of them.

A front end that receives many single messages hands them on as groups, so that validation, admission, the log and the
answers cost little for each of them. A group has a column for each fact, and is ordered by shard:

    blocks       0    1    2    3    4    5
    shards       A    A    A    B    C    C         shard_ends = 3, 4, 6
    bodies       012            3    45

The bytes of a group are its *bodies*: the blocks of each shard, one behind the other, as they will lie in the section
of the shard. They are one object for each shard, because cutting them out of a larger one costs more than storing them
(ADR 105).

Each block is a batch of its own: it is numbered, deduplicated and refused by itself, and gets its own offsets. In the
log a group leaves no trace: the blocks of a shard lie one behind the other in a section, as if each had been stored
alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class BlockGroup(NamedTuple):
    """`blocks[i]` is the bytes `[ends[i - 1], ends[i])` of all joined bodies. The columns have one entry per block.

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
    def size_bytes(self) -> int:
        """The bytes of all blocks."""
        return self.ends[-1]

    @property
    def has_single_blocks(self) -> bool:
        """True if every shard has one block."""
        return len(self.shard_ends) == len(self.ends)

    def block(self, index: int, bodies: Sequence[bytes]) -> bytes:
        """The block at `index`, cut out of the body of its shard."""
        shard = bisect_right(self.shard_ends, index)
        first_byte = self.ends[self.shard_ends[shard - 1] - 1] if shard else 0
        start = self.ends[index - 1] if index else 0
        return bodies[shard][start - first_byte : self.ends[index] - first_byte]

    def bodies_of(self, joined: bytes) -> list[bytes]:
        """Cuts joined blocks into the body of each shard."""
        ends = [self.ends[end - 1] for end in self.shard_ends]
        return [joined[start:end] for start, end in pairwise((0, *ends))]

    def shard_ranges(self) -> Iterator[tuple[int, int]]:
        """The range of block indexes of each shard."""
        return pairwise((0, *self.shard_ends))

    def stored(self, rejected: Collection[int], bodies: Sequence[bytes]) -> tuple[Sequence[int], Sequence[bytes]]:
        """Returns the rows and the body of each shard, without the rejected batches."""
        if not rejected:
            if self.has_single_blocks:
                return self.rows, bodies
            return [sum(self.rows[start:end]) for start, end in self.shard_ranges()], bodies
        accepted = [
            [index for index in range(start, end) if index not in rejected] for start, end in self.shard_ranges()
        ]
        rows = [sum([self.rows[index] for index in indexes]) for indexes in accepted]
        return rows, [b"".join([self.block(index, bodies) for index in indexes]) for indexes in accepted]

    def split(self) -> list[BlockGroup]:
        """Returns a group for each shard."""
        groups: list[BlockGroup] = []
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
            groups.append(group)
        return groups
