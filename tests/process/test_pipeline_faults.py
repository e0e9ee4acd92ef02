"""The pipeline as processes, with Spark: each process of a round is killed or stopped while the driver is at each
of its effects. What is published is a row once, `verify` finds nothing wrong, every file of every manifest is there.

The cases follow from the list of effects (pipeline/driver/effects.py): some run always, all of them in `make chaos`.
More kinds of faults, without processes, are in tests/unit/pipeline/test_effect_faults.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.pipeline.driver.effects import CARE_EFFECTS, VARIABLE, Effect
from tests.support.lake_run import until
from tests.support.process_faults import DEEDS, SECONDS_MAX, FaultAction, FaultRun

BEFORE, AFTER = True, False
EFFECTS = [effect for effect in Effect if effect not in CARE_EFFECTS]
# Each deed once, where it hurts most.
ALWAYS = (
    (Effect.COMMIT, BEFORE, FaultAction.KILL_LAKE),
    (Effect.COMMIT, BEFORE, FaultAction.STOP_LAKE_LONG),
    (Effect.WRITE, BEFORE, FaultAction.KILL_BUSY_WORKERS),
    (Effect.HOLD_FILES, AFTER, FaultAction.STOP_BROKER),
    (Effect.COMMIT, AFTER, FaultAction.KILL_DRIVER),
    (Effect.ADVANCE, BEFORE, FaultAction.KILL_BROKER),
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultRun]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "fault"))
    with FaultRun(tmp_path, tmp_path / "fault") as fault_run:
        yield fault_run


def test_every_deed_can_be_done() -> None:
    assert {*DEEDS} == {*FaultAction}
    assert all(any(deed.is_for(effect) for effect in Effect) for deed in FaultAction)


@pytest.mark.timeout(600)
def test_the_most_harmful_faults_lose_nothing(run: FaultRun) -> None:
    for fault in ALWAYS:
        run.strike(*fault)
        run.check()


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("effect", EFFECTS)
def test_faults_at_every_effect(run: FaultRun, effect: Effect) -> None:
    for deed in (action for action in FaultAction if action.is_for(effect)):
        for is_before in (True, False):
            run.strike(effect, is_before, deed)
            run.check()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_stopped_driver_is_replaced_after_its_lease(run: FaultRun, effect: Effect) -> None:
    """The second one is started by hand and waits until the lease of the first has ended."""
    for is_before in (True, False):
        old = run.still_at(effect, is_before)
        with run.second_driver():
            run.publish()
            run.check()
            os.kill(old, signal.SIGCONT)
            run.publish()
            run.check()
        run.publish()
        run.check()
        assert until(lambda old=old: run.driver_pid == old, SECONDS_MAX), "the same driver went on"  # type: ignore[misc]
