"""Faults of table care among real processes: what makes a job do something, what other engines do to its table at that
moment, and what has to hold afterwards (process_faults.py has the processes and their faults).

    kept     every message is a row with its payload, but for those that the retention, the erasure or a rollback took
    files    every file that any snapshot names is there; when the delay of the clean-up is over no other file is
    done     the job gets done: compaction and the move to other partitions find nothing more, the retention keeps what
             it has to, a check of the erasure finds nothing
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any

from icestream import limits
from icestream.pipeline.driver.effects import ERASURE_EFFECTS, Effect
from icestream.readers.verify.verify_report import VerifyReport
from tests.support.lake_run import request, until
from tests.support.process_faults import DEEDS, ROWS, SECONDS_MAX, TOPIC, FaultAction, FaultRun
from tests.support.serve_process import COMMAND
from tests.support.spark import Spark
from tests.support.table_check import missing_offsets

NAMES = itertools.count(1)
# So many messages of the topic stay.
KEPT = 20
PARTITIONINGS = itertools.cycle(("bucket[2]", "day", "none"))


class CareKind(StrEnum):
    COMPACTION = "compaction"
    RETENTION = "retention"
    REPARTITION = "repartition"
    ERASURE = "erasure"

    @property
    def effects(self) -> list[Effect]:
        """The effects of its job, in no order."""
        match self:
            case CareKind.COMPACTION | CareKind.REPARTITION:
                return [Effect.REWRITE, Effect.COMMIT_CARE]
            case CareKind.RETENTION:
                return [Effect.COMMIT_CARE]
            case CareKind.ERASURE:
                return sorted({*ERASURE_EFFECTS, Effect.COMMIT})


class EngineDeed(StrEnum):
    """What another engine, Spark with Iceberg's procedures, does to the table while the driver stands still."""

    COMPACTION = "another engine compacts"
    ROLLBACK = "another engine rolls back"
    EXPIRY = "another engine expires all older snapshots"
    DROP = "another engine drops the table, which is refused"

    def is_for(self, kind: CareKind) -> bool:
        """A rollback in the middle of an erasure brings back rows that only our own readers leave out."""
        return not (self is EngineDeed.ROLLBACK and kind is CareKind.ERASURE)


