"""Pointers in PostgreSQL: the two tables of Iceberg's JDBC catalog, as Java and PyIceberg read and write them.

    iceberg_tables                  catalog_name, table_namespace, table_name | metadata_location, iceberg_type, …
    iceberg_namespace_properties    catalog_name, namespace, property_key | property_value

`iceberg_type` came with the second version of the schema (V1); Java's catalog creates tables without it (V0) unless
configured otherwise. Both are used as they are: without the column there are no views, and every row is a table.

A namespace is stored as its levels joined by dots, so a level must not contain a dot. It exists if it has a property
(at least `exists`), a table, or a namespace inside: other clients create tables without checking their namespace, and
may do so while we drop it. Each change is one statement with autocommit; without a reply it may have been applied.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from icestream import errors, limits
from icestream.catalogs.pointer_catalog import TablePointer
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.table_metadata import TableMetadata

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_LOCK: Final = 0x1CE57_5EA  # advisory lock: CREATE TABLE IF NOT EXISTS fails if two clients run it at the same time
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name))
"""
_PROPERTIES: Final = """
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255) NOT NULL,
    property_value VARCHAR(1000) NOT NULL, PRIMARY KEY (catalog_name, namespace, property_key))
"""
_NAMESPACES: Final = (
    "SELECT namespace AS name FROM iceberg_namespace_properties WHERE catalog_name = %s "
    "UNION SELECT table_namespace FROM iceberg_tables WHERE catalog_name = %s"
)
# Placeholders of statements, such as `{is_table}`: for tables with the column `iceberg_type`, and without.
_TYPED: Final = {
    "is_table": "(iceberg_type = 'TABLE' OR iceberg_type IS NULL)",
    "type_column": ", iceberg_type",
    "type_value": ", 'TABLE'",
}
_UNTYPED: Final = {"is_table": "TRUE", "type_column": "", "type_value": ""}
_NAME: Final = "catalog_name = %s AND table_namespace = %s AND table_name = %s"


@dataclass(frozen=True)
class SqlOptions:
    host: str
    port: int
    database: str
    catalog: str = "icestream"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    request_seconds: float = limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT / 1000


