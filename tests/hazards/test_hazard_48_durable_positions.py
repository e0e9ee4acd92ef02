"""Hazard 48 through the broker: a reported position is there after a crash, and nothing is written below it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import limits
from icestream.broker import records
from icestream.broker.service import Broker
from icestream.model import SyncMode
from icestream.model.subscription_options import StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from tests.support.broker_machine import EARLIEST, TOPIC, BrokerMachine, publish, quiet, send, subscribe
from tests.support.faulty_store import FaultyStore
from tests.support.machine import HANGS_SECONDS
from tests.support.recording_consumer import RecordingConsumer

SHARDS = 3


async def started(machine: BrokerMachine, shards: int = 1, messages: int = 3) -> Broker:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC, shards)
    producer = await broker.open_producer(TOPIC, "p")
    for shard in range(shards):
        await publish(broker, producer, *[b"x"] * messages, shard=shard)
    return broker


async def cursors(machine: BrokerMachine, shards: int = SHARDS) -> list[records.CursorRecord]:
    """The stored cursors of all shards."""
    keys = [records.cursor_key(TOPIC, "s", shard, shards) for shard in range(shards)]
    entries = [(key, await machine.store.get(key)) for key in keys]
    return [records.decode(records.CursorRecord, key, entry.value) for key, entry in entries if entry is not None]


@pytest.mark.asyncio
async def test_hazard_48_a_new_subscription_gets_messages_after_its_reply_through_any_crash() -> None:
    machine = BrokerMachine()
    broker = await started(machine)
    await subscribe(broker, start=SubscriptionStart(StartAt.LATEST))
    await publish(broker, await broker.open_producer(TOPIC, "p"), b"after", b"the answer")
    await machine.kill()
    broker = await machine.open_broker()
    reader = await subscribe(broker, start=SubscriptionStart(StartAt.LATEST))
    await quiet()
    assert reader.sink.offsets == [3, 4]


@pytest.mark.asyncio
async def test_hazard_48_a_crash_during_creation_leaves_all_cursors_or_nothing() -> None:
    outcomes, write, is_over = set[bool](), 0, False
    while not is_over:
        for carried_out in (False, True):
            machine = BrokerMachine()
            store = machine.store = FaultyStore(machine.clock, survives_close=True)
            broker = await started(machine, SHARDS)
            store.halt_at(write, applied=carried_out)
            joining = asyncio.ensure_future(subscribe(broker, start=SubscriptionStart(StartAt.LATEST)))
            halted = asyncio.ensure_future(store.halted.wait())
            await asyncio.wait({joining, halted}, timeout=HANGS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            is_over = joining.done()
            await machine.kill()
            store.resume()
            is_created = "s" in (await machine.open_broker()).topics.get(TOPIC).subscriptions
            assert is_created or not is_over
            assert [cursor.offset for cursor in await cursors(machine)] == ([3] * SHARDS if is_created else [])
            outcomes.add(is_created)
            await machine.kill()
        write += 1
    assert outcomes == {False, True}
    assert write > 2


@pytest.mark.asyncio
async def test_hazard_48_a_crash_during_a_seek_moves_every_shard_or_none() -> None:
    for carried_out in (False, True):
        machine = BrokerMachine()
        store = machine.store = FaultyStore(machine.clock, survives_close=True)
        broker = await started(machine, SHARDS)
        await subscribe(broker, start=SubscriptionStart(StartAt.LATEST))
        store.halt_at(0, applied=carried_out)
        seeking = asyncio.ensure_future(broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 1)))
        await asyncio.wait_for(store.halted.wait(), HANGS_SECONDS)
        assert not seeking.done(), "a seek is not answered before it is durable"
        await machine.kill()
        store.resume()
        broker = await machine.open_broker()
        places = [
            (delivery.dispatcher.acked.position, delivery.generation)
            for delivery in broker.subscription(TOPIC, "s").deliveries
        ]
        assert places == [(1, 1) if carried_out else (3, 0)] * SHARDS


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", SubscriptionType)
async def test_hazard_48_acks_from_before_a_seek_are_ignored_before_and_after_a_restart(
    kind: SubscriptionType,
) -> None:
    machine = BrokerMachine()
    broker = await started(machine, messages=5)
    reader = await subscribe(broker, kind=kind)
    await quiet()
    assert sorted(reader.sink.offsets) == [0, 1, 2, 3, 4] or kind is SubscriptionType.KEY_SHARED
    before = reader.subscription.delivery(0).generation
    await broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 2))
    for restarts in (False, True):
        if restarts:
            await machine.kill()
            broker = await machine.open_broker()
            reader = await subscribe(broker, kind=kind)
            await quiet()
        delivery = reader.subscription.delivery(0)
        delivery.ack([(0, 5)], before)
        delivery.nack([(0, 5)], before, 0)
        if reader.subscription.allows_cumulative_ack:
            delivery.ack_through(4, before)
        assert (delivery.dispatcher.acked.position, delivery.dispatcher.attempts) == (2, [])
        assert reader.subscription.lag == 3
        assert delivery.generation == before + 1


@pytest.mark.asyncio
async def test_hazard_48_messages_queued_for_a_slow_consumer_are_not_sent_after_the_seek() -> None:
    broker = await started(BrokerMachine(), messages=4)
    sink = RecordingConsumer()
    sink.is_full = True
    subscription, consumer = await broker.subscribe(TOPIC, "s", SubscriptionType.EXCLUSIVE, "c", sink, EARLIEST)
    subscription.give_credit(consumer, 100)
    await quiet()
    await broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 3))
    sink.is_full = False
    consumer.drained()
    await quiet()
    assert sink.positions == [(0, 1, 3)], "only what belongs to the new generation"
    assert consumer.credit_messages == 99, "credit for what does not come is given back"


# --- seed 002: every message that is written is above all positions of its shard --------------------------------------

PAST_THE_END = st.sampled_from([4, 50, 10**9, limits.OFFSET_MAX])
STARTS = st.one_of(
    st.sampled_from([SubscriptionStart(StartAt.LATEST), EARLIEST]),
    st.builds(SubscriptionStart, st.just(StartAt.OFFSET), st.integers(0, 12) | PAST_THE_END),
    st.builds(
        SubscriptionStart, st.just(StartAt.TIME), st.integers(0, 10**10) | st.sampled_from([-(2**63), 2**63 - 1])
    ),
)
NAMES = st.sampled_from("ab")
STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 3)),
    st.tuples(st.just("subscribe"), NAMES, STARTS),
    st.tuples(st.just("seek"), NAMES, STARTS),
    st.tuples(st.just("ack"), NAMES),
    st.tuples(st.just("wait"), st.sampled_from([1, 11])),
    st.tuples(st.sampled_from(["kill", "power loss", "stop"])),
)


class PositionModel:
    """One shard, subscriptions that begin and move anywhere, and messages that must never be below them."""

    def __init__(self, mode: SyncMode) -> None:
        self.machine = BrokerMachine(mode=mode)

    async def check_steps(self, steps: list[tuple[object, ...]]) -> None:
        self.broker = await started(self.machine)
        for step, *rest in steps:
            match step, rest:
                case "publish", [int() as count]:
                    await self.publish(count)
                case "subscribe", [str() as name, SubscriptionStart() as start]:
                    await subscribe(self.broker, name, start=start)
                case "seek", [str() as name, SubscriptionStart() as start]:
                    if name in self.subscriptions:
                        await self.broker.seek(TOPIC, name, start)
                case "ack", [str() as name]:
                    if name in self.subscriptions:
                        delivery = self.broker.subscription(TOPIC, name).delivery(0)
                        delivery.ack([(0, 2**62)], delivery.generation)
                case "wait", [int() as seconds]:
                    await self.machine.pass_time(seconds)
                case "stop", _:
                    await self.broker.shutdown()
                    self.broker = await self.machine.open_broker()
                case _:
                    await (self.machine.kill() if step == "kill" else self.machine.power_loss())
                    self.broker = await self.machine.open_broker()
            await quiet()
            await self.check()

    @property
    def subscriptions(self) -> list[str]:
        return list(self.broker.topics.get(TOPIC).subscriptions)

    async def positions(self) -> dict[str, int]:
        """The highest that each subscription holds, and that is stored of it."""
        positions = {}
        for name in self.subscriptions:
            dispatcher = self.broker.subscription(TOPIC, name).delivery(0).dispatcher
            positions[f"held {name}"] = max(dispatcher.acked.position, dispatcher.acked.end, dispatcher.next)
            key = records.cursor_key(TOPIC, name, 0, 1)
            entry = await self.machine.store.get(key)
            assert entry is not None
            positions[f"stored {name}"] = records.decode(records.CursorRecord, key, entry.value).end
        return positions

    async def publish(self, count: int) -> None:
        producer = await self.broker.open_producer(TOPIC, "p")
        below = await self.positions()
        sinks = {name: await subscribe(self.broker, name) for name in self.subscriptions}
        result = await send(self.broker, producer, *[b"y"] * count)
        assert result.base_offset is not None
        assert all(position <= result.base_offset for position in below.values()), (result, below)
        await quiet()
        for name, reader in sinks.items():
            assert reader.sink.offsets[-count:] == [*range(result.base_offset, result.base_offset + count)], name

    async def check(self) -> None:
        next_offset = (await self.broker.storage.create_subscription_stream("default", "a", "")).shards[0].visible
        assert all(position <= next_offset for position in (await self.positions()).values())


@pytest.mark.parametrize("mode", SyncMode)
@given(steps=st.lists(STEPS, min_size=4, max_size=16))
@settings(max_examples=25, deadline=None)
def test_hazard_48_no_message_is_written_below_a_held_or_stored_cursor(
    mode: SyncMode, steps: list[tuple[object, ...]]
) -> None:
    asyncio.run(PositionModel(mode).check_steps(steps))


@pytest.mark.asyncio
async def test_hazard_48_a_position_of_another_topic_of_the_same_name_does_not_count() -> None:
    machine = BrokerMachine()
    broker = await started(machine)
    await subscribe(broker, start=SubscriptionStart(StartAt.LATEST))
    entry = await machine.store.get(records.cursor_key(TOPIC, "s", 0, 1))
    assert entry is not None
    await broker.delete_topic(TOPIC)
    await broker.create_topic(TopicName("default", "a"))
    await broker.create_subscription(TOPIC, "s", SubscriptionType.EXCLUSIVE, EARLIEST)
    await publish(broker, await broker.open_producer(TOPIC, "p"), *[b"new"] * 5)
    await machine.store.put(records.cursor_key(TOPIC, "s", 0, 1), entry.value)  # as if its deletion had been lost
    await machine.kill()
    reader = await subscribe(await machine.open_broker())
    await quiet()
    assert reader.sink.payloads == [b"new"] * 5
