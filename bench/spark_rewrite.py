"""Spark's own `rewrite_data_files` of an Iceberg table of small files, warm, and its CPU over all processes.

python -m bench.spark_rewrite FOLDER FILES REPEATS ORDER FILE…

A table of FILES files is made from the rows of the given Parquet files for each repeat, and the procedure is called
with Spark's own settings in `local[2]`: bin-packing for the ORDER `offset`, else its sort strategy. One line of JSON:
[{"seconds": …, "cpu": …}, …] behind a first call that warms.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.rounds import timed
from bench.spark_append import session


def main(words: list[str]) -> None:
    if len(words) < 5:
        sys.exit(__doc__)
    folder, count, repeats, order, files = Path(words[0]), int(words[1]), int(words[2]), words[3], words[4:]
    spark = session(folder)
    rows = spark.read.parquet(*files).repartition(count).cache()
    each = rows.count()
    found = []
    for number in range(repeats + 1):
        table = f"peer.db.rewritten{number}"
        properties = rows.writeTo(table).using("iceberg").tableProperty("write.parquet.compression-codec", "zstd")
        properties.create()
        options = "map('min-input-files', '2')"
        if order != "offset":
            options += f", strategy => 'sort', sort_order => '{order}'"
        call = f"CALL peer.system.rewrite_data_files(table => 'db.rewritten{number}', options => {options})"
        found.append(timed(lambda call=call: spark.sql(call).collect()))  # type: ignore[misc]
        after = spark.sql(f"SELECT count(*) FROM {table}.files").collect()[0][0]
        if after >= count or spark.table(table).count() != each:
            raise RuntimeError(f"{after} files and {spark.table(table).count()} rows after the rewrite")
        spark.sql(f"DROP TABLE {table} PURGE")
    spark.stop()
    print(json.dumps(found[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
