"""Hazard 17 through the broker: a hole, a million acks behind it, and crashes; nothing acked is forgotten."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from structlog.testing import capture_logs

from icestream import limits
from icestream.broker import records
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.broker.dispatch.dispatcher import Pause
from icestream.broker.service import Broker
from icestream.model import SyncMode, envelope
from icestream.model.block import ConstantColumn, encode_block
from icestream.model.shard import DeclaredGap
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.wal.tail import SectionRead
from tests.support.broker_machine import EARLIEST, TOPIC, BrokerMachine, quiet, stored_rows, subscribe
from tests.support.broker_machine import publish as put

pytestmark = pytest.mark.asyncio

SPAN = limits.ACKED_SPAN_OFFSETS_MAX
FOREVER = FailurePolicy(ack_timeout_ms=limits.FAILURE_POLICY_VALUE_MAX)
PIECE = 250


class RangeRecordingConsumer:
    """A front end that remembers which offsets it got, and nothing of each message."""

    peer, is_full = "test", False

    def __init__(self) -> None:
        self.received: deque[tuple[int, int]] = deque()

    def deliver(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None:
        start = section.base_offset + first_row
        self.received.append((start, start + rows))

    def gap(self, shard: int, generation: int, gap: DeclaredGap) -> None:
        raise AssertionError("there is none")

    def event(self, event: str, details: dict[str, object]) -> None:
        """Ignores events."""


async def consume(
    broker: Broker, sink: RangeRecordingConsumer, kind: SubscriptionType = SubscriptionType.EXCLUSIVE
) -> BrokerSubscription:
    subscription, consumer = await broker.subscribe(TOPIC, "s", kind, "c", sink, EARLIEST, (), FOREVER)
    subscription.give_credit(consumer, limits.CREDIT_MAX)
    await quiet()
    return subscription


async def ack_all_but_0(
    subscription: BrokerSubscription, sink: RangeRecordingConsumer, below: int = 2**62
) -> list[tuple[int, int]]:
    """Takes what comes and acks it, every second piece first, then the others; what was taken."""
    acked: list[tuple[int, int]] = []
    delivery = subscription.delivery(0)
    while sink.received and sink.received[0][0] < below:
        start, end = sink.received.popleft()
        acked.append((start, end))
        pieces = [(max(at, 1), min(at + PIECE, end)) for at in range(start, end, PIECE)]
        for piece in pieces[1::2] + pieces[::2]:
            delivery.ack([piece] if piece[0] < piece[1] else [], delivery.generation)
            assert len(delivery.dispatcher.acked) <= limits.ACKED_RANGES_MAX
        if not sink.received:
            await quiet()  # the next messages are read from the disk
    return acked


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


async def publish(broker: Broker, *rows: int) -> None:
    producer = await broker.open_producer(TOPIC, "p")
    for count in rows:
        await broker.publish(producer, 0, encode_block(count, {envelope.PAYLOAD: ConstantColumn(b"x")}))


async def test_hazard_17_a_hole_and_a_million_acks_and_a_crash() -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await publish(broker, SPAN, 5_000)
    sink = RangeRecordingConsumer()
    subscription = await consume(broker, sink)

    flushed = await ack_all_but_0(subscription, sink, below=700_000)
    await machine.pass_time(11)
    since = await ack_all_but_0(subscription, sink)
    assert merged(flushed + since) == [(0, SPAN)]
    delivery = subscription.delivery(0)
    assert (delivery.dispatcher.acked.ranges, delivery.dispatcher.pause) == ([(1, SPAN)], Pause.ACKED_FULL)
    await machine.kill()

    broker, sink = await machine.open_broker(), RangeRecordingConsumer()
    subscription = await consume(broker, sink)
    again = await ack_all_but_0(subscription, sink)
    assert merged(again) == [(0, 1), *merged(since)], "the hole and what was acked since the last flush, nothing else"
    delivery = subscription.delivery(0)
    assert delivery.dispatcher.pause is Pause.ACKED_FULL
    delivery.ack([(0, 1)], delivery.generation)
    await quiet()
    assert merged(await ack_all_but_0(subscription, sink)) == [(SPAN, SPAN + 5_000)], "delivery resumes"
    assert subscription.lag == 0


@pytest.mark.parametrize(
    ("kind", "pause"),
    [(SubscriptionType.EXCLUSIVE, Pause.ACKED_FULL), (SubscriptionType.SHARED, Pause.UNACKED_FULL)],
    ids=["exclusive", "shared"],
)
async def test_hazard_17_dispatch_pauses_at_the_bound_with_an_alarm_and_resumes(
    kind: SubscriptionType, pause: Pause
) -> None:
    """A consumer of a shared subscription is stopped somewhat earlier: the rest is for its neighbours."""
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await publish(broker, 20_000)
    machine.clock.advance(100)
    sink = RangeRecordingConsumer()
    pauses_before = metrics.DELIVERY_STANDSTILLS.values.get(pause.name.lower(), 0)
    subscription = await consume(broker, sink, kind)
    delivery, got = subscription.delivery(0), list[int]()
    while sink.received:
        fresh = list(range(*sink.received.popleft()))
        got += fresh
        delivery.ack([(offset, offset + 1) for offset in fresh if offset % 2], delivery.generation)
    with capture_logs() as logs:
        await machine.pass_time(limits.STANDSTILL_MS / 1000 + 1)
    acked = delivery.dispatcher.acked
    assert delivery.dispatcher.pause is pause
    assert limits.ACKED_RANGES_MAX * 0.9 < len(acked) <= limits.ACKED_RANGES_MAX
    (alarm,) = [log for log in logs if log["event"] == "delivery stalled"]
    assert (alarm["where"], alarm["unacked_from"], alarm["unacked_to"]) == ("/default/a:s:0", 0, 0)
    assert (alarm["reason"], alarm["age_seconds"], alarm["log_level"]) == (pause.value, 110, "warning")
    assert metrics.DELIVERY_STANDSTILLS.values[pause.name.lower()] == pauses_before + 1

    key = records.cursor_key(TOPIC, "s", 0, 1)
    entry = await machine.store.get(key)
    assert entry is not None
    assert len(entry.value) < 32 * limits.KIB
    assert records.decode(records.CursorRecord, key, entry.value).ranges == acked.ranges

    neighbour = RangeRecordingConsumer()
    other, consumer = await broker.subscribe(TOPIC, "t", SubscriptionType.SHARED, "c", neighbour, EARLIEST)
    other.give_credit(consumer, 5_000)
    await quiet()
    assert merged(list(neighbour.received)) == [(0, 5_000)], "another subscription does not notice"

    delivery.ack([(0, got[-1] + 1)], delivery.generation)
    await quiet()
    assert merged(list(sink.received))[0][0] == got[-1] + 1


@pytest.mark.parametrize("end", ["stop", "kill", "power loss"])
async def test_hazard_17_twenty_restarts_and_the_poison_message_ends_in_the_dead_letters(end: str) -> None:
    """Each life sees it fail once. What failed before a flush, or an orderly stop, is known in the next one."""
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await publish(broker, 10)
    dead = TopicName("default", "dead")
    policy = FailurePolicy(20, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(dead))
    attempts: list[int] = []
    for _ in range(21):
        reader = await subscribe(broker, kind=SubscriptionType.SHARED, failure=policy)
        await quiet()
        if not attempts:
            reader.ack(*(offset for offset in range(10) if offset != 5))
        attempts += [attempt for offset, _, attempt in reader.sink.received if offset == 5]
        reader.nack(5)
        if end == "stop":
            await broker.shutdown()
        else:
            await machine.pass_time(0.5)
            await machine.pass_time(10)
            await (machine.kill() if end == "kill" else machine.power_loss())
        broker = await machine.open_broker()
    await quiet()
    letters: list[Any] = list((await stored_rows(broker, dead)).values())
    assert attempts[0] == 0
    assert attempts == sorted(attempts)
    assert [letter["headers"]["x-delivery-attempt"] for letter in letters] == ["21"], (
        "the attempts before the restarts were not counted"
    )
    assert broker.subscription(TOPIC, "s").lag == 0


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_hazard_17_gaps_of_unused_offsets_do_not_count_against_the_span(
    kind: SubscriptionType,
) -> None:
    """A gap of unused numbers is wider than the span of acked messages. It holds none, so it does not count."""
    machine = BrokerMachine(mode=SyncMode.PERIODIC)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    for life in range(3):
        producer = await broker.open_producer(TOPIC, "p")
        base = await put(broker, producer, b"%d" % life, keys=[b"%d" % life])
        assert base >= life * limits.RESERVE_BLOCK_OFFSETS
        reader = await subscribe(broker, kind=kind, failure=FOREVER)
        await quiet()
        assert reader.sink.offsets == ([0, base] if life else [0]), "the old one, and the new one"
        if life:
            reader.ack(base)
        await machine.pass_time(11)
        await machine.kill()
        broker = await machine.open_broker()


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_hazard_17_time_outs_are_counted_over_a_stop(kind: SubscriptionType) -> None:
    """The consumer neither acks nor nacks: the message fails by its timeout alone."""
    policy = FailurePolicy(ack_timeout_ms=2_000, max_redelivery_count=100, base_delay_ms=1)
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await publish(broker, 1)
    await subscribe(broker, kind=kind, failure=policy)
    await machine.pass_time(11)
    (failed,) = broker.subscription(TOPIC, "s").delivery(0).dispatcher.attempts
    assert failed[2] >= 4
    await broker.shutdown()

    broker = await machine.open_broker()
    (attempts,) = broker.subscription(TOPIC, "s").delivery(0).dispatcher.attempts
    assert attempts == failed
