"""Backups of a broker with its pipeline, by the commands; engines read the tables of a backup where it lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from tests.support.command_line import icestream
from tests.support.history_topic import COUNT, FAR, HistoryTopic, Place
from tests.support.lakehouse import duckdb_with_iceberg, new_name
from tests.support.pipeline_process import PipelineRun
from tests.support.spark import Spark, SparkRefusal

pytestmark = pytest.mark.timeout(300)


def view_of(root: dict[str, Any], target: Path) -> str:
    """The metadata file of the only table of a backup."""
    (topic,) = root["topics"]
    return f"file:{target}/{topic['table']['view']}"


def offsets_by_duckdb(view: str) -> list[tuple[int, int]]:
    with duckdb_with_iceberg() as duckdb:
        return duckdb.sql(f"SELECT shard, \"offset\" FROM iceberg_scan('{view}') ORDER BY 1, 2").fetchall()


def offsets_by_pyiceberg(view: str) -> list[tuple[int, int]]:
    rows = StaticTable.from_metadata(view).scan(selected_fields=("shard", "offset")).to_arrow().to_pylist()
    return sorted((row["shard"], row["offset"]) for row in rows)


def offsets_in_catalog(run: PipelineRun, topic: HistoryTopic, spark: Spark, warehouse: str) -> list[list[Place]]:
    """What PyIceberg, DuckDB and Spark read of the topic's table where they attach the view as any catalog."""
    from pyiceberg.catalog.rest import RestCatalog

    with RestCatalog("backup", uri=run.uri, warehouse=warehouse) as catalog:
        assert catalog.list_namespaces() == [("default",)]
        assert catalog.list_tables("default") == [("default", topic.name)], "the backup has one topic"
        table = catalog.load_table(("default", topic.name))
        rows = table.scan(selected_fields=("shard", "offset")).to_arrow().to_pylist()
        by_pyiceberg = sorted((row["shard"], row["offset"]) for row in rows)
    query = f'SELECT shard, "offset" FROM old.default.{topic.name} ORDER BY 1, 2'
    with duckdb_with_iceberg() as duckdb:
        duckdb.sql(f"ATTACH '{warehouse}' AS old (TYPE iceberg, ENDPOINT '{run.uri}', AUTHORIZATION_TYPE 'none')")
        by_duckdb = duckdb.sql(query.replace("old.default.", 'old."default".')).fetchall()
        with pytest.raises(Exception, match=r"(?i)read-only|403|not supported|forbidden"):
            duckdb.sql(f'DELETE FROM old."default".{topic.name}')
    name = new_name("backup")
    spark.attach(name, run.uri, warehouse=warehouse)
    by_spark = spark.sql(query.replace("old.", f"{name}.").replace('"', "`"))
    with pytest.raises(SparkRefusal):
        spark.sql(f"DROP TABLE {name}.default.{topic.name}")
    return [by_pyiceberg, by_duckdb, by_spark]


def test_engines_read_backups_with_deleted_rows_as_the_table_was(history: PipelineRun, spark: Spark) -> None:
    topic = HistoryTopic(history, spark)
    topic.publish(range(COUNT))
    topic.leave_log()
    topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    topic.sql("DELETE FROM {t} WHERE offset % 7 = 3")
    target = history.backups
    create = ["backup", "create", "--to", str(target), "--topics", f"/default/{topic.name}"]
    copy, reference = history.icestream(*create), history.icestream(*create, "--reference")
    assert [(root["state"], root["kind"]) for root in (copy, reference)] == [
        ("complete", "copy"),
        ("complete", "reference"),
    ]
    before = offsets_by_pyiceberg(view_of(copy, target))
    assert before
    assert not [offset for _, offset in before if offset % 7 == 3]
    # What happens to the table afterwards is no matter of the backups: a rewrite, an expiry of everything.
    topic.sort("payload DESC")
    topic.call("expire_snapshots", f"older_than => {FAR}, retain_last => 1")
    for root in (copy, reference):
        # A reference backup names files of the warehouse: the settings say which that is.
        settings = ("--set", f"data_dir={history.data_dir}")
        checked = icestream(
            "backup", "verify", root["id"], "--to", str(target), *settings, "--deep", "--output", "json"
        )  # fmt: skip
        assert (checked.code, checked.document) == (0, [])
        view = view_of(root, target)
        assert offsets_by_duckdb(view) == before
        assert offsets_by_pyiceberg(view) == before
        assert offsets_in_catalog(history, topic, spark, f"backup:{root['id']}") == [before] * 3
    shown = json.loads(icestream("backup", "list", "--to", str(target), "--output", "json").out)
    assert [entry["id"] for entry in shown] == [copy["id"], reference["id"]]
    for root in (copy, reference):
        history.icestream("backup", "delete", root["id"], "--to", str(target), "--yes")
        assert icestream("backup", "show", root["id"], "--to", str(target)).code == 4
    with pytest.raises(Exception, match=r"NoSuchWarehouse|no warehouse"):
        offsets_in_catalog(history, topic, spark, f"backup:{copy['id']}")
    topic.expire()
