"""Pydantic models of declared structs: from them FastAPI validates bodies, serialises answers and generates OpenAPI.

A request or answer is declared once, as a msgspec struct with metadata (admin_api, model/field_metadata.py), because
the broker process, which uses the declaration as well, does not load a web framework. The models are derived here and
never written by hand, so the HTTP API cannot differ from the native calls.

Only the form is checked here; the broker checks names, states and rules between values.
"""

from __future__ import annotations

import enum
import functools
import re
import types
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from fastapi import Depends
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from icestream.admin_api.admin_call import Answer
from icestream.model.field_metadata import Doc, IdText, Length, NumberBounds, field_hints
from icestream.model.topic_policies import UNLIMITED, TopicPolicy

RequestT = TypeVar("RequestT", bound=msgspec.Struct)
_REQUIRED: Final = ...  # pydantic's mark of a field without a default
_DIGITS: Final = re.compile(r"[0-9]{1,19}")


class RequestModel(BaseModel):
    """The body of a request. Unknown keys are errors, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class ResponseModel(BaseModel):
    """A response."""

    model_config = ConfigDict(extra="ignore")


@functools.cache
def model_of(declared: Any) -> type[BaseModel]:
    """The model of a struct, or of a generic one with its argument such as `Listing[TopicSummary]`.

    It has the name, docstring, fields, bounds and defaults of the declaration. The model of an answer ignores unknown
    fields, that of a request or policy refuses them.
    """
    struct: type[msgspec.Struct] = get_origin(declared) or declared
    arguments = dict(zip(getattr(struct, "__parameters__", ()), get_args(declared), strict=True))
    hints, is_answer = field_hints(struct), issubclass(struct, Answer)
    fields: dict[str, Any] = {
        field.name: (
            _http_type(hints[field.name], arguments, is_answer),
            Field(default=_default(field), description=_description(hints[field.name])),
        )
        for field in msgspec.structs.fields(struct)
    }
    suffix = f"[{', '.join(argument.__name__ for argument in arguments.values())}]" if arguments else ""
    base = ResponseModel if is_answer else RequestModel
    return create_model(struct.__name__ + suffix, __base__=base, __doc__=struct.__doc__, **fields)


def body(struct: type[RequestT]) -> Any:
    """The FastAPI dependency that reads the JSON body of a request as its declared struct."""

    def read(fields: BaseModel) -> RequestT:
        hints = field_hints(struct)
        # Of a field that can be left out but cannot be null, null means the same as leaving it out.
        values = {
            name: value
            for name, value in fields.model_dump(include=fields.model_fields_set).items()
            if value is not None or types.NoneType in _members(hints[name])
        }
        return msgspec.convert(values, struct)

    # FastAPI reads the type of the body from the annotation, which is not known before run time.
    read.__annotations__["fields"] = model_of(struct)
    return Depends(read)


def extend(struct: type[RequestT], base: msgspec.Struct, **values: Any) -> RequestT:
    """The native request that consists of an HTTP body and of values from its path."""
    return struct(**{name: getattr(base, name) for name in base.__struct_fields__}, **values)


def _http_type(hint: Any, arguments: dict[Any, Any], is_answer: bool) -> Any:
    """The type that pydantic gets: structs become models, enumerations their words, metadata constraints."""
    convert: Callable[[Any], Any] = functools.partial(_http_type, arguments=arguments, is_answer=is_answer)
    if isinstance(hint, TypeVar):
        return convert(arguments[hint])
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return model_of(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _words(hint)
    if hint is msgspec.UnsetType:
        return None
    if get_origin(hint) is Annotated:
        kind, *metadata = get_args(hint)
        http_type = convert(kind)
        for item in metadata:
            http_type = _constrained(http_type, item, is_answer)
        return http_type
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(convert(member) for member in get_args(hint))]  # noqa: UP007  (built at run time)
    if get_origin(hint) not in (None, Literal):
        return get_origin(hint)[tuple(convert(argument) for argument in get_args(hint))]
    return hint


def _constrained(http_type: Any, metadata: object, is_answer: bool) -> Any:
    match metadata:
        case NumberBounds(low, high):
            return Annotated[http_type, Field(ge=low, le=high)]
        case Length(low, high):
            return Annotated[http_type, Field(min_length=low or None, max_length=high)]
        case IdText():
            return Annotated[str, BeforeValidator(str)] if is_answer else _or_digits(http_type)
        case TopicPolicy(words=words) if words is not None:
            return _words(words) | None
    return http_type


def _or_digits(http_type: Any) -> Any:
    def parse_digits(value: object) -> object:
        """The number of a string of digits; any other value is returned unchanged, and the type rejects it."""
        return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value

    return Annotated[http_type, BeforeValidator(parse_digits)]


def _words(kind: type[enum.Enum]) -> Any:
    """The words of an enumeration, because pydantic's strict mode accepts no text for its members."""
    return Annotated[Literal[tuple(member.value for member in kind)], BeforeValidator(_word)]


def _word(value: object) -> object:
    """The word of a member, as a struct has it; other values are returned unchanged."""
    return value.value if isinstance(value, enum.Enum) else value


def _members(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _description(hint: Any) -> str | None:
    for item in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        if isinstance(item, Doc):
            return item.text
        if isinstance(item, TopicPolicy):
            return item.description if item.unset == UNLIMITED else f"{item.description[:-1]}; null: {item.unset}."
    return None


def _default(field: msgspec.structs.FieldInfo) -> Any:
    """The default of a field as pydantic shows it; null for one that can be left out."""
    if field.required:
        return _REQUIRED
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if default is msgspec.UNSET:
        return None
    if isinstance(default, msgspec.Struct):
        return model_of(type(default))()
    return default.value if isinstance(default, enum.Enum) else default
