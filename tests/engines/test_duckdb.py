"""DuckDB, attached to the catalog: it reads, makes tables, inserts, updates and deletes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lake_run import request
from tests.support.lakehouse import Lakehouse, new_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class DuckDbSession:
    def __init__(self, connection: DuckDBPyConnection) -> None:
        self._connection = connection

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement).fetchall()


@pytest.fixture
def duck(lakehouse: Lakehouse) -> Iterator[DuckDbSession]:
    with lakehouse.duckdb() as connection:
        yield DuckDbSession(connection)


@pytest.fixture
def name(lakehouse: Lakehouse) -> str:
    """Of a namespace that is there; DuckDB calls it a schema."""
    namespace = new_name()
    assert request(lakehouse.port, "POST", "/v1/namespaces", {"namespace": [namespace]})[0] == 200
    return namespace


def test_a_table_from_create_to_drop(duck: DuckDbSession) -> None:
    schema = f"ice.{new_name()}"
    duck.sql(f"CREATE SCHEMA {schema}")
    duck.sql(f"CREATE TABLE {schema}.t (id BIGINT, word VARCHAR, moment TIMESTAMPTZ)")
    duck.sql(f"INSERT INTO {schema}.t VALUES (1, 'one', NULL), (2, 'two', '2026-01-01 00:00:00+00'), (3, NULL, NULL)")
    duck.sql(f"DELETE FROM {schema}.t WHERE id = 3")
    duck.sql(f"UPDATE {schema}.t SET word = 'zwei' WHERE id = 2")
    assert duck.sql(f"SELECT id, word, epoch(moment) FROM {schema}.t ORDER BY id") == [
        (1, "one", None),
        (2, "zwei", 1767225600.0),
    ]
    with pytest.raises(Exception, match="not empty"):
        duck.sql(f"DROP SCHEMA {schema}")
    duck.sql(f"DROP TABLE {schema}.t")
    duck.sql(f"DROP SCHEMA {schema}")
    assert [row for row in duck.sql("SHOW ALL TABLES") if row[1] == schema.removeprefix("ice.")] == []


def test_a_table_is_created_from_a_query(duck: DuckDbSession, name: str) -> None:
    """DuckDB stages the table, and writes manifests into a folder that it expects to exist."""
    duck.sql(f"CREATE TABLE ice.{name}.t AS SELECT range AS id FROM range(10)")
    assert duck.sql(f"SELECT count(*), max(id) FROM ice.{name}.t") == [(10, 9)]


def test_several_statements_are_one_commit(duck: DuckDbSession, name: str) -> None:
    for table in ("a", "b"):
        duck.sql(f"CREATE TABLE ice.{name}.{table} (id BIGINT)")
    duck.sql("BEGIN")
    for table in ("a", "b"):
        duck.sql(f"INSERT INTO ice.{name}.{table} VALUES (1)")
    duck.sql("ROLLBACK")
    duck.sql("BEGIN")
    for table in ("a", "b"):
        duck.sql(f"INSERT INTO ice.{name}.{table} VALUES (2)")
    duck.sql("COMMIT")
    assert [duck.sql(f"SELECT * FROM ice.{name}.{table}") for table in ("a", "b")] == [[(2,)], [(2,)]]


def test_older_snapshots_can_be_read(duck: DuckDbSession, name: str) -> None:
    duck.sql(f"CREATE TABLE ice.{name}.t AS SELECT 1 AS id")
    duck.sql(f"INSERT INTO ice.{name}.t VALUES (2)")
    snapshots = duck.sql(f"SELECT snapshot_id FROM iceberg_snapshots('ice.{name}.t') ORDER BY sequence_number")
    assert len(snapshots) == 2
    assert duck.sql(f"SELECT id FROM ice.{name}.t AT (VERSION => {snapshots[0][0]})") == [(1,)]
