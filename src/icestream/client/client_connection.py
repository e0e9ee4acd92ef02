"""ClientConnection: one connection to a broker (rpc/frame.py), from its handshake to its end.

    opening   HELLO was sent                 a valid WELCOME -> open; anything else -> lost
    open      frames go to their receivers   invalid bytes, silence, a closed socket -> lost
    lost      every waiting call fails with ConnectionLost; nothing is sent any more

The broker is not trusted: a reply without a call, more messages than were asked for, or an invalid frame end the
connection. The outcome of unanswered requests is unknown then; only their senders know whether they may be repeated.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from icestream import errors, limits
from icestream.client.address import DEFAULT_PORT, Address
from icestream.client.batch import Batch
from icestream.client.delivery_router import DeliveryRouter
from icestream.rpc import document, frame, handshake
from icestream.rpc.body_compression import Compression
from icestream.rpc.client_tls import ClientTls
from icestream.rpc.dialled_connection import DialledConnection
from icestream.rpc.document import Document
from icestream.rpc.frame import FIRST_FROM_BROKER, FROM_BROKER, HEAD, PART, SIZE_MIN, Frame, FrameKind, PartResult
from icestream.rpc.stream import FrameStream

_CLOSE_SECONDS: Final = 1.0  # for the last bytes, to a broker that reads no more


class PublishListener(Protocol):
    """The producer of published batches."""

    def _on_published(self, batch: Batch, result: PartResult) -> None:
        """Handles the result of one batch; called in the order in which batches were sent."""


class ConnectionOwner(Protocol):
    """The session, as its connection sees it."""

    def on_writable(self) -> None:
        """Handles that the socket accepts data again."""

    def on_connection_lost(self, connection: ClientConnection, error: errors.IcestreamError) -> None:
        """Handles the end of a connection that has been opened."""


class _SentPublish(NamedTuple):
    """A PUBLISH frame without an answer."""

    number: int
    producer: PublishListener
    batches: Sequence[Batch]


class ClientConnection(DialledConnection):
    """The client's end of a connection. `open_connection` makes one."""

    def __init__(self, address: Address, hello: handshake.Hello, owner: ConnectionOwner) -> None:
        stream = FrameStream(limits.HELLO_BYTES_MAX, FIRST_FROM_BROKER)
        super().__init__(str(address), stream, limits.CLIENT_CALLS_MAX)
        self.address = address
        self._hello = hello
        self._owner = owner
        self._compression = Compression() if hello.compression else None
        self._agreed: handshake.Agreement | None = None
        self._first_bytes = b""  # until they tell whether the other side is a broker
        self._buffer = memoryview(b"")  # of the current read, as long as `_first_bytes` are needed
        self._out: list[bytes] = []
        self.reads = 0  # how often bytes arrived
        self._published: deque[_SentPublish] = deque()
        self.consumers = DeliveryRouter()
        self._closed = asyncio.Event()
        self.is_write_paused = False

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=limits.SOCKET_WRITE_BYTES_MAX)
        # A server of HTTP waits for the end of a request before it answers: with it, a wrong port shows at once and not
        # as a timeout.
        hello = handshake.encode_hello(self._hello, ends_http_request=True)
        self._transport.write(frame.encode_frame(FrameKind.HELLO, 1, hello))

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
            for received in self._stream.received(count):
                self._on_frame(received)
        except errors.IcestreamError as error:
            self.end(error)

    def _check_protocol(self, count: int) -> None:
        """Raises WrongPort if the first bytes come from a server of another protocol."""
        if len(self._first_bytes) < FIRST_BYTES:
            self._first_bytes += bytes(self._buffer[:count])[: FIRST_BYTES - len(self._first_bytes)]
            if (error := wrong_port_error(self.address, self._first_bytes)) is not None:
                raise error

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        super().connection_lost(error)

    def pause_writing(self) -> None:
        self.is_write_paused = True

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._owner.on_writable()

    def _on_lost(self, error: errors.IcestreamError) -> None:
        self._published.clear()
        self._owner.on_connection_lost(self, error)

    async def close(self) -> None:
        """Closes the connection after sending what was written."""
        self.write()
        if self.error is None:  # set before the socket closes, so that the owner is not told of a lost connection
            self.error = errors.ClientClosed("the client was closed")
            self._calls.fail(self.error)
        if self._transport is not None:
            self._transport.close()
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._closed.wait()
            except TimeoutError:
                self._transport.abort()

    # --- sending ---

    @property
    def block_bytes_max(self) -> int:
        """The largest block that fits in a frame."""
        assert self._agreed is not None
        return self._agreed.send_bytes_max - SIZE_MIN - PART.size

    def push(self, *pieces: bytes) -> None:
        """Queues bytes for the next `write`."""
        self._out += pieces

    def write(self) -> None:
        """Writes everything that was queued, in one system call if possible."""
        out, self._out = self._out, []
        if out and self._transport is not None and self.error is None:
            self._transport.writelines(out)

    def _write(self, data: bytes) -> None:
        # Behind the frames that are queued: a PING must not overtake the acks that it confirms.
        self._out.append(data)
        self.write()

    def call(self, method: str, arguments: Document) -> asyncio.Future[Document]:
        """Starts a call; returns a future for the reply. Raises ConnectionLost, InFlightFull."""
        return self.start_call(FrameKind.CALL, document.encode_call(method, arguments))

    def ping(self) -> asyncio.Future[Document]:
        """Sends a PING, which the broker answers when it has handled every frame before it."""
        return self.start_call(FrameKind.PING, b"")

    def publish(self, handle: int, producer: PublishListener, batches: Sequence[Batch]) -> None:
        """Queues PUBLISH frames for the batches: as few frames as the bounds of a frame allow."""
        # At most the size of a record of the log: the parts of a larger frame could not be stored together anyway.
        first, size = 0, 0
        for at, batch in enumerate(batches):
            part_bytes = PART.size + len(batch.block)
            is_full = size + part_bytes > limits.RECORD_BYTES_TARGET or at - first == limits.PUBLISH_PARTS_MAX
            if at > first and is_full:
                self._publish_frame(handle, producer, batches[first:at], size)
                first, size = at, 0
            size += part_bytes
        self._publish_frame(handle, producer, batches[first:], size)

    def _publish_frame(self, handle: int, producer: PublishListener, batches: Sequence[Batch], size: int) -> None:
        """Queues one PUBLISH frame; `size`: the bytes of its parts."""
        assert self._agreed is not None
        self._number += 1
        number = self._number
        self._published.append(_SentPublish(number, producer, batches))
        pieces = [b""]
        for batch in batches:  # a block's size is a multiple of 8: no padding is needed
            pieces.append(PART.pack(handle, batch.shard, len(batch.block), 0))
            pieces.append(batch.block)
        if self._agreed.compression is not None:  # else the blocks are queued as they are, without a copy
            self._out.append(handshake.outgoing_frame(FrameKind.PUBLISH, number, b"".join(pieces), self._agreed))
            return
        pieces[0] = HEAD.pack(SIZE_MIN + size, FrameKind.PUBLISH, 0, 0, number)
        self._out += pieces

    # --- receiving ---

    def _on_frame(self, received: Frame) -> None:
        """Passes a frame to its receiver. Raises DecodeError, and the broker's refusal of the handshake."""
        if self.error is not None:  # an earlier frame of the same read has ended the connection
            return
        if self._agreed is None:
            self._agreed, welcome = handshake.accept_welcome(self._hello, received, self._compression)
            self._stream.frame_bytes_max = self._agreed.frame_bytes_max
            self._stream.kinds = FROM_BROKER
            self.opened.set_result(welcome)
            return
        received = handshake.incoming_frame(received, self._agreed)
        match received.kind:
            case FrameKind.PUBLISHED:
                self._on_published_frame(received)
            case FrameKind.DELIVER:
                self.consumers.deliver(frame.decode_delivery(received.body))
            case FrameKind.PICK:
                self.consumers.deliver(frame.decode_pick(received.body))
            case FrameKind.GAP | FrameKind.EVENT:
                self.consumers.notify(received)
            case _:
                if not self._calls.resolve(received):
                    raise errors.DecodeError(
                        f"frame of kind {received.kind} answers number {received.number}, which no call has"
                    )

    def _on_published_frame(self, received: Frame) -> None:
        """Passes the results of a PUBLISH frame to its producer. Raises DecodeError."""
        # The broker answers PUBLISH frames in their order: no lookup, and an answer out of order is a protocol error.
        if not self._published or self._published[0].number != received.number:
            raise errors.DecodeError(f"PUBLISHED {received.number} does not answer the oldest PUBLISH")
        _, producer, batches = self._published.popleft()
        results = frame.decode_part_results(received.body)
        if len(results) != len(batches):
            raise errors.DecodeError(f"PUBLISHED {received.number} has {len(results)} results for {len(batches)} parts")
        for batch, result in zip(batches, results, strict=True):
            producer._on_published(batch, result)


