"""What one engine wrote the others read: Spark, DuckDB and PyIceberg on the same tables."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.support.lakehouse import Lakehouse
from tests.support.spark import Spark

Read = Callable[[str], list[tuple[int, str]]]
MERGE_ON_READ = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))


@pytest.fixture
def readers(spark: Spark, lakehouse: Lakehouse) -> dict[str, Read]:
    """Functions by engine; each returns all rows of the table `namespace.name`."""

    def by_spark(table: str) -> list[tuple[int, str]]:
        return [(row[0], row[1]) for row in spark.sql(f"SELECT id, word FROM ice.{table} ORDER BY id")]

    def by_duckdb(table: str) -> list[tuple[int, str]]:
        with lakehouse.duckdb() as connection:
            rows = connection.execute(f"SELECT id, word FROM ice.{table} ORDER BY id").fetchall()
        return [(row[0], row[1]) for row in rows]

    def by_pyiceberg(table: str) -> list[tuple[int, str]]:
        rows = lakehouse.pyiceberg().load_table(table).scan().to_arrow()
        return sorted(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))

    return {"Spark": by_spark, "DuckDB": by_duckdb, "PyIceberg": by_pyiceberg}


def check_all_read(readers: dict[str, Read], table: str, expected: list[tuple[int, str]]) -> None:
    assert {name: read(table) for name, read in readers.items()} == dict.fromkeys(readers, expected)


@pytest.mark.parametrize("version", [2, 3])
def test_each_writes_and_all_read(
    spark: Spark, lakehouse: Lakehouse, readers: dict[str, Read], ns: str, version: int
) -> None:
    table = f"{ns}.t"
    spark.sql(
        f"CREATE TABLE ice.{table} (id BIGINT, word STRING) "
        f"TBLPROPERTIES ('format-version' = '{version}', {MERGE_ON_READ})"
    )
    spark.sql(f"INSERT INTO ice.{table} SELECT id, 'spark' FROM range(4)")
    rows = [(number, "spark") for number in range(4)]
    with lakehouse.duckdb() as duck:
        duck.execute(f"INSERT INTO ice.{table} VALUES (10, 'duckdb'), (11, 'duckdb')")
    rows += [(10, "duckdb"), (11, "duckdb")]
    if version == 2:  # PyIceberg does not write version 3
        added = pa.table({"id": pa.array([20], pa.int64()), "word": pa.array(["pyiceberg"])})
        lakehouse.pyiceberg().load_table(table).append(added)
        rows += [(20, "pyiceberg")]
    check_all_read(readers, table, rows)
    spark.sql(f"DELETE FROM ice.{table} WHERE id = 1")  # position deletes, or deletion vectors
    with lakehouse.duckdb() as duck:
        duck.execute(f"DELETE FROM ice.{table} WHERE id = 10")
    check_all_read(readers, table, [row for row in rows if row[0] not in (1, 10)])
    spark.sql(f"CALL ice.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    check_all_read(readers, table, [row for row in rows if row[0] not in (1, 10)])


def test_all_follow_a_schema_and_partitioning_that_evolve(
    spark: Spark, lakehouse: Lakehouse, readers: dict[str, Read], ns: str
) -> None:
    table = f"{ns}.t"
    with lakehouse.duckdb() as duck:
        duck.execute(f"CREATE TABLE ice.{table} AS SELECT 1::BIGINT AS id, 'a' AS name")
    spark.sql(f"ALTER TABLE ice.{table} RENAME COLUMN name TO word")
    spark.sql(f"ALTER TABLE ice.{table} ADD PARTITION FIELD word")
    spark.sql(f"INSERT INTO ice.{table} VALUES (2, 'b')")
    added = pa.table({"id": pa.array([3], pa.int64()), "word": pa.array(["c"])})
    lakehouse.pyiceberg().load_table(table).append(added)
    check_all_read(readers, table, [(1, "a"), (2, "b"), (3, "c")])


def test_a_commit_after_a_concurrent_change_of_another_engine_is_kept(
    spark: Spark, lakehouse: Lakehouse, ns: str
) -> None:
    table = f"{ns}.t"
    spark.sql(f"CREATE TABLE ice.{table} AS SELECT 1L AS id, 'a' AS word")
    stale = lakehouse.pyiceberg().load_table(table)
    spark.sql(f"INSERT INTO ice.{table} VALUES (2, 'b')")
    stale.append(pa.table({"id": pa.array([3], pa.int64()), "word": pa.array(["c"])}))
    with lakehouse.duckdb() as duck:
        duck.execute("BEGIN")
        duck.execute(f"INSERT INTO ice.{table} VALUES (4, 'd')")
        spark.sql(f"INSERT INTO ice.{table} VALUES (5, 'e')")
        try:
            duck.execute("COMMIT")
            appended = [4]
        except Exception:  # noqa: BLE001  # DuckDB may give up; then its row is not there
            appended = []
    assert spark.column(f"SELECT id FROM ice.{table} ORDER BY id") == sorted([1, 2, 3, 5, *appended])
