"""The predicate of an erasure: which messages of a topic are meant. Pure.

    key = 'alice'
    key in ('alice', 'bob') and append_time < timestamp '2026-03-01T00:00:00Z'
    header 'user' = 'alice' or (shard = 0 and offset >= 100 and offset < 200)
    customer_id = 4711 and not (country is null)

    predicate   = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | "(" predicate ")" | comparison
    comparison  = field ( operator literal | "in" "(" literal { "," literal } ")" | "is" [ "not" ] "null" )
    field       = name of a column | "header" text
    operator    = "=" | "!=" | "<" | "<=" | ">" | ">="
    literal     = text in '' ('' stands for ') | x'hexadecimal bytes' | integer | decimal | "true" | "false"
                | "timestamp" 'time as in ISO 8601, with its offset'

Words are written in any case; columns exactly as in the table. It is no SQL: there are no functions, patterns or other
columns on the right side, so that what a predicate means can be told from its text and checked by another program.

A comparison with a null is neither true nor false, as in SQL, and a message is erased only where the whole predicate is
true: `key != 'alice'` leaves messages without a key, `not (key = 'alice')` too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from icestream import errors, limits

Literal = bytes | str | bool | int | float | datetime


class ComparedField(NamedTuple):
    """A column, or one header of the messages."""

    column: str
    header: str = ""  # with the column `headers`: the name of the header

    def __str__(self) -> str:
        return f"header {_quoted(self.header)}" if self.header else self.column


class Operator(StrEnum):
    EQUAL = "="
    UNEQUAL = "!="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


class Comparison(NamedTuple):
    field: ComparedField
    operator: Operator
    value: Literal


class IsNull(NamedTuple):
    field: ComparedField


class Not(NamedTuple):
    predicate: Predicate


class And(NamedTuple):
    left: Predicate
    right: Predicate


class Or(NamedTuple):
    left: Predicate
    right: Predicate


Predicate = Comparison | IsNull | Not | And | Or
HEADERS: Final = "headers"
_HINT: Final = "such as: key = 'alice', header 'user' = 'alice', shard = 0 and offset >= 100 and offset < 200"
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<bytes>[xX]'[^']*')|(?P<text>'(?:[^']|'')*')|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=|>=|!=|[=<>(),]))"
)
_KEYWORDS: Final = frozenset(("and", "or", "not", "in", "is", "null", "true", "false"))


class _Token(NamedTuple):
    kind: str
    text: str
    position: int

    @property
    def keyword(self) -> str:
        """The word in lower case if it has a meaning of its own; empty otherwise."""
        return self.text.lower() if self.kind == "word" and self.text.lower() in _KEYWORDS else ""


def parse_predicate(text: str) -> Predicate:
    """Raises InvalidInput, with the position of what is not understood."""
    if len(text.encode()) > limits.ERASURE_PREDICATE_BYTES_MAX:
        raise errors.InvalidInput(
            f"the predicate has more than {limits.ERASURE_PREDICATE_BYTES_MAX} bytes", hint="erase in several steps"
        )
    return _PredicateParser(list(_tokens(text))).parse()


def fields_of(predicate: Predicate) -> list[ComparedField]:
    """The columns and headers that a predicate compares, each once, in the order of its text."""
    match predicate:
        case Comparison(field) | IsNull(field):
            fields = [field]
        case Not(inner):
            fields = fields_of(inner)
        case And(left, right) | Or(left, right):
            fields = [*fields_of(left), *fields_of(right)]
    return list(dict.fromkeys(fields))


def comparisons_of(predicate: Predicate) -> Iterator[Comparison]:
    match predicate:
        case Comparison():
            yield predicate
        case Not(inner):
            yield from comparisons_of(inner)
        case And(left, right) | Or(left, right):
            yield from comparisons_of(left)
            yield from comparisons_of(right)


def check_columns(predicate: Predicate, columns: dict[str, str]) -> None:
    """Raises InvalidInput for a column that the table does not have, and for a literal that its type is not compared
    with. `columns`: Iceberg's type of each column; nested ones as `struct`, `list` or `map`."""
    for field in fields_of(predicate):
        if field.column not in columns:
            raise errors.InvalidInput(
                f"the table has no column {field.column!r}", hint=f"its columns: {', '.join(sorted(columns))}"[:300]
            )
        if not field.header and columns[field.column] in ("map", "list", "struct"):
            raise errors.InvalidInput(
                f"column {field.column} cannot be compared: it is a {columns[field.column]}",
                hint="headers are compared by name: header 'user' = 'alice'",
            )
    for comparison in comparisons_of(predicate):
        kind = "string" if comparison.field.header else columns[comparison.field.column]
        if not isinstance(comparison.value, _allowed(kind)) or (
            isinstance(comparison.value, bool) and kind != "boolean"
        ):
            raise errors.InvalidInput(
                f"{comparison.field} is a {kind}: it is not compared with {comparison.value!r}",
                hint=_literal_hint(kind),
            )


def _allowed(kind: str) -> tuple[type, ...]:
    """The literals that a column of this type is compared with."""
    if kind == "binary" or kind.startswith("fixed"):
        return (str, bytes)  # a text stands for its bytes in UTF-8
    if kind in ("string", "uuid"):
        return (str,)
    if kind == "boolean":
        return (bool,)
    if kind in ("int", "long"):
        return (int,)
    if kind in ("float", "double") or kind.startswith("decimal"):
        return (int, float)
    if kind.startswith("timestamp"):
        return (datetime,)
    return ()


def _literal_hint(kind: str) -> str:
    if kind.startswith("timestamp"):
        return "such as timestamp '2026-03-01T00:00:00Z'"
    if kind == "date" or not _allowed(kind):
        return "columns of this type cannot be compared; name the messages by shard and offset"
    return _HINT


