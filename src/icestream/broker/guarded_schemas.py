"""The schema registry for one session: each use case asks for its right, then calls the registry (schema_registry.py).

describe schema     everything that only shows; a subject that may not be described is absent
alter schema        registering and deleting versions, the compatibility mode
alter topic         the schema and the validation policy of a topic
describe topic      the schema of a topic
"""

from __future__ import annotations

from icestream import errors
from icestream.broker.schema_registry import RegisteredSchema, SchemaRegistry, unknown_schema
from icestream.broker.schema_registry_records import Subject, TopicSchema
from icestream.model.topic_name import TopicName
from icestream.schema.kinds import Compatibility, SchemaType, ValidationPolicy
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.resource import schema_resource, topic_resource


class GuardedSchemas:
    """The use cases of SchemaRegistry, with its docstrings; each may raise PermissionDenied too."""

    def __init__(self, registry: SchemaRegistry, session: AccessSession) -> None:
        self._registry = registry
        self._session = session

    # --- subjects ---

    async def register(
        self,
        name: str,
        kind: SchemaType,
        raw: bytes,
        *,
        description: str = "",
        created_by: str = "",
        tags: tuple[str, ...] = (),
    ) -> RegisteredSchema:
        self._session.require(Action.ALTER, schema_resource(name))
        return await self._registry.register(name, kind, raw, description=description, created_by=created_by, tags=tags)

    async def check_compatibility(
        self, name: str, kind: SchemaType, raw: bytes, mode: Compatibility | None
    ) -> list[str]:
        self._session.require(Action.DESCRIBE, schema_resource(name))
        return await self._registry.check_compatibility(name, kind, raw, mode)

    async def subject(self, name: str) -> Subject:
        self._session.require(Action.DESCRIBE, schema_resource(name))
        return await self._registry.subject(name)

    async def subjects(self) -> list[tuple[str, Subject]]:
        """The subjects that may be described."""
        subjects = await self._registry.subjects()
        return [
            (name, subject)
            for name, subject in subjects
            if self._session.is_allowed(Action.DESCRIBE, schema_resource(name))
        ]

    async def latest(self, name: str) -> RegisteredSchema:
        self._session.require(Action.DESCRIBE, schema_resource(name))
        return await self._registry.latest(name)

    async def by_id(self, schema_id: int, version: int | None) -> RegisteredSchema:
        """Raises UnknownSchema also for a subject that may not be described: the id tells no name."""
        try:
            registered = await self._registry.by_id(schema_id, version)
        except errors.UnknownSchema:
            name = await self._registry.name_of(schema_id)
            if name is not None and self._session.is_allowed(Action.DESCRIBE, schema_resource(name)):
                raise
            raise unknown_schema(schema_id) from None
        if not self._session.is_allowed(Action.DESCRIBE, schema_resource(registered.name)):
            raise unknown_schema(schema_id)
        return registered

    async def definition(self, registered: RegisteredSchema) -> bytes:
        self._session.require(Action.DESCRIBE, schema_resource(registered.name))
        return await self._registry.definition(registered)

    async def delete_version(self, name: str, version: int) -> None:
        self._session.require(Action.ALTER, schema_resource(name))
        await self._registry.delete_version(name, version)

    async def set_compatibility(self, name: str, mode: Compatibility) -> None:
        self._session.require(Action.ALTER, schema_resource(name))
        await self._registry.set_compatibility(name, mode)

    # --- topics ---

    def of_topic(self, topic: TopicName) -> TopicSchema | None:
        """None also for a topic that may not be described."""
        is_visible = self._session.is_allowed(Action.DESCRIBE, topic_resource(topic))
        return self._registry.of_topic(topic) if is_visible else None

    async def configure(
        self, topic: TopicName, name: str, policy: ValidationPolicy, *, checks_payload: bool
    ) -> TopicSchema:
        self._session.require(Action.ALTER, topic_resource(topic))
        self._session.require(Action.DESCRIBE, schema_resource(name))
        return await self._registry.configure(topic, name, policy, checks_payload=checks_payload)

    async def set_policy(self, topic: TopicName, policy: ValidationPolicy, *, checks_payload: bool) -> TopicSchema:
        self._session.require(Action.ALTER, topic_resource(topic))
        return await self._registry.set_policy(topic, policy, checks_payload=checks_payload)

    async def bind(self, topic: TopicName, name: str) -> None:
        """Needs `alter` on the topic only where it binds one: a producer of a bound topic names its subject too."""
        if self._registry.of_topic(topic) is None:
            self._session.require(Action.ALTER, topic_resource(topic))
        self._session.require(Action.DESCRIBE, schema_resource(name))
        await self._registry.bind(topic, name)
