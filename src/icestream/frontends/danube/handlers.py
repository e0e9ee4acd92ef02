"""What serves Danube's calls knows: a table of handlers by the path of their method, bytes in and bytes out.

Nothing here knows how calls arrive. The native wire serves the table (native_server.py), or grpc.aio (grpc_server.py).

    unary     path -> async (raw request, call) -> raw answer
    streams   path -> async (raw request, call, stream); the stream ends when it returns
    batched   unary methods that can also be handed over many at once, as columns (batch.py)

What a handler raises becomes the status of the call: an error of the tree by the table in errors.py, or `CallFailed`
where Danube's protocol says it otherwise for this one call. A call whose client is gone is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from icestream import error_codes, errors
from icestream.frontends.danube.request_batch import BatchedMethod
from icestream.observability.log import get_logger

_log = get_logger("danube")
Request = TypeVar("Request", bound=Message)
STATUSES: Final = MappingProxyType({name: number for number, name in enumerate((
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
))})  # fmt: skip


@dataclass(slots=True)
class Call:
    """Who calls, and with which metadata: those whose key begins with `x-icestream-`."""

    peer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


class OutStream(Protocol):
    """The messages to one client, in order."""

    on_drained: Callable[[], None]  # it was full, and is not any more

    def push(self, messages: Sequence[bytes]) -> None: ...

    @property
    def is_full(self) -> bool:
        """More should not be pushed before `on_drained` is called."""


Unary = Callable[[bytes, Call], Awaitable[bytes]]
Streaming = Callable[[bytes, Call, OutStream], Awaitable[None]]


class HandlerTable(NamedTuple):
    unary: Mapping[str, Unary]
    streams: Mapping[str, Streaming] = {}
    batched: Mapping[str, BatchedMethod] = {}


class CallFailed(Exception):
    """A status of gRPC, by its name, where it is not the one that the error has elsewhere."""

    def __init__(self, status: str, error: errors.IcestreamError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


def status_of(error: Exception) -> tuple[str, str]:
    """Name and text of the status that a call ends with. Raises what is nobody's to see."""
    if isinstance(error, CallFailed):
        return error.status, str(error)
    if isinstance(error, errors.IcestreamError):
        return error_codes.grpc_status(error), str(error)
    raise error


def status_number(error: Exception) -> tuple[int, str]:
    """The same by its number, also for a mistake of ours, which the log tells about."""
    try:
        name, text = status_of(error)
    except Exception:  # noqa: BLE001 (the client gets an answer in any case)
        _log.exception("a call failed")
        name, text = "INTERNAL", "the broker could not carry out this call; its log says why"
    return STATUSES[name], text


def malformed_request(kind: type[Message]) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"the request is not a {kind.DESCRIPTOR.name}", hint="texts are UTF-8, fields as in Danube's protocol"
    )


def decode(kind: type[Request], raw: bytes) -> Request:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise malformed_request(kind) from None
