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
    decode_arguments,
)
from icestream.internal_api import admin_documents
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.internal_api.fence_calls import FenceCalls
from icestream.internal_api.metadata_calls import METADATA_CALLS
from icestream.internal_api.paging import PageRequest, page_of
from icestream.internal_api.pipeline_calls import PipelineCalls
from icestream.internal_api.scan_calls import SCAN_CALLS
from icestream.model.subscription import StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.observability.health import Check, failure
from icestream.runtime.clock import Clock
from icestream.settings import KEYS
from icestream.wal.log_file import log_name
from icestream.wal.write_ahead_log import WriteAheadLog

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
    """The methods named in METHODS. `log` is None for a broker in memory."""

    def __init__(
        self,
        broker: Broker,
        log: WriteAheadLog | None,
        online: OnlineSettings,
        clock: Clock,
        checks: Callable[[], Awaitable[Sequence[Check]]],
        addresses: Callable[[], Document],
        pipeline: PipelineCalls | None = None,
        cluster: ClusterCalls | None = None,
        fence: FenceCalls | None = None,
    ) -> None:
        self._broker = broker
        self._log = log
        self._online = online
        self._clock = clock
        self._checks = checks
        self._addresses = addresses
        self._pipeline = pipeline or PipelineCalls(None)
        self._cluster = cluster or ClusterCalls(None, clock)
        self._fence = fence or FenceCalls(None)

    def call_table(self) -> CallTable:
        """Every call of the local socket."""
        admin_calls = {name: getattr(self, name) for name in METHODS}
        shared = {**CALLS, **METADATA_CALLS, **SCAN_CALLS, **self._pipeline.calls(), **self._cluster.calls()}
        return CallTable({**shared, **self._fence.calls(), **admin_calls}, limits.LOCAL_CALL_BYTES_MAX)

    def _topic(self, name: str) -> Topic:
        return self._broker.topic(TopicName.parse(name))

    # --- namespaces ---

    async def list_namespaces(self, connection: NativeConnection, arguments: Document) -> Document:
        namespaces = self._broker.namespaces()
        return page_of(
            ((name, name) for name in namespaces),
            decode_arguments(PageRequest, arguments),
            lambda name: admin_documents.namespace_document(name, namespaces[name]),
        )

    async def describe_namespace(self, connection: NativeConnection, arguments: Document) -> Document:
        name = decode_arguments(NamespaceOnly, arguments).namespace
        return admin_documents.namespace_document(name, self._broker.namespace(name))

    async def create_namespace(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(NamespacePolicies, arguments)
        await self._broker.create_namespace(request.namespace, request.policies)
        return await self.describe_namespace(connection, {"namespace": request.namespace})

    async def delete_namespace(self, connection: NativeConnection, arguments: Document) -> Document:
        await self._broker.delete_namespace(decode_arguments(NamespaceOnly, arguments).namespace)
        return {}

    async def set_namespace_policies(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(NamespacePolicies, arguments)
        await self._broker.set_namespace_policies(request.namespace, request.policies)
        return await self.describe_namespace(connection, {"namespace": request.namespace})

    # --- topics ---

    async def page_topics(self, connection: NativeConnection, arguments: Document) -> Document:
        """Topics of one namespace or of all, in the key order of the metadata store.

        The cost of a page does not depend on the number of topics.
        """
        request = decode_arguments(PageTopics, arguments)
        if request.namespace:
            self._broker.namespace(request.namespace)  # raises UnknownNamespace
        after = str(TopicName.parse(request.after)) if request.after else ""
        page = await self._broker.page_topics(request.namespace, after, request.limit)
        lines = [self._topic_line(name) for name in page.names]
        return {"items": [line for line in lines if line is not None], "next": page.next_after}

    def _topic_line(self, name: TopicName) -> Document | None:
        """None for a topic that was deleted meanwhile, or that this node owns and has not opened yet."""
        topic = self._broker.find_topic(name)
        if topic is not None:
            return admin_documents.topic_line(topic)
        record = self._broker.find_topic_record(name)
        if record is None or self._broker.is_local(record):
            return None
        return admin_documents.topic_line_elsewhere(name, record)

    async def inspect_topic(self, connection: NativeConnection, arguments: Document) -> Document:
        topic = self._topic(decode_arguments(TopicOnly, arguments).topic)
        usage = self._log.state.usage.get(topic.record.id) if self._log is not None else None
        held_bytes = usage.held_bytes if usage is not None else 0
        details = admin_documents.topic_details(topic, self._broker.shard_streams(topic), held_bytes)
        stalled = self._broker.stalled_readers.of_topic(topic.record.id)
        return details | {"stalled_readers": [admin_documents.stalled_reader_document(reader) for reader in stalled]}

    async def topic_history(self, connection: NativeConnection, arguments: Document) -> Document:
        """The oldest readable offset of each shard, in the log or the table; nil while the table cannot be read.

        A call of its own, because the lake process calls `inspect_topic` and would wait for itself here.
        """
        topic = self._topic(decode_arguments(TopicOnly, arguments).topic)
        return {"starts": await self._broker.history_starts(topic)}

    async def page_gaps(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(PageOfShard, arguments)
        topic = self._topic(request.topic)
        gaps = self._broker.gaps(topic, request.shard)
        return page_of(((f"{gap.start:019d}", gap) for gap in gaps), request, admin_documents.gap_document)

    async def set_topic_policies(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(SetTopicPolicies, arguments)
        await self._broker.set_topic_policies(TopicName.parse(request.topic), request.policies)
        return await self.inspect_topic(connection, {"topic": request.topic})

    # --- subscriptions ---

    async def page_subscriptions(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(PageOfTopic, arguments)
        topic = self._topic(request.topic)
        return page_of(
            topic.subscriptions.items(), request, lambda entry: admin_documents.subscription_line(topic, entry)
        )

    async def inspect_subscription(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(TopicAndSubscription, arguments)
        topic = self._topic(request.topic)
        return await self._subscription_details(topic, self._broker.subscription(topic.name, request.subscription))

    async def _subscription_details(self, topic: Topic, subscription: Subscription) -> Document:
        positions = [(delivery.stream, delivery.dispatcher.acked.position) for delivery in subscription.deliveries]
        now_us = self._clock.wall_us()
        ages_ms = [await message_age_ms(stream, position, now_us) for stream, position in positions]
        return admin_documents.subscription_details(topic, subscription, ages_ms)

    async def create_subscription(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(CreateSubscription, arguments)
        failure = request.failure.policy() if request.failure is not None else None
        start = SubscriptionStart(request.start, request.start_value)
        topic = self._topic(request.topic)
        subscription = await self._broker.create_subscription(
            topic.name, request.subscription, request.type, start, failure
        )
        return await self._subscription_details(topic, subscription)

    async def change_subscription(self, connection: NativeConnection, arguments: Document) -> Document:
        """Changes only the fields that are present."""
        request = decode_arguments(ChangeSubscription, arguments)
        topic = self._topic(request.topic)
        if request.failure is not UNSET:
            await self._broker.set_failure_policy(topic.name, request.subscription, request.failure.policy())
        if request.max_dispatch_rate is not UNSET:
            await self._broker.set_dispatch_rate(topic.name, request.subscription, request.max_dispatch_rate)
        return await self._subscription_details(topic, self._broker.subscription(topic.name, request.subscription))

    # --- producers and consumers ---

    async def page_producers(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(PageOfTopic, arguments)
        topic = self._topic(request.topic)
        return page_of(
            ((producer.name, producer) for producer in topic.producers), request, admin_documents.producer_document
        )

    async def disconnect_producer(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(ProducerOnly, arguments)
        self._broker.disconnect_producer(TopicName.parse(request.topic), request.producer)
        return {}

    async def page_consumers(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(PageOfSubscription, arguments)
        subscription = self._broker.subscription(TopicName.parse(request.topic), request.subscription)
        return page_of(
            subscription.consumers.items(),
            request,
            lambda entry: admin_documents.consumer_document(subscription, entry),
        )

    async def disconnect_consumer(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(ConsumerOnly, arguments)
        self._broker.disconnect_consumer(TopicName.parse(request.topic), request.subscription, request.consumer)
        return {}

    # --- the log ---

    def _log_on_disk(self) -> WriteAheadLog:
        if self._log is None:
            raise errors.InvalidInput(
                "this broker keeps its messages in memory and has no log", hint="set `storage.type: iceberg`"
            )
        return self._log

    async def inspect_wal(self, connection: NativeConnection, arguments: Document) -> Document:
        return admin_documents.log_document(self._log_on_disk(), self._online.current.wal.sync_mode)

    async def page_wal_files(self, connection: NativeConnection, arguments: Document) -> Document:
        files = self._log_on_disk().lifecycle.files
        named_files = ((log_name(file.number), file) for file in files)
        return page_of(named_files, decode_arguments(PageRequest, arguments), admin_documents.log_file_document)

    # --- settings and health ---

    async def list_settings(self, connection: NativeConnection, arguments: Document) -> Document:
        return {"items": [admin_documents.setting_document(self._online, key) for key in KEYS.values()], "next": None}

    async def describe_setting(self, connection: NativeConnection, arguments: Document) -> Document:
        return admin_documents.setting_document(self._online, setting(decode_arguments(SettingOnly, arguments).key))

    async def set_setting(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(SetSetting, arguments)
        await self._online.set(request.key, request.value)
        return await self.describe_setting(connection, {"key": request.key})

    async def unset_setting(self, connection: NativeConnection, arguments: Document) -> Document:
        request = decode_arguments(SettingOnly, arguments)
        await self._online.unset(request.key)
        return await self.describe_setting(connection, {"key": request.key})

    async def health(self, connection: NativeConnection, arguments: Document) -> Document:
        checks = await self._checks()
        return {"ready": failure(checks) is None, "checks": [check._asdict() for check in checks]}

    async def places(self, connection: NativeConnection, arguments: Document) -> Document:
        return self._addresses()
