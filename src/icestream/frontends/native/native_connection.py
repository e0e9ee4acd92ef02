"""One connection of the native protocol (rpc/frame.py): decodes frames, calls the broker, sends the responses.

    greeting   no frame received yet      a valid HELLO -> open, or verifying if it has a credential (or the client a
                                          certificate) and security is on; anything else, or a timeout -> ERROR, closed
    verifying  frames behind HELLO wait   the credential is valid -> WELCOME, open; else, or a timeout -> ERROR, closed
    open       frames are dispatched      a malformed frame -> closing
    closing    the socket is not read     pending responses are sent -> ERROR, closed; bounded by CLOSE_SECONDS_MAX
    closed     producers are closed, consumers leave; their unacked messages go to other consumers

When the session of the client ends (its credential expired or was revoked), the connection is closing with that error.

Frames are dispatched in order. When a frame has to wait (for room in the log, for outstanding publish responses, for
calls in flight, for a client that does not read its responses), the frames behind it are queued, the connection stops
reading its socket, and it resumes from that frame later: the client is slowed down, nothing is refused. While a PUBLISH
waits, ACK, NACK, CREDIT and PING overtake it and every PUBLISH behind it, and the socket is read up to a bound: what a
client settles must not wait until its own messages are stored (hazard 67). Outgoing bytes: outbox.py.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Collection, Coroutine
from typing import Any, Final, cast

from icestream import errors, limits
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.guarded_broker import BrokerDoor, GuardedBroker
from icestream.frontends.native.native_consumer import NativeConsumer
from icestream.frontends.native.notifier import Notifier
from icestream.frontends.native.outbox import Outbox
from icestream.frontends.native.public_calls import PUBLIC, Caller, CallTable
from icestream.frontends.native.publish_responses import PendingResponse, PublishResponses
from icestream.frontends.native.wire_connection import WireConnection
from icestream.frontends.send_budget import SendBudget
from icestream.observability.log import get_logger
from icestream.rpc import document, frame, handshake
from icestream.rpc.frame import Frame, FrameKind, PublishPart
from icestream.rpc.stream import FrameStream, head_error
from icestream.runtime.connection_room import Standing
from icestream.runtime.keep_alive import keep_alive
from icestream.runtime.listener_tls import peer_certificate
from icestream.runtime.tasks import Tasks
from icestream.security.credential import (
    BearerCredential,
    CertificateCredential,
    Credential,
    PasswordCredential,
    ProcessCredential,
)

_log = get_logger("native")
# What goes on while a PUBLISH in front of it waits (native/src/wire/frames/connection.rs).
OVERTAKING_KINDS: Final = frozenset({FrameKind.ACK, FrameKind.NACK, FrameKind.CREDIT, FrameKind.PING})


class _PublishInProgress:
    """A PUBLISH frame of which not every part has been handed to the broker yet."""

    __slots__ = ("delay_ms", "next_part", "parts", "response")

    def __init__(self, response: PendingResponse, parts: list[PublishPart]) -> None:
        self.response = response
        self.parts = parts
        self.next_part = 0
        self.delay_ms = 0  # of the response: the longest that the topics of its parts ask for


class QueuedFrames:
    """Frames behind one that waits, in order."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._publish_bytes = 0
        self._others = 0  # frames that are no PUBLISH

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def publish_bytes(self) -> int:
        """The size of the PUBLISH frames among them."""
        return self._publish_bytes

    @property
    def has_room(self) -> bool:
        """True if another frame may be read; False as soon as one is queued that no other frame may overtake."""
        return not self._others and self._publish_bytes < limits.CONNECTION_PARKED_BYTES_MAX

    def append(self, received: Frame) -> None:
        self._count(received, 1)
        self._frames.append(received)

    def return_first(self, received: Frame) -> None:
        self._count(received, 1)
        self._frames.appendleft(received)

    def take_first(self) -> Frame:
        received = self._frames.popleft()
        self._count(received, -1)
        return received

    def clear(self) -> None:
        self._frames.clear()
        self._publish_bytes = self._others = 0

    def may_overtake(self, kind: int) -> bool:
        return kind in OVERTAKING_KINDS and not self._others

    def _count(self, received: Frame, sign: int) -> None:
        if received.kind == FrameKind.PUBLISH:
            self._publish_bytes += sign * len(received.body)
        else:
            self._others += sign


