"""Serves a table of handlers (handlers.py) by the native wire: HTTP/2 in a thread of its own, one wake-up for a burst.

    unary      a task for each call
    streams    a task for each stream. What its client has no window for waits in the native part, which tells when
               little is left of it
    batched    no task: all requests of a method that came since the last wake-up, as columns, in one call of a handler,
               which answers rows as it learns their outcomes

Closing has two steps. First clients are told to bring no more calls, and those under way go on as long as they may.
Then the thread ends, and whatever is left with it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from icestream import errors, limits
from icestream.frontends.danube.danube_tls import Pem, TlsFiles
from icestream.frontends.danube.handlers import STATUSES, Call, HandlerTable, status_number
from icestream.frontends.danube.request_batch import RequestBatch
from icestream.observability.log import get_logger
from icestream.runtime.connection_room import RoomState
from icestream.runtime.listening import cannot_listen
from icestream.runtime.native import native

_log = get_logger("danube")
# What `poll` tells: native/src/wire/mod.rs.
BATCH, UNARY, STREAM, STREAM_GONE, STREAM_LOW, METADATA, CONNECTION, CONNECTION_GONE = range(8)
METADATA_KEYS: Final = ("x-icestream-start",)
OK: Final = 0
BACKLOG: Final = 512


def has_native_wire() -> bool:
    return hasattr(native, "GrpcServer")


class NativeGrpcListener:
    """First it has a port, which the service behind it tells its clients; then it serves."""

    def __init__(self, setting: str, connections_max: int = limits.DANUBE_CONNECTIONS_MAX) -> None:
        """`setting`: the key that names the port."""
        self._setting = setting
        self._connections_max = connections_max
        self._socket: socket.socket | None = None
        self._pem: Pem | None = None
        self._serving: NativeGrpcServer | None = None
        self.port = 0

    @property
    def room(self) -> RoomState:
        counts = self._serving.counts if self._serving is not None else (0, 0, 0, 0)
        return RoomState(self._setting.removeprefix("ports."), self._connections_max, *counts)

    async def bind(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """The port that it has."""
        self._pem = None if tls is None else tls.read()
        try:
            self._socket = _listening(host, port)
        except OSError as error:
            raise cannot_listen(self._setting, host, port, error) from None
        self.port = self._socket.getsockname()[1]
        return self.port

    async def serve(self, table: HandlerTable) -> None:
        assert self._socket is not None
        try:
            self._serving = NativeGrpcServer(self._socket.detach(), table, self._pem, self._connections_max)
        except ValueError as error:
            raise errors.ConfigurationError(str(error), hint="the settings danube.tls_… name PEM files") from None

    async def close(self) -> None:
        """Calls that are under way are answered, as far as they end in time."""
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.close()
        elif self._socket is not None:
            self._socket.close()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found


class NativeGrpcServer:
    def __init__(self, listener: int, table: HandlerTable, pem: Pem | None, connections_max: int) -> None:
        self._table = table
        self._batched = list(table.batched.items())
        self._loop = asyncio.get_running_loop()
        self._peers: dict[int, str] = {}
        self._nobody = asyncio.Event()  # is connected
        self._nobody.set()
        self._metadata: dict[int, dict[str, str]] = {}
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
        self._on: dict[int, Callable[..., None]] = {
            BATCH: self._take_batch,
            UNARY: self._take_unary,
            STREAM: self._take_stream,
            STREAM_GONE: self._stream_gone,
            STREAM_LOW: self._stream_low,
            METADATA: self._take_metadata,
            CONNECTION: self._connected,
            CONNECTION_GONE: self._disconnected,
        }
        self._loop.add_reader(self._wire.fileno(), self._look)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Connections, those of them that are busy; and since the start: evicted, refused."""
        counts: tuple[int, int, int, int] = self._wire.connections()
        return counts

    def _look(self) -> None:
        for kind, *told in self._wire.poll():
            self._on[kind](*told)

    # --- what the wire tells ---

    def _connected(self, connection: int, peer: str, certificate: bytes | None) -> None:
        self._peers[connection] = peer
        self._nobody.clear()

    def _disconnected(self, connection: int) -> None:
        self._peers.pop(connection, None)
        if not self._peers:
            self._nobody.set()

    def _take_metadata(self, number: int, pairs: Sequence[tuple[str, bytes]]) -> None:
        """A number is told once and may be used for long; the oldest are forgotten."""
        if len(self._metadata) >= limits.DANUBE_METADATA_SETS_MAX:
            del self._metadata[next(iter(self._metadata))]
        self._metadata[number] = {key: value.decode("latin-1") for key, value in pairs}

    def _take_batch(self, number: int, method: int, count: int, present: bytes, *rest: Any) -> None:
        columns = rest[-1]  # before them: connections, metadata, deadlines
        batch = RequestBatch(
            count, present, columns, lambda rows, failures: self._wire.complete(number, rows, failures)
        )
        try:
            self._batched[method][1].handle(batch)
        except Exception as error:  # noqa: BLE001 (whatever it is, all rows have callers who wait)
            status = status_number(error)
            self._wire.complete(number, None, dict.fromkeys(range(count), status))

    def _take_unary(self, call: int, path: str, body: bytes, connection: int, metadata: int, deadline: int) -> None:
        handler = self._table.unary.get(path)
        if handler is None:
            self._wire.fail(call, STATUSES["UNIMPLEMENTED"], f"there is no method {path}")
            return
        self._start(self._serve(call, handler(body, self._call(connection, metadata))))

    async def _serve(self, call: int, answer: Any) -> None:
        try:
            body = await answer
        except Exception as error:  # noqa: BLE001 (whatever it is becomes the status of the call)
            self._wire.fail(call, *status_number(error))
        else:
            self._wire.reply(call, body)

    def _take_stream(self, stream: int, path: str, body: bytes, connection: int, metadata: int, deadline: int) -> None:
        out = self._streams[stream] = NativeStream(self._wire, stream)
        handler = self._table.streams[path]
        out.task = self._start(self._serve_stream(stream, handler(body, self._call(connection, metadata), out)))

    async def _serve_stream(self, stream: int, running: Any) -> None:
        status = (OK, "")
        try:
            await running
        except Exception as error:  # noqa: BLE001 (as above)
            status = status_number(error)
        self._wire.finish(stream, *status)

    def _stream_gone(self, stream: int) -> None:
        out = self._streams.pop(stream, None)
        if out is not None and out.task is not None:
            out.task.cancel()

    def _stream_low(self, stream: int) -> None:
        out = self._streams.get(stream)
        if out is not None:
            out.drained()

    def _call(self, connection: int, metadata: int) -> Call:
        return Call(self._peers.get(connection, ""), self._metadata.get(metadata, {}))

    def _start(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the end ---

    async def close(self) -> None:
        """A connection ends by itself when its last answer is on the way."""
        self._wire.drain()
        try:
            async with asyncio.timeout(limits.CLOSE_SECONDS_MAX):
                await self._nobody.wait()
        except TimeoutError:
            _log.warning("clients did not leave in time", connections=len(self._peers), calls=len(self._tasks))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop.remove_reader(self._wire.fileno())
        self._wire.close()


class NativeStream:
    """An OutStream over the queue that the native part keeps for the stream."""

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
