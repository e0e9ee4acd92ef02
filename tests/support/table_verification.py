"""`verify` behind every test that makes tables of topics in this process (hazard 38): each that the test leaves must be
whole, or its absences known. A test that plants a fault says so: `@pytest.mark.wrong_tables("why")`.

A harness that makes tables notes how they are found. Tables of real processes are verified where those are ended
(pipeline_process.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from icestream.iceberg.file_io import TableFiles
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.table_views import TableViews
from icestream.readers.verify.verify_report import ShardLogState, VerifyReport

ShardsOf = Callable[[int], Mapping[int, ShardLogState]]


class _NotedTables(NamedTuple):
    new_tables: Callable[[], TableViews]
    files: TableFiles
    shards_of: ShardsOf


_noted: list[_NotedTables] = []


def note(new_tables: Callable[[], TableViews], files: TableFiles, shards_of: ShardsOf = lambda _: {}) -> None:
    """`shards_of`: what the log has of a topic, where there is one."""
    _noted.append(_NotedTables(new_tables, files, shards_of))


def has_some() -> bool:
    return bool(_noted)


def forget_all() -> None:
    _noted.clear()


async def reports() -> list[VerifyReport]:
    """Of every table that was noted, from all of its rows."""
    verified: list[VerifyReport] = []
    while _noted:
        noted = _noted.pop()
        scans = LazyScanner(noted.new_tables, noted.files, RowGroupCacheOptions())
        try:
            topics, _ = await scans.tables.bound_topics("", 500)
            for topic in topics:
                view = await scans.tables.fresh(topic.topic_id)
                if view is not None:
                    verified.append(scans.verifier(view, noted.shards_of(topic.topic_id)).verify(deep=True))
        finally:
            scans.close()
    return verified
