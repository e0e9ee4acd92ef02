"""Tables elsewhere are shared with Iceberg's other clients: PyIceberg sees ours, and we see PyIceberg's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from icestream import errors
from icestream.catalogs.store_options import file_io
from icestream.catalogs.table_catalog import CommitDone, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.processes.component_options import store_options
from icestream.processes.configured_catalog import open_catalog
from icestream.settings import Settings
from tests.contract.test_table_catalog import ASKED
from tests.support import postgres as postgresql
from tests.support import seaweed as seaweedfs
from tests.support.catalog_servers import (
    CATALOG,
    glue_flags,
    new_name,
    s3_flags,
    seaweed_flags,
    settings_of,
    sql_flags,
)
from tests.support.glue_server import REGION

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyIceberg and what it brings
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def both(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Settings, Catalog]:
    """Our settings, and PyIceberg's catalog over the same server."""
    if kind == "sql":
        server, name = request.getfixturevalue("postgres_server"), new_name()
        settings = settings_of(*sql_flags(server.uri), f"data_dir={tmp_path}", f"{CATALOG}.name={name}")
        login = f"postgresql+psycopg://{postgresql.USER}:{postgresql.PASSWORD}@"
        uri = server.uri.replace("postgresql://", login)
        return settings, SqlCatalog(name, uri=uri, warehouse=f"file:{tmp_path}/theirs")
    seaweed = request.getfixturevalue("seaweed_server")
    if kind == "rest":
        settings = settings_of(*seaweed_flags(seaweed), *s3_flags(seaweed))
        properties = file_io(store_options(settings))
        return settings, RestCatalog(
            "rest",
            uri=seaweed.uri,
            warehouse=f"s3://{seaweedfs.TABLE_BUCKET}/",
            credential=f"{seaweedfs.KEY}:{seaweedfs.SECRET}",
            **properties,
        )
    uri = request.getfixturevalue("glue")
    settings = settings_of(*glue_flags(uri), *s3_flags(seaweed))
    properties = file_io(store_options(settings))
    keys = {"glue.endpoint": uri, "glue.region": REGION, "glue.access-key-id": "k", "glue.secret-access-key": "s"}
    return settings, GlueCatalog("glue", warehouse=f"s3://{seaweedfs.BUCKET}/theirs", **keys, **properties)


@pytest.fixture(params=["rest", "glue", "sql"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Settings, Catalog]]:
    settings, theirs = both(request.param, request, tmp_path)
    yield settings, theirs
    theirs.close()
    gc.collect()  # what was not closed is told here, not to a test that comes later


async def test_pyiceberg_appends_to_our_table_and_we_continue(pair: tuple[Settings, Any]) -> None:
    settings, theirs = pair
    ours = open_catalog(settings)
    namespace = (new_name(),)
    identifier = Identifier(namespace, "orders")
    await ours.create_namespace(namespace, {"team": "a"})
    await ours.create(identifier, ASKED)
    assert theirs.list_tables(namespace[0]) == [(namespace[0], "orders")]
    table = theirs.load_table((namespace[0], "orders"))
    assert table.properties["owner"] == "shop"
    rows = pa.table({"id": [1, 2], "data": ["a", "b"], "at": pa.array([None, None], pa.timestamp("us", "UTC"))})
    table.append(rows.cast(table.schema().as_arrow()))
    outcome = await ours.commit(identifier, TableChange([], [{"action": "set-properties", "updates": {"seen": "yes"}}]))
    assert isinstance(outcome, CommitDone)
    assert outcome.table is not None
    assert outcome.table.current_snapshot_id is not None
    again = theirs.load_table((namespace[0], "orders"))
    assert again.properties["seen"] == "yes"
    assert again.scan().to_arrow()["data"].to_pylist() == ["a", "b"]
    again.append(rows.cast(again.schema().as_arrow()))
    assert len((await ours.load(identifier)).metadata["snapshots"]) == 2
    await ours.close()


