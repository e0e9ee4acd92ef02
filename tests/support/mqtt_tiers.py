"""A broker that stores MQTT messages in a topic with a table, which can be away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icestream.broker.mqtt.mqtt_options import MqttOptions, ReplayRoute
from icestream.broker.service import Broker
from tests.support.broker_machine import TOPIC
from tests.support.mqtt_lake import MqttLake
from tests.support.tiers import TieredMachine


class TieredMqttMachine(TieredMachine):
    """A machine whose brokers store MQTT messages in a topic with a table."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, None, MqttLake)
        self.mqtt = MqttOptions(replay=(ReplayRoute("#", 0, str(TOPIC)),), shards=1)

    async def open_broker(self, sink: Any = None) -> Broker:
        storage = await self.open_storage(sink)
        broker = Broker(self.broker_options, self.store, storage, self.clock, mqtt=self.mqtt)
        await broker.start()
        return broker