class CareFaultRun(FaultRun):
    """Faults of one kind of care."""

    SETTINGS = ("--set", f"pipeline.clean_up_delay_ms={limits.CLEAN_UP_DELAY_MS_MIN}ms")

    def __init__(self, folder: Path, fault: Path, kind: CareKind, spark: Spark | None = None) -> None:
        """`spark`: the session of the other engine, for `engine`."""
        self.kind = kind
        self._spark = spark
        self._catalog = ""
        self._taken: set[int] = set()  # by a rollback
        self._erased: set[int] = set()
        self._where = ""  # of the last erasure
        self._history = "drop"
        self._commands = ExitStack()
        super().__init__(folder, fault)
        if kind is CareKind.RETENTION:
            self._run.icestream("topic", "create", TOPIC, "--policy", f"retention_messages={KEPT}")

    def __exit__(self, *error: object) -> None:
        with self._commands:
            super().__exit__(*error)

    # --- what makes the job do something ---

    def _cause(self, effect: Effect) -> None:
        for _ in range(3):  # a file each
            self.publish()
            self.check()
        match self.kind:
            case CareKind.COMPACTION:
                self._start("lake", "maintain", TOPIC)
            case CareKind.REPARTITION:
                self._run.icestream("topic", "policy", TOPIC, f"partitioning={next(PARTITIONINGS)}")
                self.publish()
                self.check()
                self._start("lake", "maintain", TOPIC, "--repartition")
            case CareKind.RETENTION:
                while len(self.published[TOPIC]) < KEPT + 4 * ROWS:
                    self.publish()
                    self.check()
                self._start("lake", "maintain", TOPIC, "--only", "retention")
            case CareKind.ERASURE:
                offsets = sorted(set(self.published[TOPIC]) - self._erased - self._taken)[-8:-5]
                self._erased.update(offsets)
                where = f"offset in ({', '.join(map(str, offsets))})"
                self._where = where
                self._history = "rewrite" if effect is Effect.REWRITE_HISTORY else "drop"
                self._start("lake", "erase", TOPIC, "--where", where, "--history", self._history, "--yes")

    def _start(self, *words: str) -> None:
        """A command in the background: it may fail with the process that it asks."""
        broker = ("--output", "json", "--broker", str(self._folder / "data" / "broker.sock"))
        process = subprocess.Popen(
            [*COMMAND, *words, *broker],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

        self._commands.callback(end)

    # --- faults ---

    def strike(self, effect: Effect, is_before: bool, deed: FaultAction | EngineDeed) -> None:
        driver = self.still_at(effect, is_before)
        if isinstance(deed, EngineDeed):
            self._engine(deed)
            os.kill(driver, signal.SIGCONT)
        else:
            DEEDS[deed](self, driver)
        self.publish()

    def replace_driver(self, effect: Effect, is_before: bool) -> None:
        """A driver stands still until its lease has ended and another one has taken over; then it goes on."""
        old = self.still_at(effect, is_before)
        with self.second_driver():
            self.publish()
            self.check()
            os.kill(old, signal.SIGCONT)
            self.publish()
            self.check()
        self.publish()
        self.check()

    def _engine(self, deed: EngineDeed) -> None:
        assert self._spark is not None
        spark, table = self._spark, "default.orders"
        if not self._catalog:
            self._catalog = f"faults{next(NAMES)}"
            spark.attach(self._catalog, f"http://127.0.0.1:{self._port}")
        call = f"CALL {self._catalog}.system"
        match deed:
            case EngineDeed.COMPACTION:
                spark.sql(f"{call}.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
            case EngineDeed.EXPIRY:
                far = "TIMESTAMP '2100-01-01 00:00:00'"
                spark.sql(f"{call}.expire_snapshots(table => '{table}', older_than => {far}, retain_last => 1)")
            case EngineDeed.ROLLBACK:
                metadata = self._table(TOPIC)["metadata"]
                snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
                parent = snapshots[metadata["current-snapshot-id"]].get("parent-snapshot-id")
                if parent in snapshots:
                    before = self._offsets(spark)
                    spark.sql(f"{call}.rollback_to_snapshot(table => '{table}', snapshot_id => {parent})")
                    self._taken |= before - self._offsets(spark)
            case EngineDeed.DROP:
                status, _ = request(self._port, "DELETE", "/v1/namespaces/default/tables/orders")
                assert status == 403, "the table of a topic was dropped"

    def _offsets(self, spark: Spark) -> set[int]:
        return set(spark.column(f"SELECT `offset` FROM {self._catalog}.default.orders"))

    # --- what has to hold ---

    def gone(self, topic: str, report: VerifyReport) -> dict[int, set[int]]:
        """The offsets that are missing, all of them for a reason: only these may be."""
        missing = missing_offsets(report.findings).get(0, set())
        excused = self._taken | self._erased
        if self.kind is CareKind.RETENTION:
            excused |= set(range(max(0, len(self.published[topic]) - KEPT)))
        assert missing <= excused, sorted(missing - excused)
        return {0: missing}

    def check_done(self) -> None:
        match self.kind:
            case CareKind.COMPACTION:
                self.check_compacted()
            case CareKind.REPARTITION:
                self._until_maintained("--repartition")
            case CareKind.RETENTION:
                self._until_maintained("--only", "retention")
                until(lambda: len(self._missing()) >= len(self.published[TOPIC]) - KEPT - 4 * ROWS, SECONDS_MAX, 0.5)
            case CareKind.ERASURE:
                erase = ("lake", "erase", TOPIC, "--where", self._where, "--history", self._history, "--yes")
                until(lambda: self._run.command(*erase).returncode == 0, SECONDS_MAX, 0.5)
                assert self._erased <= self._missing()
        self.check()

    def _missing(self) -> set[int]:
        return missing_offsets(self._verified(TOPIC).findings).get(0, set())

    def _until_maintained(self, *words: str) -> None:
        until(lambda: self._run.command("lake", "maintain", TOPIC, "--wait", "60", *words).returncode == 0, SECONDS_MAX)

    def check_no_unnamed(self) -> None:
        """Has the clean-up look, and kills the driver once while it removes: in the end the folder has no file that no
        snapshot names."""
        deadline = time.monotonic() + 6 * limits.CLEAN_UP_DELAY_MS_MIN / 1000
        kill_at = time.monotonic() + 1.05 * limits.CLEAN_UP_DELAY_MS_MIN / 1000
        is_killed = False
        while unnamed := self._unnamed():
            assert time.monotonic() < deadline, unnamed
            if not is_killed and time.monotonic() > kill_at:
                is_killed = True
                driver = self.still_at(Effect.CLEAN_UP, False, self.publish)
                self.kill_driver(driver)
            self.publish()
            self.check()
            self._run.command("lake", "maintain", TOPIC, "--only", "clean-up", "--wait", "30")
            time.sleep(3)
        self.check()

    def _unnamed(self) -> list[Any]:
        """Groups of files that no table names, as the plan of the clean-up shows them."""
        words = ("lake", "maintain", TOPIC, "--only", "clean-up", "--dry-run")
        plan = until(lambda: done if (done := self._run.command(*words)).returncode == 0 else None, SECONDS_MAX)
        assert plan is not None
        groups: list[Any] = json.loads(plan.stdout)["plan"]
        return [group for group in groups if group["files"]]
