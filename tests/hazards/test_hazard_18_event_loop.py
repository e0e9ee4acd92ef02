"""Hazard 18: Python beside the loop of the broker makes every ack many times slower.

So no table is planned, parsed or decoded in the broker: another process does it, and what reaches the broker of a
commit is small, however large the table is. How much slower an ack gets while tables are committed to and read is
measured, not tested: `make bench ARGS="--only catalog"`.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore
from tests.support.lake_run import LakeRun, request
from tests.support.tables import NOW_MS, SCHEMA, add, point, snapshot
from tests.support.warehouse import TABLE, CatalogWorld

SNAPSHOTS = 300
# Parts that plan, decode and serve tables; each loads a library of its own into the process that uses it.
FORBIDDEN = ("pyarrow", "pyiceberg", "pyspark", "py4j", "httptools", "obstore", "fastavro", "duckdb")


def history(location: str, count: int) -> dict[str, object]:
    """A commit with so many snapshots."""
    updates = [
        add(snapshot(number, **{"manifest-list": f"{location}/metadata/snap-{number}.avro"}))
        for number in range(1, count + 1)
    ]
    return {"requirements": [], "updates": [*updates, point("main", count)]}


def libraries_of(pid: int) -> set[str]:
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return {name for name in FORBIDDEN if f"/{name}" in maps}


def threads_of(pid: int) -> set[str]:
    return {path.name for path in Path(f"/proc/{pid}/task").iterdir()}


def test_hazard_18_a_broker_with_a_working_catalog_has_no_code_or_thread_for_it(tmp_path: Path) -> None:
    """Requests, commits, documents and manifests are the business of the lake process."""
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        before = threads_of(run.process.pid)

        def ask(method: str, path: str, body: object = None) -> str:
            status, text = request(run.lake_port, method, path, body)
            assert status in (200, 204), text
            return text

        ask("POST", "/v1/namespaces", {"namespace": ["ns"]})
        created = json.loads(ask("POST", "/v1/namespaces/ns/tables", {"name": "t", "schema": SCHEMA}))
        ask("POST", "/v1/namespaces/ns/tables/t", history(created["metadata"]["location"], SNAPSHOTS))
        loaded = json.loads(ask("GET", "/v1/namespaces/ns/tables/t"))
        assert len(loaded["metadata"]["snapshots"]) == SNAPSHOTS
        ask("GET", "/api/v1/lake/tables?namespace=ns&table=t")
        assert libraries_of(run.lake_pid), "the check can see loaded libraries"
        assert libraries_of(run.process.pid) == set()
        assert threads_of(run.process.pid) == before


def command_bytes(store: FaultyStore) -> list[int]:
    """The sizes of the commands that the store received since the last call."""
    commands, store.commands = store.commands, []
    return [len(msgspec.msgpack.encode(command)) for command in commands]


@pytest.mark.asyncio
async def test_hazard_18_the_broker_receives_as_little_for_a_large_table_as_for_a_small_one() -> None:
    """A commit sends one transaction with the pointer to the broker, never the metadata document."""
    sizes = {}
    for count in (1, 1_000):
        store = FaultyStore(SimulatedClock())
        world = CatalogWorld(store)
        await world.with_table()
        location = (await world.catalog.tables.load(TABLE)).table.location
        updates = [
            add(snapshot(n, **{"manifest-list": f"{location}/metadata/s{n}.avro", "timestamp-ms": NOW_MS + n}))
            for n in range(1, count + 1)
        ]
        await world.catalog.commits.commit(TABLE, CommitRequest([], [*updates, point("main", count)]))
        command_bytes(store)
        await world.catalog.commits.commit(
            TABLE, CommitRequest([], [{"action": "set-properties", "updates": {"a": "b"}}])
        )
        sizes[count] = command_bytes(store)
    assert len(sizes[1]) == 1
    assert sizes[1_000] == sizes[1]
    assert sizes[1][0] < 1_000
