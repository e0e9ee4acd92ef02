"""The pipeline as processes, with Spark: whoever takes part in a round is killed or stopped while the driver is at each
of its effects. What is published is a row once, `verify` finds nothing wrong, every file of every manifest is there.

The cases follow from the list of effects (pipeline/driver/effects.py): some run always, all of them in `make chaos`.
More kinds of faults, without processes, are in tests/unit/pipeline/test_faults.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.pipeline.driver.effects import VARIABLE, Effect
from tests.support.lake_run import until
from tests.support.process_faults import DEEDS, SECONDS_MAX, Deed, FaultRun

BEFORE, AFTER = True, False
# Each deed once, where it hurts most.
ALWAYS = (
    (Effect.COMMIT, BEFORE, Deed.KILL_LAKE),
    (Effect.COMMIT, BEFORE, Deed.STOP_LAKE_LONG),
    (Effect.WRITE, BEFORE, Deed.KILL_BUSY_WORKERS),
    (Effect.HOLD_FILES, AFTER, Deed.STOP_BROKER),
    (Effect.COMMIT, AFTER, Deed.KILL_DRIVER),
    (Effect.ADVANCE, BEFORE, Deed.KILL_BROKER),
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultRun]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "fault"))
    with FaultRun(tmp_path, tmp_path / "fault") as found:
        yield found


def test_every_deed_can_be_done() -> None:
    assert {*DEEDS} == {*Deed}
    assert all(any(deed.is_for(effect) for effect in Effect) for deed in Deed)


@pytest.mark.timeout(600)
def test_faults_where_they_hurt_most(run: FaultRun) -> None:
    for fault in ALWAYS:
        run.strike(*fault)
        run.check()


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("effect", Effect)
def test_faults_at_every_effect(run: FaultRun, effect: Effect) -> None:
    for deed in (one for one in Deed if one.is_for(effect)):
        for is_before in (True, False):
            run.strike(effect, is_before, deed)
            run.check()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("effect", Effect)
def test_a_driver_that_stands_still_while_another_takes_over(run: FaultRun, effect: Effect) -> None:
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
        assert until(lambda old=old: run.driver_pid == old, SECONDS_MAX), "it went on"  # type: ignore[misc]
