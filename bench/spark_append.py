"""Spark's own append of Parquet files to an Iceberg table, warm, and the CPU that it took over all processes.

python -m bench.spark_append FOLDER REPEATS FILE…

What a person would write: `spark.read.parquet(…).writeTo(table).append()` in `local[2]`, Spark's own settings, with
zstd as ours. One line of JSON: [{"seconds": …, "cpu": …}, …] behind a first append that warms.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.rounds import timed
from icestream.pipeline.spark_setup import pinned_versions
from icestream.pipeline.spark_setup.spark_install import install_spark
from icestream.processes.pipeline_options import setup_paths
from icestream.settings import load


def session(folder: Path) -> Any:
    machine = setup_paths(load(None, {}, ()).settings, os.environ)
    engine = install_spark(machine, pinned_versions.ICEBERG_SPARK, say=lambda _: None)
    os.environ.update(JAVA_HOME=str(engine.java_home), SPARK_HOME=str(engine.spark_home), PYSPARK_PYTHON=sys.executable)
    from pyspark.sql import SparkSession

    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": str(engine.jars[pinned_versions.ICEBERG_SPARK]),
        "spark.ui.enabled": "false",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.peer": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.peer.type": "hadoop",
        "spark.sql.catalog.peer.warehouse": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
    }
    building: Any = SparkSession.builder
    for key, value in conf.items():
        building = building.config(key, value)
    return building.getOrCreate()


def main(words: list[str]) -> None:
    if len(words) < 3:
        sys.exit(__doc__)
    folder, repeats, files = Path(words[0]), int(words[1]), words[2:]
    spark = session(folder)
    rows = spark.read.parquet(*files)
    rows.limit(0).writeTo("peer.db.rows").using("iceberg").tableProperty(
        "write.parquet.compression-codec", "zstd"
    ).create()
    found = [timed(lambda: rows.writeTo("peer.db.rows").append()) for _ in range(repeats + 1)]
    count, each = spark.table("peer.db.rows").count(), rows.count()
    spark.stop()
    if count != (repeats + 1) * each:
        raise RuntimeError(f"{count} rows after {repeats + 1} appends")
    print(json.dumps(found[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
