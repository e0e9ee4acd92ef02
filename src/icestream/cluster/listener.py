"""The dialled end: other nodes of the cluster at this one's Raft port.

greeting   waits for HELLO      of this cluster, or of a node that has none yet, and meant for this node -> open
                                else, and to a node that was removed, ERROR, and the connection ends
open       messages go to the node, in the order in which they came; calls are answered in any order
receiving  a snapshot: INSTALL_SNAPSHOT, CHUNK …, END

A connection that does not greet within PEER_OPEN_SECONDS_MAX is closed; with TLS its handshake has as long. When all
places are taken, those that have not greeted are closed for new ones, then those of nodes that are no members
(runtime/connection_room.py).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from icestream import errors, limits
from icestream.cluster import wire
from icestream.cluster.wire import Hello, PeerFrame, Welcome
from icestream.observability.log import get_logger
from icestream.rpc import document
from icestream.rpc.document import Document
from icestream.rpc.frame import Frame, encode_frame
from icestream.rpc.stream import FrameStream
from icestream.runtime.connection_room import ConnectionRoom, RoomState, Standing
from icestream.runtime.keep_alive import keep_alive
from icestream.runtime.listening import cannot_listen

Call = Callable[[Document], Awaitable[Document]]
_log = get_logger("cluster")


class Incoming(Protocol):
    """A snapshot that is being received."""

    async def add(self, data: bytes) -> None: ...

    async def finish(self) -> None:
        """All of it was sent. Raises DecodeError when it is not what was announced."""

    async def release(self) -> None:
        """The core has taken it, or has not."""

    async def abort(self) -> None: ...


class Host(Protocol):
    """What the connections need of their node."""

    def greet(self, hello: Hello) -> Welcome:
        """Raises what there is against this node."""

    def is_member(self, hello: Hello) -> bool:
        """Of the same cluster: its messages count."""

    def receive(self, messages: list[bytes]) -> None: ...

    async def begin_snapshot(self, message: bytes) -> Incoming: ...

    @property
    def calls(self) -> dict[str, Call]: ...

    @property
    def open_calls(self) -> frozenset[str]:
        """Those that anybody may make."""


class PeerListener:
    def __init__(
        self, host: Host, context: ssl.SSLContext | None = None, connections_max: int = limits.PEER_CONNECTIONS_MAX
    ) -> None:
        self.host = host
        self.places: ConnectionRoom[PeerConnection] = ConnectionRoom("raft", connections_max)
        self._context = context
        self._server: asyncio.Server | None = None
        self.connections: set[PeerConnection] = set()
        self.port = 0
        self.is_closed = False

    async def listen(self, address: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: PeerConnection(self),
                address,
                port,
                ssl=self._context,
                ssl_handshake_timeout=limits.PEER_OPEN_SECONDS_MAX if self._context is not None else None,
            )
        except OSError as error:
            raise cannot_listen("ports.raft", address, port, error) from error
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def room(self) -> RoomState:
        return self.places.state

    def part_from(self, is_unwanted: Callable[[Hello], bool]) -> None:
        """Ends the connections of nodes that would not be let in any more."""
        for connection in tuple(self.connections):
            if connection.hello is not None and is_unwanted(connection.hello):
                connection.part()

    async def close(self) -> None:
        self.is_closed = True  # one that was accepted a moment ago is made a connection behind this
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            await connection.close()
        if self._server is not None:
            await self._server.wait_closed()


class PeerConnection(asyncio.BufferedProtocol):
    def __init__(self, listener: PeerListener) -> None:
        self._listener = listener
        self._host = listener.host
        self._stream = FrameStream(limits.PEER_FRAME_BYTES_MAX, wire.FIRST)
        self._transport: asyncio.Transport | None = None
        self.hello: Hello | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._chunks: asyncio.Queue[Frame] | None = None
        self._is_parting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport, limits.PEER_KEEP_ALIVE_SECONDS, limits.PEER_UNACKED_SECONDS_MAX)  # else it stays for good
        self._listener.connections.add(self)
        admission = self._listener.places.admit(self)
        if admission.evicted is not None:
            admission.evicted.abort()
        if self._listener.is_closed or not admission.is_admitted:
            transport.close()
        asyncio.get_running_loop().call_later(limits.PEER_OPEN_SECONDS_MAX, self._end_strangers)

    def _end_strangers(self) -> None:
        """A connection that does not greet takes a place that others need."""
        if self.hello is None:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._listener.connections.discard(self)
        self._listener.places.leave(self)
        for task in self._tasks:
            task.cancel()

    def part(self) -> None:
        """When its calls are answered: one of them may be what led to this."""
        self._is_parting = True
        if self._transport is not None and not self._tasks:
            self._transport.close()

    async def close(self) -> None:
        tasks = tuple(self._tasks)
        if self._transport is not None:
            self._transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._stream.get_buffer()

    def buffer_updated(self, count: int) -> None:
        messages: list[bytes] = []
        try:
            for frame in self._stream.received(count):
                if frame.kind in wire.MESSAGES:
                    self._check_member()
                    messages.append(frame.body)
                else:
                    self._receive(frame)
        except errors.IcestreamError as error:
            self._refuse(error)
        if messages:
            self._host.receive(messages)

    # --- frames ---

    def _receive(self, frame: Frame) -> None:
        if frame.kind == PeerFrame.HELLO:
            hello = wire.decode_hello(frame.body)
            welcome = self._host.greet(hello)
            self.hello = hello
            self._listener.places.move(self, Standing.BUSY if self._host.is_member(hello) else Standing.IDLE)
            self._stream.kinds = wire.FROM_DIALLER
            self._send(PeerFrame.WELCOME, 0, wire.encode_welcome(welcome))
        elif frame.kind == PeerFrame.CALL:
            self._start(self._answer(frame))
        elif frame.kind == PeerFrame.INSTALL_SNAPSHOT:
            self._check_member()
            if self._chunks is not None:
                raise errors.DecodeError("two snapshots on one connection")
            self._chunks = asyncio.Queue()
            self._start(self._take_snapshot(frame.body, self._chunks))
        elif self._chunks is not None:
            self._chunks.put_nowait(frame)
            if self._chunks.qsize() > limits.SNAPSHOT_CHUNKS_WAITING_MAX and self._transport is not None:
                self._transport.pause_reading()
        else:
            raise errors.DecodeError("a piece of no snapshot")

    def _check_member(self) -> None:
        if self.hello is None or not self._host.is_member(self.hello):
            raise errors.NotReady(
                "this node is not a member of a cluster yet", hint="the call is retried automatically"
            )

    def _start(self, work: Any) -> None:
        if len(self._tasks) >= limits.PEER_CALLS_MAX:
            work.close()
            raise errors.DecodeError(f"more than {limits.PEER_CALLS_MAX} calls under way on one connection")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._is_parting:
            self.part()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a call of another node failed", error=repr(error))

    async def _answer(self, frame: Frame) -> None:
        method = ""
        try:
            method, arguments = document.decode_call(frame.body, limits.LOCAL_CALL_BYTES_MAX)
            call = self._host.calls.get(method)
            if call is None:
                raise errors.InvalidInput(f"{method[:40]!r} is no call between nodes")
            if method not in self._host.open_calls:
                self._check_member()
            self._send(PeerFrame.RESULT, frame.number, document.encode(await call(arguments)))
        except errors.IcestreamError as error:
            _log.debug("a call of another node was refused", rpc=method, error=str(error))
            self._send(PeerFrame.ERROR, frame.number, document.encode_error(error))

    async def _take_snapshot(self, message: bytes, chunks: asyncio.Queue[Frame]) -> None:
        incoming = await self._host.begin_snapshot(message)
        try:
            while (frame := await chunks.get()).kind == PeerFrame.CHUNK:
                await incoming.add(frame.body)
                if self._transport is not None and chunks.empty():
                    self._transport.resume_reading()
            await incoming.finish()
        except BaseException as error:
            await incoming.abort()
            if not isinstance(error, errors.IcestreamError | OSError):
                raise
            _log.warning("a snapshot of another node was not taken", rpc="InstallSnapshot", error=str(error))
            self._refuse(errors.DecodeError(f"the snapshot was not taken: {error}"))
            return
        self._host.receive([message])
        self._send(PeerFrame.RESULT, frame.number, document.encode({}))
        await incoming.release()

    # --- out ---

    def _send(self, kind: PeerFrame, number: int, body: bytes) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(kind, number, body))

    def _refuse(self, error: errors.IcestreamError) -> None:
        self._send(PeerFrame.ERROR, 0, document.encode_error(error))
        if self._transport is not None:
            self._transport.close()
