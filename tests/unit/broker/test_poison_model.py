"""Messages that fail, against a plain model: each is acked by a consumer or becomes one dead letter, whatever happens.

Consumers ack, give back, stay silent and go; policies change; the broker is stopped and killed, the power fails. Above
all it is killed while it stores a dead letter, before a write of the metadata store: the letter may be stored without a
record of it.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.broker.broker_options import BrokerOptions
from icestream.broker.service import Broker
from icestream.model import SyncMode
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType
from icestream.model.topic_name import TopicName
from tests.support.broker_machine import (
    TOPIC,
    BrokerMachine,
    SubscriptionReader,
    publish,
    quiet,
    stored_rows,
    subscribe,
)
from tests.support.faulty_store import FaultyStore

DEAD = TopicName("default", "dead")
KINDS = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED, SubscriptionType.EXCLUSIVE]
STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["nack", "nack", "ack"]), st.integers(0, 30)),
    st.tuples(st.just("time"), st.sampled_from([1, 3, 11])),
    st.tuples(st.sampled_from(["stop", "kill", "power loss"]), st.just(0)),
    *[st.tuples(st.just("kill before a write"), st.integers(0, 4))] * 2,
    st.tuples(st.just("leave"), st.integers(0, 1)),
    st.tuples(st.just("policy"), st.integers(0, 2)),
)


def policy(redeliveries: int) -> FailurePolicy:
    return FailurePolicy(redeliveries, 5_000, 500, 2_000, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(DEAD))


class PoisonScenario:
    def __init__(self, mode: SyncMode, kind: SubscriptionType) -> None:
        self.machine = BrokerMachine(mode=mode, broker=BrokerOptions(unacked_max=9))
        self.store = self.machine.store = FaultyStore(self.machine.clock, survives_close=True)
        self.kind = kind
        self.published = 0
        self.acked: set[bytes] = set()
        self.broker: Broker
        self.readers: list[SubscriptionReader] = []

    async def check_steps(self, steps: list[tuple[str, int]]) -> None:
        await self.start()
        for step, number in steps:
            await self.carry_out(step, number)
            await quiet()
            await self.letters()
        await self.drain()
        everything = {b"%d" % number for number in range(self.published)}
        assert everything == self.acked | await self.letters(), "nothing is lost"
        await self.broker.shutdown()

    async def start(self) -> None:
        self.broker = await self.machine.open_broker()
        if self.broker.topics.find(TOPIC) is None:
            await self.broker.create_topic(TOPIC)
        count = 1 if self.kind is SubscriptionType.EXCLUSIVE else 2
        self.readers = [await self.join(number) for number in range(count)]
        await quiet()

    async def join(self, number: int) -> SubscriptionReader:
        return await subscribe(self.broker, kind=self.kind, consumer=f"c{number}", failure=policy(1))

    async def carry_out(self, step: str, number: int) -> None:
        match step:
            case "publish":
                await self.publish(number)
            case "time":
                await self.machine.pass_time(number)
            case "policy":
                await self.broker.set_failure_policy(TOPIC, "s", policy(number))
            case "leave":
                number %= len(self.readers)
                self.readers[number].leave()
                self.readers[number] = await self.join(number)
            case "nack" | "ack":
                unacked = self.unacked()
                if unacked:
                    reader, offset = unacked[number % len(unacked)]
                    reader.nack(offset) if step == "nack" else self.ack(reader, offset)
            case "kill before a write":
                await self.fail_until_write(number)
                await self.end("kill")
                self.store.resume()
                await self.start()
            case _:
                await self.end(step)
                await self.start()

    async def fail_until_write(self, write: int) -> None:
        """Every message in flight fails until it is dead-lettered, or until no consumer is left."""
        self.store.halt_at(write, applied=False)
        for _ in range(4):
            for reader, offset in self.unacked():
                reader.nack(offset)
            await self.machine.pass_time(2)

    async def end(self, step: str) -> None:
        if step == "stop":
            await self.broker.shutdown()
        elif step == "kill":
            await self.machine.kill()
        else:
            await self.broker.storage.wait_durable()  # what the mode does not promise is not the matter here
            await self.machine.power_loss()

    async def publish(self, count: int) -> None:
        numbers = range(self.published, self.published + count)
        producer = await self.broker.open_producer(TOPIC, "p")
        keys = [b"key %d" % (number % 3) for number in numbers]
        await publish(self.broker, producer, *(b"%d" % number for number in numbers), keys=keys)
        self.published += count

    def unacked(self) -> list[tuple[SubscriptionReader, int]]:
        """The messages in flight, with the reader of each, in order."""
        by_id = {reader.consumer.id: reader for reader in self.readers}
        runs = self.readers[0].subscription.delivery(0).dispatcher.in_flight
        return [(by_id[run.value.consumer], offset) for run in runs for offset in range(run.start, run.end)]

    def ack(self, reader: SubscriptionReader, offset: int) -> None:
        reader.ack(offset)
        self.acked.add(reader.sink.payloads[reader.sink.offsets.index(offset)])

    async def letters(self) -> set[bytes]:
        if self.broker.topics.find(DEAD) is None:
            return set()
        payloads = [row["payload"] for row in (await stored_rows(self.broker, DEAD)).values()]
        assert len(payloads) == len(set(payloads)), f"a letter is there twice: {payloads}"
        return set(payloads)

    async def drain(self) -> None:
        """Whatever is left fails: what has a letter that its cursor does not know would get another."""
        subscription = self.readers[0].subscription
        for _ in range(60):
            for reader, offset in self.unacked():
                reader.nack(offset)
            await self.machine.pass_time(3)
            if not subscription.lag:
                return
        raise AssertionError(f"{subscription.lag} messages never come")


@pytest.mark.parametrize("mode", SyncMode)
@given(kind=st.sampled_from(KINDS), steps=st.lists(STEPS, min_size=5, max_size=40))
@settings(max_examples=25, deadline=None)
def test_each_message_is_acked_or_becomes_one_dead_letter(
    mode: SyncMode, kind: SubscriptionType, steps: list[tuple[str, int]]
) -> None:
    asyncio.run(PoisonScenario(mode, kind).check_steps(steps))
