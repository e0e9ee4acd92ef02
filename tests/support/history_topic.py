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


class Sent(NamedTuple):
    payload: bytes
    key: bytes | None
    headers: dict[str, str]
    publish_time_us: int | None


class Got(NamedTuple):
    place: Place
    sent: Sent
    append_time_us: int


class Reading(NamedTuple):
    got: list[Got]
    gaps: list[Gap]


def message(number: int, size: int = BYTES) -> Sent:
    """The order of payloads is not that of offsets, and they need more than one file."""
    headers = {"n": str(number)} if number % 3 else {}
    return Sent(random.Random(number).randbytes(size), b"k%d" % (number % 7), headers, 1_000_000 + number)


def got_of(one: Message) -> Got:
    sent = Sent(bytes(one.payload), one.key, dict(one.headers), one.publish_time_us)
    return Got((one.shard, one.offset), sent, one.append_time_us)


class Topic:
    """Its messages, and its table as Spark knows it."""

    def __init__(self, run: PipelineRun, spark: Spark, partitioning: str = "") -> None:
        self._run, self._spark = run, spark
        self.name = new_name("sorted")
        self.partitioning = partitioning
        if partitioning:
            asyncio.run(self._create(partitioning))
        self.table = f"{CATALOG}.default.{self.name}"
        self.sent: dict[Place, Sent] = {}
        spark.attach(CATALOG, run.uri)

    # --- messages ---

    async def _create(self, partitioning: str) -> None:
        async with connect(f"icestream://{self._run.address}") as client:
            await client.create_topic(f"/default/{self.name}", shards=SHARDS, partitioning=partitioning)

    def publish(self, numbers: range, size: int = BYTES) -> None:
        """They are rows of its table then."""
        self.sent |= asyncio.run(self._publish(self.name, numbers, size))
        self._run.icestream("lake", "commit-now", "--wait", "120")

    def leave_log(self) -> None:
        """Others are published until no file of the log has anything of it."""
        asyncio.run(self._publish(f"{self.name}-more", range(COUNT)))
        self._run.icestream("lake", "commit-now", "--wait", "120")
        until(lambda: self._first_in_log() == self._ends())

    def _ends(self) -> dict[int, int]:
        return {shard: 1 + max(at for one, at in self.sent if one == shard) for shard in range(SHARDS)}

    def _first_in_log(self) -> dict[int, int]:
        found = self._run.api(f"namespaces/default/topics/{self.name}")["shard_offsets"]
        return {one["shard"]: one["earliest"] for one in found}

    async def _publish(self, topic: str, numbers: range, size: int = BYTES) -> dict[Place, Sent]:
        found: dict[Place, Sent] = {}
        async with (
            connect(f"icestream://{self._run.address}") as client,
            client.producer(f"/default/{topic}", shards=SHARDS) as producer,
        ):
            messages = [message(number, size) for number in numbers]
            sends = [
                producer.send(one.payload, key=one.key, headers=one.headers, publish_time=one.publish_time_us)
                for one in messages
            ]
            for one, send in zip(messages, sends, strict=True):
                at = await send
                found[at.shard, at.offset] = one
        return found

    def read(self, gone: frozenset[Place] = frozenset()) -> Reading:
        """What a new subscription gets, up to the last message of each shard, from its table. All of it, or rows that
        are gone, may come out of answers that the broker remembers, for as long as it does."""

        def look() -> Reading | None:
            before = self._run.reads_by_tier()
            found = asyncio.run(self.subscribed())
            counts = {tier: count - before.get(tier, 0) for tier, count in self._run.reads_by_tier().items()}
            is_read = counts.pop("table") >= SHARDS
            assert not any(count for tier, count in counts.items() if tier != "cache"), counts
            return found if is_read and not gone & {one.place for one in found.got} else None

        return until(look, 3 * limits.SCAN_NEAR_SECONDS_MAX, pause_seconds=0.5)

    async def subscribed(self, prefetch: int = 1_000, midway: Callable[[], object] | None = None) -> Reading:
        """`midway`: done in the midst of it."""
        found: list[Got] = []
        last = {(shard, end - 1) for shard, end in self._ends().items()}
        async with (
            asyncio.timeout(READ_SECONDS_MAX),
            connect(f"icestream://{self._run.address}") as client,
            client.subscribe(
                f"/default/{self.name}", new_name("s"), type="exclusive", start="earliest", prefetch=prefetch
            ) as subscription,
        ):
            async for one in subscription:
                found.append(got_of(one))
                one.ack()
                last.discard((one.shard, one.offset))
                if not last:
                    break
                if midway is not None and len(found) == COUNT // 3:
                    await asyncio.to_thread(midway)
            return Reading(found, list(subscription.gaps))

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
        """What `icestream verify --deep` reports."""
        report: dict[str, Any] = self._run.api(f"lake/verify?deep=true&topic=/default/{self.name}")
        return report

    def paths(self) -> list[Path]:
        """Its data files."""
        found = self._spark.column(f"SELECT file_path FROM {self.table}.files")
        return [Path(str(path).removeprefix("file:")) for path in found]

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
        """Only the newest snapshot and its files stay."""
        self.call("expire_snapshots", f"older_than => {FAR}, retain_last => 1")
        assert self._spark.one(f"SELECT count(*) FROM {self.table}.snapshots") == 1

    def call(self, procedure: str, given: str) -> None:
        self._spark.sql(f"CALL {CATALOG}.system.{procedure}(table => 'default.{self.name}', {given})")


def check_all(topic: Topic, found: list[Got], without: frozenset[Place] = frozenset()) -> None:
    """Each once, in the order of its shard, and as it was sent."""
    left = {place: sent for place, sent in topic.sent.items() if place not in without}
    for shard in range(SHARDS):
        assert [one.place for one in found if one.place[0] == shard] == sorted(
            place for place in left if place[0] == shard
        )
    assert {one.place: one.sent for one in found} == left


def offsets_of(gaps: list[Gap]) -> frozenset[Place]:
    return frozenset((gap.shard, at) for gap in gaps for at in range(gap.start, gap.end))
