"""A broker with its lake process and its pipeline, any of which can be ended or stopped while the driver stands at one
of its effects; and the check of the tables behind it (table_check.py).

The driver stops itself there (pipeline/driver/effects.py), so that all other processes are where a round leaves them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Self

import icestream
from icestream.pipeline.driver.effects import Effect, place_of
from icestream.readers.verify.verify_report import Finding, VerifyReport, Weight
from tests.support.free_ports import free_ports
from tests.support.lake_run import children_of, get, is_running, until
from tests.support.pipeline_process import PipelineRun, state_of
from tests.support.table_check import check_table

TOPIC, ROWS = "/default/orders", 5
# A driver begins anew, with a Java of its own, on a machine that has other things to do.
SECONDS_MAX = 180.0
# Shorter than any patience, and longer than that of the driver with its catalog, which is set to the third.
STILL_SECONDS, LONG_SECONDS, REQUEST_MS = 0.5, 4.0, 3_000
_SPARK = (Effect.WRITE, Effect.REWRITE)
LAYOUTS = itertools.cycle(("day", "none", "month", "bucket[4]"))


class FaultAction(StrEnum):
    """The fault and its target while the driver stands still; then the driver goes on, if it can."""

    KILL_DRIVER = "the driver is killed"
    KILL_BROKER = "the broker is killed"
    KILL_LAKE = "the lake process is killed"
    KILL_WORKERS = "Spark's Python workers are killed"
    KILL_BUSY_WORKERS = "Spark's Python workers are killed when they have a task"
    STOP_BROKER = "the broker stands still"
    STOP_LAKE = "the lake process stands still"
    STOP_LAKE_LONG = "the lake process stands still for longer than any call waits for it"
    STOP_WORKERS = "Spark's Python workers stand still"

    def is_for(self, effect: Effect) -> bool:
        """Workers have nothing to do with anything else, nor has the catalog's patience."""
        match self:
            case FaultAction.KILL_WORKERS | FaultAction.KILL_BUSY_WORKERS | FaultAction.STOP_WORKERS:
                return effect in _SPARK
            case FaultAction.STOP_LAKE_LONG:
                return effect in (Effect.COMMIT, Effect.EVOLVE_TABLE, Effect.COMMIT_CARE)
        return True


