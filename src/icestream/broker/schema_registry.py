"""The schema registry: subjects and their versions, the subject of each topic, and the validation of messages.

A subject has one id for all of its versions, which are numbered from 1. Registering the same bytes again returns the
existing version. A new version must be compatible with the last one, in the mode of its subject. The rules are those of
the package `schema`; this module stores the subjects in the metadata store, each change in one transaction.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import NamedTuple

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.schema_registry_records import (
    SUBJECTS,
    TOPIC_SCHEMAS,
    SchemaVersion,
    Subject,
    SubjectName,
    TopicSchema,
    definition_key,
    id_key,
    subject_key,
    topic_schema_key,
)
from icestream.broker.topic_registry import TopicRegistry
from icestream.metadata.command import Absent, AtRevision, Delete, Operation, Put
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Resync
from icestream.model.topic_name import TopicName, check_name
from icestream.runtime.clock import Clock
from icestream.schema.definition import Definition, define, fingerprint, incompatible
from icestream.schema.kinds import Compatibility, SchemaType, ValidationPolicy


class RegisteredSchema(NamedTuple):
    """One version of a subject. `is_new`: this call has registered it."""

    name: str
    subject: Subject
    version: SchemaVersion
    is_new: bool = False


class SchemaRegistry:
    """The subjects of the cluster, and the schemas of the topics of this node."""

    def __init__(self, store: MetadataStore, topics: TopicRegistry, clock: Clock) -> None:
        self._store = store
        self._topics = topics
        self._clock = clock
        self._of_topics: dict[TopicName, TopicSchema] = {}
        self._parsed: OrderedDict[tuple[int, int], Definition] = OrderedDict()
        self._validated: dict[int, dict[int, Definition]] = {}  # all versions of subjects whose payloads are validated

    async def load(self) -> None:
        """Loads the schemas of this node's topics, with the definitions that payloads are validated against."""
        for key, entry in await self._store.list_all(TOPIC_SCHEMAS):
            topic = TopicName(*key.removeprefix(TOPIC_SCHEMAS).split("/"))
            if self._topics.find(topic) is None:
                continue  # a topic of another node
            await self._load_topic(topic, key, entry)

    async def load_topic(self, topic: TopicName) -> None:
        """Loads the schema of a topic that came back, if it has one."""
        key = topic_schema_key(topic)
        if (entry := await self._store.get(key)) is not None:
            await self._load_topic(topic, key, entry)

    async def _load_topic(self, topic: TopicName, key: str, entry: Entry) -> None:
        topic_schema = self._of_topics[topic] = records.decode(TopicSchema, key, entry.value)
        if topic_schema.checks_payload:
            await self._load_versions(topic_schema.schema_id, topic_schema.subject)

    async def follow(self, after: int) -> None:
        """Applies versions that other nodes register or delete after this revision, until cancelled."""
        async for changes in self._store.watch(SUBJECTS, after):
            if isinstance(changes, Resync):
                names = {schema.subject for schema in self._of_topics.values() if schema.schema_id in self._validated}
            else:
                names = {event.key.removeprefix(SUBJECTS) for event in changes.events}
            for name in names:
                await self._refresh_versions(name)

    async def _refresh_versions(self, name: str) -> None:
        """Brings the loaded definitions of a subject up to date, if payloads are validated against it here."""
        _, subject = await self._find(name)
        if subject is None or subject.id not in self._validated:
            return
        loaded = self._validated[subject.id]
        for number in loaded.keys() - {version.version for version in subject.versions}:
            loaded.pop(number, None)
        with contextlib.suppress(errors.UnknownSchema):  # deleted meanwhile: another event follows
            for version in subject.versions:
                if version.version not in loaded:
                    loaded[version.version] = await self._definition(subject.id, version)

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
        """Registers a schema as the next version of a subject, or returns the version that has the same bytes.

        Raises InvalidInput, SchemaIncompatible.
        """
        check_name("subject", name)
        _check_texts(description, created_by, *tags)
        new = define(kind, raw)
        while True:  # again after a concurrent change of the subject: the new version is checked against that one
            entry, subject = await self._find(name)
            existing = _find_same(subject, new) if subject is not None else None
            if subject is not None and existing is not None:
                return RegisteredSchema(name, subject, existing)
            if subject is not None:
                await self._check_next_version(name, subject, new)
            else:
                subject = Subject(await self._store.allocate_id("schema"))
            version = SchemaVersion(
                subject.last_version + 1,
                kind,
                new.fingerprint,
                self._clock.wall_us() // 1000,
                created_by,
                description,
                tags,
            )
            extended = msgspec.structs.replace(
                subject, versions=(*subject.versions, version), last_version=version.version
            )
            # The definition in the same transaction: a version without its definition could not be used or repaired.
            if await self._put(name, entry, extended, Put(definition_key(extended.id, version.version), raw)):
                if extended.id in self._validated:
                    self._validated[extended.id][version.version] = new
                return RegisteredSchema(name, extended, version, is_new=True)

    async def _check_next_version(self, name: str, subject: Subject, new: Definition) -> None:
        """Raises InvalidInput if the subject has too many versions, SchemaIncompatible."""
        if len(subject.versions) >= limits.SCHEMA_VERSIONS_MAX:
            raise errors.InvalidInput(f"subject {name} has {len(subject.versions)} versions", hint="delete some")
        conflicts = await self._find_conflicts(subject, new, subject.compatibility)
        if conflicts:
            raise errors.SchemaIncompatible(
                f"the schema is not {subject.compatibility.value} compatible with version "
                f"{subject.versions[-1].version} of {name}: {'; '.join(conflicts)}"[:2000],
                hint="change it, or the mode of the subject",
            )

    async def _find_conflicts(self, subject: Subject, new: Definition, mode: Compatibility) -> list[str]:
        """The reasons why a schema is not compatible with the latest version of a subject; empty if it is."""
        latest = subject.latest
        if latest is None:
            return []
        return incompatible(await self._definition(subject.id, latest), new, mode)

    async def check_compatibility(
        self, name: str, kind: SchemaType, raw: bytes, mode: Compatibility | None
    ) -> list[str]:
        """The reasons why a schema cannot be the next version; empty if it can, and for an absent subject."""
        _, subject = await self._find(name)
        if subject is None:
            define(kind, raw)  # raises InvalidInput: an invalid schema is an error of the call here, not a conflict
            return []
        try:
            new = define(kind, raw)
        except errors.InvalidInput as error:
            return [error.message]
        return await self._find_conflicts(subject, new, mode or subject.compatibility)

    async def subject(self, name: str) -> Subject:
        """The subject of this name. Raises UnknownSchema."""
        _, subject = await self._find(name)
        if subject is None:
            raise _unknown(f"schema subject {name[:100]} is not found")
        return subject

    async def subjects(self) -> list[tuple[str, Subject]]:
        """All subjects with their names, in order."""
        entries = await self._store.list_all(SUBJECTS)
        return [(key.removeprefix(SUBJECTS), records.decode(Subject, key, entry.value)) for key, entry in entries]

    async def latest(self, name: str) -> RegisteredSchema:
        """The latest version of a subject. Raises UnknownSchema."""
        subject = await self.subject(name)
        if subject.latest is None:
            raise _unknown(f"subject {name} has no version any more")
        return RegisteredSchema(name, subject, subject.latest)

    async def by_id(self, schema_id: int, version: int | None) -> RegisteredSchema:
        """A version by schema id; the latest if `version` is None. Raises UnknownSchema."""
        key = id_key(schema_id)
        entry = await self._store.get(key)
        if entry is None:
            raise unknown_schema(schema_id)
        name = records.decode(SubjectName, key, entry.value).subject
        if version is None:
            return await self.latest(name)
        subject = await self.subject(name)
        schema_version = subject.version(version)
        if schema_version is None:
            raise _unknown(f"subject {name} has no version {version}")
        return RegisteredSchema(name, subject, schema_version)

    async def name_of(self, schema_id: int) -> str | None:
        """The subject of a schema id; None if there is none."""
        key = id_key(schema_id)
        entry = await self._store.get(key)
        return records.decode(SubjectName, key, entry.value).subject if entry is not None else None

    async def definition(self, registered: RegisteredSchema) -> bytes:
        """The bytes of a version as they were registered."""
        return (await self._definition(registered.subject.id, registered.version)).raw

    async def delete_version(self, name: str, version: int) -> None:
        """Deletes a version; its number is never used again. Raises UnknownSchema."""
        while True:
            entry, subject = await self._find(name)
            if subject is None or subject.version(version) is None:
                raise _unknown(f"subject {name[:100]} has no version {version}")
            remaining = tuple(other for other in subject.versions if other.version != version)
            reduced = msgspec.structs.replace(subject, versions=remaining)
            if await self._put(name, entry, reduced, Delete(definition_key(subject.id, version))):
                self._parsed.pop((subject.id, version), None)
                self._validated.get(subject.id, {}).pop(version, None)
                return

    async def set_compatibility(self, name: str, mode: Compatibility) -> None:
        """Sets the compatibility mode for the next versions of a subject. Raises UnknownSchema."""
        while True:
            entry, subject = await self._find(name)
            if subject is None:
                raise _unknown(f"schema subject {name[:100]} is not found")
            if await self._put(name, entry, msgspec.structs.replace(subject, compatibility=mode)):
                return

    # --- topics ---

    @property
    def has_topics(self) -> bool:
        """True if some topic of this node has a schema."""
        return bool(self._of_topics)

    def of_topic(self, topic: TopicName) -> TopicSchema | None:
        """The schema of a topic of this node; None if it has none."""
        return self._of_topics.get(topic)

    async def configure(
        self, topic: TopicName, name: str, policy: ValidationPolicy, *, checks_payload: bool
    ) -> TopicSchema:
        """Sets subject and validation policy of a topic. Raises UnknownTopic, TopicElsewhere, UnknownSchema."""
        self._topics.get(topic)
        subject = await self.subject(name)
        return await self._set_topic_schema(topic, TopicSchema(name, subject.id, policy, checks_payload))

    async def set_policy(self, topic: TopicName, policy: ValidationPolicy, *, checks_payload: bool) -> TopicSchema:
        """Changes the validation policy of a topic. Raises UnknownSchema if it has no subject, UnknownTopic."""
        current = self._of_topics.get(topic)
        if current is None:
            self._topics.get(topic)  # a topic that does not exist is another error than one without a schema
            raise _unknown(f"topic {topic} has no schema")
        changed = msgspec.structs.replace(current, policy=policy, checks_payload=checks_payload)
        return await self._set_topic_schema(topic, changed)

    async def bind(self, topic: TopicName, name: str) -> None:
        """Binds a topic to the subject of its first producer that names one. Raises SchemaMismatch for another."""
        current = self._of_topics.get(topic)
        if current is None:
            subject = await self.subject(name)
            await self._set_topic_schema(topic, TopicSchema(name, subject.id))
        elif current.subject != name:
            raise errors.SchemaMismatch(
                f"topic {topic} has the subject {current.subject}, not {name}", hint="use its subject, or another topic"
            )

    def forget(self, topic: TopicName) -> None:
        """Forgets the schema of a deleted topic. Its record is deleted with the topic's (topic_deletion.py)."""
        self._of_topics.pop(topic, None)

    async def _set_topic_schema(self, topic: TopicName, topic_schema: TopicSchema) -> TopicSchema:
        """Stores and applies the schema of a topic; its definitions are loaded before the first batch needs them."""
        if topic_schema.checks_payload:
            await self._load_versions(topic_schema.schema_id, topic_schema.subject)
        await self._store.put(topic_schema_key(topic), records.encode(topic_schema))
        self._of_topics[topic] = topic_schema
        return topic_schema

    # --- messages ---

    async def _load_versions(self, schema_id: int, name: str) -> None:
        """Loads all versions that payloads may be validated against, so that a validation never waits."""
        _, subject = await self._find(name)
        for version in subject.versions if subject is not None else ():
            definition = await self._definition(schema_id, version)
            self._validated.setdefault(schema_id, {})[version.version] = definition

    def find_violation(
        self, topic: TopicName, schema_id: int | None, version: int | None, payload: bytes
    ) -> tuple[ValidationPolicy, str] | None:
        """The validation policy of the topic and the reason why a message violates its schema; None if it does not."""
        topic_schema = self._of_topics.get(topic)
        # Only what is loaded is consulted: publishing must not wait for the metadata store.
        if topic_schema is None or topic_schema.policy is ValidationPolicy.NONE:
            return None
        reason = self._violation_reason(topic_schema, schema_id, version, payload)
        return (topic_schema.policy, reason) if reason else None

    def _violation_reason(
        self, topic_schema: TopicSchema, schema_id: int | None, version: int | None, payload: bytes
    ) -> str:
        """Why a message violates the schema; empty if it does not."""
        if schema_id is None:
            return f"it names no schema; the topic has {topic_schema.subject}"
        if schema_id != topic_schema.schema_id:
            return f"schema {schema_id} does not belong to subject {topic_schema.subject}"
        if not topic_schema.checks_payload:
            return ""
        definition = self._validated.get(schema_id, {}).get(version or 0)
        if definition is None:
            return f"subject {topic_schema.subject} has no version {version}"
        try:
            definition.check(payload)
        except errors.InvalidInput as error:
            return error.message
        return ""

    # --- the store ---

    async def _find(self, name: str) -> tuple[Entry | None, Subject | None]:
        """The entry and the subject of this name; both None if it does not exist."""
        key = subject_key(name)
        # An invalid name must not reach the store: with a slash it could be the key of another record.
        entry = await self._store.get(key) if "/" not in name and name else None
        return entry, records.decode(Subject, key, entry.value) if entry is not None else None

    async def _put(self, name: str, entry: Entry | None, subject: Subject, *also: Operation) -> bool:
        """Writes a subject and further operations in one transaction. False if it was changed concurrently."""
        key = subject_key(name)
        compare = Absent(key) if entry is None else AtRevision(key, entry.mod_revision)
        operations: list[Operation] = [Put(key, records.encode(subject)), *also]
        if entry is None:
            operations.append(Put(id_key(subject.id), records.encode(SubjectName(name))))
        return (await self._store.txn([compare], operations)).held

    async def _definition(self, schema_id: int, version: SchemaVersion) -> Definition:
        """The parsed definition of a version, from a bounded cache. Raises UnknownSchema."""
        cache_key = (schema_id, version.version)
        definition = self._parsed.get(cache_key)
        if definition is None:
            entry = await self._store.get(definition_key(*cache_key))
            if entry is None:
                raise _unknown(f"schema {schema_id} has no version {version.version}")
            definition = self._parsed[cache_key] = define(version.type, entry.value)
            while len(self._parsed) > limits.SCHEMAS_PARSED_MAX:
                self._parsed.popitem(last=False)
        self._parsed.move_to_end(cache_key)
        return definition


def _find_same(subject: Subject, new: Definition) -> SchemaVersion | None:
    """The version of a subject that was registered with the same bytes and the same kind; None if there is none."""
    identity = (fingerprint(new.raw), new.kind)
    return next((version for version in subject.versions if (version.fingerprint, version.type) == identity), None)


def _check_texts(*texts: str) -> None:
    """Raises InvalidInput if the texts beside a schema are too long together."""
    if sum(len(text.encode()) for text in texts) > limits.SCHEMA_TEXT_BYTES_MAX:
        raise errors.InvalidInput(
            "description, author and tags are too long", hint=f"at most {limits.SCHEMA_TEXT_BYTES_MAX} bytes together"
        )


def unknown_schema(schema_id: int) -> errors.UnknownSchema:
    return _unknown(f"schema {schema_id} is not found")


def _unknown(message: str) -> errors.UnknownSchema:
    return errors.UnknownSchema(message, hint="register it first")
