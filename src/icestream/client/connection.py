"""One connection to a broker (rpc/frame.py), from its handshake to its end.

    opening   HELLO was sent               a good WELCOME -> open; anything else -> lost
    open      frames go to whom they name  bytes that do not add up, silence, an end -> lost
    lost      every call under way is answered with ConnectionLost; nothing is sent any more

What the broker says is not trusted: an answer that nobody asked for, more messages than were asked for, a frame that is
none end the connection. What is not answered then is not known; whether it may be repeated is known to whoever sent it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, cast

from icestream import errors, limits
from icestream.client.address import Address
from icestream.client.batch import Batch
from icestream.client.consumers import Consumers
from icestream.client.foreign_protocol import FIRST_BYTES, wrong_port
from icestream.client.questions import Document, Questions
from icestream.rpc import document, frame, handshake
from icestream.rpc.compression import Compression
from icestream.rpc.frame import FIRST_FROM_BROKER, FROM_BROKER, HEAD, PART, SIZE_MIN, Done, Frame, Kind
from icestream.rpc.stream import FrameStream

_CLOSE_SECONDS: Final = 1.0  # for the last bytes, to a broker that takes no more


class Publishes(Protocol):
    """Who sent batches and waits for what became of them."""

    def answered(self, batch: Batch, done: Done) -> None: ...


class Owner(Protocol):
    def drained(self) -> None:
        """The socket takes more again."""

    def lost(self, connection: Connection, error: errors.IcestreamError) -> None: ...


class _Sent(NamedTuple):
    """A PUBLISH without an answer."""

    number: int
    producer: Publishes
    batches: Sequence[Batch]


class Connection(asyncio.BufferedProtocol):
    """Open one with `open_connection`."""

    def __init__(self, address: Address, hello: handshake.Hello, owner: Owner) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._hello = hello
        self._owner = owner
        self._compression = Compression() if hello.compression else None
        self._stream = FrameStream(limits.HELLO_BYTES_MAX, FIRST_FROM_BROKER)
        self._agreed: handshake.Agreed | None = None
        self._first = b""  # bytes of the broker, as far as they tell whether it is one
        self._buffer = memoryview(b"")  # of the read under way, until then
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._number = 0
        self.reads = 0  # how often bytes came
        self._questions = Questions()
        self._published: deque[_Sent] = deque()
        self.consumers = Consumers()
        self.opened: asyncio.Future[handshake.Welcome] = self._loop.create_future()
        self._closed = asyncio.Event()
        self.is_full = False
        self.error: errors.IcestreamError | None = None

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        self._transport.set_write_buffer_limits(high=limits.SOCKET_WRITE_BYTES_MAX)
        self._transport.write(frame.encode_frame(Kind.HELLO, 1, handshake.encode_hello(self._hello, ends_text=True)))

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._stream.get_buffer()
        if self._agreed is None:
            self._buffer = buffer
        return buffer

    def buffer_updated(self, count: int) -> None:
        self.reads += 1
        try:
            if self._agreed is None:
                self._check_protocol(count)
            for one in self._stream.received(count):
                self._receive(one)
        except errors.IcestreamError as error:
            self.end(error)

    def _check_protocol(self, count: int) -> None:
        """Raises WrongPort for what does not come from a broker."""
        if len(self._first) < FIRST_BYTES:
            self._first += bytes(self._buffer[:count])[: FIRST_BYTES - len(self._first)]
            if (error := wrong_port(self.address, self._first)) is not None:
                raise error

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._closed.set()
        why = str(error) if error is not None else "it was closed"
        self.end(errors.ConnectionLost(f"the connection to {self.address} broke: {why}"))

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._owner.drained()

    @property
    def is_lost(self) -> bool:
        return self.error is not None

    def end(self, error: errors.IcestreamError) -> None:
        """The first reason counts."""
        if self.error is not None:
            return
        self.error = error
        if self._transport is not None:
            self._transport.abort()
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # whoever waited for it may have gone
            return
        self._questions.fail(self.lost_error())
        self._published.clear()
        self._owner.lost(self, error)

    async def close(self) -> None:
        """What was written is sent first."""
        self.write()
        if self.error is None:
            self.error = errors.ClientClosed("the client was closed")
            self._questions.fail(self.error)
        if self._transport is not None:
            self._transport.close()
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._closed.wait()
            except TimeoutError:
                self._transport.abort()

    def lost_error(self) -> errors.ConnectionLost:
        if isinstance(self.error, errors.ConnectionLost):
            return self.error
        return errors.ConnectionLost(f"the connection to {self.address} ended: {self.error}")

    # --- out ---

    @property
    def send_bytes_max(self) -> int:
        """The largest block that fits a frame."""
        assert self._agreed is not None
        return self._agreed.send_bytes_max - SIZE_MIN - PART.size

    def push(self, *pieces: bytes) -> None:
        """Leaves with the next `write`."""
        self._out += pieces

    def write(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None and self.error is None:
            self._transport.writelines(out)

    def call(self, method: str, arguments: Document) -> asyncio.Future[Document]:
        return self._ask(Kind.CALL, document.encode_call(method, arguments))

    def ping(self) -> asyncio.Future[Document]:
        """Answered when everything in front of it was carried out."""
        return self._ask(Kind.PING, b"")

    def _ask(self, kind: Kind, body: bytes) -> asyncio.Future[Document]:
        if self.error is not None:
            raise self.lost_error()
        answer = self._questions.ask(self._number + 1)
        self._number += 1
        self.push(frame.encode_frame(kind, self._number, body))
        self.write()
        return answer

    def publish(self, handle: int, producer: Publishes, batches: Sequence[Batch]) -> None:
        """As few frames as possible."""
        first, size = 0, 0
        for at, batch in enumerate(batches):
            added = PART.size + len(batch.block)
            is_full = size + added > limits.RECORD_BYTES_TARGET or at - first == limits.PUBLISH_PARTS_MAX
            if at > first and is_full:
                self._publish(handle, producer, batches[first:at], size)
                first, size = at, 0
            size += added
        self._publish(handle, producer, batches[first:], size)

    def _publish(self, handle: int, producer: Publishes, batches: Sequence[Batch], size: int) -> None:
        assert self._agreed is not None
        self._number += 1
        number = self._number
        self._published.append(_Sent(number, producer, batches))
        pieces = [b""]
        for batch in batches:  # a block is a multiple of 8 long: nothing is padded
            pieces.append(PART.pack(handle, batch.shard, len(batch.block), 0))
            pieces.append(batch.block)
        if self._agreed.compression is not None:
            self._out.append(handshake.sealed(Kind.PUBLISH, number, b"".join(pieces), self._agreed))
            return
        pieces[0] = HEAD.pack(SIZE_MIN + size, Kind.PUBLISH, 0, 0, number)
        self._out += pieces

    # --- in ---

    def _receive(self, one: Frame) -> None:
        if self.error is not None:
            return
        if self._agreed is None:
            self._agreed, welcome = handshake.welcomed(self._hello, one, self._compression)
            self._stream.frame_bytes_max = self._agreed.frame_bytes_max
            self._stream.kinds = FROM_BROKER
            self.opened.set_result(welcome)
            return
        one = handshake.opened(one, self._agreed)
        match one.kind:
            case Kind.PUBLISHED:
                self._settle(one)
            case Kind.DELIVER:
                self.consumers.deliver(frame.decode_delivery(one.body))
            case Kind.PICK:
                self.consumers.deliver(frame.decode_pick(one.body))
            case Kind.GAP | Kind.EVENT:
                self.consumers.inform(one)
            case _:
                self._questions.answered(one)

    def _settle(self, one: Frame) -> None:
        if not self._published or self._published[0].number != one.number:
            raise errors.DecodeError(f"PUBLISHED {one.number} answers nothing that is next")
        _, producer, batches = self._published.popleft()
        answers = frame.decode_done(one.body)
        if len(answers) != len(batches):
            raise errors.DecodeError(f"PUBLISHED {one.number} has {len(answers)} answers to {len(batches)} parts")
        for batch, done in zip(batches, answers, strict=True):
            producer.answered(batch, done)


async def open_connection(
    address: Address, hello: handshake.Hello, owner: Owner, connect_seconds: float
) -> tuple[Connection, handshake.Welcome]:
    """Connects and shakes hands. Raises ConnectionLost with the address and what to do, or the broker's refusal."""
    loop = asyncio.get_running_loop()
    connection = Connection(address, hello, owner)
    try:
        async with asyncio.timeout(connect_seconds):
            if address.path:
                await loop.create_unix_connection(lambda: connection, address.path)
            else:
                await loop.create_connection(lambda: connection, address.host, address.port)
            return connection, await connection.opened
    except OSError as error:  # a timeout is one, too
        why = str(error) or f"no answer in {connect_seconds:g} s"
        connection.end(errors.ConnectionLost(why))
        raise errors.ConnectionLost(
            f"cannot connect to {address}: {why}",
            hint="start a broker with `icestream serve`, or name the address of one that runs",
        ) from None
    except BaseException as error:
        connection.end(errors.ConnectionLost(f"the connection to {address} was not opened: {error}"))
        raise