class SqlPointers:
    """A `PointerStore` in PostgreSQL, over one connection."""

    def __init__(self, options: SqlOptions) -> None:
        self._options = options
        self._connection: AsyncConnection[Any] | None = None
        self._placeholders = _TYPED
        self._statement_lock = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    # --- namespaces ---

    async def list_namespaces(self, parent: Namespace) -> list[Namespace]:
        if parent:
            await self.load_namespace(parent)
        rows = await self._rows(f"SELECT name FROM ({_NAMESPACES}) AS names", [self._options.catalog] * 2)
        levels = {tuple(str(row[0]).split("."))[: len(parent) + 1] for row in rows}
        return sorted(
            namespace for namespace in levels if len(namespace) > len(parent) and namespace[: len(parent)] == parent
        )

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        rows = await self._rows(
            "SELECT property_key, property_value FROM iceberg_namespace_properties "
            "WHERE catalog_name = %s AND namespace = %s",
            [self._options.catalog, namespace_text(namespace)],
        )
        if not rows and not await self._has_something(namespace_text(namespace)):
            raise errors.UnknownNamespace(f"Namespace does not exist: {namespace_text(namespace)}")
        return {str(name): str(value) for name, value in rows if name != "exists"}

    async def _has_something(self, name: str) -> bool:
        rows = await self._rows(
            f"SELECT 1 FROM ({_NAMESPACES}) AS names WHERE name = %s OR starts_with(name, %s) LIMIT 1",
            [*[self._options.catalog] * 2, name, f"{name}."],
        )
        return bool(rows)

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        """Raises AlreadyExists. Of two concurrent creations one fails: both insert the property `exists`, a primary
        key."""
        stored = {"exists": "true", **properties}
        row = "(%s, %s, %s, %s)"
        values = [
            part
            for name, value in stored.items()
            for part in (self._options.catalog, namespace_text(namespace), name, value)
        ]
        columns = "catalog_name, namespace, property_key, property_value"
        query = f"INSERT INTO iceberg_namespace_properties ({columns}) VALUES {', '.join([row] * len(stored))}"
        if not await self._change(query, values, "Namespace", namespace_text(namespace)):
            raise errors.AlreadyExists(f"Namespace already exists: {namespace_text(namespace)}")

    async def drop_namespace(self, namespace: Namespace) -> None:
        """Drops a namespace without tables and namespaces. Raises UnknownNamespace, NotEmpty."""
        await self.load_namespace(namespace)
        if await self.list_namespaces(namespace):
            raise errors.NotEmpty(f"Namespace is not empty: {namespace_text(namespace)}")
        name = [self._options.catalog, namespace_text(namespace)]
        done = await self._change(
            "DELETE FROM iceberg_namespace_properties WHERE catalog_name = %s AND namespace = %s AND NOT EXISTS "
            "(SELECT 1 FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s)",
            [*name, *name],
        )
        if not done:
            raise errors.NotEmpty(f"Namespace is not empty: {namespace_text(namespace)}")

    # --- tables ---

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        await self.load_namespace(namespace)
        rows = await self._rows(
            "SELECT table_name FROM iceberg_tables WHERE catalog_name = %s AND table_namespace = %s AND {is_table} "
            "ORDER BY table_name",
            [self._options.catalog, namespace_text(namespace)],
        )
        return [Identifier(namespace, str(row[0])) for row in rows]

    async def find(self, identifier: Identifier) -> TablePointer:
        rows = await self._rows(
            f"SELECT metadata_location FROM iceberg_tables WHERE {_NAME} AND {{is_table}}", self._key(identifier)
        )
        if not rows or rows[0][0] is None:
            raise errors.UnknownTable(f"Table does not exist: {identifier}")
        return TablePointer(str(rows[0][0]))

    async def insert(self, identifier: Identifier, location: str, table: TableMetadata) -> None:
        await self._change(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location{type_column}) "
            "VALUES (%s, %s, %s, %s{type_value})",
            [*self._key(identifier), location],
            "Table",
            str(identifier),
        )

    async def swap(self, identifier: Identifier, expected: TablePointer, location: str, table: TableMetadata) -> bool:
        return await self._change(
            "UPDATE iceberg_tables SET metadata_location = %s, previous_metadata_location = %s "
            f"WHERE {_NAME} AND metadata_location = %s",
            [location, expected.location, *self._key(identifier), expected.location],
        )

    async def remove(self, identifier: Identifier) -> None:
        if not await self._change(f"DELETE FROM iceberg_tables WHERE {_NAME} AND {{is_table}}", self._key(identifier)):
            raise errors.UnknownTable(f"Table does not exist: {identifier}")

    async def rename(self, source: Identifier, target: Identifier) -> None:
        done = await self._change(
            f"UPDATE iceberg_tables SET table_namespace = %s, table_name = %s WHERE {_NAME} AND {{is_table}}",
            [namespace_text(target.namespace), target.name, *self._key(source)],
            "Table",
            str(target),
        )
        if not done:
            raise errors.UnknownTable(f"Table does not exist: {source}")

    async def close(self) -> None:
        async with self._statement_lock:
            await self._disconnect()
        for closing in list(self._closing):
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _key(self, identifier: Identifier) -> list[str]:
        return [self._options.catalog, namespace_text(identifier.namespace), identifier.name]

    # --- statements ---

    async def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        rows, _ = await self._run(query, values)
        return rows

    async def _change(self, query: str, values: Sequence[Any], noun: str = "", name: str = "") -> bool:
        """Runs a change; returns whether a row was changed. Raises AlreadyExists, with `noun` and `name`, for a row
        that exists already."""
        import psycopg

        try:
            _, count = await self._run(query, values)
        except psycopg.errors.UniqueViolation:
            raise errors.AlreadyExists(f"{noun} already exists: {name}") from None
        return count > 0

    async def _run(self, query: str, values: Sequence[Any]) -> tuple[list[Any], int]:
        """Runs one statement at a time. After a failure the next statement connects anew."""
        import psycopg

        async with self._statement_lock:
            connection = await self._connected()
            # Shielded: psycopg must not be interrupted in the middle of a reply, `_abandon` ends it properly.
            running = asyncio.create_task(_execute(connection, query.format(**self._placeholders), values))
            try:
                return await asyncio.shield(running)
            except psycopg.errors.UniqueViolation:
                raise
            except psycopg.Error as error:
                await self._disconnect()
                raise _failure(error, self._options) from None
            except asyncio.CancelledError:
                self._abandon(connection, running)
                raise

    async def _connected(self) -> AsyncConnection[Any]:
        """Returns the connection, opened if there is none. Creates the two tables of the catalog if they do not exist,
        and finds out which version of the schema they have."""
        import psycopg

        options = self._options
        if self._connection is None or self._connection.closed:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    host=options.host,
                    port=options.port,
                    dbname=options.database,
                    user=options.user,
                    password=options.password,
                    autocommit=True,
                    connect_timeout=max(2, int(options.request_seconds)),
                    application_name="icestream",
                )
                async with connection.transaction():
                    await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                    await connection.execute(_TABLES)
                    await connection.execute(_PROPERTIES)
                columns = (await connection.execute("SELECT * FROM iceberg_tables LIMIT 0")).description or ()
            except psycopg.Error as error:
                failure = _failure(error, options)
                if isinstance(failure, errors.StorageUnavailable):  # not ambiguous: no statement was sent
                    raise errors.StorageUnavailable(failure.message, hint=failure.hint) from None
                raise failure from None
            self._connection = connection
            self._placeholders = _TYPED if any(column.name == "iceberg_type" for column in columns) else _UNTYPED
        return self._connection

    def _abandon(self, connection: AsyncConnection[Any], running: asyncio.Task[Any]) -> None:
        """Closes a connection in the background after its caller was cancelled.

        The library asks the server to cancel the statement, which may take seconds; the cancelled caller must not wait.
        """

        async def end() -> None:
            running.cancel()
            with contextlib.suppress(BaseException):
                await running
            with contextlib.suppress(Exception):
                await connection.close()

        self._connection = None
        closing = asyncio.create_task(end())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close()


