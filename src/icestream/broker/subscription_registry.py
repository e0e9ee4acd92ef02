"""Creates, loads, changes and deletes subscriptions, and admits consumers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_consumer import BrokerConsumer, ConsumerSink
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.broker_subscription import BrokerSubscription, unknown_subscription
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.consumed_offsets import advance_generation
from icestream.broker.dead_letter_writer import DeadLetterWriter, InternalProducers
from icestream.broker.delivery_health import DeliveryHealth
from icestream.broker.dispatch.best_effort import NO_ROOM, BestEffortDispatcher, KeySharedBestEffortDispatcher
from icestream.broker.dispatch.delivery_ledger import ACK_TIMEOUT, FAILED_BEFORE, NACK
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.hash_ring import KeyFilter
from icestream.broker.dispatch.instruction import Dropped
from icestream.broker.dispatch.key_shared import UNWANTED, KeySharedDispatcher
from icestream.broker.name_owner import UNNAMED, NameUser
from icestream.broker.name_registry import needs_renewal, put_name
from icestream.broker.rate_limit import TokenBucket
from icestream.broker.shard_delivery import DeliveryName, ShardDelivery
from icestream.broker.stalled_readers import StalledReaders
from icestream.broker.storage import PersistentStorage, ShardStream, SubscriptionStream
from icestream.broker.topic_registry import unknown_namespace
from icestream.metadata.command import Absent, Delete, Operation, Put
from icestream.metadata.store import MetadataStore
from icestream.model.cursor import AckedOffsets
from icestream.model.shard import ShardKey
from icestream.model.subscription_options import (
    DispatchMode,
    FailurePolicy,
    StartAt,
    SubscriptionStart,
    SubscriptionType,
)
from icestream.model.topic_name import TopicName, check_name
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("subscriptions")
# The reason of a nack is free text of the consumer and must not become a metric label: labels are bounded.
_OWN_REASONS: Final = frozenset((ACK_TIMEOUT, FAILED_BEFORE, NO_ROOM, UNWANTED))


class SubscriptionRegistry:
    """The subscriptions of this node's topics. All methods that change something run as structural changes."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MetadataStore,
        storage: PersistentStorage,
        clock: Clock,
        tasks: Tasks,
        producers: InternalProducers,
    ) -> None:
        self._options = options
        self._store = store
        self._storage = storage
        self._clock = clock
        self._tasks = tasks
        self._producers = producers
        self.pending_settings = PendingSubscriptionSettings(store)
        self.health = DeliveryHealth()
        self.stalled_readers = StalledReaders()

    # --- subscriptions ---

    async def load(self, topic: BrokerTopic) -> None:
        """Loads every subscription of a topic, at its stored cursors."""
        prefix = f"{records.SUBSCRIPTIONS}{topic.name.namespace}/{topic.name.name}/"
        for key, entry in await self._store.list_all(prefix):
            record = records.decode(records.SubscriptionRecord, key, entry.value)
            name = key.removeprefix(prefix)
            stream = await self._storage.create_subscription_stream(topic.name.namespace, topic.name.name, name)
            if None in stream.cursors:  # it restarts at offset 0 rather than skip messages that were never acked
                _log.error(
                    "a subscription has lost its cursor and restarts at the beginning",
                    topic=str(topic.name),
                    subscription=name,
                )
            # At offset 0, not at the start of the history: that is unknown while a node starts, and reads skip to it.
            await self._serve(topic, name, record, stream, SubscriptionStart(StartAt.OFFSET))

    async def create(
        self,
        topic: BrokerTopic,
        name: str,
        kind: SubscriptionType,
        start: SubscriptionStart,
        failure: FailurePolicy | None,
        user: NameUser = UNNAMED,
    ) -> BrokerSubscription:
        """Creates a subscription; it is durable with its cursors when this returns.

        Raises InvalidInput for an invalid failure policy, AlreadyExists after a concurrent creation.
        """
        await advance_generation(self._store, [topic])
        pending = await self.pending_settings.get(topic.name, name) or records.PendingSubscription()
        policy = failure or pending.failure
        record = records.SubscriptionRecord(
            id=await self._store.allocate_id("subscription"),
            type=kind,
            created_ms=self._clock.wall_us() // 1000,
            failure=policy or FailurePolicy(),
            max_unacked_messages=pending.max_unacked_messages,
            principal=user.principal,
            dead_letters_by=user.identity if failure is not None else pending.dead_letters_by,
        )
        await self._check_policy(topic, record.failure)
        stream = await self._storage.create_subscription_stream(topic.name.namespace, topic.name.name, name)
        # Cursors of a deleted subscription of the same name may be left from a crash: they do not apply to the new one.
        without_cursors = stream._replace(cursors=[None] * len(stream.shards))
        # Served before it is stored: `_write` stores the cursors of its deliveries. It has no consumers yet, so nothing
        # is delivered before it is durable.
        subscription = await self._serve(topic, name, record, without_cursors, start)
        try:
            await self._write(topic, subscription)
        except BaseException:  # also a cancellation, when the broker shuts down
            del topic.subscriptions[name]
            subscription.delete("the subscription could not be stored")
            raise
        return subscription

    async def claim(self, topic: BrokerTopic, subscription: BrokerSubscription, user: NameUser) -> None:
        """Makes the subscription that of its first user. Raises PermissionDenied if it is another principal's."""
        owner = user.claim(subscription.record.principal)
        if owner != subscription.record.principal:
            await self._change(topic, subscription.name, principal=owner)

    async def _write(self, topic: BrokerTopic, subscription: BrokerSubscription) -> None:
        """Writes the subscription and its cursors in one transaction: after a crash both exist, or neither."""
        key = records.subscription_key(topic.name, subscription.name)
        also: list[Operation] = [
            Put(key, records.encode(subscription.record)),
            self.pending_settings.consume(topic.name, subscription.name),
        ]
        if not await self._storage.write_cursors(subscription.deliveries, [Absent(key)], also):
            raise errors.AlreadyExists(
                f"subscription {subscription.name} was created concurrently", hint="use it, or choose another name"
            )

    async def _serve(
        self,
        topic: BrokerTopic,
        name: str,
        record: records.SubscriptionRecord,
        stream: SubscriptionStream,
        start: SubscriptionStart,
    ) -> BrokerSubscription:
        """Starts the deliveries of a subscription. `start`: the position of shards without a cursor."""
        # One bucket for all shards: the rate is that of the subscription, however its messages are spread.
        rate = TokenBucket(record.max_dispatch_rate or topic.policies.max_dispatch_rate or 0)
        deliveries = [
            await self._create_delivery(topic, name, record, shard, cursor, start, rate)
            for shard, cursor in zip(stream.shards, stream.cursors, strict=True)
        ]
        subscription = topic.subscriptions[name] = BrokerSubscription(name, record, deliveries)
        for delivery in deliveries:
            delivery.start()
        return subscription

    async def _create_delivery(
        self,
        topic: BrokerTopic,
        name: str,
        record: records.SubscriptionRecord,
        stream: ShardStream,
        cursor: records.CursorRecord | None,
        start: SubscriptionStart,
        rate: TokenBucket,
    ) -> ShardDelivery:
        """Creates the delivery of one shard at its cursor, or at `start` without one."""
        shard = stream.key.shard
        dead_letters = DeadLetterWriter(topic, name, record, self._producers, self._storage, self._options.address)
        if cursor is None:
            # What is stored now counts as history, which a non-reliable subscription keeps until consumers come.
            position = records.CursorRecord(
                0, await self.position(stream, start), stream.key.topic_id, stream.epoch, kept_below=stream.visible
            )
            written_letters = []
        else:
            position = cursor
            written_letters = await dead_letters.find_written(stream, cursor.generation)
        acked = AckedOffsets(position.offset, position.ranges)
        # Dead letters that were stored before a crash and whose acks did not reach the cursor.
        unacked_letters = [letter for letter in written_letters if acked.first_missing(*letter) is not None]
        for start_offset, end_offset in unacked_letters:
            acked.add(start_offset, end_offset)
        delivery = ShardDelivery(
            DeliveryName(str(topic.name), name, shard),
            records.cursor_key(
                topic.name, name, shard, topic.record.shards, is_partitioned=topic.record.is_partitioned
            ),
            stream,
            # Never above the end: the next message must not be stored below a cursor (seed 002's invariant).
            self._create_dispatcher(topic, record, acked.below(stream.visible), position, rate),
            self._storage,
            dead_letters,
            self._clock,
            self._tasks,
            _count_dropped,
            self.health,
            self.stalled_readers,
        )
        if unacked_letters:  # before another letter is written: only the last ones can be found (hazard 41)
            await self._storage.write_cursors([delivery])
        return delivery

    def _create_dispatcher(
        self,
        topic: BrokerTopic,
        record: records.SubscriptionRecord,
        acked: AckedOffsets,
        cursor: records.CursorRecord,
        rate: TokenBucket,
    ) -> Dispatcher:
        """The dispatcher for the type of the subscription and the dispatch mode of its topic."""
        is_keyed, generation = record.type is SubscriptionType.KEY_SHARED, cursor.generation
        if topic.record.dispatch is DispatchMode.NON_RELIABLE:
            if is_keyed:
                return KeySharedBestEffortDispatcher(
                    acked, rate=rate, generation=generation, kept_below=cursor.kept_below
                )
            return BestEffortDispatcher(record.type, acked, rate, generation, cursor.kept_below)
        policy, unacked = record.failure, record.max_unacked_messages or self._options.unacked_max
        if is_keyed:
            return KeySharedDispatcher(policy, acked, cursor.failures, unacked, rate=rate, generation=generation)
        return Dispatcher(record.type, policy, acked, cursor.failures, unacked, rate=rate, generation=generation)

    async def position(self, stream: ShardStream, start: SubscriptionStart) -> int:
        """The offset of a start in a shard; never above the end (seed 002's invariant)."""
        match start.at:
            case StartAt.LATEST:
                offset = stream.visible
            case StartAt.EARLIEST:
                offset = await stream.history_start()
            case StartAt.OFFSET:
                offset = start.value
            case StartAt.TIME:
                offset = await _offset_for_time(stream, start.value)
            case StartAt.SNAPSHOT:
                offset = await stream.offset_after_snapshot(start.value)
        return min(max(offset, 0), stream.visible)

    async def seek(self, topic: BrokerTopic, deliveries: Sequence[ShardDelivery], start: SubscriptionStart) -> None:
        """Moves the deliveries to a start, all in the same moment, then writes their cursors in one transaction."""
        await advance_generation(self._store, [topic])
        # All positions first: finding one may wait for a table, and none of the shards moves if that fails.
        positions = [await self.position(delivery.stream, start) for delivery in deliveries]
        for delivery, position in zip(deliveries, positions, strict=True):
            delivery.seek(position)
        await self._storage.write_cursors(deliveries)

    async def create_deliveries(
        self, topic: BrokerTopic, shards: Sequence[int]
    ) -> dict[BrokerSubscription, list[ShardDelivery]]:
        """Creates the deliveries of new shards for every subscription, from their first message on, with durable
        cursors."""
        created: dict[BrokerSubscription, list[ShardDelivery]] = {}
        for name, subscription in topic.subscriptions.items():
            rate, start = subscription.deliveries[0].dispatcher.throttle.bucket, SubscriptionStart(StartAt.EARLIEST)
            streams = [self._storage.shard_stream(ShardKey(topic.record.id, shard)) for shard in shards]
            created[subscription] = [
                await self._create_delivery(topic, name, subscription.record, stream, None, start, rate)
                for stream in streams
            ]
            await self._storage.write_cursors(created[subscription])
        return created

    async def delete(self, topic: BrokerTopic, name: str) -> None:
        """Deletes a subscription with its cursors, then disconnects its consumers. Raises UnknownSubscription."""
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise unknown_subscription(topic.name, name)
        cursors = [delivery.cursor_key for delivery in subscription.deliveries]

        def on_deleted() -> None:
            del topic.subscriptions[name]
            subscription.delete(f"subscription {name} was deleted")

        await self._storage.delete_cursors(cursors, [Delete(records.subscription_key(topic.name, name))], on_deleted)
        # A crash here leaves the ids of its consumers, which is harmless: a new subscription would reuse them.
        await self._store.delete_prefix(records.consumer_key(topic.name, name, ""))

    async def set_failure_policy(
        self,
        topic: BrokerTopic,
        name: str,
        policy: FailurePolicy,
        *,
        is_ahead: bool = False,
        user: NameUser = UNNAMED,
    ) -> None:
        """Sets the failure policy; `is_ahead`: also of a subscription that does not exist yet."""
        await self._check_policy(topic, policy)
        subscription = topic.subscriptions.get(name)
        if subscription is None and is_ahead:
            await self.pending_settings.change(topic.name, name, failure=policy, dead_letters_by=user.identity)
            return
        # The former dead-letter topic is recorded: a crash may have left a letter there whose ack no cursor has yet,
        # and a start searches for it (dead_letter_writer.py).
        former_topic = subscription.record.failure.dead_letter_topic if subscription is not None else None
        if former_topic is None or former_topic == policy.dead_letter_topic:
            await self._change(topic, name, failure=policy, dead_letters_by=user.identity)
        else:
            await self._change(
                topic, name, failure=policy, dead_letters_by=user.identity, dead_letters_before=former_topic
            )

    async def set_dispatch_rate(self, topic: BrokerTopic, name: str, messages_per_second: int | None) -> None:
        if messages_per_second is not None and not 0 <= messages_per_second <= limits.OFFSET_MAX:
            raise errors.InvalidInput(
                f"invalid dispatch rate: {messages_per_second} messages per second", hint="0 means no bound"
            )
        await self._change(topic, name, max_dispatch_rate=messages_per_second)
        topic.subscriptions[name].set_rate(topic.policies.max_dispatch_rate or 0)

    async def set_unacked_max(
        self, topic: BrokerTopic, name: str, messages: int | None, *, is_ahead: bool = False
    ) -> None:
        """Sets the bound of unacked messages; None for the broker's setting. `is_ahead`: as in `set_failure_policy`."""
        if messages is not None and not 0 < messages <= limits.UNACKED_MAX:
            raise errors.InvalidInput(
                f"invalid bound of unacked messages: {messages}", hint=f"1 to {limits.UNACKED_MAX} are possible"
            )
        if is_ahead and name not in topic.subscriptions:
            await self.pending_settings.change(topic.name, name, max_unacked_messages=messages)
            return
        await self._change(topic, name, max_unacked_messages=messages)
        topic.subscriptions[name].set_unacked_max(messages or self._options.unacked_max)

    async def _check_policy(self, topic: BrokerTopic, policy: FailurePolicy) -> None:
        """Raises InvalidInput or UnknownNamespace if dead letters could not be stored.

        Checked here as far as possible, because an error at the first dead letter would reach no caller.
        """
        if policy.dead_letter_topic is None:
            return
        dead_letter_topic = TopicName.parse(policy.dead_letter_topic)
        if dead_letter_topic == topic.name:
            raise errors.InvalidInput(
                f"topic {topic.name} cannot be its own dead-letter topic", hint="its dead letters would fail again"
            )
        if await self._store.get(records.namespace_key(dead_letter_topic.namespace)) is None:
            raise unknown_namespace(dead_letter_topic.namespace)
        await self._check_same_node(topic, dead_letter_topic)

    async def _check_same_node(self, topic: BrokerTopic, dead_letter_topic: TopicName) -> None:
        """A node stores dead letters in its own log, because their acks must be durable after them."""
        key = records.topic_key(dead_letter_topic)
        entry = await self._store.get(key)
        if entry is None:
            return
        if records.decode(records.TopicRecord, key, entry.value).owner not in ("", topic.record.owner):
            raise errors.InvalidInput(
                f"topic {dead_letter_topic} is served by another node than {topic.name}",
                hint="choose a dead-letter topic that the same node serves, or one that does not exist yet",
            )

    async def _change(self, topic: BrokerTopic, name: str, **changes: Any) -> None:
        """Stores changed fields of a subscription record, then applies them. Raises UnknownSubscription."""
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise unknown_subscription(topic.name, name)
        record = msgspec.structs.replace(subscription.record, **changes)
        await self._store.put(records.subscription_key(topic.name, name), records.encode(record))
        subscription.set_record(record)

    # --- consumers ---

    def admit(
        self,
        topic: BrokerTopic,
        subscription: str,
        kind: SubscriptionType,
        name: str,
        key_patterns: tuple[str, ...],
        shard: int | None,
    ) -> None:
        """Raises if the consumer may not join. Called before anything changes, also before a creation.

        Raises InvalidInput, SubscriptionTaken, PolicyReached.
        """
        KeyFilter(key_patterns)  # raises InvalidInput
        if key_patterns and kind is not SubscriptionType.KEY_SHARED:
            raise errors.InvalidInput(
                f"a subscription of type {kind.value} has no key patterns",
                hint="use the type key-shared, or no patterns",
            )
        if shard is not None:
            topic.shard_key(shard)
        existing = topic.subscriptions.get(subscription)
        if existing is not None:
            existing.admit(name, kind, shard)
        if existing is None or name not in existing.consumers:
            topic.admit_consumer(subscription)

    async def join(
        self,
        topic: BrokerTopic,
        subscription: BrokerSubscription,
        name: str,
        sink: ConsumerSink,
        key_patterns: tuple[str, ...],
        shard: int | None,
    ) -> BrokerConsumer:
        """Connects a consumer to a subscription. Raises ShuttingDown.

        Its id is kept over restarts: in a key-shared subscription the id decides which keys the consumer owns.
        """
        key = records.consumer_key(topic.name, subscription.name, name)
        entry = await self._store.get(key)
        # Written only if it is new or old: consumers reconnect far more often than their names expire.
        if entry is None:
            record = records.ConsumerRecord(await self._store.allocate_id("consumer"))
        else:
            record = records.decode(records.ConsumerRecord, key, entry.value)
        if entry is None or needs_renewal(entry, self._clock.wall_us() // 1000):
            await self._store.txn([], [put_name(key, records.encode(record))])
        if subscription.is_closed:  # since the store was asked
            raise errors.ShuttingDown("the broker is shutting down", hint="reconnect in a moment")
        consumer = BrokerConsumer(record.id, name, sink, self._tasks, self._clock, key_patterns, shard)
        subscription.join(consumer)
        return consumer


async def _offset_for_time(stream: ShardStream, time_us: int) -> int:
    """The first offset at or after a time. Searches again if a log file was recycled under the search."""
    while True:
        try:
            return await stream.offset_for_time(time_us)
        except errors.StaleRead:
            await asyncio.sleep(0)


def _count_dropped(dropped: Dropped) -> None:
    """Counts dropped messages by the reason of the broker, or as nacked with a reason of the consumer."""
    reason = dropped.reason if dropped.reason in _OWN_REASONS else NACK
    metrics.MESSAGES_DROPPED.labels(reason).inc(dropped.end - dropped.start)


class PendingSubscriptionSettings:
    """Settings for subscriptions that do not exist yet: a subscription of that name starts with them.

    Danube's operators set policies before they subscribe, so that the policies apply to every message from the first
    on. The settings are deleted with the topic, and consumed by the first subscription of the name.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self, topic: TopicName, subscription: str) -> records.PendingSubscription | None:
        """The settings for a subscription of this name; None if there are none."""
        key = records.pending_subscription_key(topic, subscription)
        entry = await self._store.get(key)
        return None if entry is None else records.decode(records.PendingSubscription, key, entry.value)

    async def change(self, topic: TopicName, subscription: str, **changes: Any) -> None:
        """Changes some of the settings and keeps the others. Raises PolicyReached if the topic has too many."""
        check_name("subscription", subscription)
        settings = await self.get(topic, subscription)
        if settings is None:
            settings = records.PendingSubscription()
            await self._check_count(topic)
        settings = msgspec.structs.replace(settings, **changes)
        await self._store.put(records.pending_subscription_key(topic, subscription), records.encode(settings))

    async def _check_count(self, topic: TopicName) -> None:
        # Bounded, because these names are chosen freely and nothing but the topic's deletion removes unused ones.
        entries = await self._store.list_all(records.pending_subscription_key(topic, ""))
        if len(entries) >= limits.PLANNED_SUBSCRIPTIONS_MAX:
            raise errors.PolicyReached(
                f"topic {topic} has settings for {len(entries)} subscriptions that do not exist",
                hint="subscribe first, then change the settings of further subscriptions",
            )

    @staticmethod
    def consume(topic: TopicName, subscription: str) -> Delete:
        """The operation that deletes the settings; part of the transaction that creates the subscription."""
        return Delete(records.pending_subscription_key(topic, subscription))
