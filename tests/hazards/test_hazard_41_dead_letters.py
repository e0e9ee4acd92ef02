"""Hazard 41: a message that failed too often becomes one dead letter, wherever a crash ends its burial."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from icestream.broker.service import Broker
from icestream.model import SyncMode
from icestream.model.subscription_options import (
    FailurePolicy,
    PoisonPolicy,
    StartAt,
    SubscriptionStart,
    SubscriptionType,
)
from icestream.model.topic_name import TopicName
from tests.support.broker_machine import TOPIC, BrokerMachine, publish, quiet, stored_rows, subscribe
from tests.support.faulty_store import FaultyStore
from tests.support.machine import HANGS_SECONDS
from tests.support.until import until

pytestmark = pytest.mark.asyncio

DEAD = TopicName("default", "dead")
AT_ONCE = FailurePolicy(
    0, base_delay_ms=0, max_delay_ms=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(DEAD)
)
POISON = (3, 5)


class DeadLetterRun:
    """A topic with poison in it, and a consumer that gives it back."""

    def __init__(self, mode: SyncMode = SyncMode.ALWAYS) -> None:
        self.machine = BrokerMachine(mode=mode)
        self.store = self.machine.store = FaultyStore(self.machine.clock, survives_close=True)
        self.broker: Broker

    async def prepare(self) -> None:
        self.broker = await self.machine.open_broker()
        await self.broker.create_topic(TOPIC)
        producer = await self.broker.open_producer(TOPIC, "p")
        await publish(self.broker, producer, *(b"%d" % number for number in range(8)))
        start = SubscriptionStart(StartAt.EARLIEST)
        await self.broker.create_subscription(TOPIC, "s", SubscriptionType.SHARED, start, AT_ONCE)

    async def consume(self, *order: int) -> None:
        """Gives back what is poison, in this order, and acks the rest, until nothing is left."""
        reader = await subscribe(self.broker, kind=SubscriptionType.SHARED)
        await quiet()
        for offset in order:
            reader.nack(offset)
            await quiet()
        reader.ack(*(offset for offset in range(8) if offset not in POISON))
        await until(lambda: not reader.subscription.lag)

    async def restart(self, *, power: bool = False) -> None:
        await (self.machine.power_loss() if power else self.machine.kill())
        self.store.resume()
        self.broker = await self.machine.open_broker()

    async def finish(self) -> None:
        """The next life: the same messages fail, in another order."""
        await asyncio.wait_for(self.consume(*reversed(POISON)), HANGS_SECONDS)
        letters = (await stored_rows(self.broker, DEAD)).values()
        sources = sorted(int(letter["headers"]["x-original-topic-offset"]) for letter in letters)
        assert sources == [*POISON], f"dead letters of {sources}"


async def test_hazard_41_a_crash_at_any_metadata_write_yields_one_dead_letter() -> None:
    whole = DeadLetterRun()
    await whole.prepare()
    before = whole.store.writes
    await whole.consume(*POISON)
    await quiet()
    writes = whole.store.writes - before
    assert writes > 6
    for write in range(writes):
        for carried_out in (False, True):
            run = DeadLetterRun()
            await run.prepare()
            run.store.halt_at(write, applied=carried_out)
            working = asyncio.ensure_future(run.consume(*POISON))
            await asyncio.wait_for(run.store.halted.wait(), HANGS_SECONDS)
            await quiet()
            working.cancel()
            await run.restart()
            await run.finish()


@pytest.mark.parametrize("mode", SyncMode)
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
async def test_hazard_41_a_crash_at_any_step_of_the_disk_yields_one_dead_letter(mode: SyncMode, power: bool) -> None:
    crashed, operations = True, 0
    while crashed:
        run = DeadLetterRun(mode)
        await run.prepare()
        await run.broker.storage.wait_durable()
        run.machine.disk.crash_after(operations)
        crashed = not await run.machine.survives(run.consume(*POISON))
        await run.restart(power=power)
        await run.finish()
        operations += 1
    assert operations > 2


async def test_hazard_41_a_start_updates_the_cursor_with_the_last_dead_letter_once() -> None:
    """Otherwise the next letter would take its place, and the start after that would not find it."""
    run = DeadLetterRun()
    await run.prepare()
    reader = await subscribe(run.broker, kind=SubscriptionType.SHARED)
    await quiet()
    run.store.halt_at(4, applied=False)  # two for the topic of the letters, two for their producer, the cursor
    reader.nack(3)
    await asyncio.wait_for(run.store.halted.wait(), HANGS_SECONDS)
    await run.restart()
    revision = await run.store.revision()
    assert run.broker.subscription(TOPIC, "s").lag == 7
    await run.restart()
    assert await run.store.revision() == revision
    reader = await subscribe(run.broker, kind=SubscriptionType.SHARED)
    await quiet()
    run.store.halt_at(1, applied=False)  # one for their producer, then the cursor
    reader.nack(5)
    await asyncio.wait_for(run.store.halted.wait(), HANGS_SECONDS)
    await run.restart()
    assert run.broker.subscription(TOPIC, "s").lag == 6, "the log knows of 5 now, and 3 is in the cursor"
    await run.finish()


@pytest.mark.parametrize("changes", [["/default/other"], [None, "/default/other"]])
async def test_hazard_41_a_letter_in_the_topic_of_the_policy_before_counts_too(changes: list[str | None]) -> None:
    """The policy changes between a letter and the cursor that knows of it; then the broker is killed."""
    run = DeadLetterRun()
    await run.prepare()
    reader = await subscribe(run.broker, kind=SubscriptionType.SHARED)
    await quiet()
    run.store.halt_at(4, applied=False)  # two for the topic of the letters, two for their producer, the cursor
    reader.nack(3)
    await asyncio.wait_for(run.store.halted.wait(), HANGS_SECONDS)
    for dead in changes:
        poison = PoisonPolicy.DEAD_LETTER if dead is not None else PoisonPolicy.BLOCK
        await run.broker.set_failure_policy(TOPIC, "s", replace(AT_ONCE, poison=poison, dead_letter_topic=dead))
    await run.restart()
    assert run.broker.subscription(TOPIC, "s").lag == 7, "the message has its dead letter"


async def test_hazard_41_a_message_that_fails_again_after_a_seek_gets_a_new_dead_letter() -> None:
    """A crash in between changes nothing: the dead letter from before the seek does not count."""
    run = DeadLetterRun()
    await run.prepare()
    await run.consume(*POISON)
    await run.broker.seek(TOPIC, "s", SubscriptionStart(StartAt.EARLIEST))
    await run.restart()
    assert run.broker.subscription(TOPIC, "s").lag == 8
    await run.consume(*POISON)
    letters = (await stored_rows(run.broker, DEAD)).values()
    assert sorted(letter["payload"] for letter in letters) == [b"3", b"3", b"5", b"5"]
