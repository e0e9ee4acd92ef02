"""Opens producers and publishes their batches.

A batch passes, in this order, before it is submitted to the log:

    closed, refused     the producer was fenced, or an earlier batch of it was refused
    block               well-formed, fits the table, the producer's own numbering (block_validation.py)
    schema              the topic's validation policy, if it has a schema
    rate                the topic's publish rate

Whatever fails closes the producer's window in the shard (producer_window.py). The rate is the last check and is only
taken from after the log has accepted the batch, so a refused batch costs no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.block_validation import check_message_sizes, validate_block
from icestream.broker.broker_topic import BrokerProducer, BrokerTopic
from icestream.broker.name_owner import UNNAMED, NameUser
from icestream.broker.name_registry import put_name
from icestream.broker.producer_window import ProducerWindow
from icestream.broker.publish_group import PublishGroupResult
from icestream.broker.publish_result import PublishResult
from icestream.broker.schema_registry import SchemaRegistry
from icestream.broker.storage import PersistentStorage
from icestream.metadata.command import Absent, AtRevision
from icestream.metadata.store import MetadataStore
from icestream.model import envelope
from icestream.model.block import Block, BlockHead
from icestream.model.block_group import BlockGroup
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.spans import now_ns, record, tracing
from icestream.runtime.clock import Clock
from icestream.schema.kinds import ValidationPolicy

_log = get_logger("schemas")


class Publisher:
    """The producers and batches of a broker."""

    def __init__(self, store: MetadataStore, storage: PersistentStorage, clock: Clock, schemas: SchemaRegistry) -> None:
        self._store = store
        self._storage = storage
        self._clock = clock
        self._schemas = schemas

    # --- producers ---

    async def open(
        self, topic: BrokerTopic, name: str, instance: str, *, resumes: bool, user: NameUser = UNNAMED
    ) -> BrokerProducer:
        """Opens a new epoch of the producer of this name: an older one is fenced from now on (hazard 7).

        `resumes`: the client's producer was connected before. Raises PolicyReached, ProducerFenced, Refused, and
        PermissionDenied for the name of another principal.
        """
        topic.admit_producer(name)
        producer = await self.open_internal(topic, name, instance, resumes=resumes, user=user)
        # The log refuses the older epoch already; closing it here says why, and frees its place in the policy.
        for older in [other for other in topic.producers if other.name == name]:
            older.close(errors.ProducerFenced(f"producer {name} was opened again", hint="this one must stop sending"))
            topic.producers.discard(older)
        topic.producers.add(producer)
        return producer

    async def open_internal(
        self, topic: BrokerTopic, name: str, instance: str = "", *, resumes: bool = False, user: NameUser = UNNAMED
    ) -> BrokerProducer:
        """Opens a producer of the broker itself: it counts against no policy and is not listed."""
        record = await self._next_epoch(topic.name, name, instance, user, resumes=resumes)
        self._storage.open_producer(record.id, record.epoch)
        return BrokerProducer(topic, name, record.id, record.epoch, record.since_epoch)

    async def find(self, topic: BrokerTopic, name: str, instance: str) -> BrokerProducer | None:
        """The producer as this instance last opened it; None if another instance has since. It cannot send."""
        key = records.producer_key(topic.name, name)
        entry = await self._store.get(key)
        record = records.decode(records.ProducerRecord, key, entry.value) if entry is not None else None
        if record is None or record.instance != instance:
            return None
        return BrokerProducer(topic, name, record.id, record.epoch, record.since_epoch)

    async def _next_epoch(
        self, topic: TopicName, producer: str, instance: str, user: NameUser, *, resumes: bool
    ) -> records.ProducerRecord:
        """Writes and returns the next epoch of a producer name. Raises ProducerFenced, Refused."""
        key = records.producer_key(topic, producer)
        entry = await self._store.get(key)
        # The epoch is durable before the producer may send: after a crash no epoch is given out twice.
        if entry is None:
            record = records.ProducerRecord(await self._store.allocate_id("producer"), 1, instance, 1, user.principal)
            reply = await self._store.txn([Absent(key)], [put_name(key, records.encode(record))])
        else:
            stored = records.decode(records.ProducerRecord, key, entry.value)
            if resumes and stored.instance != instance:
                raise errors.ProducerFenced(
                    f"producer {producer} of topic {topic} was opened by another instance",
                    hint="this instance must stop sending",
                )
            epoch = stored.epoch + 1
            # A producer that resumes keeps `since_epoch`: the sequence numbers of its earlier epochs are its own.
            since_epoch = stored.since_epoch if resumes else epoch
            record = records.ProducerRecord(stored.id, epoch, instance, since_epoch, user.claim(stored.principal))
            is_unchanged = AtRevision(key, entry.mod_revision)
            reply = await self._store.txn([is_unchanged], [put_name(key, records.encode(record))])
        if not reply.held:
            raise errors.Refused(f"producer {producer} was opened concurrently", hint="open it again")
        return record

    # --- batches ---

    def publish(
        self, producer: BrokerProducer, shard: int, block: bytes, valid_head: BlockHead | None = None
    ) -> PublishResult:
        """Stores a block in a shard; the result is completed later.

        `valid_head`: the head of a block that was validated against the declaration of its producer. It is validated
        again only where its size may exceed the topic's maximum.

        Raises the reason of a refusal: nothing was stored, and the producer's later blocks of the shard are refused too
        until it is reset, because they would overtake the retry of this one (hazard 37).
        """
        start_ns = now_ns() if tracing.is_on else 0
        topic, window = producer.topic, producer.window(shard)
        if producer.closed is not None or window.is_refused:
            raise _window_refusal(producer)
        # Whatever is raised below closes the window, also a mistake in the batch itself: nothing behind this batch is
        # stored until the client has decided how to go on and resets it.
        try:
            head, message_bytes_max = valid_head, topic.policies.max_message_bytes
            if head is None or (message_bytes_max and len(block) > message_bytes_max):
                head = validate_block(block, producer, message_bytes_max)
            if self._schemas.of_topic(topic.name) is not None:
                _validate_payloads(self._schemas, topic.name, block)
            if topic.publish_rate.per_second:
                self._check_rate(topic, head.rows)
            receipt = self._storage.store_messages(window.key, block, head)
        except errors.IcestreamError as error:
            window.refuse()
            metrics.PUBLISH_OUTCOMES.add(error.code)
            if start_ns:
                record("publish", start_ns, topic=str(topic.name), shard=shard, bytes=len(block), outcome=error.code)
            raise
        # The batch itself is stored at once: a front end delays its ack by this, and a producer waits for acks.
        pause_ms = receipt.pause_ms
        if topic.publish_rate.per_second:
            pause_ms = max(pause_ms, topic.publish_rate.take(head.rows, self._now_ms()))
        result = PublishResult(receipt, topic, window, head.rows, len(block), pause_ms)
        if start_ns:
            receipt.add_done_callback(lambda _: _trace_publish(result, start_ns, topic.name, shard, len(block)))
        return result

    def check_batch(self, topic: BrokerTopic, block: bytes, head: BlockHead) -> None:
        """Raises the reason for which the policies of a topic refuse a block: its size, the schema, the rate."""
        message_bytes_max = topic.policies.max_message_bytes
        if message_bytes_max and len(block) > message_bytes_max:
            check_message_sizes(block, topic.name, message_bytes_max)
        if self._schemas.of_topic(topic.name) is not None:
            _validate_payloads(self._schemas, topic.name, block)
        if topic.publish_rate.per_second:
            self._check_rate(topic, head.rows)
            topic.publish_rate.take(head.rows, self._now_ms())

    def publish_group(
        self,
        topics: Sequence[BrokerTopic],
        keys: Sequence[ShardKey],
        windows: Sequence[ProducerWindow],
        bodies: Sequence[bytes],
        group: BlockGroup,
        largest_block: int,
        on_done: Callable[[PublishGroupResult], object],
    ) -> bool:
        """Stores a group of valid blocks, and reports the outcome to `on_done`.

        `topics`, `keys`: of the shards of the group; `windows`: of its batches. Returns False if the group has to be
        published shard by shard, or batch by batch, because something about a topic (a schema, a publish rate, a
        maximum size), the log (a quota, small files) or one of the producers needs a decision for each of them. Then
        nothing was stored.
        """
        # The log stores a group in one record of one file: one that is too large might never fit.
        if not self._storage.takes_group(group.size_bytes, len(keys)) or self.needs_decisions(topics, largest_block):
            return False
        for window in windows:
            if window.is_refused or window.is_closed:
                return False
        try:
            receipt = self._storage.store_group(keys, bodies, group)
        except errors.IcestreamError:
            return False  # each batch is refused by itself, with the same error
        PublishGroupResult(receipt, topics, windows, group, on_done)
        return True

    def needs_decisions(self, topics: Iterable[BrokerTopic], largest_bytes: int) -> bool:
        """True if something about one of the topics (a schema, a publish rate, a maximum size) needs a decision about
        each batch of at most `largest_bytes`, or if batches are traced."""
        if tracing.is_on:
            return True
        has_schemas = self._schemas.has_topics
        for topic in topics:
            if topic.decides_about_batches and self._decides_about(topic, largest_bytes):
                return True
            if has_schemas and self._schemas.of_topic(topic.name) is not None:
                return True
        return False

    @staticmethod
    def _decides_about(topic: BrokerTopic, largest_block: int) -> bool:
        """True if a policy of the topic may refuse or delay a batch of at most `largest_block` bytes."""
        message_bytes_max = topic.policies.max_message_bytes
        return bool(topic.publish_rate.per_second or (message_bytes_max and largest_block > message_bytes_max))

    def _check_rate(self, topic: BrokerTopic, rows: int) -> None:
        """Raises MessageTooLarge or RateReached if the reply would be later than a producer waits for it."""
        # A rate delays acks, but not beyond PUBLISH_AHEAD_MS: a client would give up waiting and send the batch again.
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


def _trace_publish(result: PublishResult, start_ns: int, topic: TopicName, shard: int, size_bytes: int) -> None:
    outcome = result.error.code if result.error else result.outcome.value if result.outcome else "open"
    record("publish", start_ns, topic=str(topic), shard=shard, bytes=size_bytes, outcome=outcome)


def _window_refusal(producer: BrokerProducer) -> errors.IcestreamError:
    """The error for a batch of a producer that is closed, or whose earlier batch was refused; counts it."""
    error = producer.closed or errors.AfterRefused(
        "an earlier batch was refused", hint="reset the producer, then send again from that batch on"
    )
    metrics.PUBLISH_OUTCOMES.add(error.code)
    return error


def _validate_payloads(schemas: SchemaRegistry, topic: TopicName, block: bytes) -> None:
    """Validates the messages of a block against the schema of their topic, and applies the topic's validation policy.

    Raises SchemaViolated if the topic enforces its schema; otherwise violations are logged and counted.
    """
    decoded = Block(block)
    columns = [decoded.values(column) for column in (envelope.SCHEMA_ID, envelope.SCHEMA_VERSION, envelope.PAYLOAD)]
    for schema_id, version, payload in zip(*columns, strict=True):
        violation = schemas.find_violation(
            topic,
            schema_id if isinstance(schema_id, int) else None,
            version if isinstance(version, int) else None,
            payload if isinstance(payload, bytes) else b"",
        )
        if violation is None:
            continue
        policy, reason = violation
        metrics.SCHEMA_VIOLATIONS.labels(policy.value).inc()
        if policy is ValidationPolicy.ENFORCE:
            raise errors.SchemaViolated(
                f"message violates the schema of topic {topic}: {reason}", hint="send messages that match the schema"
            )
        _log.warning("message violates the schema of its topic", topic=str(topic), reason=reason)
