"""One process writes a log. A second one is told so; a dead one holds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.conftest import Start
from tests.support.writer_plan import WriterPlan


@pytest.mark.parametrize("native", [True, False])
def test_a_second_process_gets_log_locked_until_the_first_is_killed(tmp_path: Path, start: Start, native: bool) -> None:
    first = start(WriterPlan(str(tmp_path), work="rest", native=native))
    first.wait_for("resting")
    before = logs(tmp_path)
    second = start(WriterPlan(str(tmp_path), work="rest", start=2, native=native))
    code, text = second.wait_for("not_opened")[1:]
    assert code == "log_locked"
    assert str(tmp_path) in text
    assert second.wait() == 0
    assert before.items() <= logs(tmp_path).items(), "the second process changed the log"

    first.kill()
    third = start(WriterPlan(str(tmp_path), work="rest", start=3, native=native))
    third.wait_for("resting")
    third.stop()


def test_after_a_stop_in_order_the_lock_is_free(tmp_path: Path, start: Start) -> None:
    first = start(WriterPlan(str(tmp_path), work="rest"))
    first.wait_for("resting")
    first.stop()
    second = start(WriterPlan(str(tmp_path), work="look", start=2))
    assert second.wait_for("closed") == ["closed"]


def logs(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("log-*")}
