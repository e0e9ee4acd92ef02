"""Danube's schema registry as a handler table. The broker enforces the rules (broker/schema_registry.py)."""

from __future__ import annotations

from icestream import errors
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.guarded_schemas import GuardedSchemas
from icestream.broker.schema_registry import RegisteredSchema
from icestream.broker.schema_registry_records import SchemaVersion
from icestream.frontends.danube.handlers import Call, HandlerTable, decode
from icestream.frontends.danube.partition_names import base_name
from icestream.frontends.danube.wire import danube_pb2
from icestream.frontends.danube.wire import registry_pb2 as pb
from icestream.schema.kinds import compatibility, schema_type, validation_policy


class SchemaHandlers:
    """Handlers of the service SchemaRegistry: each decodes its request, calls the registry and encodes the result."""

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
        registered = await call.client.schemas.register(
            request.subject,
            schema_type(request.schema_type),
            request.schema_definition,
            description=request.description,
            created_by=request.created_by,
            tags=tuple(request.tags),
        )
        return pb.RegisterSchemaResponse(
            schema_id=registered.subject.id,
            version=registered.version.version,
            is_new_version=registered.is_new,
            fingerprint=_fingerprint(registered.version),
        ).SerializeToString()

    async def get(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.GetSchemaRequest, raw)
        version = request.version if request.HasField("version") else None
        return await _schema_response(call.client.schemas, await call.client.schemas.by_id(request.schema_id, version))

    async def latest(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.GetLatestSchemaRequest, raw)
        return await _schema_response(call.client.schemas, await call.client.schemas.latest(request.subject))

    async def versions(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.ListVersionsRequest, raw)
        subject = await call.client.schemas.subject(request.subject)
        infos = [
            pb.SchemaVersionInfo(
                version=version.version,
                created_at=version.created_ms,
                created_by=version.created_by,
                description=version.description,
                fingerprint=_fingerprint(version),
                schema_id=subject.id,
            )
            for version in subject.versions
        ]
        return pb.ListVersionsResponse(versions=infos).SerializeToString()

    async def check(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.CheckCompatibilityRequest, raw)
        mode = compatibility(request.compatibility_mode) if request.HasField("compatibility_mode") else None
        problems = await call.client.schemas.check_compatibility(
            request.subject, schema_type(request.schema_type), request.new_schema_definition, mode
        )
        return pb.CheckCompatibilityResponse(is_compatible=not problems, errors=problems).SerializeToString()

    async def delete(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.DeleteSchemaVersionRequest, raw)
        await call.client.schemas.delete_version(request.subject, request.version)
        return _success(f"version {request.version} of {request.subject} is deleted")

    async def set_mode(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.SetCompatibilityModeRequest, raw)
        mode = compatibility(request.compatibility_mode)
        await call.client.schemas.set_compatibility(request.subject, mode)
        return _success(f"subject {request.subject} now has the compatibility mode {mode.value}")

    async def subjects(self, raw: bytes, call: Call) -> bytes:
        decode(pb.ListSubjectsRequest, raw)
        infos = []
        for name, subject in await call.client.schemas.subjects():
            latest = subject.latest
            infos.append(
                pb.SubjectInfo(
                    subject=name,
                    schema_type=latest.type.value if latest is not None else "",
                    latest_version=latest.version if latest is not None else 0,
                    compatibility_mode=subject.compatibility.value,
                    schema_id=subject.id,
                    tags=latest.tags if latest is not None else (),
                )
            )
        return pb.ListSubjectsResponse(subjects=infos).SerializeToString()

    # --- topics ---

    async def configure(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.ConfigureTopicSchemaRequest, raw)
        policy = validation_policy(request.validation_policy)
        checks = request.enable_payload_validation
        await call.client.schemas.configure(
            base_name(request.topic_name), request.schema_subject, policy, checks_payload=checks
        )
        return _success(f"topic {request.topic_name} has the subject {request.schema_subject}")

    async def set_policy(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.UpdateTopicValidationPolicyRequest, raw)
        policy = validation_policy(request.validation_policy)
        await call.client.schemas.set_policy(
            base_name(request.topic_name), policy, checks_payload=request.enable_payload_validation
        )
        return _success(f"the policy of topic {request.topic_name} is {policy.value}")

    async def topic(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.GetTopicSchemaConfigRequest, raw)
        name = base_name(request.topic_name)
        schema = call.client.schemas.of_topic(name)
        if schema is None:
            call.client.topic(name)  # raises UnknownTopic: another error than a topic without a schema
            raise errors.UnknownSchema(f"topic {name} has no schema", hint="configure a schema, or produce with one")
        return pb.GetTopicSchemaConfigResponse(
            schema_subject=schema.subject,
            validation_policy=schema.policy.value,
            enable_payload_validation=schema.checks_payload,
            schema_id=schema.schema_id,
        ).SerializeToString()


async def _schema_response(schemas: GuardedSchemas, registered: RegisteredSchema) -> bytes:
    version = registered.version
    return pb.GetSchemaResponse(
        schema_id=registered.subject.id,
        version=version.version,
        subject=registered.name,
        schema_type=version.type.value,
        schema_definition=await schemas.definition(registered),
        description=version.description,
        created_at=version.created_ms,
        created_by=version.created_by,
        tags=version.tags,
        fingerprint=_fingerprint(version),
        compatibility_mode=registered.subject.compatibility.value,
    ).SerializeToString()


def _fingerprint(version: SchemaVersion) -> str:
    """The fingerprint in Danube's form."""
    return f"sha256:{version.fingerprint}"


def _success(message: str) -> bytes:
    return pb.Outcome(success=True, message=message).SerializeToString()


async def check_reference(broker: GuardedBroker, reference: danube_pb2.SchemaReference) -> None:
    """Raises SchemaMismatch if the registry lacks the subject or version."""
    try:
        latest = (await broker.schemas.latest(reference.subject)).version.version
    except errors.UnknownSchema as error:
        raise errors.SchemaMismatch(error.message, hint=error.hint) from None
    kind = reference.WhichOneof("version_ref")
    if kind == "pinned_version":
        subject = await broker.schemas.subject(reference.subject)
        if subject.version(reference.pinned_version) is None:
            raise errors.SchemaMismatch(
                f"subject {reference.subject} has no version {reference.pinned_version}",
                hint=f"the latest is {latest}; ListVersions lists all",
            )
    if kind == "min_version" and latest < reference.min_version:
        raise errors.SchemaMismatch(
            f"the latest version of {reference.subject} is {latest}, below {reference.min_version}",
            hint="register a newer version, or lower min_version",
        )
