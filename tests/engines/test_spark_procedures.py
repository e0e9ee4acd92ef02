"""Iceberg's maintenance procedures, called by Spark: each does what it is for, and no row is lost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.lakehouse import Lakehouse
from tests.support.spark import Spark, SparkRefusal

MERGE_ON_READ = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))
FAR = "TIMESTAMP '2100-01-01 00:00:00'"


class ProcedureTable:
    """A table, its short name in calls, and what is asked of it again and again."""

    def __init__(self, spark: Spark, name: str) -> None:
        self.spark = spark
        self.name = name
        self.short = name.removeprefix("ice.")

    def call(self, procedure: str, arguments: str = "") -> list[tuple[object, ...]]:
        return self.spark.sql(f"CALL ice.system.{procedure}('{self.short}'{arguments})")

    @property
    def ids(self) -> list[int]:
        return self.spark.column(f"SELECT id FROM {self.name} ORDER BY id")

    @property
    def snapshots(self) -> list[int]:
        return self.spark.column(f"SELECT snapshot_id FROM {self.name}.snapshots ORDER BY committed_at")

    @property
    def folder(self) -> Path:
        description = dict(row[:2] for row in self.spark.sql(f"DESCRIBE EXTENDED {self.name}"))
        return Path(description["Location"].removeprefix("file:"))


@pytest.fixture
def table(spark: Spark, t: str) -> ProcedureTable:
    """Rows 0 to 8 in three commits."""
    spark.sql(f"CREATE TABLE {t} TBLPROPERTIES ({MERGE_ON_READ}) AS SELECT id FROM range(3)")
    for first in (3, 6):
        spark.sql(f"INSERT INTO {t} SELECT id + {first} FROM range(3)")
    return ProcedureTable(spark, t)


def test_files_manifests_and_deletes_are_rewritten(spark: Spark, table: ProcedureTable) -> None:
    spark.sql(f"DELETE FROM {table.name} WHERE id IN (0, 4)")
    left = [1, 2, 3, 5, 6, 7, 8]
    table.call("rewrite_position_delete_files", ", map('rewrite-all', 'true')")
    assert table.ids == left
    table.call("rewrite_data_files", ", options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')")
    assert spark.scalar(f"SELECT count(*) FROM {table.name}.data_files") == 1
    assert table.ids == left
    for order in ("id DESC NULLS LAST", "zorder(id)"):
        sort = f", strategy => 'sort', sort_order => '{order}', options => map('rewrite-all', 'true')"
        assert table.call("rewrite_data_files", sort)[0][:2] == (1, 1)
    assert spark.sql(f"SELECT operation FROM {table.name}.snapshots ORDER BY committed_at DESC LIMIT 1") == [
        ("replace",)
    ]
    table.call("rewrite_manifests")
    assert table.ids == left


def test_snapshots_expire_with_their_files(spark: Spark, table: ProcedureTable) -> None:
    table.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    before = len(list(table.folder.rglob("*.parquet")))
    deleted = table.call("expire_snapshots", f", older_than => {FAR}, retain_last => 1")[0]
    assert deleted[0] == before - 1 > 0
    assert (len(table.snapshots), len(list(table.folder.rglob("*.parquet")))) == (1, 1)
    assert table.ids == list(range(9))
    assert table.call("expire_snapshots", ", snapshot_ids => array(123)")[0][0] == 0


def test_only_orphan_files_are_removed(table: ProcedureTable) -> None:
    orphan = table.folder / "data" / "orphan.parquet"
    orphan.write_bytes(b"nobody's")
    long_ago = time.time() - 10 * 24 * 3600
    os.utime(orphan, (long_ago, long_ago))
    assert table.call("remove_orphan_files", ", dry_run => true") == [(f"file:{orphan}",)]
    assert table.call("remove_orphan_files") == [(f"file:{orphan}",)]
    assert not orphan.exists()
    assert table.ids == list(range(9))


def test_main_moves_back_and_forward(spark: Spark, table: ProcedureTable) -> None:
    first, second, third = table.snapshots
    table.call("rollback_to_snapshot", f", {second}")
    assert table.ids == list(range(6))
    table.call("set_current_snapshot", f", {third}")
    assert table.ids == list(range(9))
    at = spark.scalar(f"SELECT committed_at FROM {table.name}.snapshots WHERE snapshot_id = {second}")
    table.call("rollback_to_timestamp", f", TIMESTAMP '{at}'")
    assert table.ids == list(range(3))
    assert [row[0] for row in table.call("ancestors_of")] == [first]
    assert [row[0] for row in table.call("ancestors_of", f", {third}")] == [third, second, first]
    spark.sql(f"ALTER TABLE {table.name} CREATE TAG last AS OF VERSION {third}")
    spark.sql(f"CALL ice.system.set_current_snapshot(table => '{table.short}', ref => 'last')")
    assert table.ids == list(range(9))
    table.call("set_current_snapshot", f", {first}")
    with pytest.raises(SparkRefusal, match=r"(?i)ancestor"):
        table.call("rollback_to_snapshot", f", {third}")


def test_written_changes_are_published_later(spark: Spark, table: ProcedureTable) -> None:
    spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    for number, name in ((100, "one"), (101, "two")):
        with spark.setting("spark.wap.id", name):
            spark.sql(f"INSERT INTO {table.name} VALUES ({number})")
    assert table.ids == list(range(9))
    table.call("publish_changes", ", 'one'")
    staged = spark.scalar(f"SELECT snapshot_id FROM {table.name}.snapshots WHERE summary['wap.id'] = 'two'")
    table.call("cherrypick_snapshot", f", {staged}")
    assert table.ids == [*range(9), 100, 101]


def test_a_branch_becomes_main(spark: Spark, table: ProcedureTable) -> None:
    spark.sql(f"ALTER TABLE {table.name} CREATE BRANCH audit")
    spark.sql(f"INSERT INTO {table.name}.branch_audit VALUES (100)")
    table.call("fast_forward", ", 'main', 'audit'")
    assert table.ids == [*range(9), 100]


def test_the_changes_between_snapshots(spark: Spark, table: ProcedureTable) -> None:
    """Of a table whose deletes rewrite files: others have no changelog."""
    spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('write.delete.mode' = 'copy-on-write')")
    spark.sql(f"DELETE FROM {table.name} WHERE id = 1")
    start = table.snapshots[0]
    table.call(
        "create_changelog_view",
        f", changelog_view => 'changes', identifier_columns => array('id'), "
        f"options => map('start-snapshot-id', '{start}')",
    )
    changes = spark.sql("SELECT id, _change_type FROM changes ORDER BY _change_ordinal, id")
    spark.sql("DROP VIEW changes")
    assert changes == [*((number, "INSERT") for number in range(3, 9)), (1, "DELETE")]


def test_statistics_are_kept_in_the_table(spark: Spark, table: ProcedureTable) -> None:
    ((file,),) = table.call("compute_table_stats")
    assert Path(str(file).removeprefix("file:")).is_file()
    spark.sql(f"ALTER TABLE {table.name} ADD PARTITION FIELD bucket(2, id)")
    spark.sql(f"INSERT INTO {table.name} VALUES (100)")
    ((file,),) = table.call("compute_partition_stats")
    assert Path(str(file).removeprefix("file:")).is_file()
    assert table.ids == [*range(9), 100]


def test_a_metadata_file_is_registered_under_another_name(spark: Spark, ns: str, table: ProcedureTable) -> None:
    files = spark.column(f"SELECT file FROM {table.name}.metadata_log_entries ORDER BY timestamp")
    ((snapshot, count, _),) = spark.sql(f"CALL ice.system.register_table('{ns}.copy', '{files[-1]}')")
    assert (snapshot, count) == (table.snapshots[-1], 9)
    assert spark.scalar(f"SELECT count(*) FROM ice.{ns}.copy") == 9
    with pytest.raises(SparkRefusal, match="already exists"):
        spark.sql(f"CALL ice.system.register_table('{ns}.copy', '{files[-1]}')")
    with pytest.raises(SparkRefusal):
        spark.sql(f"CALL ice.system.register_table('{ns}.other', 'file:/etc/passwd')")


def test_paths_are_rewritten_for_a_copy(table: ProcedureTable, tmp_path: Path) -> None:
    prefixes = f", source_prefix => 'file:{table.folder}', target_prefix => 'file:{tmp_path}'"
    staging = f", staging_location => 'file:{tmp_path}/staged'"
    newest, listed, *_ = table.call("rewrite_table_path", prefixes + staging)[0]
    assert str(newest).endswith(".metadata.json")
    assert f"file:{tmp_path}/metadata/{newest}" in Path(str(listed).removeprefix("file:")).read_text()


def test_foreign_files_are_added(spark: Spark, table: ProcedureTable, tmp_path: Path) -> None:
    spark.sql(f"INSERT OVERWRITE DIRECTORY '{tmp_path}/parquet' USING parquet SELECT id + 50 AS id FROM range(2)")
    table.call("add_files", f", source_table => '`parquet`.`{tmp_path}/parquet`'")
    assert table.ids == [*range(9), 50, 51]


def test_spark_tables_become_iceberg_tables(spark: Spark, ns: str, lakehouse: Lakehouse) -> None:
    """Both need a session catalog that knows Iceberg, with ours behind it; its folder is one of `lake.table_roots`."""
    spark.attach("spark_catalog", lakehouse.uri, "org.apache.iceberg.spark.SparkSessionCatalog")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ice.default")
    for name in ("snapped", "moved"):
        spark.sql(f"CREATE TABLE spark_catalog.default.{name} USING parquet AS SELECT id FROM range(3)")
    spark.sql(f"CALL ice.system.snapshot('spark_catalog.default.snapped', 'ice.{ns}.snapped')")
    spark.sql("CALL spark_catalog.system.migrate('spark_catalog.default.moved')")
    assert spark.scalar(f"SELECT count(*) FROM ice.{ns}.snapped") == 3
    assert spark.scalar("SELECT count(*) FROM ice.default.moved") == 3
