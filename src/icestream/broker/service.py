"""The use cases of the broker. Front ends, the API and the command line use these and nothing behind them.

Front ends and the local socket get them for one session each (guarded_broker.py), never this class, and never the
metadata store, the storage or the topic registry behind it (tests/tidy/test_frontends.py): authorisation has one place.
The broker's own work, such as dead letters, uses this class.

Structural changes (namespaces, topics, subscriptions, their policies) are written to the metadata store in one
transaction each, then take effect here. They are rare and run one at a time (structural_changes.py). Publishing and
acks never wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_consumer import BrokerConsumer, ConsumerSink
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.broker_subscription import BrokerSubscription, unknown_subscription
from icestream.broker.broker_topic import BrokerProducer, BrokerTopic
from icestream.broker.cluster_restore import ClusterRestore
from icestream.broker.consumed_offsets import consumed_ends, keeps_unconsumed, read_generation
from icestream.broker.danube_partitions import DanubePartitions, PartitionRequest
from icestream.broker.delivery_health import DeliveryHealth
from icestream.broker.erased_topics import ErasedTopic, erased_topics
from icestream.broker.mqtt.mqtt_options import NO_MQTT, MqttOptions, ReplayRoute, route_policies
from icestream.broker.mqtt.mqtt_service import MqttService
from icestream.broker.mqtt.route_generations import ROUTES_KEY, decode_routes
from icestream.broker.name_owner import UNNAMED, NameUser
from icestream.broker.name_registry import NameRegistry
from icestream.broker.producer_window import ProducerWindow
from icestream.broker.publish_group import PublishGroupResult
from icestream.broker.publish_result import PublishResult
from icestream.broker.publisher import Publisher
from icestream.broker.scan_requests import ScanRequests
from icestream.broker.schema_registry import SchemaRegistry
from icestream.broker.storage import PersistentStorage, ShardStream
from icestream.broker.structural_changes import StructuralChanges
from icestream.broker.subscription_registry import SubscriptionRegistry
from icestream.broker.topic_deletion import Deletion
from icestream.broker.topic_owners import TopicOwners
from icestream.broker.topic_registry import TopicRegistry
from icestream.broker.topic_restore import BackedUpTopic, RestorePage, RestoreRecord
from icestream.broker.topic_takeover import Takeover
from icestream.broker.topic_tombstones import ReturnedTopic
from icestream.cluster.members import NodeRecord
from icestream.metadata.node_store import NodeStore
from icestream.metadata.store import MetadataStore
from icestream.model.backlog_messages import ConsumedOffsets
from icestream.model.block import BlockHead
from icestream.model.block_group import BlockGroup
from icestream.model.shard import DeclaredGap, ShardKey
from icestream.model.subscription_options import DispatchMode, FailurePolicy, SubscriptionStart, SubscriptionType
from icestream.model.table_layout import MqttColumnsPolicy
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName, check_name, check_namespace
from icestream.model.topic_policies import PolicyValues
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.runtime.tasks import Tasks


class TopicPage(NamedTuple):
    """A page of topic names in order. `next_after`: the argument for the next page; None on the last page."""

    names: list[TopicName]
    next_after: str | None


class Broker:
    """One broker node: topics, producers, batches, subscriptions. Each public method is one use case.

    Methods that change the structure are a closure `change`, run by StructuralChanges: everything that they check is
    checked again inside of it, because another change may have run since the call.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store: MetadataStore,
        storage: PersistentStorage,
        clock: Clock,
        owners: TopicOwners | None = None,
        mqtt: MqttOptions = NO_MQTT,
        randomness: Randomness | None = None,
    ) -> None:
        """`owners`: None for a single node."""
        self.options = options
        self.store = store
        self.storage = storage
        self._clock = clock
        self._tasks = Tasks(self._task_failed)
        self._changes = StructuralChanges()
        self.topics = TopicRegistry(options, store, storage, clock, owners)
        self.topics.set_route_policies(route_policies(mqtt.replay if mqtt.is_enabled else ()))
        self.schemas = SchemaRegistry(store, self.topics, clock)
        self._publisher = Publisher(store, storage, clock, self.schemas)
        self._names = NameRegistry(store, clock, self._changes, self.topics)
        self._subscriptions = SubscriptionRegistry(options, store, storage, clock, self._tasks, self)
        self.stalled_readers = self._subscriptions.stalled_readers
        self._partitions = DanubePartitions(self.topics, self._subscriptions)
        # Admission of batches (PersistentStorage). Bound here, because front ends call them for every batch.
        self.has_room = storage.has_room
        self.wait_for_room = storage.wait_for_room
        # Raises PermissionDenied if dead letters may not be written there any more (guarded_broker.py).
        self.check_dead_letters: Callable[[TopicName, records.StoredIdentity | None], None] = lambda name, author: None
        self.mqtt = MqttService(mqtt, self, storage, store, clock, randomness or SystemRandomness())
        self.restores = ClusterRestore(store, storage, self.mqtt, clock)
        self.is_ready = False
        self.is_closing = False

    @property
    def delivery_health(self) -> DeliveryHealth:
        """The subscriptions that are stalled or fall behind."""
        return self._subscriptions.health

    @property
    def scan_requests(self) -> ScanRequests | None:
        """The queue of scan requests that the lake process serves; None if topics have no tables."""
        return self.storage.scan_requests

    async def start(self) -> None:
        """Loads topics, schemas and subscriptions from the metadata store, and starts the background tasks."""
        # The revision first: a change of another node between it and a load is applied twice, but never missed.
        revision = await self.store.revision()
        # Topics before schemas and subscriptions, which belong to topics of this node alone.
        await self.topics.load()
        await self.schemas.load()
        if self.topics.owners.is_clustered:
            self._tasks.start(self.topics.follow_namespaces(revision), "namespaces")
            self._tasks.start(self.schemas.follow(revision), "schemas")
        for topic in self.topics:
            await self._subscriptions.load(topic)
        self._tasks.start(self._names.run(), "names")
        await self.mqtt.start()
        self.is_ready = True

    async def shutdown(self) -> None:
        """Refuses new work, completes what was accepted, writes the cursors and closes the log."""
        self.is_ready, self.is_closing = False, True
        # From the outside in: no further changes, then no deliveries, whose acks would still move cursors, then the
        # tasks that use them, then the storage, which writes the cursors to the store, then the store.
        await self._changes.stop()
        await self.mqtt.stop()
        for topic in self.topics:
            topic.close("the broker is shutting down")
        await self._tasks.stop()
        try:
            await self.storage.shutdown()
        finally:
            await self.store.close()

    def _task_failed(self, error: BaseException) -> None:
        if isinstance(self.store, NodeStore) and error is self.store.stopped:
            return  # the node stops because of this error and reports it
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a background task of the broker failed", "exception": error}
        )

    def _check_open(self) -> None:
        """Raises ShuttingDown."""
        if self.is_closing:
            raise errors.ShuttingDown("the broker is shutting down", hint="reconnect in a moment")

    # --- namespaces ---

    def namespaces(self) -> Mapping[str, records.NamespaceRecord]:
        """All namespaces by name."""
        return self.topics.namespaces

    def namespace(self, name: str) -> records.NamespaceRecord:
        """The record of a namespace. Raises InvalidInput, UnknownNamespace."""
        record = self.topics.namespaces.get(check_namespace(name))
        if record is None:
            raise errors.UnknownNamespace(
                f"there is no namespace {name}", hint="`icestream namespace list` shows the namespaces"
            )
        return record

    async def create_namespace(self, name: str, policies: PolicyValues | None = None) -> None:
        """Creates a namespace. Raises InvalidInput for an invalid name, AlreadyExists."""
        await self._changes.run(lambda: self.topics.create_namespace(name, policies or PolicyValues()))

    async def delete_namespace(self, name: str) -> None:
        """Deletes an empty namespace. Raises UnknownNamespace, NotEmpty, InvalidInput for a bootstrap namespace."""
        await self._changes.run(lambda: self.topics.delete_namespace(name))

    async def set_namespace_policies(self, name: str, policies: PolicyValues) -> None:
        """Replaces the policies of a namespace; its topics inherit them at once. Raises UnknownNamespace."""
        await self._changes.run(lambda: self.topics.set_namespace_policies(name, policies))

    # --- topics ---

    def list_topics(self) -> list[BrokerTopic]:
        """The topics that this node serves."""
        return list(self.topics)

    @property
    def topic_count(self) -> int:
        """The number of topics that this node serves."""
        return len(self.topics)

    def topic(self, name: TopicName) -> BrokerTopic:
        """The topic of this name. Raises TopicElsewhere if another node serves it, UnknownTopic if it is absent."""
        return self.topics.get(name)

    def find_topic(self, name: TopicName) -> BrokerTopic | None:
        """The topic, if this node serves it."""
        return self.topics.find(name)

    async def locate_topic(self, name: TopicName) -> BrokerTopic:
        """As `topic`, but sees topics that other nodes have created until now."""
        return await self.topics.locate(name)

    def find_topic_record(self, name: TopicName) -> records.TopicRecord | None:
        """The record of a topic, whichever node serves it."""
        topic = self.topics.find(name)
        return topic.record if topic is not None else self.topics.owners.find_topic(name)

    def is_local(self, record: records.TopicRecord) -> bool:
        """True if this node serves the topic of this record."""
        return self.topics.owners.is_local(record.owner)

    async def page_topics(self, namespace: str, after: str, limit: int) -> TopicPage:
        """At most `limit` topics of all nodes after the one named `after`, of one namespace or of all (both may be "").

        Reads the page from the metadata store, so the cost does not depend on the number of topics.
        """
        # One more than the page tells whether there is a next one.
        prefix = f"{records.TOPICS}{namespace}/" if namespace else records.TOPICS
        after_key = records.TOPICS + after.removeprefix("/") if after else ""
        entries = await self.store.list(prefix, after_key, limit + 1)
        names = [TopicName(*key.removeprefix(records.TOPICS).split("/")) for key, _ in entries[:limit]]
        return TopicPage(names, str(names[-1]) if len(entries) > limit else None)

    def shard_streams(self, topic: BrokerTopic) -> list[ShardStream]:
        """The readers of all shards of a topic."""
        return [self.storage.shard_stream(topic.shard_key(shard)) for shard in range(topic.record.shards)]

    async def history_starts(self, topic: BrokerTopic) -> list[int | None]:
        """The oldest readable offset of each shard, in the log or the table; None if the table could not be asked."""
        return await history_starts(self.shard_streams(topic))

    def gaps(self, topic: BrokerTopic, shard: int) -> Sequence[DeclaredGap]:
        """The declared gaps of a shard. Raises InvalidInput if the topic has no such shard."""
        return self.storage.shard_stream(topic.shard_key(shard)).gaps()

    async def create_topic(
        self,
        name: TopicName,
        shards: int = 1,
        dispatch: DispatchMode = DispatchMode.RELIABLE,
        policies: PolicyValues | None = None,
    ) -> BrokerTopic:
        """Creates a topic of this node. Raises AlreadyExists, UnknownNamespace, TopicElsewhere, InvalidInput."""
        own_policies = policies or PolicyValues()
        return await self._changes.run(lambda: self.topics.create(name, shards, dispatch, own_policies))

    async def create_partitioned_topic(
        self, name: TopicName, partitions: int, dispatch: DispatchMode = DispatchMode.RELIABLE
    ) -> BrokerTopic:
        """Creates a topic whose shards Danube's clients call `name-part-N`, and which grows when more are named."""
        create, policies = self.topics.create, PolicyValues()
        return await self._changes.run(lambda: create(name, partitions, dispatch, policies, is_partitioned=True))

    async def delete_topic(
        self, name: TopicName, table: DeletedTablePolicy | None = None, rest: DeletedRestPolicy | None = None
    ) -> Deletion:
        """Deletes a topic. `table`, `rest`: what to do with its table and its uncommitted messages; None: as its
        policies say."""

        async def change() -> Deletion:
            if (topic := self.topics.find(name)) is not None and self.mqtt.uses_topic(topic):
                raise errors.InvalidInput(
                    f"topic {name} stores the messages of an MQTT route, or sessions are owed messages of it",
                    hint="take the route out of mqtt.replay; `icestream mqtt sessions --lagging` lists what is behind",
                )
            deletion = await self.topics.delete(name, table, rest)
            self.schemas.forget(name)
            return deletion

        return await self._changes.run(change)

    def deleted_table_policy(self, name: TopicName) -> DeletedTablePolicy | None:
        """What happens to the table of a topic that is deleted, as its policies say; None for an unknown topic."""
        record = self.find_topic_record(name)
        return self.topics.deleted_table_policy(name, record) if record is not None else None

    async def take_over_topic(self, name: TopicName) -> Takeover:
        """Takes over a topic of a node that was removed from the cluster. Its subscriptions resume at their cursors."""

        async def change() -> Takeover:
            topic, takeover = await self.topics.take_over(name)
            await self._subscriptions.load(topic)
            return takeover

        return await self._changes.run(change)

    async def undelete_topic(
        self, name: TopicName, topic_id: int | None = None, *, brings_back_erased: bool = False
    ) -> ReturnedTopic:
        """Brings a deleted topic back, with its subscriptions at their cursors. `topic_id`: which one, if several of
        this name were deleted; None: the last one. `brings_back_erased`: also if messages of it were erased since from
        a topic that was restored from it."""

        async def change() -> ReturnedTopic:
            topic, returned = await self.topics.undelete(name, topic_id, brings_back_erased=brings_back_erased)
            await self._subscriptions.load(topic)
            await self.schemas.load_topic(name)
            return returned

        return await self._changes.run(change)

    async def live_topic(self, name: TopicName) -> BrokerTopic | None:
        """The topic that a restore in place would replace; None if the name is free. Raises TopicElsewhere."""
        return await self.topics.find_live(name)

    async def allocate_restore(
        self, backup_id: str, name: TopicName, policies: PolicyValues, *, is_in_place: bool = False, run: str = ""
    ) -> RestoreRecord:
        """Begins or continues the restore of a topic. `policies`: of its namespace, if that is missing.
        `is_in_place`: a topic of the name may exist, and is replaced. `run`: alone creates the topic, until another."""
        return await self.topics.restores.allocate(backup_id, name, policies, is_in_place=is_in_place, run=run)

    async def erased_topics(self, log_id: str, topic_id: int) -> list[ErasedTopic]:
        """Where messages of a topic of a backup were erased since."""
        return await erased_topics(self.store, log_id, topic_id)

    async def end_restore(self, backup_id: str, name: TopicName) -> None:
        """Ends the restore of a topic, whose table was adopted."""
        await self.topics.restores.end(backup_id, name)

    async def page_restores(self, after: str, limit: int) -> RestorePage:
        """Restores that are not completed, in the order of their records."""
        return await self.topics.restores.page(after, limit)

    async def restore_topic(self, topic: BackedUpTopic) -> BrokerTopic:
        """Creates a topic of a backup, with its subscriptions at their cursors; its table is adopted afterwards."""

        async def change() -> BrokerTopic:
            live = self.topics.find(topic.name) if topic.is_in_place else None
            if live is not None and self.mqtt.uses_topic(live):
                raise errors.InvalidInput(
                    f"topic {topic.name} stores the messages of an MQTT route, or sessions are owed messages of it",
                    hint="take the route out of mqtt.replay first, or use --as",
                )
            restored = await self.topics.restore(topic)
            self.schemas.forget(topic.name)
            await self.schemas.load_topic(topic.name)
            if not restored.subscriptions:
                await self._subscriptions.load(restored)
            return restored

        return await self._changes.run(change)

    async def deleted_topics(self) -> list[records.TombstoneRecord]:
        """The deleted topics of the cluster that can come back, the oldest deletion first."""
        return await self.topics.tombstones.all()

    def on_tables_committed(self) -> None:
        """Completes the deletion of topics with a committed rest. Called after each report of the pipeline."""
        if self.topics.is_draining and not self.is_closing:
            self._tasks.start(self._finish_drained(), "deletions")

    async def _finish_drained(self) -> None:
        with contextlib.suppress(errors.IcestreamError):  # retried after the next commit, or at the next start
            await self._changes.run(self.topics.finish_drained)

    async def set_topic_policies(self, name: TopicName, policies: PolicyValues) -> None:
        """Replaces all policies of a topic."""
        await self._changes.run(lambda: self.topics.set_policies(name, policies))

    async def change_topic_policies(self, name: TopicName, changes: Mapping[str, object]) -> BrokerTopic:
        """Changes some policies of a topic; None unsets one. Concurrent changes of other policies are kept."""

        async def change() -> BrokerTopic:
            topic = self.topics.get(name)
            await self.topics.set_policies(name, topic.record.policies.changed(changes))
            return topic

        return await self._changes.run(change)

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
        partition: PartitionRequest | None = None,
        user: NameUser = UNNAMED,
    ) -> BrokerProducer:
        """Opens a new epoch of the producer of this name: an older one is fenced from now on (hazard 7).

        `create`: creates a missing topic; None to do what the settings say. `resumes`: the client's producer was
        connected before; raises ProducerFenced if another instance has opened the name since, because then the stored
        sequence numbers are not its own. `partition`: the topic as a client of Danube names it (danube_partitions.py).
        `user`: raises PermissionDenied if the name is another principal's (name_owner.py).
        """
        self._check_open()
        check_name("producer", producer)
        may_create = self.options.auto_create_topics if create is None else create

        async def change() -> BrokerProducer:
            if partition is not None:
                topic = await self._partitions.provide(name, partition, create=may_create)
            else:
                topic = await self._provide_topic(name, shards, create=may_create)
            return await self._publisher.open(topic, producer, instance, resumes=resumes, user=user)

        return await self._changes.run(change, self.close_producer)

    async def open_internal_producer(
        self, name: TopicName, producer: str, instance: str, *, resumes: bool = False, dead_letters_of: str = ""
    ) -> BrokerProducer:
        """Opens a producer of the broker itself. Its name contains `/`, so it cannot be a client's.

        `dead_letters_of`: the topic whose letters it writes; recorded if the topic is created for them.
        """

        async def change() -> BrokerProducer:
            topic = await self._provide_topic(name, 1, create=True, dead_letters_of=dead_letters_of)
            return await self._publisher.open_internal(topic, producer, instance, resumes=resumes)

        return await self._changes.run(change)

    async def find_internal_producer(self, name: TopicName, producer: str, instance: str) -> BrokerProducer | None:
        """The producer as this instance last opened it; None if it never did, or another instance has since."""
        topic = self.topics.find(name)
        return await self._publisher.find(topic, producer, instance) if topic is not None else None

    async def _provide_topic(
        self, name: TopicName, shards: int, *, create: bool, dead_letters_of: str = ""
    ) -> BrokerTopic:
        """Returns the topic; creates it if it is missing and `create` is set. Raises UnknownTopic, TopicElsewhere."""
        if create and self.topics.find(name) is None:
            return await self.topics.create(
                name, shards, DispatchMode.RELIABLE, PolicyValues(), dead_letters_of=dead_letters_of
            )
        return await self.topics.locate(name)

    async def provide_route_topic(self, name: TopicName, shards: int) -> BrokerTopic:
        """The topic of an MQTT route, created with its namespace if it is missing. Its table gets the columns of MQTT
        topics, unless a policy says no. Raises TopicElsewhere."""

        async def change() -> BrokerTopic:
            if name.namespace not in self.topics.namespaces:
                with contextlib.suppress(errors.AlreadyExists):  # another node was faster
                    await self.topics.create_namespace(name.namespace, PolicyValues())
            topic = await self._provide_topic(name, shards, create=True)
            if topic.policies.mqtt_columns is None:
                changes = {"mqtt_columns": MqttColumnsPolicy.ON.value}
                await self.topics.set_policies(name, topic.record.policies.changed(changes))
            return topic

        return await self._changes.run(change)

    def keep_by_routes(self, replay: Iterable[ReplayRoute]) -> None:
        """Applies what the routes of MQTT say that their topics keep."""
        self.topics.set_route_policies(route_policies(replay))

    def _mqtt_home_topic(self) -> TopicName:
        """The topic whose node serves MQTT: that of the last route in force, or of the settings before there is one."""
        value = self.topics.owners.read_local(ROUTES_KEY)
        return TopicName.parse(decode_routes(value).default_topic if value else self.mqtt.options.replay[-1].topic)

    def mqtt_home(self) -> NodeRecord | None:
        """The node that serves MQTT, with empty addresses if it is not a member any more; None if it is this one, or
        the first client decides."""
        record = self.topics.owners.find_topic(self._mqtt_home_topic())
        if record is None or self.topics.owners.is_local(record.owner):
            return None
        return self.topics.owners.find_node(record.owner) or NodeRecord(record.node, "")

    def check_mqtt_home(self) -> None:
        """Raises TopicElsewhere if another node serves MQTT."""
        name = self._mqtt_home_topic()
        record = self.topics.owners.find_topic(name)
        if record is not None and not self.topics.owners.is_local(record.owner):
            raise self.topics.owners.redirect_error(name, record)

    async def mqtt_homes(self) -> AsyncIterator[NodeRecord | None]:
        """`mqtt_home` now, and whenever it may have changed; of a single node it does not."""
        if self.topics.owners.is_clustered:
            revision = await self.store.revision()
            yield self.mqtt_home()
            # Topics change rarely, and a look at the local copy costs little.
            async for _ in self.store.watch(records.TOPICS, revision):
                yield self.mqtt_home()

    def check_batch(self, topic: BrokerTopic, block: bytes, head: BlockHead) -> None:
        """Raises the reason for which the policies of a topic refuse a block that the broker itself has encoded."""
        self._publisher.check_batch(topic, block, head)

    def needs_decisions(self, topics: Iterable[BrokerTopic], largest_bytes: int) -> bool:
        """True if the policies of a topic have to look at each block of at most `largest_bytes` (`check_batch`)."""
        return self._publisher.needs_decisions(topics, largest_bytes)

    def last_sequence(self, producer: BrokerProducer, shard: int) -> int | None:
        """The highest sequence number stored in a shard by this instance of the producer, so that it can resume.

        Numbers of earlier instances do not count: a restarted process that numbers from 0 again must not take the
        messages of its predecessor for its own (hazard 7).
        """
        return self.storage.last_sequence(producer.topic.shard_key(shard), producer.id, producer.since_epoch)

    def last_sequence_of_name(self, producer: BrokerProducer, shard: int) -> int | None:
        """The highest sequence number stored under this producer name by any epoch; a new producer that starts above it
        cannot collide."""
        return self.storage.last_sequence(producer.topic.shard_key(shard), producer.id)

    def recent_batches(self, producer: BrokerProducer, shard: int) -> list[tuple[int, int, int]]:
        """(first sequence, messages, base offset) of the last batches of this instance of the producer."""
        return self.storage.recent_batches(producer.topic.shard_key(shard), producer.id, producer.since_epoch)

    def close_producer(self, producer: BrokerProducer) -> None:
        """Removes a producer after its client has left. Its batches in flight are completed."""
        producer.topic.producers.discard(producer)

    def disconnect_producer(self, name: TopicName, producer: str) -> None:
        """Makes a connected producer open again before it sends more; what it has sent stays. Raises NotConnected."""
        connected = [other for other in self.topics.get(name).producers if other.name == producer]
        if not connected:
            raise errors.NotConnected(
                f"topic {name} has no connected producer {producer}",
                hint=f"`icestream topic describe {name}` shows the connected producers",
            )
        # Closed as if fenced: a client stops at that error, and an application that wants to go on opens it again.
        for each in connected:
            each.close(errors.ProducerFenced("an operator disconnected this producer", hint="open it again"))
            self.close_producer(each)

    @property
    def row_bytes_max(self) -> int:
        """The largest block of one message."""
        return self.storage.row_bytes_max

    @property
    def batch_bytes_max(self) -> int:
        """The largest block of more than one message."""
        return self.storage.batch_bytes_max

    def publish(
        self, producer: BrokerProducer, shard: int, block: bytes, valid_head: BlockHead | None = None
    ) -> PublishResult:
        """Stores a block; the result is completed when its ack may be sent.

        `valid_head`: the head of a block that was validated against the declaration of its producer.

        Raises the reason of a refusal: nothing was stored. After a refusal, at once or later, the producer's later
        blocks of that shard are refused too until it is reset: they would overtake the retry (hazard 37).
        """
        if self.is_closing:  # without a call for each batch
            self._check_open()
        return self._publisher.publish(producer, shard, block, valid_head)

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
        """Stores a group of valid blocks of open producers; False: publish its batches one by one (Publisher)."""
        if self.is_closing:
            return False
        return self._publisher.publish_group(topics, keys, windows, bodies, group, largest_block, on_done)

    def reset_producer(self, producer: BrokerProducer, shard: int) -> None:
        """Accepts blocks again after a refusal: the client knows about it and resends from there.

        Raises the reason if the producer was closed.
        """
        if producer.closed is not None:
            raise producer.closed
        producer.window(shard).reset()

    async def wait_durable(self) -> None:
        """Waits until all accepted blocks are durable or rolled back: only then the sequence numbers are final."""
        await self.storage.wait_durable()

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
        user: NameUser = UNNAMED,
    ) -> tuple[BrokerSubscription, BrokerConsumer]:
        """Adds a consumer to a subscription, which is created if absent; its cursor is durable then (hazard 48).

        `shard`: the only shard whose messages the consumer takes. It may use its name once for each shard.
        `user`: raises PermissionDenied if the name of the subscription is another principal's (name_owner.py).
        """
        self._check_open()
        check_name("subscription", subscription)
        check_name("consumer", consumer)
        # A name that a client chooses contains no slash (check_name), so it cannot be the name of a shard's consumer.
        unique_name = consumer if shard is None else f"{consumer}/{shard}"

        async def change() -> tuple[BrokerSubscription, BrokerConsumer]:
            # Everything that can refuse the consumer comes before the creation: a refused consumer leaves no
            # subscription behind, for which messages would be retained.
            topic, patterns = await self.topics.locate(name), tuple(key_patterns)
            target = topic.subscriptions.get(subscription)
            if target is None and not create:
                raise unknown_subscription(name, subscription)
            self._subscriptions.admit(topic, subscription, kind, unique_name, patterns, shard)
            if target is None:
                topic.admit_subscription()
                target = await self._subscriptions.create(
                    topic, subscription, kind, start or SubscriptionStart(), failure, user
                )
            else:
                await self._subscriptions.claim(topic, target, user)
            return target, await self._subscriptions.join(topic, target, unique_name, sink, patterns, shard)

        return await self._changes.run(change, lambda result: result[0].leave(result[1]))

    async def create_subscription(
        self,
        name: TopicName,
        subscription: str,
        kind: SubscriptionType,
        start: SubscriptionStart | None = None,
        failure: FailurePolicy | None = None,
        user: NameUser = UNNAMED,
    ) -> BrokerSubscription:
        """Creates a subscription without a consumer: messages are retained for it from now on. Its name is unowned."""
        self._check_open()
        check_name("subscription", subscription)

        async def change() -> BrokerSubscription:
            topic = await self.topics.locate(name)
            if subscription in topic.subscriptions:
                raise errors.AlreadyExists(
                    f"topic {name} already has a subscription {subscription}", hint="use it, or choose another name"
                )
            topic.admit_subscription()
            unowned = user._replace(principal="")
            return await self._subscriptions.create(
                topic, subscription, kind, start or SubscriptionStart(), failure, unowned
            )

        return await self._changes.run(change)

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        """Deletes a subscription with its cursors; its consumers are disconnected. Raises UnknownSubscription."""
        await self._changes.run(lambda: self._subscriptions.delete(self.topics.get(name), subscription))

    async def set_failure_policy(
        self,
        name: TopicName,
        subscription: str,
        policy: FailurePolicy,
        *,
        is_ahead: bool = False,
        user: NameUser = UNNAMED,
    ) -> None:
        """Sets what happens to failed messages of a subscription, also to those that have failed before.

        `is_ahead`: a subscription that does not exist yet will start with this policy. Raises InvalidInput,
        UnknownSubscription.
        """
        change = self._subscriptions.set_failure_policy
        await self._changes.run(
            lambda: change(self.topics.get(name), subscription, policy, is_ahead=is_ahead, user=user)
        )

    async def set_dispatch_rate(self, name: TopicName, subscription: str, messages_per_second: int | None) -> None:
        """Bounds the delivery of a subscription; None or 0: the rate of the topic applies."""
        await self._changes.run(
            lambda: self._subscriptions.set_dispatch_rate(self.topics.get(name), subscription, messages_per_second)
        )

    async def set_unacked_max(
        self, name: TopicName, subscription: str, messages: int | None, *, is_ahead: bool = False
    ) -> None:
        """Bounds the unacked messages of each shard; None for the broker's setting. `is_ahead`: as above."""
        change = self._subscriptions.set_unacked_max
        await self._changes.run(lambda: change(self.topics.get(name), subscription, messages, is_ahead=is_ahead))

    async def pending_subscription(self, name: TopicName, subscription: str) -> records.PendingSubscription | None:
        """The settings for a subscription that does not exist yet."""
        return await self._subscriptions.pending_settings.get(name, subscription)

    def disconnect_consumer(self, name: TopicName, subscription: str, consumer: str) -> None:
        """Disconnects a consumer; its unacked messages go to others. It may connect again. Raises NotConnected."""
        self.subscription(name, subscription).disconnect(consumer, "an operator disconnected this consumer")

    async def seek(
        self, name: TopicName, subscription: str, start: SubscriptionStart, shard: int | None = None
    ) -> None:
        """Moves a subscription, with or without consumers: everything from there on is delivered, also again.

        The new position is durable when this returns. `shard`: None for all shards.
        """

        async def change() -> None:
            target = self.subscription(name, subscription)
            deliveries = target.deliveries if shard is None else [target.delivery(shard)]
            await self._subscriptions.seek(self.topics.get(name), deliveries, start)

        await self._changes.run(change)

    async def consumed_offsets(self, topic_ids: Collection[int]) -> list[ConsumedOffsets]:
        """What all consumers of these topics have acked, durably; without topics that have no consumer, or of which
        a consumer is unknown now."""

        async def read() -> list[ConsumedOffsets]:
            consumed: list[ConsumedOffsets] = []
            topics = [topic for topic in self.topics if topic.record.id in topic_ids and keeps_unconsumed(topic)]
            for topic in topics:
                generation = await read_generation(self.store, topic.record.id)
                # Sessions that cannot be read now may be owed anything.
                ends = consumed_ends(topic, self.mqtt.first_unacked) if self.mqtt.is_owing_known else {}
                if ends:
                    consumed.append(ConsumedOffsets(topic.record.id, ends, generation))
            return consumed

        # As a change, so that none is half done; and no cursor is behind these ends when they are returned.
        consumed = await self._changes.run(read)
        if consumed:
            self.mqtt.write_acks()
            await self.storage.flush_cursors()
            await self.storage.wait_durable()
        return consumed

    def subscription(self, name: TopicName, subscription: str) -> BrokerSubscription:
        """The subscription of this name. Raises UnknownTopic, TopicElsewhere, UnknownSubscription."""
        target = self.topics.get(name).subscriptions.get(subscription)
        if target is None:
            raise unknown_subscription(name, subscription)
        return target


async def history_starts(
    streams: Sequence[ShardStream], seconds: float = limits.HISTORY_START_SECONDS_MAX
) -> list[int | None]:
    """The oldest readable offset of each shard, from the log or the table; None if the table did not reply in time.

    A description of a topic must neither wait longer than `seconds` for a table nor fail with it. The shards are asked
    one after another, because a topic can have thousands of them.
    """
    starts: list[int | None] = [None] * len(streams)
    with contextlib.suppress(errors.IcestreamError, TimeoutError):
        async with asyncio.timeout(seconds):
            for number, stream in enumerate(streams):
                starts[number] = await stream.history_start()
    return starts
