"""Serves native connections by the native frame server: one wake-up for a burst of all connections, blocks in groups.

`poll` of the server (native/src/wire/frames) returns what arrived, in the order in which it is decided:

    a connection, a frame, the end of a connection    dispatched to its NativeConnection, one by one
    a group: blocks that are as declared, of any      one append, one answer to all (broker/publish_group.py). If the
    number of connections, for any number of shards   broker wants to decide about some of them, it is split: first
                                                      into a group for each shard, then into batches that are
                                                      published one by one, and answered when all are decided
    a block that is alone in the burst                published by itself: the columns of a group would cost more
    acks, nacks, credits of declared consumers        acks are joined for each shard of a subscription, which is then
                                                      dispatched once; nacks and credits are applied to each consumer

A producer is declared for a shard with its first stored batch, a consumer when it has subscribed, and again with a
frame for a shard that was added since. What does not fit the declaration comes as a frame again, so that every refusal
is made by the same code, whichever way a batch or an ack arrives. What fits it cannot be refused.

    queue    a shard, as the server names it. If the log has no room for a group, the group and those behind it in its
             queue wait in order, and the connections that they came from are held: what they publish is parked, their
             acks, nacks, credits and pings go on (hazard 67)
    slot     a producer in a shard, or a consumer. A number is never used twice: a batch or an ack that arrives after
             its producer or consumer was closed finds no slot

Frames of all connections leave in one call at the end of a loop tick (`write_later`). The messages of a delivery are
bytes that all its consumers share; only the head in front of them is encoded for each.

Bounds: the server stops reading a connection, or all of them, at the bound of unanswered bytes; nothing is refused.
"""

from __future__ import annotations

import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.broker.block_validation import forbidden_columns
from icestream.broker.broker_topic import BrokerProducer, BrokerTopic
from icestream.broker.guarded_broker import PublishPath
from icestream.broker.producer_window import ProducerWindow
from icestream.broker.publish_group import PublishGroupResult
from icestream.broker.publish_result import PublishOutcome, PublishResult
from icestream.broker.shard_delivery import ShardDelivery
from icestream.frontends.native.native_connection import NativeConnection
from icestream.frontends.native.native_consumer import NativeConsumer
from icestream.frontends.native.notifier import Notifier
from icestream.frontends.native.outbox import Outbox
from icestream.frontends.native.publish_responses import encode_outcome, encode_refusal
from icestream.frontends.native.wire_connection import WireConnection
from icestream.frontends.wire_driver import CONNECTED, GONE, PROTOCOL_ROWS, ROOM, WireDriver, transport_of
from icestream.model.block import NOT_NUMBERED, BlockHead, Numbering, decode_block_head, new_tuple
from icestream.model.block_group import BlockGroup
from icestream.model.shard import ShardKey
from icestream.observability.log import get_logger
from icestream.rpc.frame import AckRanges, Frame, FrameKind, Pairs, encode_credit, encode_ranges
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.native import native
from icestream.runtime.tasks import Tasks

_log = get_logger("native")
# The rows of `poll`: native/src/wire/frames/server.rs.
FRAME, MALFORMED, GROUP, SINGLE, ACKS, NACKS, CREDITS = range(PROTOCOL_ROWS, PROTOCOL_ROWS + 7)
COLUMN_TYPES: Final = "IIqiqI"  # of the columns of a group
NO_OFFSETS: Final = ()


def has_frame_wire() -> bool:
    return hasattr(native, "FrameServer")


class PublishSlot(NamedTuple):
    """A declared producer in one shard."""

    connection: WireConnection
    producer: BrokerProducer
    window: ProducerWindow
    shard: int
    queue: int


class ReceivedGroup(NamedTuple):
    """A group as it arrived: its number in the server, its batches and their producers."""

    batch: int
    slots: Sequence[PublishSlot | None]
    group: BlockGroup
    bodies: Sequence[bytes]  # of each shard
    largest_block: int


class ShardQueue:
    """A shard that some connection publishes to, and the groups that wait for room in the log."""

    __slots__ = ("key", "number", "slots", "topic", "waiting")

    def __init__(self, number: int, topic: BrokerTopic, key: ShardKey) -> None:
        self.number = number
        self.topic = topic
        self.key = key
        self.slots = 0  # declared producers
        self.waiting: deque[ReceivedGroup] = deque()


