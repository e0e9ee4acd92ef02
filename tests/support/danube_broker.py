"""A broker in this process that serves clients of Danube, and the real client to talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from danube import DanubeClient, DanubeClientBuilder, DispatchStrategy, SubType
from danube.consumer import Consumer
from danube.producer import Producer

from icestream.processes.broker_process import BrokerNode
from icestream.settings import Settings
from tests.support.node_settings import node_settings

WAIT_SECONDS = 30.0


class DanubeBroker:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.node: BrokerNode | None = None
        self.client: DanubeClient | None = None
        self._open: list[Producer | Consumer] = []

    @property
    def broker(self) -> Any:
        assert self.node is not None
        return self.node.broker

    async def start(self) -> None:
        self.node = await BrokerNode.start(self._settings)
        if self.client is None:
            self.client = await DanubeClientBuilder().service_url(self.node.danube.url).build()
            ports = {"danube": self.node.danube.port}
            tree = self._settings.model_dump(mode="json")
            tree["ports"] |= ports
            self._settings = Settings.model_validate(tree)

    async def stop(self) -> None:
        node, self.node = self.node, None
        if node is not None:
            await node.stop()

    async def close(self) -> None:
        for client in self._open:
            if isinstance(client, Producer):
                await client.close()
            else:
                client._shutdown.set()
                for task in client._tasks:
                    task.cancel()
                for part in client._consumers.values():
                    part.stop()
        assert self.client is not None
        for connection in self.client.connection_manager._connections.values():
            await connection.channel.close()
        await self.stop()

    async def producer(self, topic: str, name: str = "p", *, reliable: bool = True, partitions: int = 0) -> Producer:
        assert self.client is not None
        strategy = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
        built = self.client.new_producer().with_topic(topic).with_name(name).with_dispatch_strategy(strategy)
        producer = built.with_partitions(partitions).build()
        await producer.create()
        self._open.append(producer)
        return producer

    async def consumer(
        self,
        topic: str,
        name: str = "c",
        subscription: str = "s",
        kind: SubType = SubType.SHARED,
        keys: tuple[str, ...] = (),
    ) -> Received:
        assert self.client is not None
        built = self.client.new_consumer().with_topic(topic).with_consumer_name(name).with_subscription(subscription)
        consumer = built.with_subscription_type(kind).with_key_filters(list(keys)).build()
        await consumer.subscribe()
        self._open.append(consumer)
        return Received(consumer, await consumer.receive())


class Received:
    """A consumer and what came to it."""

    def __init__(self, consumer: Consumer, queue: asyncio.Queue[Any]) -> None:
        self.consumer = consumer
        self.queue = queue

    async def next(self, *, ack: bool = True) -> Any:
        message = await asyncio.wait_for(self.queue.get(), WAIT_SECONDS)
        if ack:
            await self.consumer.ack(message)
        return message

    async def payloads(self, count: int, *, ack: bool = True) -> list[bytes]:
        return [(await self.next(ack=ack)).payload for _ in range(count)]


@asynccontextmanager
async def danube_broker(folder: Path, storage: str = "memory", **sections: Any) -> AsyncIterator[DanubeBroker]:
    sections["danube"] = {"enable": True, **sections.get("danube", {})}
    broker = DanubeBroker(node_settings(folder, storage, **sections))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
