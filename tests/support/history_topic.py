"""A topic of a broker with its own pipeline whose messages are read from its table: memory and log have let go of them.
Its table is there for Spark and PyIceberg to compact, delete from and insert into (hazard 22)."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from icestream import connect, limits
from icestream.client.message import Gap, Message
from tests.support.lake_run import until
from tests.support.lakehouse import new_name
from tests.support.pipeline_process import PipelineRun
from tests.support.serve_process import COMMAND
from tests.support.spark import Spark

if TYPE_CHECKING:
    from pyiceberg.table import Table

CATALOG, SHARDS, COUNT, BYTES = "history", 2, 90, 3_000
READ_SECONDS_MAX = 60.0
FAR = "TIMESTAMP '2100-01-01 00:00:00'"
# Nothing is read from memory, and the log lets go of what is committed as soon as it can.
FROM_TABLES = (
    "broker.tail_enabled=false",
    "lake.cache_enabled=false",
    "storage.iceberg_config.wal.warm_ms=0",
    "storage.iceberg_config.wal.checkpoint_every_bytes=64KiB",
)
Place = tuple[int, int]  # shard, offset


class SentMessage(NamedTuple):
    payload: bytes
    key: bytes | None
    headers: dict[str, str]
    publish_time_us: int | None


class ReceivedMessage(NamedTuple):
    place: Place
    sent: SentMessage
    append_time_us: int


class ReadResult(NamedTuple):
    got: list[ReceivedMessage]
    gaps: list[Gap]


def message(number: int, size: int = BYTES) -> SentMessage:
    """The order of payloads is not that of offsets, and they need more than one file."""
    headers = {"n": str(number)} if number % 3 else {}
    return SentMessage(random.Random(number).randbytes(size), b"k%d" % (number % 7), headers, 1_000_000 + number)


def got_of(message: Message) -> ReceivedMessage:
    sent = SentMessage(bytes(message.payload), message.key, dict(message.headers), message.publish_time_us)
    return ReceivedMessage((message.shard, message.offset), sent, message.append_time_us)


class HistoryTopic:
    """A topic with history: its messages, and its table in Spark."""

    def __init__(self, run: PipelineRun, spark: Spark, partitioning: str = "") -> None:
        self._run, self._spark = run, spark
        self.name = new_name("sorted")
        self.partitioning = partitioning
        if partitioning:
            asyncio.run(self._create(partitioning))
        self.table = f"{CATALOG}.default.{self.name}"
        self.sent: dict[Place, SentMessage] = {}
        spark.attach(CATALOG, run.uri)

    # --- messages ---

    async def _create(self, partitioning: str) -> None:
        async with connect(f"icestream://{self._run.address}") as client:
            await client.create_topic(f"/default/{self.name}", shards=SHARDS, partitioning=partitioning)

    def publish(self, numbers: range, size: int = BYTES) -> None:
        """Publishes messages and waits until they are rows of the table."""
        self.sent |= asyncio.run(self._publish(self.name, numbers, size))
        self._run.icestream("lake", "commit-now", "--wait", "120")

    def leave_log(self) -> None:
        """Others are published until no file of the log has anything of it."""
        asyncio.run(self._publish(f"{self.name}-more", range(COUNT)))
        self._run.icestream("lake", "commit-now", "--wait", "120")
        until(lambda: self._first_in_log() == self._ends())

    def _ends(self) -> dict[int, int]:
        return {
            shard: 1 + max(at for message_shard, at in self.sent if message_shard == shard) for shard in range(SHARDS)
        }

    def _first_in_log(self) -> dict[int, int]:
        shard_offsets = self._run.api(f"namespaces/default/topics/{self.name}")["shard_offsets"]
        return {entry["shard"]: entry["earliest"] for entry in shard_offsets}

    async def _publish(self, topic: str, numbers: range, size: int = BYTES) -> dict[Place, SentMessage]:
        stored: dict[Place, SentMessage] = {}
        async with (
            connect(f"icestream://{self._run.address}") as client,
            client.producer(f"/default/{topic}", shards=SHARDS) as producer,
        ):
            messages = [message(number, size) for number in numbers]
            sends = [
                producer.send(
                    sent_message.payload,
                    key=sent_message.key,
                    headers=sent_message.headers,
                    publish_time=sent_message.publish_time_us,
                )
                for sent_message in messages
            ]
            for sent_message, send in zip(messages, sends, strict=True):
                at = await send
                stored[at.shard, at.offset] = sent_message
        return stored

    def read(self, gone: frozenset[Place] = frozenset()) -> ReadResult:
        """The messages that a new subscription gets from the table, up to the last one of each shard.

        Retries while answers come from the broker's caches, which may still hold rows that are gone."""

        def look() -> ReadResult | None:
            before = self._run.reads_by_tier()
            result = asyncio.run(self.subscribed())
            counts = {tier: count - before.get(tier, 0) for tier, count in self._run.reads_by_tier().items()}
            is_read = counts.pop("table") >= SHARDS
            assert not any(count for tier, count in counts.items() if tier != "cache"), counts
            return result if is_read and not gone & {message.place for message in result.got} else None

        return until(look, 3 * limits.SCAN_NEAR_SECONDS_MAX, pause_seconds=0.5)

    async def subscribed(self, prefetch: int = 1_000, midway: Callable[[], object] | None = None) -> ReadResult:
        """`midway`: done in the midst of it."""
        received: list[ReceivedMessage] = []
        last = {(shard, end - 1) for shard, end in self._ends().items()}
        async with (
            asyncio.timeout(READ_SECONDS_MAX),
            connect(f"icestream://{self._run.address}") as client,
            client.subscribe(
                f"/default/{self.name}", new_name("s"), type="exclusive", start="earliest", prefetch=prefetch
            ) as subscription,
        ):
            async for message in subscription:
                received.append(got_of(message))
                message.ack()
                last.discard((message.shard, message.offset))
                if not last:
                    break
                if midway is not None and len(received) == COUNT // 3:
                    await asyncio.to_thread(midway)
            return ReadResult(received, list(subscription.gaps))

    # --- its table ---

    @contextmanager
    def pyiceberg(self) -> Iterator[Table]:
        """The table as PyIceberg knows it."""
        from pyiceberg.catalog.rest import RestCatalog

        catalog = RestCatalog(CATALOG, uri=self._run.uri)
        try:
            yield catalog.load_table(f"default.{self.name}")
        finally:
            catalog.close()

    def verify(self) -> dict[str, Any]:
        """The report of `icestream verify --deep`."""
        report: dict[str, Any] = self._run.api(f"lake/verify?deep=true&topic=/default/{self.name}")
        return report

    def paths(self) -> list[Path]:
        """The data files of the table."""
        paths = self._spark.column(f"SELECT file_path FROM {self.table}.files")
        return [Path(str(path).removeprefix("file:")) for path in paths]

    def consume(self, *options: str) -> subprocess.CompletedProcess[str]:
        """`icestream consume` of the topic, up to its end."""
        command = [*COMMAND, "consume", f"/default/{self.name}", "--broker", self._run.address]
        command += ["--format", "%s:%o", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=READ_SECONDS_MAX)

    def formats(self) -> set[str]:
        return set(self._spark.column(f"SELECT file_format FROM {self.table}.all_files"))

    def sql(self, statement: str) -> None:
        self._spark.sql(statement.format(t=self.table))

    def sort(self, order: str = "") -> None:
        """Into files that each have messages of all offsets. By the table's own order where none is named."""
        options = "map('rewrite-all', 'true', 'target-file-size-bytes', '65536')"
        named = f", sort_order => '{order}'" if order else ""
        self.call("rewrite_data_files", f"strategy => 'sort', options => {options}{named}")
        spans = self.spans()
        assert len(spans) > 1
        assert spans[0][1] > spans[-1][0], f"they do not overlap: {spans}"

    def spans(self) -> list[tuple[int, int]]:
        """The first and the last offset of each file."""
        rows = self._spark.sql(f"SELECT min(offset), max(offset) FROM {self.table} GROUP BY _file ORDER BY 1, 2")
        return [(low, high) for low, high in rows]

    def expire(self) -> None:
        """Expires all snapshots but the newest one."""
        self.call("expire_snapshots", f"older_than => {FAR}, retain_last => 1")
        assert self._spark.scalar(f"SELECT count(*) FROM {self.table}.snapshots") == 1

    def call(self, procedure: str, arguments: str) -> None:
        self._spark.sql(f"CALL {CATALOG}.system.{procedure}(table => 'default.{self.name}', {arguments})")


def check_all(topic: HistoryTopic, received: list[ReceivedMessage], without: frozenset[Place] = frozenset()) -> None:
    """Every message was received once, in the order of its shard, and as it was sent."""
    left = {place: sent for place, sent in topic.sent.items() if place not in without}
    for shard in range(SHARDS):
        assert [message.place for message in received if message.place[0] == shard] == sorted(
            place for place in left if place[0] == shard
        )
    assert {message.place: message.sent for message in received} == left


def offsets_of(gaps: list[Gap]) -> frozenset[Place]:
    return frozenset((gap.shard, at) for gap in gaps for at in range(gap.start, gap.end))