class FrameWire(WireDriver):
    def __init__(
        self,
        broker: PublishPath,
        listener: socket.socket,
        new_connection: Callable[[WireConnection], NativeConnection],
        tls: ListenerTls | None = None,
    ) -> None:
        """`listener` is given away. `tls`: None for plain text."""
        assert native is not None
        server = native.FrameServer(
            hello_bytes_max=limits.HELLO_BYTES_MAX,
            connection_bytes_max=limits.CONNECTION_IN_FLIGHT_BYTES_MAX,
            parked_bytes_max=limits.CONNECTION_PARKED_BYTES_MAX,
            pending_bytes_max=limits.WIRE_PENDING_BYTES_MAX,
            answer_bytes_max=limits.CONNECTION_ANSWER_BYTES_MAX,
            parts_max=limits.PUBLISH_PARTS_MAX,
            window_max=limits.PRODUCER_WINDOW_BATCHES,
            row_bytes_max=broker.row_bytes_max,
            rows_bytes_max=broker.batch_bytes_max,
            unpacked_bytes_max=limits.BLOCK_UNPACKED_BYTES_MAX,
            ranges_max=limits.ACK_RANGES_MAX,
            ping_bytes_max=limits.PING_BYTES_MAX,
            offset_max=limits.OFFSET_MAX,
            delay_ms_max=limits.FAILURE_POLICY_VALUE_MAX,
        )
        super().__init__(server, listener, tls)
        self._broker = broker
        self._new_connection = new_connection
        self._tasks = Tasks(self._task_failed)
        self._connections: dict[int, tuple[NativeConnection, WireConnection]] = {}
        self._slots: dict[int, PublishSlot] = {}
        self._slot_numbers = count(1)
        self._queues: dict[int, ShardQueue] = {}
        self._queues_by_key: dict[ShardKey, ShardQueue] = {}
        self._queue_numbers = count(1)
        self._waiting_queues = 0  # queues with a group that waits for room in the log
        self._consumers: dict[int, NativeConsumer] = {}  # declared ones, by slot
        self._outboxes: list[tuple[int, Outbox]] = []  # to be written at the end of this tick, with their connections
        self.settled = Notifier()  # notifies with every answered group
        self._handlers |= {
            CONNECTED: self._on_connected,
            FRAME: self._on_frame,
            MALFORMED: self._on_malformed,
            GONE: self._on_gone,
            ROOM: self._on_room,
            GROUP: self._on_group,
            SINGLE: self._on_single,
            ACKS: self._on_acks,
            NACKS: self._on_nacks,
            CREDITS: self._on_credits,
        }

    # --- the burst ---

    def _on_connected(self, number: int, peer: str, certificate: bytes | None) -> None:
        wire = WireConnection(self, self._server, number, peer, certificate)
        connection = self._new_connection(wire)
        wire.on_full, wire.on_drained = connection.pause_writing, connection.resume_writing
        self._connections[number] = (connection, wire)
        connection.connection_made(transport_of(wire))

    def _on_frame(self, number: int, kind: int, flags: int, frame_number: int, body: bytes, last_publish: int) -> None:
        if (entry := self._connections.get(number)) is None:
            return
        received = Frame(kind, flags, frame_number, body)
        if kind == FrameKind.PUBLISH:
            entry[0].publish_received(received, last_publish)
        else:
            entry[0].frame_received(received)

    def _on_malformed(self, number: int, size: int, kind: int) -> None:
        if (entry := self._connections.get(number)) is not None:
            entry[0].head_received(size, kind)

    def _on_gone(self, number: int) -> None:
        connection, wire = self._connections.pop(number)
        wire.lost()
        connection.connection_lost(None)

    def _on_room(self, number: int) -> None:
        if (entry := self._connections.get(number)) is not None:
            entry[1].drained()

    # --- groups ---

    def _on_group(
        self, batch: int, queues: bytes, slots: bytes, columns: Sequence[bytes], bodies: list[bytes], largest: int
    ) -> None:
        group = BlockGroup(*map(array, COLUMN_TYPES, columns))
        received = ReceivedGroup(batch, [*map(self._slots.get, array("I", slots))], group, bodies, largest)
        self._publish_queues([*map(self._queues.get, array("I", queues))], received)

    def _publish_queues(self, queues: Sequence[ShardQueue | None], received: ReceivedGroup) -> None:
        """Publishes a group as one if nothing stands in the way, else queue by queue: each queue has its own order."""
        if len(queues) == 1:
            self._publish_queue(queues[0], received)
            return
        is_free = not self._waiting_queues and self._broker.has_room(received.group.size_bytes)
        if is_free and None not in queues and self._publish(queues, received):  # type: ignore[arg-type]
            return
        batches = self._server.split(received.batch)
        starts = (0, *received.group.shard_ends)
        groups = received.group.split()
        for queue, batch, start, group, body in zip(queues, batches, starts, groups, received.bodies, strict=False):
            slots = received.slots[start : start + group.block_count]
            self._publish_queue(queue, ReceivedGroup(batch, slots, group, (body,), received.largest_block))

    def _publish_queue(self, queue: ShardQueue | None, received: ReceivedGroup) -> None:
        """Publishes a group for one shard, as one if possible, else batch by batch."""
        if queue is not None and (queue.waiting or not self._broker.has_room(received.group.size_bytes)):
            self._wait_for_room(queue, received)
        elif queue is None or not self._publish((queue,), received):
            self._publish_one_by_one(received)

    def _on_single(
        self, batch: int, queue_number: int, slot_number: int, rows: int, sequence: int, block: bytes
    ) -> None:
        slot, queue = self._slots.get(slot_number), self._queues.get(queue_number)
        if slot is None or queue is None or queue.waiting or not self._broker.has_room(len(block)):
            self._publish_queue(queue, _group_of(batch, slot, block))
            return
        try:
            # Only blocks of the producer's own numbering are declared, so its id and epoch are those of the block.
            producer, numbering = slot.producer, None
            if sequence != NOT_NUMBERED:
                numbering = new_tuple(Numbering, (producer.id, producer.epoch, sequence))
            head = new_tuple(BlockHead, (rows, len(block), numbering))
            result = self._broker.publish(producer, slot.shard, block, head)
        except errors.IcestreamError as error:
            self._settle(batch, NO_OFFSETS, {0: encode_refusal(error)}, 0)
        else:
            result.add_done_callback(partial(self._on_single_done, batch))

    def _on_single_done(self, batch: int, result: PublishResult) -> None:
        if result.outcome is PublishOutcome.STORED and not result.pause_ms:
            self._server.settle(batch, (result.base_offset,))
            self.settled.notify()
        else:
            self._settle(batch, NO_OFFSETS, {0: encode_outcome(result)}, result.pause_ms)

    def _publish(self, queues: Sequence[ShardQueue], received: ReceivedGroup) -> bool:
        """Publishes a group as one; False if the broker has to decide about its parts."""
        slots = received.slots
        return None not in slots and self._broker.publish_group(
            [queue.topic for queue in queues],
            [queue.key for queue in queues],
            [slot.window for slot in slots],  # type: ignore[union-attr]
            received.bodies,
            received.group,
            received.largest_block,
            partial(self._on_group_done, received.batch),
        )

    def _on_group_done(self, batch: int, result: PublishGroupResult) -> None:
        exceptions: dict[int, bytes] | None = None
        if result.error is not None:
            exceptions = dict.fromkeys(range(result.batches), encode_refusal(result.error))
        elif result.rejected:
            exceptions = {index: encode_outcome(rejected) for index, rejected in result.rejected.items()}
        self._settle(batch, result.base_offsets, exceptions, result.pause_ms)

    def _publish_one_by_one(self, received: ReceivedGroup) -> None:
        outcomes = _Outcomes(received.group.block_count, partial(self._settle, received.batch, NO_OFFSETS))
        for index, slot in enumerate(received.slots):
            try:
                if slot is None:
                    raise errors.UnknownHandle("the producer is closed", hint="open it again")
                block = received.group.block(index, received.bodies)
                result = self._broker.publish(slot.producer, slot.shard, block)
            except errors.IcestreamError as error:
                outcomes.add(index, encode_refusal(error))
            else:
                outcomes.pause_ms = max(outcomes.pause_ms, result.pause_ms)
                result.add_done_callback(partial(outcomes.add_result, index))

    def _settle(
        self, batch: int, base_offsets: Sequence[int], exceptions: dict[int, bytes] | None, pause_ms: int
    ) -> None:
        """Answers a group. `base_offsets`: of each queue; of no use where all of its batches are exceptions."""
        if pause_ms:
            self._loop.call_later(pause_ms / 1000, self._settle, batch, base_offsets, exceptions, 0)
            return
        self._server.settle(batch, base_offsets, exceptions)
        self.settled.notify()

    def _wait_for_room(self, queue: ShardQueue, received: ReceivedGroup) -> None:
        for slot in received.slots:
            if slot is not None:
                slot.connection.hold()
        queue.waiting.append(received)
        if len(queue.waiting) == 1:
            self._waiting_queues += 1
            self._tasks.start(self._publish_waiting(queue), "native-room")

    async def _publish_waiting(self, queue: ShardQueue) -> None:
        while queue.waiting:
            received = queue.waiting[0]
            try:
                await self._broker.wait_for_room(received.group.size_bytes)
            except errors.IcestreamError as error:
                refusals = dict.fromkeys(range(received.group.block_count), encode_refusal(error))
                self._settle(received.batch, NO_OFFSETS, refusals, 0)
            else:
                if not self._publish((queue,), received):
                    self._publish_one_by_one(received)
            queue.waiting.popleft()
            for slot in received.slots:
                if slot is not None:
                    slot.connection.release()
        self._waiting_queues -= 1
        self._drop_unused(queue)
        self.settled.notify()

    # --- acks, nacks, credits ---

    def _on_acks(self, acks: list[tuple[int, int, int, Pairs]]) -> None:
        ranges_by_delivery: dict[tuple[ShardDelivery, int], Pairs] = {}
        for slot, shard, generation, ranges in acks:
            consumer = self._consumers.get(slot)
            if consumer is None:  # closed, which the client may not have learned yet
                continue
            if not consumer.connection.takes_settlements:
                _resend_settlement(consumer, FrameKind.ACK, AckRanges(consumer.handle, shard, generation, 0, ranges))
                continue
            # Acks are by offset, whichever consumer sends them: those of one delivery are one event of it.
            key = (consumer.subscription.deliveries[shard], generation)
            joined = ranges_by_delivery.setdefault(key, ranges)
            if joined is not ranges:
                joined += ranges
        for (delivery, generation), ranges in ranges_by_delivery.items():
            try:
                delivery.ack(ranges, generation)
            except Exception as error:  # noqa: BLE001 (it must not lose the others)
                self._report(error)

    def _on_nacks(self, nacks: list[tuple[int, int, int, int, Pairs]]) -> None:
        for slot, shard, generation, delay_ms, ranges in nacks:
            consumer = self._consumers.get(slot)
            if consumer is None:
                continue
            if not consumer.connection.takes_settlements:
                nack = AckRanges(consumer.handle, shard, generation, delay_ms, ranges)
                _resend_settlement(consumer, FrameKind.NACK, nack)
                continue
            try:
                consumer.nack(shard, generation, delay_ms, ranges)
            except Exception as error:  # noqa: BLE001 (it must not lose the others)
                self._report(error)

    def _on_credits(self, credits_: list[tuple[int, int]]) -> None:
        for slot, messages in credits_:
            consumer = self._consumers.get(slot)
            if consumer is None:
                continue
            if not consumer.connection.takes_settlements:
                body = encode_credit(consumer.handle, messages)
                consumer.connection.frame_received(Frame(FrameKind.CREDIT, 0, 0, body))
                continue
            try:
                consumer.give_credit(messages)
            except Exception as error:  # noqa: BLE001 (it must not lose the others)
                self._report(error)

    def declare_consumer(self, connection: WireConnection, consumer: NativeConsumer, slot: int | None) -> int:
        """Declares a consumer, or that it has more shards if it has a slot. Returns the number of the slot."""
        number = next(self._slot_numbers) if slot is None else slot
        self._consumers[number] = consumer
        self._server.declare_consumer(
            connection.number, consumer.handle, number, consumer.shards, consumer.subscription.allows_cumulative_ack
        )
        return number

    def forget_consumer(self, slot: int) -> None:
        del self._consumers[slot]

    # --- writing ---

    def write_later(self, number: int, outbox: Outbox) -> None:
        if not self._outboxes:
            self._loop.call_soon(self._write_all)
        self._outboxes.append((number, outbox))

    def _write_all(self) -> None:
        outboxes, self._outboxes = self._outboxes, []
        for number in self._server.send_all([(number, outbox.take()) for number, outbox in outboxes]):
            if (entry := self._connections.get(number)) is not None:
                entry[1].filled()
        for _, outbox in outboxes:
            outbox.taken()

    # --- producers ---

    def declare(self, connection: WireConnection, handle: int, producer: BrokerProducer, shard: int) -> int:
        """Returns the number of the slot."""
        key = producer.topic.shard_key(shard)
        queue = self._queues_by_key.get(key)
        if queue is None:
            queue = ShardQueue(next(self._queue_numbers), producer.topic, key)
            self._queues[queue.number] = self._queues_by_key[key] = queue
        queue.slots += 1
        number = next(self._slot_numbers)
        self._slots[number] = PublishSlot(connection, producer, producer.window(shard), shard, queue.number)
        producer_id = producer.id if producer.is_numbered else NOT_NUMBERED
        self._server.declare(
            connection.number, handle, shard, number, queue.number, producer_id, producer.epoch,
            forbidden_columns(producer),
        )  # fmt: skip
        return number

    def forget(self, slot_number: int) -> None:
        slot = self._slots.pop(slot_number)
        queue = self._queues[slot.queue]
        queue.slots -= 1
        self._drop_unused(queue)

    def _drop_unused(self, queue: ShardQueue) -> None:
        if not queue.slots and not queue.waiting:
            del self._queues[queue.number]
            del self._queues_by_key[queue.key]

    def has_waiting_groups(self, producer: BrokerProducer, shard: int) -> bool:
        queue = self._queues_by_key.get(producer.topic.shard_key(shard))
        return queue is not None and bool(queue.waiting)

    # --- end ---

    async def close(self) -> None:
        """Closes every connection that is left."""
        self._loop.remove_reader(self._server.fileno())
        for number in list(self._connections):
            self._on_gone(number)
        await self._tasks.stop()
        self._server.close()

    def _task_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a task of the native wire failed", "exception": error})


