"""Table care under load for a long time, with a real broker, pipeline and Spark: 20 topics, 10,000 messages a second,
commits every second, compaction, retention, expiry, clean-up and an erasure. Afterwards every acked message is a row
once, but for those that were removed on purpose; no table ever had more files than `bench.care_run.files_max` says, and
garbage is bounded. How fast it is `make bench ARGS="--only longrun"` says.

LONG_RUN_SECONDS (1,800 without it) and LONG_RUN_RATE set duration and messages per second.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.care_run import CENSUS_SECONDS, ERASED, GRACE_SECONDS, Census, files_max, run
from icestream import limits

GARBAGE_MAX = 1.2


@pytest.mark.chaos
@pytest.mark.timeout(5_400)
def test_a_long_run_keeps_every_row_and_bounds_files_and_garbage(tmp_path: Path) -> None:
    seconds = float(os.environ.get("LONG_RUN_SECONDS", "1800"))
    result = run(tmp_path, seconds, rate=int(os.environ.get("LONG_RUN_RATE", "10000")))
    assert result.problems == []
    assert result.rows
    assert result.messages > ERASED[-1]
    assert result.files_beyond() == []
    assert result.garbage_ratio is not None or seconds < GRACE_SECONDS + 2 * CENSUS_SECONDS, "nothing was counted"
    assert (result.garbage_ratio or 0.0) <= GARBAGE_MAX


def test_a_census_counts_what_is_still_there_after_the_grace() -> None:
    census = Census()
    census.observe(60, {"a": 100, "b": 50}, {"a": 100, "b": 50})
    census.observe(120, {"b": 50, "c": 200}, {"a": 100, "b": 50, "c": 200, "stray": 30})
    assert census.ratios == []
    census.observe(GRACE_SECONDS + 60, {"c": 200}, {"a": 100, "b": 50, "c": 200, "stray": 30})
    assert census.ratios == [(GRACE_SECONDS + 60, 0.0)]
    census.observe(GRACE_SECONDS + 61, {"c": 200}, {"a": 100, "b": 50, "c": 200, "stray": 30})
    assert census.ratios[-1][1] == 0.5
    census.observe(GRACE_SECONDS + 180, {"c": 200}, {"a": 100, "c": 200, "stray": 30})
    assert census.ratios[-1][1] == 0.65


def test_a_table_without_compaction_soon_has_more_files_than_it_may() -> None:
    assert files_max(live_bytes=2 * limits.MIB, commits_per_second=1) < 240
    assert files_max(live_bytes=64 * limits.MIB, commits_per_second=1) < 260
