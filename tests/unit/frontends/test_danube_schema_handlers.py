"""Danube's schema registry call by call: what its Python client does not show, and every policy of a topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any, TypeVar

import pytest
import pytest_asyncio
from google.protobuf.message import Message

from icestream.frontends.danube.wire import danube_pb2
from icestream.frontends.danube.wire import registry_pb2 as pb
from icestream.model.topic_name import TopicName
from tests.support.danube_handlers import DanubeHandlers, DanubeRefusal, danube_handlers

pytestmark = pytest.mark.asyncio
Answer = TypeVar("Answer", bound=Message)
V1 = b'{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
V2 = b'{"type": "object", "properties": {"id": {"type": "integer"}, "n": {"type": "string"}}, "required": ["id"]}'
DEEP = b'{"properties": {"a": {"items": {"properties": {"x": {"type": "integer"}}}}}}'
DEEPER = DEEP.replace(b"integer", b"string")


class SchemaRegistryClient:
    def __init__(self, table: DanubeHandlers) -> None:
        self.table = table

    async def call(self, method: str, request: Message, kind: type[Answer]) -> Answer:
        return await self.table.call(f"/danube_schema.SchemaRegistry/{method}", request, kind)

    async def register(self, raw: bytes = V1, **fields: Any) -> pb.RegisterSchemaResponse:
        request = pb.RegisterSchemaRequest(
            **{"subject": "s", "schema_type": "json_schema", "schema_definition": raw, **fields}
        )
        return await self.call("RegisterSchema", request, pb.RegisterSchemaResponse)

    async def latest(self) -> pb.GetSchemaResponse:
        return await self.call("GetLatestSchema", pb.GetLatestSchemaRequest(subject="s"), pb.GetSchemaResponse)

    async def check(self, raw: bytes, mode: str) -> bool:
        request = pb.CheckCompatibilityRequest(
            subject="s", schema_type="json_schema", new_schema_definition=raw, compatibility_mode=mode
        )
        return (await self.call("CheckCompatibility", request, pb.CheckCompatibilityResponse)).is_compatible


@pytest_asyncio.fixture
async def registry() -> AsyncIterator[SchemaRegistryClient]:
    async with danube_handlers() as table:
        yield SchemaRegistryClient(table)


async def test_a_fingerprint_is_the_sha_256_of_the_bytes(registry: SchemaRegistryClient) -> None:
    first = await registry.register()
    assert (first.version, first.is_new_version) == (1, True)
    assert first.fingerprint == f"sha256:{sha256(V1).hexdigest()}"
    again = await registry.register(description="the same")
    assert (again.version, again.is_new_version, again.fingerprint) == (1, False, first.fingerprint)
    second = await registry.register(V2)
    assert (second.schema_id, second.version, second.is_new_version) == (first.schema_id, 2, True)
    assert second.fingerprint == f"sha256:{sha256(V2).hexdigest()}"
    assert (await registry.latest()).fingerprint == second.fingerprint
    listed = await registry.call("ListVersions", pb.ListVersionsRequest(subject="s"), pb.ListVersionsResponse)
    assert [(version.version, version.fingerprint) for version in listed.versions] == [
        (1, first.fingerprint), (2, second.fingerprint),
    ]  # fmt: skip


async def test_a_registered_version_is_returned_complete(registry: SchemaRegistryClient) -> None:
    await registry.register(b" " + V1, description="words", created_by="me", tags=["a", "b"])
    latest = await registry.latest()
    assert (latest.subject, latest.schema_type, latest.schema_definition) == ("s", "json_schema", b" " + V1)
    assert (latest.description, latest.created_by, list(latest.tags)) == ("words", "me", ["a", "b"])
    assert latest.created_at > 1_600_000_000_000
    listed = await registry.call("ListVersions", pb.ListVersionsRequest(subject="s"), pb.ListVersionsResponse)
    (version,) = listed.versions
    assert (version.description, version.created_by, version.created_at) == ("words", "me", latest.created_at)
    assert version.schema_id == latest.schema_id


@pytest.mark.parametrize("mode", ["backward", "forward", "full", "none"])
async def test_a_nested_type_change_is_detected_in_every_mode_but_none(
    registry: SchemaRegistryClient, mode: str
) -> None:
    await registry.register(DEEP)
    assert await registry.check(DEEPER, mode) is (mode == "none")
    request = pb.SetCompatibilityModeRequest(subject="s", compatibility_mode=mode)
    assert (await registry.call("SetCompatibilityMode", request, pb.Outcome)).success
    if mode == "none":
        assert (await registry.register(DEEPER)).version == 2
    else:
        with pytest.raises(DanubeRefusal, match="INTERNAL"):
            await registry.register(DEEPER)


GOOD, BAD = b'{"id": 1}', b'{"id": "x"}'
# What is sent: with the schema of the topic, with another one, with none; a payload that fits, and one that does not.
SENT = {"good": ("own", GOOD), "bad": ("own", BAD), "other": ("other", GOOD), "none": ("", GOOD)}


@pytest.mark.parametrize(
    ("policy", "checks", "refused"),
    [
        ("none", True, set()),
        ("none", False, set()),
        ("warn", True, set()),
        ("warn", False, set()),
        ("enforce", False, {"other", "none"}),
        ("enforce", True, {"bad", "other", "none"}),
    ],
)
async def test_validation_policies(
    registry: SchemaRegistryClient, policy: str, checks: bool, refused: set[str]
) -> None:
    own = (await registry.register()).schema_id
    other = (await registry.register(subject="other")).schema_id
    table = registry.table
    mine = await table.producer(schema_ref=danube_pb2.SchemaReference(subject="s", use_latest=True))
    request = pb.ConfigureTopicSchemaRequest(
        topic_name="/default/t", schema_subject="s", validation_policy=policy, enable_payload_validation=checks
    )
    await registry.call("ConfigureTopicSchema", request, pb.Outcome)
    refusals = {}
    for name, (schema, payload) in SENT.items():
        named = {"schema_id": own if schema == "own" else other, "schema_version": 1} if schema else {}
        try:
            await table.send(mine, payload, **named)
        except DanubeRefusal as refusal:
            refusals[name] = refusal.status
    assert refusals == dict.fromkeys(refused, "PERMISSION_DENIED")
    stored = table.broker.topics.get(TopicName("default", "t")).published_messages
    assert stored == len(SENT) - len(refused)
    config = pb.GetTopicSchemaConfigRequest(topic_name="/default/t")
    stored_config = await registry.call("GetTopicSchemaConfig", config, pb.GetTopicSchemaConfigResponse)
    assert (stored_config.schema_subject, stored_config.schema_id) == ("s", own)
    assert (stored_config.validation_policy, stored_config.enable_payload_validation) == (policy, checks)
