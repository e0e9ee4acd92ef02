"""Serves a handler table (handlers.py) by grpc.aio."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import grpc
from grpc import aio

from icestream import limits
from icestream.frontends.danube.handlers import (
    METADATA_KEYS,
    METADATA_VALUE_BYTES_MAX,
    Call,
    HandlerTable,
    Streaming,
    Unary,
    doubtful_metadata,
    status_of,
)
from icestream.observability.log import get_logger
from icestream.runtime.connection_room import RoomState
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.listening import cannot_listen

_log = get_logger("danube")
Streams = set["asyncio.Task[Any]"]  # the running handlers of streams

OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second broker on the port fails to start instead of sharing the port
    ("grpc.max_receive_message_length", limits.DANUBE_CALL_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", limits.DANUBE_STREAMS_PER_CONNECTION_MAX),
    # Calls that wait for the event loop: beyond its default bound gRPC drops calls, which clients see as errors.
    ("grpc.server.max_pending_requests", limits.DANUBE_CALLS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", limits.DANUBE_CALLS_MAX),
    ("grpc.keepalive_time_ms", 20_000),  # detects clients whose machine died, so that their messages are redelivered
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # clients may send pings too
    ("grpc.http2.max_ping_strikes", 0),
    # gRPC cannot evict connections without HTTP/2 or without a call in favour of new ones, so they have a timeout.
    ("grpc.server_handshake_timeout_ms", limits.DANUBE_HANDSHAKE_MS_MAX),
    ("grpc.max_connection_idle_ms", limits.DANUBE_IDLE_MS_MAX),
)


class PythonGrpcListener:
    """Bound to a port first, because the service needs the port for its advertised address; then it serves."""

    def __init__(self, setting: str, connections_max: int = limits.DANUBE_CONNECTIONS_MAX) -> None:
        """`setting` is the key of the port, for errors and metrics."""
        self._setting = setting
        self._connections_max = connections_max
        self._server: aio.Server | None = None
        self._streams: Streams = set()
        self.port = 0

    @property
    def room(self) -> RoomState | None:
        """Always None: gRPC does not expose its connections."""
        return None

    async def bind(self, host: str, port: int, tls: ListenerTls | None = None) -> int:
        """Binds to an address; returns the port. Raises ConfigurationError."""
        server = aio.server(
            options=(*OPTIONS, ("grpc.max_allowed_incoming_connections", self._connections_max)),
            maximum_concurrent_rpcs=limits.DANUBE_CALLS_MAX,
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            _check_port_free(host, port)  # gRPC's own error does not say why a port cannot be used
            if tls is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, _credentials(tls))
        except (OSError, RuntimeError) as error:
            reason = error if isinstance(error, OSError) else OSError(str(error))
            raise cannot_listen(self._setting, host, port, reason) from None
        self._server = server
        return self.port

    async def serve(self, table: HandlerTable) -> None:
        """Starts to serve. Batched methods of the table are served by their unary handlers here."""
        assert self._server is not None
        self._server.add_generic_rpc_handlers((_Handlers(table, self._streams),))
        await self._server.start()

    async def close(self) -> None:
        """Waits for calls in flight, CLOSE_SECONDS_MAX at most."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(limits.CLOSE_SECONDS_MAX)
        # gRPC cancels the handlers of streams whose client is gone, and does not wait for them: a handler that is
        # destroyed with its loop could not leave its subscription.
        for stream in tuple(self._streams):
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)


