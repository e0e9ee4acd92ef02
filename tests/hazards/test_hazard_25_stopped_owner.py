"""Hazard 25 of one node: an owner that stands still and goes on.

No other node takes its place meanwhile, its acks stay true, and timeouts are measured by a clock that
never steps. Leases come with the cluster.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

import icestream
from icestream import error_codes, errors
from icestream.model.subscription_options import FailurePolicy, SubscriptionType
from tests.support.broker_machine import TOPIC, BrokerMachine, publish, quiet, subscribe
from tests.support.serve_process import ServeProcess

pytestmark = pytest.mark.asyncio

STOPS = 3
DAY_SECONDS = 86_400


async def test_hazard_25_a_broker_stopped_under_load_keeps_its_data_and_its_promises(tmp_path: Path) -> None:
    sent: list[asyncio.Future[icestream.MessageId]] = []
    with ServeProcess(tmp_path / "data", is_fork=True) as process:
        address = re.search(r"native (\S+)", "\n".join(process.greeting()))
        assert address is not None
        async with await icestream.connect(address[1]) as client:
            producer = await client.producer("/default/a")
            await producer.send(b"first")
            for _ in range(STOPS):
                more = [producer.send(b"%d" % number) for number in range(len(sent), len(sent) + 500)]
                sent += more
                await asyncio.wait(more, return_when=asyncio.FIRST_COMPLETED)
                os.kill(process.pid, signal.SIGSTOP)
                with ServeProcess(tmp_path / "data", is_fork=True) as other:
                    code, _, printed = await asyncio.to_thread(other.end)
                os.kill(process.pid, signal.SIGCONT)
                assert (code, "another process has" in printed) == (error_codes.exit_code(errors.LogLocked("")), True)
            places = await asyncio.gather(*sent)
            async with client.subscribe("/default/a", "s", type="exclusive", start="earliest") as messages:
                stored: list[icestream.Message] = []
                while len(stored) <= len(sent):
                    stored += await messages.take(1_000)
    assert [place.offset for place in places] == [*range(1, len(sent) + 1)]
    assert [message.payload for message in stored] == [b"first", *(b"%d" % number for number in range(len(sent)))]


@pytest.mark.parametrize("step_seconds", [DAY_SECONDS, -DAY_SECONDS])
async def test_hazard_25_a_step_of_the_wall_clock_moves_no_deadline(step_seconds: int) -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await publish(broker, await broker.open_producer(TOPIC, "p"), b"x")
    policy = FailurePolicy(ack_timeout_ms=5_000, base_delay_ms=1)
    reader = await subscribe(broker, kind=SubscriptionType.SHARED, failure=policy)
    await quiet()
    machine.clock.step(step_seconds)
    await machine.pass_time(4)
    assert reader.sink.offsets == [0]
    await machine.pass_time(2)
    assert reader.sink.offsets == [0, 0], "the message was not acked in time"