# --- parsing ----------------------------------------------------------------------------------------------------------


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            start = end - len(text[position:end].lstrip())
            raise _unclear(f"{text[start : start + 20]!r}", start)
        yield _Token(match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup))
        position = match.end()


def _unclear(what: str, position: int) -> errors.InvalidInput:
    return errors.InvalidInput(f"the predicate is not understood at character {position + 1}: {what}", hint=_HINT)


class _PredicateParser:
    """One pass over the tokens, with a bound on how deep predicates are nested."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._comparisons = 0

    def parse(self) -> Predicate:
        if not self._tokens:
            raise errors.InvalidInput("the predicate is empty", hint=_HINT)
        predicate = self._predicate()
        if self._next < len(self._tokens):
            raise self._unexpected("the end of the predicate")
        return predicate

    def _predicate(self) -> Predicate:
        predicate = self._conjunction()
        while self._skip_keyword("or"):
            predicate = Or(predicate, self._conjunction())
        return predicate

    def _conjunction(self) -> Predicate:
        predicate = self._negation()
        while self._skip_keyword("and"):
            predicate = And(predicate, self._negation())
        return predicate

    def _negation(self) -> Predicate:
        self._depth += 1
        if self._depth > limits.ERASURE_PREDICATE_DEPTH_MAX:
            raise errors.InvalidInput(
                f"the predicate is nested deeper than {limits.ERASURE_PREDICATE_DEPTH_MAX} levels",
                hint="write it with fewer parentheses",
            )
        if self._skip_keyword("not"):
            predicate: Predicate = Not(self._negation())
        elif self._skip_sign("("):
            predicate = self._predicate()
            self._require_sign(")")
        else:
            predicate = self._comparison()
        self._depth -= 1
        return predicate

    def _comparison(self) -> Predicate:
        field = self._field()
        if self._skip_keyword("is"):
            is_negated = self._skip_keyword("not")
            if not self._skip_keyword("null"):
                raise self._unexpected("null")
            return Not(IsNull(field)) if is_negated else IsNull(field)
        if self._skip_keyword("in"):
            self._require_sign("(")
            predicate: Predicate = self._compared(field, Operator.EQUAL)
            while self._skip_sign(","):
                predicate = Or(predicate, self._compared(field, Operator.EQUAL))
            self._require_sign(")")
            return predicate
        token = self._peek()
        if token is None or token.kind != "sign" or token.text not in {*Operator}:
            raise self._unexpected("one of = != < <= > >=, in, is null")
        self._next += 1
        return self._compared(field, Operator(token.text))

    def _compared(self, field: ComparedField, operator: Operator) -> Comparison:
        self._comparisons += 1
        if self._comparisons > limits.ERASURE_COMPARISONS_MAX:
            raise errors.InvalidInput(
                f"the predicate has more than {limits.ERASURE_COMPARISONS_MAX} comparisons",
                hint="erase in several steps",
            )
        return Comparison(field, operator, self._literal())

    def _field(self) -> ComparedField:
        token = self._take("word", "a column")
        if token.keyword:
            raise _unclear(f"{token.text!r} instead of a column", token.position)
        following = self._peek()
        if token.text.lower() == "header" and following is not None and following.kind == "text":
            self._next += 1
            return ComparedField(HEADERS, _unquoted(following.text))
        return ComparedField(token.text)

    def _literal(self) -> Literal:
        token = self._peek()
        if token is None:
            raise self._unexpected("a literal")
        self._next += 1
        match token.kind:
            case "text":
                return _unquoted(token.text)
            case "bytes":
                try:
                    return bytes.fromhex(token.text[2:-1])
                except ValueError:
                    raise _unclear(f"{token.text} is not hexadecimal", token.position) from None
            case "number":
                return _number(token)
            case "word" if token.keyword in ("true", "false"):
                return token.keyword == "true"
            case "word" if token.text.lower() == "timestamp":
                return _time(self._take("text", "a time in ''"))
        raise _unclear(f"{token.text!r} instead of a literal", token.position)

    # --- tokens ---

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, kind: str, expected: str) -> _Token:
        token = self._peek()
        if token is None or token.kind != kind:
            raise self._unexpected(expected)
        self._next += 1
        return token

    def _skip_keyword(self, keyword: str) -> bool:
        token = self._peek()
        is_there = token is not None and token.keyword == keyword
        self._next += is_there
        return is_there

    def _skip_sign(self, sign: str) -> bool:
        token = self._peek()
        is_there = token is not None and token.kind == "sign" and token.text == sign
        self._next += is_there
        return is_there

    def _require_sign(self, sign: str) -> None:
        if not self._skip_sign(sign):
            raise self._unexpected(sign)

    def _unexpected(self, expected: str) -> errors.InvalidInput:
        token = self._peek()
        if token is None:
            last = self._tokens[-1]
            return _unclear(f"it ends where {expected} should follow", last.position + len(last.text))
        return _unclear(f"{token.text!r} instead of {expected}", token.position)


def _number(token: _Token) -> int | float:
    if any(sign in token.text for sign in ".eE"):
        return float(token.text)
    if len(token.text) > 20 or not -(2**63) <= int(token.text) < 2**63:
        raise _unclear(f"{token.text[:24]} does not fit 64 bits", token.position)
    return int(token.text)


def _time(token: _Token) -> datetime:
    try:
        time = datetime.fromisoformat(_unquoted(token.text))
    except ValueError:
        raise _unclear(f"{token.text} is not a time", token.position) from None
    if time.tzinfo is None:
        raise _unclear(f"{token.text} has no offset, such as Z or +02:00", token.position)
    return time.astimezone(UTC)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
