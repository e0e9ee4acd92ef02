"""A computer on which one broker is started, used, killed and started again, and whoever uses it without a wire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from icestream.broker.broker_options import BrokerOptions
from icestream.broker.consumer import Consumer
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.publish_result import PublishOutcome, PublishResult
from icestream.broker.service import Broker
from icestream.broker.storage import PersistentStorage
from icestream.broker.subscription import Subscription
from icestream.broker.topic import Producer
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.model import SyncMode, envelope
from icestream.model.block import Numbering, encode_block, iter_blocks
from icestream.model.shard import Gap
from icestream.model.subscription import FailurePolicy, StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.runtime.randomness import SeededRandomness
from icestream.server.broker_node import topic_owners
from icestream.server.stored_positions import stored_positions
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink, Sink
from icestream.wal.tail import SectionRead
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import HANGS_SECONDS, Machine

TOPIC = TopicName("default", "a")
EARLIEST = SubscriptionStart(StartAt.EARLIEST)


class KeptStore(MemoryStore):
    """What is in it survives the broker, as on a disk of its own."""

    async def close(self) -> None:
        """It stays."""


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
        self.store: MetadataStore = KeptStore(self.clock)
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


class Recorder:
    """A front end that remembers everything."""

    def __init__(self) -> None:
        self.peer = "test"
        self.is_full = False
        self.got: list[tuple[int, bytes, int]] = []  # offset, payload, attempt
        self.places: list[tuple[int, int, int]] = []  # shard, generation, offset: of each of them
        self.gaps: list[Gap] = []
        self.events: list[str] = []
        self.event_details: list[tuple[str, dict[str, object]]] = []
        self.room: int | None = None  # messages after which it is full

    def deliver(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None:
        payloads = [value for block in iter_blocks(section.body) for value in block.values(envelope.PAYLOAD)]
        for row in range(first_row, first_row + rows):
            payload = payloads[row]
            assert isinstance(payload, bytes)
            self.got.append((section.base_offset + row, payload, attempt))
            self.places.append((shard, generation, section.base_offset + row))
        if self.room is not None and len(self.got) >= self.room:
            self.is_full = True

    def pick(
        self, shard: int, generation: int, attempt: int, picked: SectionRead, ranges: list[tuple[int, int]]
    ) -> None:
        offsets = [offset for start, end in ranges for offset in range(start, end)]
        payloads = [value for block in iter_blocks(picked.body) for value in block.values(envelope.PAYLOAD)]
        assert offsets == sorted(set(offsets))
        for offset, payload in zip(offsets, payloads, strict=True):
            assert isinstance(payload, bytes)
            self.got.append((offset, payload, attempt))
            self.places.append((shard, generation, offset))
        if self.room is not None and len(self.got) >= self.room:
            self.is_full = True

    def gap(self, shard: int, generation: int, gap: Gap) -> None:
        self.gaps.append(gap)

    def event(self, event: str, details: dict[str, object]) -> None:
        self.events.append(event)
        self.event_details.append((event, details))

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _, _ in self.got]

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload, _ in self.got]


class Reader:
    """A consumer with its recorder: what a client does, without a wire."""

    def __init__(self, broker: Broker, subscription: Subscription, consumer: Consumer, sink: Recorder) -> None:
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
) -> Reader:
    sink = Recorder()
    found, joined = await broker.subscribe(topic, name, kind, consumer, sink, start, key_patterns, failure)
    if joined.id % 2:  # some front ends take messages that do not follow one another, and some do not
        joined.pick = sink.pick
    reader = Reader(broker, found, joined, sink)
    if credit:
        reader.credit(credit)
    return reader


def block(
    *payloads: bytes, keys: Sequence[bytes] | None = None, producer: Producer | None = None, first: int = 0
) -> bytes:
    """Numbered where a producer is given."""
    numbering = Numbering(producer.id, producer.epoch, first) if producer is not None else None
    columns: dict[envelope.EnvelopeColumn, Any] = {envelope.PAYLOAD: payloads}
    if keys is not None:
        columns[envelope.KEY] = keys
    return encode_block(len(payloads), columns, numbering)


def send(
    broker: Broker, producer: Producer, *payloads: bytes, shard: int = 0, keys: Sequence[bytes] | None = None
) -> PublishResult:
    """Publishes a batch without sequence numbers; its pending result."""
    return broker.publish(producer, shard, block(*payloads, keys=keys))


async def publish(
    broker: Broker, producer: Producer, *payloads: bytes, shard: int = 0, keys: Sequence[bytes] | None = None
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
    """Every message that is stored, by offset: what each column of it holds."""
    stream = (await broker.storage.create_subscription_stream(topic.namespace, topic.name, "nobody")).shards[shard]
    found: dict[int, dict[str, Any]] = {}
    offset = stream.log_start()
    while offset < stream.visible:
        result = await stream.read(offset, 50_000)
        for section in result.sections:
            at = section.base_offset
            for one in iter_blocks(section.body):
                values = {column.name: one.values(column) for column in one.columns()}
                for row in range(one.rows):
                    found[at + row] = {name: column[row] for name, column in values.items()}
                at += one.rows
        offset = result.next_offset
    return found
