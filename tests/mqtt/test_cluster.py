"""MQTT in a cluster of three brokers, each in a process of its own (ADR 81): any node takes clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.free_ports import free_ports
from tests.support.mqtt_client import EXPIRY_NEVER, ConnectionClosed, MqttClient, open_client
from tests.support.three_broker_processes import COUNT, ThreeBrokerProcesses

RETRY_SECONDS = 60.0


class MqttCluster(ThreeBrokerProcesses):
    """Three nodes that serve MQTT at ports of which each is 10 above the one before."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self._mqtt,) = free_ports(1, (10, 20))
        (self._web,) = free_ports(1, (10, 20))

    def _rest(self) -> tuple[str, ...]:
        values = ("mqtt.enable=true", f"ports.mqtt={self._mqtt}", f"ports.mqtt_ws={self._web}")
        return (*super()._rest(), *(word for value in values for word in ("--set", value)))

    def mqtt_port(self, number: int) -> int:
        return self._mqtt + 10 * number


async def connected(port: int, client_id: str, *, is_clean_start: bool = False) -> MqttClient:
    """As a device does: again and again until it is let in."""
    async with asyncio.timeout(RETRY_SECONDS):
        while True:
            try:
                client = await open_client(port)
                connack = await client.connect(client_id, is_clean_start=is_clean_start, expiry_seconds=EXPIRY_NEVER)
            except (ConnectionError, ConnectionClosed):
                await asyncio.sleep(0.1)
                continue
            if not connack.reason_code:
                return client
            await client.close()
            await asyncio.sleep(0.1)


async def use_all_nodes(nodes: MqttCluster) -> None:
    home = 1
    await (await connected(nodes.mqtt_port(home), "first")).close()
    readers = [await connected(nodes.mqtt_port(number), f"reader-{number}") for number in range(COUNT)]
    for reader in readers:
        assert await reader.subscribe(("t/#", 2)) == (2,)
        await reader.close()
    for number in range(COUNT):
        async with await connected(nodes.mqtt_port(number), "writer", is_clean_start=True) as writer:
            assert await writer.publish("t/x", b"%d" % number, qos=2) == 0
    nodes.kill(home)
    for number in {*range(COUNT)} - {home}:
        async with await open_client(nodes.mqtt_port(number)) as client:
            with pytest.raises((ConnectionClosed, ConnectionError)):
                await client.connect("nobody-serves")
    await asyncio.to_thread(lambda: nodes.begin(home).announcement())
    for number in range(COUNT):  # each by another node than before
        async with await connected(nodes.mqtt_port((number + 1) % COUNT), f"reader-{number}") as reader:
            assert reader.connack is not None
            assert reader.connack.is_session_present
            messages = [await reader.message() for _ in range(COUNT)]
            assert [message.payload for message in messages] == [b"0", b"1", b"2"]


def test_devices_use_any_node_and_outlive_a_killed_home(tmp_path: Path) -> None:
    with MqttCluster(tmp_path) as nodes:
        announcements = nodes.start_all()
        assert len({node["cluster"] for node in announcements}) == 1
        asyncio.run(use_all_nodes(nodes))
