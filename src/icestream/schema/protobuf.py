"""Protobuf: which file reads what another one wrote, and whether bytes are a message of one.

Fields are known by their numbers. A number keeps a type that is the same on the wire, and its label; a number that was
reserved is not used again; a required field is there in both. Fields may come and go otherwise. A payload is a message
of the first type of the file.
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
    """Why `reader` does not read all that `writer` writes. Nothing: it does."""
    return list(_compare(reader, writer))


def _compare(reader: ProtoFile, writer: ProtoFile) -> Iterator[str]:
    for name, written in writer.messages.items():
        known = reader.messages.get(name)
        if known is None:
            yield f"{name}: there is no such message any more"
        else:
            yield from _compare_messages(reader, known, writer, written)


def _compare_messages(
    reader: ProtoFile, known: ProtoMessage, writer: ProtoFile, written: ProtoMessage
) -> Iterator[str]:
    for number, mine in known.fields.items():
        theirs = written.fields.get(number)
        where = f"{known.name}.{mine.name}"
        if theirs is None:
            if mine.label == "required":
                yield f"{where}: is required, and not written"
            if any(first <= number <= last for first, last in written.reserved):
                yield f"{where}: number {number} is reserved on the other side"
            continue
        if not _is_alike(_type(reader, known, mine), _type(writer, written, theirs)):
            yield f"{where}: {mine.type} does not read {theirs.type}"
        if _type(reader, known, mine, is_value=True) != _type(writer, written, theirs, is_value=True):
            yield f"{where}: the values of the map have another type"
        if (mine.label == "repeated") != (theirs.label == "repeated"):
            yield f"{where}: is repeated on one side only"
        if mine.label == "required" and theirs.label != "required":
            yield f"{where}: is required, and was not"
        if mine.oneof != theirs.oneof and ((mine.oneof and theirs.oneof) or len(_of(known, mine.oneof)) > 1):
            yield f"{where}: moved into another oneof"
    for number, theirs in written.fields.items():
        if number not in known.fields and theirs.label == "required":
            yield f"{written.name}.{theirs.name}: is always there, and not known"


def _of(message: ProtoMessage, oneof: str) -> list[ProtoField]:
    return [one for one in message.fields.values() if oneof and one.oneof == oneof]


def _type(file: ProtoFile, message: ProtoMessage, one: ProtoField, *, is_value: bool = False) -> str:
    name = one.value_type if is_value else one.type
    if name in SCALARS or not name:
        return name
    full = file.resolve(name, message.name)
    return "enum" if full in file.enums else full


def _is_alike(mine: str, theirs: str) -> bool:
    return mine == theirs or any({mine, theirs} <= group for group in _ALIKE) or (mine, theirs) == ("bytes", "string")


# --- payloads ---------------------------------------------------------------------------------------------------------


def check_payload(file: ProtoFile, payload: bytes) -> None:
    """Raises InvalidInput when the bytes are no message of the first type."""
    _check(file, next(iter(file.messages.values())), payload, 0)


def _check(file: ProtoFile, message: ProtoMessage, data: bytes, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise errors.InvalidInput(f"{message.name}: nested too deep")
    at, seen = 0, set()
    while at < len(data):
        tag, at = _varint(data, at, message.name)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise errors.InvalidInput(f"{message.name}: not a message, there is no field {number}")
        found = message.fields.get(number)
        seen.add(number)
        value, at = _value(data, at, wire, message.name)
        if found is not None:
            _check_field(file, message, found, wire, value, depth)
    missing = [one.name for one in message.fields.values() if one.label == "required" and one.number not in seen]
    if missing:
        raise errors.InvalidInput(f"{message.name}: {missing[0]} is required")


def _check_field(
    file: ProtoFile, message: ProtoMessage, found: ProtoField, wire: int, value: bytes, depth: int
) -> None:
    where = f"{message.name}.{found.name}"
    kind = _type(file, message, found)
    if found.value_type:
        pair = (ProtoField("key", 1, found.type), ProtoField("value", 2, found.value_type))
        kind, entry = "", ProtoMessage(message.name, {one.number: one for one in pair})
    wanted = _WIRE.get(kind, _LENGTH)
    if found.label == "repeated" and wire == _LENGTH != wanted:
        _check_packed(value, wanted, where)
    elif wire != wanted:
        raise errors.InvalidInput(f"{where}: not a {found.type}")
    elif found.value_type:
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
    found = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128 and found < 2**64:
            return found, at
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
