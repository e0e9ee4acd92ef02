"""Ingest of 1,000,000 messages of 100 B on Spark, rows for each second of CPU over all processes, against Spark's own
append of the same rows from Parquet to an Iceberg table.

Ours reads the log, verifies it, writes and syncs Parquet; Spark's reads the very files that ours wrote, so it has no
message to decode. Both in `local[2]`, both warm. Ours is without its commit, which takes some milliseconds.
"""

from __future__ import annotations

from functools import partial

from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench
from bench.node import Child

NAME = "append"
GOAL = "ingest rows per CPU second ≥ 3x Spark's own Parquet-to-Iceberg append of the same rows"


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "ingest against Spark's own append", Goal(at_least=3), partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    rows, repeats = int(bench.pick(1_000_000, 100_000)), bench.rounds(5)
    with bench.place("append") as path:
        bench.tell("our rounds")
        ours = Child("rounds", path, rows, repeats, "large").said()["large"]
        files = sorted((path / f"tables-large-{repeats}").rglob("*.parquet"))
        bench.tell("Spark's own append")
        peer = Child("spark_append", path, repeats, *files).said()
    mine, theirs = ([rows / max(run["cpu"], 0.01) for run in side] for side in (ours, peer))
    return [
        Row(
            NAME,
            f"{rows:,} messages of 100 B, rows per second of CPU over all processes",
            ratios(mine, theirs),
            Goal(at_least=3),
            ours=f"{Figure(mine, '/s')}; {Figure([run['seconds'] for run in ours], ' s')}",
            peer=f"{Figure(theirs, '/s')}; {Figure([run['seconds'] for run in peer], ' s')}",
        )
    ]