def _resend_settlement(consumer: NativeConsumer, kind: FrameKind, settlement: AckRanges) -> None:
    """Has the connection receive it as frames again, behind what waits there."""
    ranges = settlement.ranges
    for first in range(0, len(ranges), limits.ACK_RANGES_MAX):
        part = settlement._replace(ranges=ranges[first : first + limits.ACK_RANGES_MAX])
        consumer.connection.frame_received(Frame(kind, 0, 0, encode_ranges(part)))


class _Outcomes:
    """The outcomes of the batches of a group that are published one by one."""

    def __init__(self, batches: int, settle: Callable[[dict[int, bytes], int], None]) -> None:
        self._missing = batches
        self._settle = settle
        self._parts: dict[int, bytes] = {}
        self.pause_ms = 0

    def add(self, index: int, part: bytes) -> None:
        self._parts[index] = part
        self._missing -= 1
        if not self._missing:
            self._settle(self._parts, self.pause_ms)

    def add_result(self, index: int, result: PublishResult) -> None:
        self.add(index, encode_outcome(result))


def _group_of(batch: int, slot: PublishSlot | None, block: bytes) -> ReceivedGroup:
    """A group of one block."""
    head = decode_block_head(block)
    producer_id, epoch, sequence = head.numbering or (NOT_NUMBERED, 0, NOT_NUMBERED)
    group = BlockGroup((len(block),), (head.rows,), (producer_id,), (epoch,), (sequence,), (1,))
    return ReceivedGroup(batch, [slot], group, (block,), len(block))
