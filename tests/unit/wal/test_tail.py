"""The hot tail forgets chunks by bytes and by age, the oldest of all shards first."""

from __future__ import annotations

import pytest

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.wal.tail import SectionRead, Tail

FIRST = ShardKey(1, 0)
SECOND = ShardKey(2, 0)


def chunk(base_offset: int, time_ms: int, body: bytes = b"body") -> SectionRead:
    return SectionRead(base_offset, 1, time_ms * 1000, 1, body)


def offsets(tail: Tail, key: ShardKey, start: int) -> list[int]:
    return [section.base_offset for section in tail.read(key, start, 1_000, limits.MIB)]


def test_expired_chunks_are_dropped_when_the_next_one_arrives() -> None:
    tail = Tail(ttl_ms=100)
    tail.add(FIRST, chunk(0, time_ms=0))
    tail.add(SECOND, chunk(0, time_ms=50))
    tail.add(FIRST, chunk(1, time_ms=100))
    assert (offsets(tail, FIRST, 0), offsets(tail, SECOND, 0)) == ([0, 1], [0]), "a chunk of exactly that age stays"
    tail.add(FIRST, chunk(2, time_ms=101))
    assert (offsets(tail, FIRST, 0), offsets(tail, FIRST, 1)) == ([], [1, 2])
    tail.add(FIRST, chunk(3, time_ms=300))
    assert (offsets(tail, SECOND, 0), offsets(tail, FIRST, 1), offsets(tail, FIRST, 3)) == ([], [], [3])
    assert tail.held_bytes == len(b"body") + limits.TAIL_CHUNK_BYTES


@pytest.mark.parametrize("ttl_ms", [0, 10_000])
def test_without_age_the_bytes_decide(ttl_ms: int) -> None:
    size = len(b"body") + limits.TAIL_CHUNK_BYTES
    tail = Tail(2 * size, ttl_ms)
    for offset in range(3):
        tail.add(FIRST, chunk(offset, time_ms=offset))
    assert (offsets(tail, FIRST, 0), offsets(tail, FIRST, 1)) == ([], [1, 2])
    assert tail.held_bytes == 2 * size
