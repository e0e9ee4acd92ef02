"""A connection of the native wire, as its NativeConnection sees it: the methods of an asyncio transport, and what it
declares about its producers and consumers.

The socket is paused while the connection asks for it (`pause_reading`) or a group with one of its batches waits for
room in the log (`hold`); it is read again when neither is the case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from icestream.broker.broker_topic import BrokerProducer
from icestream.rpc.client_tls import PEER_CERTIFICATE
from icestream.rpc.frame import encode_frame

if TYPE_CHECKING:
    from icestream.frontends.native.frame_wire import FrameWire
    from icestream.frontends.native.native_consumer import NativeConsumer
    from icestream.frontends.native.outbox import Outbox

WRITE_BYTES_HIGH = 64 * 1024  # until the connection has a share, as asyncio has it


class WireConnection:
    def __init__(self, wire: FrameWire, server: Any, number: int, peer: str, certificate: bytes | None = None) -> None:
        """`server`: the native FrameServer; `number`: of the connection in it, never used twice. `certificate`: the
        verified one of the client, in DER."""
        self._wire = wire
        self._server = server
        self.number = number
        self._details: dict[str, object] = {"peername": peer, PEER_CERTIFICATE: certificate}
        self._is_closing = False
        self._is_paused = False
        self._holds = 0
        self._high_bytes = WRITE_BYTES_HIGH
        self._is_full = False
        self.on_full: Callable[[], None] = lambda: None
        self.on_drained: Callable[[], None] = lambda: None
        self._slots: dict[tuple[int, int], int] = {}  # (handle, shard) of its declared producers
        # Slot and number of shards of its declared consumers, by handle.
        self._consumers: dict[int, tuple[int, int]] = {}

    # --- the transport ---

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._details.get(name, default)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True
        self._server.pause(self.number)

    def resume_reading(self) -> None:
        self._is_paused = False
        if not self._holds:
            self._server.resume(self.number)

    def hold(self) -> None:
        self._holds += 1
        self._server.pause(self.number)

    def release(self) -> None:
        self._holds -= 1
        if not self._holds and not self._is_paused:
            self._server.resume(self.number)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high or WRITE_BYTES_HIGH
        self._server.set_queue_high(self.number, self._high_bytes)

    def writelines(self, pieces: Sequence[bytes]) -> None:
        queued_bytes = self._server.send(self.number, pieces)
        if queued_bytes > self._high_bytes:
            self.filled()

    def write_later(self, outbox: Outbox) -> None:
        """Writes the outbox at the end of this loop tick, in one call for all connections."""
        self._wire.write_later(self.number, outbox)

    def filled(self) -> None:
        """Called when the queue has exceeded its bound."""
        if not self._is_full:
            self._is_full = True
            self.on_full()

    def drained(self) -> None:
        """Called when the queue has fallen below its bound."""
        if self._is_full:
            self._is_full = False
            self.on_drained()

    def write_eof(self) -> None:
        """Ends our side behind everything queued; what still arrives is discarded."""
        self._server.end(self.number)

    def abort(self) -> None:
        self._is_closing = True
        self._server.abort(self.number)

    # --- publishing ---

    def open(self, frame_bytes_max: int) -> None:
        """Ends the handshake."""
        self._server.open(self.number, frame_bytes_max)

    def send_published(self, kind: int, number: int, body: bytes) -> None:
        """Sends the answer to a PUBLISH, behind the answers to those before it."""
        self._server.published(self.number, number, encode_frame(kind, number, body))

    def declare_producer(self, handle: int, producer: BrokerProducer, shard: int) -> None:
        """Takes the producer's blocks for the shard in groups from now on."""
        if (handle, shard) not in self._slots:
            self._slots[handle, shard] = self._wire.declare(self, handle, producer, shard)

    def forget_producer(self, handle: int) -> None:
        self._server.forget(self.number, handle)
        for key in [key for key in self._slots if key[0] == handle]:
            self._wire.forget(self._slots.pop(key))

    def has_waiting_groups(self, producer: BrokerProducer, shard: int) -> bool:
        return self._wire.has_waiting_groups(producer, shard)

    async def groups_published(self, producer: BrokerProducer, shard: int) -> None:
        """Waits until no group of the shard waits for room in the log."""
        await self._wire.settled.wait_while(lambda: self._wire.has_waiting_groups(producer, shard))

    async def groups_settled(self) -> None:
        """Waits until every batch of the connection that was taken in a group is answered."""
        await self._wire.settled.wait_while(lambda: self._server.pending_of(self.number) > 0)

    # --- consuming ---

    def declare_consumer(self, consumer: NativeConsumer) -> None:
        """Takes the consumer's acks, nacks and credits in columns from now on."""
        slot, shards = self._consumers.get(consumer.handle, (None, 0))
        if shards != consumer.shards:  # also if the topic has more of them than before
            slot = self._wire.declare_consumer(self, consumer, slot)
            self._consumers[consumer.handle] = (slot, consumer.shards)

    def forget_consumer(self, handle: int) -> None:
        if (declared := self._consumers.pop(handle, None)) is not None:
            self._server.forget_consumer(self.number, handle)
            self._wire.forget_consumer(declared[0])

    def lost(self) -> None:
        self._is_closing = True
        for consumer_slot, _ in self._consumers.values():
            self._wire.forget_consumer(consumer_slot)
        self._consumers.clear()
        for slot in self._slots.values():
            self._wire.forget(slot)
        self._slots.clear()


def transport_of(connection: WireConnection) -> asyncio.Transport:
    """The connection as the transport that it stands for: it has the methods that a NativeConnection calls."""
    return connection  # type: ignore[return-value]
