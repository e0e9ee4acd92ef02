"""Protobuf compatibility: whether one .proto file reads what another wrote, and whether a payload is a valid message.

Fields are identified by their numbers. A number keeps its label and a type with the same wire format; a reserved number
is not reused; a required field exists on both sides. Other fields may be added and removed. A payload is a message of
the first type of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from icestream import errors
from icestream.schema.protobuf_source import SCALARS, ProtoField, ProtoFile, ProtoMessage, parse

__all__ = ["ProtoFile", "check_payload", "parse", "unreadable"]

_ALIKE: Final = (
    {"int32", "uint32", "int64", "uint64", "bool", "enum"},
    {"sint32", "sint64"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
)
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_WIRE: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "enum"), _VARINT),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), _EIGHT),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), _FOUR),
}
_DEPTH_MAX: Final = 100


def unreadable(reader: ProtoFile, writer: ProtoFile) -> list[str]:
    """Returns the reasons why `reader` cannot read everything that `writer` writes; empty if it can."""
    return list(_compare(reader, writer))


def _compare(reader: ProtoFile, writer: ProtoFile) -> Iterator[str]:
    for name, written_message in writer.messages.items():
        message = reader.messages.get(name)
        if message is None:
            yield f"{name}: the message was removed"
        else:
            yield from _compare_messages(reader, message, writer, written_message)


def _compare_messages(
    reader: ProtoFile, message: ProtoMessage, writer: ProtoFile, written_message: ProtoMessage
) -> Iterator[str]:
    for number, mine in message.fields.items():
        theirs = written_message.fields.get(number)
        where = f"{message.name}.{mine.name}"
        if theirs is None:
            if mine.label == "required":
                yield f"{where}: is required, and was not declared"
            if any(first <= number <= last for first, last in written_message.reserved):
                yield f"{where}: number {number} is reserved on the other side"
            continue
        if not _is_alike(_type(reader, message, mine), _type(writer, written_message, theirs)):
            yield f"{where}: {mine.type} does not read {theirs.type}"
        if _type(reader, message, mine, is_value=True) != _type(writer, written_message, theirs, is_value=True):
            yield f"{where}: the values of the map have another type"
        if (mine.label == "repeated") != (theirs.label == "repeated"):
            yield f"{where}: is repeated on one side only"
        if mine.label == "required" and theirs.label != "required":
            yield f"{where}: is required, and was optional"
        if mine.oneof != theirs.oneof and ((mine.oneof and theirs.oneof) or len(_fields_of(message, mine.oneof)) > 1):
            yield f"{where}: moved into another oneof"
    for number, theirs in written_message.fields.items():
        if number not in message.fields and theirs.label == "required":
            yield f"{written_message.name}.{theirs.name}: is required in what was written, and not declared"


def _fields_of(message: ProtoMessage, oneof: str) -> list[ProtoField]:
    return [field for field in message.fields.values() if oneof and field.oneof == oneof]


def _type(file: ProtoFile, message: ProtoMessage, field: ProtoField, *, is_value: bool = False) -> str:
    name = field.value_type if is_value else field.type
    if name in SCALARS or not name:
        return name
    full = file.resolve(name, message.name)
    return "enum" if full in file.enums else full


def _is_alike(mine: str, theirs: str) -> bool:
    return mine == theirs or any({mine, theirs} <= group for group in _ALIKE) or (mine, theirs) == ("bytes", "string")


# --- payloads ---------------------------------------------------------------------------------------------------------


def check_payload(file: ProtoFile, payload: bytes) -> None:
    """Raises InvalidInput if the payload is not a message of the first type of the file."""
    _check(file, next(iter(file.messages.values())), payload, 0)


def _check(file: ProtoFile, message: ProtoMessage, data: bytes, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise errors.InvalidInput(f"{message.name}: nested too deep")
    at, field_numbers = 0, set()
    while at < len(data):
        tag, at = _varint(data, at, message.name)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise errors.InvalidInput(f"{message.name}: not a message, there is no field {number}")
        field = message.fields.get(number)
        field_numbers.add(number)
        value, at = _value(data, at, wire, message.name)
        if field is not None:
            _check_field(file, message, field, wire, value, depth)
    missing = [
        field.name
        for field in message.fields.values()
        if field.label == "required" and field.number not in field_numbers
    ]
    if missing:
        raise errors.InvalidInput(f"{message.name}: {missing[0]} is required")


def _check_field(
    file: ProtoFile, message: ProtoMessage, field: ProtoField, wire: int, value: bytes, depth: int
) -> None:
    where = f"{message.name}.{field.name}"
    kind = _type(file, message, field)
    if field.value_type:
        pair = (ProtoField("key", 1, field.type), ProtoField("value", 2, field.value_type))
        kind, entry = "", ProtoMessage(message.name, {part.number: part for part in pair})
    expected_wire = _WIRE.get(kind, _LENGTH)
    if field.label == "repeated" and wire == _LENGTH != expected_wire:
        _check_packed(value, expected_wire, where)
    elif wire != expected_wire:
        raise errors.InvalidInput(f"{where}: not a {field.type}")
    elif field.value_type:
        _check(file, entry, value, depth + 1)
    elif kind == "string":
        _check_utf8(value, where)
    elif kind in file.messages:
        _check(file, file.messages[kind], value, depth + 1)


def _check_packed(data: bytes, wire: int, where: str) -> None:
    at = 0
    while at < len(data):
        at = _value(data, at, wire, where)[1]


def _check_utf8(value: bytes, where: str) -> None:
    try:
        value.decode()
    except UnicodeDecodeError:
        raise errors.InvalidInput(f"{where}: not UTF-8") from None


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128 and value < 2**64:
            return value, at
        shift += 7
    raise errors.InvalidInput(f"{where}: not a message, it is cut off")


def _value(data: bytes, at: int, wire: int, where: str) -> tuple[bytes, int]:
    if wire == _VARINT:
        return b"", _varint(data, at, where)[1]
    if wire == _LENGTH:
        size, at = _varint(data, at, where)
    elif wire in (_EIGHT, _FOUR):
        size = 8 if wire == _EIGHT else 4
    else:
        raise errors.InvalidInput(f"{where}: not a message, there is no wire type {wire}")
    if at + size > len(data):
        raise errors.InvalidInput(f"{where}: not a message, it is cut off")
    return data[at : at + size], at + size
