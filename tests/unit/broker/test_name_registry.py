"""Names of producers and consumers: their ids outlive restarts, and unused names expire."""

from __future__ import annotations

import pytest

from icestream import errors, limits
from icestream.broker import records
from icestream.model.subscription_options import SubscriptionType
from tests.support.broker_machine import TOPIC, BrokerMachine, quiet, subscribe

pytestmark = pytest.mark.asyncio

DAY = 86_400.0
SHARED = SubscriptionType.SHARED


async def names(machine: BrokerMachine) -> int:
    """How many the metadata store knows."""
    kinds = (records.PRODUCERS, records.CONSUMERS)
    return sum([len(await machine.store.list_all(kind)) for kind in kinds])


async def pass_days(machine: BrokerMachine, days: int) -> None:
    for _ in range(days):
        machine.clock.advance(DAY)
        await quiet()


async def test_names_unused_for_a_week_are_removed() -> None:
    """Clients make names of chance: without an end they would fill the metadata store (hazards 7 and 28)."""
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    for number in range(20):
        broker.close_producer(await broker.open_producer(TOPIC, f"chance-{number}"))
        (await subscribe(broker, kind=SHARED, consumer=f"chance-{number}")).leave()
    assert await names(machine) == 40
    await pass_days(machine, 6)
    assert await names(machine) == 40
    await pass_days(machine, 2)
    assert await names(machine) == 0
    revision = await machine.store.revision()
    await pass_days(machine, 30)
    assert await machine.store.revision() == revision, "without connections nothing is written"


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_connected_client_keeps_its_id(end: str) -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    producer = await broker.open_producer(TOPIC, "p")
    reader = await subscribe(broker)
    await pass_days(machine, 30)
    assert await names(machine) == 2
    await (machine.kill() if end == "kill" else broker.shutdown())
    broker = await machine.open_broker()
    again = await broker.open_producer(TOPIC, "p")
    assert (again.id, again.epoch) == (producer.id, producer.epoch + 1)
    assert (await subscribe(broker)).consumer.id == reader.consumer.id


async def test_a_client_that_returns_in_time_keeps_its_id_for_another_week() -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    ids = set()
    for _ in range(4):
        producer, reader = await broker.open_producer(TOPIC, "p"), await subscribe(broker)
        ids.add((producer.id, reader.consumer.id))
        broker.close_producer(producer)
        reader.leave()
        await pass_days(machine, limits.PRODUCER_AGE_SECONDS_DEFAULT // int(DAY) - 2)
    assert len(ids) == 1


async def test_a_renewal_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await broker.open_producer(TOPIC, "p")
    with monkeypatch.context() as patched:

        async def refuse(*arguments: object) -> None:
            raise errors.NotReady("no leader")

        patched.setattr(machine.store, "txn", refuse)
        await pass_days(machine, 3)
    await pass_days(machine, 5)
    assert await names(machine) == 1


async def test_renewed_names_of_a_deleted_topic_are_not_restored() -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await broker.open_producer(TOPIC, "p")
    await subscribe(broker)
    await broker.delete_topic(TOPIC)
    await pass_days(machine, 3)
    assert await names(machine) == 0
