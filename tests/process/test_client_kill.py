"""kill -9 of a broker under real clients that publish, consume, ack, nack and seek. Again and again.

stored      every message whose future said so is there, once, where it said, in the order of sending
futures     all of them resolve: a producer finds out what was stored, and sends the rest again
delivered   with dedup=True exactly once and in order; else S1 to S6 of tests/support/subscription_audit.py
buried      each message that failed too often is a dead letter, once
ids         of topics, subscriptions, consumers and producers stay; a topic that is made anew has a new one

The plan of a run follows from its seed; the moments, to the microsecond, do not. KILL_SEED runs one seed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

import icestream
from tests.support.client_traffic import (
    KINDS,
    LETTERS,
    SHARDS,
    TOPIC,
    WAIT_SECONDS,
    Auditors,
    PermanentClients,
    TrafficWorker,
    client_clock,
    is_poison,
    number_of,
)
from tests.support.history import check
from tests.support.killed_broker import LOST, InternalCalls, KilledBroker
from tests.support.until import until

pytestmark = pytest.mark.asyncio
Job = Coroutine[Any, Any, None]
Begin = Callable[[Job], None]
WAYS_TO_END = ("load", "load", "seek", "sought", "recovery", "start", "stored", "stop")
STORED_WITHIN_SECONDS = 10.0
FLUSH_MS = (1, 1, 5, 20, 60)  # at 1 ms a cursor is being written at almost any moment


@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
async def test_a_killed_broker_loses_and_duplicates_nothing_for_its_clients(tmp_path: Path, mode: str) -> None:
    await check_kills(tmp_path / "data", mode, kills=11, seed=20_261)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
async def test_a_broker_killed_100_times_loses_and_duplicates_nothing(tmp_path: Path, mode: str) -> None:
    await check_kills(tmp_path / "data", mode, kills=100, seed=random.SystemRandom().randrange(10**9))


async def check_kills(folder: Path, mode: str, kills: int, seed: int) -> None:
    seed = int(os.environ.get("KILL_SEED", seed))
    run = KillRun(folder, mode, seed)
    try:
        await run.all_lives(kills)
        await run.last_life()
    except BaseException as error:
        error.add_note(f"KILL_SEED={seed}, mode {mode}, {run.ends}, broker in {folder}")
        raise
    finally:
        run.broker.close()
    assert run.ends["killed while it started"] > 0
    assert run.ends["seeks answered"] > 1
    assert run.ends["take-overs"] > 0
    assert run.auditors.repeated > 0, "no kill came between an ack and the write of its cursor"
    assert len(run.clients.incarnations) > kills // 4


class KillRun:
    def __init__(self, folder: Path, mode: str, seed: int) -> None:
        self.chance = random.Random(seed)  # of the plan; concurrent tasks must not draw from it
        self._traffic = random.Random(seed)
        self.broker = KilledBroker(folder, mode)
        self.clients = PermanentClients(self._traffic)
        self.auditors = Auditors()
        self.ends: Counter[str] = Counter()
        self._ids: dict[str, int] = {}
        self._was_stopped = False
        self._keeping: list[asyncio.Task[None]] = []
        self._client: icestream.Client

    # --- the lives ---

    async def all_lives(self, kills: int) -> None:
        await self._first_life()
        ways = ["recovery", "load", "stop", "sought"]
        while self.ends["kills"] < kills:
            await self._life(ways.pop())
            ways = ways or self.chance.sample(WAYS_TO_END, len(WAYS_TO_END))
        while not self._has_shown_enough(kills) and self.ends["kills"] < 3 * kills:
            await self._life("load")

    def _has_shown_enough(self, kills: int) -> bool:
        """On a busy machine every cursor may have been written in time, and no topic been made anew in a short life."""
        return self.auditors.repeated > 0 and len(self.clients.incarnations) > kills // 4

    async def _first_life(self) -> None:
        """The first run of the broker: creates the topic and the clients that stay."""
        await self.broker.start(FLUSH_MS[0])
        self._client = await icestream.connect(self.broker.address, send_timeout=WAIT_SECONDS, clock=client_clock())
        await self._client.create_topic(TOPIC, shards=SHARDS)
        async with self._consumers() as (_, behind):
            await self._look_at_ids(behind)
        clients = self.clients
        for coming in (clients.sell, clients.sell_by_fits, clients.read, clients.churn):
            self._keeping.append(asyncio.create_task(coming(self._client)))
        await self._kill()

    async def _life(self, way: str) -> None:
        self.ends[way] += 1
        flush_ms = FLUSH_MS[-1] if way in ("load", "stop") else self.chance.choice(FLUSH_MS)
        if way == "recovery":
            await self._be_killed_early(flush_ms)
            return
        await self.broker.start(flush_ms)
        async with self._consumers() as (workers, behind), self._working(workers, behind) as begin:
            if way != "start":
                await self._do(way, workers, behind, begin)
            self.clients.behind = None
            if way == "stop":
                await self._stop(workers, behind)
            else:
                await self._kill()

    async def _be_killed_early(self, flush_ms: int) -> None:
        await self.broker.begin(flush_ms)
        await asyncio.sleep(self.chance.uniform(0.1, 1.0) * self.broker.start_seconds)
        await self._kill()
        self.ends["killed while it started"] += 1

    async def _kill(self) -> None:
        await self.broker.kill()
        self.ends["kills"] += 1
        self._was_stopped = False

    async def _stop(self, workers: list[TrafficWorker], behind: InternalCalls) -> None:
        await self._count(workers, behind)
        await self.broker.stop()
        self._was_stopped = True

    # --- one life ---

    @contextlib.asynccontextmanager
    async def _consumers(self) -> AsyncIterator[tuple[list[TrafficWorker], InternalCalls]]:
        """The consumers of one run of the broker; they end before the next run begins."""
        behind = await self.broker.look()
        client = await icestream.connect(self.broker.address, clock=client_clock())
        try:
            if self._keeping:
                await self.auditors.life_began(behind, was_stopped=self._was_stopped)
            workers = [
                TrafficWorker(client, kind, name, self.auditors, self._traffic)
                for kind in KINDS
                for name in kind.consumers
            ]
            for worker in workers:
                await worker.subscription
            yield workers, behind
        finally:
            await client.close()
            await behind.close()

    @contextlib.asynccontextmanager
    async def _working(self, workers: list[TrafficWorker], behind: InternalCalls) -> AsyncIterator[Begin]:
        """Runs the workers until the block ends or one of them finds an error. The block may start more."""
        tasks: list[asyncio.Task[None]] = []
        jobs = [self._watch_those_that_stay(), self._count_always(workers, behind), self._pace(behind)]
        jobs += [job for worker in workers for job in (worker.run(), worker.settle())]
        try:
            async with asyncio.TaskGroup() as group:

                def begin(job: Job) -> None:
                    tasks.append(group.create_task(job))

                for job in jobs:
                    begin(job)
                yield begin
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _watch_those_that_stay(self) -> None:
        await asyncio.wait(self._keeping, return_when=asyncio.FIRST_EXCEPTION)
        for task in self._keeping:
            if task.done():
                task.result()

    async def _do(self, way: str, workers: list[TrafficWorker], behind: InternalCalls, begin: Begin) -> None:
        self.clients.behind = behind
        stored = self.clients.stored + self.chance.randrange(10, 60)
        await until(lambda: self.clients.stored >= stored)
        await self._look_at_ids(behind)
        meanwhile = self.chance.random()
        if meanwhile < 0.3:
            await self._seek(workers)
        elif meanwhile < 0.7:
            await self._take_over(workers)
        if way == "stored":
            await self._until_stored()
        elif way == "load":
            await asyncio.sleep(self.chance.random() * 0.03)
        elif way == "seek":
            begin(self._seek(workers))
            await asyncio.sleep(self.chance.random() * 0.006)
        elif way == "sought":
            await self._seek(workers)

    async def _take_over(self, workers: list[TrafficWorker]) -> None:
        """The one that stands by gets what is in flight, and then all that is still to come."""
        first, *_ = standby = [worker for worker in workers if worker.kind.type == "failover"]
        await self._seek(standby)
        await first.leave()
        self.ends["take-overs"] += 1

    async def _seek(self, workers: list[TrafficWorker]) -> None:
        worker = self._traffic.choice(
            [candidate for candidate in workers if candidate.kind.is_sought and not candidate.has_left]
        )
        shard = self._traffic.randrange(SHARDS)
        await until(lambda: self.clients.newest[shard])
        position = self._traffic.choice(self.clients.newest[shard][-60:])
        worker.audits[shard].seek_asked(position)
        await worker.subscription.seek(position, shard=shard)
        worker.audits[shard].seek_answered()
        self.ends["seeks answered"] += 1

    async def _count_always(self, workers: list[TrafficWorker], behind: InternalCalls) -> None:
        with contextlib.suppress(*LOST):
            while True:
                await self._count(workers, behind)
                await asyncio.sleep(0.002)

    @staticmethod
    async def _count(workers: Sequence[TrafficWorker], behind: InternalCalls) -> None:
        for worker in workers:
            if not worker.has_left:
                await worker.count(behind)

    async def _pace(self, behind: InternalCalls) -> None:
        with contextlib.suppress(*LOST):
            while True:
                self.clients.backlog = max((await behind.lags(TOPIC)).values())
                await asyncio.sleep(0.003)

    async def _until_stored(self) -> None:
        """The flusher is at work: what was counted is stored soon. The bound is for machines that stand still."""
        waiting = [(audit, audit.waiting) for audit in self.auditors]
        async with asyncio.timeout(STORED_WITHIN_SECONDS):
            await until(lambda: not any(acks & audit.waiting for audit, acks in waiting))

    async def _look_at_ids(self, behind: InternalCalls) -> None:
        """The numbers that the store has, and those that the broker uses."""
        ids: dict[str, int] = {}
        for prefix in ("/topics", "/subscriptions", "/consumers", "/producers"):
            for key, value, _ in await behind.entries(f"{prefix}{TOPIC}"):
                ids[key] = json.loads(value)["id"]
        for kind in KINDS:
            page = await behind.call("page_consumers", topic=TOPIC, subscription=kind.name)
            for consumer in page["items"]:
                ids[f"/consumers{TOPIC}/{kind.name}/{consumer['consumer']}"] = consumer["id"]
        page = await behind.call("page_producers", topic=TOPIC)
        ids |= {f"/producers{TOPIC}/{producer['producer']}": producer["id"] for producer in page["items"]}
        ids["incarnation"] = (await behind.call("inspect_topic", topic=TOPIC))["incarnation"]
        for name, number in ids.items():
            check(self._ids.setdefault(name, number) == number, "an id has changed", name, self._ids[name], number)
        check(ids.keys() >= self._ids.keys(), "an id is gone", self._ids.keys() - ids.keys())

    # --- the end ---

    async def last_life(self) -> None:
        """Every consumer gets every message; then a clean stop, and a check of all."""
        await self.broker.start(FLUSH_MS[-1])
        async with self._consumers() as (workers, behind), self._working(workers, behind):
            for worker in workers:
                worker.lets_go = True
            selling, by_fits, reading, churning = self._keeping
            self.clients.is_over = True
            await asyncio.wait_for(asyncio.gather(selling, by_fits, churning), WAIT_SECONDS)
            message_ids = await asyncio.gather(*self.clients.sent)
            await self._drained(behind, TOPIC)
            await until(lambda: self.auditors.are_done(self.clients))
            await self._check_letters(behind)
            reading.cancel()
        await self._client.close()
        await self.broker.stop()
        self.clients.check_all(message_ids)
        self.auditors.check_all(self.clients)

    async def _drained(self, behind: InternalCalls, topic: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while any((await behind.lags(topic)).values()):  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.01)

    async def _check_letters(self, behind: InternalCalls) -> None:
        letters: Counter[int] = Counter()
        async with self._client.subscribe(LETTERS, "reader", type="exclusive", start="earliest") as messages:

            async def read() -> None:
                async for message in messages:
                    letters[number_of(message.payload)] += 1
                    message.ack()

            reading = asyncio.create_task(read())
            await self._drained(behind, LETTERS)
            reading.cancel()
        expected = Counter(number for number in range(len(self.clients.sent)) if is_poison(number))
        check(letters == expected, "dead letters", letters - expected, expected - letters)
