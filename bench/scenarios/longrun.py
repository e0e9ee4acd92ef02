"""Table care under load for a long time: 20 topics, 10,000 messages of 100 B a second, commits every second; once with
compaction, retention, expiry, clean-up and an erasure, once without. LONG_RUN_SECONDS says how long, 1,800 without it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from bench.care_run import LongRun, run
from bench.figures import Figure, Goal, Row, percentile
from bench.harness import Bench

NAME = "longrun"
GOAL = "queries flat over 30 minutes (last/first third <= 1.3), publish p99 <= 1.5x of no care, garbage <= 1.2x of live"
SECONDS = 1_800.0


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "table care under load", Goal(at_most=1.3), partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    seconds = float(os.environ.get("LONG_RUN_SECONDS") or bench.pick(SECONDS, 90))
    runs: dict[bool, LongRun] = {}
    for has_care in (True, False):
        bench.tell(f"{seconds:g} s {'with' if has_care else 'without'} care")
        with bench.place("longrun") as path:
            runs[has_care] = run(path, seconds, has_care=has_care)
    care, bare = runs[True], runs[False]
    last = care.looks[-1]
    files = [table.live for table in last.tables]
    rows = [
        Row(
            NAME,
            "query of the newest 20,000 messages by DuckDB, last third against first",
            Figure([care.window_flatness], "x"),
            Goal(at_most=1.3),
            ours=times(care.looks, "window_seconds"),
            peer=f"without care {bare.window_flatness:.2f}x; {times(bare.looks, 'window_seconds')}",
        ),
        Row(
            NAME,
            "query of all messages of a topic with a retention, last third against first",
            Figure([care.scan_flatness], "x"),
            Goal(at_most=1.3),
            ours=times(care.looks, "scan_seconds"),
            peer=f"without care {bare.scan_flatness:.2f}x; {times(bare.looks, 'scan_seconds')}",
        ),
        Row(
            NAME,
            "publish to ack, p99, against no care",
            Figure([care.ack_p99_ms / bare.ack_p99_ms], "x"),
            Goal(at_most=1.5),
            ours=f"{care.ack_p99_ms:.1f} ms; p50 {percentile([ms for _, ms in care.acks], 0.5):.1f} ms",
            peer=f"{bare.ack_p99_ms:.1f} ms; p50 {percentile([ms for _, ms in bare.acks], 0.5):.1f} ms",
        ),
        Row(
            NAME,
            "garbage after the grace against live bytes, at most",
            Figure([care.garbage_ratio], "x") if care.garbage_ratio is not None else None,
            Goal(at_most=1.2),
            ours=f"{sum(table.stored for table in last.tables)} files on disk, {sum(files)} live",
            note=f"{last.history_ratio:.2f}x of live are on disk beside it, mostly of the last ten minutes",
            missing="" if care.garbage_ratio is not None else "the run is shorter than the grace",
        ),
        Row(
            NAME,
            "messages per second",
            Figure([care.rate], "/s"),
            Goal(at_least=9_900, unit="/s"),
            ours=f"{care.commits:.2f} commits a second and table; {care.late_seconds:.1f} s late; "
            f"all committed after {care.drain_seconds:.1f} s",
            peer=f"{bare.rate:,.0f}/s, {bare.commits:.2f} commits; {bare.late_seconds:.1f} s late; "
            f"{bare.drain_seconds:.1f} s",
            note=f"{seconds:g} s",
        ),
        Row(
            NAME,
            "live files of a table at the end",
            Figure([float(count) for count in files]),
            ours="; ".join(care.files_beyond()[:3]) or "never beyond the bound",
            peer=f"without care {max(table.live for table in bare.looks[-1].tables)}",
        ),
    ]
    for has_care, result in runs.items():
        rows += [
            Row(NAME, f"rows {'with' if has_care else 'without'} care", missing=problem) for problem in result.problems
        ]
    return rows


def times(looks: Sequence[object], name: str) -> str:
    values = [1e3 * float(getattr(look, name)) for look in looks]
    return f"{percentile(values, 0.5):.0f} ms, p99 {percentile(values, 0.99):.0f} ms"
