"""Declared calls (admin_api) and the methods that implement them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from icestream import limits
from icestream.admin_api.admin_call import AdminCall, answer_document
from icestream.frontends.native.public_calls import CALLS, Call, Caller, CallTable, Document, decode_arguments
from icestream.internal_api.call_gate import admit_call

RequestT = TypeVar("RequestT", bound=msgspec.Struct)
AnswerT = TypeVar("AnswerT")
Method = Callable[[Any, Caller, RequestT], Awaitable[AnswerT]]
_CALL: Final = "implemented_call"  # the attribute of a method that has its AdminCall


def implements(call: AdminCall[RequestT, AnswerT]) -> Callable[[Method[RequestT, AnswerT]], Method[RequestT, AnswerT]]:
    """Marks a method, of a Caller and a request, as the implementation of a declared call; its types must be those of
    the call."""

    def mark(method: Method[RequestT, AnswerT]) -> Method[RequestT, AnswerT]:
        setattr(method, _CALL, call)
        return method

    return mark


def implemented_calls(kind: type) -> dict[str, Method[Any, Any]]:
    """The methods of a class that implement declared calls, by the name of the call."""
    return {getattr(method, _CALL).name: method for method in vars(kind).values() if hasattr(method, _CALL)}


def native_calls(instance: object) -> dict[str, Call]:
    """The calls that an object implements, as entries of the call table of a listener."""
    return {
        name: _native_call(instance, getattr(method, _CALL), method)
        for name, method in implemented_calls(type(instance)).items()
    }


class CallGroup(Protocol):
    """Some calls of the local socket."""

    def calls(self) -> dict[str, Call]: ...


def local_call_table(*groups: CallGroup) -> CallTable:
    """The calls of the local socket: the public ones, and those of the groups."""
    calls = {name: call for group in groups for name, call in group.calls().items()}
    return CallTable({**CALLS, **calls}, limits.LOCAL_CALL_BYTES_MAX, admit_call, limits.LOCAL_RESULT_BYTES_MAX)


def _native_call(instance: object, call: AdminCall[Any, Any], method: Method[Any, Any]) -> Call:
    async def run(caller: Caller, arguments: Document) -> Document:
        answer: Document = answer_document(await method(instance, caller, decode_arguments(call.request, arguments)))
        return answer

    return run
