"""Producers: how they open, what they store, and what happens to a batch that is refused."""

from __future__ import annotations

from functools import partial

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.block_validation import validate_block
from icestream.broker.name_registry import put_name
from icestream.broker.producer_window import STORED, ProducerWindow, outcome
from icestream.broker.schema_registry import SchemaRegistry
from icestream.broker.schema_validation import validate_payloads
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic import Producer, Topic
from icestream.metadata.command import Absent, AtRevision
from icestream.metadata.store import MetadataStore
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.runtime.clock import Clock
from icestream.wal.receipt import Receipt


class Publisher:
    def __init__(
        self, store: MetadataStore, storage: PersistentStorage, clock: Clock, registry: SchemaRegistry
    ) -> None:
        self._store = store
        self._storage = storage
        self._clock = clock
        self._registry = registry

    async def open(self, topic: Topic, name: str, instance: str, *, resumes: bool) -> Producer:
        """A new epoch of the producer of this name: an older one is fenced from now on (hazard 7)."""
        topic.admit_producer(name)
        producer = await self.open_inner(topic, name, instance, resumes=resumes)
        for older in [one for one in topic.producers if one.name == name]:
            older.close(errors.ProducerFenced(f"producer {name} was opened again", hint="this one must stop sending"))
            topic.producers.discard(older)
        topic.producers.add(producer)
        return producer

    async def open_inner(self, topic: Topic, name: str, instance: str = "", *, resumes: bool = False) -> Producer:
        """The same for the broker itself: no policy counts it, and nobody sees it."""
        record = await self._next_epoch(topic.name, name, instance, resumes=resumes)
        self._storage.open_producer(record.id, record.epoch)
        return Producer(topic, name, record.id, record.epoch, record.since_epoch)

    async def find(self, topic: Topic, name: str, instance: str) -> Producer | None:
        """The producer as it was when it was last opened, by this instance of it. It cannot send."""
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
            done = await self._store.txn([Absent(key)], [put_name(key, records.encode(record))])
        else:
            known = records.decode(records.ProducerRecord, key, entry.value)
            if resumes and known.instance != instance:
                raise errors.ProducerFenced(
                    f"another one opened producer {producer} of topic {topic}", hint="this instance must stop sending"
                )
            epoch = known.epoch + 1
            record = records.ProducerRecord(known.id, epoch, instance, known.since_epoch if resumes else epoch)
            is_same = AtRevision(key, entry.mod_revision)
            done = await self._store.txn([is_same], [put_name(key, records.encode(record))])
        if not done.held:
            raise errors.Refused(f"producer {producer} was opened elsewhere at the same moment", hint="open it again")
        return record

    def publish(self, producer: Producer, shard: int, block: bytes) -> Receipt:
        topic, pipe = producer.topic, producer.pipe(shard)
        if producer.closed is not None or pipe.is_refused:
            raise _held_back(producer)
        try:
            head = validate_block(block, producer, topic.policies.max_message_bytes)
            if self._registry.of_topic(topic.name) is not None:
                validate_payloads(self._registry, topic.name, block)
            if topic.publish_rate.per_second:
                self._check_rate(topic, head.rows)
            receipt = self._storage.store_messages(pipe.key, block, head)
        except errors.IcestreamError as error:
            pipe.refuse()
            metrics.PUBLISH_OUTCOMES.add(error.code)
            raise
        pipe.put()
        receipt.add_done_callback(partial(_note_outcome, topic, pipe, head.rows, len(block)))
        if topic.publish_rate.per_second:
            receipt.pause_ms = max(receipt.pause_ms, topic.publish_rate.take(head.rows, self._now_ms()))
        return receipt

    def _check_rate(self, topic: Topic, rows: int) -> None:
        """An answer that comes later than a producer waits for it would tell him nothing. So no batch takes more of the
        rate than a moment has, and who comes when others have taken that much comes again."""
        rate, ahead_ms = topic.publish_rate, limits.PUBLISH_AHEAD_MS
        rows_max = max(1, rate.per_second * ahead_ms // 1000)
        if rows > rows_max:
            raise errors.MessageTooLarge(
                f"a batch of {rows} messages: topic {topic.name} takes {rate.per_second} in a second",
                hint=f"send at most {rows_max} of them together",
            )
        if (late_ms := rate.late_ms(self._now_ms())) > ahead_ms:
            raise errors.RateReached(
                f"topic {topic.name} takes {rate.per_second} messages in a second, and more are waiting",
                hint=f"send it again in {late_ms - ahead_ms} ms, or raise max_publish_rate",
            )

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


def _held_back(producer: Producer) -> errors.IcestreamError:
    error = producer.closed or errors.AfterRefused(
        "a batch before this one was refused", hint="reset the producer, then send again from that batch on"
    )
    metrics.PUBLISH_OUTCOMES.add(error.code)
    return error


def _note_outcome(topic: Topic, pipe: ProducerWindow, rows: int, size: int, receipt: Receipt) -> None:
    """A batch that was refused later, by its numbers or a full disk, holds back the ones behind it just the same."""
    found = outcome(receipt)
    pipe.ended(found)
    metrics.PUBLISH_OUTCOMES.add(found)
    if found == STORED:
        topic.published_messages += rows
        topic.published_bytes += size
        metrics.PUBLISHED_MESSAGES.value += rows
        metrics.PUBLISHED_BYTES.value += size
    else:  # a retry of what is stored, or a refusal: only what is stored counts
        topic.publish_rate.give_back(rows)
