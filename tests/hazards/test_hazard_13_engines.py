"""Hazard 13 with Spark attached, and a proxy that loses answers between it and the catalog: whatever Spark says, the
table can be read, what it reported as committed is there, and nothing is there twice."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.lakehouse import Lakehouse, new_name
from tests.support.spark import Spark, SparkRefusal

COMMIT = rb"^POST /v1/namespaces/[^/ ]+/tables/[^/ ]+ "
# The catalog carries it out and the answer is lost; or it never gets there.
FAULTS = ["cut-after", "cut-in-answer", "500-after", "503-after", "cut-before"]


@contextmanager
def running(uri: str) -> Iterator[FaultProxy]:
    """A proxy on a loop of its own: the test waits for Spark meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    under = fault_proxy(uri, COMMIT)
    proxy = asyncio.run_coroutine_threadsafe(under.__aenter__(), loop).result()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(under.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def inserted(spark: Spark, table: str, number: int) -> bool:
    """Inserts a row; True if Spark reports success."""
    try:
        spark.sql(f"INSERT INTO {table} VALUES ({number})")
    except SparkRefusal:
        return False
    return True


def test_hazard_13_spark_keeps_its_commits_when_replies_are_lost(spark: Spark, lakehouse: Lakehouse) -> None:
    namespace = new_name("lost")
    spark.sql(f"CREATE NAMESPACE ice.{namespace}")
    spark.sql(f"CREATE TABLE ice.{namespace}.t (id BIGINT)")
    with running(lakehouse.uri) as proxy:
        spark.attach(f"by_{namespace}", f"http://127.0.0.1:{proxy.port}")
        reported = []
        for number, fault in enumerate(FAULTS):
            proxy.plan(fault)
            if inserted(spark, f"by_{namespace}.{namespace}.t", number):
                reported.append(number)
            assert proxy.seen >= 1, fault
        assert inserted(spark, f"by_{namespace}.{namespace}.t", len(FAULTS)), "later inserts succeed"
    rows = sorted(spark.column(f"SELECT id FROM ice.{namespace}.t"))
    assert len(rows) == len(set(rows)), "no row is stored twice"
    assert set(reported) <= set(rows), "every reported row is stored"
    assert {FAULTS.index(fault) for fault in FAULTS if fault != "cut-before"} <= set(rows), "no file of it was removed"


@pytest.mark.parametrize("fault", ["cut-after", "500-after"])
def test_hazard_13_a_table_that_spark_creates_with_rows_survives_a_lost_answer(
    spark: Spark, lakehouse: Lakehouse, fault: str
) -> None:
    """CTAS: one commit makes the table and its rows. A client that takes it for failed would delete its files."""
    namespace = new_name("lost")
    spark.sql(f"CREATE NAMESPACE ice.{namespace}")
    with running(lakehouse.uri) as proxy:
        spark.attach(f"by_{namespace}", f"http://127.0.0.1:{proxy.port}")  # Spark keeps a catalog under its name
        proxy.plan(fault)
        with contextlib.suppress(SparkRefusal):
            spark.sql(f"CREATE TABLE by_{namespace}.{namespace}.t USING iceberg AS SELECT 1 AS id")
        assert proxy.seen >= 1
    assert spark.column(f"SELECT id FROM ice.{namespace}.t") == [1]
