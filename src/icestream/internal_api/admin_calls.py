"""Administrative calls of the local socket: the methods behind the HTTP API (docs/api.md) and the command line.

The local socket offers them beside the public calls (frontends/native/public_calls.py). Arguments are checked here, the
broker enforces the rules. A listing takes `after` and `limit`, and returns `items` and `next`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, UnsetType

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.history_start import history_starts
from icestream.broker.online_settings import OnlineSettings, setting
from icestream.broker.service import Broker
from icestream.broker.stall_detector import message_age_ms
from icestream.broker.subscription import Subscription
from icestream.broker.topic import Topic
from icestream.frontends.native.public_calls import (
    CALLS,
    CallTable,
    Document,
    TopicAndSubscription,
    TopicOnly,
    arguments_of,
)
from icestream.internal_api import admin_documents
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.internal_api.fence_calls import FenceCalls
from icestream.internal_api.metadata_calls import METADATA_CALLS
from icestream.internal_api.paging import PageRequest, page_of
from icestream.internal_api.pipeline_calls import PipelineCalls
from icestream.internal_api.scan_calls import SCAN_CALLS
from icestream.metadata.entry import Entry
from icestream.model.shard import ShardKey
from icestream.model.subscription import Start, StartAt, SubscriptionType
from icestream.model.topic_name import TopicName, check_namespace
from icestream.observability.health import Check, failure
from icestream.runtime.clock import Clock
from icestream.settings import KEYS
from icestream.wal.log import Log
from icestream.wal.log_file import log_name

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection

METHODS: Final = (
    "list_namespaces", "describe_namespace", "create_namespace", "delete_namespace", "set_namespace_policies",
    "page_topics", "inspect_topic", "topic_history", "page_gaps", "set_topic_policies", "page_subscriptions",
    "inspect_subscription",
    "create_subscription", "change_subscription", "page_producers", "disconnect_producer", "page_consumers",
    "disconnect_consumer", "inspect_wal", "page_wal_files", "list_settings", "describe_setting", "set_setting",
    "unset_setting", "health", "places",
)  # fmt: skip


class NamespaceOnly(msgspec.Struct):
    namespace: str


class NamespacePolicies(msgspec.Struct):
    namespace: str
    policies: records.TopicPolicies = records.TopicPolicies()


class SetTopicPolicies(msgspec.Struct):
    topic: str
    policies: records.TopicPolicies


class PageTopics(PageRequest):
    namespace: str = ""


class PageOfTopic(PageRequest):
    topic: str = ""


class PageOfShard(PageOfTopic):
    shard: int = 0


class PageOfSubscription(PageOfTopic):
    subscription: str = ""


class CreateSubscription(msgspec.Struct):
    topic: str
    subscription: str
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: StartAt = StartAt.LATEST
    start_value: int = 0
    failure: records.FailurePolicyRecord | None = None


class ChangeSubscription(msgspec.Struct):
    topic: str
    subscription: str
    failure: records.FailurePolicyRecord | UnsetType = UNSET
    max_dispatch_rate: int | UnsetType | None = UNSET


class ProducerOnly(msgspec.Struct):
    topic: str
    producer: str


class ConsumerOnly(msgspec.Struct):
    topic: str
    subscription: str
    consumer: str


class SettingOnly(msgspec.Struct):
    key: str


class SetSetting(msgspec.Struct):
    key: str
    value: str | int | bool | None


class AdminCalls:
    """`log` is None for a broker in memory. Its methods have the names of METHODS."""

    def __init__(
        self,
        broker: Broker,
        log: Log | None,
        online: OnlineSettings,
        clock: Clock,
        checks: Callable[[], Awaitable[Sequence[Check]]],
        places: Callable[[], Document],
        pipeline: PipelineCalls | None = None,
        cluster: ClusterCalls | None = None,
        fence: FenceCalls | None = None,
    ) -> None:
        self._broker = broker
        self._log = log
        self._online = online
        self._clock = clock
        self._checks = checks
        self._places = places
        self._pipeline = pipeline or PipelineCalls(None)
        self._cluster = cluster or ClusterCalls(None, clock)
        self._fence = fence or FenceCalls(None)

    def offered(self) -> CallTable:
        """Everything that the local socket offers."""
        mine = {name: getattr(self, name) for name in METHODS}
        shared = {**CALLS, **METADATA_CALLS, **SCAN_CALLS, **self._pipeline.calls(), **self._cluster.calls()}
        return CallTable({**shared, **self._fence.calls(), **mine}, limits.LOCAL_CALL_BYTES_MAX)

    def _topic(self, name: str) -> Topic:
        return self._broker.topics.get(TopicName.parse(name))

    # --- namespaces ---

    async def list_namespaces(self, connection: NativeConnection, given: Document) -> Document:
        found = self._broker.topics.namespaces
        return page_of(
            ((name, name) for name in found),
            arguments_of(PageRequest, given),
            lambda name: admin_documents.namespace(name, found[name]),
        )

    async def describe_namespace(self, connection: NativeConnection, given: Document) -> Document:
        name = check_namespace(arguments_of(NamespaceOnly, given).namespace)
        record = self._broker.topics.namespaces.get(name)
        if record is None:
            raise errors.UnknownNamespace(
                f"there is no namespace {name}", hint="`icestream namespace list` shows those that there are"
            )
        return admin_documents.namespace(name, record)

    async def create_namespace(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(NamespacePolicies, given)
        await self._broker.create_namespace(asked.namespace, asked.policies)
        return await self.describe_namespace(connection, {"namespace": asked.namespace})

    async def delete_namespace(self, connection: NativeConnection, given: Document) -> Document:
        await self._broker.delete_namespace(arguments_of(NamespaceOnly, given).namespace)
        return {}

    async def set_namespace_policies(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(NamespacePolicies, given)
        await self._broker.set_namespace_policies(asked.namespace, asked.policies)
        return await self.describe_namespace(connection, {"namespace": asked.namespace})

    # --- topics ---

    async def page_topics(self, connection: NativeConnection, given: Document) -> Document:
        """Of one namespace, or of all. By the order of the metadata store: a page costs a page, however many exist."""
        asked = arguments_of(PageTopics, given)
        prefix = records.TOPICS
        if asked.namespace:
            await self.describe_namespace(connection, {"namespace": asked.namespace})
            prefix += f"{asked.namespace}/"
        after = records.topic_key(TopicName.parse(asked.after)) if asked.after else ""
        found = await self._broker.store.list(prefix, after, asked.limit + 1)
        lines = [self._line(key, entry) for key, entry in found[: asked.limit]]
        return {
            "items": [line for line in lines if line is not None],
            "next": "/" + found[asked.limit - 1][0].removeprefix(records.TOPICS) if found[asked.limit :] else None,
        }

    def _line(self, key: str, entry: Entry) -> Document | None:
        """None for one that this node should serve and does not yet."""
        name, topics = TopicName(*key.removeprefix(records.TOPICS).split("/")), self._broker.topics
        topic = topics.find(name)
        if topic is not None:
            return admin_documents.topic_line(topic)
        record = records.decode(records.TopicRecord, key, entry.value)
        return None if topics.neighbours.is_own(record.owner) else admin_documents.topic_line_elsewhere(name, record)

    async def inspect_topic(self, connection: NativeConnection, given: Document) -> Document:
        topic = self._topic(arguments_of(TopicOnly, given).topic)
        # read as a subscription that nobody has: the facade is the one way to what is stored
        stream = await self._broker.storage.create_subscription_stream(topic.name.namespace, topic.name.name, "")
        usage = self._log.state.usage.get(topic.record.id) if self._log is not None else None
        found = admin_documents.topic_details(topic, stream.shards, usage.held_bytes if usage is not None else 0)
        stalled = self._broker.stalled_readers.of_topic(topic.record.id)
        return found | {"stalled_readers": [admin_documents.stalled_reader(reader) for reader in stalled]}

    async def topic_history(self, connection: NativeConnection, given: Document) -> Document:
        """For each shard the oldest offset that can be read, from the log or the table; nil while the table cannot be
        asked. Not part of `inspect_topic`: the lake process asks that, and would wait for itself."""
        topic = self._topic(arguments_of(TopicOnly, given).topic)
        keys = [ShardKey(topic.record.id, shard) for shard in range(topic.record.shards)]
        return {"starts": await history_starts([self._broker.storage.shard_stream(key) for key in keys])}

    async def page_gaps(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(PageOfShard, given)
        topic = self._topic(asked.topic)
        if not 0 <= asked.shard < topic.record.shards:
            raise errors.InvalidInput(
                f"topic {topic.name} has no shard {asked.shard}", hint=f"it has {topic.record.shards}"
            )
        gaps = self._broker.storage.shard_stream(ShardKey(topic.record.id, asked.shard)).gaps()
        return page_of(((f"{one.start:019d}", one) for one in gaps), asked, admin_documents.gap)

    async def set_topic_policies(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(SetTopicPolicies, given)
        await self._broker.set_topic_policies(TopicName.parse(asked.topic), asked.policies)
        return await self.inspect_topic(connection, {"topic": asked.topic})

    # --- subscriptions ---

    async def page_subscriptions(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(PageOfTopic, given)
        topic = self._topic(asked.topic)
        return page_of(topic.subscriptions.items(), asked, lambda one: admin_documents.subscription_line(topic, one))

    async def inspect_subscription(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(TopicAndSubscription, given)
        topic = self._topic(asked.topic)
        found = self._broker.subscription(topic.name, asked.subscription)
        return await self._details(topic, found)

    async def _details(self, topic: Topic, found: Subscription) -> Document:
        places = [(one.stream, one.dispatcher.acked.position) for one in found.deliveries]
        now_us = self._clock.wall_us()
        ages_ms = [await message_age_ms(stream, position, now_us) for stream, position in places]
        return admin_documents.subscription_details(topic, found, ages_ms)

    async def create_subscription(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(CreateSubscription, given)
        failure = asked.failure.policy() if asked.failure is not None else None
        start = Start(asked.start, asked.start_value)
        topic = self._topic(asked.topic)
        found = await self._broker.create_subscription(topic.name, asked.subscription, asked.type, start, failure)
        return await self._details(topic, found)

    async def change_subscription(self, connection: NativeConnection, given: Document) -> Document:
        """Only what is named changes."""
        asked = arguments_of(ChangeSubscription, given)
        topic = self._topic(asked.topic)
        if asked.failure is not UNSET:
            await self._broker.set_failure_policy(topic.name, asked.subscription, asked.failure.policy())
        if asked.max_dispatch_rate is not UNSET:
            await self._broker.set_dispatch_rate(topic.name, asked.subscription, asked.max_dispatch_rate)
        return await self._details(topic, self._broker.subscription(topic.name, asked.subscription))

    # --- producers and consumers ---

    async def page_producers(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(PageOfTopic, given)
        topic = self._topic(asked.topic)
        return page_of(((one.name, one) for one in topic.producers), asked, admin_documents.producer)

    async def disconnect_producer(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(ProducerOnly, given)
        self._broker.disconnect_producer(TopicName.parse(asked.topic), asked.producer)
        return {}

    async def page_consumers(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(PageOfSubscription, given)
        found = self._broker.subscription(TopicName.parse(asked.topic), asked.subscription)
        return page_of(found.consumers.items(), asked, lambda one: admin_documents.consumer(found, one))

    async def disconnect_consumer(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(ConsumerOnly, given)
        self._broker.disconnect_consumer(TopicName.parse(asked.topic), asked.subscription, asked.consumer)
        return {}

    # --- the log ---

    def _log_on_disk(self) -> Log:
        if self._log is None:
            raise errors.InvalidInput(
                "this broker keeps its messages in memory: it has no log", hint="storage.type iceberg has one"
            )
        return self._log

    async def inspect_wal(self, connection: NativeConnection, given: Document) -> Document:
        return admin_documents.wal(self._log_on_disk(), self._online.current.wal.sync_mode)

    async def page_wal_files(self, connection: NativeConnection, given: Document) -> Document:
        files = self._log_on_disk().upkeep.files
        named = ((log_name(one.number), one) for one in files)
        return page_of(named, arguments_of(PageRequest, given), admin_documents.wal_file)

    # --- settings and health ---

    async def list_settings(self, connection: NativeConnection, given: Document) -> Document:
        return {"items": [admin_documents.setting(self._online, key) for key in KEYS.values()], "next": None}

    async def describe_setting(self, connection: NativeConnection, given: Document) -> Document:
        return admin_documents.setting(self._online, setting(arguments_of(SettingOnly, given).key))

    async def set_setting(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(SetSetting, given)
        await self._online.set(asked.key, asked.value)
        return await self.describe_setting(connection, {"key": asked.key})

    async def unset_setting(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(SettingOnly, given)
        await self._online.unset(asked.key)
        return await self.describe_setting(connection, {"key": asked.key})

    async def health(self, connection: NativeConnection, given: Document) -> Document:
        checks = await self._checks()
        return {"ready": failure(checks) is None, "checks": [check._asdict() for check in checks]}

    async def places(self, connection: NativeConnection, given: Document) -> Document:
        return self._places()
