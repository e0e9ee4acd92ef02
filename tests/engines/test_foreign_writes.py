"""Real subscriptions over tables that other engines have written into: Spark and PyIceberg, each of their operations,
with each partitioning (hazard 22). Every message comes out of a file of the table: the log has let go of it.

Trino is not installed for the tests; its deletes are position deletes, as Spark's are with merge-on-read, and its
OPTIMIZE writes all columns, as Spark's compaction does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.support.history_topic import COUNT, SHARDS, HistoryTopic, Place, check_all, offsets_of
from tests.support.pipeline_process import PipelineRun
from tests.support.spark import Spark
from tests.support.topic_lake import damage_page

pytestmark = pytest.mark.timeout(300)
PARTITIONINGS = ("none", "key", "bucket[4]")
SMALL_ONES = "map('min-input-files', '2', 'min-file-size-bytes', '500000', 'target-file-size-bytes', '600000')"


def published(history: PipelineRun, spark: Spark, partitioning: str = "") -> HistoryTopic:
    """In three rounds."""
    topic = HistoryTopic(history, spark, partitioning)
    for first in range(0, COUNT, COUNT // 3):
        topic.publish(range(first, first + COUNT // 3))
    return topic


def ends_of(topic: HistoryTopic) -> set[Place]:
    """The last message of each shard: a reader waits for it, so it is not deleted."""
    return {place for place in topic.sent if (place[0], place[1] + 1) not in topic.sent}


def below_earliest(topic: HistoryTopic, gone: frozenset[Place]) -> frozenset[Place]:
    """Deleted messages before the first that is left: a subscription from "earliest" on begins behind them."""
    first = {
        shard: min(at for place_shard, at in topic.sent.keys() - gone if place_shard == shard)
        for shard in range(SHARDS)
    }
    return frozenset(place for place in gone if place[1] < first[place[0]])


def spark_rewrites(topic: HistoryTopic) -> frozenset[Place]:
    topic.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    return frozenset()


def spark_deletes(mode: str, remainder: int) -> Callable[[HistoryTopic], frozenset[Place]]:
    """Some offsets of every file."""

    def delete(topic: HistoryTopic) -> frozenset[Place]:
        topic.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
        gone = frozenset(place for place in topic.sent if place[1] % 11 == remainder) - ends_of(topic)
        for shard in range(SHARDS):
            offsets = ", ".join(str(offset) for at, offset in gone if at == shard)
            topic.sql(f"DELETE FROM {{t}} WHERE shard = {shard} AND offset IN ({offsets})")
        return gone

    return delete


def spark_merges(topic: HistoryTopic) -> frozenset[Place]:
    """The same values again: each file is written anew, with rows of all kinds."""
    topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.update.mode' = 'copy-on-write')")
    topic.sql("UPDATE {t} SET producer_name = producer_name WHERE offset % 2 = 0")
    return frozenset()


def pyiceberg_deletes(topic: HistoryTopic) -> frozenset[Place]:
    """By writing files anew: it has no deletes of another kind. Into buckets it does not write without a further
    library, which the tests do not have."""
    if topic.partitioning.startswith("bucket"):
        return frozenset()
    gone = frozenset(place for place in topic.sent if place[1] % 11 == 9) - ends_of(topic)
    with topic.pyiceberg() as table:
        for shard in range(SHARDS):
            offsets = ", ".join(str(offset) for at, offset in gone if at == shard)
            table.delete(f"shard = {shard} and offset in ({offsets})")
    return gone


OPERATIONS: dict[str, Callable[[HistoryTopic], frozenset[Place]]] = {
    "PyIceberg delete": pyiceberg_deletes,
    "Spark delete, copy on write": spark_deletes("copy-on-write", 3),
    "Spark delete, merge on read": spark_deletes("merge-on-read", 5),
    "Spark update": spark_merges,
    "Spark rewrite": spark_rewrites,
    "Spark delete of rewritten rows": spark_deletes("copy-on-write", 7),
}


@pytest.mark.parametrize("partitioning", PARTITIONINGS)
def test_hazard_22_a_table_is_readable_after_each_operation_of_each_engine(
    history: PipelineRun, spark: Spark, partitioning: str
) -> None:
    """Reproduction (b) of what outside use found. One behind the other: files of all engines stand side by side, and
    beside them a last round of the pipeline."""
    topic = published(history, spark, partitioning)
    topic.leave_log()
    gone: frozenset[Place] = frozenset()
    for name, operation in OPERATIONS.items():
        gone |= operation(topic)
        result = topic.read(gone)
        check_all(topic, result.got, gone)
        assert offsets_of(result.gaps) | below_earliest(topic, gone) == gone, name
    topic.publish(range(COUNT, COUNT + 20))
    topic.leave_log()
    check_all(topic, topic.read(gone).got, gone)
    report = topic.verify()
    assert (report["is_good"], report["is_complete"]) == (True, True), report


def test_hazard_22_compaction_of_small_files_beside_large_ones_as_our_docs_recommend(
    history: PipelineRun, spark: Spark
) -> None:
    """Reproduction (a): the rewritten file has the offsets before and behind those of the large one."""
    topic = HistoryTopic(history, spark)
    for first, size in ((0, 100), (1_000, 2_000), (2_000, 100), (3_000, 100)):
        topic.publish(range(first, first + 1_000), size)
    topic.leave_log()
    topic.call("rewrite_data_files", f"options => {SMALL_ONES}")
    spans = topic.spans()
    assert any(low < other_low <= high for low, high in spans for other_low, _ in spans), f"none overlap: {spans}"
    result = topic.read()
    check_all(topic, result.got)
    assert not result.gaps
    assert topic.verify()["is_good"]


@pytest.mark.parametrize("engine", ["spark", "pyiceberg"])
def test_hazard_22_a_foreign_row_with_an_offset_of_the_topic_is_ignored(
    history: PipelineRun, spark: Spark, engine: str
) -> None:
    """Reproduction (c)."""
    topic = published(history, spark)
    topic.leave_log()
    if engine == "spark":
        topic.sql(
            "INSERT INTO {t} (shard, offset, append_time, payload) "
            "VALUES (0, 5, TIMESTAMP '2026-01-01 00:00:00', CAST('foreign' AS BINARY))"
        )
    else:
        with topic.pyiceberg() as table:
            names = ("shard", "offset", "payload")
            schema = pa.schema([table.schema().as_arrow().field(name) for name in names])
            table.append(pa.table([[0], [5], [b"foreign"]], schema))
    check_all(topic, topic.read().got)
    report = topic.verify()
    assert [finding["check"] for finding in report["findings"] if finding["weight"] == "wrong"] == ["unique"]
    topic.sql("DELETE FROM {t} WHERE payload = CAST('foreign' AS BINARY)")
    check_all(topic, topic.read().got)


@pytest.mark.parametrize("file_format", ["orc", "avro"])
def test_hazard_22_a_table_that_spark_compacts_to_another_format_is_read_and_verified(
    history: PipelineRun, spark: Spark, file_format: str
) -> None:
    """That includes deletes of that format, new rounds beside them, and partitions."""
    topic = published(history, spark, "bucket[4]" if file_format == "orc" else "")
    topic.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.format.default' = '{file_format}')")
    topic.leave_log()
    spark_rewrites(topic)
    assert file_format.upper() in topic.formats()
    check_all(topic, topic.read().got)
    gone = spark_deletes("merge-on-read", 4)(topic)
    check_all(topic, topic.read(gone).got, gone)
    topic.publish(range(COUNT, COUNT + 20))
    topic.leave_log()
    check_all(topic, topic.read(gone).got, gone)
    report = topic.verify()
    assert (report["is_good"], report["is_complete"]) == (True, True), report


def test_hazard_22_an_unreadable_file_is_reported_everywhere_and_read_once_restored(
    history: PipelineRun, spark: Spark
) -> None:
    """The consumer, readiness, metrics and `verify` say it with the reason."""
    topic = HistoryTopic(history, spark, "none")
    ran = topic.consume("--subscription", "audit")
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    topic.publish(range(COUNT))
    topic.leave_log()
    spark_rewrites(topic)
    (path,) = topic.paths()
    whole = path.read_bytes()
    damage_page(path, "payload")
    ran = topic.consume("--subscription", "audit")
    assert ran.returncode == 1, ran
    assert f"{path.name} is damaged" in ran.stderr
    assert "icestream verify --deep" in ran.stderr
    shown = rf"\[!\] subscriptions: .*{topic.name}:audit:\d: unreadable at offset 0: .*{path.name} is damaged"
    assert re.search(shown, history.health())
    assert 'icestream_stalled_readers{reason="table_damaged"}' in history.broker_metrics()
    wrong = [finding for finding in topic.verify()["findings"] if finding["weight"] == "wrong"]
    assert {finding["check"] for finding in wrong} == {"files", "readers"}
    assert all(path.name in finding["text"] for finding in wrong)
    path.write_bytes(whole)
    ran = topic.consume("--subscription", "audit")
    assert (ran.returncode, len(ran.stdout.splitlines())) == (0, COUNT), ran.stderr
    assert "unreadable" not in history.health()
    assert "icestream_stalled_readers{" not in history.broker_metrics()
    check_all(topic, topic.read().got)
    assert topic.verify()["is_good"]
