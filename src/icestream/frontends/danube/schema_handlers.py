"""Danube's schema registry, as a table of handlers. The rules are the broker's (broker/schema_registry.py)."""

from __future__ import annotations

from icestream import errors
from icestream.broker.schema_registry import RegisteredSchema
from icestream.broker.schema_registry_records import SchemaVersion
from icestream.broker.service import Broker
from icestream.frontends.danube.handlers import Call, HandlerTable, decode
from icestream.frontends.danube.partition_names import base_name
from icestream.frontends.danube.wire import danube_pb2
from icestream.frontends.danube.wire import registry_pb2 as pb
from icestream.schema.kinds import compatibility, schema_type, validation_policy


class SchemaHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry = broker.registry

    def table(self) -> HandlerTable:
        calls = {
            "RegisterSchema": self.register,
            "GetSchema": self.get,
            "GetLatestSchema": self.latest,
            "ListVersions": self.versions,
            "CheckCompatibility": self.check,
            "DeleteSchemaVersion": self.delete,
            "SetCompatibilityMode": self.set_mode,
            "ConfigureTopicSchema": self.configure,
            "UpdateTopicValidationPolicy": self.set_policy,
            "GetTopicSchemaConfig": self.topic,
            "ListSubjects": self.subjects,
        }
        return HandlerTable({f"/danube_schema.SchemaRegistry/{name}": call for name, call in calls.items()})

    # --- subjects ---

    async def register(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.RegisterSchemaRequest, raw)
        found = await self._registry.register(
            request.subject,
            schema_type(request.schema_type),
            request.schema_definition,
            description=request.description,
            created_by=request.created_by,
            tags=tuple(request.tags),
        )
        return pb.RegisterSchemaResponse(
            schema_id=found.subject.id,
            version=found.version.version,
            is_new_version=found.is_new,
            fingerprint=_fingerprint(found.version),
        ).SerializeToString()

    async def get(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.GetSchemaRequest, raw)
        version = request.version if request.HasField("version") else None
        return await self._described(await self._registry.by_id(request.schema_id, version))

    async def latest(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.GetLatestSchemaRequest, raw)
        return await self._described(await self._registry.latest(request.subject))

    async def _described(self, found: RegisteredSchema) -> bytes:
        version = found.version
        return pb.GetSchemaResponse(
            schema_id=found.subject.id,
            version=version.version,
            subject=found.name,
            schema_type=version.type.value,
            schema_definition=await self._registry.definition(found),
            description=version.description,
            created_at=version.created_ms,
            created_by=version.created_by,
            tags=version.tags,
            fingerprint=_fingerprint(version),
            compatibility_mode=found.subject.compatibility.value,
        ).SerializeToString()

    async def versions(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.ListVersionsRequest, raw)
        subject = await self._registry.subject(request.subject)
        found = [
            pb.SchemaVersionInfo(
                version=one.version,
                created_at=one.created_ms,
                created_by=one.created_by,
                description=one.description,
                fingerprint=_fingerprint(one),
                schema_id=subject.id,
            )
            for one in subject.versions
        ]
        return pb.ListVersionsResponse(versions=found).SerializeToString()

    async def check(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.CheckCompatibilityRequest, raw)
        mode = compatibility(request.compatibility_mode) if request.HasField("compatibility_mode") else None
        wrong = await self._registry.check_compatibility(
            request.subject, schema_type(request.schema_type), request.new_schema_definition, mode
        )
        return pb.CheckCompatibilityResponse(is_compatible=not wrong, errors=wrong).SerializeToString()

    async def delete(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.DeleteSchemaVersionRequest, raw)
        await self._registry.delete_version(request.subject, request.version)
        return _done(f"version {request.version} of {request.subject} is deleted")

    async def set_mode(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SetCompatibilityModeRequest, raw)
        mode = compatibility(request.compatibility_mode)
        await self._registry.set_compatibility(request.subject, mode)
        return _done(f"subject {request.subject} is {mode.value} compatible from now on")

    async def subjects(self, raw: bytes, call: Call) -> bytes:
        decode(pb.ListSubjectsRequest, raw)
        found = []
        for name, subject in await self._registry.subjects():
            latest = subject.latest
            found.append(
                pb.SubjectInfo(
                    subject=name,
                    schema_type=latest.type.value if latest is not None else "",
                    latest_version=latest.version if latest is not None else 0,
                    compatibility_mode=subject.compatibility.value,
                    schema_id=subject.id,
                    tags=latest.tags if latest is not None else (),
                )
            )
        return pb.ListSubjectsResponse(subjects=found).SerializeToString()

    # --- topics ---

    async def configure(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.ConfigureTopicSchemaRequest, raw)
        policy = validation_policy(request.validation_policy)
        checks = request.enable_payload_validation
        await self._registry.configure(
            base_name(request.topic_name), request.schema_subject, policy, checks_payload=checks
        )
        return _done(f"topic {request.topic_name} has the subject {request.schema_subject}")

    async def set_policy(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.UpdateTopicValidationPolicyRequest, raw)
        policy = validation_policy(request.validation_policy)
        await self._registry.set_policy(
            base_name(request.topic_name), policy, checks_payload=request.enable_payload_validation
        )
        return _done(f"the policy of topic {request.topic_name} is {policy.value}")

    async def topic(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.GetTopicSchemaConfigRequest, raw)
        name = base_name(request.topic_name)
        found = self._registry.of_topic(name)
        if found is None:
            self._broker.topics.get(name)
            raise errors.UnknownSchema(f"topic {name} has no schema", hint="configure one, or produce with one")
        return pb.GetTopicSchemaConfigResponse(
            schema_subject=found.subject,
            validation_policy=found.policy.value,
            enable_payload_validation=found.checks_payload,
            schema_id=found.schema_id,
        ).SerializeToString()


def _fingerprint(version: SchemaVersion) -> str:
    """As Danube writes it."""
    return f"sha256:{version.fingerprint}"


def _done(message: str) -> bytes:
    return pb.Outcome(success=True, message=message).SerializeToString()


async def check_reference(broker: Broker, reference: danube_pb2.SchemaReference) -> None:
    """Raises SchemaMismatch when the registry has no such subject or version."""
    try:
        latest = (await broker.registry.latest(reference.subject)).version.version
    except errors.UnknownSchema as error:
        raise errors.SchemaMismatch(error.message, hint=error.hint) from None
    kind = reference.WhichOneof("version_ref")
    if kind == "pinned_version":
        subject = await broker.registry.subject(reference.subject)
        if subject.version(reference.pinned_version) is None:
            raise errors.SchemaMismatch(f"subject {reference.subject} has no version {reference.pinned_version}")
    if kind == "min_version" and latest < reference.min_version:
        raise errors.SchemaMismatch(
            f"the latest version of {reference.subject} is {latest}, below {reference.min_version}"
        )
