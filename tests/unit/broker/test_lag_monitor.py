"""A subscription that falls behind although its consumers would take more is logged, counted and shown."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from icestream import limits
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.lag_monitor import GrowingLag, growing_lag
from icestream.model.subscription_options import FailurePolicy, SubscriptionType
from icestream.observability import metrics
from tests.support.broker_machine import TOPIC, BrokerMachine, SubscriptionReader, publish, quiet, subscribe

LOOK_SECONDS = limits.BEHIND_LOOK_MS // 1000
MANY = limits.BEHIND_MESSAGES_MIN


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([MANY] * limits.BEHIND_LOOKS + [MANY + 1], GrowingLag(MANY + 1, 1)),
        ([MANY] * limits.BEHIND_LOOKS, None),  # not looked at for long enough
        ([MANY] * (limits.BEHIND_LOOKS + 1), None),  # it does not grow
        ([9 * MANY, *[MANY] * limits.BEHIND_LOOKS], None),  # it catches up
        ([0] * limits.BEHIND_LOOKS + [MANY - 1], None),  # a handful
    ],
)
def test_a_subscription_falls_behind_when_its_lag_grows_for_half_a_minute(
    waiting: list[int], expected: GrowingLag | None
) -> None:
    assert growing_lag(waiting) == expected


async def one_key_at_a_time(machine: BrokerMachine, credit: int) -> tuple[SubscriptionReader, BrokerProducer]:
    """A consumer that takes a message of the only key and never acks it: what comes behind it waits."""
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    kind, failure = SubscriptionType.KEY_SHARED, FailurePolicy(ack_timeout_ms=600_000)
    return await subscribe(broker, kind=kind, credit=credit, failure=failure), producer


async def publish_for(machine: BrokerMachine, reader: SubscriptionReader, producer: BrokerProducer, looks: int) -> None:
    for _ in range(looks):
        for _ in range(2):
            await publish(reader.broker, producer, *[b"x"] * (MANY // 2), keys=[b"same"] * (MANY // 2))
        await machine.pass_time(LOOK_SECONDS)


@pytest.mark.asyncio
async def test_falling_behind_is_logged_once_a_minute_and_shown_until_it_catches_up() -> None:
    machine = BrokerMachine()
    reader, producer = await one_key_at_a_time(machine, credit=1_000)
    before, health = metrics.DELIVERY_BEHIND.value, reader.broker.delivery_health
    with capture_logs() as logs:
        await publish_for(machine, reader, producer, limits.BEHIND_LOOKS + 4)
    (warning,) = [log for log in logs if log["event"].startswith("subscription falls behind")]
    assert (warning["where"], warning["waiting"] > 5 * MANY) == ("/default/a:s:0", True)
    assert "messages_per_key" in warning["hint"], "what makes few keys fast"
    assert metrics.DELIVERY_BEHIND.value == before + 1
    (check,) = health.checks()
    assert check.reason.startswith("/default/a:s:0: falls behind, ")
    assert not check.is_needed
    await machine.pass_time(LOOK_SECONDS * (limits.BEHIND_LOOKS + 2))
    assert list(health.checks()) == [], "nothing more came, so it does not fall behind any more"
    with capture_logs() as logs:
        await publish_for(machine, reader, producer, limits.BEHIND_LOOKS + 4)
    assert len([log for log in logs if log["event"].startswith("subscription falls behind")]) == 1


@pytest.mark.asyncio
async def test_consumers_without_credit_are_not_reported() -> None:
    machine = BrokerMachine()
    reader, producer = await one_key_at_a_time(machine, credit=1)
    await publish_for(machine, reader, producer, limits.BEHIND_LOOKS + 4)
    await quiet()
    assert list(reader.broker.delivery_health.checks()) == []
