"""Spark at a broker with accounts: files in S3 with keys of their tables, and with signed requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.seaweed import Seaweed
from tests.support.spark import Spark, SparkRefusal, s3_bundle
from tests.support.stored_tables import DELEGATION, PASSWORD, StoredTables, stored_tables


@pytest.fixture(scope="module")
def tables(seaweed_server: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredTables]:
    if s3_bundle() is None:
        pytest.skip("Iceberg's bundle for S3 is not here: icestream pipeline setup --s3")
    with stored_tables(seaweed_server, tmp_path_factory.mktemp("secured")) as tables:
        yield tables


def attach(spark: Spark, name: str, tables: StoredTables, user: str, mechanism: str) -> None:
    uri = tables.secured.uri
    login = {
        "credential": f"{user}:{PASSWORD}",
        "oauth2-server-uri": f"{uri}/v1/oauth/tokens",
        "rest.auth.type": "oauth2",
    }
    spark.attach(name, uri, **login, **{f"header.{DELEGATION}": mechanism})


@pytest.mark.parametrize("mechanism", ["vended-credentials", "remote-signing"])
def test_spark_reads_and_writes_files_of_its_tables_only(spark: Spark, tables: StoredTables, mechanism: str) -> None:
    kind = mechanism.partition("-")[0]
    attach(spark, f"{kind}_w", tables, "writer", mechanism)
    table = f"{kind}_w.raw.{kind}"
    spark.sql(f"CREATE TABLE {table} AS SELECT id, id % 2 AS part FROM range(4)")
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    assert sorted(spark.column(f"SELECT id FROM {table}")) == [0, 1, 2]
    attach(spark, f"{kind}_r", tables, "reader", mechanism)
    assert spark.scalar(f"SELECT sum(id) FROM {kind}_r.raw.clicks") == 6
    with pytest.raises(SparkRefusal, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM {kind}_r.raw.clicks2")
    with pytest.raises(SparkRefusal):
        spark.sql(f"INSERT INTO {kind}_r.raw.clicks VALUES (4)")
    assert spark.scalar(f"SELECT count(*) FROM {kind}_w.raw.clicks") == 3
