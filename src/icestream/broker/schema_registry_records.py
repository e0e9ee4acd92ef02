"""What the schema registry writes into the metadata store.

/schemas/subjects/{subject}            Subject: its versions without their definitions
/schemas/ids/{id}                      SubjectName: one id for all versions of a subject
/schemas/definitions/{id}/{version}    the bytes as they were registered
/schemas/topics/{namespace}/{topic}    TopicSchema
/counters/schema                       ids: never used twice
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
    version: int
    type: SchemaType
    fingerprint: str
    created_ms: int
    created_by: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()


class Subject(msgspec.Struct, frozen=True):
    id: int
    compatibility: Compatibility = Compatibility.BACKWARD
    versions: tuple[SchemaVersion, ...] = ()  # rising; never empty, but after all were deleted
    last_version: int = 0  # numbers are not used twice

    @property
    def latest(self) -> SchemaVersion | None:
        return self.versions[-1] if self.versions else None

    def version(self, number: int) -> SchemaVersion | None:
        return next((one for one in self.versions if one.version == number), None)


class SubjectName(msgspec.Struct, frozen=True):
    subject: str


class TopicSchema(msgspec.Struct, frozen=True):
    """The subject of a topic, and what becomes of messages that do not fit."""

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
