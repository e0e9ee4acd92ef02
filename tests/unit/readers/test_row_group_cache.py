"""The cache of row groups: bounded in bytes and age, or disabled; its hits are counted."""

from __future__ import annotations

import time

import pyarrow as pa

from icestream.observability import metrics
from icestream.readers.row_group_cache import NoRowGroupCache, RowGroupKey, open_row_group_cache
from icestream.readers.row_group_cache_options import RowGroupCacheOptions

ROWS = pa.table({"offset": pa.array(range(1_000), pa.int64())})
FIRST, SECOND, THIRD = (RowGroupKey("a.parquet", number) for number in range(3))


def counted(outcome: str) -> float:
    return float(metrics.GROUP_CACHE.labels(outcome)._value.get())


def test_a_row_group_is_keyed_by_file_and_number() -> None:
    cache = open_row_group_cache(RowGroupCacheOptions())
    hits, misses = counted("hit"), counted("miss")
    assert cache.get(FIRST) is None
    cache.put(FIRST, ROWS)
    assert cache.get(FIRST) is ROWS
    assert cache.get(RowGroupKey("b.parquet", 0)) is None
    assert (counted("hit") - hits, counted("miss") - misses) == (1, 2)


def test_the_cache_is_bounded_and_evicts_the_oldest() -> None:
    cache = open_row_group_cache(RowGroupCacheOptions(max_bytes=2 * ROWS.nbytes + 10))
    for key in (FIRST, SECOND, THIRD):
        cache.put(key, ROWS)
    assert (cache.get(FIRST), cache.get(SECOND), cache.get(THIRD)) == (None, ROWS, ROWS)
    assert cache.held_bytes <= 2 * ROWS.nbytes + 10


def test_an_oversized_row_group_is_not_cached_and_evicts_nothing() -> None:
    cache = open_row_group_cache(RowGroupCacheOptions(max_bytes=ROWS.nbytes + 100))
    cache.put(FIRST, ROWS)
    cache.put(SECOND, pa.concat_tables([ROWS, ROWS]))
    assert (cache.get(FIRST), cache.get(SECOND)) == (ROWS, None)


def test_row_groups_expire() -> None:
    cache = open_row_group_cache(RowGroupCacheOptions(ttl_ms=20))
    cache.put(FIRST, ROWS)
    until = time.monotonic() + 10
    while cache.get(FIRST) is not None:
        assert time.monotonic() < until, "it is kept for ever"


def test_it_can_be_off() -> None:
    for options in (RowGroupCacheOptions(enabled=False), RowGroupCacheOptions(max_bytes=0)):
        cache = open_row_group_cache(options)
        cache.put(FIRST, ROWS)
        assert isinstance(cache, NoRowGroupCache)
        assert (cache.get(FIRST), cache.held_bytes) == (None, 0)
