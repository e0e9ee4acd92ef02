"""Danube's admin services: the lifecycles of its own tests, statuses, and what does not exist yet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from icestream import limits
from icestream.frontends.danube.admin_handlers import UNIMPLEMENTED, AdminHandlers, BrokerAddresses
from icestream.frontends.danube.handlers import Call, status_of
from icestream.frontends.danube.wire import admin_pb2 as pb
from icestream.frontends.danube.wire import danube_pb2, registry_pb2
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, RedeliveryBackoff
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.processes.broker_process import BrokerNode
from tests.support.danube_handlers import DanubeHandlers, danube_handlers
from tests.support.faulty_store import FaultyStore
from tests.support.node_settings import node_settings

pytestmark = pytest.mark.asyncio
TOPIC = TopicName("default", "t")
Answer = TypeVar("Answer", bound=Message)


class DanubeOperator:
    def __init__(self, clients: DanubeHandlers) -> None:
        self.clients = clients
        self.broker = clients.broker
        place = BrokerAddresses("node-1", "h:6650", "h:50051", "h:9040")
        self.calls = clients.service.guarded(AdminHandlers(place).table(), "danube_admin").unary

    async def call(self, method: str, request: Message, kind: type[Answer] = pb.Done) -> Answer:  # type: ignore[assignment]
        raw = await self.calls[f"/danube_admin.{method}"](request.SerializeToString(), Call())
        return kind.FromString(raw)

    async def refused(self, method: str, request: Message) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 (its status is what is looked at)
            await self.call(method, request)
        return status_of(caught.value)[0]


@pytest_asyncio.fixture
async def operator() -> AsyncIterator[DanubeOperator]:
    async with danube_handlers() as clients:
        yield DanubeOperator(clients)


async def test_the_broker_is_listed(operator: DanubeOperator) -> None:
    (broker,) = (await operator.call("BrokerAdmin/ListBrokers", pb.Empty(), pb.BrokerListResponse)).brokers
    assert (broker.broker_id, broker.broker_addr, broker.broker_status) == ("node-1", "h:6650", "active")
    assert (broker.admin_addr, broker.metrics_addr) == ("h:50051", "h:9040")
    assert (await operator.call("BrokerAdmin/GetLeaderBroker", pb.Empty(), pb.BrokerResponse)).leader == "node-1"


async def test_namespace_lifecycle(operator: DanubeOperator) -> None:
    request = pb.NamespaceRequest(name="shop")
    await operator.call("NamespaceAdmin/CreateNamespace", request)
    assert await operator.refused("NamespaceAdmin/CreateNamespace", request) == "ALREADY_EXISTS"
    listed = await operator.call("BrokerAdmin/ListNamespaces", pb.Empty(), pb.NamespaceListResponse)
    assert list(listed.namespaces) == ["default", "shop", "system"]
    await operator.broker.set_namespace_policies("shop", PolicyValues(max_producers=3, max_message_bytes=9))
    policies = json.loads(
        (await operator.call("NamespaceAdmin/GetNamespacePolicies", request, pb.PolicyResponse)).policies
    )
    assert (policies["max_producers_per_topic"], policies["max_message_size"], policies["max_publish_rate"]) == (
        3,
        9,
        0,
    )
    await operator.call("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/shop/t"))
    assert await operator.refused("NamespaceAdmin/DeleteNamespace", request) == "FAILED_PRECONDITION"
    await operator.call("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/shop/t"))
    await operator.call("NamespaceAdmin/DeleteNamespace", request)
    for method in ("DeleteNamespace", "GetNamespaceTopics", "GetNamespacePolicies"):
        assert await operator.refused(f"NamespaceAdmin/{method}", request) == "NOT_FOUND"


async def test_topic_lifecycle(operator: DanubeOperator) -> None:
    await operator.call("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/default/t", dispatch_strategy=pb.Reliable))
    again = pb.NewTopicRequest(name="/default/t")
    assert await operator.refused("TopicAdmin/CreateTopic", again) == "ALREADY_EXISTS"
    clash = pb.PartitionedTopicRequest(base_name="/default/t", partitions=2)
    assert await operator.refused("TopicAdmin/CreatePartitionedTopic", clash) == "ALREADY_EXISTS"
    await operator.clients.subscribe()
    description = await operator.call(
        "TopicAdmin/DescribeTopic", pb.TopicRequest(name="/default/t"), pb.DescribeTopicResponse
    )
    assert (description.name, list(description.subscriptions), description.delivery) == (
        "/default/t",
        ["s"],
        "Reliable",
    )
    assert not description.HasField("schema_subject")
    await operator.call("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/default/t"))
    for method in ("DeleteTopic", "DescribeTopic", "ListSubscriptions"):
        assert await operator.refused(f"TopicAdmin/{method}", pb.TopicRequest(name="/default/t")) == "NOT_FOUND"
    assert await operator.refused("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="bad")) == "INVALID_ARGUMENT"


async def test_partitioned_topic_lifecycle(operator: DanubeOperator) -> None:
    request = pb.PartitionedTopicRequest(base_name="/default/t", partitions=3, dispatch_strategy=pb.NonReliable)
    await operator.call("TopicAdmin/CreatePartitionedTopic", request)
    names = [f"/default/t-part-{number}" for number in range(3)]
    assert await operator.clients.partitions("/default/t") == names
    default = pb.NamespaceRequest(name="default")
    listed = await operator.call("TopicAdmin/ListNamespaceTopics", default, pb.TopicInfoListResponse)
    assert [(topic.name, topic.delivery) for topic in listed.topics] == [(name, "NonReliable") for name in names]
    topics = await operator.call("NamespaceAdmin/GetNamespaceTopics", default, pb.TopicListResponse)
    assert list(topics.topics) == names
    mine = await operator.call(
        "TopicAdmin/ListBrokerTopics", pb.BrokerRequest(broker_id="node-1"), pb.TopicInfoListResponse
    )
    assert len(mine.topics) == 3
    assert await operator.refused("TopicAdmin/ListBrokerTopics", pb.BrokerRequest(broker_id="x")) == "NOT_FOUND"
    partition = pb.TopicRequest(name="/default/t-part-1")
    assert await operator.refused("TopicAdmin/DeleteTopic", partition) == "FAILED_PRECONDITION"
    await operator.call("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/default/t"))
    assert not len(operator.broker.topics)


async def test_a_topic_with_a_schema(operator: DanubeOperator) -> None:
    request = pb.NewTopicRequest(name="/default/t", schema_subject="s")
    assert await operator.refused("TopicAdmin/CreateTopic", request) == "FAILED_PRECONDITION"
    assert not len(operator.broker.topics)
    register = registry_pb2.RegisterSchemaRequest(subject="s", schema_type="json", schema_definition=b"{}")
    path = "/danube_schema.SchemaRegistry/RegisterSchema"
    await operator.clients.call(path, register, registry_pb2.RegisterSchemaResponse)
    await operator.call("TopicAdmin/CreateTopic", request)
    description = await operator.call(
        "TopicAdmin/DescribeTopic", pb.TopicRequest(name="/default/t"), pb.DescribeTopicResponse
    )
    assert (description.schema_subject, description.schema_version, description.schema_type) == ("s", 1, "json_schema")
    assert description.compatibility_mode == "BACKWARD"
    await operator.call("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/default/t"))
    assert operator.broker.schemas.of_topic(TOPIC) is None


async def test_subscriptions_and_their_failure_policy(operator: DanubeOperator) -> None:
    await operator.clients.producer("/default/t-part-1")
    await operator.clients.subscribe("/default/t-part-1", subscription_type=danube_pb2.ConsumerRequest.KeyShared)
    where = {"topic": "/default/t-part-0", "subscription": "s"}
    policy = pb.FailurePolicy(
        max_redelivery_count=2, ack_timeout_ms=500, base_redelivery_delay_ms=10, max_redelivery_delay_ms=99,
        backoff_strategy=pb.Exponential, dead_letter_topic="/default/dead", poison_policy=pb.DeadLetter,
    )  # fmt: skip
    request = pb.SetFailurePolicyRequest(**where, failure_policy=policy)
    await operator.call("TopicAdmin/SetSubscriptionFailurePolicy", request)
    expected = FailurePolicy(2, 500, 10, 99, RedeliveryBackoff.EXPONENTIAL, PoisonPolicy.DEAD_LETTER, "/default/dead")
    assert operator.broker.subscription(TOPIC, "s").record.failure == expected
    answer = await operator.call(
        "TopicAdmin/GetSubscriptionFailurePolicy", pb.SubscriptionRequest(**where), pb.GetFailurePolicyResponse
    )
    assert (answer.failure_policy, answer.subscription_type) == (policy, 3)
    await operator.call("TopicAdmin/Unsubscribe", pb.SubscriptionRequest(**where))
    assert await operator.refused("TopicAdmin/Unsubscribe", pb.SubscriptionRequest(**where)) == "NOT_FOUND"


# --- before there is a subscription -----------------------------------------------------------------------------------

PLACE = {"topic": "/default/t", "subscription": "s"}
DROP = pb.FailurePolicy(max_redelivery_count=1, ack_timeout_ms=500, poison_policy=pb.Drop)


async def settle(operator: DanubeOperator) -> None:
    request = pb.SetFailurePolicyRequest(**PLACE, failure_policy=DROP)
    await operator.call("TopicAdmin/SetSubscriptionFailurePolicy", request)
    window = pb.SetDispatchConfigRequest(**PLACE, dispatch_config={"max_unacked_messages": 2})
    await operator.call("TopicAdmin/SetSubscriptionDispatchConfig", window)


async def settled(operator: DanubeOperator) -> tuple[pb.FailurePolicy, int]:
    where = pb.SubscriptionRequest(**PLACE)
    policy = await operator.call("TopicAdmin/GetSubscriptionFailurePolicy", where, pb.GetFailurePolicyResponse)
    window = await operator.call("TopicAdmin/GetSubscriptionDispatchConfig", where, pb.GetDispatchConfigResponse)
    return policy.failure_policy, window.dispatch_config.max_unacked_messages


async def test_a_subscription_starts_with_pending_settings_also_after_a_restart() -> None:
    store = FaultyStore(survives_close=True)
    async with danube_handlers(store) as clients:
        await clients.producer()
        await settle(DanubeOperator(clients))
    async with danube_handlers(store) as clients:
        operator = DanubeOperator(clients)
        assert await settled(operator) == (DROP, 2)
        assert not operator.broker.topics.get(TOPIC).subscriptions, "nothing was made"
        await clients.subscribe()
        assert operator.broker.subscription(TOPIC, "s").record.failure.poison is PoisonPolicy.DROP
        assert await settled(operator) == (DROP, 2)


async def test_pending_settings_are_used_once_and_removed_with_their_topic(operator: DanubeOperator) -> None:
    await operator.clients.producer()
    await settle(operator)
    await operator.clients.subscribe()
    await operator.broker.delete_subscription(TOPIC, "s")
    await operator.clients.subscribe()
    assert operator.broker.subscription(TOPIC, "s").record.failure == FailurePolicy()
    await operator.broker.delete_subscription(TOPIC, "s")
    await settle(operator)
    await operator.broker.delete_topic(TOPIC)
    await operator.clients.producer()
    await operator.clients.subscribe()
    record = operator.broker.subscription(TOPIC, "s").record
    assert (record.failure, record.max_unacked_messages) == (FailurePolicy(), None)


async def test_pending_settings_are_bounded(operator: DanubeOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    await operator.clients.producer()
    await settle(operator)
    monkeypatch.setattr(limits, "PLANNED_SUBSCRIPTIONS_MAX", 1)
    await settle(operator)
    more = pb.SetFailurePolicyRequest(topic="/default/t", subscription="more", failure_policy=DROP)
    assert await operator.refused("TopicAdmin/SetSubscriptionFailurePolicy", more) == "RESOURCE_EXHAUSTED"
    more.subscription = "a/b"
    assert await operator.refused("TopicAdmin/SetSubscriptionFailurePolicy", more) == "INVALID_ARGUMENT"
    there = pb.SubscriptionRequest(topic="/default/t", subscription="more")
    assert await operator.refused("TopicAdmin/GetSubscriptionFailurePolicy", there) == "NOT_FOUND"


@pytest.mark.parametrize(
    "policy",
    [
        pb.FailurePolicy(ack_timeout_ms=1, poison_policy=pb.DeadLetter),
        pb.FailurePolicy(poison_policy=pb.Drop),
        pb.FailurePolicy(ack_timeout_ms=1, poison_policy=9),
        pb.FailurePolicy(ack_timeout_ms=2**64 - 1, poison_policy=pb.Drop),
        pb.FailurePolicy(ack_timeout_ms=1, dead_letter_topic="/default/t"),
    ],
)
async def test_dlq_policy_validation(operator: DanubeOperator, policy: pb.FailurePolicy) -> None:
    await operator.clients.producer()
    await operator.clients.subscribe()
    request = pb.SetFailurePolicyRequest(topic="/default/t", subscription="s", failure_policy=policy)
    assert await operator.refused("TopicAdmin/SetSubscriptionFailurePolicy", request) == "INVALID_ARGUMENT"


async def test_a_policy_of_a_topic_that_is_not_reliable_is_a_failed_precondition(operator: DanubeOperator) -> None:
    await operator.clients.producer(dispatch_strategy=danube_pb2.NonReliable)
    await operator.clients.subscribe()
    where = pb.SubscriptionRequest(topic="/default/t", subscription="s")
    for method in ("GetSubscriptionFailurePolicy", "GetSubscriptionDispatchConfig"):
        assert await operator.refused(f"TopicAdmin/{method}", where) == "FAILED_PRECONDITION"


async def test_the_window_of_a_subscription_applies_immediately(operator: DanubeOperator) -> None:
    mine = await operator.clients.producer()
    where = {"topic": "/default/t", "subscription": "s"}
    stream = operator.clients.receive(await operator.clients.subscribe()).stream
    request = pb.SetDispatchConfigRequest(**where, dispatch_config={"max_unacked_messages": 2})
    await operator.call("TopicAdmin/SetSubscriptionDispatchConfig", request)
    answer = await operator.call(
        "TopicAdmin/GetSubscriptionDispatchConfig", pb.SubscriptionRequest(**where), pb.GetDispatchConfigResponse
    )
    assert answer.dispatch_config.max_unacked_messages == 2
    for _ in range(5):
        await operator.clients.send(mine)
    assert len(await stream.until(2)) == 2
    await operator.clients.ack(stream.messages[0])
    assert len(await stream.until(3)) == 3
    request.dispatch_config.max_unacked_messages = 2**32 - 1
    assert await operator.refused("TopicAdmin/SetSubscriptionDispatchConfig", request) == "INVALID_ARGUMENT"


async def test_the_subscriptions_of_a_topic_are_listed(operator: DanubeOperator) -> None:
    await operator.clients.producer("/default/t-part-1")
    for name in ("b", "a"):
        await operator.clients.subscribe("/default/t-part-1", subscription=name)
    for topic in ("/default/t", "/default/t-part-0"):
        request = pb.TopicRequest(name=topic)
        answer = await operator.call("TopicAdmin/ListSubscriptions", request, pb.SubscriptionListResponse)
        assert sorted(answer.subscriptions) == ["a", "b"]


CLUSTER = "ClusterStatus AddNode PromoteNode RemoveNode"
BROKER = "UnloadBroker ActivateBroker GetClusterBalance TriggerRebalance"


async def test_every_call_of_a_cluster_is_named() -> None:
    expected = {"ClusterAdmin": CLUSTER, "BrokerAdmin": BROKER, "TopicAdmin": "UnloadTopic"}
    assert {service: " ".join(names) for service, names in UNIMPLEMENTED.items()} == expected


@pytest.mark.parametrize("method", [f"{service}/{name}" for service, names in UNIMPLEMENTED.items() for name in names])
async def test_cluster_calls_are_unimplemented(operator: DanubeOperator, method: str) -> None:
    assert await operator.refused(method, pb.Empty()) == "UNIMPLEMENTED"


async def test_the_admin_port_serves_both_and_the_client_port_no_admin(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path, "memory", danube={"enable": True}))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.danube.admin_port}") as channel:
            raw = await channel.unary_unary("/danube_admin.BrokerAdmin/ListBrokers")(b"")
            (broker,) = pb.BrokerListResponse.FromString(raw).brokers
            assert broker.broker_addr == node.danube.url.removeprefix("http://")
            assert await channel.unary_unary("/danube_schema.SchemaRegistry/ListSubjects")(b"") == b""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{node.danube.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/danube_admin.BrokerAdmin/ListBrokers")(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await node.stop()
