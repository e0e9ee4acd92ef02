"""A computer on which one broker is started, used, killed and started again, and clients that use it without a wire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from icestream.broker.broker_consumer import BrokerConsumer
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.publish_result import PublishOutcome, PublishResult
from icestream.broker.service import Broker
from icestream.broker.storage import PersistentStorage
from icestream.metadata.store import MetadataStore
from icestream.model import SyncMode, envelope
from icestream.model.block import Numbering, encode_block, iter_blocks
from icestream.model.subscription_options import FailurePolicy, StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import topic_owners
from icestream.processes.node.stored_positions import stored_positions
from icestream.runtime.randomness import SeededRandomness
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink, Sink
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.faulty_store import FaultyStore
from tests.support.machine import HANGS_SECONDS, Machine
from tests.support.recording_consumer import RecordingConsumer

TOPIC = TopicName("default", "a")
EARLIEST = SubscriptionStart(StartAt.EARLIEST)


class BrokerMachine(Machine):
    """One disk, one clock, one metadata store, one broker after the other."""

    def __init__(
        self,
        seed: int = 1,
        mode: SyncMode = SyncMode.ALWAYS,
        *,
        in_memory: bool = False,
        broker: BrokerOptions | None = None,
        **options: Any,
    ) -> None:
        super().__init__(seed, mode, **options)
        self.in_memory = in_memory
        self.broker_options = broker or BrokerOptions()
        self.store: MetadataStore = FaultyStore(self.clock, survives_close=True)
        self.log: WriteAheadLog | None = None

    async def open_storage(self, sink: Sink | None = None) -> PersistentStorage:
        self._crashed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(self._notice)
        if self.in_memory:
            return MemoryStorage(self.store, self.clock, self.broker_options.cursor_flush_ms, self.options)
        positions = (await stored_positions(self.store, topic_owners(self.store))).positions
        opening = open_log_on(
            self.view, self.options, positions, self.clock, SeededRandomness(1), sink or InlineSink(), self.offload
        )
        self.log = await asyncio.wait_for(opening, HANGS_SECONDS)
        return IcebergStorage(self.log, self.store, self.clock, self.broker_options.cursor_flush_ms)

    async def open_broker(self, sink: Sink | None = None) -> Broker:
        broker = Broker(self.broker_options, self.store, await self.open_storage(sink), self.clock)
        await asyncio.wait_for(broker.start(), HANGS_SECONDS)
        return broker

    async def pass_time(self, seconds: float) -> None:
        """In steps, so that what one alarm starts is under way before the next rings."""
        while seconds > 0:
            step = min(seconds, 1.0)
            self.clock.advance(step)
            await quiet()
            seconds -= step


class SubscriptionReader:
    """A consumer and its recording front end: what a client does, without a connection."""

    def __init__(
        self, broker: Broker, subscription: BrokerSubscription, consumer: BrokerConsumer, sink: RecordingConsumer
    ) -> None:
        self.broker = broker
        self.subscription = subscription
        self.consumer = consumer
        self.sink = sink

    def credit(self, count: int) -> None:
        self.subscription.give_credit(self.consumer, count)

    def ack(self, *offsets: int, shard: int = 0) -> None:
        delivery = self.subscription.delivery(shard)
        delivery.ack([(offset, offset + 1) for offset in offsets], delivery.generation)

    def nack(self, *offsets: int, shard: int = 0, delay_ms: int = 0, reason: str = "") -> None:
        delivery = self.subscription.delivery(shard)
        ranges = [(offset, offset + 1) for offset in offsets]
        delivery.nack(ranges, delivery.generation, delay_ms, self.consumer.id, reason)

    def leave(self) -> None:
        self.subscription.leave(self.consumer)


async def subscribe(
    broker: Broker,
    name: str = "s",
    kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
    consumer: str = "c",
    start: SubscriptionStart = EARLIEST,
    credit: int = 1_000,
    topic: TopicName = TOPIC,
    failure: FailurePolicy | None = None,
    key_patterns: Sequence[str] = (),
) -> SubscriptionReader:
    sink = RecordingConsumer()
    subscription, joined = await broker.subscribe(topic, name, kind, consumer, sink, start, key_patterns, failure)
    if joined.id % 2:  # some front ends take messages that do not follow one another, and some do not
        joined.pick = sink.pick
    reader = SubscriptionReader(broker, subscription, joined, sink)
    if credit:
        reader.credit(credit)
    return reader


def block(
    *payloads: bytes, keys: Sequence[bytes] | None = None, producer: BrokerProducer | None = None, first: int = 0
) -> bytes:
    """Numbered where a producer is given."""
    numbering = Numbering(producer.id, producer.epoch, first) if producer is not None else None
    columns: dict[envelope.EnvelopeColumn, Any] = {envelope.PAYLOAD: payloads}
    if keys is not None:
        columns[envelope.KEY] = keys
    return encode_block(len(payloads), columns, numbering)


def send(
    broker: Broker, producer: BrokerProducer, *payloads: bytes, shard: int = 0, keys: Sequence[bytes] | None = None
) -> PublishResult:
    """Publishes a batch without sequence numbers; its pending result."""
    return broker.publish(producer, shard, block(*payloads, keys=keys))


async def publish(
    broker: Broker, producer: BrokerProducer, *payloads: bytes, shard: int = 0, keys: Sequence[bytes] | None = None
) -> int:
    """Stores one batch; its base offset."""
    result = await send(broker, producer, *payloads, shard=shard, keys=keys)
    assert result.outcome is PublishOutcome.STORED
    assert result.base_offset is not None
    return result.base_offset


async def quiet() -> None:
    """Lets everything happen that needs neither time nor a disk that waits."""
    for _ in range(40):
        await asyncio.sleep(0)


async def stored_rows(broker: Broker, topic: TopicName = TOPIC, shard: int = 0) -> dict[int, dict[str, Any]]:
    """The column values of every stored message, by offset."""
    stream = (await broker.storage.create_subscription_stream(topic.namespace, topic.name, "nobody")).shards[shard]
    rows: dict[int, dict[str, Any]] = {}
    offset = stream.log_start()
    while offset < stream.visible:
        result = await stream.read(offset, 50_000)
        for section in result.sections:
            at = section.base_offset
            for block in iter_blocks(section.body):
                values = {column.name: block.values(column) for column in block.columns()}
                for row in range(block.rows):
                    rows[at + row] = {name: column[row] for name, column in values.items()}
                at += block.rows
        offset = result.next_offset
    return rows
