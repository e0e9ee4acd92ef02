"""The schema registry with Danube's Python client: the scenarios of its own tests, and what it does not do at home."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fastavro
import grpc
import orjson
import pytest
import pytest_asyncio
from danube import SchemaType
from danube.schema import CompatibilityMode

from icestream.frontends.danube.wire import registry_pb2 as pb
from tests.support.danube_broker import DanubeBroker, danube_broker

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("wire")]
JSON = SchemaType.JSON_SCHEMA
V1 = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
V2 = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}
V3 = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class SchemaClient:
    def __init__(self, danube: DanubeBroker) -> None:
        assert danube.client is not None
        self.danube = danube
        self.client = danube.client.schema()

    async def register(self, subject: str, schema: Any, kind: SchemaType = JSON) -> int:
        raw = schema if isinstance(schema, bytes) else orjson.dumps(schema)
        return int(await self.client.register_schema(subject).with_type(kind).with_schema_data(raw).execute())

    async def producer(self, topic: str, name: str = "p", **reference: Any) -> Any:
        assert self.danube.client is not None
        built = self.danube.client.new_producer().with_topic(topic).with_name(name)
        match reference:
            case {"version": version}:
                built = built.with_schema_version(reference["subject"], version)
            case {"min_version": version}:
                built = built.with_schema_min_version(reference["subject"], version)
            case {"subject": subject}:
                built = built.with_schema_subject(subject)
        producer = built.build()
        await producer.create()
        self.danube._open.append(producer)
        return producer


@pytest_asyncio.fixture
async def schemas(tmp_path: Path) -> AsyncIterator[SchemaClient]:
    async with danube_broker(tmp_path) as danube:
        yield SchemaClient(danube)


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_register_multiple_types_and_get_the_bytes_back(schemas: SchemaClient) -> None:
    definitions = {
        JSON: b'{ "type":  "object" }\n',
        SchemaType.AVRO: b'"string"',
        SchemaType.PROTOBUF: b"message M { int32 x = 1; }",
        SchemaType.STRING: b"text",
        SchemaType.NUMBER: b"int64",
        SchemaType.BYTES: b"\x00\xff",
    }
    for kind, raw in definitions.items():
        id_ = await schemas.register(f"of-{kind.value}", raw, kind)
        schema = await schemas.client.get_latest_schema(f"of-{kind.value}")
        assert (schema.schema_id, schema.version, schema.schema_type) == (id_, 1, kind.value)
        assert schema.schema_definition == raw


async def test_versioning(schemas: SchemaClient) -> None:
    first = await schemas.register("s", V1)
    assert await schemas.register("s", V1) == first
    assert (await schemas.client.get_latest_schema("s")).version == 1
    assert await schemas.register("s", V2) == first
    assert (await schemas.client.get_latest_schema("s")).version == 2
    assert (await schemas.client.get_schema_version(first, 1)).schema_definition == orjson.dumps(V1)
    assert await schemas.register("other", V1) != first
    assert await refused(schemas.client.get_latest_schema("none")) is grpc.StatusCode.NOT_FOUND
    assert await refused(schemas.client.get_schema_version(first, 9)) is grpc.StatusCode.NOT_FOUND


async def test_incompatible_schemas_are_refused_unless_compatibility_is_none(schemas: SchemaClient) -> None:
    await schemas.register("s", V1)
    assert await refused(schemas.register("s", V3)) is grpc.StatusCode.INTERNAL
    is_compatible, wrong = await schemas.client.check_compatibility("s", orjson.dumps(V3), JSON)
    assert not is_compatible
    assert "name" in " ".join(wrong)
    assert await schemas.client.check_compatibility("s", orjson.dumps(V2), JSON) == (True, [])
    await schemas.client.set_compatibility_mode("s", CompatibilityMode.NONE)
    await schemas.register("s", V3)
    assert (await schemas.client.get_latest_schema("s")).version == 2


OPTIONAL, REQUIRED = V2, {**V2, "required": ["id", "name"]}
WIDER = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
WITH_DEFAULT = {**WIDER, "fields": [*WIDER["fields"], {"name": "y", "type": "string", "default": ""}]}
WITHOUT_DEFAULT = {**WIDER, "fields": [*WIDER["fields"], {"name": "y", "type": "string"}]}
AVRO, FULL = SchemaType.AVRO, CompatibilityMode.FULL
BACKWARD, FORWARD = CompatibilityMode.BACKWARD, CompatibilityMode.FORWARD


@pytest.mark.parametrize(
    ("kind", "mode", "last", "new", "is_fine"),
    [
        pytest.param(JSON, BACKWARD, V1, OPTIONAL, True, id="backward_add_optional"),
        pytest.param(JSON, BACKWARD, REQUIRED, V1, False, id="backward_remove_required_fails"),
        pytest.param(JSON, FORWARD, OPTIONAL, V1, True, id="forward_remove_optional"),
        pytest.param(JSON, FORWARD, V1, REQUIRED, False, id="forward_add_required_fails"),
        pytest.param(JSON, FULL, V1, OPTIONAL, True, id="full_add_optional"),
        pytest.param(JSON, FULL, V1, REQUIRED, False, id="full_add_required_fails"),
        pytest.param(AVRO, BACKWARD, WIDER, WITH_DEFAULT, True, id="avro_backward"),
        pytest.param(AVRO, BACKWARD, WIDER, WITHOUT_DEFAULT, False, id="avro_backward_without_default_fails"),
    ],
)
async def test_compatibility(
    schemas: SchemaClient, kind: SchemaType, mode: CompatibilityMode, last: Any, new: Any, is_fine: bool
) -> None:
    await schemas.register("s", last, kind)
    await schemas.client.set_compatibility_mode("s", mode)
    assert (await schemas.client.check_compatibility("s", orjson.dumps(new), kind))[0] is is_fine
    if is_fine:
        await schemas.register("s", new, kind)
    else:
        assert await refused(schemas.register("s", new, kind)) is grpc.StatusCode.INTERNAL
    assert (await schemas.client.get_latest_schema("s")).version == 1 + is_fine


async def test_multi_version_evolution_and_different_versions_of_one_subject(schemas: SchemaClient) -> None:
    """Producers of several versions share a topic; a consumer is told which one each message has."""
    properties: dict[str, Any] = {"id": {"type": "integer"}}
    for number in range(1, 4):
        properties = {**properties, f"p{number}": {"type": "string"}}
        id_ = await schemas.register("s", {**V1, "properties": properties})
    producers = [
        await schemas.producer("/default/t", f"p{version}", subject="s", version=version) for version in (1, 2, 3)
    ]
    received = await schemas.danube.consumer("/default/t")
    for producer in producers:
        await producer.send(b'{"id": 1}')
    messages = [await received.next() for _ in producers]
    assert [(message.schema_id, message.schema_version) for message in messages] == [(id_, 1), (id_, 2), (id_, 3)]


async def test_a_deleted_version_is_removed_and_its_number_not_reused(schemas: SchemaClient) -> None:
    id_ = await schemas.register("s", V1)
    await schemas.register("s", V2)
    await schemas.client.delete_schema_version("s", 2)
    assert (await schemas.client.get_latest_schema("s")).version == 1
    await schemas.register("s", V2)
    assert (await schemas.client.get_latest_schema("s")).version == 3
    assert await refused(schemas.client.get_schema_version(id_, 2)) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("reference", "version"),
    [({"version": 1}, 1), ({"version": 2}, 2), ({}, 2), ({"min_version": 1}, 2), ({"min_version": 2}, 2)],
)
async def test_a_consumer_sees_the_schema_version_of_the_producer(
    schemas: SchemaClient, reference: dict[str, int], version: int
) -> None:
    id_ = await schemas.register("s", V1)
    await schemas.register("s", V2)
    producer = await schemas.producer("/default/t", subject="s", **reference)
    received = await schemas.danube.consumer("/default/t")
    await producer.send(b'{"id": 1}')
    message = await received.next()
    assert (message.schema_id, message.schema_version) == (id_, version)


async def test_a_producer_with_an_unknown_schema_is_refused(schemas: SchemaClient) -> None:
    await schemas.register("s", V1)
    for reference in ({"subject": "none"}, {"subject": "s", "version": 7}, {"subject": "s", "min_version": 2}):
        call = schemas.producer("/default/t", **reference)
        assert await refused(call) is grpc.StatusCode.FAILED_PRECONDITION
    assert not len(schemas.danube.broker.topics)


async def test_first_producer_assigns_the_subject_and_another_one_fails(schemas: SchemaClient) -> None:
    await schemas.register("a", V1)
    await schemas.register("b", V1)
    await schemas.producer("/default/t", "first", subject="a")
    await schemas.producer("/default/t", "same", subject="a")
    await schemas.producer("/default/t", "without")
    call = schemas.producer("/default/t", "other", subject="b")
    assert await refused(call) is grpc.StatusCode.FAILED_PRECONDITION
    config = await schemas.client.get_topic_schema_config("/default/t")
    assert (config.schema_subject, config.validation_policy) == ("a", "warn")


@pytest.mark.parametrize(
    ("kind", "schema", "good", "bad"),
    [
        (JSON, V1, b'{"id": 1}', b'{"id": "x"}'),
        (SchemaType.AVRO, {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}, None, b""),
        (SchemaType.PROTOBUF, b"message M { string name = 1; }", b"\x0a\x01a", b"\x0a\x01\xff"),
        (SchemaType.STRING, b"text", b"text", b"\xff"),
        (SchemaType.NUMBER, b"int64", b"42", b"a lot"),
    ],
)
async def test_enforced_validation_end_to_end(
    schemas: SchemaClient, kind: SchemaType, schema: Any, good: bytes | None, bad: bytes
) -> None:
    if good is None:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"x": 5})
        good = out.getvalue()
    await schemas.register("s", schema, kind)
    producer = await schemas.producer("/default/t", subject="s")
    await schemas.client.configure_topic_schema("/default/t", "s", "enforce", True)
    received = await schemas.danube.consumer("/default/t")
    assert await refused(producer.send(bad)) is grpc.StatusCode.PERMISSION_DENIED
    await producer.send(good)
    assert (await received.next()).payload == good
    without = await schemas.producer("/default/t", "without")
    assert await refused(without.send(good)) is grpc.StatusCode.PERMISSION_DENIED
    await schemas.client.update_topic_validation_policy("/default/t", "warn", True)
    await producer.send(bad)
    assert (await received.next()).payload == bad


async def test_bytes_schemas_accept_any_payload(schemas: SchemaClient) -> None:
    await schemas.register("s", b"anything", SchemaType.BYTES)
    producer = await schemas.producer("/default/t", subject="s")
    await schemas.client.configure_topic_schema("/default/t", "s", "enforce", True)
    received = await schemas.danube.consumer("/default/t")
    await producer.send(b"\x00\xff")
    message = await received.next()
    assert (message.payload, message.schema_version) == (b"\x00\xff", 1)


async def test_a_later_schema_version_is_checked_too(schemas: SchemaClient) -> None:
    await schemas.register("s", V1)
    await schemas.producer("/default/t", "old", subject="s")
    await schemas.client.configure_topic_schema("/default/t", "s", "enforce", True)
    await schemas.register("s", V2)
    new = await schemas.producer("/default/t", "new", subject="s")
    await new.send(b'{"id": 1, "name": "x"}')
    assert await refused(new.send(b'{"id": 1, "name": 2}')) is grpc.StatusCode.PERMISSION_DENIED


async def test_the_registry_and_its_policies_are_there_after_a_restart(tmp_path: Path) -> None:
    async with danube_broker(tmp_path, "iceberg") as danube:
        schemas = SchemaClient(danube)
        id_ = await schemas.register("s", V1)
        producer = await schemas.producer("/default/t", subject="s")
        await schemas.client.configure_topic_schema("/default/t", "s", "enforce", True)
        await danube.stop()
        await danube.start()
        schema = await schemas.client.get_schema_version(id_, 1)
        assert (schema.subject, schema.schema_definition) == ("s", orjson.dumps(V1))
        assert await refused(producer.send(b"no JSON")) is grpc.StatusCode.PERMISSION_DENIED


async def test_invalid_words_are_invalid_arguments(schemas: SchemaClient) -> None:
    await schemas.register("s", V1)
    await schemas.producer("/default/t", subject="s")
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert await refused(schemas.register("s", b"{")) is invalid
    assert await refused(schemas.register("a/b", V1)) is invalid
    assert await refused(schemas.client.configure_topic_schema("/default/t", "s", "perhaps", True)) is invalid
    not_there = schemas.client.configure_topic_schema("/default/none", "s", "warn", True)
    assert await refused(not_there) is grpc.StatusCode.NOT_FOUND


async def test_subjects_are_listed_with_their_tags(schemas: SchemaClient) -> None:
    """A call that the Python client does not have."""
    assert schemas.danube.node is not None
    target = schemas.danube.node.danube.url.removeprefix("http://")
    async with grpc.aio.insecure_channel(target) as channel:
        register = channel.unary_unary("/danube_schema.SchemaRegistry/RegisterSchema")
        request = pb.RegisterSchemaRequest(subject="s", schema_type="json", schema_definition=b"{}", tags=["a", "b"])
        await register(request.SerializeToString())
        listed = await channel.unary_unary("/danube_schema.SchemaRegistry/ListSubjects")(b"")
    (subject,) = pb.ListSubjectsResponse.FromString(listed).subjects
    assert (subject.subject, subject.latest_version, list(subject.tags)) == ("s", 1, ["a", "b"])