async def test_our_client_changes_drops_and_lists_pyiceberg_tables(pair: tuple[Settings, Any]) -> None:
    settings, theirs = pair
    ours = open_catalog(settings)
    name = new_name()
    theirs.create_namespace(name)
    theirs.create_table((name, "theirs"), pa.schema([("x", pa.int64())]))
    identifier = Identifier((name,), "theirs")
    assert (name,) in await ours.list_namespaces()
    assert await ours.list_tables((name,)) == [identifier]
    updates = [{"action": "set-properties", "updates": {"a": "1"}}]
    assert isinstance(await ours.commit(identifier, TableChange([], updates)), CommitDone)
    assert theirs.load_table((name, "theirs")).properties["a"] == "1"
    await ours.drop(identifier)
    assert theirs.list_tables(name) == []
    await ours.drop_namespace((name,))
    assert (name,) not in theirs.list_namespaces()
    await ours.close()


# As Java's catalog makes it unless `jdbc.schema-version` is V1.
FIRST_SCHEMA = """
CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
    PRIMARY KEY (catalog_name, table_namespace, table_name))
"""


async def test_a_sql_catalog_with_the_first_schema_is_supported(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The first schema has no column that tells tables from views; a catalog upgraded meanwhile still works."""
    import psycopg

    server, database = request.getfixturevalue("postgres_server"), new_name()
    login = {"host": "127.0.0.1", "port": server.port, "user": postgresql.USER, "password": postgresql.PASSWORD}
    with psycopg.connect(dbname=postgresql.DATABASE, autocommit=True, **login) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    uri = server.uri.replace(postgresql.DATABASE, database)
    settings = settings_of(*sql_flags(uri), f"data_dir={tmp_path}", f"{CATALOG}.name=old")
    with psycopg.connect(dbname=database, autocommit=True, **login) as connection:
        connection.execute(FIRST_SCHEMA)
        ours = open_catalog(settings)
        table, theirs, moved = (Identifier(("ns",), name) for name in ("ours", "theirs", "moved"))
        await ours.create_namespace(("ns",), {"team": "a"})
        created = await ours.create(table, ASKED)
        row = "INSERT INTO iceberg_tables VALUES ('old', 'ns', 'theirs', %s, NULL)"
        connection.execute(row, [created.metadata_location])
        assert await ours.list_tables(("ns",)) == [table, theirs]
        updates = [{"action": "set-properties", "updates": {"a": "1"}}]
        assert isinstance(await ours.commit(theirs, TableChange([], updates)), CommitDone)
        await ours.rename(theirs, moved)
        assert (await ours.load(moved)).metadata["properties"]["a"] == "1"
        connection.execute("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)")
        await ours.drop(moved)
        again = open_catalog(settings)
        assert await again.list_tables(("ns",)) == [table]
        await again.drop(table)
    for catalog in (ours, again):
        await catalog.close()


async def test_a_foreign_table_implies_its_namespace(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """In PostgreSQL a table may stand in a namespace that was never created."""
    import psycopg

    settings, theirs = both("sql", request, tmp_path)
    ours = open_catalog(settings)
    table = Identifier(("a", "b"), "t")
    await ours.create_namespace(("a",), {})
    await ours.create_namespace(("a", "b"), {})
    await ours.create(table, ASKED)
    server = request.getfixturevalue("postgres_server")
    login = {"user": postgresql.USER, "password": postgresql.PASSWORD, "dbname": postgresql.DATABASE}
    with psycopg.connect(host="127.0.0.1", port=server.port, autocommit=True, **login) as connection:
        name = settings.catalog.name
        connection.execute("DELETE FROM iceberg_namespace_properties WHERE catalog_name = %s", [name])
    assert await ours.list_namespaces() == [("a",)]
    assert await ours.list_namespaces(("a",)) == [("a", "b")]
    assert await ours.load_namespace(("a",)) == {}
    assert await ours.list_tables(("a", "b")) == [table]
    with pytest.raises(errors.NotEmpty):
        await ours.drop_namespace(("a", "b"))
    await ours.drop(table)
    assert await ours.list_namespaces() == []
    await ours.close()
    theirs.close()
