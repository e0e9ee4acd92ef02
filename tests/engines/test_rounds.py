"""Rounds of the pipeline on a real Spark: one stage or two, errors as data, and sessions that die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from icestream import errors
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.task_messages import TaskErrorKind
from icestream.pipeline.round_judgement import judge_round
from tests.support.pipeline_round import LogInFolder, all_rows
from tests.support.round_process import round_process
from tests.support.spark import Spark


@pytest.fixture
def log(tmp_path: Path) -> LogInFolder:
    (tmp_path / "wal").mkdir()
    log = LogInFolder(tmp_path / "wal")
    for number in range(30):
        if number % 10 == 0:
            log.new_file()
        block = encode_block(3, {envelope.PAYLOAD: [b"%d-%d" % (number, row) for row in range(3)]})
        log.append((number % 3 + 1, 0, block))
    log.save()
    return log


@pytest.fixture
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.limits.ROUND_TASK_BYTES_MIN", 1000)


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("tasks", [1, 2])
def test_one_job_writes_every_row_into_its_table(spark: Spark, log: LogInFolder, tmp_path: Path, tasks: int) -> None:
    plan = log.plan(tmp_path / "tables", tasks)
    assert (plan.bundles, plan.writers) == ((1, 0) if tasks == 1 else (2, 2))
    written = spark.round(plan)
    for judged in judge_round(plan, written):
        assert judged.is_complete
        assert len(judged.files) == 1
        assert all_rows(judged.files) == log.expected(judged.topic.topic_id)


def test_task_errors_are_returned_as_data(spark: Spark, log: LogInFolder, tmp_path: Path) -> None:
    plan = log.plan(tmp_path / "tables")
    log.path(log.files[2]).unlink()
    for judged in judge_round(plan, spark.round(plan)):
        assert judged.errors[0].trouble is TaskErrorKind.STALE
        assert judged.claims[0].end in (18, 21)  # of 30: the first two files
        assert all_rows(judged.files) == log.expected(judged.topic.topic_id)[: judged.claims[0].end]


def test_a_dead_session_is_reported_and_replaced(log: LogInFolder, tmp_path: Path) -> None:
    """Java is killed between two rounds; the classes of the session that ended well are kept for the next."""
    with round_process(tmp_path, "local[1]") as rounds:
        plan = log.plan(tmp_path / "tables")
        assert all(judged.is_complete for judged in judge_round(plan, rounds.write(plan)))
        os.kill(rounds.java(), signal.SIGKILL)
        with pytest.raises(errors.EngineFailed, match="did not finish its job"):
            rounds.write(plan)
        written = rounds.write(plan)
        assert all(judged.is_complete for judged in judge_round(plan, written))
        rounds.close()
        assert [path.suffix for path in (tmp_path / "cache" / "classes").iterdir()] == [".jsa"]
