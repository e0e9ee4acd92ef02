"""Administrative calls of the local socket: the methods behind the HTTP API (docs/api.md) and the command line.

Names, requests and answers are declared in admin_api. The local socket offers these calls beside the public ones
(frontends/native/public_calls.py). Arguments are decoded here, the broker enforces the rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from icestream import errors, limits
from icestream.admin_api import backup_api, namespace_api, node_api, subscription_api, topic_api
from icestream.admin_api.admin_call import EmptyAnswer, Listing, NoArguments, PageRequest
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.online_settings import OnlineSettings, setting
from icestream.broker.stall_detector import message_age_ms
from icestream.frontends.native.public_calls import Call, Caller, Document
from icestream.internal_api import admin_answers
from icestream.internal_api.implementation import implements, native_calls
from icestream.internal_api.paging import page_of
from icestream.model.subscription_options import SubscriptionStart
from icestream.model.topic_name import TopicName
from icestream.observability.health import Check, failure
from icestream.runtime.clock import Clock
from icestream.security.change_audit import ChangeAudit, cluster_change
from icestream.settings import KEYS
from icestream.wal.log_file import log_name
from icestream.wal.write_ahead_log import WriteAheadLog


class AdminCalls:
    """The implementations of the declared calls that are not public. `log` is None for a broker in memory."""

    def __init__(
        self,
        log: WriteAheadLog | None,
        online: OnlineSettings,
        clock: Clock,
        checks: Callable[[], Awaitable[Sequence[Check]]],
        addresses: Callable[[], Document],
        audit: ChangeAudit | None = None,
    ) -> None:
        self._log = log
        self._online = online
        self._clock = clock
        self._checks = checks
        self._addresses = addresses
        self._audit = audit

    def calls(self) -> dict[str, Call]:
        return native_calls(self)

    # --- namespaces ---

    @implements(namespace_api.LIST_NAMESPACES)
    async def list_namespaces(self, caller: Caller, request: PageRequest) -> Listing[namespace_api.NamespaceDetails]:
        namespaces = caller.broker.namespaces()
        return page_of(
            ((name, name) for name in namespaces),
            request,
            lambda name: admin_answers.namespace_details(name, namespaces[name]),
        )

    @implements(namespace_api.DESCRIBE_NAMESPACE)
    async def describe_namespace(
        self, caller: Caller, request: namespace_api.NamespaceOnly
    ) -> namespace_api.NamespaceDetails:
        return _namespace_details(caller.broker, request.namespace)

    @implements(namespace_api.CREATE_NAMESPACE)
    async def create_namespace(
        self, caller: Caller, request: namespace_api.NewNamespace
    ) -> namespace_api.NamespaceDetails:
        await caller.broker.create_namespace(request.namespace, request.policies)
        return _namespace_details(caller.broker, request.namespace)

    @implements(namespace_api.DELETE_NAMESPACE)
    async def delete_namespace(self, caller: Caller, request: namespace_api.NamespaceOnly) -> EmptyAnswer:
        await caller.broker.delete_namespace(request.namespace)
        return EmptyAnswer()

    @implements(namespace_api.SET_NAMESPACE_POLICIES)
    async def set_namespace_policies(
        self, caller: Caller, request: namespace_api.NewNamespace
    ) -> namespace_api.NamespaceDetails:
        await caller.broker.set_namespace_policies(request.namespace, request.policies)
        return _namespace_details(caller.broker, request.namespace)

    # --- restores ---

    @implements(backup_api.PAGE_RESTORES)
    async def page_restores(self, caller: Caller, request: PageRequest) -> Listing[backup_api.RestoreDetails]:
        page = await caller.broker.page_restores(request.after, request.limit)
        return Listing(
            items=[admin_answers.restore_details(restore) for restore in page.restores], next=page.next_after
        )

    # --- topics ---

    @implements(topic_api.PAGE_TOPICS)
    async def page_topics(self, caller: Caller, request: topic_api.PageTopics) -> Listing[topic_api.TopicSummary]:
        """Topics of one namespace or of all, in the key order of the metadata store.

        The cost of a page does not depend on the number of topics.
        """
        after = str(TopicName.parse(request.after)) if request.after else ""
        page = await caller.broker.page_topics(request.namespace, after, request.limit)
        summaries = [_topic_summary(caller.broker, name) for name in page.names]
        return Listing(items=[summary for summary in summaries if summary is not None], next=page.next_after)

    @implements(topic_api.INSPECT_TOPIC)
    async def inspect_topic(self, caller: Caller, request: topic_api.TopicOnly) -> topic_api.TopicDetails:
        return self._topic_details(caller.broker, _topic(caller, request.topic))

    def _topic_details(self, broker: GuardedBroker, topic: BrokerTopic) -> topic_api.TopicDetails:
        usage = self._log.state.usage.get(topic.record.id) if self._log is not None else None
        held_bytes = usage.held_bytes if usage is not None else 0
        stalled_readers = broker.stalled_readers_of(topic)
        return admin_answers.topic_details(topic, broker.shard_streams(topic), held_bytes, stalled_readers)

    @implements(topic_api.TOPIC_HISTORY)
    async def topic_history(self, caller: Caller, request: topic_api.TopicOnly) -> topic_api.TopicHistory:
        """A call of its own, because the lake process calls `inspect_topic` and would wait for itself here."""
        return topic_api.TopicHistory(starts=await caller.broker.history_starts(_topic(caller, request.topic)))

    @implements(topic_api.PAGE_GAPS)
    async def page_gaps(self, caller: Caller, request: topic_api.PageOfShard) -> Listing[topic_api.GapRange]:
        gaps = caller.broker.gaps(_topic(caller, request.topic), request.shard)
        return page_of(((f"{gap.start:019d}", gap) for gap in gaps), request, admin_answers.gap_range)

    @implements(topic_api.SET_TOPIC_POLICIES)
    async def set_topic_policies(self, caller: Caller, request: topic_api.SetTopicPolicies) -> topic_api.TopicDetails:
        await caller.broker.set_topic_policies(TopicName.parse(request.topic), request.policies)
        return self._topic_details(caller.broker, _topic(caller, request.topic))

    @implements(topic_api.PAGE_PRODUCERS)
    async def page_producers(
        self, caller: Caller, request: topic_api.PageOfTopic
    ) -> Listing[topic_api.ConnectedProducer]:
        producers = _topic(caller, request.topic).producers
        return page_of(((producer.name, producer) for producer in producers), request, admin_answers.connected_producer)

    @implements(topic_api.DISCONNECT_PRODUCER)
    async def disconnect_producer(self, caller: Caller, request: topic_api.ProducerOnly) -> EmptyAnswer:
        caller.broker.disconnect_producer(TopicName.parse(request.topic), request.producer)
        return EmptyAnswer()

    # --- subscriptions ---

    @implements(subscription_api.PAGE_SUBSCRIPTIONS)
    async def page_subscriptions(
        self, caller: Caller, request: topic_api.PageOfTopic
    ) -> Listing[subscription_api.SubscriptionSummary]:
        topic = _topic(caller, request.topic)
        return page_of(
            topic.subscriptions.items(),
            request,
            lambda subscription: admin_answers.subscription_summary(topic.name, subscription),
        )

    @implements(subscription_api.INSPECT_SUBSCRIPTION)
    async def inspect_subscription(
        self, caller: Caller, request: subscription_api.SubscriptionOnly
    ) -> subscription_api.SubscriptionDetails:
        topic = TopicName.parse(request.topic)  # its name alone: a right to the subscription is enough
        return await self._subscription_details(topic, caller.broker.subscription(topic, request.subscription))

    async def _subscription_details(
        self, topic: TopicName, subscription: BrokerSubscription
    ) -> subscription_api.SubscriptionDetails:
        positions = [(delivery.stream, delivery.dispatcher.acked.position) for delivery in subscription.deliveries]
        now_us = self._clock.wall_us()
        ages_ms = [await message_age_ms(stream, position, now_us) for stream, position in positions]
        return admin_answers.subscription_details(topic, subscription, ages_ms)

    @implements(subscription_api.CREATE_SUBSCRIPTION)
    async def create_subscription(
        self, caller: Caller, request: subscription_api.CreateSubscription
    ) -> subscription_api.SubscriptionDetails:
        start = SubscriptionStart(request.start, request.start_value)
        topic = TopicName.parse(request.topic)
        subscription = await caller.broker.create_subscription(
            topic, request.subscription, request.type, start, request.failure
        )
        return await self._subscription_details(topic, subscription)

    @implements(subscription_api.CHANGE_SUBSCRIPTION)
    async def change_subscription(
        self, caller: Caller, request: subscription_api.ChangeSubscription
    ) -> subscription_api.SubscriptionDetails:
        topic = TopicName.parse(request.topic)
        if request.failure is not msgspec.UNSET:
            await caller.broker.set_failure_policy(topic, request.subscription, request.failure)
        if request.max_dispatch_rate is not msgspec.UNSET:
            await caller.broker.set_dispatch_rate(topic, request.subscription, request.max_dispatch_rate)
        return await self._subscription_details(topic, caller.broker.subscription(topic, request.subscription))

    @implements(subscription_api.PAGE_CONSUMERS)
    async def page_consumers(
        self, caller: Caller, request: subscription_api.PageOfSubscription
    ) -> Listing[subscription_api.ConnectedConsumer]:
        subscription = caller.broker.subscription(TopicName.parse(request.topic), request.subscription)
        return page_of(
            subscription.consumers.items(),
            request,
            lambda consumer: admin_answers.connected_consumer(subscription, consumer),
        )

    @implements(subscription_api.DISCONNECT_CONSUMER)
    async def disconnect_consumer(self, caller: Caller, request: subscription_api.ConsumerOnly) -> EmptyAnswer:
        caller.broker.disconnect_consumer(TopicName.parse(request.topic), request.subscription, request.consumer)
        return EmptyAnswer()

    # --- the log ---

    def _log_on_disk(self) -> WriteAheadLog:
        if self._log is None:
            raise errors.InvalidInput(
                "this broker keeps its messages in memory and has no log", hint="set `storage.type: iceberg`"
            )
        return self._log

    @implements(node_api.INSPECT_WAL)
    async def inspect_wal(self, caller: Caller, _request: NoArguments) -> node_api.LogDetails:
        return admin_answers.log_details(self._log_on_disk(), self._online.current.wal.sync_mode)

    @implements(node_api.PAGE_WAL_FILES)
    async def page_wal_files(self, caller: Caller, request: PageRequest) -> Listing[node_api.LogFileDetails]:
        files = self._log_on_disk().lifecycle.files
        return page_of(((log_name(file.number), file) for file in files), request, admin_answers.log_file_details)

    # --- settings and health ---

    @implements(node_api.LIST_SETTINGS)
    async def list_settings(self, caller: Caller, _request: NoArguments) -> Listing[node_api.SettingDetails]:
        return Listing(items=[admin_answers.setting_details(self._online, key) for key in KEYS.values()], next=None)

    @implements(node_api.DESCRIBE_SETTING)
    async def describe_setting(self, caller: Caller, request: node_api.SettingOnly) -> node_api.SettingDetails:
        return admin_answers.setting_details(self._online, setting(request.key))

    @implements(node_api.SET_SETTING)
    async def set_setting(self, caller: Caller, request: node_api.SetSetting) -> node_api.SettingDetails:
        async with cluster_change(
            self._audit, caller.session, f"set the setting {request.key[: limits.NAME_BYTES_MAX]}"
        ):
            await self._online.set(request.key, request.value)
        return admin_answers.setting_details(self._online, setting(request.key))

    @implements(node_api.UNSET_SETTING)
    async def unset_setting(self, caller: Caller, request: node_api.SettingOnly) -> node_api.SettingDetails:
        async with cluster_change(
            self._audit, caller.session, f"unset the setting {request.key[: limits.NAME_BYTES_MAX]}"
        ):
            await self._online.unset(request.key)
        return admin_answers.setting_details(self._online, setting(request.key))

    @implements(node_api.HEALTH)
    async def health(self, caller: Caller, _request: NoArguments) -> node_api.NodeHealth:
        checks = await self._checks()
        return node_api.NodeHealth(
            ready=failure(checks) is None, checks=[node_api.HealthCheck(**check._asdict()) for check in checks]
        )

    @implements(node_api.PLACES)
    async def places(self, caller: Caller, _request: NoArguments) -> Document:
        return self._addresses()


def _topic(caller: Caller, name: str) -> BrokerTopic:
    return caller.broker.topic(TopicName.parse(name))


def _namespace_details(broker: GuardedBroker, name: str) -> namespace_api.NamespaceDetails:
    return admin_answers.namespace_details(name, broker.namespace(name))


def _topic_summary(broker: GuardedBroker, name: TopicName) -> topic_api.TopicSummary | None:
    """None for a topic that was deleted meanwhile, or that this node owns and has not opened yet."""
    topic = broker.find_topic(name)
    if topic is not None:
        return admin_answers.topic_summary(topic)
    record = broker.find_topic_record(name)
    if record is None or broker.is_local(record):
        return None
    return admin_answers.remote_topic_summary(name, record)
