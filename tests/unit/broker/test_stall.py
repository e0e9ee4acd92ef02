"""Stalls: consumers and operators are told why messages are not delivered, and when that is over."""

from __future__ import annotations

import pytest

from icestream import limits
from icestream.broker.delivery_health import DeliveryHealth
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.lag_monitor import LagMonitor
from icestream.broker.stall import DeliveryStalls, StallKind
from icestream.model.cursor import AckedOffsets
from icestream.model.subscription_options import (
    FailurePolicy,
    PoisonPolicy,
    StartAt,
    SubscriptionStart,
    SubscriptionType,
)
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.tasks import Tasks
from tests.support.broker_machine import TOPIC, BrokerMachine, SubscriptionReader, publish, quiet, subscribe
from tests.support.recording_consumer import RecordingConsumer

BLOCK = FailurePolicy(0, 30_000, 0, 0, poison=PoisonPolicy.BLOCK)
SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


async def reader_of(machine: BrokerMachine, messages: int, kind: SubscriptionType = SHARED) -> SubscriptionReader:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    keys = [b"key %d" % (number % 2) for number in range(messages)]
    await publish(broker, producer, *[b"%d" % number for number in range(messages)], keys=keys)
    reader = await subscribe(broker, kind=kind, failure=BLOCK)
    await quiet()
    return reader


def stall_events(sink: RecordingConsumer) -> list[tuple[object, ...]]:
    """The stall events that a consumer received, as (event, kind, shard, offset)."""
    return [
        (event, details["kind"], details["shard"], details.get("offset"))
        for event, details in sink.event_details
        if event in ("stalled", "resumed")
    ]


STALLED_AT_1 = ("stalled", "blocked", 0, 1)
RESUMED = ("resumed", "blocked", 0, None)


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["ack", "seek", "drop"])
async def test_consumers_are_notified_when_a_blocking_message_appears_and_is_gone(
    end: str,
) -> None:
    reader = await reader_of(BrokerMachine(), 3)
    broker = reader.broker
    assert reader.subscription.delivery(0).stalls == []
    reader.nack(1, reason="cannot parse it")
    await quiet()
    other = await subscribe(broker, consumer="other", kind=SHARED)
    await quiet()
    assert stall_events(reader.sink) == stall_events(other.sink) == [STALLED_AT_1]
    (event,) = [details for event, details in reader.sink.event_details if event == "stalled"]
    assert "message 1 in shard 0 of /default/a failed 1 time (cannot parse it)" in str(event["reason"])
    assert "subscription s is poison=block: nothing new is delivered" in str(event["reason"])
    assert "icestream sub policy /default/a s poison=dead-letter" in str(event["hint"])
    (stall,) = reader.subscription.delivery(0).stalls
    assert (stall.kind, stall.offset, stall.as_event()) == (StallKind.BLOCKED, 1, event)
    match end:
        case "ack":
            reader.ack(1)
        case "seek":
            await broker.seek(TOPIC, "s", SubscriptionStart(StartAt.OFFSET, 2))
        case "drop":
            await broker.set_failure_policy(TOPIC, "s", FailurePolicy(0, 30_000, 0, 0, poison=PoisonPolicy.DROP))
    await quiet()
    assert stall_events(reader.sink) == stall_events(other.sink) == [STALLED_AT_1, RESUMED]
    assert reader.subscription.delivery(0).stalls == []


@pytest.mark.asyncio
async def test_the_next_blocking_message_is_reported_when_the_first_is_resolved() -> None:
    reader = await reader_of(BrokerMachine(), 4)
    for offset in (2, 1, 3):
        reader.nack(offset)
    await quiet()
    assert stall_events(reader.sink) == [("stalled", "blocked", 0, 2)], "once, not for each of a batch"
    assert [stall.offset for stall in reader.subscription.delivery(0).stalls] == [1]
    reader.ack(1, 2)
    assert stall_events(reader.sink)[1:] == [("stalled", "blocked", 0, 3)]
    reader.ack(3)
    assert stall_events(reader.sink)[2:] == [RESUMED]


