"""A broker with its pipeline, as a person starts them: what is published is a row that any engine reads."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError

from icestream.pipeline.driver.effects import VARIABLE, Effect
from tests.support.lake_run import until
from tests.support.lakehouse import extension
from tests.support.pipeline_process import PipelineRun
from tests.tidy.tree import read


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineRun]:
    """Spark takes its seconds once."""
    with PipelineRun(tmp_path_factory.mktemp("pipeline") / "data") as found:
        yield found


@pytest.mark.timeout(180)
def test_what_is_published_is_a_row(run: PipelineRun) -> None:
    with closing(RestCatalog("ice", uri=run.uri)) as catalog:
        run.produce("/default/orders", 10)
        run.icestream("lake", "commit-now", "--wait", "120")
        rows = catalog.load_table("default.orders").scan().to_arrow().sort_by("offset").to_pylist()
        assert [row["payload"] for row in rows] == [b"%d" % number for number in range(10)]
        assert run.icestream("lake", "lag") == []
        state = run.icestream("pipeline", "status")
        assert (state["ok"], state["rows"] >= 10, state["stopped_topics"]) == (True, True, [])
        assert f"icestream_pipeline_rows_total {state['rows']}.0" in run.metrics()
        run.produce("/default/orders", 5)
        until(lambda: len(catalog.load_table("default.orders").scan().to_arrow()) == 15)


@pytest.mark.timeout(180)
def test_the_page_reads_what_was_published(run: PipelineRun) -> None:
    """README.md, with the port of this broker and DuckDB's extensions from Python packages."""
    run.produce("/default/hello", 1)
    run.icestream("lake", "commit-now", "/default/hello", "--wait", "120")
    by_pyiceberg, by_duckdb = re.findall(r"```py\n(.*?)```", read("README.md"), flags=re.DOTALL)
    load = "; ".join(f"db.load_extension({str(extension(name))!r})" for name in ("avro", "httpfs", "iceberg"))
    by_duckdb = by_duckdb.replace('db.sql("INSTALL iceberg")', load)
    for program, said in ((by_pyiceberg, "[{'offset': 0, 'payload': b'0'}]"), (by_duckdb, "[(0, b'0')]")):
        here = program.replace("http://127.0.0.1:8181", run.uri)
        done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == said, done.stderr


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("effect", [one for one in Effect if one not in (Effect.EVOLVE_TABLE, Effect.CLEAN_UP)])
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_driver_that_is_killed_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: Effect, side: str
) -> None:
    """Every life of it ends at its second such effect, and is followed by another one; each offset comes once."""
    monkeypatch.setenv(VARIABLE, f"{side}:{effect}:kill:2")
    with PipelineRun(tmp_path / "data") as run, closing(RestCatalog("ice", uri=run.uri)) as catalog:
        for number in range(1, 4):
            run.produce("/default/orders", 5)
            until(lambda number=number: len(offsets(catalog)) >= 5 * number, 180)  # type: ignore[misc]
            assert offsets(catalog) == list(range(5 * number))


def offsets(catalog: RestCatalog) -> list[int]:
    try:
        rows = catalog.load_table("default.orders").scan(selected_fields=("offset",)).to_arrow()
    except NoSuchTableError:
        return []
    return sorted(rows["offset"].to_pylist())
