"""The records of the schema registry in the metadata store.

/schemas/subjects/{subject}            Subject: its versions without their definitions
/schemas/ids/{id}                      SubjectName: all versions of a subject share one id
/schemas/definitions/{id}/{version}    the schema, byte for byte as registered
/schemas/topics/{namespace}/{topic}    TopicSchema
/counters/schema                       ids: never reused
"""

from __future__ import annotations

import msgspec

from icestream.model.topic_name import TopicName
from icestream.schema.kinds import Compatibility, SchemaType, ValidationPolicy

SUBJECTS = "/schemas/subjects/"
IDS = "/schemas/ids/"
DEFINITIONS = "/schemas/definitions/"
TOPIC_SCHEMAS = "/schemas/topics/"


class SchemaVersion(msgspec.Struct, frozen=True):
    """One version of a subject, without its definition."""

    version: int
    type: SchemaType
    fingerprint: str
    created_ms: int
    created_by: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()


class Subject(msgspec.Struct, frozen=True):
    """A subject: its compatibility mode and its versions. The name is in the key."""

    id: int
    compatibility: Compatibility = Compatibility.BACKWARD
    versions: tuple[SchemaVersion, ...] = ()  # rising; empty only after all were deleted
    last_version: int = 0  # version numbers are never reused

    @property
    def latest(self) -> SchemaVersion | None:
        return self.versions[-1] if self.versions else None

    def version(self, number: int) -> SchemaVersion | None:
        return next((version for version in self.versions if version.version == number), None)


class SubjectName(msgspec.Struct, frozen=True):
    """The subject of a schema id."""

    subject: str


class TopicSchema(msgspec.Struct, frozen=True):
    """The subject of a topic, and the policy for messages that violate its schema."""

    subject: str
    schema_id: int
    policy: ValidationPolicy = ValidationPolicy.WARN
    checks_payload: bool = False


def subject_key(subject: str) -> str:
    return f"{SUBJECTS}{subject}"


def id_key(schema_id: int) -> str:
    return f"{IDS}{schema_id}"


def definition_key(schema_id: int, version: int) -> str:
    return f"{DEFINITIONS}{schema_id}/{version}"


def topic_schema_key(topic: TopicName) -> str:
    return f"{TOPIC_SCHEMAS}{topic.namespace}/{topic.name}"
