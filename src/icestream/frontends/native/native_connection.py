"""One connection of the native protocol (rpc/frame.py): bytes in, use cases of the broker, bytes out.

    greeting   nothing was said yet           a good HELLO -> open; anything else, or nothing in time -> ERROR, closed
    open       frames are carried out         a frame that does not add up -> leaving
    leaving    nothing is read any more       the answers that are due have left -> ERROR, closed; not for long
    closed     producers are closed, consumers leave; what they had in flight goes to others

Frames are carried out in order. When one has to wait (for room in the log, for answers that are due, for calls under
way, for a client that does not read its answers), the connection stops reading its socket and goes on from that frame
later: the client is slowed, nothing is refused. What leaves: outbox.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast

from icestream import errors, limits
from icestream.broker.service import Broker
from icestream.broker.topic import Producer
from icestream.frontends.native.native_consumer import NativeConsumer
from icestream.frontends.native.notifier import Notifier
from icestream.frontends.native.outbox import Outbox
from icestream.frontends.native.public_calls import PUBLIC, CallTable
from icestream.frontends.native.publish_responses import PendingResponse, PublishResponses
from icestream.frontends.native.send_budget import SendBudget
from icestream.observability.log import get_logger
from icestream.rpc import document, frame, handshake
from icestream.rpc.frame import Frame, Kind, Part
from icestream.rpc.stream import FrameStream
from icestream.runtime.connection_room import Standing
from icestream.runtime.keep_alive import keep_alive
from icestream.runtime.tasks import Tasks

_log = get_logger("native")


class _Publish:
    """A PUBLISH that is being carried out."""

    __slots__ = ("answer", "at", "late_ms", "parts")

    def __init__(self, answer: PendingResponse, parts: list[Part]) -> None:
        self.answer = answer
        self.parts = parts
        self.at = 0
        self.late_ms = 0


class NativeConnection(asyncio.BufferedProtocol):
    def __init__(
        self,
        broker: Broker,
        welcome: handshake.Server,
        connections: SendBudget,
        offered: CallTable = PUBLIC,
    ) -> None:
        self.broker = broker
        self._welcome = welcome
        self._offered = offered
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._stream = FrameStream(limits.HELLO_BYTES_MAX, frame.FIRST_FROM_CLIENT)
        self._room = 0  # of the buffer that is being read into
        self._dropped: bytearray | None = None  # what comes after our last word
        self._transport: asyncio.Transport | None = None
        self._due: asyncio.TimerHandle | None = None  # until then it has said HELLO, or has gone
        self._tasks = Tasks(self._task_failed)
        self._publishing: _Publish | None = None
        self._published = 0  # the number of the last PUBLISH
        self._held: deque[Frame] = deque()  # frames behind one that waits
        self._failure: errors.IcestreamError | None = None  # what came behind those
        self._is_waiting = False
        self._is_leaving = False
        self._calls = 0
        self._call_ended = Notifier()
        self.out = Outbox(connections, self._tell_consumers)
        self.lost = asyncio.Event()
        self.leaving = asyncio.Event()  # a call that only waits ends now
        self.peer = ""
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, NativeConsumer] = {}
        self.watches: dict[int, asyncio.Task[None]] = {}
        self._handles = 0
        self.answers = PublishResponses(self.out.send_frame)

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        self.out.use(self._transport)
        self.peer = str(transport.get_extra_info("peername") or "local")
        admission = self._connections.room.admit(self)
        if admission.evicted is not None:
            admission.evicted.make_room()
        if not admission.is_admitted:
            refused = errors.Refused(f"{len(self._connections)} connections are busy", hint="close some of them")
            self.close(refused, limits.REFUSED_SECONDS_MAX)
            return
        self._connections.add(self)
        self._due = self._loop.call_later(limits.HELLO_SECONDS_MAX, self._is_silent)
        keep_alive(transport, limits.KEEP_ALIVE_SECONDS)  # whoever is gone would hold its consumers for ever

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        if self._dropped is not None:
            return self._dropped
        buffer = self._stream.get_buffer()
        self._room = len(buffer)
        return buffer

    def buffer_updated(self, count: int) -> None:
        if self._dropped is not None:
            return
        if count == self._room:
            self._end_turn()
        try:
            for one in self._stream.received(count):
                self._receive(one)
        except errors.IcestreamError as error:
            if self._is_waiting:
                self._failure = error
            else:
                self._give_up(error)

    def _end_turn(self) -> None:
        """There is more to read than one tick takes of a connection (hazard 35): uvloop would read on, 32 times."""
        if self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._is_waiting and not self._is_leaving and self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self.out.use(None)
        self.lost.set()
        self.leaving.set()
        if self._due is not None:
            self._due.cancel()
        self._held.clear()
        self._publishing = None
        self.answers.close()
        for producer in self.producers.values():
            self.broker.close_producer(producer)
        for consumer in list(self.consumers.values()):
            consumer.leave()
        for watching in self.watches.values():
            watching.cancel()
        self.producers.clear()
        self.consumers.clear()
        self.watches.clear()
        self._ending = self._loop.create_task(self._tasks.stop())

    def pause_writing(self) -> None:
        self.out.pause()

    def resume_writing(self) -> None:
        self.out.resume()

    # --- out ---

    def set_share(self, share_bytes: int) -> None:
        """So much may wait for its socket."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=share_bytes)

    @property
    def is_full(self) -> bool:
        """It takes no messages now."""
        return self._is_leaving or self.out.is_full

    @property
    def agreed(self) -> handshake.Agreed:
        assert self.out.agreed is not None
        return self.out.agreed

    def _tell_consumers(self) -> None:
        for consumer in list(self.consumers.values()):
            consumer.drained()

    def close(self, error: errors.IcestreamError, linger_seconds: float) -> None:
        """Says why, and goes when the client has read that and closes its end, or after a while.

        What it still sends is read and dropped: closed with something unread, a socket takes its last words back.
        """
        self.out.send_frame(Kind.ERROR, 0, document.encode_error(error))
        self.out.write()
        self.out.use(None)
        self._is_leaving = True
        if self._transport is not None and not self._transport.is_closing():
            self._dropped = bytearray(limits.SOCKET_READ_BYTES_MIN)
            self._transport.write_eof()
            self._transport.resume_reading()
            self._abort_in(linger_seconds)

    def make_room(self) -> None:
        """Goes because another connection needs the place: it has no producer, consumer or call."""
        _log.info("an idle connection is closed to make room", peer=self.peer)
        if self.out.agreed is None:
            self.abort()
        else:
            reason = errors.Refused("all connections are taken, and this one was idle", hint="connect again")
            self.close(reason, limits.REFUSED_SECONDS_MAX)

    def abort(self) -> None:
        """Goes at once, whatever the client did not read yet."""
        if self._transport is not None:
            self._transport.abort()

    def _abort_in(self, seconds: float) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = self._loop.call_later(seconds, self.abort)

    async def leave(self, error: errors.IcestreamError) -> None:
        """Reads nothing more, answers what was taken, says why, and goes. Ends when the client has read it all."""
        self._is_leaving = True
        self.leaving.set()
        self._abort_in(limits.CLOSE_SECONDS_MAX)
        if self._transport is not None:
            self._transport.pause_reading()
        self._held.clear()
        if self._publishing is not None:
            self.answers.abandon(self._publishing.answer)
            self._publishing = None
        await self.answers.finish()
        await self._call_ended.wait_while(lambda: self._calls > 0)
        self.close(error, limits.CLOSE_SECONDS_MAX)
        await self.lost.wait()

    def _give_up(self, error: errors.IcestreamError) -> None:
        """What came before is answered first."""
        _log.info("a connection is closed", peer=self.peer, reason=str(error))
        self._is_leaving = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._tasks.start(self.leave(error), "native-leave")

    def _is_silent(self) -> None:
        self._give_up(errors.DecodeError("nobody said HELLO", hint="is the other side speaking the native protocol?"))

    def _task_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a task of a connection failed", "exception": error})

    # --- in ---

    def _receive(self, one: Frame) -> None:
        if self._transport is None or self._transport.is_closing() or self._is_leaving:
            return
        if self.out.agreed is None:
            self._greet(one)
        elif self._is_waiting:
            self._held.append(one)
        else:
            self._take(one)

    def _greet(self, one: Frame) -> None:
        agreed, body = self._welcome.agree(one)
        self._stream.frame_bytes_max = agreed.frame_bytes_max
        self._stream.kinds = frame.FROM_CLIENT
        self.out.send_frame(Kind.WELCOME, one.number, body)
        self.out.agreed = agreed
        self._stand()
        if self._due is not None:
            self._due.cancel()

    def _stand(self) -> None:
        """Tells the room whether this connection may be closed for another one."""
        is_busy = self._calls or self.producers or self.consumers or self.watches
        self._connections.room.move(self, Standing.BUSY if is_busy else Standing.IDLE)

    def _take(self, one: Frame) -> None:
        if self.out.is_flooded:
            self._held.appendleft(one)
            self._wait(self.out.written.wait_while(lambda: self.out.is_flooded))
        else:
            self._carry_out(handshake.opened(one, self.agreed))

    def _carry_out(self, one: Frame) -> None:
        match one.kind:
            case Kind.PUBLISH:
                self._publish(one)
            case Kind.ACK | Kind.NACK:
                is_ack = one.kind == Kind.ACK
                ranges = frame.decode_ack(one.body) if is_ack else frame.decode_nack(one.body)
                if (consumer := self._consumer(ranges.consumer)) is not None:
                    consumer.settle(ranges, is_ack=is_ack)
            case Kind.CREDIT:
                handle, messages = frame.decode_credit(one.body)
                if (consumer := self._consumer(handle)) is not None:
                    consumer.give_credit(messages)
            case Kind.CALL:
                self._call(one)
            case _:
                frame.check_ping(one.body)
                _check_number(one)
                self.out.send_frame(Kind.PONG, one.number, one.body)

    def _consumer(self, handle: int) -> NativeConsumer | None:
        """None: it was closed, and the client could not know that yet."""
        found = self.consumers.get(handle)
        if found is None and (handle in self.producers or not 0 < handle <= self._handles):
            raise errors.UnknownHandle(f"this connection has no consumer {handle}")
        return found

    def _wait(self, until: Coroutine[Any, Any, None], *, has_turn: bool = False) -> None:
        """Reads no more until then, then goes on. `has_turn`: what waits is let in at once then."""
        self._is_waiting = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._tasks.start(self._go_on(until, has_turn=has_turn), "native-wait")

    async def _go_on(self, until: Coroutine[Any, Any, None], *, has_turn: bool) -> None:
        try:
            await until
            self._is_waiting = False
            if self._publishing is not None:
                self._publish_parts(self._publishing, has_turn=has_turn)
            while self._held and not self._is_waiting:
                self._take(self._held.popleft())
            if self._failure is not None and not self._is_waiting:
                raise self._failure
        except errors.IcestreamError as error:
            self._give_up(error)
        self._read_on()

    # --- publishing ---

    def _publish(self, one: Frame) -> None:
        """Nothing is stored before every part is known to add up and to name a producer of this connection."""
        parts = frame.decode_parts(one.body)
        for part in parts:
            if part.producer not in self.producers:
                self._check_producer(part.producer)
        if one.number <= self._published:
            raise errors.InvalidInput(
                f"PUBLISH {one.number} came behind PUBLISH {self._published}",
                hint="numbers of PUBLISH frames rise, from 1",
            )
        self._published = one.number
        self._publishing = _Publish(self.answers.begin(one.number, len(one.body)), parts)
        self._publish_parts(self._publishing, has_turn=False)

    def _check_producer(self, handle: int) -> None:
        """One that was closed is answered: the client may not have known it yet."""
        if handle in self.consumers or not 0 < handle <= self._handles:
            raise errors.UnknownHandle(f"this connection has no producer {handle}")

    def _publish_parts(self, publish: _Publish, *, has_turn: bool) -> None:
        """As many parts as can be taken now, in order; then it waits."""
        while publish.at < len(publish.parts):
            part = publish.parts[publish.at]
            producer = self.producers.get(part.producer)
            if not has_turn and producer is not None and self._must_wait(producer, part):
                return
            has_turn = False
            publish.at += 1
            self._store(publish, producer, part)
        self._publishing = None
        self.answers.end(publish.answer, publish.late_ms)

    def _must_wait(self, producer: Producer, part: Part) -> bool:
        size = len(part.block)
        if self.answers.is_full or producer.is_full(part.shard):
            self._wait(self.answers.settled.wait_while(lambda: self.answers.is_full or producer.is_full(part.shard)))
        elif not self.broker.storage.has_room(size):
            self._wait(self.broker.storage.wait_for_room(size), has_turn=True)
        else:
            return False
        return True

    def _store(self, publish: _Publish, producer: Producer | None, part: Part) -> None:
        try:
            if producer is None:
                raise errors.UnknownHandle(f"producer {part.producer} was closed", hint="open it again")
            receipt = self.broker.publish(producer, part.shard, part.block)
        except errors.IcestreamError as error:
            self.answers.add(publish.answer, PublishResponses.refused(error))
        else:
            publish.late_ms = max(publish.late_ms, receipt.pause_ms)
            self.answers.add(publish.answer, receipt)

    # --- calls ---

    def _call(self, one: Frame) -> None:
        if self._calls >= limits.CALLS_IN_FLIGHT_MAX:
            self._held.appendleft(one)
            self._wait(self._call_ended.wait_while(lambda: self._calls >= limits.CALLS_IN_FLIGHT_MAX))
            return
        _check_number(one)
        method, arguments = document.decode_call(one.body, self._offered.call_bytes_max)
        self._calls += 1
        self._stand()
        self._tasks.start(self._answer(one.number, method, arguments), "native-call")

    async def _answer(self, number: int, method: str, arguments: dict[str, Any]) -> None:
        """Every call is answered, also one that runs into a mistake of ours: the other side waits for it."""
        try:
            call = self._offered.calls.get(method)
            if call is None:
                raise errors.InvalidInput(f"there is no method {method!r}", hint="docs/protocol.md lists them")
            answer = document.encode(await call(self, arguments))
        except errors.IcestreamError as error:
            self.out.send_frame(Kind.ERROR, number, document.encode_error(error))
        except Exception:
            failed = errors.IcestreamError("the broker could not carry out this call", hint="its log says why")
            self.out.send_frame(Kind.ERROR, number, document.encode_error(failed))
            raise
        else:
            self.out.send_frame(Kind.RESULT, number, answer)
        finally:
            self._calls -= 1
            self._stand()
            self._call_ended.beat()

    # --- handles ---

    def new_handle(self) -> int:
        self._handles += 1
        return self._handles

    def check_room(self) -> None:
        """Before a producer or consumer is opened."""
        if len(self.producers) + len(self.consumers) + self._calls > limits.HANDLES_PER_CONNECTION_MAX:
            raise errors.Refused("this connection has too many producers and consumers", hint="close some of them")

    def keep_producer(self, producer: Producer) -> int:
        """A handle for it. Whoever is gone by now has none."""
        if self.lost.is_set():
            self.broker.close_producer(producer)
            raise errors.ConnectionLost("the client is gone")
        handle = self.new_handle()
        self.producers[handle] = producer
        return handle


def _check_number(one: Frame) -> None:
    """An answer with number 0 would be the last word about the connection."""
    if not one.number:
        raise errors.InvalidInput("a CALL or PING has the number 0", hint="numbers of questions begin with 1")
