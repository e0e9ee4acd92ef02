"""A consumer of the native protocol: sends deliveries as frames, and passes credit, acks and nacks to the broker.

No frame is sent before the client knows the consumer's handle: until the response to `subscribe` has left, frames are
queued.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from icestream import errors, limits
from icestream.broker.broker_consumer import BrokerConsumer
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.model.shard import DeclaredGap
from icestream.rpc import document, frame, handshake
from icestream.rpc.blocks import select_rows
from icestream.rpc.frame import CUMULATIVE, DELIVER, DELIVER_FRAME, SIZE_MIN, AckRanges, FrameKind, GapNotice
from icestream.wal.tail import SectionRead

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection


class NativeConsumer:
    def __init__(self, connection: NativeConnection, messages_per_key: int = 1, *, takes_picks: bool = False) -> None:
        """`messages_per_key`: in a key-shared subscription, how many messages of a key the client takes at a time.
        `takes_picks`: the client understands PICK frames."""
        self._connection = connection
        self._messages_per_key = messages_per_key
        self._takes_picks = takes_picks
        self.handle = connection.new_handle()
        self._subscription: BrokerSubscription | None = None
        self._consumer: BrokerConsumer | None = None
        self._queued_frames: list[tuple[FrameKind, int, bytes]] | None = []
        self._is_closed = False

    def joined(self, subscription: BrokerSubscription, consumer: BrokerConsumer) -> None:
        """Called when the broker has added the consumer to the subscription.

        Raises ConnectionLost if the client disconnected meanwhile.
        """
        self._subscription, self._consumer = subscription, consumer
        consumer.credit.messages_per_key = self._messages_per_key
        if self._takes_picks:
            consumer.pick = self.pick
        if self._connection.lost.is_set():
            subscription.leave(consumer)
            raise errors.ConnectionLost("the client disconnected")
        if not self._is_closed:
            self._connection.register_consumer(self)
        # Not at once: the response to `subscribe`, which tells the client the handle, is sent when this call returns.
        asyncio.get_running_loop().call_soon(self._send_queued_frames)

    def _send_queued_frames(self) -> None:
        queued_frames, self._queued_frames = self._queued_frames or [], None
        for queued_frame in queued_frames:
            self._connection.out.send_frame(*queued_frame)
        self.drained()

    def leave(self) -> None:
        if self._subscription is not None and self._consumer is not None:
            self._subscription.leave(self._consumer)
        self._connection.unregister_consumer(self.handle)

    # --- to the client ---

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def is_full(self) -> bool:
        return self._connection.is_full or self._queued_frames is not None

    def drained(self) -> None:
        if self._consumer is not None:
            self._consumer.drained()

    def deliver(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None:
        """Sends a section without copying its body, which all consumers of the section share."""
        base_offset, _, append_time_us, _, body = section
        agreed, frame_bytes = self._connection.agreed, SIZE_MIN + DELIVER.size + len(body)
        if frame_bytes > agreed.send_bytes_max:
            self._deliver_parts(shard, generation, attempt, section, first_row, rows)
            return
        fields = (self.handle, shard, generation, attempt, base_offset, append_time_us, first_row, rows)
        if agreed.compression is not None:
            self._send_messages(FrameKind.DELIVER, DELIVER.pack(*fields), body)
        else:
            head = DELIVER_FRAME.pack(frame_bytes, FrameKind.DELIVER, 0, 0, 0, *fields)
            self._connection.out.send(head, body)

    def pick(
        self, shard: int, generation: int, attempt: int, picked: SectionRead, ranges: list[tuple[int, int]]
    ) -> None:
        """Sends messages with gaps between their offsets, in as few frames as the client's frame size allows."""
        if len(ranges) == 1:
            self.deliver(shard, generation, attempt, picked, 0, picked.rows)
            return
        head = frame.encode_pick_head(
            self.handle, shard, generation, attempt, picked.append_time_us, picked.rows, ranges
        )
        if len(head) + len(picked.body) <= self._connection.agreed.send_bytes_max - SIZE_MIN:
            self._send_messages(FrameKind.PICK, head, picked.body)
            return
        # Halved by ranges: one range alone is an ordinary section, which `deliver` splits by rows.
        half, first_row = len(ranges) // 2, 0
        for part in (ranges[:half], ranges[half:]):
            rows = sum(end - start for start, end in part)
            body = select_rows(picked.body, first_row, rows)
            first_row += rows
            section = SectionRead(part[0][0], rows, picked.append_time_us, picked.epoch, body)
            self.pick(shard, generation, attempt, section, part)

    def _send_messages(self, kind: FrameKind, head: bytes, body: bytes) -> None:
        if self._connection.agreed.compression is not None:
            self._connection.out.send(handshake.outgoing_frame(kind, 0, head + body, self._connection.agreed))
            return
        self._connection.out.send(frame.encode_head(kind, 0, len(head) + len(body)) + head, body)

    def _deliver_parts(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None:
        """Splits a section that exceeds the client's frame size: first to the rows to deliver, then in halves."""
        if first_row or rows < section.rows:
            body = select_rows(section.body, first_row, rows)
            base = section.base_offset + first_row
            part = SectionRead(base, rows, section.append_time_us, section.epoch, body)
            self.deliver(shard, generation, attempt, part, 0, rows)
        elif rows > 1:
            half = rows // 2
            self._deliver_parts(shard, generation, attempt, section, 0, half)
            self._deliver_parts(shard, generation, attempt, section, half, rows - half)
        else:
            # Not at once: the messages of this consumer are being sent at this moment, and leaving ends that.
            asyncio.get_running_loop().call_soon(self._refuse_too_large, section)

    def _refuse_too_large(self, section: SectionRead) -> None:
        """Closes the consumer: skipping a message that the client cannot receive would lose it silently."""
        frame_bytes = self._connection.agreed.send_bytes_max
        self.event("closed", {"reason": f"offset {section.base_offset} does not fit a frame of {frame_bytes} bytes"})
        self.leave()

    def gap(self, shard: int, generation: int, gap: DeclaredGap) -> None:
        gap_frame = GapNotice(self.handle, shard, generation, gap.state, gap.start, gap.end, gap.reason)
        self._send(FrameKind.GAP, 0, frame.encode_gap(gap_frame))

    def event(self, event: str, details: dict[str, object]) -> None:
        self._send(FrameKind.EVENT, self.handle, document.encode({"event": event, **details}))
        if event == "closed":
            self._is_closed = True
            self._connection.unregister_consumer(self.handle)

    def _send(self, kind: FrameKind, number: int, body: bytes) -> None:
        if self._queued_frames is None:
            self._connection.out.send_frame(kind, number, body)
        else:
            self._queued_frames.append((kind, number, body))

    # --- from the client ---

    def give_credit(self, messages: int) -> None:
        if self._subscription is not None and self._consumer is not None:
            self._subscription.give_credit(self._consumer, min(messages, limits.CREDIT_MAX))

    @property
    def connection(self) -> NativeConnection:
        return self._connection

    @property
    def subscription(self) -> BrokerSubscription:
        """The subscription that it has joined."""
        assert self._subscription is not None
        return self._subscription

    @property
    def shards(self) -> int:
        """The number of shards that it may settle messages of."""
        return len(self.subscription.deliveries)

    def nack(self, shard: int, generation: int, delay_ms: int, ranges: list[tuple[int, int]]) -> None:
        assert self._consumer is not None
        self.subscription.delivery(shard).nack(ranges, generation, delay_ms, self._consumer.id)

    def settle(self, ranges: AckRanges, *, is_ack: bool) -> None:
        subscription = self.subscription
        delivery = subscription.delivery(ranges.shard)
        if not is_ack:
            self.nack(ranges.shard, ranges.generation, ranges.extra, ranges.ranges)
        elif not ranges.extra & CUMULATIVE:
            delivery.ack(ranges.ranges, ranges.generation)
        elif subscription.allows_cumulative_ack:
            delivery.ack_through(max(end for _, end in ranges.ranges) - 1, ranges.generation)
        else:
            raise errors.InvalidInput(
                f"subscription {subscription.name} is {subscription.record.type.value}: no cumulative acks allowed",
                hint="ack each message, or ranges of messages",
            )
