"""What a declared field says about itself beside its type: a description and the bounds of its values.

Requests, answers and policies are msgspec structs whose fields are `Annotated` with these. msgspec ignores them: the
broker validates with its own errors and hints. The HTTP API builds its models and OpenAPI from them
(lake/http_models.py), and tests compare the documents with them. They are plain values, so that a declaration can be
imported by every process without a web framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec


@dataclass(frozen=True, slots=True)
class Doc:
    """The description of a field: phrases of plain text, at most Markdown's backticks."""

    text: str


@dataclass(frozen=True, slots=True)
class NumberBounds:
    """The smallest and the largest allowed number."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Length:
    """The smallest and the largest number of characters or items."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class IdText:
    """A 64-bit number that JSON has as text, because some parsers (jq, JavaScript) round numbers beyond 2^53.

    An answer of the HTTP API has it as text; a request may give it as a number or as text.
    """


ID_TEXT: Final = IdText()


def field_hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of the fields of a struct by name, in the order of declaration, with their metadata."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__}


def plain_types(hint: Any) -> tuple[Any, ...]:
    """The members of a type without their metadata and without None: (int,) for `Annotated[Count | None, …]`."""
    if get_origin(hint) is Annotated:
        return plain_types(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for member in get_args(hint) for kind in plain_types(member))
    return () if hint is NoneType else (hint,)


def number_fields(struct: type[msgspec.Struct]) -> frozenset[str]:
    """The fields of a struct whose values are numbers."""
    return frozenset(name for name, hint in field_hints(struct).items() if int in plain_types(hint))


def number_bounds(struct: type[msgspec.Struct]) -> dict[str, NumberBounds]:
    """The bounds of the fields of a struct that are `Annotated` with them directly."""
    return {
        name: item
        for name, hint in field_hints(struct).items()
        for item in get_args(hint)
        if isinstance(item, NumberBounds)
    }
