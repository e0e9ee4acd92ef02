"""The effect of compaction on queries of DuckDB and Spark: 200 files of 5,000 messages of 100 B before and after it,
and as many rows written in one load. And the plan of 1,000 tables with 64 small files each, from the bytes of their
manifests.

And the same queries through the catalog of a broker: a topic with a file of each of 40 commits as it is, one after its
compaction, and one whose messages were committed at once.

And `icestream lake maintain --dry-run` of 1,000 topics with four files each, in a broker with its catalog and pipeline:
what the command takes, from its start to its answer; the first time manifests are read and decoded.
"""

from __future__ import annotations

import time
from functools import partial

from bench import broker, node
from bench.figures import Figure, Row
from bench.harness import Bench, RunFailed
from bench.node import Child
from icestream import limits

NAME = "tablecare"
GOAL = "queries before and after compaction and of one load, planning of 1,000 tables; no goal is set"
SETTINGS: dict[str, object] = {"pipeline.compaction.enabled": "false"}
COMMITS = 40
FILES, ROWS = 4, 10
TABLES = {"fragmented": "before", "compacted": "after", "loaded": "one load"}
QUERIES = ("DuckDB, scan", "DuckDB, offset", "Spark, scan", "Spark, offset")


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "compaction's effect on queries, and its plan", None, partial(_measured, bench)),
        *bench.attempt(NAME, "its effect on queries through the catalog", None, partial(_by_catalog, bench)),
        *bench.attempt(NAME, "its plan through the catalog", None, partial(_plans, bench)),
    ]


def _plans(bench: Bench) -> list[Row]:
    topics, repeats = int(bench.pick(1_000, 50)), bench.rounds(5)
    bench.tell(f"{topics} tables of a broker")

    def seconds_of(*tables: str) -> float:
        start = time.perf_counter()
        answer = found.icestream("lake", "maintain", *tables, "--dry-run")
        seconds = time.perf_counter() - start
        if len(answer["plan"]) < min(len(tables) or topics, limits.MAINTENANCE_PLAN_MAX):
            raise RunFailed(f"{len(answer['plan'])} groups were planned for {topics} tables")
        return seconds

    with bench.place("tablecare") as path, node.running(path, settings=SETTINGS) as found:
        for _ in range(FILES):
            broker.burst(found.target, topics * ROWS, topics=topics, handles=topics, batch=ROWS, topic="many")
            found.commit_now()
        bench.tell("plans")
        first = seconds_of()
        later = [seconds_of() for _ in range(repeats)]
        alone = [seconds_of("default.many-0") for _ in range(repeats)]
    text = f"dry run of {topics:,} tables with {FILES} files each, in a broker with its catalog"
    return [
        Row(
            NAME,
            text,
            Figure(later, " s"),
            ours=f"the first one {first:.2f} s",
            peer=f"one table {Figure(alone, ' s')}",
        )
    ]


def _by_catalog(bench: Bench) -> list[Row]:
    messages, repeats = int(bench.pick(1_000_000, 100_000)), bench.rounds(5)
    bench.tell("tables of a broker")
    with bench.place("tablecare") as path, node.running(path, settings=SETTINGS) as found:
        for _ in range(COMMITS):
            for topic in ("fragmented", "compacted"):
                broker.burst(found.target, messages // COMMITS, topic=topic)
            found.commit_now()
        broker.burst(found.target, messages, topic="loaded")
        found.commit_now()
        done = found.icestream("lake", "maintain", "default.compacted", "--only", "compact")
        if not done["is_done"] or done["replaced_files"] < COMMITS:
            raise RunFailed(f"compaction: {done}")
        health = [found.icestream("lake", "health", f"default.{table}") for table in TABLES]
        files = {table: part["files"] for table, (part,) in zip(TABLES, health, strict=True)}
        bench.tell("queries")
        samples = Child("lake_queries", path, found.catalog, repeats, *TABLES).said()
    rows = []
    for engine in ("DuckDB", "Spark"):
        for query in ("scan", "offset"):
            of_query = [sample for sample in samples if (sample["engine"], sample["query"]) == (engine, query)]
            sides = {
                name: Figure([sample["seconds"] for sample in of_query if sample["table"] == table], " s")
                for table, name in TABLES.items()
            }
            counts = ", ".join(f"{name} {files[table]}" for table, name in TABLES.items())
            text = f"through the catalog: {engine}, {query}, {messages:,} messages of 100 B; files {counts}"
            ours = f"before {sides['before']}; after {sides['after']}"
            rows.append(Row(NAME, text, sides["after"], ours=ours, peer=f"one load {sides['one load']}"))
    return rows


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
