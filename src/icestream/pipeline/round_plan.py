"""The plan of a round (docs/adr/0025): which offsets go into which tables, and which task reads and writes them.

    RoundPlan    one Spark job
    TopicPlan    one commit: per shard the offsets [start, end) that it claims if all tasks succeed
    Range        the bytes [start, end) of one log file, which one task reads once, and the offsets it takes
    bundle       the ranges of one task, adjacent in the log
    gathered     a topic whose rows go through a shuffle to one writer; any other is written by the tasks that read it

Values only. `plan_round` (planner.py) makes them, `judge_round` (round_judgement.py) compares them with the results.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from icestream import limits


class Due(StrEnum):
    """Why a topic is in a round."""

    ROWS = "rows"
    BYTES = "bytes"
    AGE = "age"
    COMPANY = "company"  # nearly due, while another topic is due


class RoundBudget(msgspec.Struct, frozen=True):
    """When a topic is due, and how much one round may take."""

    rows_due: int = limits.WRITER_BATCH_SIZE_DEFAULT
    bytes_due: int = limits.WRITER_MEMORY_BYTES_DEFAULT
    age_due_ms: int = limits.WRITER_FLUSH_INTERVAL_MS_DEFAULT  # 0: everything is due
    tasks_max: int = 2
    task_bytes_max: int = limits.ROUND_TASK_BYTES_MAX
    files_max: int = limits.ROUND_FILES_MAX
    commits_max: int = limits.ROUND_COMMITS_MAX

    @property
    def bytes_max(self) -> int:
        return self.tasks_max * self.task_bytes_max


class MqttTarget(msgspec.Struct, frozen=True):
    """What tasks need to derive the columns of MQTT topics (rows/mqtt_columns.py)."""

    native_topic: str  # the MQTT topic of messages whose key is no topic name
    structure: bytes = b""  # the learned structure of the round; empty: it cannot be read, and no stream is assigned


class TableTarget(msgspec.Struct, frozen=True):
    """The table of a topic, for the tasks that write its files. `schema` and `spec` are Iceberg's own JSON objects."""

    location: str  # of the folder for the files: `file:/…` or `s3://…`
    schema: dict[str, Any]
    spec: dict[str, Any]
    codec: str = "zstd"
    codec_level: int | None = None
    target_bytes: int = limits.DATA_FILE_BYTES_TARGET
    storage: dict[str, Any] = {}  # `msgspec.to_builtins` of StoreOptions, with its secrets; empty for local files
    epoch: int = 0  # of the pipeline: files carry it in their names
    mqtt: MqttTarget | None = None  # None: a topic without MQTT messages
    clustering: str = ""  # the order of rows in files of compaction; empty: no policy states it


class LogSource(msgspec.Struct, frozen=True):
    """Where tasks read the log: in its folder if that is on their machine, else from the broker that owns it."""

    log_id: str
    directory: str
    address: str
    certificate: str  # the SHA-256 of the certificate at `address`, empty without TLS
    token: str = ""  # of the lease
    lease: str = ""


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) of one shard under one epoch."""

    topic_id: int
    shard: int
    epoch: int
    start: int
    end: int


class LogRange(msgspec.Struct, frozen=True):
    """`offsets` is what the whole file holds for this round; a range of the file holds a part of it."""

    number: int
    bundle: int
    file: int
    lsn: int  # of the record at `start`
    start: int
    end: int
    offsets: list[OffsetRange]


class ShardPlan(msgspec.Struct, frozen=True, array_like=True):
    """The offsets [start, end) of a shard, without its declared gaps."""

    shard: int
    epoch: int
    start: int  # the next offset by the catalog
    end: int
    gaps: list[tuple[int, int]] = []


class TopicPlan(msgspec.Struct, frozen=True):
    """What a round writes for one topic."""

    topic_id: int
    name: str
    incarnation: int
    due: Due
    waited_ms: int
    shards: list[ShardPlan]  # those with something to write
    bytes: int
    writer: int | None = None  # if gathered: the number of the task of the second stage that writes it


class LeftOut(msgspec.Struct, frozen=True):
    """A topic that has messages and cannot be planned."""

    topic_id: int
    name: str
    reason: str


class RoundPlan(msgspec.Struct, frozen=True):
    """One round: everything that its tasks need."""

    source: LogSource
    topics: list[TopicPlan]
    targets: dict[int, TableTarget]  # by topic id, of these topics
    ranges: list[LogRange]
    bundles: int
    writers: int  # tasks of the second stage; 0 when nothing is gathered
    age_limit_ms: int  # how long a message may wait at present (hazard 24)
    next_due_us: int | None  # wall clock: when the next topic is due if no message arrives; None: nothing waits
    left_out: list[LeftOut] = []

    @property
    def files(self) -> list[int]:
        """The numbers of the log files that must be held while the round runs."""
        return sorted({log_range.file for log_range in self.ranges})

    def leased(self, lease: str, token: str, epoch: int) -> RoundPlan:
        """Returns the plan for the tasks: with the lease by which the log files are held, its token, and the epoch of
        the driver."""
        replace = msgspec.structs.replace
        targets = {topic: replace(target, epoch=epoch) for topic, target in self.targets.items()}
        return replace(self, source=replace(self.source, lease=lease, token=token), targets=targets)
