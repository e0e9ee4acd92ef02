"""MQTT sessions whose messages only the table has: they come in order and once, and filters read what can match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icestream import limits
from icestream.broker.service import Broker
from icestream.model.scan_messages import ScanKind
from icestream.model.shard import ShardKey
from icestream.model.topic_policies import PolicyValues
from icestream.mqtt.properties import Properties, PropertyId
from tests.support.broker_machine import TOPIC, quiet
from tests.support.mqtt_lake import counted_scans
from tests.support.mqtt_tiers import TieredMqttMachine
from tests.support.mqtt_world import connected

pytestmark = pytest.mark.asyncio
KEY = ShardKey(1, 0)
COUNT = 240


def topic_of(number: int) -> str:
    return f"plant/{number % 12}/heat"


async def published(machine: TieredMqttMachine, broker: Broker) -> None:
    """Messages of twelve topics; most of them are in the table alone."""
    publisher = await connected(broker, "p")
    for number in range(COUNT):
        await publisher.publish(topic_of(number), b"%d " % number + bytes(2_000))
        if number == COUNT // 2:
            await machine.commit()
            await machine.forget()
        machine.clock.advance(0.001)
    await machine.commit()
    assert machine.log is not None
    # The log of sessions is written again from time to time: until then it holds the oldest files.
    for _ in range(20):
        await machine.pass_time(10.0)
        await machine.forget()
    assert machine.log.reader.earliest(KEY) > COUNT // 3


def requests(machine: TieredMqttMachine) -> int:
    assert machine.scan_worker is not None
    return sum(request.question is ScanKind.READ for request in machine.scan_worker.asked)


async def received(client: Any, count: int) -> list[int]:
    return [int((await client.message()).payload.split()[0]) for _ in range(count)]


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        (["plant/7/#"], [7]),
        (["plant/7/#", "+/3/heat", "none/#"], [3, 7]),
        (["#"], list(range(12))),
    ],
)
async def test_r31_a_session_resumes_from_the_table_by_its_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: list[str], numbers: list[int]
) -> None:
    monkeypatch.setattr(limits, "CLUSTER_GROUP_BYTES_MIN", 12_000)
    machine = TieredMqttMachine(tmp_path)
    broker = await machine.open_broker()
    first = await connected(broker, "s", clean=False, expiry_s=600)
    for topic_filter in filters:
        await first.subscribe(topic_filter, qos=1)
    first.lose()
    await machine.lake.bind()
    await published(machine, broker)
    before = requests(machine)
    with counted_scans() as counts:
        again = await connected(broker, "s", clean=False, expiry_s=600, receive_maximum=5)
        expected = [number for number in range(COUNT) if number % 12 in numbers]
        assert await received(again, len(expected)) == expected
    await quiet()
    assert not again.deliveries()
    publisher = await connected(broker, "p2")
    await publisher.publish("plant/7/heat", b"999 live")
    assert await received(again, 1) == [999]
    assert requests(machine) - before <= 6, "a window of five messages is no reason to ask again"
    if len(numbers) < 3:
        assert counts[0].skipped_groups > counts[0].read_groups
    await broker.shutdown()


async def test_a_replay_reads_history_from_the_table_by_its_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLUSTER_GROUP_BYTES_MIN", 12_000)
    machine = TieredMqttMachine(tmp_path)
    broker = await machine.open_broker()
    warm_up = await connected(broker, "w")
    await warm_up.subscribe("x")
    await machine.lake.bind()
    await published(machine, broker)
    subscriber = await connected(broker, "s")
    replay = Properties([(PropertyId.USER_PROPERTY, ("replay-from", "earliest"))])
    await subscriber.subscribe("+/5/heat", qos=1, properties=replay)
    expected = [number for number in range(COUNT) if number % 12 == 5]
    assert await received(subscriber, len(expected)) == expected
    await quiet()
    assert not subscriber.deliveries()
    await broker.shutdown()


async def test_the_topic_of_a_route_has_the_columns_unless_a_policy_says_no(tmp_path: Path) -> None:
    for number, own in enumerate((None, "off", "on")):
        machine = TieredMqttMachine(tmp_path / str(number))
        broker = await machine.open_broker()
        if own is not None or number:
            await broker.create_topic(TOPIC, policies=PolicyValues(mqtt_columns=own))
        await connected(broker, "c")
        policies = broker.topic(TOPIC).policies
        assert policies.mqtt_columns == (own or "on")
        assert policies.table_layout == {"mqtt_columns": own or "on"}
        await broker.shutdown()
