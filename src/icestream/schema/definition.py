"""A registered schema: parsed once, compared with other versions, and applied to payloads.

The definition is kept byte for byte as it was registered; its fingerprint is the SHA-256 of these bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from icestream import errors, limits
from icestream.schema import avro_schema, json_schema, protobuf
from icestream.schema.kinds import Compatibility, SchemaType


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    kind: SchemaType
    raw: bytes
    parsed: Any
    _fits: Callable[[bytes], None]

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.raw)

    def check(self, payload: bytes) -> None:
        """Raises InvalidInput if the payload does not conform to the schema."""
        self._fits(payload)


def fingerprint(raw: bytes) -> str:
    return sha256(raw).hexdigest()


def define(kind: SchemaType, raw: bytes) -> Definition:
    """Parses a schema definition. Raises InvalidInput if it is not a schema of that type."""
    if len(raw) > limits.SCHEMA_BYTES_MAX:
        raise errors.InvalidInput(
            f"schema too large: {len(raw)} bytes", hint=f"the limit is {limits.SCHEMA_BYTES_MAX} bytes"
        )
    match kind:
        case SchemaType.AVRO:
            return Definition(kind, raw, avro_schema.parse(raw), _avro_check(raw))
        case SchemaType.JSON_SCHEMA:
            return Definition(kind, raw, json_schema.parse(raw), _json_check(raw))
        case SchemaType.PROTOBUF:
            return _protobuf(raw)
        case SchemaType.STRING:
            return Definition(kind, raw, None, _check_text)
        case SchemaType.NUMBER:
            return Definition(kind, raw, None, _check_number)
    return Definition(kind, raw, None, lambda payload: None)


def _avro_check(raw: bytes) -> Callable[[bytes], None]:
    import fastavro
    import orjson

    try:
        schema = fastavro.parse_schema(orjson.loads(raw))
    except Exception as error:  # noqa: BLE001 (fastavro and jsonschema raise any kind of error for an invalid schema)
        raise errors.InvalidInput(f"not an Avro schema: {error}", hint="send the .avsc as it is") from None

    def check(payload: bytes) -> None:
        stream = io.BytesIO(payload)
        try:
            fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:  # noqa: BLE001 (fastavro raises any kind of error for an invalid payload)
            raise errors.InvalidInput(f"payload does not match the Avro schema: {error!r}") from None
        if stream.tell() != len(payload):
            raise errors.InvalidInput(f"{len(payload) - stream.tell()} bytes after the end of the Avro value")

    return check


def _json_check(raw: bytes) -> Callable[[bytes], None]:
    import jsonschema_rs
    import orjson

    try:
        validator = jsonschema_rs.validator_for(orjson.loads(raw))
    except Exception as error:  # noqa: BLE001 (fastavro and jsonschema raise any kind of error for an invalid schema)
        raise errors.InvalidInput(f"not a JSON Schema: {error}", hint="send the schema as it is") from None

    def check(payload: bytes) -> None:
        try:
            document = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            raise errors.InvalidInput(f"not JSON: {error}") from None
        try:
            validator.validate(document)
        except jsonschema_rs.ValidationError as error:
            where = ".".join(map(str, error.instance_path)) or "$"
            raise errors.InvalidInput(f"{where}: {error.message}"[:1000]) from None

    return check


def _protobuf(raw: bytes) -> Definition:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise errors.InvalidInput("a Protobuf schema is the text of a .proto file", hint="send the file") from None
    file = protobuf.parse(text)
    return Definition(SchemaType.PROTOBUF, raw, file, lambda payload: protobuf.check_payload(file, payload))


def _check_text(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise errors.InvalidInput("not UTF-8") from None


def _check_number(payload: bytes) -> None:
    """Accepts four or eight bytes, or decimal digits."""
    if len(payload) in (4, 8):
        return
    try:
        float(payload.decode())
    except ValueError:
        raise errors.InvalidInput("not a number: four or eight bytes, or its digits") from None


_UNREADABLE: dict[SchemaType, Callable[[Any, Any], list[str]]] = {
    SchemaType.AVRO: avro_schema.unreadable,
    SchemaType.JSON_SCHEMA: json_schema.unreadable,
    SchemaType.PROTOBUF: protobuf.unreadable,
}


def incompatible(last: Definition, new: Definition, mode: Compatibility) -> list[str]:
    """Returns why the new version violates the compatibility mode; empty if it does not."""
    if mode is Compatibility.NONE:
        return []
    if last.kind is not new.kind:
        return [f"the type of the schema changes from {last.kind.value} to {new.kind.value}"]
    unreadable = _UNREADABLE.get(new.kind)
    if unreadable is None:
        return []
    reasons: list[str] = []
    try:
        if mode in (Compatibility.BACKWARD, Compatibility.FULL):
            reasons += [f"backward: {reason}" for reason in unreadable(new.parsed, last.parsed)]
        if mode in (Compatibility.FORWARD, Compatibility.FULL):
            reasons += [f"forward: {reason}" for reason in unreadable(last.parsed, new.parsed)]
    except RecursionError:
        raise json_schema.too_complex() from None
    return reasons[: limits.SCHEMA_ERRORS_MAX]
