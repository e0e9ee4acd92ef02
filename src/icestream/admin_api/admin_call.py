"""What a declaration consists of: a call with the types of its request and its answer, and pages of listings.

A request is a struct whose fields are the arguments of the native call. Where the HTTP API has some of them in its
path, the struct of the native call extends the struct of the HTTP body. The broker validates values and says why it
refuses one; annotations describe values and are checked by the HTTP API only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from icestream import errors, limits
from icestream.model.field_metadata import Doc, Length

RequestT = TypeVar("RequestT", bound=msgspec.Struct)
AnswerT = TypeVar("AnswerT")
Item = TypeVar("Item")
Name = Annotated[str, Length(1, limits.NAME_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class AdminCall(Generic[RequestT, AnswerT]):
    """A native call. The local socket serves all calls; other connections only those that are public."""

    name: str
    request: type[RequestT]
    answer: type[AnswerT]
    is_public: bool = False


class Answer(msgspec.Struct):
    """The base of answers: clients ignore fields that they do not know, so that a later version may add some."""


class NoArguments(msgspec.Struct):
    """The request of a call without arguments."""


class EmptyAnswer(Answer):
    """The answer of a call that has nothing to report."""


class PageRequest(msgspec.Struct, kw_only=True):
    """The arguments of a listing. Raises InvalidInput for a limit that is out of bounds."""

    after: str = ""
    limit: int = limits.API_PAGE_DEFAULT

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= limits.API_PAGE_MAX:
            raise errors.InvalidInput(f"page limit is {self.limit}", hint=f"allowed: 1 to {limits.API_PAGE_MAX}")


class Listing(Answer, Generic[Item]):
    """A page of a listing."""

    items: list[Item]
    next: Annotated[str | None, Doc("`after` of the next page; null on the last page.")]


def answer_document(value: Any) -> Any:
    """An answer as the values of a native document, with every field: null where a value is unset.

    msgspec's own conversion would omit the defaults of structs that are also stored (policies): there that keeps
    records short and readable.
    """
    if isinstance(value, msgspec.Struct):
        return {name: answer_document(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [answer_document(item) for item in value]
    if isinstance(value, dict):
        return {key: answer_document(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value
