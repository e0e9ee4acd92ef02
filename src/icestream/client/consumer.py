"""Consumer: one consumer of a subscription. `Subscription` (subscription.py) is its public face; the session, the
connection and messages call it too. `async for` iterates it directly, to save a call per message.

    opening   not registered at the broker yet
    open      messages arrive as credit requests them; a lost connection only pauses it: messages that were not handed
              out are dropped and redelivered, acks are kept and sent later
    stalled   the broker has messages that it cannot deliver now, and says why (stalls.py): the iteration raises, and
              can be continued
    failed    deleted, replaced by another consumer of its name, or too slow: the iteration raises
    closed    the iteration ends

Acks, nacks and credit of a loop tick leave together.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from icestream import errors, limits
from icestream.client.acks import PendingAcks, check_delay_ms
from icestream.client.client_connection import ClientConnection
from icestream.client.delivered_rows import DeliveredRows, check_delivery
from icestream.client.inbox import Chunk, ChunkCursor, Inbox
from icestream.client.message import COMPLETED_ACK, CompletedAck, Gap, Message
from icestream.client.session import Session
from icestream.client.stalls import Stall, StallTracker
from icestream.client.start_position import StartPosition, start_arguments
from icestream.client.subscribe_call import SubscribeReply, SubscribeRequest, SubscriptionIdentity, shard_generations
from icestream.model.shard import GapState
from icestream.model.topic_name import check_name
from icestream.rpc import document, frame
from icestream.rpc.document import Document
from icestream.rpc.frame import CUMULATIVE, AckRanges, FrameKind
from icestream.runtime.waiters import Waiters

if TYPE_CHECKING:
    from icestream.client.arrow import ArrowBatch

_CUMULATIVE_TYPES: Final = ("exclusive", "failover")


class Consumer:
    """The state of one consumer: its buffered messages, its credit, its acks, and its place at the broker."""

    def __init__(self, session: Session, request: SubscribeRequest) -> None:
        self.topic = request.topic
        self.name = request.subscription
        unique_name = f"{socket.gethostname()}-{session.randomness.token(8).hex()}"
        self.consumer = check_name("consumer", unique_name if request.consumer is None else request.consumer)
        self.positions: list[int] = []  # of each shard, when it was opened: everything below was acked
        self.is_active = False  # messages are delivered to it: a failover subscription has one active consumer
        self.error: errors.IcestreamError | None = None
        self.gaps: deque[Gap] = deque(maxlen=limits.CLIENT_GAPS_MAX)
        self._request = request
        self._arguments = request.arguments(self.consumer)
        self._session = session
        prefetch = limits.CLIENT_PREFETCH_DEFAULT if request.prefetch is None else request.prefetch
        self._inbox = Inbox(prefetch, request.buffer_bytes, deduplicates=request.dedup)
        self._cursor = ChunkCursor(self._inbox)
        self._acks = PendingAcks()
        self._connection: ClientConnection | None = None
        self._handle = 0
        self._identity: SubscriptionIdentity | None = None
        self._is_closed = self._is_flush_scheduled = self._is_take_timeout_running = False
        self._waiters = Waiters()
        self._stalls = StallTracker(self.name, request.stall_timeout, session.clock, session.tasks, self._waiters.wake)

    # --- messages ---

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        # `ChunkCursor.take_rows(1)`, inlined: these lines run for every message.
        cursor = self._cursor
        while True:
            row = cursor.row
            if row < cursor.end:
                cursor.row = row + 1
                return Message(cursor.delivered, row)
            # A quarter of the window: the credit for a chunk is granted when it is used up, while the rest is buffered.
            if not await self._next_chunk(max(1, self._inbox.credit.window // 4)):
                raise StopAsyncIteration

    async def take(self, max_messages: int) -> list[Message]:
        """Waits for messages, and returns those that have arrived, at most `max_messages`. Empty if it was closed."""
        if max_messages < 1:
            raise errors.InvalidInput(f"max_messages must be at least 1, got {max_messages}")
        chunk = await self.take_chunk(max_messages)
        return [Message(chunk.delivered, row) for row in range(chunk.first, chunk.end)] if chunk is not None else []

    def batches(self, max_messages: int = 10_000) -> AsyncIterator[ArrowBatch]:
        """Yields messages as Arrow, with the columns of the topic's table. Needs pyarrow."""
        from icestream.client.arrow import arrow_batches

        if self._request.prefetch is None:
            self._inbox.credit.widen(min(2 * max_messages, limits.CLIENT_PREFETCH_BATCHES))
        return arrow_batches(self, max_messages)

    async def take_chunk(self, max_messages: int) -> Chunk | None:
        """Waits for messages, and returns rows of one delivery, which count as handed out. None if it was closed."""
        has_rows = self._cursor.row < self._cursor.end or await self._next_chunk(max_messages)
        return self._cursor.take_rows(max_messages) if has_rows else None

    async def take_chunk_for_thread(self, max_messages: int) -> Chunk | None:
        """`take_chunk` for another thread. While copies may be buffered it returns single messages: an ack must find
        the copy here, and not in the buffer of that thread."""
        has_rows = self._cursor.row < self._cursor.end or await self._next_chunk(max_messages)
        return self._cursor.take_rows(1 if self._inbox.may_hold_copies else max_messages) if has_rows else None

    def take_chunk_nowait(self, max_messages: int) -> Chunk | None:
        """`take_chunk` without waiting. None if no messages are buffered."""
        has_rows = self._cursor.row < self._cursor.end or self._start_chunk(max_messages)
        return self._cursor.take_rows(max_messages) if has_rows else None

    async def _next_chunk(self, rows_max: int) -> bool:
        """Waits until there are messages to hand out. False if it was closed. Raises SubscriptionStalled for a new
        stall, or the error that made the consumer fail."""
        # Before buffered messages: with messages of other shards the buffer might never run dry.
        self._stalls.check()
        while not self._start_chunk(rows_max):
            if self._cursor.row < self._cursor.end:
                return True  # another task has started a chunk meanwhile
            if self._is_closed:
                return False
            self._check_was_open()
            self._stalls.check()
            await self._waiters.wait()
        return True

    def _check_was_open(self) -> None:
        """Raises ClientClosed before the first opening."""
        if self._identity is None:
            raise errors.ClientClosed(f"subscription {self.name} is not open yet", hint="use `async with`")

    def _start_chunk(self, rows_max: int) -> bool:
        """Starts the next chunk of the inbox. False if no messages wait, or a chunk has rows left. Raises `error`."""
        if self.error is not None:
            raise self.error
        if self._cursor.row < self._cursor.end:
            return False
        if self._cursor.is_used_up:
            self._schedule_flush()  # there is room for more: credit can be granted
        return self._cursor.start(rows_max, self._session.clock.monotonic_ns())

    # --- acks ---

    def ack_row(self, delivered: DeliveredRows, row: int) -> None:
        """Acks one message: `ack_rows`, with a fast path."""
        # The fast path: the second and later acks of a tick, while no copies are buffered.
        if not self._is_flush_scheduled or self._inbox.may_hold_copies or delivered.identity is not self._identity:
            self.ack_rows(delivered, row, row + 1)
            return
        offset = delivered.start + row if delivered.offsets is None else delivered.offsets[row]
        self._acks.ack(delivered.shard, delivered.generation, offset, offset + 1)

    def ack_rows(self, delivered: DeliveredRows, first: int, end: int) -> None:
        """Acks rows of a delivery. Acks of an earlier connection count too: the broker acks by offset."""
        self._schedule_acks()
        if delivered.identity is not self._identity:
            return  # the subscription was deleted and created again: it has other messages at these offsets
        for start, stop in delivered.ranges(first, end):
            self._acks.ack(delivered.shard, delivered.generation, start, stop)
            if self._inbox.may_hold_copies:
                self._cursor.ack(delivered.shard, delivered.generation, start, stop)

    def ack_through(self, message: Message) -> CompletedAck:
        """Acks a message and everything before it in its shard. Raises InvalidInput."""
        if self._request.type not in _CUMULATIVE_TYPES:
            raise errors.InvalidInput(
                f"subscription {self.name} is {self._request.type}: it has no cumulative ack",
                hint="ack each message, or subscribe as exclusive or failover",
            )
        delivered, offset = message._delivered, message.offset
        if delivered.consumer is not self:
            raise errors.InvalidInput(
                f"a message of subscription {delivered.consumer.name} of {delivered.consumer.topic} was passed to "
                f"{self.name} of {self.topic}",
                hint="ack a message with the subscription that delivered it",
            )
        self._schedule_acks()
        if delivered.identity is self._identity:
            self._acks.ack_through(delivered.shard, delivered.generation, offset + 1)
            if self._inbox.may_hold_copies:
                self._cursor.ack(delivered.shard, delivered.generation, 0, offset + 1)
        return COMPLETED_ACK

    def nack_row(self, delivered: DeliveredRows, row: int, delay_seconds: float) -> None:
        self.nack_rows(delivered, row, row + 1, delay_seconds)

    def nack_rows(self, delivered: DeliveredRows, first: int, end: int, delay_seconds: float) -> None:
        """Nacks rows of a delivery. Raises InvalidInput for the delay."""
        delay_ms = check_delay_ms(delay_seconds)
        self._schedule_acks()
        # The ledger must know the rows as handed out before it forgets them again as nacked.
        self._cursor.record()
        for start, stop in delivered.ranges(first, end):
            self._inbox.nack(delivered.shard, delivered.generation, start, stop)
            # Messages of an earlier connection are redelivered without a nack.
            if delivered.connection is self._connection:
                self._acks.nack(delivered.shard, delivered.generation, delay_ms, start, stop)

    def _schedule_acks(self) -> None:
        """Schedules the flush that sends acks and nacks. Raises ClientClosed, InvalidInput on another event loop."""
        if not self._is_flush_scheduled:
            self._session.check_loop()
        self.check_open()
        self._schedule_flush()

    def check_open(self) -> None:
        """Raises ClientClosed, or the error that made the consumer fail."""
        if self.error is not None:
            raise self.error
        if self._is_closed:
            raise errors.ClientClosed(f"subscription {self.name} is closed", hint="use it inside its `async with`")

    async def flush(self) -> None:
        """Waits until the broker has applied every ack so far. Raises ConnectionLost if it did not confirm that."""
        self._check_was_open()
        self.check_open()
        connection = self._connection
        if connection is None:
            raise errors.ConnectionLost(
                f"subscription {self.name} is not connected", hint="acks are kept and sent later"
            )
        # The broker handles frames in order: its answer to the PING confirms the acks before it.
        self._flush(connection)
        await connection.ping()

    # --- position and state ---

    async def seek(self, start: StartPosition, *, shard: int | None = None) -> None:
        """Moves the subscription, for all of its consumers. `shard`: None for all shards."""
        self._check_was_open()
        arguments = {"topic": self.topic, "subscription": self.name, **start_arguments(start)}
        if shard is not None:
            arguments["shard"] = shard
        reply = await self._session.call("seek", arguments, repeats=True)
        # The first delivery of the new generation may have arrived before the reply: the inbox keeps the newer one.
        self._inbox.seek(shard_generations(reply))
        self._cursor.drop_outdated()
        self._schedule_flush()

    @property
    def stalls(self) -> list[Stall]:
        """The current stalls."""
        return self._stalls.current

    @property
    def waiting_messages(self) -> int:
        """How many messages arrived and were not taken yet."""
        return self._cursor.waiting_messages

    async def close(self) -> None:
        """Sends the acks, then closes the consumer at the broker: unacked messages go to other consumers."""
        if self._is_closed:
            return
        connection = self._connection
        if connection is not None:
            self._flush(connection)
        self._is_closed = True
        # First here, then at the broker: frames that are still on their way find the consumer gone and are ignored
        # (`leave`), until the broker confirms that there are no more of them (`remove`).
        self._session.remove_endpoint(self)
        self._drop_connection()
        self._waiters.wake()
        if connection is not None:
            connection.consumers.leave(self._handle)
            await self._session.notify(connection, "close_consumer", {"handle": self._handle})
            connection.consumers.remove(self._handle)

    def _drop_connection(self) -> None:
        """Drops everything that belongs to the connection: buffered messages, stalls, the active role."""
        self._connection = None
        self.is_active = False
        self._stalls.clear()
        self._cursor.finish()
        self._inbox.clear()

    async def open(self) -> None:
        """Joins the subscription, unless it has done so before. Raises the broker's refusal."""
        self.check_open()
        if self._identity is None:
            await self._session.open_endpoint(self)

    # --- frames of the broker (the connection calls these: delivery_router.DeliveryListener) ---

    def on_delivery(self, delivery: frame.Delivery) -> None:
        """Buffers the messages of a DELIVER or PICK. Raises DecodeError for invalid or unrequested ones."""
        check_delivery(delivery)
        # Rows of the present chunk are recorded lazily. If they are redelivered, the ledger must know them as handed
        # out, or it would take the copies for messages that are still waiting.
        self._cursor.record_before(delivery.shard, delivery.base_offset + delivery.first_row)
        now_ns = self._session.clock.monotonic_ns()
        delivered = DeliveredRows(self, self._connection, self._identity, delivery, now_ns)
        for start, end in self._inbox.arrive(delivered):  # acked here before: the broker has lost those acks
            self._acks.ack(delivered.shard, delivered.generation, start, end)
        self._cursor.drop_outdated()
        if self._acks or not self._inbox:
            self._schedule_flush()
        # A single delivery may exceed the buffer: it is not the application's fault.
        if self._inbox.credit.is_over and self._inbox.credit.buffered > delivery.rows:
            self._fail_slow(f"more than {self._request.buffer_bytes} bytes wait")
        if self._request.take_timeout is not None and not self._is_take_timeout_running:
            self._is_take_timeout_running = True
            watch = self._watch_take_timeout(self._request.take_timeout)
            self._session.tasks.start(watch, f"subscription-{self.name}-watch")
        self._waiters.wake()

    async def _watch_take_timeout(self, take_seconds: float) -> None:
        """Fails the consumer when messages wait and none was taken for `take_seconds`. Runs while messages wait."""
        # Progress by two numbers, compared after the timeout: nothing is done for each message.
        while self._connection is not None and self.waiting_messages:
            progress = (self._cursor.chunks, self._cursor.row)
            await self._session.clock.sleep(take_seconds)
            if progress == (self._cursor.chunks, self._cursor.row) and self.waiting_messages:
                self._fail_slow(f"no message was taken in {take_seconds:g} s")
        self._is_take_timeout_running = False

    def _fail_slow(self, reason: str) -> None:
        """Fails the consumer as too slow, and leaves the subscription, so that other consumers get its messages."""
        connection = self._connection
        count = self.waiting_messages
        self._fail(
            errors.SlowConsumer(
                f"subscription {self.name} is too slow: {reason}, {count} messages were not taken",
                hint="lower prefetch, raise buffer_bytes or take_timeout, or add consumers",
            )
        )
        if connection is not None:
            connection.consumers.leave(self._handle)
            close = self._session.notify(connection, "close_consumer", {"handle": self._handle})
            self._session.tasks.start(close, f"subscription-{self.name}-leave")

    def on_gap(self, gap: frame.GapNotice) -> None:
        """Records a gap. Raises DecodeError for an unknown state."""
        try:
            state = GapState(gap.state)
        except ValueError:
            raise errors.DecodeError(f"GAP with unknown state {gap.state}") from None
        self.gaps.append(Gap(gap.shard, gap.start, gap.end, state, gap.reason))

    def on_event(self, event: Document) -> None:
        """Handles an event of the broker. Unknown events are ignored: a later broker may send some."""
        match event.get("event"):
            case "active":
                self.is_active = True
            case "stalled":
                self._stalls.begin(event)
            case "resumed":
                self._stalls.end(event)
            case "closed":
                connection = self._connection
                reason = document.text_of(event, "reason", limits.ERROR_MESSAGE_BYTES_MAX, "")
                message = f"the broker closed consumer {self.consumer}: {reason}"
                # A code says that subscribing again would be refused for the same reason: its right has ended.
                kind = errors.BY_CODE.get(document.text_of(event, "code", limits.NAME_BYTES_MAX, ""))
                hint = document.text_of(event, "hint", limits.ERROR_HINT_BYTES_MAX, "") or "subscribe again to continue"
                self._fail((kind or errors.ConsumerClosed)(message, hint=hint))
                if connection is not None:
                    connection.consumers.remove(self._handle)

    # --- connections (the session calls these: session.Endpoint) ---

    def _schedule_flush(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._session.schedule_flush(self)

    def _flush(self, connection: ClientConnection | None) -> None:
        """Queues the acks, nacks and credit of this tick."""
        self._is_flush_scheduled = False
        if connection is None or connection is not self._connection:
            return
        # Acks before credit: the broker frees slots of the in-flight window before it dispatches by the new credit.
        for shard, generation, ranges in self._acks.take_acks():
            self._push_ranges(connection, FrameKind.ACK, shard, generation, 0, ranges)
            self._inbox.ack(shard, generation, ranges)
        for shard, generation, end in self._acks.take_cumulative():
            self._push_ranges(connection, FrameKind.ACK, shard, generation, CUMULATIVE, [(0, end)])
            self._inbox.ack_through(shard, generation, end)
        for shard, generation, delay_ms, ranges in self._acks.take_nacks():
            self._push_ranges(connection, FrameKind.NACK, shard, generation, delay_ms, ranges)
        if count := self._inbox.credit.grant():
            connection.push(frame.encode_frame(FrameKind.CREDIT, 0, frame.encode_credit(self._handle, count)))

    def _push_ranges(
        self,
        connection: ClientConnection,
        kind: FrameKind,
        shard: int,
        generation: int,
        extra: int,
        ranges: list[tuple[int, int]],
    ) -> None:
        body = frame.encode_ranges(AckRanges(self._handle, shard, generation, extra, ranges))
        connection.push(frame.encode_frame(kind, 0, body))

    async def _open_on(self, connection: ClientConnection) -> None:
        """Joins the subscription at the broker, for the first time or again. Raises the broker's refusal."""
        document_reply = await self._session.call_on(connection, "subscribe", self._arguments, undo="close_consumer")
        if connection.is_lost:
            return
        if self._is_closed:  # during the call
            await self._session.notify(connection, "close_consumer", {"handle": document_reply.get("handle")})
            return
        reply = SubscribeReply.decode(document_reply)
        # Messages must be taken well before their ack deadline, with time left to process them.
        self._inbox.credit.drain_ns = int(reply.ack_timeout_ms * 1_000_000 * limits.CLIENT_DRAIN_SHARE)
        self._inbox.begin(reply.generations, is_same=reply.identity == self._identity)
        if reply.identity != self._identity:
            self._acks = PendingAcks()  # the old ones are for messages of a deleted subscription
            self._identity = reply.identity
        self._handle, self.positions = reply.handle, reply.positions
        self._connection = connection
        self.is_active = self._request.type != "failover"
        connection.consumers.join(self._handle, self)
        self._schedule_flush()  # grants the first credit: no message arrives before it

    def _use_session(self, session: Session) -> None:
        self._session = session

    def _detach(self, error: errors.IcestreamError) -> None:
        """Drops the messages that were not handed out, which are redelivered; acks are sent on the next connection."""
        # Acks are kept: an ack is by offset and counts on any connection. A nack concerns one delivery, which is over.
        self._drop_connection()
        self._acks.discard_nacks()

    def _fail(self, error: errors.IcestreamError) -> None:
        """Ends the consumer permanently; the first error is the one that the iteration raises."""
        if self.error is None:
            self.error = error
        self._session.remove_endpoint(self)
        self._drop_connection()
        self._waiters.wake()
