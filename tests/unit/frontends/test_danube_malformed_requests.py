"""Whatever a client puts into a request of Danube's services, it gets an answer or a status that is meant for it."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.frontends.danube.admin_handlers import AdminHandlers, BrokerAddresses
from icestream.frontends.danube.handlers import Call, status_of
from icestream.frontends.danube.wire import admin_pb2 as ad
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.frontends.danube.wire import registry_pb2 as rg
from tests.support.danube_handlers import danube_handlers

REQUESTS: dict[str, type[Message]] = {
    "/danube.ProducerService/CreateProducer": pb.ProducerRequest,
    "/danube.ProducerService/SendMessage": pb.StreamMessage,
    "/danube.ConsumerService/Subscribe": pb.ConsumerRequest,
    "/danube.ConsumerService/Ack": pb.AckRequest,
    "/danube.ConsumerService/Nack": pb.NackRequest,
    "/danube.Discovery/TopicLookup": pb.TopicLookupRequest,
    "/danube.Discovery/TopicPartitions": pb.TopicLookupRequest,
    "/danube.HealthCheck/HealthCheck": pb.HealthCheckRequest,
    "/danube_schema.SchemaRegistry/RegisterSchema": rg.RegisterSchemaRequest,
    "/danube_schema.SchemaRegistry/GetSchema": rg.GetSchemaRequest,
    "/danube_schema.SchemaRegistry/GetLatestSchema": rg.GetLatestSchemaRequest,
    "/danube_schema.SchemaRegistry/ListVersions": rg.ListVersionsRequest,
    "/danube_schema.SchemaRegistry/CheckCompatibility": rg.CheckCompatibilityRequest,
    "/danube_schema.SchemaRegistry/DeleteSchemaVersion": rg.DeleteSchemaVersionRequest,
    "/danube_schema.SchemaRegistry/SetCompatibilityMode": rg.SetCompatibilityModeRequest,
    "/danube_schema.SchemaRegistry/ConfigureTopicSchema": rg.ConfigureTopicSchemaRequest,
    "/danube_schema.SchemaRegistry/UpdateTopicValidationPolicy": rg.UpdateTopicValidationPolicyRequest,
    "/danube_schema.SchemaRegistry/GetTopicSchemaConfig": rg.GetTopicSchemaConfigRequest,
    "/danube_admin.NamespaceAdmin/CreateNamespace": ad.NamespaceRequest,
    "/danube_admin.NamespaceAdmin/DeleteNamespace": ad.NamespaceRequest,
    "/danube_admin.NamespaceAdmin/GetNamespacePolicies": ad.NamespaceRequest,
    "/danube_admin.TopicAdmin/ListNamespaceTopics": ad.NamespaceRequest,
    "/danube_admin.TopicAdmin/CreateTopic": ad.NewTopicRequest,
    "/danube_admin.TopicAdmin/CreatePartitionedTopic": ad.PartitionedTopicRequest,
    "/danube_admin.TopicAdmin/DeleteTopic": ad.TopicRequest,
    "/danube_admin.TopicAdmin/DescribeTopic": ad.TopicRequest,
    "/danube_admin.TopicAdmin/Unsubscribe": ad.SubscriptionRequest,
    "/danube_admin.TopicAdmin/SetSubscriptionFailurePolicy": ad.SetFailurePolicyRequest,
    "/danube_admin.TopicAdmin/GetSubscriptionFailurePolicy": ad.SubscriptionRequest,
    "/danube_admin.TopicAdmin/SetSubscriptionDispatchConfig": ad.SetDispatchConfigRequest,
    "/danube_admin.TopicAdmin/GetSubscriptionDispatchConfig": ad.SubscriptionRequest,
}
# A client takes it for the end of its producer or consumer, and does not try again.
NEVER = {
    ("/danube.ProducerService/CreateProducer", "ALREADY_EXISTS"),
    ("/danube.ConsumerService/Subscribe", "ALREADY_EXISTS"),
}
NAMES = [
    "/default/t", "/default/p", "/default/p-part-1", "/default/p-part-999999999", "/nowhere/t", "/default/dead",
    "default", "s", "c", "/", "a/b", "", "\x00", "é" * 200, "*" * 300,
]  # fmt: skip
WORDS = [
    "json_schema", "avro", "protobuf", "number", "backward", "enforce", "warn", "x-icestream-sequence", "i:1", "i:3",
]  # fmt: skip
TEXTS = st.sampled_from(NAMES + WORDS)
SCHEMAS = [
    b"", b"{}", b'"int"', b"message M { int32 a = 1; }", b'{"type":"object","required":3}',
    b'{"type":"object","properties":{"a":{"$ref":"#"}}}',
    b'{"type":"record","name":"R","fields":[{"name":"r","type":"R"}]}',
]  # fmt: skip
BYTES = st.sampled_from(SCHEMAS) | st.binary(max_size=20)
NUMBERS = st.sampled_from([0, 1, 2, 3, 7, 2**31 - 1])


def filled(kind: type[Message], draw: Any) -> Message:
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update(draw(st.dictionaries(TEXTS, TEXTS, max_size=2)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(filled(field.message_type._concrete_class, draw))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(TEXTS, max_size=2)))
        elif not field.has_presence or draw(st.booleans()):
            setattr(message, field.name, draw(values_of(field)))
    return message


def values_of(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return TEXTS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BYTES
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    return NUMBERS | st.just(2**64 - 1) if field.type == FieldDescriptor.TYPE_UINT64 else NUMBERS


@settings(max_examples=40)
@given(st.data())
def test_every_request_gets_an_answer_or_a_status(data: st.DataObject) -> None:
    paths = data.draw(st.lists(st.sampled_from(sorted(REQUESTS)), min_size=5, max_size=25))
    requests = [(path, filled(REQUESTS[path], data.draw).SerializeToString()) for path in paths]
    for path, status in zip(paths, asyncio.run(answers(requests)), strict=True):
        assert status in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "UNAVAILABLE",
                          "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "INTERNAL")  # fmt: skip
        assert (path, status) not in NEVER


async def answers(requests: list[tuple[str, bytes]]) -> list[str]:
    statuses = []
    async with danube_handlers() as table:
        await table.producer("/default/t")
        await table.producer("/default/p-part-1")
        await table.subscribe("/default/t")
        place = BrokerAddresses("n", "a:1", "a:2", "a:3")
        calls = {**table._table.unary, **table.service.guarded(AdminHandlers(place).table(), "danube_admin").unary}
        for path, raw in requests:
            try:
                await calls[path](raw, Call("test"))
                statuses.append("OK")
            except Exception as error:  # noqa: BLE001 (what has no status is raised again)
                statuses.append(status_of(error)[0])
    return statuses


def test_every_modifying_method_is_tried() -> None:
    async def paths() -> set[str]:
        async with danube_handlers() as table:
            return set(table._table.unary)

    assert asyncio.run(paths()) - set(REQUESTS) == {"/danube_schema.SchemaRegistry/ListSubjects"}
