"""Spark with Iceberg's Java client at the catalog: tables from their creation to their end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.lake_run import get
from tests.support.lakehouse import Lakehouse
from tests.support.spark import Spark, SparkRefusal


def rows(spark: Spark, table: str) -> list[tuple[object, ...]]:
    return sorted(spark.sql(f"SELECT * FROM {table}"), key=str)


def test_a_table_from_create_to_drop(spark: Spark, ns: str, t: str, lakehouse: Lakehouse) -> None:
    spark.sql(f"CREATE TABLE {t} (id BIGINT NOT NULL COMMENT 'number', name STRING) TBLPROPERTIES ('team' = 'mine')")
    with pytest.raises(SparkRefusal, match="already exists"):
        spark.sql(f"CREATE TABLE {t} (id BIGINT)")
    spark.sql(f"INSERT INTO {t} VALUES (1, 'one'), (2, 'two')")
    spark.sql(f"INSERT INTO {t} VALUES (3, NULL)")
    assert rows(spark, t) == [(1, "one"), (2, "two"), (3, None)]
    spark.sql(f"INSERT OVERWRITE {t} VALUES (4, 'four')")
    assert rows(spark, t) == [(4, "four")]
    spark.sql(f"ALTER TABLE {t} RENAME TO {ns}.other")
    assert spark.sql(f"SHOW TABLES IN ice.{ns}") == [(ns, "other", False)]
    spark.sql(f"TRUNCATE TABLE ice.{ns}.other")
    assert rows(spark, f"ice.{ns}.other") == []
    (folder,) = (lakehouse.warehouse / ns).iterdir()
    assert list(folder.rglob("*.parquet"))
    spark.sql(f"DROP TABLE ice.{ns}.other PURGE")
    assert spark.sql(f"SHOW TABLES IN ice.{ns}") == []
    assert list(folder.rglob("*.parquet")) == []
    with pytest.raises(SparkRefusal, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM ice.{ns}.other")


def test_namespaces_of_several_levels(spark: Spark, ns: str, lakehouse: Lakehouse) -> None:
    spark.sql(f"CREATE NAMESPACE ice.{ns}.inner COMMENT 'a level below' LOCATION '{lakehouse.warehouse}/{ns}-inner'")
    spark.sql(f"ALTER NAMESPACE ice.{ns}.inner SET PROPERTIES ('team' = 'mine')")
    assert spark.column(f"SHOW NAMESPACES IN ice.{ns}") == [f"{ns}.inner"]
    assert ("Comment", "a level below") in spark.sql(f"DESCRIBE NAMESPACE EXTENDED ice.{ns}.inner")
    spark.sql(f"CREATE TABLE ice.{ns}.inner.t (id BIGINT)")
    for name in (f"ice.{ns}.inner", f"ice.{ns}"):
        with pytest.raises(SparkRefusal, match="not empty"):
            spark.sql(f"DROP NAMESPACE {name}")
    spark.sql(f"DROP TABLE ice.{ns}.inner.t")
    spark.sql(f"DROP NAMESPACE ice.{ns}.inner")
    spark.sql(f"DROP NAMESPACE ice.{ns}")
    assert get(lakehouse.port, f"/v1/namespaces/{ns}")[0] == 404


def test_create_and_replace_as_select(spark: Spark, ns: str, t: str) -> None:
    spark.sql(f"CREATE TABLE {t} PARTITIONED BY (part) AS SELECT id, id % 2 AS part FROM range(6)")
    assert spark.scalar(f"SELECT count(*) FROM {t}") == 6
    spark.sql(f"REPLACE TABLE {t} AS SELECT id + 100 AS id, 'x' AS word FROM {t}")
    assert spark.sql(f"SELECT min(id), max(id), max(word) FROM {t}") == [(100, 105, "x")]
    spark.sql(f"CREATE OR REPLACE TABLE {t} (other STRING)")
    assert rows(spark, t) == []
    first = spark.column(f"SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at")[0]
    assert spark.scalar(f"SELECT count(part) FROM {t} VERSION AS OF {first}") == 6
    spark.sql(f"CREATE OR REPLACE TABLE ice.{ns}.fresh AS SELECT 1 AS id")
    assert spark.column(f"SELECT * FROM ice.{ns}.fresh") == [1]


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_rows_are_updated_in_place(spark: Spark, t: str, mode: str) -> None:
    modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    spark.sql(f"CREATE TABLE {t} TBLPROPERTIES ({modes}) AS SELECT id, 'old' AS word FROM range(1, 6)")
    spark.sql(
        f"MERGE INTO {t} USING (SELECT explode(array(1, 9)) AS id) s ON {t.rsplit('.', maxsplit=1)[-1]}.id = s.id "
        "WHEN MATCHED THEN UPDATE SET word = 'merged' WHEN NOT MATCHED THEN INSERT (id, word) VALUES (s.id, 'new')"
    )
    spark.sql(f"UPDATE {t} SET word = 'updated' WHERE id = 2")
    spark.sql(f"DELETE FROM {t} WHERE id = 3")
    assert rows(spark, t) == [(1, "merged"), (2, "updated"), (4, "old"), (5, "old"), (9, "new")]
    assert (spark.scalar(f"SELECT count(*) FROM {t}.delete_files") > 0) == (mode == "merge-on-read")


def test_the_schema_evolves(spark: Spark, t: str) -> None:
    spark.sql(f"CREATE TABLE {t} (id INT, name STRING, deep STRUCT<x: INT>)")
    spark.sql(f"INSERT INTO {t} VALUES (1, 'one', struct(1))")
    for change in (
        "ADD COLUMN extra FLOAT COMMENT 'later' AFTER id",
        "ALTER COLUMN id TYPE BIGINT",
        "ALTER COLUMN extra TYPE DOUBLE",
        "RENAME COLUMN name TO title",
        "ADD COLUMN deep.y STRING",
        "ALTER COLUMN title FIRST",
        "SET TBLPROPERTIES ('a' = 'b')",
        "UNSET TBLPROPERTIES ('a', 'never-there')",
        "WRITE ORDERED BY id DESC",
    ):
        spark.sql(f"ALTER TABLE {t} {change}")
    spark.sql(f"INSERT INTO {t} VALUES ('two', 2, 0.5, struct(2, 'y'))")
    assert spark.sql(f"SELECT title, id, extra, deep.x, deep.y FROM {t} ORDER BY id") == [
        ("one", 1, None, 1, None),
        ("two", 2, 0.5, 2, "y"),
    ]
    spark.sql(f"ALTER TABLE {t} DROP COLUMN extra")
    assert [row[:2] for row in spark.sql(f"DESCRIBE {t}")] == [
        ("title", "string"), ("id", "bigint"), ("deep", "struct<x:int,y:string>")
    ]  # fmt: skip
    with pytest.raises(SparkRefusal):
        spark.sql(f"ALTER TABLE {t} ALTER COLUMN id TYPE INT")


def test_the_partitioning_evolves(spark: Spark, t: str) -> None:
    spark.sql(f"CREATE TABLE {t} (id BIGINT, at TIMESTAMP) PARTITIONED BY (days(at))")
    spark.sql(f"INSERT INTO {t} VALUES (1, TIMESTAMP '2026-01-01 10:00:00'), (2, TIMESTAMP '2026-01-02 10:00:00')")
    spark.sql(f"ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id) AS shard")
    spark.sql(f"INSERT INTO {t} VALUES (3, TIMESTAMP '2026-01-01 11:00:00')")
    spark.sql(f"ALTER TABLE {t} REPLACE PARTITION FIELD days(at) WITH hours(at)")
    spark.sql(f"ALTER TABLE {t} DROP PARTITION FIELD shard")
    spark.sql(f"INSERT INTO {t} VALUES (4, TIMESTAMP '2026-01-02 12:00:00')")
    assert spark.column(f"SELECT id FROM {t} WHERE at < TIMESTAMP '2026-01-02 00:00:00' ORDER BY id") == [1, 3]
    assert spark.column(f"SELECT DISTINCT spec_id FROM {t}.files ORDER BY spec_id") == [0, 1, 3]


def test_branches_and_tags(spark: Spark, t: str) -> None:
    spark.sql(f"CREATE TABLE {t} AS SELECT 1 AS id")
    spark.sql(f"ALTER TABLE {t} CREATE TAG first RETAIN 7 DAYS")
    spark.sql(f"ALTER TABLE {t} CREATE BRANCH audit")
    spark.sql(f"INSERT INTO {t}.branch_audit VALUES (2)")
    spark.sql(f"INSERT INTO {t} VALUES (3)")
    assert rows(spark, t) == [(1,), (3,)]
    assert rows(spark, f"{t}.branch_audit") == [(1,), (2,)]
    assert rows(spark, f"{t} VERSION AS OF 'first'") == [(1,)]
    spark.sql(f"DELETE FROM {t}.branch_audit WHERE id = 1")
    assert rows(spark, f"{t} VERSION AS OF 'audit'") == [(2,)]
    assert spark.sql(f"SELECT name, type FROM {t}.refs ORDER BY name") == [
        ("audit", "BRANCH"), ("first", "TAG"), ("main", "BRANCH")
    ]  # fmt: skip
    spark.sql(f"ALTER TABLE {t} REPLACE BRANCH audit RETAIN 7 DAYS")
    assert rows(spark, f"{t}.branch_audit") == [(1,), (3,)]
    spark.sql(f"ALTER TABLE {t} DROP BRANCH audit")
    spark.sql(f"ALTER TABLE {t} DROP TAG first")
    assert spark.column(f"SELECT name FROM {t}.refs") == ["main"]


def test_the_metadata_tables(spark: Spark, t: str) -> None:
    spark.sql(
        f"CREATE TABLE {t} PARTITIONED BY (id) TBLPROPERTIES ('write.delete.mode' = 'merge-on-read') "
        "AS SELECT 1 AS id, 1 AS x"
    )
    spark.sql(f"INSERT INTO {t} VALUES (1, 2), (1, 4), (2, 3)")
    spark.sql(f"DELETE FROM {t} WHERE x = 2")
    counted = {
        "history": 3, "snapshots": 3, "refs": 1, "metadata_log_entries": 3, "files": 4, "data_files": 3,
        "delete_files": 1, "position_deletes": 1, "entries": 4, "manifests": 3, "partitions": 2, "all_data_files": 3,
        "all_delete_files": 1, "all_files": 4, "all_entries": 4, "all_manifests": 6,
    }  # fmt: skip
    union = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {t}.{name}" for name in counted)
    assert dict(spark.sql(union)) == counted
    assert rows(spark, f"{t} FOR TIMESTAMP AS OF now()") == [(1, 1), (1, 4), (2, 3)]


def test_views(spark: Spark, ns: str, t: str) -> None:
    spark.sql(f"CREATE TABLE {t} AS SELECT id FROM range(4)")
    view = f"ice.{ns}.v"
    spark.sql(
        f"CREATE VIEW {view} (number COMMENT 'of a row') COMMENT 'all' TBLPROPERTIES ('a' = 'b') AS SELECT id FROM {t}"
    )
    assert spark.scalar(f"SELECT sum(number) FROM {view}") == 6
    with pytest.raises(SparkRefusal, match="already exists"):
        spark.sql(f"CREATE TABLE {view} (id BIGINT)")
    with pytest.raises(SparkRefusal, match="already exists"):
        spark.sql(f"CREATE VIEW {t} AS SELECT 1 AS one")
    spark.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT id * 2 AS twice FROM {t}")
    spark.sql(f"ALTER VIEW {view} SET TBLPROPERTIES ('c' = 'd')")
    spark.sql(f"ALTER VIEW {view} RENAME TO ice.{ns}.w")
    assert spark.scalar(f"SELECT sum(twice) FROM ice.{ns}.w") == 12
    assert spark.sql(f"SHOW VIEWS IN ice.{ns}") == [(ns, "w", False)]
    assert "'c' = 'd'" in spark.scalar(f"SHOW CREATE TABLE ice.{ns}.w")
    spark.sql(f"DROP VIEW ice.{ns}.w")
    with pytest.raises(SparkRefusal, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM ice.{ns}.w")


def test_a_table_of_format_version_3(spark: Spark, t: str) -> None:
    """Deletion vectors, the lineage of rows, and values of any shape."""
    modes = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))
    spark.sql(f"CREATE TABLE {t} (id BIGINT, v VARIANT) TBLPROPERTIES ('format-version' = '3', {modes})")
    spark.sql(f"INSERT INTO {t} SELECT id, parse_json(concat('{{\"a\": ', id, '}}')) FROM range(5)")
    spark.sql(f"DELETE FROM {t} WHERE id = 3")
    spark.sql(f"UPDATE {t} SET id = 40 WHERE id = 4")
    spark.sql(f"INSERT INTO {t} VALUES (50, NULL)")
    rows = spark.sql(
        f"SELECT id, _row_id, _last_updated_sequence_number, variant_get(v, '$.a', 'int') FROM {t} ORDER BY id"
    )
    assert [row[:3] for row in rows[:4]] == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (40, 4, 3)]
    assert (rows[4][0], rows[4][1] > 4, rows[4][2]) == (50, True, 4)
    assert [row[3] for row in rows] == [0, 1, 2, 4, None]
    assert spark.sql(f"SELECT file_format, record_count FROM {t}.delete_files") == [("PUFFIN", 2)]


def test_a_table_is_upgraded_from_version_to_version(spark: Spark, t: str) -> None:
    spark.sql(f"CREATE TABLE {t} TBLPROPERTIES ('format-version' = '1') AS SELECT id FROM range(3)")
    for version in ("2", "3"):
        spark.sql(f"ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '{version}')")
        spark.sql(f"INSERT INTO {t} VALUES ({version}0)")
    assert spark.sql(f"SELECT count(*), count(DISTINCT id) FROM {t}") == [(5, 5)]
    assert spark.scalar(f"SELECT count(_row_id) FROM {t} WHERE id = 30") == 1
    with pytest.raises(SparkRefusal, match=r"(?i)downgrade"):
        spark.sql(f"ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '2')")


def test_concurrent_committers_lose_nothing(spark: Spark, t: str, lakehouse: Lakehouse) -> None:
    """A statement that repeats its commit; the other client is of another make."""
    retries = "'commit.retry.num-retries' = '50', 'commit.retry.min-wait-ms' = '5'"
    spark.sql(f"CREATE TABLE {t} (id BIGINT) TBLPROPERTIES ({retries})")

    def set_property(number: int) -> None:
        catalog = lakehouse.pyiceberg()
        table = catalog.load_table(t.removeprefix("ice."))
        for round_number in range(5):
            with table.transaction() as transaction:
                transaction.set_properties({f"own-{number}-{round_number}": "x"})

    with ThreadPoolExecutor(3) as threads:
        others = [threads.submit(set_property, number) for number in range(2)]
        for number in range(6):
            spark.sql(f"INSERT INTO {t} VALUES ({number})")
        for task in others:
            task.result()
    assert spark.scalar(f"SELECT count(*) FROM {t}") == 6
    assert len([key for key, _ in spark.sql(f"SHOW TBLPROPERTIES {t}") if key.startswith("own-")]) == 10


def test_a_location_outside_of_the_warehouse_is_refused(spark: Spark, t: str, tmp_path: Path) -> None:
    with pytest.raises(SparkRefusal, match="outside of the warehouse"):
        spark.sql(f"CREATE TABLE {t} (id BIGINT) LOCATION 'file:{tmp_path}/elsewhere'")
    assert not (tmp_path / "elsewhere").exists()