@pytest.mark.asyncio
async def test_a_consumer_that_joins_after_a_restart_is_notified() -> None:
    machine = BrokerMachine()
    reader = await reader_of(machine, 3)
    reader.nack(1)
    await quiet()
    await reader.broker.shutdown()
    again = await subscribe(await machine.open_broker(), kind=SHARED)
    await quiet()
    assert stall_events(again.sink) == [STALLED_AT_1]


@pytest.mark.asyncio
async def test_the_reason_of_a_key_shared_stall_names_one_key() -> None:
    reader = await reader_of(BrokerMachine(), 4, KEY_SHARED)
    reader.nack(1)
    await quiet()
    ((_, details),) = reader.sink.event_details
    assert stall_events(reader.sink) == [STALLED_AT_1]
    assert "messages of its key are not delivered" in str(details["reason"])


@pytest.mark.asyncio
async def test_a_stall_is_shown_by_readiness_and_the_node_stays_ready() -> None:
    reader = await reader_of(BrokerMachine(), 3)
    health = reader.broker.delivery_health
    assert list(health.checks()) == []
    reader.nack(1)
    await quiet()
    (check,) = health.checks()
    assert (check.name, check.ok, check.is_needed) == ("subscriptions", False, False)
    assert check.reason.startswith("/default/a:s:0: blocked at offset 1: message 1 in shard 0 of /default/a failed")
    reader.ack(1)
    await quiet()
    assert list(health.checks()) == []
    reader.nack(2)
    await quiet()
    assert list(health.checks())
    await reader.broker.delete_subscription(TOPIC, "s")
    assert list(health.checks()) == [], "what is gone is not stalled"


def test_readiness_names_some_subscriptions_and_counts_the_rest() -> None:
    health, clock = DeliveryHealth(), SimulatedClock()
    dispatcher = Dispatcher(SHARED, FailurePolicy(), AckedOffsets())
    for number in range(limits.HEALTH_SUBSCRIPTIONS_MAX + 2):
        stalls = DeliveryStalls(0, clock.wall_us, list)
        stalls.begin(StallKind.BLOCKED, number, "poison")
        health.report(f"s{number}", stalls, LagMonitor("s", dispatcher, clock, Tasks(raise_it), lambda: None))
    (check,) = health.checks()
    assert check.reason.startswith("s0: blocked at offset 0: poison; s1: ")
    assert check.reason.endswith("s4: blocked at offset 4: poison; and 2 more")


def raise_it(error: BaseException) -> None:
    raise error


def test_kinds_are_apart_and_texts_fit_a_frame() -> None:
    sink, now_us = RecordingConsumer(), iter(range(10))
    stalls = DeliveryStalls(3, lambda: next(now_us), lambda: [sink])
    stalls.begin(StallKind.BLOCKED, 5, "poison")
    stalls.begin(StallKind.UNREADABLE, 9, "ü" * 5_000, "h" * 5_000)
    stalls.begin(StallKind.UNREADABLE, 9, "another reason")
    stalls.begin(StallKind.UNREADABLE, 9, "another reason")
    assert stall_events(sink) == [
        ("stalled", "blocked", 3, 5),
        ("stalled", "unreadable", 3, 9),
        ("stalled", "unreadable", 3, 9),
    ]
    long = sink.event_details[1][1]
    assert len(str(long["reason"]).encode()) == limits.ERROR_MESSAGE_BYTES_MAX
    assert len(str(long["hint"]).encode()) == limits.ERROR_HINT_BYTES_MAX
    assert [stall.since_us for stall in stalls] == [0, 1], "since it began"
    stalls.end(StallKind.UNREADABLE)
    stalls.end(StallKind.UNREADABLE)
    assert [stall.kind for stall in stalls] == [StallKind.BLOCKED]
    assert stall_events(sink)[3:] == [("resumed", "unreadable", 3, None)]
