"""Compaction of 200 files of 5,000 messages of 100 B on Spark, rows for each second of CPU over all processes, against
Spark's own `rewrite_data_files` of a table with as many files of the same rows: bin-packing, and its sort strategy by
two columns, one after the other and along a Z-order curve.

Ours orders rows within parts of 32 MiB (docs/adr/0088), Spark's all rows of a group. Ours compares the digest of each
file, writes, syncs, and reads its output back; Spark's does not. Both take two tasks, both warm. Ours is without its
commit, which takes some milliseconds; Spark's commits to a catalog in a folder.
"""

from __future__ import annotations

from functools import partial

from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench
from bench.node import Child

NAME = "compaction"
GOAL = "rows per CPU second ≥ 5x Spark's rewrite_data_files of the same rows, ≥ 3x with a sort"
ORDERS = {"offset": 5.0, "key,publish_time": 3.0, "zorder(key,publish_time)": 3.0}


def measure(bench: Bench) -> list[Row]:
    rows = []
    for order, least in ORDERS.items():
        text = f"compaction by {order} against Spark's own"
        rows += bench.attempt(NAME, text, Goal(at_least=least), partial(_measured, bench, order))
    return rows


def _measured(bench: Bench, order: str) -> list[Row]:
    files, rows, repeats = int(bench.pick(200, 40)), 5_000, bench.rounds(5)
    with bench.place("compaction") as path:
        bench.tell(f"our groups, by {order}")
        ours = Child("compactions", path, files, rows, repeats, order).said()
        inputs = sorted((path / "data").rglob("*.parquet"))
        bench.tell("Spark's rewrite_data_files")
        peer = Child("spark_rewrite", path, files, repeats, order, *inputs).said()
    count = files * rows
    mine, theirs = ([count / max(sample["cpu"], 0.01) for sample in side] for side in (ours, peer))
    memory = max(sample["memory"] for sample in ours) // 2**20
    seconds, peer_seconds = (Figure([sample["seconds"] for sample in side], " s") for side in (ours, peer))
    return [
        Row(
            NAME,
            f"{files} files of {rows:,} messages of 100 B by {order}, rows per second of CPU over all processes",
            ratios(mine, theirs),
            Goal(at_least=ORDERS[order]),
            ours=f"{Figure(mine, '/s')}; {seconds}; {memory} MiB in a task",
            peer=f"{Figure(theirs, '/s')}; {peer_seconds}",
        )
    ]
