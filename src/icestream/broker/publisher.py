"""Opens producers and publishes their batches."""

from __future__ import annotations

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.block_validation import validate_block
from icestream.broker.name_registry import put_name
from icestream.broker.publish_result import PublishResult
from icestream.broker.schema_registry import SchemaRegistry
from icestream.broker.schema_validation import validate_payloads
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic import Producer, Topic
from icestream.metadata.command import Absent, AtRevision
from icestream.metadata.store import MetadataStore
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.runtime.clock import Clock


class Publisher:
    def __init__(self, store: MetadataStore, storage: PersistentStorage, clock: Clock, schemas: SchemaRegistry) -> None:
        self._store = store
        self._storage = storage
        self._clock = clock
        self._schemas = schemas

    # --- producers ---

    async def open(self, topic: Topic, name: str, instance: str, *, resumes: bool) -> Producer:
        """Opens a new epoch of the producer of this name: an older one is fenced from now on (hazard 7).

        `resumes`: the client's producer was connected before. Raises PolicyReached, ProducerFenced, Refused.
        """
        topic.admit_producer(name)
        producer = await self.open_internal(topic, name, instance, resumes=resumes)
        for older in [other for other in topic.producers if other.name == name]:
            older.close(errors.ProducerFenced(f"producer {name} was opened again", hint="this one must stop sending"))
            topic.producers.discard(older)
        topic.producers.add(producer)
        return producer

    async def open_internal(self, topic: Topic, name: str, instance: str = "", *, resumes: bool = False) -> Producer:
        """Opens a producer of the broker itself: it counts against no policy and is not listed."""
        record = await self._next_epoch(topic.name, name, instance, resumes=resumes)
        self._storage.open_producer(record.id, record.epoch)
        return Producer(topic, name, record.id, record.epoch, record.since_epoch)

    async def find(self, topic: Topic, name: str, instance: str) -> Producer | None:
        """The producer as this instance last opened it; None if another instance has since. It cannot send."""
        key = records.producer_key(topic.name, name)
        entry = await self._store.get(key)
        record = records.decode(records.ProducerRecord, key, entry.value) if entry is not None else None
        if record is None or record.instance != instance:
            return None
        return Producer(topic, name, record.id, record.epoch, record.since_epoch)

    async def _next_epoch(
        self, topic: TopicName, producer: str, instance: str, *, resumes: bool
    ) -> records.ProducerRecord:
        key = records.producer_key(topic, producer)
        entry = await self._store.get(key)
        if entry is None:
            record = records.ProducerRecord(await self._store.allocate_id("producer"), 1, instance, 1)
            reply = await self._store.txn([Absent(key)], [put_name(key, records.encode(record))])
        else:
            stored = records.decode(records.ProducerRecord, key, entry.value)
            if resumes and stored.instance != instance:
                raise errors.ProducerFenced(
                    f"producer {producer} of topic {topic} was opened by another instance",
                    hint="this instance must stop sending",
                )
            epoch = stored.epoch + 1
            record = records.ProducerRecord(stored.id, epoch, instance, stored.since_epoch if resumes else epoch)
            is_unchanged = AtRevision(key, entry.mod_revision)
            reply = await self._store.txn([is_unchanged], [put_name(key, records.encode(record))])
        if not reply.held:
            raise errors.Refused(f"producer {producer} was opened concurrently", hint="open it again")
        return record

    # --- batches ---

    def publish(self, producer: Producer, shard: int, block: bytes) -> PublishResult:
        """Stores a block in a shard; the result is completed later.

        Raises the reason of a refusal: nothing was stored, and the producer's later blocks of the shard are refused too
        until it is reset, because they would overtake the retry of this one (hazard 37).
        """
        topic, window = producer.topic, producer.window(shard)
        if producer.closed is not None or window.is_refused:
            raise _window_refusal(producer)
        try:
            head = validate_block(block, producer, topic.policies.max_message_bytes)
            if self._schemas.of_topic(topic.name) is not None:
                validate_payloads(self._schemas, topic.name, block)
            if topic.publish_rate.per_second:
                self._check_rate(topic, head.rows)
            receipt = self._storage.store_messages(window.key, block, head)
        except errors.IcestreamError as error:
            window.refuse()
            metrics.PUBLISH_OUTCOMES.add(error.code)
            raise
        pause_ms = receipt.pause_ms
        if topic.publish_rate.per_second:
            pause_ms = max(pause_ms, topic.publish_rate.take(head.rows, self._now_ms()))
        return PublishResult(receipt, topic, window, head.rows, len(block), pause_ms)

    def _check_rate(self, topic: Topic, rows: int) -> None:
        """Raises MessageTooLarge or RateReached if the reply would be later than a producer waits for it."""
        rate, ahead_ms = topic.publish_rate, limits.PUBLISH_AHEAD_MS
        rows_max = max(1, rate.per_second * ahead_ms // 1000)
        if rows > rows_max:
            raise errors.MessageTooLarge(
                f"batch of {rows} messages exceeds the publish rate of topic {topic.name}: {rate.per_second} messages "
                "per second",
                hint=f"send at most {rows_max} messages per batch",
            )
        if (wait_ms := rate.wait_ms(self._now_ms())) > ahead_ms:
            raise errors.RateReached(
                f"topic {topic.name} has reached its publish rate of {rate.per_second} messages per second",
                hint=f"retry in {wait_ms - ahead_ms} ms, or raise max_publish_rate",
            )

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def _window_refusal(producer: Producer) -> errors.IcestreamError:
    error = producer.closed or errors.AfterRefused(
        "an earlier batch was refused", hint="reset the producer, then send again from that batch on"
    )
    metrics.PUBLISH_OUTCOMES.add(error.code)
    return error