class NativeConnection(asyncio.BufferedProtocol):
    def __init__(
        self,
        door: BrokerDoor,
        handshake_server: handshake.HandshakeServer,
        connections: SendBudget[NativeConnection],
        call_table: CallTable = PUBLIC,
        wire: WireConnection | None = None,
    ) -> None:
        """`wire`: its socket on the native wire; None if an asyncio transport reads the socket."""
        self._door = door
        self._publishing = door.publishing
        self._client: GuardedBroker | None = None  # the broker for this client; None until it is known
        self._handshake = handshake_server
        self._call_table = call_table
        self._connections = connections
        self._forwarded: OrderedDict[int, GuardedBroker] = OrderedDict()  # for clients of this process, by last use
        self._listener = connections.room.state.listener
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        # The native wire cuts frames off by itself: then the stream, and the buffer that it holds, is not needed.
        self._stream = FrameStream(limits.HELLO_BYTES_MAX, frame.FIRST_FROM_CLIENT) if wire is None else None
        self._frame_bytes_max = limits.HELLO_BYTES_MAX
        self._kinds: Collection[int] = frame.FIRST_FROM_CLIENT
        self._buffer_bytes = 0  # of the buffer that is being read into
        self._discard_buffer: bytearray | None = None  # for bytes that arrive after our ERROR frame
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None  # for HELLO; later for the end of the connection
        self._tasks = Tasks(self._task_failed)
        self._publish_in_progress: _PublishInProgress | None = None
        self._last_publish_number = 0
        self._queued_frames = QueuedFrames()  # received behind a frame that waits
        self._queued_failure: errors.IcestreamError | None = None  # a decoding error behind the queued frames
        self._is_waiting = False
        self._is_parked = False  # it is a PUBLISH that waits
        self._is_closing = False
        self._calls_in_flight = 0
        self._call_finished = Notifier()
        self.out = Outbox(connections, self._resume_consumers, None if wire is None else wire.write_later)
        self.lost = asyncio.Event()
        self.leaving = asyncio.Event()  # ends calls that only wait
        self.peer = ""
        self.peer_certificate: bytes | None = None  # the verified one of the client, in DER
        self.producers: dict[int, BrokerProducer] = {}
        self.consumers: dict[int, NativeConsumer] = {}
        self.watches: dict[int, asyncio.Task[None]] = {}
        self._last_handle = 0
        self.responses = PublishResponses(self.out.send_frame if wire is None else wire.send_published)

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the methods, not the base class
        self.out.attach(self._transport)
        self.peer = _address_text(transport.get_extra_info("peername"))
        self.peer_certificate = peer_certificate(transport)
        admission = self._connections.room.admit(self, is_stranger=self._door.is_secured)
        if admission.evicted is not None:
            admission.evicted.make_room()
        if not admission.is_admitted:
            reason = errors.Refused(
                f"connection limit reached: all {len(self._connections)} connections are busy",
                hint="close some of them",
            )
            self.close(reason, limits.REFUSED_SECONDS_MAX)
            return
        self._connections.add(self)
        self._deadline = self._loop.call_later(limits.HELLO_SECONDS_MAX, self._on_hello_timeout)
        # Without keep-alive, the consumers of a client whose machine died would hold their messages for ever. (The
        # native wire sets it when it accepts.)
        keep_alive(transport, limits.KEEP_ALIVE_SECONDS)

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        if self._discard_buffer is not None:
            return self._discard_buffer
        assert self._stream is not None
        buffer = self._stream.get_buffer()
        self._buffer_bytes = len(buffer)
        return buffer

    def buffer_updated(self, count: int) -> None:
        if self._discard_buffer is not None:
            return
        assert self._stream is not None
        if count == self._buffer_bytes:
            self._yield_to_other_connections()
        try:
            for received in self._stream.received(count):
                self._on_frame(received)
        except errors.IcestreamError as error:
            self._on_invalid(error)

    def frame_received(self, received: Frame) -> None:
        """Called by the native wire for each frame that it does not hand over in a group."""
        try:
            self._on_frame(received)
        except errors.IcestreamError as error:
            self._on_invalid(error)

    def publish_received(self, received: Frame, last_publish_number: int) -> None:
        """Called by the native wire for a PUBLISH; `last_publish_number`: of the one before it, handed over or not."""
        self._last_publish_number = last_publish_number
        self.frame_received(received)

    @property
    def takes_settlements(self) -> bool:
        """True if an ACK, NACK or CREDIT that is received now is dispatched at once, neither queued nor ignored."""
        if self._is_closing or self._transport is None or self.out.is_flooded:
            return False
        return not self._is_waiting or self._may_overtake(FrameKind.ACK)

    def _may_overtake(self, kind: int) -> bool:
        return self._is_parked and self._queued_failure is None and self._queued_frames.may_overtake(kind)

    def head_received(self, size: int, kind: int) -> None:
        """Called by the native wire for a frame head that is invalid; nothing follows."""
        self._on_invalid(head_error(size, kind, self._frame_bytes_max, self._kinds))

    def _on_invalid(self, error: errors.IcestreamError) -> None:
        if self._is_waiting:
            self._queued_failure = error  # raised once the frames before it have been dispatched
            self._update_reading()
        else:
            self._fail(error)

    def _yield_to_other_connections(self) -> None:
        """Stops reading until the next loop tick, after a full buffer.

        uvloop would read the same socket up to 32 times in one tick, while other connections wait (hazard 35).
        """
        if self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_soon(self._update_reading)

    def _update_reading(self) -> None:
        if self._transport is None or self._is_closing:
            return
        may_queue = self._is_parked and self._queued_failure is None and self._queued_frames.has_room
        if may_queue or not self._is_waiting:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self.out.attach(None)
        self.lost.set()
        self.leaving.set()
        if self._deadline is not None:
            self._deadline.cancel()
        self._queued_frames.clear()
        self._publish_in_progress = None
        self.responses.close()
        for producer in self.producers.values():
            self.broker.close_producer(producer)
        for consumer in list(self.consumers.values()):
            consumer.leave()
        for watch in self.watches.values():
            watch.cancel()
        self.producers.clear()
        self.consumers.clear()
        self.watches.clear()
        for client in (self._client, *self._forwarded.values()):
            if client is not None:
                self._door.leave(client)
        self._forwarded.clear()
        self._stop_task = self._loop.create_task(self._tasks.stop())

    def pause_writing(self) -> None:
        self.out.pause()

    def resume_writing(self) -> None:
        self.out.resume()

    # --- out ---

    def set_share(self, share_bytes: int) -> None:
        """Sets how many bytes may wait for this connection's socket."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=share_bytes)

    @property
    def is_full(self) -> bool:
        """True while no messages should be sent to this connection."""
        return self._is_closing or self.out.is_full

    @property
    def broker(self) -> GuardedBroker:
        """The use cases for the client of this connection, which is known."""
        assert self._client is not None
        return self._client

    @property
    def agreed(self) -> handshake.Agreement:
        assert self.out.agreed is not None
        return self.out.agreed

    def _resume_consumers(self) -> None:
        for consumer in list(self.consumers.values()):
            consumer.drained()

    def close(self, error: errors.IcestreamError, linger_seconds: float) -> None:
        """Sends the error and closes once the client has closed its end, after `linger_seconds` at the latest.

        Bytes that still arrive are read and discarded: closing a socket with unread bytes resets the connection, and
        the client might lose the ERROR frame.
        """
        self.out.send_frame(FrameKind.ERROR, 0, document.encode_error(error))
        self.out.write()
        self.out.attach(None)
        self._is_closing = True
        if self._transport is not None and not self._transport.is_closing():
            self._discard_buffer = bytearray(limits.SOCKET_READ_BYTES_MIN)
            self._transport.write_eof()
            self._transport.resume_reading()
            self._abort_after(linger_seconds)

    def make_room(self) -> None:
        """Closes this connection, which is idle (no producer, consumer or call), in favour of a new one."""
        _log.info("closed an idle connection to make room for a new one", peer=self.peer)
        if self.out.agreed is None:
            self.abort()
        else:
            reason = errors.Refused("connection limit reached, and this connection was idle", hint="connect again")
            self.close(reason, limits.REFUSED_SECONDS_MAX)

    def abort(self) -> None:
        """Closes at once; the client may lose bytes that it has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    def _abort_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self.abort)

    async def leave(self, error: errors.IcestreamError) -> None:
        """Stops reading, sends the pending responses and then the error. Returns when the connection is closed."""
        self._is_closing = True
        self.leaving.set()
        self._abort_after(limits.CLOSE_SECONDS_MAX)
        if self._transport is not None:
            self._transport.pause_reading()
        self._queued_frames.clear()
        if self._publish_in_progress is not None:
            self.responses.abandon(self._publish_in_progress.response)
            self._publish_in_progress = None
        await self.responses.finish()
        if self._wire is not None:
            await self._wire.groups_settled()
        await self._call_finished.wait_while(lambda: self._calls_in_flight > 0)
        self.close(error, limits.CLOSE_SECONDS_MAX)
        await self.lost.wait()

    def _fail(self, error: errors.IcestreamError) -> None:
        """Closes the connection with the error, after the responses to the frames before it."""
        _log.info("closing a connection", peer=self.peer, reason=str(error))
        self._is_closing = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._tasks.start(self.leave(error), "native-leave")

    def _on_hello_timeout(self) -> None:
        if self._is_waiting:
            self._fail(errors.Unauthenticated("the credential was not verified in time", hint="connect again"))
            return
        self._fail(
            errors.DecodeError("no HELLO frame received in time", hint="does the client speak the native protocol?")
        )

    def _task_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a task of a native connection failed", "exception": error})

    # --- in ---

    def _on_frame(self, received: Frame) -> None:
        if self._transport is None or self._transport.is_closing() or self._is_closing:
            return
        if self._is_waiting:
            if not self._overtake(received):
                self._queued_frames.append(received)
                self._update_reading()
        elif self.out.agreed is None:
            self._on_hello(received)
        else:
            self._admit(received)

    def _on_hello(self, hello: Frame) -> None:
        agreed, welcome, fields = self._handshake.agree(hello)
        # Frames behind HELLO are cut off by its bounds. While a credential is verified, nothing more is read.
        self._frame_bytes_max, self._kinds = agreed.frame_bytes_max, frame.FROM_CLIENT
        if self._stream is not None:
            self._stream.frame_bytes_max, self._stream.kinds = self._frame_bytes_max, self._kinds
        if self._wire is not None:
            self._wire.open(agreed.frame_bytes_max)
        credential = self._credential(fields)
        if credential is None or not (self._door.is_secured or isinstance(credential, ProcessCredential)):
            self._open(self._door.admit_anonymous(self.peer, self._listener), agreed, hello.number, welcome)
        else:
            self._wait(self._verify(credential, agreed, hello.number, welcome))

    def _credential(self, fields: handshake.HelloCredential | None) -> Credential | None:
        """The credential of the HELLO, else the certificate of the client."""
        if fields is None:
            return CertificateCredential(self.peer_certificate) if self.peer_certificate else None
        if fields.role:
            return ProcessCredential(fields.role, fields.secret)
        return BearerCredential(fields.token) if fields.token else PasswordCredential(fields.user, fields.password)

    async def _verify(
        self, credential: Credential, agreed: handshake.Agreement, hello_number: int, welcome: bytes
    ) -> None:
        """Raises Unauthenticated, which closes the connection."""
        client = await self._door.authenticate(credential, self.peer, self._listener)
        if self.lost.is_set() or self._is_closing:
            self._door.leave(client)
        else:
            self._open(client, agreed, hello_number, welcome)

    def _open(self, client: GuardedBroker, agreed: handshake.Agreement, hello_number: int, welcome: bytes) -> None:
        """Accepts the frames of a client that is known now."""
        self._client = client
        client.session.on_end = self._on_session_ended
        self.out.send_frame(FrameKind.WELCOME, hello_number, welcome)
        self.out.agreed = agreed
        self._update_standing()
        if not client.session.is_anonymous and (evicted := self._connections.room.recognise(self)) is not None:
            evicted.make_room()
        if self._deadline is not None:
            self._deadline.cancel()

    def _on_session_ended(self, reason: errors.IcestreamError) -> None:
        """Closes the connection: its credential is not valid any more, or it has to send one."""
        if not self._is_closing:
            self._fail(reason)

    def _update_standing(self) -> None:
        """Records whether this connection is idle, and so may be closed in favour of a new one."""
        is_busy = self._calls_in_flight or self.producers or self.consumers or self.watches
        self._connections.room.move(self, Standing.BUSY if is_busy else Standing.IDLE)

    def _admit(self, received: Frame) -> None:
        """Dispatches the frame, or queues it while the client does not read its responses (hazard 35)."""
        if self.out.is_flooded:
            self._queued_frames.return_first(received)
            self._wait(self.out.written.wait_while(lambda: self.out.is_flooded))
        else:
            self._dispatch(handshake.incoming_frame(received, self.agreed))

    def _overtake(self, received: Frame) -> bool:
        """Dispatches the frame before the PUBLISH that waits; False if it has to be queued."""
        if self.out.is_flooded or not self._may_overtake(received.kind):
            return False
        try:
            self._dispatch(handshake.incoming_frame(received, self.agreed))
        except errors.IcestreamError:
            return False  # it fails again, and closes the connection, behind the frames before it
        return True

    def _dispatch(self, request: Frame) -> None:
        match request.kind:
            case FrameKind.PUBLISH:
                self._on_publish(request)
            case FrameKind.ACK | FrameKind.NACK:
                is_ack = request.kind == FrameKind.ACK
                ranges = frame.decode_ack(request.body) if is_ack else frame.decode_nack(request.body)
                if (consumer := self._consumer(ranges.consumer)) is not None:
                    self._declare(consumer)
                    consumer.settle(ranges, is_ack=is_ack)
            case FrameKind.CREDIT:
                handle, messages = frame.decode_credit(request.body)
                if (consumer := self._consumer(handle)) is not None:
                    self._declare(consumer)
                    consumer.give_credit(messages)
            case FrameKind.CALL:
                self._on_call(request)
            case _:
                frame.check_ping(request.body)
                _check_number(request)
                self.out.send_frame(FrameKind.PONG, request.number, request.body)

    def _consumer(self, handle: int) -> NativeConsumer | None:
        """The consumer with this handle; None if it was closed, which the client may not have learned yet.

        Raises UnknownHandle for a handle that never belonged to a consumer of this connection.
        """
        consumer = self.consumers.get(handle)
        if consumer is None and (handle in self.producers or not 0 < handle <= self._last_handle):
            raise errors.UnknownHandle(f"this connection has no consumer {handle}")
        return consumer

    def _declare(self, consumer: NativeConsumer) -> None:
        if self._wire is not None:
            self._wire.declare_consumer(consumer)

    def _wait(self, until: Coroutine[Any, Any, None], *, is_publish: bool = False, has_room: bool = False) -> None:
        """Queues frames until `until` returns, then resumes with the frame that waits.

        `is_publish`: that is a PUBLISH, which some frames may overtake. `has_room`: `until` reserved room in the log,
        so that the next part is published without another check.
        """
        self._is_waiting, self._is_parked = True, is_publish
        if is_publish and self._wire is not None:
            self._wire.hold()
        self._update_reading()
        self._tasks.start(self._resume_after(until, has_room=has_room), "native-wait")

    async def _resume_after(self, until: Coroutine[Any, Any, None], *, has_room: bool) -> None:
        try:
            await until
            self._end_wait()
            if self._publish_in_progress is not None:
                self._publish_parts(self._publish_in_progress, has_room=has_room)
            while self._queued_frames and not self._is_waiting:
                self._admit(self._queued_frames.take_first())
            if self._queued_failure is not None and not self._is_waiting:
                raise self._queued_failure
        except errors.IcestreamError as error:
            self._fail(error)
        self._update_reading()

    def _end_wait(self) -> None:
        if self._is_parked and self._wire is not None:
            self._wire.release()
        self._is_waiting = self._is_parked = False

    # --- publishing ---

    def _on_publish(self, request: Frame) -> None:
        # Every part is checked before any of them is stored: a malformed frame closes the connection, and the client
        # must be able to rely on nothing of it being stored.
        parts = frame.decode_parts(request.body)
        for part in parts:
            if part.producer not in self.producers:
                self._check_closed_producer(part.producer)
        if request.number <= self._last_publish_number:
            raise errors.InvalidInput(
                f"PUBLISH number {request.number} received after PUBLISH number {self._last_publish_number}",
                hint="PUBLISH frames are numbered in ascending order, from 1",
            )
        self._last_publish_number = request.number
        response = self.responses.begin(request.number, len(request.body))
        self._publish_in_progress = _PublishInProgress(response, parts)
        self._publish_parts(self._publish_in_progress, has_room=False)

    def _check_closed_producer(self, handle: int) -> None:
        """Raises UnknownHandle for a handle that never belonged to a producer of this connection.

        A part for a closed producer is refused in the response: the client may not have learned of the closing yet.
        """
        if handle in self.consumers or not 0 < handle <= self._last_handle:
            raise errors.UnknownHandle(f"this connection has no producer {handle}")

    def _publish_parts(self, publish: _PublishInProgress, *, has_room: bool) -> None:
        """Hands the parts to the broker in order, until one of them has to wait."""
        while publish.next_part < len(publish.parts):
            part = publish.parts[publish.next_part]
            producer = self.producers.get(part.producer)
            if not has_room and producer is not None and self._has_to_wait(producer, part):
                return
            has_room = False
            publish.next_part += 1
            self._publish_part(publish, producer, part)
        self._publish_in_progress = None
        self.responses.end(publish.response, publish.delay_ms)

    def _has_to_wait(self, producer: BrokerProducer, part: PublishPart) -> bool:
        """True if the part cannot be published now; publishing then resumes by itself."""
        size = len(part.block)
        if self.responses.is_full or producer.is_full(part.shard):
            self._wait(
                self.responses.settled.wait_while(lambda: self.responses.is_full or producer.is_full(part.shard)),
                is_publish=True,
            )
        elif not self._publishing.has_room(size):
            self._wait(self._publishing.wait_for_room(size), is_publish=True, has_room=True)
        elif self._wire is not None and self._wire.has_waiting_groups(producer, part.shard):
            self._wait(self._wire.groups_published(producer, part.shard), is_publish=True)
        else:
            return False
        return True

    def _publish_part(self, publish: _PublishInProgress, producer: BrokerProducer | None, part: PublishPart) -> None:
        try:
            if producer is None:
                raise errors.UnknownHandle(f"producer {part.producer} is closed", hint="open it again")
            result = self._publishing.publish(producer, part.shard, part.block)
        except errors.IcestreamError as error:
            self.responses.add(publish.response, PublishResponses.refused(error))
        else:
            if self._wire is not None:
                self._wire.declare_producer(part.producer, producer, part.shard)
            publish.delay_ms = max(publish.delay_ms, result.pause_ms)
            self.responses.add(publish.response, result)

    # --- calls ---

    def _on_call(self, request: Frame) -> None:
        if self._calls_in_flight >= limits.CALLS_IN_FLIGHT_MAX:
            self._queued_frames.return_first(request)
            self._wait(self._call_finished.wait_while(lambda: self._calls_in_flight >= limits.CALLS_IN_FLIGHT_MAX))
            return
        _check_number(request)
        method, arguments = document.decode_call(request.body, self._call_table.call_bytes_max)
        self._calls_in_flight += 1
        self._update_standing()
        self._tasks.start(self._run_call(request.number, method, arguments), "native-call")

    async def _run_call(self, number: int, method: str, arguments: dict[str, Any]) -> None:
        """Sends a RESULT or an ERROR for every call, also after an unexpected exception: the client waits for it."""
        try:
            call = self._call_table.calls.get(method)
            if call is None:
                raise errors.InvalidInput(f"unknown method {method!r}", hint="docs/protocol.md lists them")
            answer = await call(self._caller(method, arguments), arguments)
            result = document.encode(answer, self._call_table.result_bytes_max)
        except errors.IcestreamError as error:
            self.out.send_frame(FrameKind.ERROR, number, document.encode_error(error))
        except Exception:
            internal_error = errors.IcestreamError(f"internal error in method {method!r}", hint="see the broker's log")
            self.out.send_frame(FrameKind.ERROR, number, document.encode_error(internal_error))
            raise
        else:
            self.out.send_frame(FrameKind.RESULT, number, result)
        finally:
            self._calls_in_flight -= 1
            self._update_standing()
            self._call_finished.notify()

    # --- sessions ---

    @property
    def socket(self) -> Any:
        """The socket of an asyncio transport, for its options; None on the native wire."""
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def _caller(self, method: str, arguments: dict[str, Any]) -> Caller:
        """Returns the caller: the client of this connection, or the client of the session that the arguments name.

        Raises UnknownHandle, and PermissionDenied for a call that this client may not make.
        """
        number = arguments.get("session")
        client: GuardedBroker | None = None
        if number is not None:
            client = self._forwarded.get(number) if isinstance(number, int) else None
            if client is None:
                raise errors.UnknownHandle("this connection has no such session", hint="open it again")
            self._forwarded.move_to_end(number)
        admit = self._call_table.admit
        return Caller(self, admit(method, self.broker, client) if admit is not None else client or self.broker)

    def add_session(self, client: GuardedBroker) -> int:
        """Returns a handle for the session of a client, for which this connection makes calls."""
        if len(self._forwarded) >= limits.SESSIONS_PER_CONNECTION_MAX:
            self._door.leave(self._forwarded.popitem(last=False)[1])
        handle = self.new_handle()
        self._forwarded[handle] = client
        return handle

    def close_session(self, handle: int) -> None:
        client = self._forwarded.pop(handle, None)
        if client is not None:
            self._door.leave(client)

    # --- handles ---

    def new_handle(self) -> int:
        self._last_handle += 1
        return self._last_handle

    def check_handle_limit(self) -> None:
        """Raises Refused if this connection cannot open another producer or consumer."""
        if len(self.producers) + len(self.consumers) + self._calls_in_flight > limits.HANDLES_PER_CONNECTION_MAX:
            raise errors.Refused(
                f"this connection has the maximum of {limits.HANDLES_PER_CONNECTION_MAX} producers and consumers",
                hint="close some of them",
            )

    def register_producer(self, producer: BrokerProducer) -> int:
        """Returns a handle for the producer.

        Raises ConnectionLost if the client disconnected while the producer was being opened.
        """
        if self.lost.is_set():
            self.broker.close_producer(producer)
            raise errors.ConnectionLost("the client disconnected")
        handle = self.new_handle()
        self.producers[handle] = producer
        return handle

    def unregister_producer(self, handle: int) -> BrokerProducer | None:
        """Returns the producer that had the handle, which belongs to none from now on."""
        producer = self.producers.pop(handle, None)
        # A client may name any number; the wire takes its own handles only.
        if producer is not None and self._wire is not None:
            self._wire.forget_producer(handle)
        return producer

    def register_consumer(self, consumer: NativeConsumer) -> None:
        self.consumers[consumer.handle] = consumer
        self._declare(consumer)

    def unregister_consumer(self, handle: int) -> None:
        """Ignores what the client still sends for the consumer."""
        if self._wire is not None:
            self._wire.forget_consumer(handle)
        self.consumers.pop(handle, None)


def _check_number(request: Frame) -> None:
    """Raises InvalidInput for number 0: an ERROR frame with that number closes the connection."""
    if not request.number:
        raise errors.InvalidInput("CALL or PING with the number 0", hint="requests are numbered from 1")


def _address_text(address: tuple[Any, ...] | str | None) -> str:
    """`host:port` of a TCP address, as asyncio or the native wire has it; "local" for the local socket."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return address or "local"
