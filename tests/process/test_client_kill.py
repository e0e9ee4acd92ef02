"""kill -9 of a broker under a live producer and live consumers of the Python client. Again and again.

stored      every message whose future said so is there, once, where it said, in the order of sending
futures     all of them resolve: the producer finds out what was stored, and sends the rest again
delivered   every message reaches each consumer; with dedup=True exactly once and in order
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
from pathlib import Path

import pytest

import icestream
from icestream.client.batch import MessageId
from tests.support.serve_process import ServeProcess
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"
WAIT_SECONDS = 60.0
SHARDS = 2


class KilledBroker:
    """A broker on one directory and one port, killed and started again as often as anybody likes."""

    def __init__(self, folder: Path, mode: str) -> None:
        self._folder = folder
        self._mode = mode
        self._port = 0
        self._process: ServeProcess | None = None

    async def start(self) -> str:
        mode, port = f"storage.iceberg_config.wal.sync_mode={self._mode}", f"ports.native={self._port}"
        self._process = ServeProcess(self._folder, "--set", mode, "--set", port)
        greeting = "\n".join(await asyncio.to_thread(self._process.greeting))
        found = re.search(r"native \S+:(\d+)", greeting)
        assert found is not None, greeting
        self._port = int(found[1])
        return f"127.0.0.1:{self._port}"

    async def kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await asyncio.to_thread(process.stop, signal.SIGKILL)


class Traffic:
    def __init__(self) -> None:
        self.sent: list[asyncio.Future[MessageId]] = []
        self.seen: list[tuple[int, int, int]] = []  # of the consumer that deduplicates: shard, offset, number
        self.seen_at_least: set[int] = set()  # of the one that does not
        self.is_over = False

    async def produce(self, client: icestream.Client, chance: random.Random) -> None:
        async with client.producer(TOPIC, name="till", shards=SHARDS) as producer:
            while not self.is_over:
                await until(self.can_follow)
                for _ in range(chance.randrange(1, 20)):
                    await producer.ready()
                    number = len(self.sent)
                    self.sent.append(producer.send(b"%d" % number, key=b"%d" % (number % 7)))
                await asyncio.sleep(chance.choice([0, 0.0005, 0.002]))
            await producer.flush()

    def can_follow(self) -> bool:
        """The consumers are not far behind: the whole test waits for them in the end."""
        return self.is_over or len(self.sent) - min(len(self.seen), len(self.seen_at_least)) < 2_000

    async def until_acked(self, count: int) -> None:
        """So many more than now."""
        acked = sum(one.done() for one in self.sent)
        await until(lambda: sum(one.done() for one in self.sent) >= acked + count)

    async def consume(self, client: icestream.Client, chance: random.Random) -> None:
        async with client.subscribe(TOPIC, "once", type="exclusive", start="earliest", dedup=True) as messages:
            kept: list[icestream.Message] = []
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        message = await anext(messages)
                        self.seen.append((message.shard, message.offset, int(message.payload)))
                        kept.append(message)
                        if chance.random() > 0.1:
                            continue
                for one in kept:  # in portions, and when nothing comes
                    one.ack()
                kept.clear()

    async def consume_carelessly(self, client: icestream.Client, chance: random.Random) -> None:
        async with client.subscribe(TOPIC, "twice", start="earliest", failure={"base_delay_ms": 1}) as messages:
            async for message in messages:
                self.seen_at_least.add(int(message.payload))
                if chance.random() < 0.99:
                    message.ack()
                else:
                    message.nack()


@pytest.mark.parametrize("mode", ["always", "periodic"])
async def test_a_broker_that_is_killed_loses_and_doubles_nothing_for_its_clients(tmp_path: Path, mode: str) -> None:
    await check_kills(tmp_path / "data", mode, kills=3, seed=20_261)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
async def test_a_broker_that_is_killed_40_times_loses_and_doubles_nothing(tmp_path: Path, mode: str) -> None:
    await check_kills(tmp_path / "data", mode, kills=40, seed=random.SystemRandom().randrange(10**9))


async def check_kills(folder: Path, mode: str, kills: int, seed: int) -> None:
    seed = int(os.environ.get("KILL_SEED", seed))
    chance = random.Random(seed)
    broker, traffic = KilledBroker(folder, mode), Traffic()
    address = await broker.start()
    try:
        async with icestream.connect(address, send_timeout=WAIT_SECONDS) as client:
            await client.create_topic(TOPIC, shards=SHARDS)
            producing = asyncio.create_task(traffic.produce(client, chance))
            consuming = [
                asyncio.create_task(traffic.consume(client, chance)),
                asyncio.create_task(traffic.consume_carelessly(client, chance)),
            ]
            for _ in range(kills):
                await traffic.until_acked(50)
                await asyncio.sleep(chance.random() * 0.1)
                await broker.kill()
                assert await broker.start() == address
            traffic.is_over = True
            await asyncio.wait_for(producing, WAIT_SECONDS)
            found = await asyncio.gather(*traffic.sent)
            await until(lambda: len(traffic.seen) >= len(found) and len(traffic.seen_at_least) >= len(found))
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)
            assert client.connections > kills
    except BaseException as error:
        error.add_note(f"KILL_SEED={seed}, mode {mode}, log in {folder}")
        raise
    finally:
        with contextlib.suppress(AssertionError):
            await broker.kill()
    check(traffic, found)


def check(traffic: Traffic, found: list[MessageId]) -> None:
    places = {(shard, offset): number for shard, offset, number in traffic.seen}
    assert len(places) == len(traffic.seen) == len(found), "something was handed out twice, or stored twice"
    for number, one in enumerate(found):
        assert places[one.shard, one.offset] == number
    for shard in range(SHARDS):
        assert_rising([number for place, _, number in sorted(traffic.seen) if place == shard])
        assert_rising([offset for place, offset, _ in traffic.seen if place == shard])
    assert traffic.seen_at_least == set(range(len(found)))


def assert_rising(numbers: list[int]) -> None:
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 50
