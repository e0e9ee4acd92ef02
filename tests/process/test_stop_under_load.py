"""SIGTERM while clients publish, consume and ack: exit code 0 in ten seconds, and afterwards nothing is missing.

What was answered is stored, in order and once; so is what was under way, when the client has found the broker again.
What the broker has counted as acked does not come again: its cursors were written. The next start has nothing to
recover.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from signal import SIGTERM

import pytest

import icestream
from icestream import errors
from icestream.client.producer import Producer
from icestream.client.subscription import Subscription
from tests.support.free_ports import free_ports
from tests.support.serve_process import ServeProcess

TOPIC = "/default/orders"
PRODUCERS = 4
ENOUGH = 500  # acked messages before the signal
STOP_SECONDS_MAX = 10.0


class ProducerLoad:
    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}  # by offset: what was answered
        self.acked = 0  # every offset below was acked, and the broker has said so
        self.enough = asyncio.Event()

    async def publish(self, producer: Producer, name: int) -> None:
        with contextlib.suppress(errors.IcestreamError):
            for number in range(10**9):
                await producer.ready()
                payload = b"%d %d" % (name, number)
                producer.send(payload).add_done_callback(lambda answer, sent=payload: self._note(answer, sent))
                await asyncio.sleep(0)

    def _note(self, answer: asyncio.Future[icestream.MessageId], payload: bytes) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.stored[answer.result().offset] = payload

    async def consume(self, messages: Subscription) -> None:
        with contextlib.suppress(errors.IcestreamError):
            while True:
                batch = await messages.take(100)
                for message in batch:
                    message.ack()
                await messages.flush()
                self.acked = batch[-1].offset + 1
                if self.acked >= ENOUGH:
                    self.enough.set()


async def run_until_stopped(process: ServeProcess, client: icestream.Client, load: ProducerLoad) -> tuple[int, float]:
    """The exit code, and how long the stop took."""
    producers = [await client.producer(TOPIC) for _ in range(PRODUCERS)]
    messages = await client.subscribe(TOPIC, "billing", type="exclusive", start="earliest")
    working = [asyncio.create_task(load.publish(producer, name)) for name, producer in enumerate(producers)]
    working.append(asyncio.create_task(load.consume(messages)))
    await asyncio.wait_for(load.enough.wait(), 60)
    began = time.monotonic()
    code, _ = await asyncio.to_thread(process.stop, SIGTERM)
    seconds = time.monotonic() - began
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    return code, seconds


async def read_all(address: str, subscription: str) -> list[icestream.Message]:
    """All messages that the subscription has not acked yet."""
    received: list[icestream.Message] = []
    async with (
        icestream.connect(address) as client,
        client.subscribe(TOPIC, subscription, type="exclusive", start="earliest") as messages,
        client.producer(TOPIC) as producer,
    ):
        end = (await producer.send(b"the end")).offset
        while not received or received[-1].offset < end:
            received += await messages.take(1000)
            messages.ack_through(received[-1])  # or the bound of what may be unacked would be reached
    return received[:-1]


@pytest.mark.asyncio
async def test_a_stop_under_load_loses_and_repeats_nothing(tmp_path: Path) -> None:
    load, (port,) = ProducerLoad(), free_ports(1)
    with ServeProcess(tmp_path / "data", "--output", "json", "--set", f"ports.native={port}") as process:
        address = process.announcement()["address"]
        client = await icestream.connect(address)
        code, seconds = await run_until_stopped(process, client, load)
    assert code == 0
    assert seconds < STOP_SECONDS_MAX
    with ServeProcess(tmp_path / "data", "--output", "json", "--set", f"ports.native={port}") as process:
        announcement = process.announcement()
        assert (announcement["clean_start"], announcement["new_gaps"]) == (True, 0)
        await client.close()
        left = await read_all(address, "billing")
        everything = await read_all(address, "auditor")
    assert not left or left[0].offset >= load.acked, "an acked message was delivered again"
    there = {message.offset: message.payload for message in everything if message.payload != b"the end"}
    assert len(load.stored) >= ENOUGH
    assert {offset: there.get(offset) for offset in load.stored} == load.stored
    assert len(set(there.values())) == len(there), "something is stored twice"
    for name in range(PRODUCERS):
        own = [int(payload.split()[1]) for payload in there.values() if payload.startswith(b"%d " % name)]
        assert own == list(range(len(own)))
