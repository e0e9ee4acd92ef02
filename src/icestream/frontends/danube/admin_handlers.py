"""Danube's admin services, as a table of handlers: the broker, namespaces, topics, and how subscriptions fail.

Topics with partitions are listed by their partitions, as Danube does; they are made and deleted as one. A subscription
belongs to the whole topic, whichever partition of it is named. What concerns a cluster or security says that it does
not exist yet.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from icestream import errors
from icestream.broker.records import TopicPolicies
from icestream.broker.service import Broker
from icestream.broker.topic import Topic
from icestream.frontends.danube.failure_policy import policy_of, wire_policy
from icestream.frontends.danube.handlers import Call, CallFailed, HandlerTable, decode
from icestream.frontends.danube.partition_names import base_name, parse_partition, wire_name
from icestream.frontends.danube.schema_handlers import check_reference
from icestream.frontends.danube.wire import admin_pb2 as pb
from icestream.frontends.danube.wire.danube_pb2 import SchemaReference
from icestream.model.subscription import Dispatch, SubscriptionType
from icestream.model.topic_name import TopicName, check_namespace

# As the client protocol numbers them.
TYPES: Final = tuple(SubscriptionType)
DELIVERY: Final = {Dispatch.RELIABLE: "Reliable", Dispatch.NON_RELIABLE: "NonReliable"}
DISPATCH: Final = {pb.NonReliable: Dispatch.NON_RELIABLE, pb.Reliable: Dispatch.RELIABLE}
NOT_YET: Final = {
    "BrokerAdmin": ("UnloadBroker", "ActivateBroker", "GetClusterBalance", "TriggerRebalance"),
    "TopicAdmin": ("UnloadTopic",),
    "ClusterAdmin": ("ClusterStatus", "AddNode", "PromoteNode", "RemoveNode"),
    "SecurityAdmin": (
        "CreateRole", "GetRole", "ListRoles", "DeleteRole",
        "CreateBinding", "GetBinding", "ListBindings", "DeleteBinding", "ListAllBindings",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """Where this broker is found."""

    name: str
    address: str
    admin_address: str
    metrics_address: str


class AdminHandlers:
    def __init__(self, broker: Broker, place: BrokerAddresses) -> None:
        self._broker = broker
        self._place = place

    def table(self) -> HandlerTable:
        found = {
            "BrokerAdmin/ListBrokers": self.brokers,
            "BrokerAdmin/GetLeaderBroker": self.leader,
            "BrokerAdmin/ListNamespaces": self.namespaces,
            "NamespaceAdmin/GetNamespaceTopics": self.namespace_topics,
            "NamespaceAdmin/GetNamespacePolicies": self.namespace_policies,
            "NamespaceAdmin/CreateNamespace": self.create_namespace,
            "NamespaceAdmin/DeleteNamespace": self.delete_namespace,
            "TopicAdmin/ListNamespaceTopics": self.topics_of_namespace,
            "TopicAdmin/ListBrokerTopics": self.topics_of_broker,
            "TopicAdmin/CreateTopic": self.create_topic,
            "TopicAdmin/CreatePartitionedTopic": self.create_partitioned_topic,
            "TopicAdmin/DeleteTopic": self.delete_topic,
            "TopicAdmin/DescribeTopic": self.describe_topic,
            "TopicAdmin/ListSubscriptions": self.subscriptions,
            "TopicAdmin/Unsubscribe": self.unsubscribe,
            "TopicAdmin/SetSubscriptionFailurePolicy": self.set_failure_policy,
            "TopicAdmin/GetSubscriptionFailurePolicy": self.failure_policy,
            "TopicAdmin/SetSubscriptionDispatchConfig": self.set_dispatch,
            "TopicAdmin/GetSubscriptionDispatchConfig": self.dispatch,
        }
        later = {f"{service}/{name}": _not_yet(name) for service, names in NOT_YET.items() for name in names}
        return HandlerTable({f"/danube_admin.{name}": call for name, call in {**found, **later}.items()})

    # --- the broker ---

    async def brokers(self, raw: bytes, call: Call) -> bytes:
        place = self._place
        info = pb.BrokerInfo(
            broker_id=place.name,
            broker_addr=place.address,
            broker_role="Cluster_Leader",
            admin_addr=place.admin_address,
            metrics_addr=place.metrics_address,
            broker_status="active",
        )
        return pb.BrokerListResponse(brokers=[info]).SerializeToString()

    async def leader(self, raw: bytes, call: Call) -> bytes:
        return pb.BrokerResponse(leader=self._place.name).SerializeToString()

    # --- namespaces ---

    async def namespaces(self, raw: bytes, call: Call) -> bytes:
        return pb.NamespaceListResponse(namespaces=sorted(self._broker.topics.namespaces)).SerializeToString()

    async def namespace_topics(self, raw: bytes, call: Call) -> bytes:
        found = self._topics_in(decode(pb.NamespaceRequest, raw).name)
        return pb.TopicListResponse(topics=[name for name, _ in found]).SerializeToString()

    async def namespace_policies(self, raw: bytes, call: Call) -> bytes:
        name = decode(pb.NamespaceRequest, raw).name
        self._check_namespace(name)
        found = self._broker.topics.namespaces[name].policies
        return pb.PolicyResponse(policies=json.dumps(_policies(found))).SerializeToString()

    async def create_namespace(self, raw: bytes, call: Call) -> bytes:
        await self._broker.create_namespace(decode(pb.NamespaceRequest, raw).name)
        return _done()

    async def delete_namespace(self, raw: bytes, call: Call) -> bytes:
        name = decode(pb.NamespaceRequest, raw).name
        self._check_namespace(name)
        await self._broker.delete_namespace(name)
        return _done()

    def _check_namespace(self, name: str) -> None:
        """NOT_FOUND: whoever administrates does not wait for it to be made."""
        if check_namespace(name) not in self._broker.topics.namespaces:
            raise CallFailed("NOT_FOUND", errors.UnknownNamespace(f"there is no namespace {name}"))

    def _topics_in(self, namespace: str) -> list[tuple[str, Topic]]:
        self._check_namespace(namespace)
        return self._names([topic for topic in self._broker.topics if topic.name.namespace == namespace])

    @staticmethod
    def _names(topics: list[Topic]) -> list[tuple[str, Topic]]:
        found = sorted(topics, key=lambda topic: topic.name)
        return [(wire_name(topic, shard), topic) for topic in found for shard in range(topic.record.shards)]

    # --- topics ---

    async def topics_of_namespace(self, raw: bytes, call: Call) -> bytes:
        return self._listed(self._topics_in(decode(pb.NamespaceRequest, raw).name))

    async def topics_of_broker(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.BrokerRequest, raw)
        if request.broker_id != self._place.name:
            known = errors.NotConnected(
                f"there is no broker {request.broker_id[:100]}", hint=f"{self._place.name} is one"
            )
            raise CallFailed("NOT_FOUND", known)
        return self._listed(self._names(list(self._broker.topics)))

    def _listed(self, found: list[tuple[str, Topic]]) -> bytes:
        infos = [
            pb.TopicInfo(name=name, broker_id=self._place.name, delivery=DELIVERY[topic.record.dispatch])
            for name, topic in found
        ]
        return pb.TopicInfoListResponse(topics=infos).SerializeToString()

    async def create_topic(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.NewTopicRequest, raw)
        name = TopicName.parse(request.name)
        subject = request.schema_subject if request.HasField("schema_subject") else ""
        dispatch = _dispatch(request.dispatch_strategy)
        return await self._create(name, subject, lambda: self._broker.create_topic(name, dispatch=dispatch))

    async def create_partitioned_topic(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.PartitionedTopicRequest, raw)
        name, count = TopicName.parse(request.base_name), request.partitions
        subject = request.schema_subject if request.HasField("schema_subject") else ""
        dispatch, create = _dispatch(request.dispatch_strategy), self._broker.create_partitioned_topic
        return await self._create(name, subject, lambda: create(name, count, dispatch))

    async def _create(self, name: TopicName, subject: str, create: Callable[[], Awaitable[Topic]]) -> bytes:
        if subject:
            await check_reference(self._broker, SchemaReference(subject=subject))
        await create()
        if subject:
            await self._broker.registry.bind(name, subject)
        return _done()

    async def delete_topic(self, raw: bytes, call: Call) -> bytes:
        name, part = parse_partition(decode(pb.TopicRequest, raw).name)
        if part is not None:
            raise errors.TopicMismatch(
                f"Cannot delete individual partition {part} of {name}",  # Danube's words, which its tools know
                hint=f"delete {name}: all of its partitions go",
            )
        await self._broker.delete_topic(name)
        return _done()

    async def describe_topic(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.TopicRequest, raw)
        topic = self._topic(request.name)
        found = pb.DescribeTopicResponse(
            name=request.name,
            subscriptions=sorted(topic.subscriptions),
            broker_id=self._place.name,
            delivery=DELIVERY[topic.record.dispatch],
        )
        schema = self._broker.registry.of_topic(topic.name)
        if schema is not None:
            subject = await self._broker.registry.subject(schema.subject)
            found.schema_subject, found.schema_id = schema.subject, schema.schema_id
            found.compatibility_mode = subject.compatibility.value.upper()
            if subject.latest is not None:
                found.schema_version, found.schema_type = subject.latest.version, subject.latest.type.value
        return found.SerializeToString()

    def _topic(self, name: str) -> Topic:
        return self._broker.topics.get(base_name(name))

    # --- subscriptions ---

    async def subscriptions(self, raw: bytes, call: Call) -> bytes:
        topic = self._topic(decode(pb.TopicRequest, raw).name)
        return pb.SubscriptionListResponse(subscriptions=sorted(topic.subscriptions)).SerializeToString()

    async def unsubscribe(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SubscriptionRequest, raw)
        await self._broker.delete_subscription(base_name(request.topic), request.subscription)
        return _done()

    async def set_failure_policy(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SetFailurePolicyRequest, raw)
        topic = self._reliable(request.topic)
        policy = policy_of(request.failure_policy)
        await self._broker.set_failure_policy(topic.name, request.subscription, policy, is_ahead=True)
        return _done()

    async def failure_policy(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SubscriptionRequest, raw)
        topic = self._reliable(request.topic).name
        planned = await self._broker.planned_subscription(topic, request.subscription)
        if planned is not None and planned.failure is not None:
            return pb.GetFailurePolicyResponse(failure_policy=wire_policy(planned.failure.policy())).SerializeToString()
        found = self._broker.subscription(topic, request.subscription).record
        return pb.GetFailurePolicyResponse(
            failure_policy=wire_policy(found.failure.policy()), subscription_type=TYPES.index(found.type)
        ).SerializeToString()

    async def set_dispatch(self, raw: bytes, call: Call) -> bytes:
        """0: what the settings of the broker say."""
        request = decode(pb.SetDispatchConfigRequest, raw)
        topic, count = self._reliable(request.topic), request.dispatch_config.max_unacked_messages
        await self._broker.set_unacked_max(topic.name, request.subscription, count or None, is_ahead=True)
        return _done()

    async def dispatch(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SubscriptionRequest, raw)
        topic = self._reliable(request.topic).name
        planned = await self._broker.planned_subscription(topic, request.subscription)
        count = planned.max_unacked_messages if planned is not None else None
        if count is None:
            count = self._broker.subscription(topic, request.subscription).record.max_unacked_messages
        count = count or self._broker.options.unacked_max
        config = pb.DispatchConfig(max_unacked_messages=count)
        return pb.GetDispatchConfigResponse(dispatch_config=config).SerializeToString()

    def _reliable(self, name: str) -> Topic:
        topic = self._topic(name)
        if topic.record.dispatch is not Dispatch.RELIABLE:
            raise errors.TopicMismatch(f"topic {topic.name} is not reliable", hint="nothing of it is delivered twice")
        return topic


def _dispatch(strategy: pb.DispatchStrategy) -> Dispatch:
    found = DISPATCH.get(strategy)
    if found is None:
        raise errors.InvalidInput(f"there is no dispatch strategy {strategy}", hint="0 and 1 exist")
    return found


def _policies(found: TopicPolicies) -> dict[str, int]:
    """In Danube's words; 0: no bound."""
    named = {
        "max_producers_per_topic": found.max_producers,
        "max_subscriptions_per_topic": found.max_subscriptions,
        "max_consumers_per_topic": found.max_consumers_per_topic,
        "max_consumers_per_subscription": found.max_consumers_per_subscription,
        "max_publish_rate": found.max_publish_rate,
        "max_subscription_dispatch_rate": found.max_dispatch_rate,
        "max_message_size": found.max_message_bytes,
    }
    return {name: value or 0 for name, value in named.items()}


def _not_yet(name: str) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def refuse(raw: bytes, call: Call) -> bytes:
        raise CallFailed("UNIMPLEMENTED", errors.InvalidInput(f"{name}: this broker stands alone and has no users"))

    return refuse


def _done() -> bytes:
    return pb.Done(success=True).SerializeToString()
