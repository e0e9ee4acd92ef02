"""Hazard 7 through the broker: names, epochs and fixed shards. Each message of each incarnation of a producer is stored
once and in order, whatever happens to the producer, its connection, the disk and the broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from errno import ENOSPC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.publish_result import PublishOutcome, PublishResult
from icestream.broker.service import Broker
from icestream.model.topic_name import TopicName
from tests.support.broker_machine import TOPIC, BrokerMachine, block, quiet, stored_rows
from tests.support.held_sink import HeldSink
from tests.support.machine import turn


async def opened(machine: BrokerMachine, shards: int = 1) -> Broker:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC, shards)
    return broker


async def store(
    broker: Broker, producer: BrokerProducer, first: int, *payloads: bytes, shard: int = 0
) -> PublishResult:
    return await broker.publish(producer, shard, block(*payloads, producer=producer, first=first))


async def payloads(broker: Broker, shard: int = 0) -> list[bytes]:
    return [row["payload"] for row in (await stored_rows(broker, shard=shard)).values()]


# --- names and epochs ---


@pytest.mark.asyncio
@pytest.mark.parametrize("restarts", [False, True])
async def test_hazard_07_reopening_a_name_keeps_its_id_and_returns_a_new_epoch_and_the_last_number(
    restarts: bool,
) -> None:
    machine = BrokerMachine()
    broker = await opened(machine, 2)
    first = await broker.open_producer(TOPIC, "p")
    assert (first.epoch, broker.last_sequence(first, 0)) == (1, None)
    await store(broker, first, 0, b"a", b"b", shard=1)
    if restarts:
        await machine.kill()
        broker = await machine.open_broker()
    again = await broker.open_producer(TOPIC, "p")
    other = await broker.open_producer(TOPIC, "q")
    assert (again.id, again.epoch) == (first.id, 2)
    assert [broker.last_sequence_of_name(again, shard) for shard in (0, 1)] == [None, 1]
    assert [broker.last_sequence(again, shard) for shard in (0, 1)] == [None, None], "these are not its own"
    assert other.id != first.id


@pytest.mark.asyncio
async def test_hazard_07_a_restarted_process_that_counts_from_0_loses_nothing() -> None:
    """Danube gives it the same id, and takes its new messages for old ones."""
    broker = await opened(BrokerMachine())
    for life in range(3):
        producer = await broker.open_producer(TOPIC, "p")
        for number in range(3):
            assert (await store(broker, producer, number, b"%d.%d" % (life, number))).outcome is PublishOutcome.STORED
    assert await payloads(broker) == [b"%d.%d" % (life, number) for life in range(3) for number in range(3)]


@pytest.mark.asyncio
@pytest.mark.parametrize("restarts", [False, True])
async def test_hazard_07_an_older_instance_is_refused_in_every_shard(restarts: bool) -> None:
    machine = BrokerMachine()
    broker = await opened(machine, 2)
    old = await broker.open_producer(TOPIC, "p", instance="old")
    await store(broker, old, 0, b"old")
    new = await broker.open_producer(TOPIC, "p", instance="new")
    for shard in (0, 1):
        with pytest.raises(errors.ProducerFenced):
            broker.publish(old, shard, block(b"zombie", producer=old, first=1))
    if restarts:
        await machine.kill()
        broker = await machine.open_broker()
    with pytest.raises(errors.ProducerFenced):
        await broker.open_producer(TOPIC, "p", instance="old", resumes=True)
    again = await broker.open_producer(TOPIC, "p", instance="new", resumes=True)
    assert again.epoch == new.epoch + 1
    assert [await payloads(broker, shard) for shard in (0, 1)] == [[b"old"], []]


@pytest.mark.asyncio
async def test_hazard_07_a_batch_under_an_epoch_that_is_not_the_producers_own_is_refused() -> None:
    broker = await opened(BrokerMachine())
    old = await broker.open_producer(TOPIC, "p")
    new = await broker.open_producer(TOPIC, "p")
    with pytest.raises(errors.InvalidInput, match="numbered by producer 1 epoch 1, but was sent by producer 1 epoch 2"):
        broker.publish(new, 0, block(b"x", producer=old))
    assert await payloads(broker) == []


@pytest.mark.asyncio
async def test_hazard_07_a_topic_that_is_created_again_has_other_producers() -> None:
    broker = await opened(BrokerMachine())
    first = await broker.open_producer(TOPIC, "p")
    await store(broker, first, 0, b"before")
    await broker.delete_topic(TOPIC)
    again = await broker.open_producer(TOPIC, "p")
    assert again.id > first.id
    assert broker.last_sequence(again, 0) is None
    assert (await store(broker, again, 0, b"after")).outcome is PublishOutcome.STORED
    assert await payloads(broker) == [b"after"]


@pytest.mark.asyncio
async def test_hazard_07_the_same_numbers_in_two_shards_are_two_messages() -> None:
    """The client keeps a retry in its shard: it names the shard in each request."""
    broker = await opened(BrokerMachine(), 2)
    producer = await broker.open_producer(TOPIC, "p")
    for shard in (0, 1, 0, 1):
        await store(broker, producer, 0, b"%d" % shard, shard=shard)
    assert [await payloads(broker, shard) for shard in (0, 1)] == [[b"0"], [b"1"]]


@pytest.mark.asyncio
async def test_hazard_07_batches_in_flight_never_exceed_what_a_retry_can_ask_for() -> None:
    machine, sink = BrokerMachine(), HeldSink()
    broker = await machine.open_broker(sink)
    assert machine.log is not None
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    sent = [
        broker.publish(producer, 0, block(b"x", producer=producer, first=first))
        for first in range(limits.PRODUCER_WINDOW_BATCHES)
    ]
    await quiet()
    assert producer.is_full(0), "the reader of its connection should wait"
    refused = broker.publish(producer, 0, block(b"y", producer=producer, first=len(sent)))
    await quiet()
    assert isinstance(refused.error, errors.InFlightFull)
    await turn(machine.log, sink)
    assert not producer.is_full(0)
    again = [
        broker_answer
        for first in range(len(sent))
        for broker_answer in [await answer_of(broker, producer, first, machine, sink)]
    ]
    assert [result.base_offset for result in again if result.outcome is PublishOutcome.DUPLICATE] == [*range(len(sent))]


async def answer_of(
    broker: Broker, producer: BrokerProducer, first: int, machine: BrokerMachine, sink: HeldSink
) -> PublishResult:
    assert machine.log is not None
    broker.reset_producer(producer, 0)
    stored = broker.publish(producer, 0, block(b"x", producer=producer, first=first))
    await turn(machine.log, sink)
    return stored


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["by age", "by number"])
async def test_hazard_07_a_forgotten_producer_must_open_again_instead_of_silently_restarting(how: str) -> None:
    machine = BrokerMachine()
    broker = await opened(machine)
    producer = await broker.open_producer(TOPIC, "p")
    await store(broker, producer, 0, b"once")
    assert machine.log is not None
    if how == "by age":
        machine.clock.advance(limits.PRODUCER_AGE_SECONDS_DEFAULT + 60)
        await machine.log.checkpoint()
    else:
        machine.log.state.producers.count_max = 1
        await store(broker, await broker.open_producer(TOPIC, "q"), 0, b"another")
    with pytest.raises(errors.UnknownProducer):
        await store(broker, producer, 0, b"once")
    again = await broker.open_producer(TOPIC, "p")
    assert (again.id, again.epoch) == (producer.id, 2)
    assert (await store(broker, again, 0, b"new")).outcome is PublishOutcome.STORED
    assert (await payloads(broker)).count(b"once") == 1


# --- everything together ---


@dataclass
class SentBatch:
    first: int
    payloads: list[bytes]
    answers: list[PublishResult] = field(default_factory=list)


class ModelClient:
    """A producer as its process knows it: numbers from 0, the shard of a number is fixed, in doubt it sends again."""

    def __init__(self, incarnation: int, shards: int) -> None:
        self.incarnation = incarnation
        self.producer: BrokerProducer | None = None
        self.next = [0] * shards
        self.stored = [False] * shards  # something, since it connected
        self.pending: list[list[SentBatch]] = [[] for _ in range(shards)]

    def make(self, shard: int, rows: int) -> SentBatch:
        first = self.next[shard]
        self.next[shard] += rows
        batch = SentBatch(first, [b"%d %d" % (self.incarnation, first + row) for row in range(rows)])
        self.pending[shard].append(batch)
        return batch


SHARDS = 2
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, SHARDS - 1), st.integers(1, 3)),
    st.tuples(st.just("send"), st.integers(0, SHARDS - 1), st.integers(1, 3)),
    st.tuples(st.just("send again"), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("disk"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["connect again", "start again", "kill", "power loss", "forget", "write fails"])),
)


class ProducerScenario:
    """Compares the answers that producers got with the messages that are stored in the end."""

    def __init__(self) -> None:
        self.machine = BrokerMachine()
        self.acked: dict[tuple[int, int, int], int] = {}  # (incarnation, shard, number) -> offset
        self.client = ModelClient(0, SHARDS)

    async def check_steps(self, steps: list[tuple[object, ...]]) -> None:
        await self.start()
        await self.broker.create_topic(TOPIC, SHARDS)
        await self.connect(resumes=False)
        for step, *rest in steps:
            match step, rest:
                case "send", [int() as shard, int() as rows]:
                    self.send(shard, self.client.make(shard, rows))
                case "send again", [int() as shard]:
                    for batch in self.client.pending[shard]:
                        self.send(shard, batch)
                case "disk", [int() as count]:
                    await self.disk(count)
                case "connect again", _:
                    await self.connect(resumes=True)
                case "start again", _:
                    self.client = ModelClient(self.client.incarnation + 1, SHARDS)
                    await self.connect(resumes=False)
                case "forget", _:
                    await self.forget()
                case "write fails", _:
                    self.machine.disk.fail("write", ENOSPC)  # the next one, whenever that is
                    await self.disk(1000)
                    await self.connect(resumes=True)
                case _:
                    self.collect()
                    await (self.machine.kill() if step == "kill" else self.machine.power_loss())
                    await self.start()
                    await self.connect(resumes=True)
            await quiet()
            self.collect()
            await self.mend()
        await self.disk(1000)
        for _ in range(20):
            await self.mend()
            if any(self.client.pending):
                await self.connect(resumes=True)
                await self.disk(1000)
        await self.check()

    async def start(self) -> None:
        self.sink = HeldSink()
        self.broker = await self.machine.open_broker(self.sink)

    async def disk(self, count: int) -> None:
        assert self.machine.log is not None
        await turn(self.machine.log, self.sink, count)
        await quiet()
        self.collect()

    async def connect(self, *, resumes: bool) -> None:
        """Opens the producer as the native front end does: batches of its former connection are settled first."""
        client = self.client
        self.machine.clock.advance(2)  # a file that could not be made is tried again after a second
        producer = await self.broker.open_producer(TOPIC, "p", instance=str(client.incarnation), resumes=resumes)
        await self.disk(1000)
        client.producer, client.stored = producer, [False] * SHARDS
        for shard, pending in enumerate(client.pending):
            last = self.broker.last_sequence(producer, shard) if resumes else None
            recent = self.broker.recent_batches(producer, shard)
            for batch in pending:
                for first, rows, base in recent if resumes else ():
                    if first <= batch.first < first + rows:
                        self.note(shard, batch, base + batch.first - first)
            client.pending[shard] = [batch for batch in pending if last is None or batch.first > last]
            for batch in client.pending[shard]:
                batch.answers.clear()
                self.send(shard, batch)

    def send(self, shard: int, batch: SentBatch) -> None:
        producer = self.client.producer
        assert producer is not None
        if producer.is_full(shard):
            return
        data = block(*batch.payloads, producer=producer, first=batch.first)
        try:
            batch.answers.append(self.broker.publish(producer, shard, data))
        except (errors.AfterRefused, errors.LogStopped):
            """Until it connects again."""

    def collect(self) -> None:
        for shard, pending in enumerate(self.client.pending):
            for batch in list(pending):
                for result in [answer for answer in batch.answers if answer.outcome is not None]:
                    batch.answers.remove(result)
                    if result.error is None:
                        assert result.base_offset is not None
                        self.note(shard, batch, result.base_offset)
                        self.client.stored[shard] = True
                        if batch in pending:
                            pending.remove(batch)

    def note(self, shard: int, batch: SentBatch, base: int) -> None:
        for row in range(len(batch.payloads)):
            place = (self.client.incarnation, shard, batch.first + row)
            assert self.acked.setdefault(place, base + row) == base + row, "two offsets for one message"

    async def mend(self) -> None:
        """A write that failed while it ended a file has stopped the node: it is started again."""
        assert self.machine.log is not None
        if self.machine.log.stopped is not None:
            await self.machine.kill()
            await self.start()
            await self.connect(resumes=True)

    async def forget(self) -> None:
        """The broker forgets the producer's windows, after its batches in flight are answered: nothing is in doubt."""
        await self.disk(1000)
        assert self.machine.log is not None
        if any(self.client.pending):
            return
        self.machine.log.state.producers.expire(2**62)
        producer = self.client.producer
        assert producer is not None
        if self.client.stored[0]:
            stored = self.broker.publish(producer, 0, block(b"again", producer=producer, first=0))
            await self.disk(1000)
            assert isinstance(stored.error, errors.UnknownProducer)
        await self.connect(resumes=True)

    async def check(self) -> None:
        for shard in range(SHARDS):
            rows = await stored_rows(self.broker, shard=shard)
            seen = {offset: tuple(map(int, row["payload"].split())) for offset, row in rows.items()}
            assert [*seen.values()] == sorted(set(seen.values())), "each once, and in order"
            numbers: dict[int, list[int]] = defaultdict(list)
            for incarnation, number in seen.values():
                numbers[incarnation].append(number)
            for incarnation, stored in numbers.items():
                assert stored == [*range(len(stored))], f"incarnation {incarnation} has a hole: {stored}"
            mine = {place: offset for place, offset in self.acked.items() if place[1] == shard}
            for (incarnation, _, number), offset in mine.items():
                assert seen.get(offset) == (incarnation, number), "an acked message is missing"
            assert numbers[self.client.incarnation] == [*range(self.client.next[shard])], "every sent message is stored"


@given(st.lists(STEPS, min_size=5, max_size=30))
@settings(max_examples=60, deadline=None)
def test_hazard_07_each_message_of_each_incarnation_once_and_in_order(steps: list[tuple[object, ...]]) -> None:
    asyncio.run(ProducerScenario().check_steps(steps))


def test_hazard_07_names_are_compared_exactly() -> None:
    async def check() -> None:
        broker = await opened(BrokerMachine())
        await broker.create_topic(TopicName("default", "ab"))
        ids = [(await broker.open_producer(TOPIC, name)).id for name in ("p", "pp", "P", "p ")]
        ids += [(await broker.open_producer(TopicName("default", "ab"), "p")).id]
        assert len(set(ids)) == 5

    asyncio.run(check())
