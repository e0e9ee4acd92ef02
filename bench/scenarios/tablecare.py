"""The effect of compaction on queries of DuckDB and Spark: 200 files of 5,000 messages of 100 B before and after it,
and as many rows written in one load. And the plan of 1,000 tables with 64 small files each, from the bytes of their
manifests."""

from __future__ import annotations

from functools import partial

from bench.figures import Figure, Row
from bench.harness import Bench
from bench.node import Child

NAME = "tablecare"
GOAL = "queries before and after compaction and of one load, planning of 1,000 tables; no goal is set"
QUERIES = ("DuckDB, scan", "DuckDB, offset", "Spark, scan", "Spark, offset")


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "compaction's effect on queries, and its plan", None, partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    files, tables, repeats = int(bench.pick(200, 40)), int(bench.pick(1_000, 100)), bench.rounds(5)
    with bench.place("tablecare") as path:
        report = Child("table_care", path, files, 5_000, tables, repeats).said()
    rows = [
        Row(NAME, f"plan of {tables:,} tables with 64 small files each", Figure(report["plan"], " s")),
    ]
    for query in QUERIES:
        sides = {side: Figure(report["queries"][f"{query}, {side}"], " s") for side in ("before", "after", "one load")}
        counts = report["files"]
        rows.append(
            Row(
                NAME,
                f"{query}; files before {counts['before']}, after {counts['after']}, one load {counts['one load']}",
                sides["after"],
                ours=f"before {sides['before']}; after {sides['after']}",
                peer=f"one load {sides['one load']}",
            )
        )
    return rows
