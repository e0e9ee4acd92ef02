"""Hazard 21, by real engines: what Spark and DuckDB do to the table of a topic in the middle of ingest.

What would stop the topic is refused in words that say what to do; everything else passes, and the next round with it.
"""

from __future__ import annotations

import pytest

from tests.support.lakehouse import Lakehouse, new_name
from tests.support.round_driver import RoundDriver
from tests.support.spark import Spark, SparkRefusal

FAR = "TIMESTAMP '2100-01-01 00:00:00'"
DETACH = "icestream lake detach"


@pytest.fixture
def driver(spark: Spark, lakehouse: Lakehouse) -> RoundDriver:
    """Offsets 0 to 5 of a topic, in three rounds."""
    name = new_name("topics")
    spark.sql(f"CREATE NAMESPACE ice.{name}")
    driver = RoundDriver(lakehouse, name, "orders")
    for _ in range(3):
        assert driver.commit(2)[0] == 200
    return driver


@pytest.fixture
def t(driver: RoundDriver) -> str:
    return f"ice.{driver.table.namespace[0]}.{driver.table.name}"


def offsets(spark: Spark, t: str) -> list[int]:
    return spark.column(f"SELECT offset FROM {t} ORDER BY offset")


def refused(spark: Spark, statement: str) -> str:
    """In which words; empty when it was done."""
    try:
        spark.sql(statement)
    except SparkRefusal as refusal:
        return str(refusal)
    return ""


REFUSED = {
    "drop a column of the envelope": "ALTER TABLE {t} DROP COLUMN offset",
    "rename one": "ALTER TABLE {t} RENAME COLUMN payload TO body",
    "widen one": "ALTER TABLE {t} ALTER COLUMN shard TYPE BIGINT",
    "make one optional": "ALTER TABLE {t} ALTER COLUMN shard DROP NOT NULL",
    "replace": "CREATE OR REPLACE TABLE {t} AS SELECT 1 AS id",
    "replace with nothing": "REPLACE TABLE {t} (id BIGINT)",
    "drop": "DROP TABLE {t}",
    "purge": "DROP TABLE {t} PURGE",
    "rename": "ALTER TABLE {t} RENAME TO {ns}.other",
    "raise the format": "ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')",
    "set an offset": "ALTER TABLE {t} SET TBLPROPERTIES ('icestream.committed.0' = '0')",
    "unset the topic": "ALTER TABLE {t} UNSET TBLPROPERTIES ('icestream.topic')",
    "register again": "CALL ice.system.register_table('{ns}.twin', '{file}')",
}


def test_hazard_21_changes_that_would_stop_the_topic_are_refused_to_spark(
    spark: Spark, driver: RoundDriver, t: str
) -> None:
    names = {
        "t": t,
        "ns": driver.table.namespace[0],
        "file": spark.column(f"SELECT file FROM {t}.metadata_log_entries ORDER BY timestamp")[-1],
    }
    replies = {what: refused(spark, statement.format(**names)) for what, statement in REFUSED.items()}
    assert [what for what, words in replies.items() if "Forbidden" not in words] == [], replies
    assert driver.commit(2)[0] == 200
    assert offsets(spark, t) == list(range(8))


def test_hazard_21_a_refusal_names_the_command_that_helps(spark: Spark, t: str) -> None:
    with pytest.raises(SparkRefusal, match=DETACH):
        spark.sql(f"ALTER TABLE {t} DROP COLUMN offset")
    with pytest.raises(SparkRefusal, match=DETACH):
        spark.sql(f"DROP TABLE {t}")


ALLOWED = (
    "CALL ice.system.rewrite_data_files(table => '{short}', options => map('rewrite-all', 'true'))",
    "CALL ice.system.rewrite_manifests('{short}')",
    "CALL ice.system.compute_table_stats('{short}')",
    f"CALL ice.system.expire_snapshots(table => '{{short}}', older_than => {FAR}, retain_last => 2)",
    "CALL ice.system.remove_orphan_files('{short}')",
    "ALTER TABLE {t} ADD COLUMN more STRING",
    "ALTER TABLE {t} RENAME COLUMN more TO other",
    "ALTER TABLE {t} ADD PARTITION FIELD shard",
    "ALTER TABLE {t} WRITE ORDERED BY offset",
    "ALTER TABLE {t} SET TBLPROPERTIES ('team' = 'mine')",
    "ALTER TABLE {t} CREATE TAG noon",
    "ALTER TABLE {t} CREATE BRANCH audit",
    "DELETE FROM {t}.branch_audit WHERE offset = 0",
)


def test_hazard_21_maintenance_and_ddl_pass_between_rounds(spark: Spark, driver: RoundDriver, t: str) -> None:
    for statement in ALLOWED:
        spark.sql(statement.format(t=t, short=t.removeprefix("ice.")))
    assert driver.commit(2)[0] == 200
    assert offsets(spark, t) == list(range(8))
    assert driver.state().removals == ()
    assert spark.scalar(f"SELECT count(*) FROM {t}.branch_audit") == 5


def test_hazard_21_rows_removed_by_an_engine_are_recorded(spark: Spark, driver: RoundDriver, t: str) -> None:
    spark.sql(f"DELETE FROM {t} WHERE offset = 3")
    (removed,) = driver.state().removals
    assert (removed.operation, removed.is_exact, removed.rows) == ("overwrite", False, 1)
    assert removed.ranges[0][0] <= 3 < removed.ranges[0][1]
    assert driver.commit(2)[0] == 200
    assert offsets(spark, t) == [0, 1, 2, 4, 5, 6, 7]


def test_hazard_21_a_rollback_does_not_move_the_topic_back(spark: Spark, driver: RoundDriver, t: str) -> None:
    first = spark.column(f"SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at")[0]
    spark.sql(f"CALL ice.system.rollback_to_snapshot('{t.removeprefix('ice.')}', {first})")
    assert offsets(spark, t) == [0, 1]
    assert driver.state().removals != ()
    assert driver.commit(2)[0] == 200
    assert offsets(spark, t) == [0, 1, 6, 7]


def test_hazard_21_duckdb_gets_the_same_refusals(lakehouse: Lakehouse, driver: RoundDriver, t: str) -> None:
    with lakehouse.duckdb() as duck:
        with pytest.raises(Exception, match="topic"):
            duck.execute(f"DROP TABLE {t}")
        duck.execute(f'DELETE FROM {t} WHERE "offset" = 3')
        assert driver.commit(2)[0] == 200
        rows = duck.execute(f'SELECT "offset" FROM {t} ORDER BY 1').fetchall()
    assert [row[0] for row in rows] == [0, 1, 2, 4, 5, 6, 7]
    assert driver.state().removals != ()
