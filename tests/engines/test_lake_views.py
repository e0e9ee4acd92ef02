"""Views of the lake as engines attach them: each names it as its warehouse, and reads every table as it was."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lake_run import request
from tests.support.lakehouse import Lakehouse, duckdb_with_iceberg, new_name
from tests.support.spark import Spark, SparkRefusal

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

OLD, NEW = [(1,), (2,)], [(1,), (2,), (3,)]


@pytest.fixture
def past(lakehouse: Lakehouse) -> tuple[str, str]:
    """The namespace of a table with rows 1 and 2 and then 3, and the name of a view of the time between."""
    import pyarrow as pa

    namespace = new_name("past")
    catalog = lakehouse.pyiceberg()
    catalog.create_namespace(namespace)
    table = catalog.create_table(f"{namespace}.t", schema=pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    moment_ms = snapshot.timestamp_ms
    while int(time.time() * 1000) <= moment_ms:  # the next commit is dated later
        pass
    table.append(pa.table({"id": [3]}))
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "before").commit()
    catalog.create_table(f"{namespace}.younger", schema=pa.schema([("id", pa.int64())]))
    return namespace, f"at:{moment_ms}"


def attach(connection: DuckDBPyConnection, lakehouse: Lakehouse, name: str, warehouse: str) -> None:
    options = f"TYPE iceberg, ENDPOINT '{lakehouse.uri}', AUTHORIZATION_TYPE 'none'"
    connection.sql(f"ATTACH '{warehouse}' AS {name} ({options})")


def test_pyiceberg_reads_a_view(lakehouse: Lakehouse, past: tuple[str, str]) -> None:
    from pyiceberg.catalog.rest import RestCatalog

    namespace, view = past
    for name in (view, "at:before"):
        with RestCatalog("ice", uri=lakehouse.uri, warehouse=name) as catalog:
            assert catalog.list_tables(namespace) == [(namespace, "t")]
            assert sorted(catalog.load_table(f"{namespace}.t").scan().to_arrow()["id"].to_pylist()) == [1, 2]
            with pytest.raises(Exception, match="does not support endpoint"):
                catalog.load_table(f"{namespace}.t").append(catalog.load_table(f"{namespace}.t").scan().to_arrow())
    assert request(lakehouse.port, "GET", "/v1/config?warehouse=at:")[0] == 404


def test_duckdb_joins_a_view_with_the_live_tables(lakehouse: Lakehouse, past: tuple[str, str]) -> None:
    namespace, view = past
    with duckdb_with_iceberg() as connection:

        def sql(statement: str) -> list[tuple[Any, ...]]:
            return connection.execute(statement).fetchall()

        attach(connection, lakehouse, "live", "")
        attach(connection, lakehouse, "old", view)
        attach(connection, lakehouse, "tagged", "at:before")
        assert sql(f"SELECT id FROM old.{namespace}.t ORDER BY id") == OLD
        assert sql(f"SELECT id FROM tagged.{namespace}.t ORDER BY id") == OLD
        assert sql(f"SELECT id FROM live.{namespace}.t ORDER BY id") == NEW
        assert sql(f"SELECT id FROM live.{namespace}.t EXCEPT SELECT id FROM old.{namespace}.t") == [(3,)]
        with pytest.raises(Exception, match=r"(?i)read-only|403|not supported|forbidden"):
            sql(f"INSERT INTO old.{namespace}.t VALUES (9)")
        assert sql(f"SELECT id FROM live.{namespace}.t ORDER BY id") == NEW
        with pytest.raises(Exception, match=r"(?i)no warehouse|404|NotFound"):
            attach(connection, lakehouse, "wrong", "bakcup:1")


def test_spark_reads_a_view(lakehouse: Lakehouse, spark: Spark, past: tuple[str, str]) -> None:
    namespace, view = past
    spark.attach("old", lakehouse.uri, warehouse=view)
    assert spark.sql(f"SELECT id FROM old.{namespace}.t ORDER BY id") == OLD
    assert spark.sql(f"SELECT id FROM ice.{namespace}.t ORDER BY id") == NEW
    assert [row[1] for row in spark.sql(f"SHOW TABLES IN old.{namespace}")] == ["t"]
    assert spark.scalar(f"SELECT count(*) FROM old.{namespace}.t.files") == 1
    with pytest.raises(SparkRefusal):
        spark.sql(f"INSERT INTO old.{namespace}.t VALUES (9)")
    assert spark.sql(f"SELECT id FROM ice.{namespace}.t ORDER BY id") == NEW
