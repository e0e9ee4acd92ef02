"""A stop in order, then a start: nothing to recover, nothing declared, nothing moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.conftest import Start
from tests.support.process_run import MODES, ProcessRun


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_after_a_clean_stop_there_is_nothing_to_recover(tmp_path: Path, start: Start, mode: str, native: bool) -> None:
    run = ProcessRun(tmp_path, 4, start)
    for _ in range(2):
        child = run.start(mode, native=native)
        run.open(child)
        run.wait_for_acks(child, 60)
        run.stop(child)
    before = {key: shard.next for key, shard in run.history.shards.items()}
    run.plan.work = "look"
    child = run.start(mode, native=native)
    report = child.wait_for("opened", run.hear)[1]
    child.wait_for("closed", run.hear)
    assert report["clean"]
    assert report["rewritten"] == ""
    assert {key: shard.next for key, shard in run.history.shards.items()} == before
    assert sum(before.values()) > 60
    run.history.check_no_gaps()
    run.history.check_order()