async def open_connection(
    address: Address,
    hello: handshake.Hello,
    owner: ConnectionOwner,
    connect_seconds: float,
    tls: ClientTls | None = None,
) -> tuple[ClientConnection, handshake.Welcome]:
    """Connects and completes the handshake. `tls`: None for plain text; a local socket never has it.

    Raises ConnectionLost, WrongPort, TlsFailed, ConfigurationError for TLS files, or the broker's refusal.
    """
    loop = asyncio.get_running_loop()
    context = tls.context() if tls is not None and not address.path else None
    server_name = (tls.server_name if tls is not None else "") or address.host
    connection = ClientConnection(address, hello, owner)
    try:
        async with asyncio.timeout(connect_seconds):
            if address.path:
                await loop.create_unix_connection(lambda: connection, address.path)
            else:
                await loop.create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    ssl=context,
                    server_hostname=server_name if context is not None else None,
                )
            return connection, await connection.opened
    except ssl.SSLError as error:
        connection.end(errors.ConnectionLost(str(error)))
        raise tls_error(address, error) from None
    except OSError as error:  # TimeoutError is a subclass
        reason = str(error) or f"no answer within {connect_seconds:g} s"
        connection.end(errors.ConnectionLost(reason))
        raise errors.ConnectionLost(
            f"cannot connect to {address}: {reason}",
            hint="start a broker with `icestream serve`, or pass the address of a running one",
        ) from None
    except BaseException as error:  # also a cancelled caller: the socket must not stay open
        connection.end(errors.ConnectionLost(f"connection to {address} was not opened: {error}"))
        raise


