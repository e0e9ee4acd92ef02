"""What the driver says of itself: to the broker (`icestream pipeline status`, health) and as metrics."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from icestream import errors, limits
from icestream.iceberg.identifier import Identifier
from icestream.model.backlog_messages import Backlog
from icestream.observability import metrics
from icestream.observability.words import are, counted
from icestream.pipeline.commit.offset_ledger import TopicCommit


@dataclass
class RoundReport:
    """One round that did something."""

    time_ms: int
    topics: int
    rows: int = 0
    files: int = 0
    bytes: int = 0
    committed: int = 0  # topics
    seconds: dict[str, float] = field(default_factory=dict)  # by step

    def add(self, one: TopicCommit) -> None:
        """It is committed."""
        self.committed += 1
        self.rows += one.rows
        self.files += len(one.files)
        self.bytes += sum(file.size_bytes for file in one.files)

    def as_document(self) -> dict[str, Any]:
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
    def __init__(self, master: str, pid: int, port: int) -> None:
        self._fixed = {"master": master, "pid": pid, "metrics_port": port}
        self.phase = "starting"
        self.reason = ""  # why it does not get on; empty: it does
        self.epoch = 0
        self.rounds = 0
        self.rows = 0
        self.vanished_files = 0  # that were gone behind their commit, which was then taken back
        self.last: RoundReport | None = None
        self.age_limit_ms = 0
        self.halted: Mapping[int, Any] = {}
        self.on_told: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        self._first_snapshots: deque[dict[str, Any]] = deque(maxlen=limits.REPORTED_TOPICS_MAX)

    def say(self, phase: str, reason: str = "") -> None:
        self.phase, self.reason = phase, reason

    async def tell(self) -> None:
        """To the broker. One that is away hears it later."""
        if self.on_told is not None:
            with contextlib.suppress(errors.IcestreamError):
                await self.on_told(self.as_document())

    def waiting(self, backlog: Backlog, now_us: int) -> None:
        """Also of topics that stand still."""
        standing, topics = backlog.passed_over, backlog.topics
        ages_us = [topic.oldest_us for topic in topics] + [standing.oldest_us or now_us]
        metrics.PIPELINE_BACKLOG_ROWS.set(standing.rows + sum(topic.rows for topic in topics))
        metrics.PIPELINE_BACKLOG_BYTES.set(standing.bytes + sum(topic.bytes for topic in topics))
        metrics.PIPELINE_LAG_SECONDS.set(max(0, now_us - min(ages_us)) / 1e6)

    def written(self, rows: int, now_us: int) -> None:
        """So many are in files; none is in a table before `settled`."""
        metrics.PIPELINE_UNCOMMITTED_ROWS.set(rows)
        metrics.PIPELINE_UNCOMMITTED_SINCE.set(now_us / 1e6 if rows else 0)

    def settled(self, is_committed: bool, now_us: int) -> None:
        """Of whatever was written: the outcome is known, or it is planned anew."""
        self.written(0, now_us)
        if is_committed:
            metrics.PIPELINE_COMMIT_TIME.set(now_us / 1e6)

    def begun(self, topic: str, table: Identifier, snapshot_id: int) -> None:
        """A topic has its first rows."""
        said = {"topic": topic, "table": [*table.namespace, table.name], "snapshot_id": snapshot_id}
        self._first_snapshots.append(said)

    def done(self, one: RoundReport) -> None:
        self.rounds += 1
        self.rows += one.rows
        self.last = one
        metrics.PIPELINE_ROUNDS.inc()
        metrics.PIPELINE_ROWS.inc(one.rows)
        metrics.PIPELINE_FILES.inc(one.files)
        metrics.PIPELINE_BYTES.inc(one.bytes)
        metrics.PIPELINE_COMMIT_SECONDS.set(one.seconds.get("commit", 0.0))
        for name, value in one.seconds.items():
            metrics.PIPELINE_STEP_SECONDS.labels(name).inc(value)

    def as_document(self) -> dict[str, Any]:
        stopped = [
            {"topic": one.topic, "reason": one.stopped.reason, "hint": one.stopped.hint}
            for one in self._few(self.halted.values())
        ]
        return {
            **self._fixed,
            "ok": not self.reason and not stopped,
            "reason": self._said(stopped),
            "phase": self.phase,
            "epoch": self.epoch,
            "rounds": self.rounds,
            "rows": self.rows,
            "vanished_files": self.vanished_files,
            "age_limit_ms": self.age_limit_ms,
            "last_round": self.last.as_document() if self.last else None,
            "stopped_topics": stopped,
            "first_snapshots": list(self._first_snapshots),
        }

    @staticmethod
    def _few(found: Iterable[Any]) -> list[Any]:
        """The whole is one value of a bounded size."""
        return list(found)[: limits.REPORTED_TOPICS_MAX]

    def _said(self, stopped: list[dict[str, str]]) -> str:
        if self.reason:
            return self.reason
        if stopped:
            topics = f"{counted(len(stopped), 'topic')} {are(len(stopped))}"
            return f"{topics} not written: {stopped[0]['topic']}: {stopped[0]['reason']}"
        return f"{self.phase}, {counted(self.rounds, 'round')}, {counted(self.rows, 'row')}"
