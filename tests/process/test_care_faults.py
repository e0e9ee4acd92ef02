"""Table care as processes, with real Spark: each process is killed or stopped while the driver is at each effect of a
job, another engine changes the table at that moment, or another driver takes over. Afterwards no row is lost, doubled
or changed, every named file exists, the work gets done, and after the delay of the clean-up no unnamed file is left.

The cases follow from the lists of effects (pipeline/driver/effects.py) and of actions: some run always, all of them in
`make chaos`, each action at one side of an effect. The same without processes, with every answer of a catalog:
tests/unit/pipeline/test_compaction_job.py, test_retention_faults.py; the clean-up at each of its calls:
tests/hazards/test_hazard_82_condemned_files.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.pipeline.driver.effects import CARE_EFFECTS, RETENTION_EFFECTS, VARIABLE, Effect
from tests.support.care_faults import CareFaultRun, CareKind, EngineDeed
from tests.support.process_faults import FaultAction
from tests.support.spark import Spark

CASES = [(kind, effect) for kind in CareKind for effect in kind.effects]
KINDS = [pytest.param(kind, effect, id=f"{kind}-{effect}") for kind, effect in CASES]


def test_every_effect_of_table_care_has_its_faults() -> None:
    # Times are noted for ages alone, an hour apart at least: tests/unit/pipeline/test_retention_faults.py.
    assert {effect for _, effect in CASES} - {Effect.COMMIT} == CARE_EFFECTS - RETENTION_EFFECTS


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "fault"))
    return tmp_path / "fault"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [CareKind.COMPACTION])
def test_a_driver_that_is_killed_before_its_commit_loses_nothing(tmp_path: Path, fault: Path, kind: CareKind) -> None:
    with CareFaultRun(tmp_path, fault, kind) as run:
        run.strike(Effect.COMMIT_CARE, True, FaultAction.KILL_DRIVER)
        run.check()
        run.check_done()


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kind", "effect"), KINDS)
def test_faults_of_processes_at_every_effect(tmp_path: Path, fault: Path, kind: CareKind, effect: Effect) -> None:
    with CareFaultRun(tmp_path, fault, kind) as run:
        for number, action in enumerate(action for action in FaultAction if action.is_for(effect)):
            run.strike(effect, number % 2 == 0, action)
            run.check()
            run.check_done()
        run.check_no_unnamed()


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kind", "effect"), KINDS)
def test_other_engines_at_every_effect(
    tmp_path: Path, fault: Path, spark_process: Spark, kind: CareKind, effect: Effect
) -> None:
    with CareFaultRun(tmp_path, fault, kind, spark_process) as run:
        for number, deed in enumerate(deed for deed in EngineDeed if deed.is_for(kind)):
            run.strike(effect, number % 2 == 0, deed)
            run.check()
            run.check_done()
        run.check_no_unnamed()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kind", "effect"), KINDS)
def test_a_paused_driver_whose_lease_was_taken_over_does_no_harm(
    tmp_path: Path, fault: Path, kind: CareKind, effect: Effect
) -> None:
    with CareFaultRun(tmp_path, fault, kind) as run:
        for is_before in (True, False):
            run.replace_driver(effect, is_before)
            run.check_done()
