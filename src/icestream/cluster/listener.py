"""The accepting side of connections between nodes: other nodes at this node's Raft port.

greeting   waits for HELLO      of this cluster, or of a node without one, and addressed to this node -> open
                                otherwise, and for a removed node: ERROR, and the connection ends
open       messages are passed to the node in the order of their arrival; calls are answered in any order. With
           accounts, messages are dropped until the greeting node is known as a member (member_check.py), and those
           that name another sender
receiving  a snapshot: INSTALL_SNAPSHOT, CHUNK …, END

A connection without a greeting within PEER_OPEN_SECONDS_MAX is closed. With TLS, half-open connections have places and
time of their own (runtime/tls_server.py), and each gets the certificate that is in use when it is accepted. When all
places are taken, connections that have not greeted are closed for new ones, then those of nodes that are not members
(runtime/connection_room.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from icestream import errors, limits
from icestream.cluster import wire
from icestream.cluster.tls import certified_name
from icestream.cluster.wire import PeerFrame, PeerHello, PeerWelcome
from icestream.metadata.eraftpb import ends_of, has_ends
from icestream.observability.log import get_logger
from icestream.rpc import document
from icestream.rpc.document import Document
from icestream.rpc.frame import Frame, encode_frame
from icestream.rpc.stream import FrameStream
from icestream.runtime.connection_room import ConnectionRoom, RoomState, Standing
from icestream.runtime.keep_alive import keep_alive
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.listening import cannot_listen, listening_socket
from icestream.runtime.tls_server import TlsServer

Call = Callable[[Document], Awaitable[Document]]
_log = get_logger("cluster")


class Incoming(Protocol):
    """A snapshot that is being received."""

    async def add(self, data: bytes) -> None: ...

    async def finish(self) -> None:
        """Completes the snapshot. Raises DecodeError if it differs from its announcement."""

    async def release(self) -> None:
        """Ends the transfer: the core has accepted or ignored the snapshot."""

    async def abort(self) -> None: ...


class Host(Protocol):
    """The part of a node that its connections use."""

    def greet(self, hello: PeerHello) -> PeerWelcome:
        """Answers a greeting. Raises the reason for which the node is refused."""

    def check_certificate(self, hello: PeerHello, name: str) -> None:
        """Raises ForeignCluster if a certificate for the node `name` may not speak for the greeting node."""

    def check_join(self, hello: PeerHello, name: str, arguments: Document) -> None:
        """Raises ForeignCluster if a certificate for the node `name` may not make this call of Join."""

    def is_of_cluster(self, hello: PeerHello) -> bool:
        """Whether the greeting node says that it belongs to the same cluster."""

    def may_call(self, hello: PeerHello, name: str) -> bool:
        """Whether calls of the greeting node are executed, beside GetNodeInfo, Invite and Join. `name`: the one of its
        certificate."""

    def may_send(self, hello: PeerHello, name: str) -> bool:
        """Whether messages of the greeting node are accepted now: with accounts, it is a member (hazard 105)."""

    @property
    def id(self) -> int:
        """The id of this node."""

    @property
    def has_accounts(self) -> bool: ...

    def receive(self, messages: list[bytes]) -> None: ...

    async def begin_snapshot(self, message: bytes) -> Incoming: ...

    @property
    def calls(self) -> dict[str, Call]: ...

    @property
    def open_calls(self) -> frozenset[str]:
        """The calls that nodes outside of the cluster may make."""


class PeerListener:
    """The Raft port of one node, and its connections."""

    def __init__(
        self,
        host: Host,
        tls: ListenerTls | None = None,
        connections_max: int = limits.PEER_CONNECTIONS_MAX,
        certified_cluster: str = "",
    ) -> None:
        """`certified_cluster`: the cluster that certificates of other nodes must name (tls.py); empty: none."""
        self.host = host
        self.places: ConnectionRoom[PeerConnection] = ConnectionRoom("raft", connections_max)
        self._tls = tls
        self.certified_cluster = certified_cluster
        self._server: asyncio.Server | TlsServer | None = None
        self.connections: set[PeerConnection] = set()
        self.port = 0
        self.is_closed = False

    async def listen(self, address: str, port: int) -> None:
        """Opens the port. Raises ConfigurationError if it is taken."""
        loop = asyncio.get_running_loop()
        try:
            if self._tls is None:
                self._server = await loop.create_server(lambda: PeerConnection(self), address, port)
            else:
                listening = listening_socket(address, port)
                self._server = TlsServer(listening, lambda: PeerConnection(self), self._tls)
        except OSError as error:
            raise cannot_listen("ports.raft", address, port, error) from error
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def room(self) -> RoomState:
        return self.places.state

    def part_from(self, is_unwanted: Callable[[PeerHello], bool]) -> None:
        """Ends the connections of nodes that would be refused now."""
        for connection in tuple(self.connections):
            if connection.hello is not None and is_unwanted(connection.hello):
                connection.part()

    async def close(self) -> None:
        self.is_closed = True  # a connection accepted a moment ago may still arrive in connection_made
        if self._server is not None:
            # asyncio hands an accepted connection over in later turns of the loop. If its server closes meanwhile that
            # fails, and leaves the socket open (Python 3.11): so first nothing more is accepted, then it closes.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
            for _ in range(limits.ACCEPT_TURNS):
                await asyncio.sleep(0)
            self._server.close()
        for connection in tuple(self.connections):
            await connection.close()
        if self._server is not None:
            await self._server.wait_closed()
        await asyncio.sleep(0)  # aborted connections end in the next turn of the loop, which may be its last one


class PeerConnection(asyncio.BufferedProtocol):
    """One accepted connection."""

    def __init__(self, listener: PeerListener) -> None:
        self._listener = listener
        self._host = listener.host
        self._stream = FrameStream(limits.PEER_FRAME_BYTES_MAX, wire.FIRST)
        self._transport: asyncio.Transport | None = None
        self.hello: PeerHello | None = None
        self._certified_name = ""  # the node that its certificate names; empty: certificates need not name one
        self._is_confirmed = False  # a member, by its certificate, of a cluster with accounts
        self._ends = b""  # of its messages: sender and addressee
        self._tasks: set[asyncio.Task[None]] = set()
        self._chunks: asyncio.Queue[Frame] | None = None
        self._is_parting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Without it a connection of a machine that lost its power would stay for good.
        keep_alive(transport, limits.PEER_KEEP_ALIVE_SECONDS, limits.PEER_UNACKED_SECONDS_MAX)
        self._listener.connections.add(self)
        admission = self._listener.places.admit(self)
        if admission.evicted is not None:
            admission.evicted.abort()
        if self._listener.is_closed or not admission.is_admitted:
            transport.close()
        if self._listener.certified_cluster:
            try:
                self._certified_name = certified_name(transport, self._listener.certified_cluster)
            except errors.ForeignCluster as error:
                _log.warning("closed a connection at the Raft port", error=str(error))
                self.abort()
                return
        asyncio.get_running_loop().call_later(limits.PEER_OPEN_SECONDS_MAX, self._abort_without_hello)

    def _abort_without_hello(self) -> None:
        """Aborts a connection that has not greeted: it takes a place that members need."""
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
        """Closes the connection when its calls are answered: one of them may have requested the removal of its node."""
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
                    if self._takes(frame.body):
                        messages.append(frame.body)
                else:
                    self._receive(frame)
        except errors.IcestreamError as error:
            self._refuse(error)
        # All messages of one read in one call: the node handles them in one step, with one write.
        if messages:
            self._host.receive(messages)

    # --- frames ---

    def _receive(self, frame: Frame) -> None:
        """Handles a frame that is not a Raft message."""
        if frame.kind == PeerFrame.HELLO:
            hello = wire.decode_hello(frame.body)
            if self._certified_name:
                self._host.check_certificate(hello, self._certified_name)  # before anything is told
            welcome = self._host.greet(hello)
            self.hello = hello
            if self._certified_name:
                self._ends = ends_of(self._host.id, hello.node)
            is_member = self._host.is_of_cluster(hello) and self._host.may_send(hello, self._certified_name)
            self._listener.places.move(self, Standing.BUSY if is_member else Standing.IDLE)
            self._stream.kinds = wire.FROM_DIALLER
            self._send(PeerFrame.WELCOME, 0, wire.encode_welcome(welcome))
        elif frame.kind == PeerFrame.CALL:
            self._start(self._answer(frame))
        elif frame.kind == PeerFrame.INSTALL_SNAPSHOT:
            if not self._takes(frame.body):
                raise errors.NotReady(
                    "the sender of this snapshot is not known as a member yet", hint="it is sent again automatically"
                )
            if self._chunks is not None:
                raise errors.DecodeError("two snapshots on one connection")
            self._chunks = asyncio.Queue()
            self._start(self._take_snapshot(frame.body, self._chunks))
        elif self._chunks is not None:
            self._chunks.put_nowait(frame)
            if self._chunks.qsize() > limits.SNAPSHOT_CHUNKS_WAITING_MAX and self._transport is not None:
                self._transport.pause_reading()
        else:
            raise errors.DecodeError("CHUNK or END without INSTALL_SNAPSHOT")

    def _checked_hello(self) -> PeerHello:
        """The greeting, of a node of the same cluster. Raises NotReady."""
        if self.hello is None or not self._host.is_of_cluster(self.hello):
            raise errors.NotReady(
                "this node is not a member of a cluster yet", hint="the call is retried automatically"
            )
        return self.hello

    def _takes(self, message: bytes) -> bool:
        """Whether a Raft message of this connection is accepted; if not, it is dropped, and Raft repeats it."""
        hello = self._checked_hello()
        if not self._is_confirmed:
            if not self._host.may_send(hello, self._certified_name):
                return False
            # Not remembered while there are no accounts: from `security init` on it has to be a member.
            self._is_confirmed = self._host.has_accounts
            self._listener.places.move(self, Standing.BUSY)
        return not self._ends or has_ends(message, self._ends)

    def _check_joined(self) -> None:
        if self.hello is None or not self._host.may_call(self.hello, self._certified_name):
            raise errors.NotReady(
                "this node has no record of the calling node, which has to join first",
                hint="the call is retried automatically",
            )

    def _start(self, work: Any) -> None:
        if len(self._tasks) >= limits.PEER_CALLS_MAX:
            work.close()
            raise errors.DecodeError(f"more than {limits.PEER_CALLS_MAX} calls in flight on one connection")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._is_parting:
            self.part()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("call of another node failed with a bug", error=repr(error))

    async def _answer(self, frame: Frame) -> None:
        """Executes a call and sends its result or error."""
        method = ""
        try:
            method, arguments = document.decode_call(frame.body, limits.LOCAL_CALL_BYTES_MAX)
            call = self._host.calls.get(method)
            if call is None:
                raise errors.InvalidInput(f"unknown call {method[:40]!r} between nodes")
            if method not in self._host.open_calls:
                self._checked_hello()
            if method == "Join":
                if self._certified_name and self.hello is not None:
                    self._host.check_join(self.hello, self._certified_name, arguments)
            elif method not in self._host.open_calls:
                self._check_joined()
            self._send(PeerFrame.RESULT, frame.number, document.encode(await call(arguments)))
        except errors.IcestreamError as error:
            _log.debug("refused a call of another node", rpc=method, error=str(error))
            self._send(PeerFrame.ERROR, frame.number, document.encode_error(error))

    async def _take_snapshot(self, message: bytes, chunks: asyncio.Queue[Frame]) -> None:
        """Receives a snapshot into a file, passes its message to the node, and confirms it."""
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
            _log.warning("cannot receive a snapshot of another node", rpc="InstallSnapshot", error=str(error))
            self._refuse(errors.DecodeError(f"snapshot rejected: {error}"))
            return
        # Only now: the core may install the snapshot at once, and its state must be complete in a file.
        self._host.receive([message])
        self._send(PeerFrame.RESULT, frame.number, document.encode({}))
        await incoming.release()

    # --- out ---

    def _send(self, kind: PeerFrame, number: int, body: bytes) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(kind, number, body))

    def _refuse(self, error: errors.IcestreamError) -> None:
        """Sends an error for the whole connection, and closes it."""
        self._send(PeerFrame.ERROR, 0, document.encode_error(error))
        if self._transport is not None:
            self._transport.close()
