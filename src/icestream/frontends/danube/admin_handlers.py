"""Danube's admin services as a handler table: the broker, namespaces, topics, and failure policies of subscriptions.

Topics with partitions are listed by partition, as in Danube; they are created and deleted as a whole. A subscription
belongs to the whole topic, whichever of its partitions is named. Cluster calls return UNIMPLEMENTED; those of security
are in security_handlers.py.

The messages are Danube's, so they are not derived from admin_api. Policies of topics are: their declaration has the
name that Danube gives them (model/topic_policies.py).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from icestream import errors
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.guarded_broker import GuardedBroker
from icestream.frontends.danube.handlers import Call, CallFailed, HandlerTable, decode
from icestream.frontends.danube.partition_names import base_name, parse_partition, wire_name
from icestream.frontends.danube.schema_handlers import check_reference
from icestream.frontends.danube.wire import admin_pb2 as pb
from icestream.frontends.danube.wire.danube_pb2 import SchemaReference
from icestream.model.subscription_options import (
    DispatchMode,
    FailurePolicy,
    PoisonPolicy,
    RedeliveryBackoff,
    SubscriptionType,
)
from icestream.model.topic_name import TopicName, check_namespace
from icestream.model.topic_policies import POLICIES, PolicyValues
from icestream.security.action import Action
from icestream.security.resource import CLUSTER

# In the order of their numbers in the client protocol.
TYPES: Final = tuple(SubscriptionType)
DELIVERY: Final = {DispatchMode.RELIABLE: "Reliable", DispatchMode.NON_RELIABLE: "NonReliable"}
DISPATCH: Final = {pb.NonReliable: DispatchMode.NON_RELIABLE, pb.Reliable: DispatchMode.RELIABLE}
BACKOFF: Final = {pb.Fixed: RedeliveryBackoff.FIXED, pb.Exponential: RedeliveryBackoff.EXPONENTIAL}
POISON: Final = {pb.DeadLetter: PoisonPolicy.DEAD_LETTER, pb.Block: PoisonPolicy.BLOCK, pb.Drop: PoisonPolicy.DROP}
_BACKOFF_NUMBERS: Final = {value: number for number, value in BACKOFF.items()}
_POISON_NUMBERS: Final = {value: number for number, value in POISON.items()}
UNIMPLEMENTED: Final = {
    "BrokerAdmin": ("UnloadBroker", "ActivateBroker", "GetClusterBalance", "TriggerRebalance"),
    "TopicAdmin": ("UnloadTopic",),
    "ClusterAdmin": ("ClusterStatus", "AddNode", "PromoteNode", "RemoveNode"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """The advertised addresses of this broker."""

    name: str
    address: str
    admin_address: str
    metrics_address: str


OnSubscription = pb.SubscriptionRequest | pb.SetFailurePolicyRequest | pb.SetDispatchConfigRequest


class AdminHandlers:
    """The calls of Danube's admin tools, each from an encoded request to an encoded response."""

    def __init__(self, addresses: BrokerAddresses) -> None:
        self._addresses = addresses

    def table(self) -> HandlerTable:
        implemented = {
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
        unimplemented = {
            f"{service}/{name}": _unimplemented(name) for service, names in UNIMPLEMENTED.items() for name in names
        }
        return HandlerTable({f"/danube_admin.{name}": call for name, call in {**implemented, **unimplemented}.items()})

    # --- the broker ---

    async def brokers(self, raw: bytes, call: Call) -> bytes:
        """This node alone: Danube's tools see every node as a broker of its own."""
        call.client.session.require(Action.DESCRIBE, CLUSTER)
        addresses = self._addresses
        info = pb.BrokerInfo(
            broker_id=addresses.name,
            broker_addr=addresses.address,
            broker_role="Cluster_Leader",  # tools send changes to the leader; this node accepts them
            admin_addr=addresses.admin_address,
            metrics_addr=addresses.metrics_address,
            broker_status="active",
        )
        return pb.BrokerListResponse(brokers=[info]).SerializeToString()

    async def leader(self, raw: bytes, call: Call) -> bytes:
        call.client.session.require(Action.DESCRIBE, CLUSTER)
        return pb.BrokerResponse(leader=self._addresses.name).SerializeToString()

    # --- namespaces ---

    async def namespaces(self, raw: bytes, call: Call) -> bytes:
        return pb.NamespaceListResponse(namespaces=sorted(call.client.namespaces())).SerializeToString()

    async def namespace_topics(self, raw: bytes, call: Call) -> bytes:
        topics = _topics_in(call.client, decode(pb.NamespaceRequest, raw).name)
        return pb.TopicListResponse(topics=[name for name, _ in topics]).SerializeToString()

    async def namespace_policies(self, raw: bytes, call: Call) -> bytes:
        name = decode(pb.NamespaceRequest, raw).name
        _check_namespace(call.client, name)
        policies = call.client.namespace(name).policies
        return pb.PolicyResponse(policies=json.dumps(danube_policies(policies))).SerializeToString()

    async def create_namespace(self, raw: bytes, call: Call) -> bytes:
        await call.client.create_namespace(decode(pb.NamespaceRequest, raw).name)
        return _success()

    async def delete_namespace(self, raw: bytes, call: Call) -> bytes:
        name = decode(pb.NamespaceRequest, raw).name
        _check_namespace(call.client, name)
        await call.client.delete_namespace(name)
        return _success()

    # --- topics ---

    async def topics_of_namespace(self, raw: bytes, call: Call) -> bytes:
        return self._topic_list(_topics_in(call.client, decode(pb.NamespaceRequest, raw).name))

    async def topics_of_broker(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.BrokerRequest, raw)
        if request.broker_id != self._addresses.name:
            error = errors.NotConnected(
                f"unknown broker {request.broker_id[:100]}", hint=f"this broker is {self._addresses.name}"
            )
            raise CallFailed("NOT_FOUND", error)
        return self._topic_list(_names(call.client.list_topics()))

    def _topic_list(self, topics: list[tuple[str, BrokerTopic]]) -> bytes:
        infos = [
            pb.TopicInfo(name=name, broker_id=self._addresses.name, delivery=DELIVERY[topic.record.dispatch])
            for name, topic in topics
        ]
        return pb.TopicInfoListResponse(topics=infos).SerializeToString()

    async def create_topic(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.NewTopicRequest, raw)
        name = TopicName.parse(request.name)
        subject = request.schema_subject if request.HasField("schema_subject") else ""
        dispatch = _dispatch(request.dispatch_strategy)
        return await _create(call.client, name, subject, lambda: call.client.create_topic(name, dispatch=dispatch))

    async def create_partitioned_topic(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.PartitionedTopicRequest, raw)
        name, count = TopicName.parse(request.base_name), request.partitions
        subject = request.schema_subject if request.HasField("schema_subject") else ""
        dispatch, create = _dispatch(request.dispatch_strategy), call.client.create_partitioned_topic
        return await _create(call.client, name, subject, lambda: create(name, count, dispatch))

    async def delete_topic(self, raw: bytes, call: Call) -> bytes:
        name, part = parse_partition(decode(pb.TopicRequest, raw).name)
        if part is not None:
            raise errors.TopicMismatch(
                f"Cannot delete individual partition {part} of {name}",  # Danube's words, which its tools know
                hint=f"delete {name}: all of its partitions go",
            )
        await call.client.delete_topic(name)
        return _success()

    async def describe_topic(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.TopicRequest, raw)
        topic = call.client.topic(base_name(request.name))
        response = pb.DescribeTopicResponse(
            name=request.name,
            subscriptions=sorted(topic.subscriptions),
            broker_id=self._addresses.name,
            delivery=DELIVERY[topic.record.dispatch],
        )
        schema = call.client.schemas.of_topic(topic.name)
        if schema is not None:
            subject = await call.client.schemas.subject(schema.subject)
            response.schema_subject, response.schema_id = schema.subject, schema.schema_id
            response.compatibility_mode = subject.compatibility.value.upper()
            if subject.latest is not None:
                response.schema_version, response.schema_type = subject.latest.version, subject.latest.type.value
        return response.SerializeToString()

    # --- subscriptions ---

    async def subscriptions(self, raw: bytes, call: Call) -> bytes:
        topic = call.client.topic(base_name(decode(pb.TopicRequest, raw).name))
        return pb.SubscriptionListResponse(subscriptions=sorted(topic.subscriptions)).SerializeToString()

    async def unsubscribe(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SubscriptionRequest, raw)
        await call.client.delete_subscription(base_name(request.topic), request.subscription)
        return _success()

    async def set_failure_policy(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SetFailurePolicyRequest, raw)
        topic = _reliable(call.client, Action.ALTER, request)
        policy = _failure_policy(request.failure_policy)
        # Danube's operators set the policy before the first consumer creates the subscription.
        await call.client.set_failure_policy(topic.name, request.subscription, policy, is_ahead=True)
        return _success()

    async def failure_policy(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SubscriptionRequest, raw)
        topic = _reliable(call.client, Action.DESCRIBE, request).name
        pending = await call.client.pending_subscription(topic, request.subscription)
        if pending is not None and pending.failure is not None:
            return pb.GetFailurePolicyResponse(
                failure_policy=_failure_policy_message(pending.failure)
            ).SerializeToString()
        record = call.client.subscription(topic, request.subscription).record
        return pb.GetFailurePolicyResponse(
            failure_policy=_failure_policy_message(record.failure), subscription_type=TYPES.index(record.type)
        ).SerializeToString()

    async def set_dispatch(self, raw: bytes, call: Call) -> bytes:
        """0 restores the default of the broker's settings."""
        request = decode(pb.SetDispatchConfigRequest, raw)
        topic, count = _reliable(call.client, Action.ALTER, request), request.dispatch_config.max_unacked_messages
        await call.client.set_unacked_max(topic.name, request.subscription, count or None, is_ahead=True)
        return _success()

    async def dispatch(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SubscriptionRequest, raw)
        topic = _reliable(call.client, Action.DESCRIBE, request).name
        pending = await call.client.pending_subscription(topic, request.subscription)
        count = pending.max_unacked_messages if pending is not None else None
        if count is None:
            count = call.client.subscription(topic, request.subscription).record.max_unacked_messages
        count = count or call.client.options.unacked_max
        config = pb.DispatchConfig(max_unacked_messages=count)
        return pb.GetDispatchConfigResponse(dispatch_config=config).SerializeToString()


async def _create(
    client: GuardedBroker, name: TopicName, subject: str, create: Callable[[], Awaitable[BrokerTopic]]
) -> bytes:
    """`subject`: that of the topic's schema; empty without one. It is checked first: a topic that was created must
    not remain without its schema."""
    if subject:
        await check_reference(client, SchemaReference(subject=subject))
    await create()
    if subject:
        await client.schemas.bind(name, subject)
    return _success()


def _check_namespace(client: GuardedBroker, name: str) -> None:
    """Fails with NOT_FOUND for an unknown namespace, which admin tools do not retry."""
    if check_namespace(name) not in client.namespaces():
        raise CallFailed("NOT_FOUND", errors.UnknownNamespace(f"there is no namespace {name}"))


def _topics_in(client: GuardedBroker, namespace: str) -> list[tuple[str, BrokerTopic]]:
    _check_namespace(client, namespace)
    return _names([topic for topic in client.list_topics() if topic.name.namespace == namespace])


def _names(topics: list[BrokerTopic]) -> list[tuple[str, BrokerTopic]]:
    in_order = sorted(topics, key=lambda topic: topic.name)
    return [(wire_name(topic, shard), topic) for topic in in_order for shard in range(topic.record.shards)]


def _reliable(client: GuardedBroker, action: Action, request: OnSubscription) -> BrokerTopic:
    """The topic. Raises TopicMismatch for one without redelivery, on which these settings would have no effect."""
    topic = client.topic_of_subscription(action, base_name(request.topic), request.subscription)
    if topic.record.dispatch is not DispatchMode.RELIABLE:
        raise errors.TopicMismatch(f"topic {topic.name} is not reliable", hint="its messages are never redelivered")
    return topic


def _failure_policy(message: pb.FailurePolicy) -> FailurePolicy:
    backoff, poison = BACKOFF.get(message.backoff_strategy), POISON.get(message.poison_policy)
    if backoff is None or poison is None:
        raise errors.InvalidInput(
            f"unknown backoff strategy {message.backoff_strategy} or poison policy {message.poison_policy}",
            hint="backoff: 0 or 1, poison: 0 to 2",
        )
    return FailurePolicy(
        message.max_redelivery_count,
        message.ack_timeout_ms,
        message.base_redelivery_delay_ms,
        message.max_redelivery_delay_ms,
        backoff,
        poison,
        message.dead_letter_topic if message.HasField("dead_letter_topic") else None,
    )


def _failure_policy_message(policy: FailurePolicy) -> pb.FailurePolicy:
    return pb.FailurePolicy(
        max_redelivery_count=policy.max_redelivery_count,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.base_delay_ms,
        max_redelivery_delay_ms=policy.max_delay_ms,
        backoff_strategy=_BACKOFF_NUMBERS[policy.backoff],
        dead_letter_topic=policy.dead_letter_topic,
        poison_policy=_POISON_NUMBERS[policy.poison],
    )


def _dispatch(strategy: pb.DispatchStrategy) -> DispatchMode:
    dispatch = DISPATCH.get(strategy)
    if dispatch is None:
        raise errors.InvalidInput(f"unknown dispatch strategy {strategy}", hint="allowed: 0 and 1")
    return dispatch


def danube_policies(policies: PolicyValues) -> dict[str, int]:
    """The policies that Danube has, under its names; 0 means unlimited."""
    return {policy.danube: getattr(policies, name) or 0 for name, policy in POLICIES.items() if policy.danube}


def _unimplemented(name: str) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def refuse(raw: bytes, call: Call) -> bytes:
        raise CallFailed("UNIMPLEMENTED", errors.InvalidInput(f"{name} is not implemented"))

    return refuse


def _success() -> bytes:
    return pb.Done(success=True).SerializeToString()
