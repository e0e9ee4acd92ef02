"""A broker with its pipeline, as a person starts them: what is published is a row that any engine reads."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyiceberg.catalog.rest import RestCatalog

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
