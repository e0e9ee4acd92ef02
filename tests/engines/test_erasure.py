"""A real broker, lake process and pipeline: an erased message is in no snapshot, in no file and before no consumer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from icestream import connect
from icestream.client.message import Gap
from tests.support.erasures import canary_places
from tests.support.lakehouse import duckdb_with_iceberg, new_name
from tests.support.pipeline_process import PipelineRun
from tests.support.spark import Spark

KEY, PAYLOAD = b"canary-key-of-alice", b"canary-payload-of-alice"
WHERE = f"key = '{KEY.decode()}'"


async def publish(run: PipelineRun, topic: str, start: int) -> None:
    async with connect(f"icestream://{run.address}") as client, client.producer(topic) as producer:
        for number in range(start, start + 20):
            is_canary = number % 7 == 0
            await producer.send(PAYLOAD if is_canary else b"payload %d" % number, key=KEY if is_canary else b"bob")


async def read_all(run: PipelineRun, topic: str, last: int) -> tuple[list[int], list[Gap]]:
    """The offsets and gaps up to the last message."""
    offsets: list[int] = []
    async with (
        connect(f"icestream://{run.address}") as client,
        client.subscribe(topic, "late", type="exclusive") as messages,
    ):
        async for message in messages:
            offsets.append(message.offset)
            if message.offset == last:
                break
        return offsets, list(messages.gaps)


def places(folder: Path) -> list[str]:
    """The files below a folder in which the key or the payload can be read; bounds have 16 bytes of a key."""
    return canary_places(folder, (KEY, PAYLOAD, KEY[:16]))


def publish_and_commit(run: PipelineRun, topic: str) -> None:
    for number in range(3):
        asyncio.run(publish(run, topic, 20 * number))
        run.icestream("lake", "commit-now", "--wait", "120")
        if not number:
            run.icestream("sub", "create", topic, "late", "--type", "exclusive", "--from", "earliest")


def test_an_erased_message_is_in_no_snapshot_and_before_no_consumer(history: PipelineRun, tmp_path: Path) -> None:
    run, name = history, new_name("erased")
    topic = f"/default/{name}"
    publish_and_commit(run, topic)
    erased = list(range(0, 60, 7))
    report_file = tmp_path / "report.json"
    command = ("lake", "erase", topic, "--where", WHERE)
    document = run.icestream(*command, "--history", "drop", "--yes", "--report", str(report_file))
    report = document["report"]
    assert (report["messages"], report["erased"], report["must_do"]) == (len(erased), len(erased), [])
    assert KEY.decode() not in json.dumps(document)
    assert run.icestream("lake", "erase", topic, "--verify", str(report_file))["is_of_this_node"]

    offsets, gaps = asyncio.run(read_all(run, topic, 59))
    assert offsets == [offset for offset in range(60) if offset % 7]
    assert [(gap.start, gap.end, gap.reason) for gap in gaps] == [(offset, offset + 1, "erased") for offset in erased]
    verified = run.verified(topic, "--deep")
    assert (verified["is_good"], verified["absent_offsets"]) == (True, len(erased))

    with duckdb_with_iceberg() as duckdb:
        duckdb.sql(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{run.uri}', AUTHORIZATION_TYPE 'none')")
        rows = duckdb.sql(f"SELECT count(*), count(*) FILTER (key = '{KEY.decode()}'::BLOB) FROM lake.default.{name}")
        assert rows.fetchall() == [(60 - len(erased), 0)]
    table = load_catalog("lake", type="rest", uri=run.uri).load_table(("default", name))
    for snapshot in table.snapshots():
        assert KEY not in table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()["key"].to_pylist()

    # Outside of the warehouse nothing is left; there the files wait for the clean-up.
    assert [place for place in places(run.data_dir) if not place.startswith("warehouse/")] == []
    state = run.icestream(*command, "--dry-run")["report"]
    assert (state["messages"], state["snapshots"]) == (0, [])


def test_engines_agree_about_history_that_was_rewritten(history: PipelineRun, spark: Spark) -> None:
    """Each snapshot, by its id and by its tag, has the rows of before without the messages."""
    run, name = history, new_name("erased")
    topic, table_name = f"/default/{name}", f"default.{name}"
    publish_and_commit(run, topic)
    table = load_catalog("lake", type="rest", uri=run.uri).load_table(("default", name))
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    table.manage_snapshots().create_tag(ids[1], "monday").commit()
    command = ("lake", "erase", topic, "--where", WHERE, "--history", "rewrite", "--yes")
    report = run.icestream(*command)["report"]
    assert set(ids) <= set(map(int, report["snapshots"]))
    expected = {
        snapshot_id: [offset for offset in range(20 * count) if offset % 7] for count, snapshot_id in enumerate(ids, 1)
    }

    table = table.refresh()
    for snapshot_id, offsets in expected.items():
        rows = table.scan(snapshot_id=snapshot_id).to_arrow()
        assert sorted(rows["offset"].to_pylist()) == offsets
        assert KEY not in rows["key"].to_pylist()
    assert sorted(table.scan().use_ref("monday").to_arrow()["offset"].to_pylist()) == expected[ids[1]]
    spark.attach("erased", run.uri)
    with duckdb_with_iceberg() as duckdb:
        duckdb.sql(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{run.uri}', AUTHORIZATION_TYPE 'none')")
        for snapshot_id, offsets in expected.items():
            past = duckdb.sql(f'SELECT "offset" FROM lake.{table_name} AT (VERSION => {snapshot_id}) ORDER BY 1')
            assert [offset for (offset,) in past.fetchall()] == offsets
            assert (
                spark.column(f"SELECT offset FROM erased.{table_name} VERSION AS OF {snapshot_id} ORDER BY 1")
                == offsets
            )
    assert spark.column(f"SELECT offset FROM erased.{table_name} VERSION AS OF 'monday' ORDER BY 1") == expected[ids[1]]
    assert run.verified(topic, "--deep")["is_good"]


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("choice", ["drop", "rewrite"])
def test_nothing_is_left_after_the_clean_up(tmp_path: Path, choice: str) -> None:
    """The shortest delay of the clean-up is a minute."""
    topic = "/default/erased"
    with PipelineRun(tmp_path / "data", "--set", "pipeline.clean_up_delay_ms=1m") as run:
        publish_and_commit(run, topic)
        assert places(tmp_path / "data")
        run.icestream("lake", "erase", topic, "--where", WHERE, "--history", choice, "--yes")
        report_file = tmp_path / "check.json"
        check = ("lake", "erase", topic, "--where", WHERE, "--check", "--report", str(report_file))
        report: dict[str, Any] = {}
        deadline = time.monotonic() + 300
        while not report.get("is_final") and time.monotonic() < deadline:
            # Clean-up takes its steps beside the rounds of ingest.
            run.produce("/default/wakes-the-pipeline", 1)
            run.icestream("lake", "commit-now", "--wait", "120")
            with contextlib.suppress(AssertionError):  # exit code 14: something is left
                run.icestream(*check)
            report = json.loads(report_file.read_bytes())["report"]
            time.sleep(2)
        assert (report["left"], report["newer"]) == ([], 0)
        assert places(tmp_path / "data") == []
