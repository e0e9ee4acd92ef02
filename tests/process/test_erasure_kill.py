"""An erasure as processes, with Spark: the driver, or the broker, is killed while the driver is at an effect of it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from icestream.pipeline.driver.effects import ERASURE_EFFECTS, VARIABLE, Effect, place_of
from tests.support.lake_run import until
from tests.support.pipeline_process import PipelineRun, state_of
from tests.support.process_faults import SECONDS_MAX
from tests.support.serve_process import COMMAND

TOPIC, ROWS = "/default/orders", 9
ERASE = ("lake", "erase", TOPIC, "--where", "shard = 0 and offset in (2, 5)")


def command_of(place: str) -> tuple[str, ...]:
    """Without snapshots to remove there is no such effect: history is rewritten in the other places."""
    drops = place in {place_of(Effect.DROP_HISTORY, is_before) for is_before in (True, False)}
    return (*ERASE, "--history", "drop" if drops else "rewrite", "--yes")


def erase(run: PipelineRun, tmp_path: Path, place: str, victim: str) -> None:
    """Kills a process while the driver stands at the place; afterwards exactly the two messages are gone."""
    run.produce(TOPIC, ROWS)
    run.icestream("lake", "commit-now", "--wait", "120")
    (tmp_path / "fault").write_text(place, encoding="ascii")
    broker = ("--output", "json", "--broker", str(run.data_dir / "broker.sock"))
    command = subprocess.Popen(
        [*COMMAND, *command_of(place), *broker], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    driver = until(lambda: (pid := run.driver_pid) and state_of(pid) == "T" and pid, SECONDS_MAX)
    assert driver
    os.kill(driver if victim == "driver" else run.pid, signal.SIGKILL)
    if victim == "driver":  # the next driver gets the same request, and the same command ends well
        _, problem = command.communicate(timeout=SECONDS_MAX)
        assert command.returncode == 0, problem
        return
    _, problem = command.communicate(timeout=SECONDS_MAX)
    assert command.returncode != 0


def check(run: PipelineRun) -> None:
    report = run.verified(TOPIC, "--deep")
    assert report["is_good"], report
    assert [(finding["start"], finding["end"], finding["text"]) for finding in report["findings"]] == [
        (2, 3, "erased"),
        (5, 6, "erased"),
    ]
    counted: Any = run.icestream(*ERASE, "--dry-run")["report"]
    assert (counted["messages"], counted["snapshots"]) == (0, [])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(
            place_of(effect, is_before),
            marks=() if (effect, is_before) == (Effect.DROP_HISTORY, True) else pytest.mark.chaos,
        )
        for effect in sorted({*ERASURE_EFFECTS, Effect.COMMIT})
        for is_before in (True, False)
    ],
)
def test_an_erasure_goes_on_after_its_driver_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "fault"))
    with PipelineRun(tmp_path / "data") as run:
        erase(run, tmp_path, place, "driver")
        check(run)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("effect", sorted(ERASURE_EFFECTS))
def test_the_command_given_again_finishes_after_the_broker_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: Effect
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "fault"))
    killed, place = PipelineRun(tmp_path / "data"), place_of(effect, is_before=False)
    try:
        erase(killed, tmp_path, place, "broker")
    finally:
        killed.kill()
    with PipelineRun(tmp_path / "data") as run:
        run.icestream(*command_of(place))
        check(run)