def tls_error(address: Address, error: ssl.SSLError) -> errors.TlsFailed:
    """The error for a handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return errors.TlsFailed(
            f"cannot connect to {address}: its certificate is not accepted: {error.verify_message}",
            hint="name the authority that signed it (`tls=ClientTls(ca=…)`, ICESTREAM_CA_FILE), and connect by a "
            "name that it has",
        )
    reason = error.reason or str(error)
    return errors.TlsFailed(
        f"cannot connect to {address} by TLS: {reason}",
        hint="does this port speak TLS (settings tls.…), and does it want a client certificate?",
    )


# --- servers of other protocols ---------------------------------------------------------------------------------------

# A server that is not a broker's native port is recognised by its first bytes:
#     HTTP/1   the status line of a response, `HTTP/1.1 400 …`
#     HTTP/2   a SETTINGS frame, which a server of HTTP/2 (and so of gRPC) sends first
#     TLS      an alert
# None of these can begin a native frame: read as one, each is larger than the first frame of a broker may be.
FIRST_BYTES: Final = 9  # enough to recognise each of them
_HTTP2_SETTINGS: Final = 4
_HTTP2_SETTING_BYTES: Final = 6
_TLS_ALERT: Final = b"\x15\x03"


def foreign_protocol(first_bytes: bytes) -> str:
    """The protocol of a server that begins with `first_bytes` (FIRST_BYTES or more); empty if it is not recognised."""
    if first_bytes.startswith(b"HTTP/"):
        return "HTTP"
    if first_bytes.startswith(_TLS_ALERT):
        return "TLS"
    is_settings = len(first_bytes) >= FIRST_BYTES and first_bytes[3] == _HTTP2_SETTINGS and not any(first_bytes[4:9])
    if is_settings and int.from_bytes(first_bytes[:3], "big") % _HTTP2_SETTING_BYTES == 0:
        return "gRPC (HTTP/2)"
    return ""


def wrong_port_error(address: Address, first_bytes: bytes) -> errors.WrongPort | None:
    """Returns the error for a server at `address` that speaks another protocol; None if it may be a broker."""
    protocol = foreign_protocol(first_bytes)
    if not protocol:
        return None
    if protocol == "TLS":
        return errors.WrongPort(
            f"{address} answers in {protocol}, and this client does not use it",
            hint="connect with `tls=`, or set ICESTREAM_CA_FILE; without them, to a broker whose native port has no "
            "TLS",
        )
    port = "changed here" if address.port == DEFAULT_PORT else f"{DEFAULT_PORT} unless it was changed"
    return errors.WrongPort(
        f"{address} answers in {protocol}, not in the native protocol",
        hint=f"connect to the broker's native port (setting ports.native, {port}); its greeting at the start names it",
    )
