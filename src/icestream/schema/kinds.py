"""Enumerations of the schema registry: schema types, compatibility modes, validation policies."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from icestream import errors


class SchemaType(Enum):
    BYTES = "bytes"
    STRING = "string"
    NUMBER = "number"
    AVRO = "avro"
    JSON_SCHEMA = "json_schema"
    PROTOBUF = "protobuf"


class Compatibility(Enum):
    """Which versions must be able to read each other's messages when a new version is registered."""

    NONE = "none"
    BACKWARD = "backward"  # the new version reads what the last one wrote
    FORWARD = "forward"  # the last version reads what the new one writes
    FULL = "full"  # both


class ValidationPolicy(Enum):
    """How a message that does not conform to the schema of its topic is treated."""

    NONE = "none"
    WARN = "warn"  # it is stored, and the log says so
    ENFORCE = "enforce"  # it is refused


_ALIASES = {
    "json": SchemaType.JSON_SCHEMA,
    "jsonschema": SchemaType.JSON_SCHEMA,
    "proto": SchemaType.PROTOBUF,
    "int": SchemaType.NUMBER,
    "int64": SchemaType.NUMBER,
    "float": SchemaType.NUMBER,
    "double": SchemaType.NUMBER,
}
Word = TypeVar("Word", bound=Enum)


def schema_type(text: str) -> SchemaType:
    return _ALIASES.get(text.lower()) or _word(SchemaType, "schema type", text)


def compatibility(text: str) -> Compatibility:
    return _word(Compatibility, "compatibility mode", text)


def validation_policy(text: str) -> ValidationPolicy:
    return _word(ValidationPolicy, "validation policy", text)


def _word(kind: type[Word], kind_name: str, text: str) -> Word:
    """Returns the member with this value, in any case. Raises InvalidInput, which lists the allowed values."""
    try:
        return kind(text.lower())
    except ValueError:
        names = ", ".join(member.value for member in kind)
        raise errors.InvalidInput(f"{text[:40]!r} is not a {kind_name}", hint=f"allowed: {names}") from None