async def _execute(connection: AsyncConnection[Any], query: str, values: Sequence[Any]) -> tuple[list[Any], int]:
    cursor = await connection.execute(query, values, prepare=False)
    rows = await cursor.fetchall() if cursor.description is not None else []
    return rows, cursor.rowcount


def namespace_text(namespace: Namespace) -> str:
    """Returns a namespace as it is stored. Raises InvalidInput for a level with a dot."""
    if any("." in level for level in namespace):
        raise errors.InvalidInput(
            f"namespace level with a dot: {namespace}", hint="a `sql` catalog joins levels by dots"
        )
    return ".".join(namespace)


def _failure(error: Any, options: SqlOptions) -> errors.IcestreamError:
    """Returns the error of our tree for one of psycopg. An error with an SQLSTATE is a definite reply of the server,
    unless its class says that the connection, the server or the transaction failed (08, 57, 53, 40)."""
    text = (str(error).splitlines() or [type(error).__name__])[0][:300]
    place = f"postgresql://{options.host}:{options.port}/{options.database}"
    state = error.sqlstate or ""
    if state.startswith(("28", "42501")) or "authentication failed" in text or "no password supplied" in text:
        return errors.AccessDenied(
            f"{place} refuses access: {text}", hint="check `user` and `password` of storage.iceberg_config.catalog"
        )
    if state.startswith("3D") or ('database "' in text and "does not exist" in text):
        return errors.ConfigurationError(f"{place}: {text}", hint="create the database, or set another `uri`")
    if state and not state.startswith(("08", "57", "53", "40")):
        return errors.InvalidInput(f"{place}: {text}")
    return errors.StorageUnavailable(
        f"{place}: {text}", hint="is the database running, and is `uri` right?", is_ambiguous=True
    )
