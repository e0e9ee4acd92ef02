"""kill -9 of the lake process in the middle of commits over several tables (hazards 10, 11, 13).

atomic      all tables of a transaction have it, or none has
once        a request that is sent again under its Idempotency-Key is carried out once, whatever became of the first
readable    every table can be loaded by the next process, and the file that it points to is there
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import fork_server
from tests.support.serve_process import ServeProcess
from tests.support.tables import SCHEMA

KILLS = 6
TABLES = ("a", "b", "c")
WAIT_SECONDS = 30.0


class KilledLake:
    """A broker, and lake processes beside it, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._broker = ServeProcess(self._data, is_fork=True)
        self._broker.greeting()
        self.start()

    def start(self) -> None:
        words = (
            "lake", "serve", "--broker", str(self._data / "broker.sock"), "--output", "json",
            "--set", f"data_dir={self._data}", "--set", "ports.lake=0",
        )  # fmt: skip
        self.process = fork_server().start("icestream.cli.main:main", words, self._folder)
        greeting = "".join(itertools.takewhile(lambda line: line != "}\n", self.process.stdout))
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", greeting)
        assert address is not None, self.process.stderr.read()
        self.port = int(address[1])
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        deadline = time.monotonic() + WAIT_SECONDS
        while self("GET", "/readyz")[0] != 200:
            assert time.monotonic() < deadline

    def __call__(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Raises OSError or HTTPException when the process is gone."""
        headers = {"Idempotency-Key": key} if key else {}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content.startswith(b"{") else None

    def kill_in(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, os.kill, (self.process.pid, signal.SIGKILL))
        timer.start()
        return timer

    def again(self) -> None:
        self._connection.close()
        assert self.process.wait() == -signal.SIGKILL
        self.process.communicate()
        self.start()

    def close(self) -> None:
        self._connection.close()
        self.process.kill()
        self.process.communicate()
        self._broker.__exit__()

    def load(self, name: str) -> dict[str, Any]:
        status, answer = self("GET", f"/v1/namespaces/ns/tables/{name}")
        assert status == 200, answer
        assert Path(answer["metadata-location"].removeprefix("file:")).is_file()
        metadata: dict[str, Any] = answer["metadata"]
        return metadata


def transaction(tables: dict[str, dict[str, Any]], number: int) -> dict[str, Any]:
    """One snapshot more on every table."""
    return {"table-changes": [change(name, metadata, number) for name, metadata in tables.items()]}


def change(name: str, metadata: dict[str, Any], number: int) -> dict[str, Any]:
    snapshot: dict[str, Any] = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": time.time_ns() // 1_000_000,
        "manifest-list": f"{metadata['location']}/metadata/{number}.avro",
        "summary": {"operation": "append"},
    }
    if number > 1:
        snapshot["parent-snapshot-id"] = number - 1
    seen = number - 1 if number > 1 else None
    return {
        "identifier": {"namespace": ["ns"], "name": name},
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": seen}],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
        ],
    }


def test_hazard_10_kill_9_during_commits_leaves_old_or_new_tables(tmp_path: Path) -> None:
    check_kills(tmp_path, KILLS)


@pytest.mark.chaos
def test_hazard_10_repeated_kill_9_during_commits_leaves_old_or_new_tables(tmp_path: Path) -> None:
    check_kills(tmp_path, 20 * KILLS)


def check_kills(folder: Path, kills: int) -> None:
    with contextlib.closing(KilledLake(folder)) as lake:
        assert lake("POST", "/v1/namespaces", {"namespace": ["ns"]})[0] == 200
        for name in TABLES:
            assert lake("POST", "/v1/namespaces/ns/tables", {"name": name, "schema": SCHEMA})[0] == 200
        tables = {name: lake.load(name) for name in TABLES}
        number, chance = 0, random.Random()
        for _ in range(kills):
            timer = lake.kill_in(chance.uniform(0.05, 0.4))
            try:
                while True:
                    changes, key = transaction(tables, number + 1), str(uuid.uuid4())
                    status, answer = lake("POST", "/v1/transactions/commit", changes, key)
                    assert status == 204, answer
                    number += 1
            except (OSError, http.client.HTTPException):
                timer.join()
            lake.again()
            snapshot_ids = {lake.load(name).get("current-snapshot-id") or 0 for name in TABLES}
            assert snapshot_ids in ({number}, {number + 1}), "all tables are committed, or none"
            status, answer = lake("POST", "/v1/transactions/commit", changes, key)
            assert status == 204, answer
            number += 1
        for name in TABLES:
            snapshots = [entry["snapshot-id"] for entry in lake.load(name)["snapshots"]]
            assert snapshots == list(range(1, number + 1))
        assert number > kills
