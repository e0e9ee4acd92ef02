"""Subscriptions over tables that Spark itself has sorted, deleted from and expired (hazard 22), from a broker with its
own pipeline: the log has let go of everything, so each message comes out of a file of the table."""

from __future__ import annotations

import asyncio

import pytest

from icestream.model.shard import GapState
from tests.support.history_topic import COUNT, SHARDS, HistoryTopic, check_all, offsets_of
from tests.support.pipeline_process import PipelineRun
from tests.support.spark import Spark

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def topic(history: PipelineRun, spark: Spark) -> HistoryTopic:
    """In three rounds."""
    history_topic = HistoryTopic(history, spark)
    for first in range(0, COUNT, COUNT // 3):
        history_topic.publish(range(first, first + COUNT // 3))
    return history_topic


ORDERS = ("payload DESC", "key ASC, offset DESC", "zorder(key, payload)")


def test_hazard_22_tables_that_spark_sorted_are_read_in_order(topic: HistoryTopic) -> None:
    topic.leave_log()
    plain = topic.read()
    check_all(topic, plain.got)
    for order in ORDERS:
        topic.sort(order)
        result = topic.read()
        check_all(topic, result.got)
        assert (sorted(result.got), result.gaps) == (sorted(plain.got), [])
    topic.expire()
    result = topic.read()
    check_all(topic, result.got)
    assert (sorted(result.got), result.gaps) == (sorted(plain.got), [])


def test_hazard_22_a_table_with_a_sort_order_is_written_and_read(topic: HistoryTopic) -> None:
    topic.sql("ALTER TABLE {t} WRITE ORDERED BY payload DESC")
    topic.sort()
    topic.publish(range(COUNT, COUNT + 30))
    topic.leave_log()
    result = topic.read()
    check_all(topic, result.got)
    topic.sort()
    check_all(topic, topic.read().got)


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_hazard_22_rows_that_spark_deletes_from_a_sorted_table_are_gaps(topic: HistoryTopic, mode: str) -> None:
    """The rows stay gaps after another compaction and an expiry."""
    topic.leave_log()
    topic.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
    topic.sort("payload DESC")
    topic.read()  # what is remembered of it must not come again
    ends = {place for place in topic.sent if (place[0], place[1] + 1) not in topic.sent}
    gone = frozenset(place for place in topic.sent if place[1] % 5 == 0 or 20 <= place[1] < 24) - ends
    for shard in range(SHARDS):
        some = ", ".join(str(at) for gone_shard, at in gone if gone_shard == shard)
        topic.sql(f"DELETE FROM {{t}} WHERE shard = {shard} AND offset IN ({some})")
    for after in (lambda: None, lambda: topic.sort("payload ASC"), topic.expire):
        after()
        result = topic.read(gone)
        check_all(topic, result.got, gone)
        below_first = frozenset((shard, 0) for shard in range(SHARDS))  # "earliest" begins behind them
        assert offsets_of(result.gaps) | below_first == gone
        assert {gap.state for gap in result.gaps} == {GapState.DROPPED}


def test_hazard_22_files_removed_during_a_read_are_planned_again(topic: HistoryTopic) -> None:
    topic.leave_log()
    topic.sort("payload DESC")

    def meddle() -> None:
        topic.sort("key ASC, payload ASC")
        topic.expire()

    result = asyncio.run(topic.subscribed(10, meddle))
    check_all(topic, result.got)
    assert not result.gaps
