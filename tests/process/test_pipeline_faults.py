"""The pipeline as processes, with Spark: killed and stopped at each of its effects. What is published is a row once.

One case runs always, all of them in `make chaos`. More kinds of faults, without processes, are in
tests/unit/pipeline/test_faults.py.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError

from icestream.pipeline.driver.effects import VARIABLE, Effect
from tests.support.lake_run import until
from tests.support.pipeline_process import PipelineRun

TOPIC, ROWS = "/default/orders", 5
# Nobody cleans up yet, and tables of these topics are made as they stay.
NOT_DONE = {Effect.EVOLVE_TABLE, Effect.CLEAN_UP}
ALL = [(side, effect) for effect in Effect if effect not in NOT_DONE for side in ("before", "after")]
ALWAYS = ("after", Effect.COMMIT)
CASES = [pytest.param(*one, marks=[] if one == ALWAYS else [pytest.mark.chaos]) for one in ALL]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("side", "effect"), CASES)
def test_a_driver_that_is_killed_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, effect: Effect
) -> None:
    """Each life of it ends at its second such effect, and is followed by another one."""
    monkeypatch.setenv(VARIABLE, f"{side}:{effect}:kill:2")
    pids = set()
    with PipelineRun(tmp_path / "data") as run, closing(RestCatalog("ice", uri=run.uri)) as catalog:
        for times in range(1, 4):
            topic = f"{TOPIC}{times}" if effect is Effect.MAKE_TABLE else TOPIC
            run.produce(topic, ROWS)
            expected = ROWS if effect is Effect.MAKE_TABLE else ROWS * times
            until(lambda topic=topic, expected=expected: len(rows(catalog, topic)) >= expected, 180)  # type: ignore[misc]
            assert rows(catalog, topic) == [(at, b"%d" % (at % ROWS)) for at in range(expected)]
            pids.add(run.icestream("pipeline", "status")["pid"])
    assert len(pids) > 1, "nobody was killed"


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("side", "effect"), ALL)
def test_a_driver_that_stands_still_while_another_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, effect: Effect
) -> None:
    """The second one is started by hand and waits until the lease of the first has ended."""
    monkeypatch.setenv(VARIABLE, f"{side}:{effect}:stop")
    with PipelineRun(tmp_path / "data") as run, closing(RestCatalog("ice", uri=run.uri)) as catalog:
        monkeypatch.delenv(VARIABLE)
        run.produce(TOPIC, ROWS)
        (old,) = until(run.stopped_drivers, 180)
        with run.second_driver():
            run.produce(TOPIC, ROWS)
            until(lambda: len(rows(catalog, TOPIC)) >= 2 * ROWS, 180)
            os.kill(old, signal.SIGCONT)
            run.produce(TOPIC, ROWS)
            until(lambda: len(rows(catalog, TOPIC)) >= 3 * ROWS, 180)
        run.produce(TOPIC, ROWS)
        until(lambda: len(rows(catalog, TOPIC)) >= 4 * ROWS, 180)
        assert rows(catalog, TOPIC) == [(at, b"%d" % (at % ROWS)) for at in range(4 * ROWS)]


def rows(catalog: RestCatalog, topic: str) -> list[tuple[int, bytes]]:
    try:
        table = catalog.load_table(topic.strip("/").replace("/", "."))
    except NoSuchTableError:
        return []
    found = table.scan(selected_fields=("offset", "payload")).to_arrow()
    return sorted(zip(found["offset"].to_pylist(), found["payload"].to_pylist(), strict=True))
