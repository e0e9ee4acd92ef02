"""What a writer sends as its batch n: a function of the seed, on which sender, reader and checker agree."""

from __future__ import annotations

import random
from functools import lru_cache

PAYLOAD_BYTES_MAX = 700
ROWS = (1, 1, 2, 3, 5, 8, 12)


@lru_cache(maxsize=4096)
def payloads(seed: int, writer: str, number: int) -> tuple[bytes, ...]:
    """The messages of a batch. Each begins with its name; no two in a run are equal."""
    chance = random.Random(f"{seed}/{writer}/{number}")
    return tuple(
        f"{writer}/{number}/{row}|".encode() + chance.randbytes(chance.randrange(PAYLOAD_BYTES_MAX))
        for row in range(chance.choice(ROWS))
    )


def name_of(payload: bytes) -> tuple[str, int, int]:
    """Writer, batch and row, as the payload claims."""
    writer, number, row = payload.split(b"|", 1)[0].decode().split("/")
    return writer, int(number), int(row)


class BatchNumbers:
    """The first sequence number of each batch of one numbered writer."""

    def __init__(self, seed: int, writer: str) -> None:
        self._seed = seed
        self._writer = writer
        self._first = [0]

    def first(self, number: int) -> int:
        while len(self._first) <= number:
            last = len(self._first) - 1
            self._first.append(self._first[last] + len(payloads(self._seed, self._writer, last)))
        return self._first[number]

    def batch_at(self, sequence: int) -> int:
        """The batch that begins with this sequence number. Raises when the number is inside a batch."""
        number = 0
        while self.first(number) < sequence:
            number += 1
        if self.first(number) != sequence:
            raise AssertionError(f"{self._writer}: sequence {sequence} is inside batch {number - 1}: a batch was torn")
        return number
