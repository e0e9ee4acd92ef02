"""Table care as processes, with real Spark: each process is killed or stopped while the driver is at each effect of a
compaction. Afterwards no row is lost, doubled or changed, every named file exists, and the work gets done.

The cases follow from the list of effects (pipeline/driver/effects.py): some run always, all of them in `make chaos`.
The same without processes, with every answer of a catalog: tests/unit/pipeline/test_compaction_job.py,
test_retention_faults.py; the clean-up at each of its calls: tests/hazards/test_hazard_82_condemned_files.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.pipeline.driver.effects import CARE_EFFECTS, ERASURE_EFFECTS, RETENTION_EFFECTS, VARIABLE, Effect
from tests.support.process_faults import FaultAction, FaultRun

BEFORE, AFTER = True, False
EFFECTS = sorted(CARE_EFFECTS - RETENTION_EFFECTS - ERASURE_EFFECTS)
ALWAYS = ((Effect.COMMIT_CARE, BEFORE, FaultAction.KILL_DRIVER),)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultRun]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "fault"))
    with FaultRun(tmp_path, tmp_path / "fault") as fault_run:
        yield fault_run


@pytest.mark.timeout(600)
def test_the_most_harmful_faults_of_a_compaction_lose_nothing(run: FaultRun) -> None:
    for fault in ALWAYS:
        run.strike(*fault)
        run.check()
        run.check_compacted()


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("effect", EFFECTS)
def test_faults_at_every_effect_of_a_compaction(run: FaultRun, effect: Effect) -> None:
    for deed in (action for action in FaultAction if action.is_for(effect)):
        for is_before in (True, False):
            run.strike(effect, is_before, deed)
            run.check()
            run.check_compacted()
