"""Reads the messages and enums of a .proto file: as much of the language as says what is on the wire.

Options, services, extensions and comments are skipped. Types of imported files are known by their name only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from icestream import errors

SCALARS: Final = frozenset((
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
))  # fmt: skip
_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<token>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[\w.]+|[{}()\[\]<>=;,:+-])""",
    re.DOTALL,
)
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+", re.ASCII)


@dataclass(slots=True)
class ProtoField:
    name: str
    number: int
    type: str  # a scalar, or a name as it was written
    label: str = ""  # repeated, required, optional or none
    oneof: str = ""
    value_type: str = ""  # of a map, whose type is its key's


@dataclass(slots=True)
class ProtoMessage:
    name: str  # full
    fields: dict[int, ProtoField] = field(default_factory=dict)
    reserved: list[tuple[int, int]] = field(default_factory=list)  # both ends belong to it


@dataclass(slots=True)
class ProtoFile:
    messages: dict[str, ProtoMessage] = field(default_factory=dict)  # in the order of the file
    enums: set[str] = field(default_factory=set)

    def resolve(self, name: str, scope: str) -> str:
        """Resolves a type name used inside of a message, from the innermost scope outwards."""
        if name.startswith("."):
            return name[1:]
        while True:
            full = f"{scope}.{name}" if scope else name
            if full in self.messages or full in self.enums:
                return full
            if not scope:
                return name
            scope = scope.rpartition(".")[0]


def parse(text: str) -> ProtoFile:
    """Parses a .proto file. Raises InvalidInput with the line of the first error."""
    return _Parser(text).file()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(self._split(text))
        self._at = 0
        self._file = ProtoFile()

    def _split(self, text: str) -> list[tuple[str, int]]:
        tokens: list[tuple[str, int]] = []
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise errors.InvalidInput(f"line {line} of the .proto: {text[at : at + 20]!r} is not expected")
            if match["token"]:
                tokens.append((match["token"], line))
            line += text.count("\n", at, match.end())
            at = match.end()
        return tokens

    def _fail(self, expected: str) -> errors.InvalidInput:
        token, line = self._tokens[self._at] if self._at < len(self._tokens) else ("the end", -1)
        return errors.InvalidInput(
            f"line {line} of the .proto: {expected} was expected, not {token[:50]}", hint="send a .proto file as it is"
        )

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise self._fail("more")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._fail(token)
        self._at += 1

    def file(self) -> ProtoFile:
        scope = ""
        while self._peek():
            word = self._next()
            if word == "package":
                scope = self._next()
                self._expect(";")
            elif word == "message":
                self._message(scope)
            elif word == "enum":
                self._enum(scope)
            elif word != ";":
                self._skip()
        if not self._file.messages:
            raise errors.InvalidInput("the .proto has no message", hint="send a .proto file as it is")
        return self._file

    def _skip(self) -> None:
        """To the end of a statement, or of the block that it has."""
        depth = 0
        while True:
            token = self._next()
            depth += (token == "{") - (token == "}")
            if depth == 0 and token in (";", "}"):
                return

    def _enum(self, scope: str) -> None:
        self._file.enums.add(_inside(scope, self._next()))
        if self._peek() != "{":
            raise self._fail("{")
        self._skip()

    def _message(self, scope: str) -> None:
        name = _inside(scope, self._next())
        message = self._file.messages[name] = ProtoMessage(name)
        self._expect("{")
        self._body(message, "")

    def _body(self, message: ProtoMessage, oneof: str) -> None:
        while (word := self._next()) != "}":
            if word == "message":
                self._message(message.name)
            elif word == "enum":
                self._enum(message.name)
            elif word == "oneof":
                name = self._next()
                self._expect("{")
                self._body(message, name)
            elif word == "reserved":
                self._reserved(message)
            elif word in ("option", "extensions", "extend"):
                self._skip()
            elif word != ";":
                self._field(message, word, oneof)

    def _reserved(self, message: ProtoMessage) -> None:
        while (word := self._next()) != ";":
            if _NUMBER.fullmatch(word):
                first = last = int(word, 0)
                if self._peek() == "to":
                    self._next()
                    end = self._next()
                    last = 2**29 - 1 if end == "max" else int(end, 0)
                message.reserved.append((first, last))

    def _field(self, message: ProtoMessage, word: str, oneof: str) -> None:
        label = word if word in ("repeated", "required", "optional") else ""
        kind = self._next() if label else word
        value = ""
        if kind == "map" and self._peek() == "<":
            self._next()
            kind = self._next()
            self._expect(",")
            value = self._next()
            self._expect(">")
            label = "repeated"
        name = self._next()
        self._expect("=")
        number = self._next()
        if not _NUMBER.fullmatch(number):
            self._at -= 1
            raise self._fail("the number of a field")
        parsed = ProtoField(name, int(number, 0), kind, label, oneof, value)
        if parsed.number in message.fields or not 0 < parsed.number < 2**29:
            raise errors.InvalidInput(f"field number {number} of {message.name} is used twice, or impossible")
        message.fields[parsed.number] = parsed
        self._skip()


def _inside(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name
