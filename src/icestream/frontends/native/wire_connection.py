"""A connection of the native wire, as its NativeConnection sees it: a transport, and what the connection declares about
its producers and consumers.

The socket is not read while the connection asks for it (`pause_reading`). While a batch of it waits, for instance for
room in the log, it is held (`hold`): its next batches are parked, acks, credits and pings go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.broker.broker_topic import BrokerProducer
from icestream.frontends.wire_driver import WireTransport
from icestream.rpc.frame import encode_frame

if TYPE_CHECKING:
    from icestream.frontends.native.frame_wire import FrameWire
    from icestream.frontends.native.native_consumer import NativeConsumer
    from icestream.frontends.native.outbox import Outbox


class WireConnection(WireTransport):
    def __init__(self, wire: FrameWire, server: Any, number: int, peer: str, certificate: bytes | None = None) -> None:
        super().__init__(server, number, peer, certificate)
        self._wire = wire
        self._holds = 0  # batches that wait
        self._slots: dict[tuple[int, int], int] = {}  # (handle, shard) of its declared producers
        # Slot and number of shards of its declared consumers, by handle.
        self._consumers: dict[int, tuple[int, int]] = {}

    # --- the transport ---

    def hold(self) -> None:
        self._holds += 1
        self._server.hold(self.number)

    def release(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._server.release(self.number)

    def write_later(self, outbox: Outbox) -> None:
        """Writes the outbox at the end of this loop tick, in one call for all connections."""
        self._wire.write_later(self.number, outbox)

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
        super().lost()
        for consumer_slot, _ in self._consumers.values():
            self._wire.forget_consumer(consumer_slot)
        self._consumers.clear()
        for slot in self._slots.values():
            self._wire.forget(slot)
        self._slots.clear()
