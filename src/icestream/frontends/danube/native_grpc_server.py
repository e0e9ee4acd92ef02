"""Serves a handler table (handlers.py) by the native gRPC server: HTTP/2 in its own thread, one wake-up for a burst.

    unary      a task for each call
    streams    a task for each stream. Messages beyond the client's flow-control window wait in the native part, which
               reports when few of them are left
    batched    no task: all requests of a method since the last wake-up, as columns, in one call of the handler, which
               answers rows as their outcomes become known

Closing has two steps. First clients are told to start no more calls (GOAWAY), and calls in flight may finish. Then the
thread ends, with whatever is left.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from icestream import errors, limits
from icestream.frontends.danube.handlers import (
    AUTHORIZATION,
    METADATA_KEYS,
    STATUSES,
    Call,
    HandlerTable,
    Streaming,
    Unary,
    status_number,
)
from icestream.frontends.danube.request_batch import RequestBatch
from icestream.observability.log import get_logger
from icestream.runtime.connection_room import RoomState
from icestream.runtime.listener_tls import ListenerTls, Pem
from icestream.runtime.listening import cannot_listen, listening_socket
from icestream.runtime.native import native

_log = get_logger("danube")
# The kinds of events of `poll`: native/src/wire/mod.rs.
BATCH, UNARY, STREAM, STREAM_GONE, STREAM_LOW, METADATA, CONNECTION, CONNECTION_GONE = range(8)
OK: Final = 0


def has_native_wire() -> bool:
    return hasattr(native, "GrpcServer")


class NativeGrpcListener:
    """Bound to a port first, because the service needs the port for its advertised address; then it serves."""

    def __init__(
        self,
        setting: str,
        connections_max: int = limits.DANUBE_CONNECTIONS_MAX,
        has_accounts: Callable[[], bool] = lambda: False,
    ) -> None:
        """`setting` is the key of the port, for errors and metrics. `has_accounts`: whether a connection is a stranger
        until it has proved a credential."""
        self._setting = setting
        self._connections_max = connections_max
        self._has_accounts = has_accounts
        self._socket: socket.socket | None = None
        self._tls: ListenerTls | None = None
        self._server: NativeGrpcServer | None = None
        self.port = 0

    @property
    def room(self) -> RoomState:
        counts = self._server.counts if self._server is not None else (0, 0, 0, 0)
        return RoomState(self._setting.removeprefix("ports."), self._connections_max, *counts)

    async def bind(self, host: str, port: int, tls: ListenerTls | None = None) -> int:
        """Returns the port."""
        self._tls = tls
        try:
            self._socket = listening_socket(host, port)
        except OSError as error:
            raise cannot_listen(self._setting, host, port, error) from None
        self.port = self._socket.getsockname()[1]
        return self.port

    async def serve(self, table: HandlerTable) -> None:
        assert self._socket is not None
        try:
            pem = None if self._tls is None else self._tls.pem
            self._server = NativeGrpcServer(
                self._socket.detach(), table, pem, self._connections_max, self._has_accounts
            )
        except ValueError as error:
            raise errors.ConfigurationError(str(error), hint="the settings tls.… name PEM files") from None
        if self._tls is not None:
            self._tls.on_change.append(self._server.set_tls)

    async def close(self) -> None:
        """Waits for calls in flight, CLOSE_SECONDS_MAX at most."""
        server, self._server = self._server, None
        if server is not None and self._tls is not None:
            self._tls.on_change.remove(server.set_tls)
        if server is not None:
            await server.close()
        elif self._socket is not None:
            self._socket.close()


class CallerConnection:
    """A connection: its address and certificate, and a Call for each set of metadata, by number; 0 has none."""

    __slots__ = ("calls", "certificate", "peer", "recognise")

    def __init__(self, peer: str, certificate: bytes | None, recognise: Callable[[], None]) -> None:
        self.peer = peer
        self.certificate = certificate
        self.recognise = recognise
        self.calls = {0: self.new_call({})}

    def new_call(self, metadata: Mapping[str, str]) -> Call:
        return Call(self.peer, metadata, self.certificate, recognise=self.recognise)


class NativeGrpcServer:
    def __init__(
        self,
        listener: int,
        table: HandlerTable,
        pem: Pem | None,
        connections_max: int,
        has_accounts: Callable[[], bool] = lambda: False,
    ) -> None:
        self._table = table
        self._has_accounts = has_accounts
        self._is_guarded = False
        self._batched = list(table.batched.items())
        self._loop = asyncio.get_running_loop()
        self._callers: dict[int, CallerConnection] = {}
        self._all_disconnected = asyncio.Event()
        self._all_disconnected.set()
        self._replaced_metadata: list[tuple[int, int]] = []  # dropped when the events of a wake-up are handled
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: dict[int, NativeStream] = {}
        assert native is not None
        self._wire: Any = native.GrpcServer(
            listener,
            batched=[(path, method.columns, method.echo) for path, method in self._batched],
            streams=list(table.streams),
            metadata_keys=METADATA_KEYS,
            connections_max=connections_max,
            message_bytes_max=limits.DANUBE_CALL_BYTES_MAX,
            pending_bytes_max=limits.DANUBE_IN_FLIGHT_BYTES_MAX,
            stream_bytes_low=limits.DANUBE_STREAM_BYTES_MAX // 2,
            keepalive_ms=limits.DANUBE_KEEPALIVE_MS,
            tls=pem,
        )
        self._event_handlers: dict[int, Callable[..., None]] = {
            BATCH: self._on_batch,
            UNARY: self._on_unary,
            STREAM: self._on_stream,
            STREAM_GONE: self._on_stream_closed,
            STREAM_LOW: self._on_stream_low,
            METADATA: self._on_metadata,
            CONNECTION: self._on_connected,
            CONNECTION_GONE: self._on_disconnected,
        }
        self._guard_places()
        self._loop.add_reader(self._wire.fileno(), self._on_wake_up)

    def set_tls(self, pem: Pem) -> None:
        """New connections get this certificate."""
        self._wire.set_tls(pem)

    def _guard_places(self) -> None:
        """Makes new connections strangers until a call of them has a credential, once clients have accounts
        (runtime/connection_room.py)."""
        if not self._is_guarded and self._has_accounts():
            self._is_guarded = True
            self._wire.guard()

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Open and busy connections now; evicted and refused ones since the start."""
        counts: tuple[int, int, int, int] = self._wire.connections()
        return counts

    def _on_wake_up(self) -> None:
        for kind, *details in self._wire.poll():
            self._event_handlers[kind](*details)
        if self._replaced_metadata:
            for connection, number in self._replaced_metadata:
                if (caller := self._callers.get(connection)) is not None:
                    caller.calls.pop(number, None)
            self._replaced_metadata.clear()

    # --- events of the wire ---

    def _on_connected(self, connection: int, peer: str, certificate: bytes | None) -> None:
        self._guard_places()
        self._callers[connection] = CallerConnection(peer, certificate, partial(self._wire.recognise, connection))
        self._all_disconnected.clear()

    def _on_disconnected(self, connection: int) -> None:
        self._callers.pop(connection, None)
        if not self._callers:
            self._all_disconnected.set()

    def _on_metadata(self, connection: int, number: int, pairs: Sequence[tuple[str, bytes]], replaced: int) -> None:
        """Remembers a set of metadata of a connection, which its calls refer to by number.

        The native part bounds the sets of a connection. Requests of this burst may still name the replaced one.
        """
        metadata = {key: value.decode("latin-1") for key, value in pairs}
        if (caller := self._callers.get(connection)) is not None:
            caller.calls[number] = caller.new_call(metadata)
        if replaced:
            self._replaced_metadata.append((connection, replaced))

    def _on_batch(self, number: int, method: int, count: int, present: bytes, *rest: Any) -> None:
        connections, metadata, _deadlines, columns = rest
        batch = RequestBatch(
            count,
            present,
            columns,
            lambda rows, failures: self._wire.complete(number, rows, failures),
            lambda: self._rows_by_call(count, connections, metadata),
        )
        try:
            self._batched[method][1].handle(batch)
        except Exception as error:  # noqa: BLE001 (whatever the error, the callers of all rows wait for a status)
            status = status_number(error)
            self._wire.complete(number, None, dict.fromkeys(range(count), status))

    def _on_unary(self, call: int, path: str, body: bytes, connection: int, metadata: int, deadline: int) -> None:
        handler = self._table.unary.get(path)
        if handler is None:
            self._wire.fail(call, STATUSES["UNIMPLEMENTED"], f"unknown method {path}")
            return
        self._start(self._serve_unary(call, handler, body, self._call(connection, metadata)))

    async def _serve_unary(self, call: int, handler: Unary, request: bytes, context: Call) -> None:
        try:
            body = await handler(request, context)
        except Exception as error:  # noqa: BLE001 (whatever the error, it becomes the status of the call)
            self._wire.fail(call, *status_number(error))
        else:
            self._wire.reply(call, body)

    def _on_stream(self, stream: int, path: str, body: bytes, connection: int, metadata: int, deadline: int) -> None:
        out = self._streams[stream] = NativeStream(self._wire, stream)
        handler = self._table.streams[path]
        out.task = self._start(self._serve_stream(stream, handler, body, self._call(connection, metadata), out))

    async def _serve_stream(
        self, stream: int, handler: Streaming, request: bytes, context: Call, out: NativeStream
    ) -> None:
        # The handler is called here and not by the caller: a stream that is closed in the burst that opened it is
        # cancelled before its first step, and a coroutine made outside would never be awaited.
        status = (OK, "")
        try:
            await handler(request, context, out)
        except Exception as error:  # noqa: BLE001 (as above)
            status = status_number(error)
        self._wire.finish(stream, *status)

    def _on_stream_closed(self, stream: int) -> None:
        out = self._streams.pop(stream, None)
        if out is not None and out.task is not None:
            out.task.cancel()

    def _on_stream_low(self, stream: int) -> None:
        out = self._streams.get(stream)
        if out is not None:
            out.drained()

    def _call(self, connection: int, metadata: int) -> Call:
        caller = self._callers.get(connection)
        call = caller.calls.get(metadata) if caller is not None else None
        # A set that was replaced while the request arrived: nothing says any more whose call it is.
        return call or Call("", {AUTHORIZATION: ""})

    def _rows_by_call(self, count: int, connections: bytes, metadata: bytes) -> dict[Call, list[int]]:
        """The rows of a batch by their calls; a batch of one call, the usual case, without a loop over the rows."""
        if connections == connections[:4] * count and metadata == metadata[:4] * count:
            first = memoryview(connections).cast("I")[0], memoryview(metadata).cast("I")[0]
            return {self._call(*first): list(range(count))}
        rows: dict[tuple[int, int], list[int]] = {}
        for row, pair in enumerate(zip(memoryview(connections).cast("I"), memoryview(metadata).cast("I"), strict=True)):
            rows.setdefault(pair, []).append(row)
        return {self._call(*pair): numbers for pair, numbers in rows.items()}

    def _start(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- closing ---

    async def close(self) -> None:
        """Drains the connections, each of which closes after its last response, then ends the thread."""
        self._wire.drain()
        try:
            async with asyncio.timeout(limits.CLOSE_SECONDS_MAX):
                await self._all_disconnected.wait()
        except TimeoutError:
            _log.warning("clients did not disconnect in time", connections=len(self._callers), calls=len(self._tasks))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop.remove_reader(self._wire.fileno())
        self._wire.close()


class NativeStream:
    """An OutStream over the queue of the native part."""

    def __init__(self, wire: Any, number: int) -> None:
        self._wire = wire
        self._number = number
        self._full = False
        self.task: asyncio.Task[None] | None = None
        self.on_drained: Callable[[], None] = lambda: None

    @property
    def is_full(self) -> bool:
        return self._full

    def push(self, messages: Sequence[bytes]) -> None:
        waiting = self._wire.push(self._number, messages)
        self._full = waiting is None or waiting >= limits.DANUBE_STREAM_BYTES_MAX

    def drained(self) -> None:
        self._full = False
        self.on_drained()