def _check_port_free(host: str, port: int) -> None:
    """Raises OSError with the reason, which gRPC does not report."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _credentials(tls: ListenerTls) -> grpc.ServerCredentials:
    """Each new connection gets the certificate that is in use then.

    grpc does not verify certificates that clients may show and need not, so it does not ask for them.
    """
    is_required = tls.pem[3]

    def configuration() -> grpc.ServerCertificateConfiguration:
        chain, key, authorities, _, _ = tls.pem
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities if is_required else None)

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration, is_required)


class _Handlers(grpc.GenericRpcHandler):
    """A handler table in the form that grpc takes."""

    def __init__(self, table: HandlerTable, streams: Streams) -> None:
        self._methods: dict[str, Any] = {}
        for path, unary in table.unary.items():
            self._methods[path] = grpc.unary_unary_rpc_method_handler(_unary(unary))
        for path, stream in table.streams.items():
            self._methods[path] = grpc.unary_stream_rpc_method_handler(_stream(stream, streams))

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """None for an unknown method: gRPC answers UNIMPLEMENTED."""
        return self._methods.get(handler_call_details.method)


def _call(context: Any) -> Call:
    """The caller of a call. Raises Unauthenticated for metadata that comes twice, as the native wire does."""
    metadata: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key in METADATA_KEYS:
            if key in metadata or len(value) > METADATA_VALUE_BYTES_MAX:
                raise doubtful_metadata(key)
            metadata[key] = value
    return Call(_address(context.peer()), metadata, _certificate(context))


def _address(peer: str) -> str:
    """The address without gRPC's prefix: `ipv4:10.1.2.3:50123`, `ipv6:%5B::1%5D:50123`."""
    return unquote(peer.partition(":")[2]) if peer.startswith(("ipv4:", "ipv6:")) else peer


def _certificate(context: Any) -> bytes | None:
    """The certificate of the client in DER form. gRPC asks for one only where it is required, and has verified it."""
    pem = context.auth_context().get("x509_pem_cert")
    return ssl.PEM_cert_to_DER_cert(pem[0].decode()) if pem else None


def _unary(handler: Unary) -> Callable[[bytes, Any], Any]:
    """A unary handler in the form that grpc calls."""

    async def serve(raw: bytes, context: Any) -> bytes:
        try:
            return await handler(raw, _call(context))
        except Exception as error:
            await _abort(context, error)
            raise

    return serve


def _stream(handler: Streaming, streams: Streams) -> Callable[[bytes, Any], Any]:
    """A streaming handler in the form that grpc calls; its task is in `streams` while it runs."""

    async def serve(raw: bytes, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        streams.add(task)
        task.add_done_callback(streams.discard)
        stream = AioStream(context)
        writer = asyncio.get_running_loop().create_task(stream.write())
        try:
            await handler(raw, _call(context), stream)
        except Exception as error:
            await _abort(context, error)
            raise
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)  # it fails when the client disconnects

    return serve


async def _abort(context: Any, error: Exception) -> None:
    """Ends a call with the status of the error."""
    try:
        name, text = status_of(error)
    except Exception:  # noqa: BLE001 (an unexpected exception is logged, and the client gets a status)
        _log.exception("internal error in a Danube call")
        name, text = "INTERNAL", "internal error; see the broker's log"
    await context.abort(grpc.StatusCode[name], text)


class AioStream:
    """An OutStream whose messages a task writes one after the other, as gRPC takes them."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._pending: deque[bytes] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._was_full = False
        self.on_drained: Callable[[], None] = lambda: None

    @property
    def is_full(self) -> bool:
        full = len(self._pending) >= limits.DANUBE_STREAM_MESSAGES_MAX or self._bytes >= limits.DANUBE_STREAM_BYTES_MAX
        # Remembered when it is asked for: only a caller that has heard of it waits for `on_drained`.
        self._was_full = self._was_full or full
        return full

    def push(self, messages: Sequence[bytes]) -> None:
        self._pending.extend(messages)
        self._bytes += sum(map(len, messages))
        self._more.set()

    async def write(self) -> None:
        """Writes the pushed messages, until cancelled or the client disconnects."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._pending:
                message = self._pending.popleft()
                self._bytes -= len(message)
                await self._context.write(message)
                if self._was_full and not self.is_full:
                    self._was_full = False
                    self.on_drained()
