"""The schema registry: subjects and their versions, which topic has which subject, and whether a message fits.

A subject has one id for all of its versions, which are numbered from 1. What is registered again, byte for byte, is the
version that it was. A new version must be compatible with the last one, in the mode of its subject. The rules are those
of the package `schema`; here they are kept in the metadata store, each change in one transaction.
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
    """One version of a subject; `is_new`: it was registered just now."""

    name: str
    subject: Subject
    version: SchemaVersion
    is_new: bool = False


class SchemaRegistry:
    def __init__(self, store: MetadataStore, topics: TopicRegistry, clock: Clock) -> None:
        self._store = store
        self._topics = topics
        self._clock = clock
        self._of_topics: dict[TopicName, TopicSchema] = {}
        self._parsed: OrderedDict[tuple[int, int], Definition] = OrderedDict()
        self._checked: dict[int, dict[int, Definition]] = {}  # of subjects whose payloads are checked

    async def load(self) -> None:
        for key, entry in await self._store.list_all(TOPIC_SCHEMAS):
            topic = TopicName(*key.removeprefix(TOPIC_SCHEMAS).split("/"))
            if self._topics.find(topic) is None:
                continue  # another node's
            found = self._of_topics[topic] = records.decode(TopicSchema, key, entry.value)
            if found.checks_payload:
                await self._prepare(found.schema_id, found.subject)

    async def follow(self, after: int) -> None:
        """Versions that other nodes register or delete are known to the checks here; until it is cancelled."""
        async for changes in self._store.watch(SUBJECTS, after):
            if isinstance(changes, Resync):
                names = {one.subject for one in self._of_topics.values() if one.schema_id in self._checked}
            else:
                names = {event.key.removeprefix(SUBJECTS) for event in changes.events}
            for name in names:
                await self._look_at(name)

    async def _look_at(self, name: str) -> None:
        _, subject = await self._find(name)
        if subject is None or subject.id not in self._checked:
            return
        known = self._checked[subject.id]
        for number in known.keys() - {one.version for one in subject.versions}:
            known.pop(number, None)
        with contextlib.suppress(errors.UnknownSchema):  # deleted meanwhile: that is told too
            for version in subject.versions:
                if version.version not in known:
                    known[version.version] = await self._definition(subject.id, version)

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
        check_name("subject", name)
        _check_texts(description, created_by, *tags)
        new = define(kind, raw)
        while True:
            entry, subject = await self._find(name)
            known = _same(subject, new) if subject is not None else None
            if subject is not None and known is not None:
                return RegisteredSchema(name, subject, known)
            if subject is not None:
                await self._check_next(name, subject, new)
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
            grown = msgspec.structs.replace(
                subject, versions=(*subject.versions, version), last_version=version.version
            )
            if await self._put(name, entry, grown, Put(definition_key(grown.id, version.version), raw)):
                if grown.id in self._checked:
                    self._checked[grown.id][version.version] = new
                return RegisteredSchema(name, grown, version, is_new=True)

    async def _check_next(self, name: str, subject: Subject, new: Definition) -> None:
        if len(subject.versions) >= limits.SCHEMA_VERSIONS_MAX:
            raise errors.InvalidInput(f"subject {name} has {len(subject.versions)} versions", hint="delete some")
        wrong = await self._incompatible(subject, new, subject.compatibility)
        if wrong:
            raise errors.SchemaIncompatible(
                f"the schema is not {subject.compatibility.value} compatible with version "
                f"{subject.versions[-1].version} of {name}: {'; '.join(wrong)}"[:2000],
                hint="change it, or the mode of the subject",
            )

    async def _incompatible(self, subject: Subject, new: Definition, mode: Compatibility) -> list[str]:
        latest = subject.latest
        if latest is None:
            return []
        return incompatible(await self._definition(subject.id, latest), new, mode)

    async def check_compatibility(
        self, name: str, kind: SchemaType, raw: bytes, mode: Compatibility | None
    ) -> list[str]:
        """Why this may not be the next version; nothing: it may. A subject that is not there takes any."""
        _, subject = await self._find(name)
        if subject is None:
            define(kind, raw)
            return []
        try:
            new = define(kind, raw)
        except errors.InvalidInput as error:
            return [error.message]
        return await self._incompatible(subject, new, mode or subject.compatibility)

    async def subject(self, name: str) -> Subject:
        _, found = await self._find(name)
        if found is None:
            raise _unknown(f"schema subject {name[:100]} is not found")
        return found

    async def subjects(self) -> list[tuple[str, Subject]]:
        found = await self._store.list_all(SUBJECTS)
        return [(key.removeprefix(SUBJECTS), records.decode(Subject, key, entry.value)) for key, entry in found]

    async def latest(self, name: str) -> RegisteredSchema:
        subject = await self.subject(name)
        if subject.latest is None:
            raise _unknown(f"subject {name} has no version any more")
        return RegisteredSchema(name, subject, subject.latest)

    async def by_id(self, schema_id: int, version: int | None) -> RegisteredSchema:
        """The latest version where none is named."""
        key = id_key(schema_id)
        entry = await self._store.get(key)
        if entry is None:
            raise _unknown(f"schema {schema_id} is not found")
        name = records.decode(SubjectName, key, entry.value).subject
        if version is None:
            return await self.latest(name)
        subject = await self.subject(name)
        found = subject.version(version)
        if found is None:
            raise _unknown(f"subject {name} has no version {version}")
        return RegisteredSchema(name, subject, found)

    async def definition(self, found: RegisteredSchema) -> bytes:
        return (await self._definition(found.subject.id, found.version)).raw

    async def delete_version(self, name: str, version: int) -> None:
        while True:
            entry, subject = await self._find(name)
            if subject is None or subject.version(version) is None:
                raise _unknown(f"subject {name[:100]} has no version {version}")
            left = tuple(one for one in subject.versions if one.version != version)
            less = msgspec.structs.replace(subject, versions=left)
            if await self._put(name, entry, less, Delete(definition_key(subject.id, version))):
                self._parsed.pop((subject.id, version), None)
                self._checked.get(subject.id, {}).pop(version, None)
                return

    async def set_compatibility(self, name: str, mode: Compatibility) -> None:
        while True:
            entry, subject = await self._find(name)
            if subject is None:
                raise _unknown(f"schema subject {name[:100]} is not found")
            if await self._put(name, entry, msgspec.structs.replace(subject, compatibility=mode)):
                return

    # --- topics ---

    def of_topic(self, topic: TopicName) -> TopicSchema | None:
        return self._of_topics.get(topic)

    async def configure(
        self, topic: TopicName, name: str, policy: ValidationPolicy, *, checks_payload: bool
    ) -> TopicSchema:
        self._topics.get(topic)
        subject = await self.subject(name)
        return await self._keep(topic, TopicSchema(name, subject.id, policy, checks_payload))

    async def set_policy(self, topic: TopicName, policy: ValidationPolicy, *, checks_payload: bool) -> TopicSchema:
        known = self._of_topics.get(topic)
        if known is None:
            self._topics.get(topic)
            raise _unknown(f"topic {topic} has no schema")
        return await self._keep(topic, msgspec.structs.replace(known, policy=policy, checks_payload=checks_payload))

    async def bind(self, topic: TopicName, name: str) -> None:
        """The first producer with a subject gives it to the topic; one with another subject is refused."""
        known = self._of_topics.get(topic)
        if known is None:
            subject = await self.subject(name)
            await self._keep(topic, TopicSchema(name, subject.id))
        elif known.subject != name:
            raise errors.SchemaMismatch(
                f"topic {topic} has the subject {known.subject}, not {name}", hint="use its subject, or another topic"
            )

    def forget(self, topic: TopicName) -> None:
        """The topic is deleted; with it, in one step, what was written here of it (topic_deletion.py)."""
        self._of_topics.pop(topic, None)

    async def _keep(self, topic: TopicName, found: TopicSchema) -> TopicSchema:
        if found.checks_payload:
            await self._prepare(found.schema_id, found.subject)
        await self._store.put(topic_schema_key(topic), records.encode(found))
        self._of_topics[topic] = found
        return found

    # --- messages ---

    async def _prepare(self, schema_id: int, name: str) -> None:
        """Reads all versions that payloads may be checked against, so that a check need not wait."""
        _, subject = await self._find(name)
        for version in subject.versions if subject is not None else ():
            found = await self._definition(schema_id, version)
            self._checked.setdefault(schema_id, {})[version.version] = found

    def violation(
        self, topic: TopicName, schema_id: int | None, version: int | None, payload: bytes
    ) -> tuple[ValidationPolicy, str] | None:
        """What is wrong with a message, and what its topic wants done about it."""
        wanted = self._of_topics.get(topic)
        if wanted is None or wanted.policy is ValidationPolicy.NONE:
            return None
        why = self._why(wanted, schema_id, version, payload)
        return (wanted.policy, why) if why else None

    def _why(self, wanted: TopicSchema, schema_id: int | None, version: int | None, payload: bytes) -> str:
        if schema_id is None:
            return f"it names no schema; the topic has {wanted.subject}"
        if schema_id != wanted.schema_id:
            return f"schema {schema_id} is not of subject {wanted.subject}"
        if not wanted.checks_payload:
            return ""
        definition = self._checked.get(schema_id, {}).get(version or 0)
        if definition is None:
            return f"subject {wanted.subject} has no version {version}"
        try:
            definition.check(payload)
        except errors.InvalidInput as error:
            return error.message
        return ""

    # --- the store ---

    async def _find(self, name: str) -> tuple[Entry | None, Subject | None]:
        key = subject_key(name)
        entry = await self._store.get(key) if "/" not in name and name else None
        return entry, records.decode(Subject, key, entry.value) if entry is not None else None

    async def _put(self, name: str, entry: Entry | None, subject: Subject, *also: Operation) -> bool:
        """False: somebody else changed it at the same moment."""
        key = subject_key(name)
        compare = Absent(key) if entry is None else AtRevision(key, entry.mod_revision)
        then: list[Operation] = [Put(key, records.encode(subject)), *also]
        if entry is None:
            then.append(Put(id_key(subject.id), records.encode(SubjectName(name))))
        return (await self._store.txn([compare], then)).held

    async def _definition(self, schema_id: int, version: SchemaVersion) -> Definition:
        place = (schema_id, version.version)
        found = self._parsed.get(place)
        if found is None:
            entry = await self._store.get(definition_key(*place))
            if entry is None:
                raise _unknown(f"schema {schema_id} has no version {version.version}")
            found = self._parsed[place] = define(version.type, entry.value)
            while len(self._parsed) > limits.SCHEMAS_PARSED_MAX:
                self._parsed.popitem(last=False)
        self._parsed.move_to_end(place)
        return found


def _same(subject: Subject, new: Definition) -> SchemaVersion | None:
    print_ = fingerprint(new.raw)
    return next((one for one in subject.versions if (one.fingerprint, one.type) == (print_, new.kind)), None)


def _check_texts(*texts: str) -> None:
    if sum(len(text.encode()) for text in texts) > limits.SCHEMA_TEXT_BYTES_MAX:
        raise errors.InvalidInput(
            "description, author and tags are too long", hint=f"{limits.SCHEMA_TEXT_BYTES_MAX} bytes fit"
        )


def _unknown(message: str) -> errors.UnknownSchema:
    return errors.UnknownSchema(message, hint="register it first")
