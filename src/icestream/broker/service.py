"""The use cases of the broker: what front ends, the API and the command line may ask for, and nothing more.

Structural changes (namespaces, topics, subscriptions, their policies) are written to the metadata store in one
transaction each, then take effect here. One at a time (changes.py): they are rare. Publishing and acks never wait for
them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from icestream import errors
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.consumer import Consumer, ConsumerSink
from icestream.broker.danube_partitions import DanubePartitions, PartitionRequest
from icestream.broker.delivery_health import DeliveryHealth
from icestream.broker.name_registry import NameRegistry
from icestream.broker.publisher import Publisher
from icestream.broker.schema_registry import SchemaRegistry
from icestream.broker.storage import PersistentStorage
from icestream.broker.structural_changes import StructuralChanges
from icestream.broker.subscription import Subscription, unknown_subscription
from icestream.broker.subscription_manager import SubscriptionManager
from icestream.broker.topic import Producer, Topic
from icestream.broker.topic_deletion import Deletion
from icestream.broker.topic_owners import TopicOwners
from icestream.broker.topic_registry import TopicRegistry
from icestream.broker.topic_takeover import Takeover
from icestream.metadata.node_store import NodeStore
from icestream.metadata.store import MetadataStore
from icestream.model.subscription import DispatchMode, FailurePolicy, SubscriptionStart, SubscriptionType
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName, check_name
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.receipt import Receipt


class Broker:
    def __init__(
        self,
        options: BrokerOptions,
        store: MetadataStore,
        storage: PersistentStorage,
        clock: Clock,
        neighbours: TopicOwners | None = None,
    ) -> None:
        self.options = options
        self.store = store
        self.storage = storage
        self._clock = clock
        self._tasks = Tasks(self._task_failed)
        self._changes = StructuralChanges()
        self.topics = TopicRegistry(options, store, storage, clock, neighbours)
        self.registry = SchemaRegistry(store, self.topics, clock)
        self._publishing = Publisher(store, storage, clock, self.registry)
        self._roster = NameRegistry(store, clock, self._changes, self.topics)
        self._subscribing = SubscriptionManager(options, store, storage, clock, self._tasks, self)
        self.stalled_readers = self._subscribing.stalled_readers
        self._parts = DanubePartitions(self.topics, self._subscribing)
        self.is_ready = False
        self.is_closing = False

    @property
    def delivery_health(self) -> DeliveryHealth:
        """The subscriptions that are stalled or fall behind."""
        return self._subscribing.health

    async def start(self) -> None:
        """Everything that was there before is there again."""
        after = await self.store.revision()
        await self.topics.load()
        await self.registry.load()
        if self.topics.neighbours.there_may_be_some:
            self._tasks.start(self.topics.follow_namespaces(after), "namespaces")
            self._tasks.start(self.registry.follow(after), "schemas")
        for topic in self.topics:
            await self._subscribing.load(topic)
        self._tasks.start(self._roster.run(), "names")
        self.is_ready = True

    async def shutdown(self) -> None:
        """Nobody is let in any more; what was taken is finished; cursors are written; the log is closed."""
        self.is_ready, self.is_closing = False, True
        await self._changes.stop()
        for topic in self.topics:
            topic.close("the broker is shutting down")
        await self._tasks.stop()
        try:
            await self.storage.shutdown()
        finally:
            await self.store.close()

    def _task_failed(self, error: BaseException) -> None:
        if isinstance(self.store, NodeStore) and error is self.store.stopped:
            return  # the node stops for it and says so: whoever followed the store has nothing to add
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a task of the broker failed", "exception": error}
        )

    def _check_open(self) -> None:
        if self.is_closing:
            raise errors.ShuttingDown("the broker is shutting down", hint="connect again in a moment")

    # --- namespaces and topics ---

    async def create_namespace(self, name: str, policies: records.TopicPolicies | None = None) -> None:
        await self._changes.make(lambda: self.topics.create_namespace(name, policies or records.TopicPolicies()))

    async def delete_namespace(self, name: str) -> None:
        await self._changes.make(lambda: self.topics.delete_namespace(name))

    async def set_namespace_policies(self, name: str, policies: records.TopicPolicies) -> None:
        await self._changes.make(lambda: self.topics.set_namespace_policies(name, policies))

    async def create_topic(
        self,
        name: TopicName,
        shards: int = 1,
        dispatch: DispatchMode = DispatchMode.RELIABLE,
        policies: records.TopicPolicies | None = None,
    ) -> Topic:
        given = policies or records.TopicPolicies()
        return await self._changes.make(lambda: self.topics.create(name, shards, dispatch, given))

    async def create_partitioned_topic(
        self, name: TopicName, partitions: int, dispatch: DispatchMode = DispatchMode.RELIABLE
    ) -> Topic:
        """One whose shards are called `name-part-N` outside, however few they are; it grows when more are named."""
        create, given = self.topics.create, records.TopicPolicies()
        return await self._changes.make(lambda: create(name, partitions, dispatch, given, is_partitioned=True))

    async def delete_topic(
        self, name: TopicName, table: DeletedTablePolicy | None = None, rest: DeletedRestPolicy | None = None
    ) -> Deletion:
        """What becomes of its table and of messages that are in none: else as its policies say."""

        async def change() -> Deletion:
            decided = await self.topics.delete(name, table, rest)
            self.registry.forget(name)
            return decided

        return await self._changes.make(change)

    async def take_over_topic(self, name: TopicName) -> Takeover:
        """A topic whose node was removed from the cluster; its subscriptions go on where their cursors stand."""

        async def change() -> Takeover:
            topic, takeover = await self.topics.take_over(name)
            await self._subscribing.load(topic)
            return takeover

        return await self._changes.make(change)

    def tables_went_on(self) -> None:
        """The pipeline has told how far tables are: a topic that was deleted may have nothing left to commit."""
        if self.topics.has_waiting and not self.is_closing:
            self._tasks.start(self._finish_drained(), "deletions")

    async def _finish_drained(self) -> None:
        """What fails is tried again with the next round, or at the next start."""
        with contextlib.suppress(errors.IcestreamError):
            await self._changes.make(self.topics.finish_drained)

    async def set_topic_policies(self, name: TopicName, policies: records.TopicPolicies) -> None:
        await self._changes.make(lambda: self.topics.set_policies(name, policies))

    async def change_topic_policies(self, name: TopicName, changes: Mapping[str, object]) -> Topic:
        """What is left out stays as it is, also when two change others at the same time."""

        async def change() -> Topic:
            topic = self.topics.get(name)
            await self.topics.set_policies(name, topic.record.policies.changed(changes))
            return topic

        return await self._changes.make(change)

    # --- producers ---

    async def open_producer(
        self,
        name: TopicName,
        producer: str,
        *,
        create: bool | None = None,
        shards: int = 1,
        instance: str = "",
        resumes: bool = False,
        part: PartitionRequest | None = None,
    ) -> Producer:
        """A new epoch of the producer of this name: an older one is fenced from now on (hazard 7).

        `resumes`: it was connected before. It must be the last that was, or the numbers stored are not its own.
        `part`: the topic as a client of Danube names it (parts.py).
        """
        self._check_open()
        check_name("producer", producer)
        wanted = self.options.auto_create_topics if create is None else create

        async def change() -> Producer:
            if part is not None:
                topic = await self._parts.provide(name, part, create=wanted)
            else:
                topic = await self._topic(name, shards, create=wanted)
            return await self._publishing.open(topic, producer, instance, resumes=resumes)

        return await self._changes.make(change, self.close_producer)

    async def open_inner_producer(
        self, name: TopicName, producer: str, instance: str, *, resumes: bool = False
    ) -> Producer:
        """For what the broker itself stores. Its name has a `/`, so it is no client's."""

        async def change() -> Producer:
            topic = await self._topic(name, 1, create=True)
            return await self._publishing.open_inner(topic, producer, instance, resumes=resumes)

        return await self._changes.make(change)

    async def find_inner_producer(self, name: TopicName, producer: str, instance: str) -> Producer | None:
        """As it was when it was last opened. None: there is none, or that was another instance."""
        topic = self.topics.find(name)
        return await self._publishing.find(topic, producer, instance) if topic is not None else None

    async def _topic(self, name: TopicName, shards: int, *, create: bool) -> Topic:
        if create and self.topics.find(name) is None:
            return await self.topics.create(name, shards, DispatchMode.RELIABLE, records.TopicPolicies())
        return await self.topics.locate(name)

    def last_sequence(self, producer: Producer, shard: int) -> int | None:
        """The last number that is stored of this producer, so that it knows where to go on. Of its own: a process that
        was started again and counts anew must not take the messages of the one before for its own (hazard 7)."""
        return self.storage.last_sequence(producer.topic.shard_key(shard), producer.id, producer.since_epoch)

    def last_sequence_of_all(self, producer: Producer, shard: int) -> int | None:
        """The same, also of those that had its name before: who begins behind it has numbers that nobody had."""
        return self.storage.last_sequence(producer.topic.shard_key(shard), producer.id)

    def recent_batches(self, producer: Producer, shard: int) -> list[tuple[int, int, int]]:
        """(first number, messages, base offset) of its own last batches."""
        return self.storage.recent_batches(producer.topic.shard_key(shard), producer.id, producer.since_epoch)

    def close_producer(self, producer: Producer) -> None:
        producer.topic.producers.discard(producer)

    def disconnect_producer(self, name: TopicName, producer: str) -> None:
        """It has to open again before it sends more; what it sent until now counts."""
        found = [one for one in self.topics.get(name).producers if one.name == producer]
        if not found:
            raise errors.NotConnected(
                f"topic {name} has no producer {producer} that is connected",
                hint=f"`icestream topic describe {name}` shows those that are",
            )
        for one in found:
            one.close(errors.ProducerFenced("an operator disconnected this producer", hint="open it again"))
            self.close_producer(one)

    def publish(self, producer: Producer, shard: int, block: bytes) -> Receipt:
        """Stores a block; the receipt, which says also how long the producer should wait before its next one.

        Raises what is wrong with the block, or Refused: nothing was stored. After a refusal the producer's later blocks
        of that shard are refused too, until it is reset: they would overtake the one that comes again (hazard 37).
        """
        self._check_open()
        return self._publishing.publish(producer, shard, block)

    def reset_producer(self, producer: Producer, shard: int) -> None:
        """The client knows what was refused and begins again from there."""
        if producer.closed is not None:
            raise producer.closed
        producer.pipe(shard).reset()

    # --- subscriptions ---

    async def subscribe(
        self,
        name: TopicName,
        subscription: str,
        kind: SubscriptionType,
        consumer: str,
        sink: ConsumerSink,
        start: SubscriptionStart | None = None,
        key_patterns: Sequence[str] = (),
        failure: FailurePolicy | None = None,
        shard: int | None = None,
        create: bool = True,
    ) -> tuple[Subscription, Consumer]:
        """Makes the subscription when it is not there. Its cursor is durable when this returns (hazard 48).

        `shard`: the only one that the consumer wants messages of. It may use its name for each shard.
        """
        self._check_open()
        check_name("subscription", subscription)
        check_name("consumer", consumer)
        place = consumer if shard is None else f"{consumer}/{shard}"

        async def change() -> tuple[Subscription, Consumer]:
            topic, patterns = await self.topics.locate(name), tuple(key_patterns)
            found = topic.subscriptions.get(subscription)
            if found is None and not create:
                raise unknown_subscription(name, subscription)
            self._subscribing.admit(topic, subscription, kind, place, patterns, shard)
            if found is None:
                topic.admit_subscription()
                found = await self._subscribing.create(topic, subscription, kind, start or SubscriptionStart(), failure)
            return found, await self._subscribing.join(topic, found, place, sink, patterns, shard)

        return await self._changes.make(change, lambda joined: joined[0].leave(joined[1]))

    async def create_subscription(
        self,
        name: TopicName,
        subscription: str,
        kind: SubscriptionType,
        start: SubscriptionStart | None = None,
        failure: FailurePolicy | None = None,
    ) -> Subscription:
        """One that nobody consumes yet: what is published from now on waits for it."""
        self._check_open()
        check_name("subscription", subscription)

        async def change() -> Subscription:
            topic = await self.topics.locate(name)
            if subscription in topic.subscriptions:
                raise errors.AlreadyExists(
                    f"topic {name} has a subscription {subscription} already", hint="use it, or choose another name"
                )
            topic.admit_subscription()
            return await self._subscribing.create(topic, subscription, kind, start or SubscriptionStart(), failure)

        return await self._changes.make(change)

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        await self._changes.make(lambda: self._subscribing.delete(self.topics.get(name), subscription))

    async def set_failure_policy(
        self, name: TopicName, subscription: str, policy: FailurePolicy, *, is_ahead: bool = False
    ) -> None:
        """`is_ahead`: a subscription that is not there will begin with it."""
        change = self._subscribing.set_failure_policy
        await self._changes.make(lambda: change(self.topics.get(name), subscription, policy, is_ahead=is_ahead))

    async def set_dispatch_rate(self, name: TopicName, subscription: str, messages_per_second: int | None) -> None:
        """None, or 0: that of the topic."""
        await self._changes.make(
            lambda: self._subscribing.set_dispatch_rate(self.topics.get(name), subscription, messages_per_second)
        )

    async def set_unacked_max(
        self, name: TopicName, subscription: str, messages: int | None, *, is_ahead: bool = False
    ) -> None:
        """Unacked messages in each shard. None: what the settings of the broker say. `is_ahead`: as above."""
        change = self._subscribing.set_unacked_max
        await self._changes.make(lambda: change(self.topics.get(name), subscription, messages, is_ahead=is_ahead))

    async def planned_subscription(self, name: TopicName, subscription: str) -> records.PendingSubscription | None:
        """What was settled for one that is not there."""
        return await self._subscribing.planned.get(name, subscription)

    def disconnect_consumer(self, name: TopicName, subscription: str, consumer: str) -> None:
        """What it had in flight goes to others; it may come again."""
        self.subscription(name, subscription).disconnect(consumer, "an operator disconnected this consumer")

    async def seek(
        self, name: TopicName, subscription: str, start: SubscriptionStart, shard: int | None = None
    ) -> None:
        """Moves a subscription, live or not: everything from there on is delivered again, or for the first time. The
        new position is durable when this returns."""

        async def change() -> None:
            found = self.subscription(name, subscription)
            await self._subscribing.seek(found.deliveries if shard is None else [found.delivery(shard)], start)

        await self._changes.make(change)

    def subscription(self, name: TopicName, subscription: str) -> Subscription:
        found = self.topics.get(name).subscriptions.get(subscription)
        if found is None:
            raise unknown_subscription(name, subscription)
        return found
