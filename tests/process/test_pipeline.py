"""A broker with its pipeline, as a person starts them: what is published is a row that any engine reads."""

from __future__ import annotations

import contextlib
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from icestream import connect_sync
from icestream.pipeline.spark_setup import pinned_versions
from tests.support.lake_run import LakeRun, get, until
from tests.support.lakehouse import duckdb_with_iceberg, extension
from tests.support.pipeline_process import PipelineRun
from tests.tidy.tree import read


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineRun]:
    """Spark takes its seconds once."""
    with PipelineRun(tmp_path_factory.mktemp("pipeline") / "data", "--demo") as pipeline_run:
        yield pipeline_run


@pytest.mark.timeout(180)
def test_a_first_start_shows_its_first_snapshot(run: PipelineRun) -> None:
    """The programs that it shows print the rows, exactly as they are shown."""
    begun, snapshot_line, own, by_pyiceberg, by_duckdb, by_spark, _ = run.says("  What each of them needs")
    assert begun.startswith("Demo: 3 messages are in the log of /default/demo.")
    with contextlib.closing(RestCatalog("ice", uri=run.uri)) as catalog:
        first = catalog.load_table("default.demo").snapshots()[0].snapshot_id
    assert (
        snapshot_line
        == f"Demo: /default/demo is the Iceberg table default.demo; its first snapshot, {first}, has 3 rows."
    )
    assert run.uri.rpartition(":")[2] == own.rpartition("--set ports.lake=")[2]
    assert "lake describe default.demo" in own
    words = shlex.split(by_pyiceberg.removeprefix("  PyIceberg:"))
    assert words[:2] == ["python", "-c"]
    assert printed(words[2]) == "[b'hello', b'from', b'icestream']"
    assert (
        printed(with_duckdb(by_duckdb.removeprefix("  DuckDB:"))) == "[(0, b'hello'), (1, b'from'), (2, b'icestream')]"
    )
    assert pinned_versions.ICEBERG_SPARK.coordinates in shlex.split(by_spark.removeprefix("  Spark:"))


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def with_duckdb(statements: str) -> str:
    """A program that runs them and prints what the last one finds."""
    load = "; ".join(f"db.load_extension({str(extension(name))!r})" for name in ("avro", "httpfs", "iceberg"))
    attach, select = (statement.strip() for statement in statements.strip().rstrip(";").split("; "))
    return f"import duckdb\ndb = duckdb.connect()\n{load}\ndb.sql({attach!r})\nprint(db.sql({select!r}).fetchall())"


@pytest.mark.timeout(180)
def test_published_messages_become_rows(run: PipelineRun) -> None:
    with contextlib.closing(RestCatalog("ice", uri=run.uri)) as catalog:
        run.produce("/default/orders", 10)
        run.icestream("lake", "commit-now", "--wait", "120")
        rows = catalog.load_table("default.orders").scan().to_arrow().sort_by("offset").to_pylist()
        assert [row["payload"] for row in rows] == [b"%d" % number for number in range(10)]
        assert run.icestream("lake", "lag") == []
        state = run.icestream("pipeline", "status")
        assert (state["ok"], state["rows"] >= 10, state["stopped_topics"]) == (True, True, [])
        assert f"icestream_pipeline_rows_total {state['rows']}.0" in run.metrics()
        report = run.verified("/default/orders", "--deep")
        assert (report["is_good"], report["findings"], report["is_deep"]) == (True, [], True)
        run.produce("/default/orders", 5)
        until(lambda: len(catalog.load_table("default.orders").scan().to_arrow()) == 15)


