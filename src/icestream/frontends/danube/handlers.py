"""Handler tables of Danube's services: a handler for each gRPC method path, bytes in and bytes out.

Nothing here depends on the transport. The native gRPC server serves the table (native_grpc_server.py), or grpc.aio
(python_grpc_server.py).

    unary     path -> async (raw request, call) -> raw response
    streams   path -> async (raw request, call, stream); the stream ends when the handler returns
    batched   unary methods that also take many requests at once, as columns (request_batch.py)

An exception of a handler becomes the status of the call: an IcestreamError by the table in error_codes.py, or
`CallFailed` where Danube's protocol has another status for this call. A call whose client disconnects is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from icestream import error_codes, errors
from icestream.broker.guarded_broker import GuardedBroker
from icestream.frontends.danube.extensions import START
from icestream.frontends.danube.request_batch import BatchedMethod
from icestream.observability.log import get_logger

_log = get_logger("danube")
Request = TypeVar("Request", bound=Message)
STATUSES: Final = MappingProxyType({name: number for number, name in enumerate((
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
))})  # fmt: skip


AUTHORIZATION: Final = "authorization"
# The metadata that handlers see. A call with two values for one of them is refused (hazard 114).
METADATA_KEYS: Final = (START, AUTHORIZATION)
METADATA_VALUE_BYTES_MAX: Final = 8 << 10  # as in native/src/wire/grpc/inbox.rs


def _no_places() -> None:
    pass


@dataclass(slots=True, eq=False)
class Call:
    """The caller: its address, its metadata with the keys above, and its verified certificate in DER form.

    The native wire uses one for all calls of a connection with the same metadata.
    """

    peer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    certificate: bytes | None = None
    admitted: GuardedBroker | None = None  # set by call_admission.py
    # Called when a call of the connection had a valid credential: it has a place of its own then.
    recognise: Callable[[], None] = _no_places

    @property
    def client(self) -> GuardedBroker:
        """The use cases of the broker for the session of this call."""
        assert self.admitted is not None
        return self.admitted


def doubtful_metadata(key: str) -> errors.Unauthenticated:
    """The error for a key that comes twice or is too long: there must be no doubt whose call it is."""
    return errors.Unauthenticated(f"{key}: one value of at most 8 KiB is allowed")


class OutStream(Protocol):
    """The messages of a server stream, sent in order."""

    on_drained: Callable[[], None]  # called when the stream was full and has room again

    def push(self, messages: Sequence[bytes]) -> None:
        """Queues encoded messages. Always accepted: `is_full` asks the caller to stop, it does not force it."""

    @property
    def is_full(self) -> bool:
        """True while nothing more should be pushed, until `on_drained` is called."""


Unary = Callable[[bytes, Call], Awaitable[bytes]]
Streaming = Callable[[bytes, Call, OutStream], Awaitable[None]]


class HandlerTable(NamedTuple):
    """The handlers of some services by method path, such as `/danube.Discovery/TopicLookup`."""

    unary: Mapping[str, Unary]
    streams: Mapping[str, Streaming] = {}
    batched: Mapping[str, BatchedMethod] = {}


class CallFailed(Exception):
    """Ends a call with another gRPC status than the error has in error_codes.py."""

    def __init__(self, status: str, error: errors.IcestreamError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


def status_of(error: Exception) -> tuple[str, str]:
    """The gRPC status name and text of an error. Re-raises unexpected exceptions, whose text must not reach clients."""
    if isinstance(error, CallFailed):
        return error.status, str(error)
    if isinstance(error, errors.IcestreamError):
        return error_codes.grpc_status(error), str(error)
    raise error


def status_number(error: Exception) -> tuple[int, str]:
    """The gRPC status number and text of an error; INTERNAL for an unexpected exception, which is logged."""
    try:
        name, text = status_of(error)
    except Exception:  # noqa: BLE001 (the client gets a status in any case)
        _log.exception("internal error in a Danube call")
        name, text = "INTERNAL", "internal error; see the broker's log"
    return STATUSES[name], text


def malformed_request(kind: type[Message]) -> errors.InvalidInput:
    """The error for a request that cannot be decoded."""
    return errors.InvalidInput(
        f"malformed request: not a {kind.DESCRIPTOR.name}", hint="strings are UTF-8, fields as in Danube's protocol"
    )


def decode(kind: type[Request], raw: bytes) -> Request:
    """Decodes a request. Raises InvalidInput for bytes that are not a message of this kind."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise malformed_request(kind) from None
