"""Every gRPC method of Danube's ports: by anonymous, without rights, with exactly the right of method_rights.py, and
with the right on everything else. The front end lists its methods; one without an entry fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.message import Message
from grpc import aio

from icestream.frontends.danube.method_rights import ADMIN_METHODS, METHOD_RIGHTS, WithoutRight
from icestream.frontends.danube.wire import admin_pb2 as admin
from icestream.frontends.danube.wire import danube_pb2 as client
from icestream.frontends.danube.wire import registry_pb2 as registry
from icestream.security.resource import ResourceKind
from tests.support.access_world import AccessWorld, access_world

pytestmark = pytest.mark.asyncio
TOPIC, SUBSCRIPTION = "/shop/orders", "old"
ON_TOPIC = admin.TopicRequest(name=TOPIC)
ON_SUBSCRIPTION = admin.SubscriptionRequest(topic=TOPIC, subscription=SUBSCRIPTION)
NAMESPACE = admin.NamespaceRequest(name="shop")
LOOKUP = client.TopicLookupRequest(request_id=1, topic=TOPIC)
STALE = client.MsgID(producer_id=1, topic_name=TOPIC, topic_offset=0)
PLACES = {
    ResourceKind.TOPIC: TOPIC,
    ResourceKind.SUBSCRIPTION: "subscription:/shop/orders/old",
    ResourceKind.SCHEMA: "schema:/orders",
    ResourceKind.NAMESPACE: "namespace:/shop",
    ResourceKind.CLUSTER: "cluster",
}


class Method(NamedTuple):
    """How a method is tried.

    rules      beside the right of the table
    resource   of the right, where it is not the usual one
    status     of a caller that has the rights
    names      what the answer has for a caller with the right, and for no other: a listing, which everyone may ask for
    absent     the status for something that does not exist, and for what the caller may not see
    is_id      the request names an id, which works for the principal that made it: tried below
    """

    request: Message
    rules: tuple[str, ...] = ()
    resource: str = ""
    status: str = "OK"
    names: str = ""
    absent: str = ""
    is_id: bool = False


EMPTY = admin.Empty()
STRANGERS = ("anonymous", "nobody", "neighbour")
METHODS: dict[str, Method] = {
    "/danube.ProducerService/CreateProducer": Method(
        client.ProducerRequest(request_id=1, producer_name="p", topic_name=TOPIC, dispatch_strategy="Reliable")
    ),
    "/danube.ProducerService/SendMessage": Method(
        client.StreamMessage(request_id=1, msg_id=STALE, payload=b"m"), absent="UNAVAILABLE", is_id=True
    ),
    "/danube.ConsumerService/Subscribe": Method(
        client.ConsumerRequest(topic_name=TOPIC, consumer_name="c", subscription="old", subscription_type="Shared")
    ),
    "/danube.ConsumerService/ReceiveMessages": Method(
        client.ReceiveRequest(request_id=1, consumer_id=1), absent="NOT_FOUND", is_id=True
    ),
    "/danube.ConsumerService/Ack": Method(client.AckRequest(request_id=1, msg_id=STALE, subscription_name="old")),
    "/danube.ConsumerService/Nack": Method(client.NackRequest(request_id=1, msg_id=STALE, subscription_name="old")),
    "/danube.Discovery/TopicLookup": Method(LOOKUP),
    "/danube.Discovery/TopicPartitions": Method(LOOKUP, names=TOPIC),
    "/danube.HealthCheck/HealthCheck": Method(client.HealthCheckRequest(request_id=1, id=1)),
    "/danube_schema.SchemaRegistry/RegisterSchema": Method(
        registry.RegisterSchemaRequest(subject="orders", schema_type="string")
    ),
    "/danube_schema.SchemaRegistry/GetSchema": Method(registry.GetSchemaRequest(schema_id=1), absent="NOT_FOUND"),
    "/danube_schema.SchemaRegistry/GetLatestSchema": Method(registry.GetLatestSchemaRequest(subject="orders")),
    "/danube_schema.SchemaRegistry/ListVersions": Method(registry.ListVersionsRequest(subject="orders")),
    "/danube_schema.SchemaRegistry/CheckCompatibility": Method(
        registry.CheckCompatibilityRequest(subject="orders", schema_type="string")
    ),
    "/danube_schema.SchemaRegistry/DeleteSchemaVersion": Method(
        registry.DeleteSchemaVersionRequest(subject="orders", version=1)
    ),
    "/danube_schema.SchemaRegistry/SetCompatibilityMode": Method(
        registry.SetCompatibilityModeRequest(subject="orders", compatibility_mode="none")
    ),
    "/danube_schema.SchemaRegistry/ConfigureTopicSchema": Method(
        registry.ConfigureTopicSchemaRequest(topic_name=TOPIC, schema_subject="orders", validation_policy="none"),
        ("describe on schema:/orders",),
    ),
    "/danube_schema.SchemaRegistry/UpdateTopicValidationPolicy": Method(
        registry.UpdateTopicValidationPolicyRequest(topic_name=TOPIC, validation_policy="warn"), status="NOT_FOUND"
    ),
    "/danube_schema.SchemaRegistry/GetTopicSchemaConfig": Method(
        registry.GetTopicSchemaConfigRequest(topic_name=TOPIC), status="NOT_FOUND"
    ),
    "/danube_schema.SchemaRegistry/ListSubjects": Method(registry.ListSubjectsRequest(), names="orders"),
    "/danube_admin.BrokerAdmin/ListBrokers": Method(EMPTY),
    "/danube_admin.BrokerAdmin/GetLeaderBroker": Method(EMPTY),
    "/danube_admin.BrokerAdmin/ListNamespaces": Method(EMPTY, names="shop"),
    "/danube_admin.NamespaceAdmin/GetNamespaceTopics": Method(
        NAMESPACE, ("describe on /shop/orders",), names=TOPIC, absent="NOT_FOUND"
    ),
    "/danube_admin.NamespaceAdmin/GetNamespacePolicies": Method(NAMESPACE, absent="NOT_FOUND"),
    "/danube_admin.NamespaceAdmin/CreateNamespace": Method(
        admin.NamespaceRequest(name="new"), resource="namespace:/new"
    ),
    "/danube_admin.NamespaceAdmin/DeleteNamespace": Method(
        admin.NamespaceRequest(name="spare"), resource="namespace:/spare", absent="NOT_FOUND"
    ),
    "/danube_admin.TopicAdmin/ListNamespaceTopics": Method(
        NAMESPACE, ("describe on /shop/orders",), names=TOPIC, absent="NOT_FOUND"
    ),
    "/danube_admin.TopicAdmin/ListBrokerTopics": Method(admin.BrokerRequest(broker_id="node-1"), names=TOPIC),
    "/danube_admin.TopicAdmin/CreateTopic": Method(admin.NewTopicRequest(name="/shop/new"), resource="/shop/new"),
    "/danube_admin.TopicAdmin/CreatePartitionedTopic": Method(
        admin.PartitionedTopicRequest(base_name="/shop/new", partitions=2), resource="/shop/new"
    ),
    "/danube_admin.TopicAdmin/DeleteTopic": Method(ON_TOPIC),
    "/danube_admin.TopicAdmin/DescribeTopic": Method(ON_TOPIC),
    "/danube_admin.TopicAdmin/ListSubscriptions": Method(ON_TOPIC),
    "/danube_admin.TopicAdmin/Unsubscribe": Method(ON_SUBSCRIPTION),
    "/danube_admin.TopicAdmin/SetSubscriptionFailurePolicy": Method(
        admin.SetFailurePolicyRequest(
            topic=TOPIC,
            subscription=SUBSCRIPTION,
            failure_policy=admin.FailurePolicy(
                max_redelivery_count=3, ack_timeout_ms=60_000, max_redelivery_delay_ms=1000, poison_policy="Drop"
            ),
        ),
    ),
    "/danube_admin.TopicAdmin/GetSubscriptionFailurePolicy": Method(ON_SUBSCRIPTION),
    "/danube_admin.TopicAdmin/SetSubscriptionDispatchConfig": Method(
        admin.SetDispatchConfigRequest(
            topic=TOPIC, subscription=SUBSCRIPTION, dispatch_config=admin.DispatchConfig(max_unacked_messages=5)
        ),
    ),
    "/danube_admin.TopicAdmin/GetSubscriptionDispatchConfig": Method(ON_SUBSCRIPTION),
    "/danube_admin.SecurityAdmin/CreateRole": Method(
        admin.Role(role=admin.RoleDefinition(name="made", permissions=["Lookup"]))
    ),
    "/danube_admin.SecurityAdmin/GetRole": Method(admin.RoleRequest(name="reader")),
    "/danube_admin.SecurityAdmin/ListRoles": Method(EMPTY),
    "/danube_admin.SecurityAdmin/DeleteRole": Method(admin.RoleRequest(name="absent"), status="NOT_FOUND"),
    "/danube_admin.SecurityAdmin/CreateBinding": Method(
        admin.Binding(
            binding=admin.BindingDefinition(
                id="b", principal_type="user", principal_name="x", role_names=["reader"], scope="cluster"
            )
        )
    ),
    "/danube_admin.SecurityAdmin/GetBinding": Method(
        admin.BindingRequest(scope="cluster", binding_id="absent"), status="NOT_FOUND"
    ),
    "/danube_admin.SecurityAdmin/ListBindings": Method(admin.BindingRequest(scope="cluster")),
    "/danube_admin.SecurityAdmin/ListAllBindings": Method(EMPTY),
    "/danube_admin.SecurityAdmin/DeleteBinding": Method(
        admin.BindingRequest(scope="cluster", binding_id="absent"), status="NOT_FOUND"
    ),
    **{
        path: Method(EMPTY, status="UNIMPLEMENTED")
        for path, right in METHOD_RIGHTS.items()
        if right.note == "UNIMPLEMENTED"
    },
}


async def test_every_method_has_an_entry(tmp_path: Path) -> None:
    async with access_world(tmp_path, (), danube={"enable": True}) as world:
        assert world.node.danube.methods == METHODS.keys()
        assert world.node.danube.methods == METHOD_RIGHTS.keys()


async def test_a_right_has_an_action_and_a_kind_unless_the_method_is_open() -> None:
    for path, right in METHOD_RIGHTS.items():
        is_open = right.without is WithoutRight.OPEN
        assert (right.action is None) == (right.kind is None) == is_open, path


def rules_of(path: str) -> list[str]:
    right, method = METHOD_RIGHTS[path], METHODS[path]
    if right.action is None or right.kind is None:
        return list(method.rules)
    return [f"{right.action.value} on {method.resource or PLACES[right.kind]}", *method.rules]


async def attempt(world: AccessWorld, path: str, caller: str, request: Message) -> tuple[str, bytes]:
    """The status of a call, and its response."""
    danube, token = world.node.danube, world.token(caller)
    port = danube.admin_port if path in ADMIN_METHODS else danube.port
    metadata = [("authorization", f"Bearer {token}")] if token else []
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            if path.endswith("/ReceiveMessages"):
                stream = channel.unary_stream(path)(request.SerializeToString(), metadata=metadata)
                await stream.read()
                return "OK", b""
            return "OK", await channel.unary_unary(path)(request.SerializeToString(), metadata=metadata)
        except aio.AioRpcError as error:
            return error.code().name, b""


@pytest.mark.parametrize("path", [path for path, method in METHODS.items() if not method.is_id])
async def test_a_method_needs_exactly_its_right(tmp_path: Path, path: str) -> None:
    right, method, rules = METHOD_RIGHTS[path], METHODS[path], rules_of(path)
    async with access_world(tmp_path, rules, danube={"enable": True}) as world:
        before = await world.records()
        for caller in [*world.strangers, "exact"]:
            status, answer = await attempt(world, path, caller, method.request)
            is_stranger = caller != "exact"
            if right.without is WithoutRight.OPEN:
                assert status == method.status, caller
            elif method.names:
                assert status == "OK" or (status == method.absent and is_stranger), caller
                assert (method.names.encode() in answer) != is_stranger, (caller, answer)
            elif not is_stranger:
                assert status == method.status, status
            elif right.without is WithoutRight.ABSENT:
                # A caller that sees it and may not do this learns that it may not.
                is_seen = caller.startswith("weaker")
                assert status == ("PERMISSION_DENIED" if is_seen else method.absent), caller
            else:
                assert status == ("UNAUTHENTICATED" if caller == "anonymous" else "PERMISSION_DENIED"), caller
            if is_stranger:
                assert await world.records() == before, f"{caller} has changed something"


async def test_ids_work_for_the_principal_that_made_them(tmp_path: Path) -> None:
    """SendMessage and ReceiveMessages name an id; for others it does not exist (hazard 106)."""
    rules = ["produce,consume on /shop/orders"]
    async with access_world(tmp_path, rules, ["produce,consume on /shop/*"], danube={"enable": True}) as world:
        path = "/danube.ProducerService/CreateProducer"
        _, answer = await attempt(world, path, "exact", METHODS[path].request)
        producer = client.ProducerResponse.FromString(answer).producer_id
        where = client.MsgID(producer_id=producer, topic_name=TOPIC)
        message = client.StreamMessage(request_id=1, msg_id=where, payload=b"m")
        for caller in (*STRANGERS, "exact"):
            status, _ = await attempt(world, "/danube.ProducerService/SendMessage", caller, message)
            assert status == ("OK" if caller == "exact" else "UNAVAILABLE"), caller
        path = "/danube.ConsumerService/Subscribe"
        _, answer = await attempt(world, path, "exact", METHODS[path].request)
        consumer = client.ConsumerResponse.FromString(answer).consumer_id
        request = client.ReceiveRequest(request_id=1, consumer_id=consumer)
        path = "/danube.ConsumerService/ReceiveMessages"
        # At the same time: a stream that cannot begin fails after a second.
        outcomes = await asyncio.gather(*(attempt(world, path, caller, request) for caller in STRANGERS))
        assert [status for status, _ in outcomes] == ["NOT_FOUND"] * 3
