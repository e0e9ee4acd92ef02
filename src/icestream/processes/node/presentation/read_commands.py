"""Commands to read a table of this broker's catalog: our own, PyIceberg, DuckDB, Spark. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from icestream.pipeline.spark_setup import pinned_versions
from icestream.processes.node.presentation.program_path import program_path
from icestream.settings.derive import LAKE_PORT_DEFAULT


def read_commands(table: Sequence[str], url: str) -> Iterator[str]:
    """`table` is the identifier by levels, `url` that of the embedded catalog; empty for another catalog."""
    if not url:
        yield "Read it with any engine that is configured for the catalog of these settings (docs/engines.md)."
        return
    yield _own(".".join(table), url.rpartition(":")[2])
    yield f"PyIceberg:  python -c {shlex.quote(_pyiceberg('.'.join(table), url))}"
    yield f"DuckDB:     {_duckdb(table, url)}"
    yield f"Spark:      {shlex.join(_spark(table, url))}"
    yield "What each of them needs once: docs/engines.md."


def _own(table: str, port: str) -> str:
    option = "" if port == str(LAKE_PORT_DEFAULT) else f" --set ports.lake={port}"
    return f"{shlex.quote(program_path())} lake describe {table}{option}"


def _pyiceberg(table: str, url: str) -> str:
    expression = f'RestCatalog("ice", uri="{url}").load_table("{table}")'
    return (
        f'from pyiceberg.catalog.rest import RestCatalog; print({expression}.scan().to_arrow()["payload"].to_pylist())'
    )


def _duckdb(table: Sequence[str], url: str) -> str:
    name = ".".join(f'"{level}"' for level in table)
    attach = f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')"
    return f'{attach}; SELECT "offset", payload FROM ice.{name};'


def _spark(table: Sequence[str], url: str) -> list[str]:
    name = ".".join(f"`{level}`" for level in table)
    catalog = "spark.sql.catalog.ice"
    words = ["spark-sql", "--packages", pinned_versions.ICEBERG_SPARK.coordinates]
    for setting in (f"{catalog}=org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type=rest", f"{catalog}.uri={url}"):
        words += ["--conf", setting]
    return [*words, "-e", f"SELECT `offset`, CAST(payload AS STRING) FROM ice.{name}"]
