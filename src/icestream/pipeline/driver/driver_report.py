"""The state of the driver: for the broker (`icestream pipeline status`, readiness) and as metrics."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec

from icestream import errors, limits
from icestream.iceberg.identifier import Identifier
from icestream.model.backlog_messages import Backlog
from icestream.observability import metrics
from icestream.observability.words import are, counted
from icestream.pipeline.commit.offset_ledger import TopicCommit
from icestream.pipeline.driver.maintenance_request import MaintenanceProgress

INGEST: Final = "ingest"  # the name of the job that writes messages


@dataclass
class RoundReport:
    """The figures of one round."""

    time_ms: int
    topics: int  # that were planned
    rows: int = 0
    files: int = 0
    bytes: int = 0
    committed: int = 0  # topics
    seconds: dict[str, float] = field(default_factory=dict)  # by step

    def add(self, commit: TopicCommit) -> None:
        """Counts a commit that succeeded."""
        self.committed += 1
        self.rows += commit.rows
        self.files += len(commit.files)
        self.bytes += sum(file.size_bytes for file in commit.files)

    def as_document(self) -> dict[str, Any]:
        """The figures as they are logged and reported to the broker."""
        return {
            "time_ms": self.time_ms,
            "topics": self.topics,
            "committed_topics": self.committed,
            "rows": self.rows,
            "files": self.files,
            "bytes": self.bytes,
            "ms": {name: round(value * 1000, 1) for name, value in self.seconds.items()},
        }


class DriverReport:
    """The state of the driver, kept up to date by its parts."""

    def __init__(self, master: str, pid: int, port: int) -> None:
        """`master`: Spark's. `port`: where the pipeline serves its metrics."""
        self._fixed = {"master": master, "pid": pid, "metrics_port": port}
        self.phase = "starting"
        self.reason = ""  # why the driver makes no progress; empty if it does
        self.epoch = 0
        self.rounds = 0
        self.rows = 0
        self.vanished_files = 0  # files that were missing after their commit, which was then undone
        self.last_round: RoundReport | None = None
        self.age_limit_ms = 0
        self.halted: Mapping[int, Any] = {}
        self.failures: Callable[[], list[dict[str, Any]]] = list  # of jobs that are backed off
        self.maintenance: MaintenanceProgress | None = None  # of the last request
        self.send: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        self._first_snapshots: deque[dict[str, Any]] = deque(maxlen=limits.REPORTED_TOPICS_MAX)

    def set_phase(self, phase: str, reason: str = "") -> None:
        self.phase, self.reason = phase, reason

    async def publish(self) -> None:
        """Sends the report to the broker. Errors are ignored: the next report replaces this one."""
        if self.send is not None:
            with contextlib.suppress(errors.IcestreamError):
                await self.send(self.as_document())

    def set_backlog(self, backlog: Backlog, now_us: int) -> None:
        """Exports the backlog, that of halted topics too."""
        left_out, topics = backlog.passed_over, backlog.topics
        oldest_times_us = [topic.oldest_us for topic in topics] + [left_out.oldest_us or now_us]
        metrics.PIPELINE_BACKLOG_ROWS.set(left_out.rows + sum(topic.rows for topic in topics))
        metrics.PIPELINE_BACKLOG_BYTES.set(left_out.bytes + sum(topic.bytes for topic in topics))
        metrics.PIPELINE_LAG_SECONDS.set(max(0, now_us - min(oldest_times_us)) / 1e6)

    def set_uncommitted(self, rows: int, now_us: int) -> None:
        """Rows that are in files and not in a table yet."""
        metrics.PIPELINE_UNCOMMITTED_ROWS.set(rows)
        metrics.PIPELINE_UNCOMMITTED_SINCE.set(now_us / 1e6 if rows else 0)

    def clear_uncommitted(self, is_committed: bool, now_us: int) -> None:
        """The written rows are committed, or planned again."""
        self.set_uncommitted(0, now_us)
        if is_committed:
            metrics.PIPELINE_COMMIT_TIME.set(now_us / 1e6)

    def add_first_snapshot(self, topic: str, table: Identifier, snapshot_id: int) -> None:
        entry = {"topic": topic, "table": [*table.namespace, table.name], "snapshot_id": snapshot_id}
        self._first_snapshots.append(entry)

    def add_round(self, report: RoundReport) -> None:
        """Counts a round that is over, in the report and in the metrics."""
        self.rounds += 1
        self.rows += report.rows
        self.last_round = report
        metrics.PIPELINE_ROUNDS.inc()
        metrics.PIPELINE_ROWS.inc(report.rows)
        metrics.PIPELINE_FILES.inc(report.files)
        metrics.PIPELINE_BYTES.inc(report.bytes)
        metrics.PIPELINE_COMMIT_SECONDS.set(report.seconds.get("commit", 0.0))
        for name, value in report.seconds.items():
            metrics.PIPELINE_STEP_SECONDS.labels(name).inc(value)

    def as_document(self) -> dict[str, Any]:
        """Returns the state as the broker keeps it, for `icestream pipeline status`."""
        # Bounded, because the broker keeps the whole document as one value.
        halts = islice(self.halted.values(), limits.REPORTED_TOPICS_MAX)
        stopped = [{"topic": halt.topic, "reason": halt.stopped.reason, "hint": halt.stopped.hint} for halt in halts]
        failures = self.failures()
        stopped_ingest = next(
            (entry["error"] for entry in failures if entry["job"] == INGEST and entry["retry_seconds"]), ""
        )
        return {
            **self._fixed,
            "ok": not self.reason and not stopped and not stopped_ingest,
            "reason": self._summary(stopped, stopped_ingest),
            "phase": self.phase,
            "epoch": self.epoch,
            "rounds": self.rounds,
            "rows": self.rows,
            "vanished_files": self.vanished_files,
            "age_limit_ms": self.age_limit_ms,
            "last_round": self.last_round.as_document() if self.last_round else None,
            "stopped_topics": stopped,
            "failed_jobs": failures,
            "first_snapshots": list(self._first_snapshots),
            "maintenance": None if self.maintenance is None else msgspec.to_builtins(self.maintenance),
        }

    def _summary(self, stopped: list[dict[str, str]], stopped_ingest: str) -> str:
        if self.reason:
            return self.reason
        if stopped_ingest:
            return f"ingest failed and is tried again: {stopped_ingest}"
        if stopped:
            topics = f"{counted(len(stopped), 'topic')} {are(len(stopped))}"
            return f"{topics} not written: {stopped[0]['topic']}: {stopped[0]['reason']}"
        return f"{self.phase}, {counted(self.rounds, 'round')}, {counted(self.rows, 'row')}"
