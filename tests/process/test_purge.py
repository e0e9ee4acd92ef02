"""kill -9 of the lake process while it purges a table: the next one goes on, and only the table's own files go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import PurgeRecord
from icestream.metadata.remote_store import RemoteStore
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.process.test_catalog_kill import KilledLake
from tests.support.avro_files import manifest, manifest_list
from tests.support.local_broker import kept_link
from tests.support.tables import SCHEMA, add, point, snapshot

FILES = 900
WAIT_SECONDS = 30.0


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not look():
        assert time.monotonic() < deadline, "timed out waiting for the condition"
        time.sleep(0.002)


def filled(lake: KilledLake, name: str, count: int, *others: Path) -> Path:
    """A table with so many files of its own, and some of others; its place."""
    assert lake("POST", "/v1/namespaces/ns/tables", {"name": name, "schema": SCHEMA})[0] == 200
    metadata = lake.load(name)
    place = Path(metadata["location"].removeprefix("file:"))
    (place / "data").mkdir()
    files = [place / "data" / f"{number}.parquet" for number in range(count)]
    for file in files:
        file.write_bytes(b"rows")
    (place / "metadata" / "m.avro").write_bytes(manifest(*(f"file:{file}" for file in (*files, *others))))
    (place / "metadata" / "s.avro").write_bytes(manifest_list(f"file:{place}/metadata/m.avro"))
    added: dict[str, Any] = snapshot(1, **{"manifest-list": f"file:{place}/metadata/s.avro"})
    added["timestamp-ms"] = metadata["last-updated-ms"]
    body = {"requirements": [], "updates": [add(added), point("main", 1)]}
    assert lake("POST", f"/v1/namespaces/ns/tables/{name}", body)[0] == 200
    return place


async def let_an_hour_pass(socket: Path) -> None:
    """Purges that are written down become due."""
    async with kept_link(socket) as keeper:
        store = RemoteStore(keeper, SystemClock(), SystemRandomness())
        for key, entry in await store.list_all(catalog_keys.PURGES):
            record = catalog_records.decode(PurgeRecord, key, entry)
            await store.put(key, catalog_records.encode(msgspec.structs.replace(record, time_ms=0)))


def test_hazard_23_a_purge_survives_kill_9_and_removes_only_its_own_files(tmp_path: Path) -> None:
    with contextlib.closing(KilledLake(tmp_path)) as lake:
        assert lake("POST", "/v1/namespaces", {"namespace": ["ns"]})[0] == 200
        doomed = filled(lake, "doomed", FILES)
        shared = doomed / "data" / f"{FILES - 1}.parquet"
        kept_folder = filled(lake, "kept", 3, shared)

        # a link that leads out of the warehouse: nothing is placed behind it
        outside, link = tmp_path / "outside", kept_folder.parent / "link"
        outside.mkdir()
        link.symlink_to(outside)
        status, refused = lake(
            "POST", "/v1/namespaces/ns/tables", {"name": "x", "schema": SCHEMA, "location": str(link)}
        )
        assert (status, "leads out of the warehouse" in refused["error"]["message"]) == (400, True)
        assert [*outside.iterdir()] == []

        assert lake("DELETE", "/v1/namespaces/ns/tables/doomed?purgeRequested=true")[0] == 204
        asyncio.run(let_an_hour_pass(tmp_path / "data" / "broker.sock"))
        until(lambda: not (doomed / "data" / "0.parquet").exists())
        os.kill(lake.process.pid, signal.SIGKILL)
        lake.again()
        until(lambda: lake("GET", "/api/v1/lake/purges")[1]["items"] == [])
        assert [path for path in doomed.rglob("*") if path.is_file()] == [shared]
        assert sum(path.is_file() for path in kept_folder.rglob("*")) == 3 + 4, (
            "data, manifest, list, two metadata files"
        )
        assert lake.load("kept")["current-snapshot-id"] == 1
