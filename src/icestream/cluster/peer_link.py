"""PeerLink: the connecting side of a connection between two nodes: one-way Raft messages, and calls with replies.

opening    HELLO was sent          WELCOME -> open; anything else, or no answer in time -> its error
open       messages are written, or dropped when too many bytes wait for the socket: Raft repeats them
lost       every waiting call fails with ConnectionLost; `lost` is set. Also when the other machine stops
           acknowledging packets (runtime/keep_alive.py)
"""

from __future__ import annotations

import asyncio
import os
import ssl

from icestream import errors, limits
from icestream.cluster import wire
from icestream.cluster.tls import certified_name
from icestream.cluster.wire import PeerFrame, PeerHello, PeerWelcome
from icestream.rpc import document
from icestream.rpc.dialled_connection import DialledConnection
from icestream.rpc.document import Document
from icestream.rpc.frame import Frame, encode_frame
from icestream.rpc.stream import FrameStream
from icestream.runtime.keep_alive import keep_alive


async def dial(
    address: str, hello: PeerHello, context: ssl.SSLContext | None = None, certified_cluster: str = ""
) -> PeerLink:
    """Opens a link to the node at `address`. `certified_cluster`: the cluster that its certificate must name (tls.py).

    Raises ConnectionLost if no node answers, ForeignCluster for another certificate, or the other node's refusal.
    """
    link = PeerLink(hello)
    loop = asyncio.get_running_loop()
    try:
        host, port = wire.dialled(address)
        async with asyncio.timeout(limits.PEER_OPEN_SECONDS_MAX):
            name = host if context is not None else None
            await loop.create_connection(lambda: link, host, port, ssl=context, server_hostname=name)
            await link.opened
            if certified_cluster and link._transport is not None:
                link.certified_name = certified_name(link._transport, certified_cluster)
    except errors.ForeignCluster:
        link.close()
        raise
    except (TimeoutError, OSError) as error:
        link.close()
        timeout = f"no answer within {limits.PEER_OPEN_SECONDS_MAX:g} s"
        reason = os.strerror(error.errno) if error.errno else str(error) or timeout
        raise errors.ConnectionLost(f"no node answers at {address}: {reason}") from None
    return link


class PeerLink(DialledConnection):
    """One open connection to another node; `dial` opens it."""

    def __init__(self, hello: PeerHello) -> None:
        super().__init__("the other node", FrameStream(limits.PEER_FRAME_BYTES_MAX, wire.FROM_DIALLED))
        self._hello = hello
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.lost = asyncio.Event()
        self.certified_name = ""  # the node that the other side's certificate names

    @property
    def welcome(self) -> PeerWelcome:
        """The other node's greeting. The link must be open."""
        welcome: PeerWelcome = self.opened.result()
        return welcome

    # --- sending ---

    def send(self, messages: list[bytes]) -> bool:
        """Sends Raft messages; False if they were dropped, because too many bytes wait for the socket."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > limits.PEER_UNSENT_BYTES_MAX:
            return False
        transport.write(b"".join(map(wire.encode_message, messages)))
        return True

    async def call(self, method: str, arguments: Document) -> Document:
        """Returns the reply to a call.

        Raises the other node's error, ConnectionLost if the link is lost or no reply arrives in time.
        """
        return await self._await_reply(
            PeerFrame.CALL, document.encode_call(method, arguments, limits.LOCAL_CALL_BYTES_MAX)
        )

    async def write(self, kind: PeerFrame, body: bytes) -> None:
        """Writes a frame, waiting while the socket is full: for snapshots, which have a connection of their own."""
        async with asyncio.timeout(limits.PEER_CALL_SECONDS_MAX):
            await self._can_write.wait()
        if self.is_lost:
            raise self.lost_error()
        self._write(encode_frame(kind, 0, body))

    def be_patient(self) -> None:
        """Tolerates a peer that reads nothing for as long as `write` waits: its disk may be slow."""
        if self.is_lost or self._transport is None:
            raise self.lost_error()
        keep_alive(self._transport, limits.PEER_KEEP_ALIVE_SECONDS, limits.PEER_CALL_SECONDS_MAX)

    async def end_snapshot(self) -> None:
        """Waits until the other node has confirmed the snapshot that was written."""
        await self._await_reply(PeerFrame.END, b"")

    async def _await_reply(self, kind: PeerFrame, body: bytes) -> Document:
        reply = self.start_call(kind, body)
        number = self._number
        try:
            async with asyncio.timeout(limits.PEER_CALL_SECONDS_MAX):
                return await reply
        except TimeoutError:
            raise errors.ConnectionLost(
                f"the other node does not answer within {limits.PEER_CALL_SECONDS_MAX:g} s",
                hint="the call is retried automatically",
            ) from None
        finally:
            self._calls.discard(number)

    def close(self) -> None:
        self.end(errors.ConnectionLost("the connection to the other node was closed by this node"))

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        keep_alive(transport, limits.PEER_KEEP_ALIVE_SECONDS, limits.PEER_UNACKED_SECONDS_MAX)
        self._write(encode_frame(PeerFrame.HELLO, 0, wire.encode_hello(self._hello)))

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def _on_frame(self, frame: Frame) -> None:
        is_fatal = frame.kind == PeerFrame.ERROR and not frame.number
        if self.opened.done() or is_fatal:
            self._calls.resolve(frame)  # a reply to a call that has timed out is ignored
        elif frame.kind == PeerFrame.WELCOME:
            self.opened.set_result(wire.decode_welcome(frame.body))
        else:
            raise errors.DecodeError(f"frame of kind {frame.kind} before WELCOME")

    def _on_lost(self, error: errors.IcestreamError) -> None:
        self._can_write.set()
        self.lost.set()