@pytest.mark.timeout(300)
def test_files_of_tables_have_the_modes_of_the_log(run: PipelineRun) -> None:
    """Whichever process writes them: Spark's workers, the driver, the catalog."""
    run.produce("/default/modes", 10)
    run.icestream("lake", "commit-now", "--wait", "120")
    kinds, modes = set(), set()
    # The way to the warehouse can be passed, but not listed; the logs of messages and metadata are closed to others.
    closed = {run.data_dir: 0o710, run.data_dir / "wal": 0o700, run.data_dir / "raft": 0o700}
    for path in (run.data_dir, *run.data_dir.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a running broker removes some
            mode = path.stat().st_mode
            if path in closed:
                assert stat.S_IMODE(mode) == closed.pop(path), path
            elif not stat.S_ISSOCK(mode):
                kinds.add(path.suffix)
                modes.add((stat.S_ISDIR(mode), stat.S_IMODE(mode)))
    assert kinds >= {".parquet", ".avro", ".json"}
    assert modes == {(True, 0o750), (False, 0o640)}
    assert not closed, "these directories do not exist"


@pytest.mark.timeout(180)
def test_a_topic_deleted_immediately_has_its_rows_in_its_table(run: PipelineRun) -> None:
    """The table remains and is like any other table then (hazard 49)."""
    with contextlib.closing(RestCatalog("ice", uri=run.uri)) as catalog:
        run.produce("/default/short", 10)
        deletion = run.icestream("topic", "delete", "/default/short", "--yes")
        assert (deletion["table_end"], deletion["rest"]) == ("keep", "commit")
        until(lambda: catalog.table_exists("default.short"), 120)
        until(lambda: len(catalog.load_table("default.short").scan().to_arrow()) == 10, 120)
        until(lambda: "icestream.topic" not in catalog.load_table("default.short").properties, 120)


@pytest.mark.timeout(240)
def test_a_topic_is_restored_from_a_backup_beside_the_live_one(run: PipelineRun, tmp_path: Path) -> None:
    """Rows of the table and of the tail, read by DuckDB and PyIceberg; the subscription resumes, and the pipeline goes
    on behind the restored messages."""

    def offsets() -> list[int]:
        return sorted(catalog.load_table("default.again").scan().to_arrow()["offset"].to_pylist())

    def check_restored() -> None:
        report = run.verified("/default/again", "--deep")
        assert report["is_good"]
        assert {finding["weight"] for finding in report["findings"]} <= {"known"}, "the declared gap, and no more"

    target = ("--to", str(tmp_path / "backups"))
    with contextlib.closing(RestCatalog("ice", uri=run.uri)) as catalog, connect_sync(run.address) as client:
        run.produce("/default/saved", 5)
        run.icestream("lake", "commit-now", "/default/saved", "--wait", "120")
        with client.subscribe("/default/saved", "s", start="earliest") as consumer:
            for _ in range(3):
                message = consumer.receive(60)
                assert message is not None
                message.ack()
        run.produce("/default/saved", 3)
        backup = run.icestream("backup", "create", "--topics", "/default/saved", *target)
        run.produce("/default/saved", 2)
        chosen = ("--topics", "/default/saved", "--as", "/default/again")
        (restored,) = run.icestream("backup", "restore", backup["id"], *chosen, *target)["topics"]
        assert (restored["topic"], restored["table"]) == ("/default/again", "default.again")
        assert (restored["messages"], restored["subscriptions"], restored["problem"]) == (8, 1, "")
        assert offsets() == [*range(8)]
        with duckdb_with_iceberg() as duckdb:
            duckdb.sql(f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{run.uri}', AUTHORIZATION_TYPE 'none')")
            rows = 'SELECT "offset", shard, payload, append_time, broker_addr FROM ice.default'
            until(lambda: duckdb.sql('SELECT max("offset") FROM ice.default.saved').fetchone() == (9,), 120)
            assert duckdb.sql(f"{rows}.again EXCEPT {rows}.saved").fetchall() == []
            assert duckdb.sql("SELECT count(*) FROM ice.default.again").fetchall() == [(8,)]
        check_restored()
        run.produce("/default/again", 1)
        received: list[int] = []
        with client.subscribe("/default/again", "s") as consumer:
            while restored["next_offsets"]["0"] not in received:
                message = consumer.receive(60)
                assert message is not None
                received.append(message.offset)
        # Acks of the last seconds before the cut are delivered again (broker.cursor_flush_ms).
        assert received == [*range(received[0], 8), restored["next_offsets"]["0"]]
        assert received[0] <= 3
        run.icestream("lake", "commit-now", "/default/again", "--wait", "120")
        assert offsets() == [*range(8), restored["next_offsets"]["0"]]
        check_restored()
        # In place, over the live topic: it keeps its name and its table's name, and loses what came after the cut.
        command = ("backup", "restore", backup["id"], "--topics", "/default/saved", "--in-place", *target)
        refusal = run.refusal(*command)
        assert "/default/saved: 2 messages will be lost" in refusal
        assert "--yes" in refusal
        (replaced,) = run.icestream(*command, "--yes")["topics"]
        assert (replaced["topic"], replaced["table"], replaced["messages"]) == ("/default/saved", "default.saved", 8)
        run.produce("/default/saved", 1)
        run.icestream("lake", "commit-now", "/default/saved", "--wait", "120")
        rows = catalog.load_table("default.saved").scan().to_arrow()["offset"].to_pylist()
        assert sorted(rows) == [*range(8), replaced["next_offsets"]["0"]]
        assert run.verified("/default/saved", "--deep")["is_good"]


@pytest.mark.timeout(300)
def test_a_rewound_table_is_written_again_from_the_log(run: PipelineRun) -> None:
    """Rewound below what was committed, then dropped and made anew: nothing is published meanwhile (hazard 21)."""

    def offsets() -> list[int]:
        return sorted(catalog.load_table("default.back").scan().to_arrow()["offset"].to_pylist())

    with contextlib.closing(RestCatalog("ice", uri=run.uri)) as catalog:
        for _ in range(2):
            run.produce("/default/back", 5)
            run.icestream("lake", "commit-now", "/default/back", "--wait", "120")
        first = catalog.load_table("default.back").snapshots()[0].snapshot_id
        rewind = run.lake("rewind", "default.back", "--snapshot", str(first), "--yes")
        assert [shard["written_again"] for shard in rewind["shards"]] == [[5, 10]]
        until(lambda: offsets() == list(range(10)), 120)
        # An engine rolls back while ingest goes on: the next round stands on a hole, and rewind finds its bottom.
        catalog.load_table("default.back").manage_snapshots().rollback_to_snapshot(first).commit()
        run.produce("/default/back", 5)
        run.icestream("lake", "commit-now", "/default/back", "--wait", "120")
        assert offsets() == [*range(5), *range(10, 15)]
        assert run.verified("/default/back")["absent_offsets"] == 5
        rewind = run.lake("rewind", "default.back", "--yes")
        assert [shard["written_again"] for shard in rewind["shards"]] == [[5, 15]]
        until(lambda: offsets() == list(range(15)), 120)
        run.lake("drop", "default.back", "--force", "--yes")
        run.lake("recreate", "/default/back", "--yes")
        until(lambda: offsets() == list(range(15)), 120)
        report = run.verified("/default/back", "--deep")
        assert (report["is_good"], report["findings"]) == (True, [])
        assert run.icestream("pipeline", "status")["stopped_topics"] == []


@pytest.mark.timeout(180)
def test_the_readme_query_returns_the_published_messages(run: PipelineRun) -> None:
    """README.md, with the port of this broker and DuckDB's extensions from Python packages."""
    run.produce("/default/hello", 1)
    run.icestream("lake", "commit-now", "/default/hello", "--wait", "120")
    by_pyiceberg, by_duckdb = re.findall(r"```py\n(.*?)```", read("README.md"), flags=re.DOTALL)
    load = "; ".join(f"db.load_extension({str(extension(name))!r})" for name in ("avro", "httpfs", "iceberg"))
    by_duckdb = by_duckdb.replace('db.sql("INSTALL iceberg")', load)
    for program, expected in ((by_pyiceberg, "[{'offset': 0, 'payload': b'0'}]"), (by_duckdb, "[(0, b'0')]")):
        here = program.replace("http://127.0.0.1:8181", run.uri)
        done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == expected, done.stderr


@pytest.mark.timeout(180)
def test_a_clean_stop_logs_no_exceptions_of_pyspark(tmp_path: Path) -> None:
    """Spark's session has had a round, so every part of PySpark has its connections."""
    with PipelineRun(tmp_path / "data") as run:
        run.produce("/default/orders", 10)
        run.icestream("lake", "commit-now", "--wait", "120")
        log_text = run.stop()
    assert "round committed" in log_text
    assert "stopped cleanly" in log_text
    assert "Traceback" not in log_text
    assert "Exception" not in log_text


def test_a_missing_java_is_reported_once_and_the_broker_serves(tmp_path: Path) -> None:
    """The child itself says what is missing, and is not started again and again."""
    (tmp_path / "no-java").mkdir()
    sets = ("lake.managed=false", "pipeline.managed=true", f"pipeline.java_home={tmp_path / 'no-java'}")
    with LakeRun(tmp_path / "data", *(word for setting in sets for word in ("--set", setting))) as run:
        reason = until(lambda: re.search(r"\[!\] pipeline: (?!starting)(.*)", run.health()))[1]
        assert "no-java" in reason
        assert "next start in" not in reason
        status, metrics = get(run.http_port, "/metrics")
        assert (status, 'icestream_child_restarts_total{process="pipeline"} 0.0' in metrics) == (200, True)
