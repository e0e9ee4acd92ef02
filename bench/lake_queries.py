"""Queries of DuckDB and Spark through the catalog of a running node, as JSON. `scenarios/tablecare.py` starts it.

python -m bench.lake_queries FOLDER URI REPEATS TABLE…

Each query runs once unmeasured on each table. Then the tables are asked in turns: [{"engine": …, "query": …,
"table": …, "seconds": …}, …]. Spark keeps the metadata of a table for 30 seconds, DuckDB loads it for each query.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb

from bench.spark_append import session

QUERIES = {
    "scan": "SELECT count(*), sum(octet_length(payload)) FROM {table}",
    "offset": 'SELECT payload FROM {table} WHERE "offset" = 777',
}


def extension(name: str) -> Path:
    """Of DuckDB, from a Python package: nothing is fetched."""
    package = find_spec(f"duckdb_extension_{name}")
    if package is None or package.origin is None:
        raise RuntimeError(f"duckdb_extension_{name} is not installed")
    return Path(package.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"


def main(words: list[str]) -> None:
    if len(words) < 4:
        sys.exit(__doc__)
    folder, uri, repeats, tables = Path(words[0]), words[1], int(words[2]), words[3:]
    spark = session(folder)
    spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.lake.type", "rest")
    spark.conf.set("spark.sql.catalog.lake.uri", uri)
    samples: list[dict[str, Any]] = []
    with duckdb.connect() as connection:
        for name in ("avro", "httpfs", "iceberg"):
            connection.load_extension(str(extension(name)))
        connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')")
        engines: dict[str, Callable[[str], object]] = {
            "DuckDB": lambda text: connection.execute(text).fetchall(),
            "Spark": lambda text: spark.sql(text.replace('"', "`")).collect(),
        }
        for number in range(repeats + 1):
            for engine, run in engines.items():
                for query, text in QUERIES.items():
                    for table in tables:
                        start = time.perf_counter()
                        run(text.format(table=f"lake.default.{table}"))
                        seconds = time.perf_counter() - start
                        if number:
                            samples.append({"engine": engine, "query": query, "table": table, "seconds": seconds})
    spark.stop()
    print(json.dumps(samples))


if __name__ == "__main__":
    main(sys.argv[1:])