class FaultRun:
    SETTINGS: tuple[str, ...] = ()

    def __init__(self, folder: Path, fault: Path) -> None:
        """`fault`: the file that the driver looks into, by its environment."""
        self._folder = folder
        self._fault = fault
        (self._port,) = free_ports(1)
        self.published: dict[str, dict[int, bytes]] = {}
        self._numbers = itertools.count()
        self._run = self._started()

    def _started(self) -> PipelineRun:
        return PipelineRun(
            self._folder / "data",
            "--set", f"ports.lake={self._port}",
            "--set", f"storage.iceberg_config.catalog.request_timeout_ms={REQUEST_MS}",
            *self.SETTINGS,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._run.__exit__(*error)

    @property
    def driver_pid(self) -> int:
        return self._run.driver_pid

    def second_driver(self) -> AbstractContextManager[None]:
        return self._run.second_driver()

    # --- messages ---

    def publish(self, topic: str = TOPIC) -> None:
        payloads = [b"message %d" % next(self._numbers) for _ in range(ROWS)]
        with icestream.connect_sync(self._run.address) as client, client.producer(topic) as producer:
            placed = producer.send_all(payloads)
        self.published.setdefault(topic, {}).update(
            zip((message_id.offset for message_id in placed), payloads, strict=True)
        )

    def _cause(self, effect: Effect) -> None:
        """Messages that come to it. What is not named here happens in every round."""
        topic = TOPIC
        match effect:
            case Effect.MAKE_TABLE:
                topic = f"{TOPIC}{len(self.published)}"
            case Effect.LEARN:  # the first messages of a topic for MQTT
                topic = f"{TOPIC}{len(self.published)}"
                self._run.icestream("topic", "create", topic, "--policy", "mqtt_columns=on")
            case Effect.EVOLVE_TABLE:
                self._run.icestream("topic", "policy", TOPIC, f"partitioning={next(LAYOUTS)}")
            case Effect.REWRITE | Effect.COMMIT_CARE:
                for _ in range(3):  # a file each
                    self.publish()
                    self.check()
                # It ends before the fault, or waits no longer: the request stays.
                self._run.command("lake", "maintain", TOPIC, "--wait", "1")
                return
        self.publish(topic)

    # --- faults ---

    def strike(self, effect: Effect, is_before: bool, deed: FaultAction) -> None:
        DEEDS[deed](self, self.still_at(effect, is_before))
        self.publish()

    def still_at(self, effect: Effect, is_before: bool, cause: Callable[[], None] | None = None) -> int:
        """The driver, which stands still there. `cause`: what brings it there; by default what `_cause` knows."""
        if not self.published or (effect in _SPARK and not self._workers()):
            self.publish()
            self.check()
        new_file = self._fault.with_suffix(".new")
        new_file.write_text(place_of(effect, is_before))
        new_file.rename(self._fault)
        (cause or partial(self._cause, effect))()
        return until(self._standing, SECONDS_MAX)

    def _standing(self) -> int:
        """The driver, when it stands still."""
        pid = self._run.driver_pid
        return pid if pid and state_of(pid) == "T" else 0

    def kill_driver(self, driver: int) -> None:
        os.kill(driver, signal.SIGKILL)
        until(lambda: not is_running(driver))

    def kill_lake(self, driver: int) -> None:
        os.kill(self._run.lake_pid, signal.SIGKILL)
        os.kill(driver, signal.SIGCONT)

    def stop_lake(self, driver: int, seconds: float = STILL_SECONDS) -> None:
        with _still([self._run.lake_pid]):
            os.kill(driver, signal.SIGCONT)
            time.sleep(seconds)

    def stop_lake_long(self, driver: int) -> None:
        self.stop_lake(driver, LONG_SECONDS)

    def kill_broker(self, driver: int) -> None:
        children = children_of(self._run.pid)
        assert driver in children
        self._run.kill()
        until(lambda: not any(map(is_running, children)))
        self._run = self._started()

    def stop_broker(self, driver: int) -> None:
        with _still([self._run.pid]):
            os.kill(driver, signal.SIGCONT)
            time.sleep(STILL_SECONDS)

    def kill_workers(self, driver: int) -> None:
        for worker in self._workers():
            os.kill(worker, signal.SIGKILL)
        os.kill(driver, signal.SIGCONT)

    def kill_busy_workers(self, driver: int) -> None:
        """Kills the workers while they are stopped, so that they cannot finish their tasks."""
        workers = self._workers()
        with _still(workers):
            os.kill(driver, signal.SIGCONT)
            time.sleep(STILL_SECONDS)
            for worker in workers:
                os.kill(worker, signal.SIGKILL)

    def stop_workers(self, driver: int) -> None:
        with _still(self._workers()):
            os.kill(driver, signal.SIGCONT)
            time.sleep(STILL_SECONDS)

    def _workers(self) -> list[int]:
        """Children of the daemon, which is a child of Java, which is one of the driver."""
        pids = [self._run.driver_pid] if self._run.driver_pid else []
        for _ in range(3):
            pids = [child for pid in pids if is_running(pid) for child in children_of(pid)]
        return pids

    # --- what is there ---

    def check(self) -> None:
        """Waits until all that was published is committed, and checks it."""
        for topic, messages in self.published.items():
            until(partial(self._is_committed, topic), SECONDS_MAX, 0.1)
            table, report = until(partial(self._table_and_report, topic), SECONDS_MAX)
            check_table(table["metadata-location"], {0: messages}, report, self.gone(topic, report))

    def _table_and_report(self, topic: str) -> tuple[dict[str, Any], VerifyReport] | None:
        """The report of a table that has not changed meanwhile; None if it has."""
        table, report = self._table(topic), self._verified(topic)
        is_same = table and self._table(topic).get("metadata-location") == table["metadata-location"]
        return (table, report) if is_same else None

    def gone(self, topic: str, report: VerifyReport) -> dict[int, set[int]]:
        """The offsets of a topic that are no rows any more, by shard."""
        return {}

    def check_compacted(self) -> None:
        """Whatever became of a compaction: another one finishes it, and the rows are the same."""
        until(lambda: self._run.command("lake", "maintain", TOPIC, "--wait", "60").returncode == 0, SECONDS_MAX)
        planned = until(lambda: self._run.command("lake", "maintain", TOPIC, "--dry-run"), SECONDS_MAX)
        assert json.loads(planned.stdout)["plan"] == []
        self.check()

    def _is_committed(self, topic: str) -> bool:
        """True if the table has committed all messages of a topic with one shard."""
        committed = self._table(topic).get("metadata", {}).get("properties", {}).get("icestream.committed", "{}")
        return bool(json.loads(committed).get("0", 0) >= len(self.published[topic]))

    def _table(self, topic: str) -> dict[str, Any]:
        """The document of the topic's table; empty while there is none, or while the catalog does not answer."""
        namespace, name = topic.strip("/").split("/")
        status, body = get(self._port, f"/v1/namespaces/{namespace}/tables/{name}")
        return json.loads(body) if status == 200 else {}

    def _verified(self, topic: str) -> VerifyReport:
        status, body = until(lambda: _answer(self._port, f"/api/v1/lake/verify?topic={topic}&deep=true"))
        document = json.loads(body)
        assert status == 200, document
        findings = [Finding(**{**finding, "weight": Weight(finding["weight"])}) for finding in document["findings"]]
        return VerifyReport(
            document["topic"], document["table"], document["snapshot_id"], True, document["files"], findings
        )


DEEDS: dict[FaultAction, Callable[[FaultRun, int], None]] = {
    FaultAction.KILL_DRIVER: FaultRun.kill_driver,
    FaultAction.KILL_BROKER: FaultRun.kill_broker,
    FaultAction.KILL_LAKE: FaultRun.kill_lake,
    FaultAction.KILL_WORKERS: FaultRun.kill_workers,
    FaultAction.KILL_BUSY_WORKERS: FaultRun.kill_busy_workers,
    FaultAction.STOP_BROKER: FaultRun.stop_broker,
    FaultAction.STOP_LAKE: FaultRun.stop_lake,
    FaultAction.STOP_LAKE_LONG: FaultRun.stop_lake_long,
    FaultAction.STOP_WORKERS: FaultRun.stop_workers,
}


@contextlib.contextmanager
def _still(pids: list[int]) -> Iterator[None]:
    """Stops the processes while the context is open. A process that was killed meanwhile does not come back."""
    assert pids, "no process to stop"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _answer(port: int, path: str) -> tuple[int, str] | None:
    """The answer of the server; None while it is busy or away."""
    status, body = get(port, path)
    return (status, body) if status not in (0, 503) else None
