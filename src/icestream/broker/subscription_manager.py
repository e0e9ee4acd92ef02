"""Makes subscriptions: a new one at its start, a stored one where it stood, and lets consumers in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.consumer import Consumer, ConsumerSink
from icestream.broker.dead_letter_writer import DeadLetterWriter, InternalProducers
from icestream.broker.delivery_health import DeliveryHealth
from icestream.broker.dispatch.best_effort import NO_ROOM, BestEffortDispatcher, KeySharedBestEffortDispatcher
from icestream.broker.dispatch.delivery_ledger import ACK_TIMEOUT, FAILED_BEFORE, NACK
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.hash_ring import KeyFilter
from icestream.broker.dispatch.instruction import Dropped
from icestream.broker.dispatch.key_shared import UNWANTED, KeySharedDispatcher
from icestream.broker.name_registry import needs_renewal, put_name
from icestream.broker.pending_subscription_settings import PendingSubscriptionSettings
from icestream.broker.rate_limit import TokenBucket
from icestream.broker.shard_delivery import DeliveryName, ShardDelivery
from icestream.broker.stalled_readers import StalledReaders
from icestream.broker.storage import PersistentStorage, ShardStream, SubscriptionStream
from icestream.broker.subscription import Subscription, unknown_subscription
from icestream.broker.topic import Topic
from icestream.broker.topic_registry import unknown_namespace
from icestream.metadata.command import Absent, Delete, Operation, Put
from icestream.metadata.store import MetadataStore
from icestream.model.cursor import AckedOffsets
from icestream.model.shard import ShardKey
from icestream.model.subscription import DispatchMode, FailurePolicy, StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("subscriptions")
# What a consumer says in a nack is no label: there would be as many as it has words.
_OWN_REASONS: Final = frozenset((ACK_TIMEOUT, FAILED_BEFORE, NO_ROOM, UNWANTED))


class SubscriptionManager:
    def __init__(
        self,
        options: BrokerOptions,
        store: MetadataStore,
        storage: PersistentStorage,
        clock: Clock,
        tasks: Tasks,
        producing: InternalProducers,
    ) -> None:
        self._options = options
        self._store = store
        self._storage = storage
        self._clock = clock
        self._tasks = tasks
        self._producing = producing
        self.planned = PendingSubscriptionSettings(store)
        self.health = DeliveryHealth()
        self.stalled_readers = StalledReaders()

    # --- subscriptions ---

    async def load(self, topic: Topic) -> None:
        """Every subscription of the topic, where its stored cursors stand."""
        prefix = f"{records.SUBSCRIPTIONS}{topic.name.namespace}/{topic.name.name}/"
        for key, entry in await self._store.list_all(prefix):
            record = records.decode(records.SubscriptionRecord, key, entry.value)
            name = key.removeprefix(prefix)
            stream = await self._storage.create_subscription_stream(topic.name.namespace, topic.name.name, name)
            if None in stream.cursors:  # it begins anew rather than to step over messages that nobody acked
                _log.error("a subscription has lost its cursor", topic=str(topic.name), subscription=name)
            # from the very first offset: what there is of it is told by whoever reads, not known while a node starts
            await self._serve(topic, name, record, stream, SubscriptionStart(StartAt.OFFSET))

    async def create(
        self, topic: Topic, name: str, kind: SubscriptionType, start: SubscriptionStart, failure: FailurePolicy | None
    ) -> Subscription:
        planned = await self.planned.get(topic.name, name) or records.PendingSubscription()
        settled = records.FailurePolicyRecord.of(failure) if failure is not None else planned.failure
        record = records.SubscriptionRecord(
            id=await self._store.allocate_id("subscription"),
            type=kind,
            created_ms=self._clock.wall_us() // 1000,
            failure=settled or records.FailurePolicyRecord(),
            max_unacked_messages=planned.max_unacked_messages,
        )
        await self._check_policy(topic, record.failure)
        stream = await self._storage.create_subscription_stream(topic.name.namespace, topic.name.name, name)
        anew = stream._replace(cursors=[None] * len(stream.shards))
        subscription = await self._serve(topic, name, record, anew, start)
        try:
            await self._write(topic, subscription)
        except BaseException:
            del topic.subscriptions[name]
            subscription.delete("it could not be stored")
            raise
        return subscription

    async def _write(self, topic: Topic, subscription: Subscription) -> None:
        """The subscription and its cursors in one step: after a crash it is there with them, or not at all."""
        key = records.subscription_key(topic.name, subscription.name)
        also: list[Operation] = [
            Put(key, records.encode(subscription.record)),
            self.planned.used_up(topic.name, subscription.name),
        ]
        if not await self._storage.write_cursors(subscription.deliveries, [Absent(key)], also):
            raise errors.AlreadyExists(f"subscription {subscription.name} was created at the same moment")

    async def _serve(
        self,
        topic: Topic,
        name: str,
        record: records.SubscriptionRecord,
        stream: SubscriptionStream,
        start: SubscriptionStart,
    ) -> Subscription:
        """`start`: for shards without a cursor."""
        rate = TokenBucket(record.max_dispatch_rate or topic.policies.max_dispatch_rate or 0)  # one for all shards
        deliveries = [
            await self._delivery(topic, name, record, shard, cursor, start, rate)
            for shard, cursor in zip(stream.shards, stream.cursors, strict=True)
        ]
        subscription = topic.subscriptions[name] = Subscription(name, record, deliveries)
        for delivery in deliveries:
            delivery.start()
        return subscription

    async def _delivery(
        self,
        topic: Topic,
        name: str,
        record: records.SubscriptionRecord,
        stream: ShardStream,
        cursor: records.CursorRecord | None,
        start: SubscriptionStart,
        rate: TokenBucket,
    ) -> ShardDelivery:
        shard = stream.key.shard
        burial = DeadLetterWriter(topic, name, record, self._producing, self._storage, self._options.address)
        if cursor is None:
            known = records.CursorRecord(
                0, await self.position(stream, start), stream.key.topic_id, stream.epoch, kept_below=stream.visible
            )
            buried = []
        else:
            known = cursor
            buried = await burial.buried(stream, cursor.generation)
        acked = AckedOffsets(known.offset, known.ranges)
        unknown = [one for one in buried if acked.first_missing(*one) is not None]
        for one in unknown:
            acked.add(*one)
        delivery = ShardDelivery(
            DeliveryName(str(topic.name), name, shard),
            records.cursor_key(
                topic.name, name, shard, topic.record.shards, is_partitioned=topic.record.is_partitioned
            ),
            stream,
            # never above the end: what is written next must not be below a held position (seed 002's invariant)
            self._dispatcher(topic, record, acked.below(stream.visible), known, rate),
            self._storage,
            burial,
            self._clock,
            self._tasks,
            _count_dropped,
            self.health,
            self.stalled_readers,
        )
        if unknown:  # before anything else is buried: then it would not be found here any more (hazard 41)
            await self._storage.write_cursors([delivery])
        return delivery

    def _dispatcher(
        self,
        topic: Topic,
        record: records.SubscriptionRecord,
        acked: AckedOffsets,
        cursor: records.CursorRecord,
        rate: TokenBucket,
    ) -> Dispatcher:
        is_keyed, generation = record.type is SubscriptionType.KEY_SHARED, cursor.generation
        if topic.record.dispatch is DispatchMode.NON_RELIABLE:
            if is_keyed:
                return KeySharedBestEffortDispatcher(
                    acked, rate=rate, generation=generation, kept_below=cursor.kept_below
                )
            return BestEffortDispatcher(record.type, acked, rate, generation, cursor.kept_below)
        policy, unacked = record.failure.policy(), record.max_unacked_messages or self._options.unacked_max
        if is_keyed:
            return KeySharedDispatcher(policy, acked, cursor.failures, unacked, rate=rate, generation=generation)
        return Dispatcher(record.type, policy, acked, cursor.failures, unacked, rate=rate, generation=generation)

    async def position(self, stream: ShardStream, start: SubscriptionStart) -> int:
        """Where a start lies in a shard. Never above the end (seed 002's invariant)."""
        match start.at:
            case StartAt.LATEST:
                wanted = stream.visible
            case StartAt.EARLIEST:
                wanted = await stream.history_start()
            case StartAt.OFFSET:
                wanted = start.value
            case StartAt.TIME:
                wanted = await _offset_for_time(stream, start.value)
            case StartAt.SNAPSHOT:
                wanted = await stream.offset_after_snapshot(start.value)
        return min(max(wanted, 0), stream.visible)

    async def seek(self, deliveries: Sequence[ShardDelivery], start: SubscriptionStart) -> None:
        """All at once, then their cursors in one step."""
        positions = [await self.position(one.stream, start) for one in deliveries]
        for delivery, position in zip(deliveries, positions, strict=True):
            delivery.seek(position)
        await self._storage.write_cursors(deliveries)

    async def grow(self, topic: Topic, shards: Sequence[int]) -> dict[Subscription, list[ShardDelivery]]:
        """For every subscription deliveries of further shards, from their first message on; the cursors are durable."""
        grown: dict[Subscription, list[ShardDelivery]] = {}
        for name, found in topic.subscriptions.items():
            rate = found.deliveries[0].dispatcher.throttle.bucket
            streams = [self._storage.shard_stream(ShardKey(topic.record.id, shard)) for shard in shards]
            grown[found] = [
                await self._delivery(topic, name, found.record, stream, None, SubscriptionStart(StartAt.EARLIEST), rate)
                for stream in streams
            ]
            await self._storage.write_cursors(grown[found])
        return grown

    async def delete(self, topic: Topic, name: str) -> None:
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise unknown_subscription(topic.name, name)
        cursors = [delivery.cursor_key for delivery in subscription.deliveries]

        def gone() -> None:
            del topic.subscriptions[name]
            subscription.delete(f"subscription {name} was deleted")

        await self._storage.delete_cursors(cursors, [Delete(records.subscription_key(topic.name, name))], gone)
        # after a crash here the ids of its consumers are left: they would go on under the same name
        await self._store.delete_prefix(records.consumer_key(topic.name, name, ""))

    async def set_failure_policy(
        self, topic: Topic, name: str, policy: FailurePolicy, *, is_ahead: bool = False
    ) -> None:
        record = records.FailurePolicyRecord.of(policy)
        await self._check_policy(topic, record)
        found = topic.subscriptions.get(name)
        if found is None and is_ahead:
            await self.planned.change(topic.name, name, failure=record)
            return
        before = found.record.failure.dead_letter_topic if found is not None else None
        if before is None or before == record.dead_letter_topic:
            await self._change(topic, name, failure=record)
        else:
            await self._change(topic, name, failure=record, dead_letters_before=before)

    async def set_dispatch_rate(self, topic: Topic, name: str, messages_per_second: int | None) -> None:
        if messages_per_second is not None and not 0 <= messages_per_second <= limits.OFFSET_MAX:
            raise errors.InvalidInput(f"a rate of {messages_per_second} messages in a second", hint="0: no bound")
        await self._change(topic, name, max_dispatch_rate=messages_per_second)
        topic.subscriptions[name].set_rate(topic.policies.max_dispatch_rate or 0)

    async def set_unacked_max(self, topic: Topic, name: str, messages: int | None, *, is_ahead: bool = False) -> None:
        if messages is not None and not 0 < messages <= limits.UNACKED_MAX:
            raise errors.InvalidInput(f"{messages} unacked messages", hint=f"1 to {limits.UNACKED_MAX} are possible")
        if is_ahead and name not in topic.subscriptions:
            await self.planned.change(topic.name, name, max_unacked_messages=messages)
            return
        await self._change(topic, name, max_unacked_messages=messages)
        topic.subscriptions[name].set_unacked_max(messages or self._options.unacked_max)

    async def _check_policy(self, topic: Topic, policy: records.FailurePolicyRecord) -> None:
        """What can be known now: the first dead letter comes when nobody looks."""
        if policy.dead_letter_topic is None:
            return
        dead = TopicName.parse(policy.dead_letter_topic)
        if dead == topic.name:
            raise errors.InvalidInput(
                f"topic {topic.name} cannot take its own dead letters", hint="they would fail again, for ever"
            )
        if await self._store.get(records.namespace_key(dead.namespace)) is None:
            raise unknown_namespace(dead.namespace)
        await self._check_own(topic, dead)

    async def _check_own(self, topic: Topic, dead: TopicName) -> None:
        """A node stores dead letters in its own log: with the cursor that knows of them."""
        key = records.topic_key(dead)
        entry = await self._store.get(key)
        if entry is None:
            return
        if records.decode(records.TopicRecord, key, entry.value).owner not in ("", topic.record.owner):
            raise errors.InvalidInput(
                f"topic {dead} is served by another node than {topic.name}",
                hint="choose a dead-letter topic that the same node serves, or one that is not there yet",
            )

    async def _change(self, topic: Topic, name: str, **changed: Any) -> None:
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise unknown_subscription(topic.name, name)
        record = msgspec.structs.replace(subscription.record, **changed)
        await self._store.put(records.subscription_key(topic.name, name), records.encode(record))
        subscription.set_record(record)

    # --- consumers ---

    def admit(
        self,
        topic: Topic,
        subscription: str,
        kind: SubscriptionType,
        name: str,
        key_patterns: tuple[str, ...],
        shard: int | None,
    ) -> None:
        """Raises when the consumer is not let in, before anything has happened: also before a subscription is made."""
        KeyFilter(key_patterns)
        if key_patterns and kind is not SubscriptionType.KEY_SHARED:
            raise errors.InvalidInput(
                f"a subscription of type {kind.value} has no key patterns",
                hint="use the type key-shared, or no patterns",
            )
        if shard is not None:
            topic.shard_key(shard)
        found = topic.subscriptions.get(subscription)
        if found is not None:
            found.admit(name, kind, shard)
        if found is None or name not in found.consumers:
            topic.admit_consumer(subscription)

    async def join(
        self,
        topic: Topic,
        subscription: Subscription,
        name: str,
        sink: ConsumerSink,
        key_patterns: tuple[str, ...],
        shard: int | None,
    ) -> Consumer:
        key = records.consumer_key(topic.name, subscription.name, name)
        entry = await self._store.get(key)
        if entry is None:
            record = records.ConsumerRecord(await self._store.allocate_id("consumer"))
        else:
            record = records.decode(records.ConsumerRecord, key, entry.value)
        if entry is None or needs_renewal(entry, self._clock.wall_us() // 1000):
            await self._store.txn([], [put_name(key, records.encode(record))])
        if subscription.is_closed:
            raise errors.ShuttingDown("the broker is shutting down", hint="connect again in a moment")
        consumer = Consumer(record.id, name, sink, self._tasks, self._clock, key_patterns, shard)
        subscription.join(consumer)
        return consumer


async def _offset_for_time(stream: ShardStream, time_us: int) -> int:
    """Files may be recycled under the search: then it begins again."""
    while True:
        try:
            return await stream.offset_for_time(time_us)
        except errors.StaleRead:
            await asyncio.sleep(0)


def _count_dropped(dropped: Dropped) -> None:
    reason = dropped.reason if dropped.reason in _OWN_REASONS else NACK
    metrics.MESSAGES_DROPPED.labels(reason).inc(dropped.end - dropped.start)
