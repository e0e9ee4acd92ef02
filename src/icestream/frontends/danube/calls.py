"""What serves Danube's calls knows: a table of handlers by the path of their method, bytes in and bytes out.

Nothing here knows how calls arrive. grpc.aio serves the table (grpc_server.py); any other wire that speaks gRPC can.

    unary     path -> async (raw request, call) -> raw answer
    streams   path -> async (raw request, call, stream); the stream ends when it returns

What a handler raises becomes the status of the call: an error of the tree by the table in errors.py, or `CallFailed`
where Danube's protocol says it otherwise for this one call. A call whose client is gone is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from icestream import errors

Request = TypeVar("Request", bound=Message)


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


class Table(NamedTuple):
    unary: Mapping[str, Unary]
    streams: Mapping[str, Streaming] = {}


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
        return errors.grpc_status(error), str(error)
    raise error


def decode(kind: type[Request], raw: bytes) -> Request:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise errors.InvalidInput(
            f"the request is not a {kind.DESCRIPTOR.name}", hint="texts are UTF-8, fields as in Danube's protocol"
        ) from None
