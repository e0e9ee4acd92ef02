"""Compaction by a real pipeline on its own Spark, while messages arrive; Spark, DuckDB and PyIceberg read the same rows
before and after it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.support.lake_run import until
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.pipeline_process import PipelineRun
from tests.support.spark import Spark

ROUNDS, ROWS = 5, 20
SETS = ("pipeline.compaction.interval_ms=100ms", "pipeline.compaction.files_min=4")


def committed_groups(run: PipelineRun) -> int:
    match = re.search(r'compaction_groups_total\{outcome="committed"\} ([0-9.]+)', run.metrics())
    return int(float(match[1])) if match else 0


@pytest.mark.timeout(300)
def test_a_table_is_compacted_while_messages_arrive_and_every_engine_reads_its_rows(
    spark: Spark, tmp_path: Path
) -> None:
    with PipelineRun(tmp_path / "data", *(part for text in SETS for part in ("--set", text))) as run:
        for _ in range(ROUNDS):
            run.produce("/default/orders", ROWS)
            run.icestream("lake", "commit-now")
        assert until(lambda: committed_groups(run), 60), run.metrics()
        run.produce("/default/orders", ROWS)
        run.icestream("lake", "commit-now")
        expected = sorted(number for _ in range(ROUNDS + 1) for number in range(ROWS))

        with contextlib.closing(RestCatalog("lake", uri=run.uri)) as catalog:
            table = catalog.load_table("default.orders")
        files = table.inspect.files().to_pylist()
        assert len(files) < ROUNDS + 1
        operations = [snapshot.summary.operation.value for snapshot in table.snapshots() if snapshot.summary]
        assert "replace" in operations
        rows = table.scan(selected_fields=("offset", "payload")).to_arrow()
        assert sorted(rows["offset"].to_pylist()) == [*range(len(expected))]
        assert sorted(int(payload) for payload in rows["payload"].to_pylist()) == expected

        spark.attach("compacted", run.uri)
        by_spark = spark.sql("SELECT CAST(CAST(payload AS STRING) AS INT) p FROM compacted.default.orders ORDER BY p")
        assert [row[0] for row in by_spark] == expected
        with duckdb_with_iceberg() as connection:
            connection.sql(f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{run.uri}', AUTHORIZATION_TYPE 'none')")
            by_duckdb = connection.execute(
                "SELECT payload::VARCHAR::INT p FROM ice.default.orders ORDER BY p"
            ).fetchall()
        assert [row[0] for row in by_duckdb] == expected
        run.produce("/default/orders", ROWS)
        run.icestream("lake", "commit-now")
        (before,) = run.icestream("lake", "health", "default.orders")
        dry = run.icestream("lake", "maintain", "default.orders", "--dry-run")
        assert before["files"] > 1
        assert sum(group["files"] for group in dry["plan"]) > 1
        merged = run.icestream("lake", "maintain", "default.orders")
        assert (merged["is_done"], merged["replaced_files"] > 1, merged["reason"]) == (True, True, "")
        (after,) = run.icestream("lake", "health", "default.orders")
        assert after["files"] < before["files"]
        jobs = [entry["job"] for entry in run.icestream("lake", "history", "default.orders")]
        assert jobs.count("compaction") >= 2
        assert "ingest" in jobs
        check_deletes(spark, run)
        run.stop()


def check_deletes(spark: Spark, run: PipelineRun) -> None:
    """Hazard 77: rows that Spark deletes by delete files are gone from the files, and every engine reads the others."""
    spark.sql("ALTER TABLE compacted.default.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql("DELETE FROM compacted.default.orders WHERE offset % 3 = 1")
    with contextlib.closing(RestCatalog("lake", uri=run.uri)) as catalog:
        table = catalog.load_table("default.orders")
        kept = sorted(table.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist())
        assert kept
        assert not [offset for offset in kept if offset % 3 == 1]
        (before,) = run.icestream("lake", "health", "default.orders")
        assert before["delete_files"] > 0
        applied = run.icestream("lake", "maintain", "default.orders")
        assert (applied["is_done"], applied["reason"]) == (True, "")
        (after,) = run.icestream("lake", "health", "default.orders")
        assert after["delete_files"] == 0
        table.refresh()
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary["total-records"] == str(len(kept))
        assert sorted(table.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist()) == kept
    spark.sql("REFRESH TABLE compacted.default.orders")
    by_spark = spark.sql("SELECT offset FROM compacted.default.orders ORDER BY offset")
    assert [row[0] for row in by_spark] == kept
    with duckdb_with_iceberg() as connection:
        connection.sql(f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{run.uri}', AUTHORIZATION_TYPE 'none')")
        by_duckdb = connection.execute('SELECT "offset" FROM ice.default.orders ORDER BY 1').fetchall()
    assert [row[0] for row in by_duckdb] == kept
    run.icestream("verify", "/default/orders", "--deep")
