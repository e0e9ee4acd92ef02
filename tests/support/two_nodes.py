"""Two brokers in memory over one metadata store, as two nodes of a cluster are: each with the topics that it made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from icestream.broker.broker_options import BrokerOptions
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.mqtt.mqtt_options import NO_MQTT, MqttOptions
from icestream.broker.service import Broker
from icestream.broker.topic_owners import TopicOwners
from icestream.cluster.members import NodeRecord, encode_record, node_key
from icestream.frontends.native.native_listener import NativeListener
from icestream.metadata.store import MemoryStore
from icestream.rpc import handshake
from icestream.runtime.clock import SystemClock
from tests.support.faulty_store import FaultyStore
from tests.support.secured_access import open_door

FIRST, SECOND = 0xA, 0xB  # their ids; the first has founded the cluster


@dataclass
class TwoNodes:
    store: MemoryStore
    first: Broker
    second: Broker
    listeners: tuple[NativeListener, NativeListener]

    @property
    def addresses(self) -> tuple[str, str]:
        first, second = self.listeners
        return f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"


def broker_of(store: MemoryStore, node_id: int, mqtt: MqttOptions = NO_MQTT) -> Broker:
    def peek(key: str) -> bytes | None:
        entry = store._machine.get(key)
        return entry.value if entry is not None else None

    clock = SystemClock()
    owners = TopicOwners(f"{node_id:016x}", f"{FIRST:016x}", peek)
    options = BrokerOptions(node=f"node-{node_id:x}")
    return Broker(options, store, MemoryStorage(store, clock, 10_000), clock, owners, mqtt)


@asynccontextmanager
async def two_nodes(store: MemoryStore | None = None, mqtt: MqttOptions = NO_MQTT) -> AsyncIterator[TwoNodes]:
    store = store or FaultyStore(SystemClock(), survives_close=True)
    brokers = [broker_of(store, FIRST, mqtt), broker_of(store, SECOND, mqtt)]
    listeners = []
    for node_id, broker in zip((FIRST, SECOND), brokers, strict=True):
        await broker.start()
        listener = NativeListener(open_door(broker), handshake.HandshakeServer("test", SystemClock().wall_us))
        await listener.listen("127.0.0.1", 0)
        listeners.append(listener)
        url = f"http://127.0.0.1:{node_id}"
        record = NodeRecord(broker.options.node, f"127.0.0.1:{node_id}", f"127.0.0.1:{listener.port}", url, url)
        await store.put(node_key(node_id), encode_record(record))
    try:
        yield TwoNodes(store, brokers[0], brokers[1], (listeners[0], listeners[1]))
    finally:
        for listener in listeners:
            await listener.close()
        for broker in brokers:
            await broker.shutdown()
