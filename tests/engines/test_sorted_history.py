"""Subscriptions over tables that Spark itself has sorted, deleted from and expired (hazard 22), from a broker with its
own pipeline: the log has let go of everything, so each message comes out of a file of the table."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from icestream import connect, limits
from icestream.client.asked import Gap
from icestream.client.message import Message
from icestream.model.shard import GapState
from tests.support.lake_run import until
from tests.support.lakehouse import new_name
from tests.support.pipeline_process import PipelineRun
from tests.support.spark import Spark

pytestmark = pytest.mark.timeout(300)
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


def message(number: int) -> Sent:
    """The order of payloads is not that of offsets, and they need more than one file."""
    headers = {"n": str(number)} if number % 3 else {}
    return Sent(random.Random(number).randbytes(BYTES), b"k%d" % (number % 7), headers, 1_000_000 + number)


def got_of(one: Message) -> Got:
    sent = Sent(bytes(one.payload), one.key, dict(one.headers), one.publish_time_us)
    return Got((one.shard, one.offset), sent, one.append_time_us)


class Topic:
    """Its messages, and its table as Spark knows it."""

    def __init__(self, run: PipelineRun, spark: Spark) -> None:
        self._run, self._spark = run, spark
        self.name = new_name("sorted")
        self.table = f"{CATALOG}.default.{self.name}"
        self.sent: dict[Place, Sent] = {}
        spark.attach(CATALOG, run.uri)

    # --- messages ---

    def publish(self, numbers: range) -> None:
        """They are rows of its table then."""
        self.sent |= asyncio.run(self._publish(self.name, numbers))
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

    async def _publish(self, topic: str, numbers: range) -> dict[Place, Sent]:
        found: dict[Place, Sent] = {}
        async with (
            connect(f"icestream://{self._run.address}") as client,
            client.producer(f"/default/{topic}", shards=SHARDS) as producer,
        ):
            for number in numbers:
                payload, key, headers, time_us = one = message(number)
                at = await producer.send(payload, key=key, headers=headers, publish_time=time_us)
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

    def sql(self, statement: str) -> None:
        self._spark.sql(statement.format(t=self.table))

    def sort(self, order: str = "") -> None:
        """Into files that each have messages of all offsets. By the table's own order where none is named."""
        options = "map('rewrite-all', 'true', 'target-file-size-bytes', '65536')"
        named = f", sort_order => '{order}'" if order else ""
        self.call("rewrite_data_files", f"strategy => 'sort', options => {options}{named}")
        spans = self._spark.sql(f"SELECT min(offset), max(offset) FROM {self.table} GROUP BY _file ORDER BY 1, 2")
        assert len(spans) > 1
        assert spans[0][1] > spans[-1][0], f"they do not overlap: {spans}"

    def expire(self) -> None:
        """Only the newest snapshot and its files stay."""
        self.call("expire_snapshots", f"older_than => {FAR}, retain_last => 1")
        assert self._spark.one(f"SELECT count(*) FROM {self.table}.snapshots") == 1

    def call(self, procedure: str, given: str) -> None:
        self._spark.sql(f"CALL {CATALOG}.system.{procedure}(table => 'default.{self.name}', {given})")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineRun]:
    sets = [part for flag in FROM_TABLES for part in ("--set", flag)]
    with PipelineRun(tmp_path_factory.mktemp("history") / "data", *sets) as found:
        yield found


@pytest.fixture
def topic(run: PipelineRun, spark: Spark) -> Topic:
    """In three rounds."""
    found = Topic(run, spark)
    for first in range(0, COUNT, COUNT // 3):
        found.publish(range(first, first + COUNT // 3))
    return found


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


ORDERS = ("payload DESC", "key ASC, offset DESC", "zorder(key, payload)")


def test_hazard_22_tables_that_spark_sorted_are_read_in_order(topic: Topic) -> None:
    topic.leave_log()
    plain = topic.read()
    check_all(topic, plain.got)
    for order in ORDERS:
        topic.sort(order)
        found = topic.read()
        check_all(topic, found.got)
        assert (sorted(found.got), found.gaps) == (sorted(plain.got), [])
    topic.expire()
    found = topic.read()
    check_all(topic, found.got)
    assert (sorted(found.got), found.gaps) == (sorted(plain.got), [])


def test_hazard_22_a_table_with_an_order_of_its_own_takes_rounds_and_is_read(topic: Topic) -> None:
    topic.sql("ALTER TABLE {t} WRITE ORDERED BY payload DESC")
    topic.sort()
    topic.publish(range(COUNT, COUNT + 30))
    topic.leave_log()
    found = topic.read()
    check_all(topic, found.got)
    topic.sort()
    check_all(topic, topic.read().got)


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_hazard_22_rows_that_spark_deletes_from_a_sorted_table_are_gaps(topic: Topic, mode: str) -> None:
    """Also where another compaction, and an expiry, came behind it."""
    topic.leave_log()
    topic.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
    topic.sort("payload DESC")
    topic.read()  # what is remembered of it must not come again
    ends = {place for place in topic.sent if (place[0], place[1] + 1) not in topic.sent}
    gone = frozenset(place for place in topic.sent if place[1] % 5 == 0 or 20 <= place[1] < 24) - ends
    for shard in range(SHARDS):
        some = ", ".join(str(at) for one, at in gone if one == shard)
        topic.sql(f"DELETE FROM {{t}} WHERE shard = {shard} AND offset IN ({some})")
    for after in (lambda: None, lambda: topic.sort("payload ASC"), topic.expire):
        after()
        found = topic.read(gone)
        check_all(topic, found.got, gone)
        below_first = frozenset((shard, 0) for shard in range(SHARDS))  # "earliest" begins behind them
        assert offsets_of(found.gaps) | below_first == gone
        assert {gap.state for gap in found.gaps} == {GapState.DROPPED}


def test_hazard_22_files_that_go_under_a_reader_are_planned_again(topic: Topic) -> None:
    topic.leave_log()
    topic.sort("payload DESC")

    def meddle() -> None:
        topic.sort("key ASC, payload ASC")
        topic.expire()

    found = asyncio.run(topic.subscribed(10, meddle))
    check_all(topic, found.got)
    assert not found.gaps
