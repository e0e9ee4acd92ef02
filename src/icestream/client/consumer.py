"""One consumer of a subscription, inside: what a `Subscription` (subscription.py) shows to its user, and what the
session, the connection and messages call. It hands out messages itself: `async for` asks it directly.

    opening   not known to the broker yet
    open      messages come as credit asks for them; a lost connection only pauses it: what was not handed out is
              dropped and comes again, acks are kept and sent later
    stalled   the broker has messages that it cannot deliver now, and says why (stalls.py): the iteration raises, and
              can be gone on with
    failed    deleted, taken by another consumer of its name, or too slow: the iteration raises
    closed    the iteration ends

Acks, nacks and credit of a loop tick leave together.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from icestream import errors, limits
from icestream.client.acks import AckBook, delay_ms_of
from icestream.client.asked import Gap, SubscriptionAsked
from icestream.client.connection import Connection
from icestream.client.delivered import Delivered, Identity, check
from icestream.client.handout import Handout
from icestream.client.inbox import Chunk, Inbox
from icestream.client.joined import Joined, generations_of
from icestream.client.message import NOTED, Message, Noted
from icestream.client.questions import Document
from icestream.client.session import Session
from icestream.client.stalls import Stall, Stalls
from icestream.client.waiters import Waiters
from icestream.client.whence import Whence, arguments_of
from icestream.model.shard import GapState
from icestream.model.topic_name import check_name
from icestream.rpc import document, frame
from icestream.rpc.frame import CUMULATIVE, Kind, Ranges

if TYPE_CHECKING:
    from icestream.client.arrow import ArrowBatch

_CUMULATIVE: Final = ("exclusive", "failover")


class Consumer:
    def __init__(self, session: Session, asked: SubscriptionAsked) -> None:
        self.topic = asked.topic
        self.name = asked.subscription
        given = asked.consumer
        self.consumer = f"{socket.gethostname()}-{session.randomness.token(8).hex()}" if given is None else given
        check_name("consumer", self.consumer)
        self.positions: list[int] = []  # of each shard, when it was opened: everything below was acked
        self.is_active = False  # of a failover subscription: it is this consumer's turn
        self.error: errors.IcestreamError | None = None
        self.gaps: deque[Gap] = deque(maxlen=limits.CLIENT_GAPS_MAX)
        self._asked = asked
        self._arguments = asked.arguments(self.consumer)
        self._session = session
        prefetch = limits.CLIENT_PREFETCH_DEFAULT if asked.prefetch is None else asked.prefetch
        self._inbox = Inbox(prefetch, asked.buffer_bytes, deduplicates=asked.dedup)
        self._out = Handout(self._inbox)
        self._acks = AckBook()
        self._connection: Connection | None = None
        self._handle = 0
        self._identity: Identity | None = None
        self._is_closed = self._is_planned = self._is_watched = False
        self._waiters = Waiters()
        self._stalls = Stalls(self.name, asked.stall_timeout, session.clock, session.tasks, self._waiters.wake)

    # --- messages ---

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        out = self._out
        while True:
            row = out.row
            if row < out.end:
                out.row = row + 1
                return Message(out.delivered, row)
            if not await self._next_chunk(max(1, self._inbox.credit.window // 4)):
                raise StopAsyncIteration

    async def take(self, max_messages: int) -> list[Message]:
        """Waits for messages; what is there, at most so many. None: the subscription was closed."""
        if max_messages < 1:
            raise errors.InvalidInput(f"{max_messages} messages cannot be taken", hint="take at least one")
        chunk = await self.take_chunk(max_messages)
        return [Message(chunk.delivered, row) for row in range(chunk.first, chunk.end)] if chunk is not None else []

    def batches(self, max_messages: int = 10_000) -> AsyncIterator[ArrowBatch]:
        """Messages as Arrow, with the columns of the topic's table; each batch has `ack()`. Needs pyarrow."""
        from icestream.client.arrow import arrow_batches

        if self._asked.prefetch is None:
            self._inbox.credit.widen(min(2 * max_messages, limits.CLIENT_PREFETCH_BATCHES))
        return arrow_batches(self, max_messages)

    async def take_chunk(self, max_messages: int) -> Chunk | None:
        """Rows of one delivery, all of which count as handed out."""
        is_there = self._out.row < self._out.end or await self._next_chunk(max_messages)
        return self._out.rows(max_messages) if is_there else None

    async def take_over(self, max_messages: int) -> Chunk | None:
        """The same for another thread. One by one while copies may be here: an ack must find the copy before it."""
        is_there = self._out.row < self._out.end or await self._next_chunk(max_messages)
        return self._out.rows(1 if self._inbox.may_hold_copies else max_messages) if is_there else None

    def take_waiting(self, max_messages: int) -> Chunk | None:
        """The same, of what is here already."""
        is_there = self._out.row < self._out.end or self._start_chunk(max_messages)
        return self._out.rows(max_messages) if is_there else None

    async def _next_chunk(self, rows_max: int) -> bool:
        """Waits until there is something to hand out. False: closed. Raises SubscriptionStalled for a new stall."""
        self._stalls.check()
        while not self._start_chunk(rows_max):
            if self._out.row < self._out.end:
                return True  # another task has come before us
            if self._is_closed:
                return False
            self._check_was_open()
            self._stalls.check()
            await self._waiters.wait()
        return True

    def _check_was_open(self) -> None:
        if self._identity is None:
            raise errors.ClientClosed(f"subscription {self.name} is not open yet", hint="use `async with`")

    def _start_chunk(self, rows_max: int) -> bool:
        if self.error is not None:
            raise self.error
        if self._out.row < self._out.end:
            return False
        if self._out.is_used_up:
            self.plan()  # there is room for more
        return self._out.start(rows_max, self._session.clock.monotonic_ns())

    # --- acks ---

    def ack_row(self, delivered: Delivered, row: int) -> None:
        if not self._is_planned or self._inbox.may_hold_copies or delivered.identity is not self._identity:
            self.ack_rows(delivered, row, row + 1)
            return
        offset = delivered.start + row if delivered.offsets is None else delivered.offsets[row]
        self._acks.ack(delivered.shard, delivered.generation, offset, offset + 1)

    def ack_rows(self, delivered: Delivered, first: int, end: int) -> None:
        self._plan_ack()
        if delivered.identity is not self._identity:
            return  # of a subscription that is gone: another one of its name has other messages at these offsets
        for start, stop in delivered.ranges(first, end):
            self._acks.ack(delivered.shard, delivered.generation, start, stop)
            if self._inbox.may_hold_copies:
                self._out.acked(delivered.shard, delivered.generation, start, stop)

    def ack_through(self, message: Message) -> Noted:
        if self._asked.type not in _CUMULATIVE:
            raise errors.InvalidInput(
                f"subscription {self.name} is {self._asked.type}: it has no cumulative ack",
                hint="ack each message, or subscribe as exclusive or failover",
            )
        delivered, offset = message._delivered, message.offset
        if delivered.consumer is not self:
            raise errors.InvalidInput(
                f"a message of subscription {delivered.consumer.name} of {delivered.consumer.topic}",
                hint=f"{self.name} of {self.topic} acks its own messages",
            )
        self._plan_ack()
        if delivered.identity is self._identity:
            self._acks.ack_through(delivered.shard, delivered.generation, offset + 1)
            if self._inbox.may_hold_copies:
                self._out.acked(delivered.shard, delivered.generation, 0, offset + 1)
        return NOTED

    def nack_row(self, delivered: Delivered, row: int, delay_seconds: float) -> None:
        self.nack_rows(delivered, row, row + 1, delay_seconds)

    def nack_rows(self, delivered: Delivered, first: int, end: int, delay_seconds: float) -> None:
        delay_ms = delay_ms_of(delay_seconds)
        self._plan_ack()
        self._out.note()
        for start, stop in delivered.ranges(first, end):
            self._inbox.nacked(delivered.shard, delivered.generation, start, stop)
            if delivered.connection is self._connection:  # of another one it comes again by itself
                self._acks.nack(delivered.shard, delivered.generation, delay_ms, start, stop)

    def _plan_ack(self) -> None:
        if not self._is_planned:
            self._session.check_loop()
        self.check_open()
        self.plan()

    def check_open(self) -> None:
        """Raises why it gets no messages any more, and takes no acks."""
        if self.error is not None:
            raise self.error
        if self._is_closed:
            raise errors.ClientClosed(f"subscription {self.name} is closed", hint="use it inside its `async with`")

    async def flush(self) -> None:
        """Until the broker has counted every ack so far. Raises ConnectionLost when it did not say so."""
        self._check_was_open()
        self.check_open()
        connection = self._connection
        if connection is None:
            raise errors.ConnectionLost(
                f"subscription {self.name} is not connected", hint="acks are kept and sent later"
            )
        self.flush_on(connection)
        await connection.ping()

    # --- where it stands ---

    async def seek(self, start: Whence, *, shard: int | None = None) -> None:
        """Everything from there on is delivered again, or for the first time, to all consumers of the subscription."""
        self._check_was_open()
        arguments = {"topic": self.topic, "subscription": self.name, **arguments_of(start)}
        if shard is not None:
            arguments["shard"] = shard
        found = await self._session.call("seek", arguments, repeats=True)
        self._inbox.sought(generations_of(found))
        self._out.drop_old()
        self.plan()

    @property
    def stalls(self) -> list[Stall]:
        """What keeps messages from coming now."""
        return self._stalls.now

    @property
    def waiting_messages(self) -> int:
        """What came and was not taken yet."""
        return self._out.waiting_messages

    async def close(self) -> None:
        """Sends the acks, then leaves: what was not acked goes to others."""
        if self._is_closed:
            return
        connection = self._connection
        if connection is not None:
            self.flush_on(connection)
        self._is_closed = True
        self._session.forget(self)
        self._leave()
        self._waiters.wake()
        if connection is not None:
            connection.consumers.leave(self._handle)
            await self._session.tell(connection, "close_consumer", {"handle": self._handle})
            connection.consumers.forget(self._handle)

    def _leave(self) -> None:
        self._connection = None
        self.is_active = False
        self._stalls.clear()
        self._out.finish()
        self._inbox.clear()

    async def open(self) -> None:
        """Joins the subscription, the first time that it is asked to. Raises what goes wrong."""
        self.check_open()
        if self._identity is None:
            await self._session.open(self)

    # --- from the broker ---

    def delivered(self, delivery: frame.Delivery) -> None:
        check(delivery)
        self._out.note_before(delivery.shard, delivery.base_offset + delivery.first_row)
        came = Delivered(self, self._connection, self._identity, delivery, self._session.clock.monotonic_ns())
        for start, end in self._inbox.arrive(came):
            self._acks.ack(came.shard, came.generation, start, end)
        self._out.drop_old()
        if self._acks or not self._inbox:
            self.plan()
        if self._inbox.credit.is_over and self._inbox.credit.held > delivery.rows:
            self._too_slow(f"more than {self._asked.buffer_bytes} bytes wait")
        if self._asked.take_timeout is not None and not self._is_watched:
            self._is_watched = True
            self._session.tasks.start(self._watch(self._asked.take_timeout), f"subscription-{self.name}-watch")
        self._waiters.wake()

    async def _watch(self, take_seconds: float) -> None:
        """Ends the subscription when something waits and nothing was taken for so long."""
        while self._connection is not None and self.waiting_messages:
            seen = (self._out.chunks, self._out.row)
            await self._session.clock.sleep(take_seconds)
            if seen == (self._out.chunks, self._out.row) and self.waiting_messages:
                self._too_slow(f"no message was taken in {take_seconds:g} s")
        self._is_watched = False

    def _too_slow(self, why: str) -> None:
        connection = self._connection
        count = self.waiting_messages
        self.fail(
            errors.SlowConsumer(
                f"subscription {self.name} is too slow: {why}, {count} messages were not taken",
                hint="lower prefetch, raise buffer_bytes or take_timeout, or add consumers",
            )
        )
        if connection is not None:
            connection.consumers.leave(self._handle)
            leaving = self._session.tell(connection, "close_consumer", {"handle": self._handle})
            self._session.tasks.start(leaving, f"subscription-{self.name}-leave")

    def gap_seen(self, gap: frame.GapSeen) -> None:
        try:
            state = GapState(gap.state)
        except ValueError:
            raise errors.DecodeError(f"a GAP of state {gap.state}") from None
        self.gaps.append(Gap(gap.shard, gap.start, gap.end, state, gap.reason))

    def event(self, found: Document) -> None:
        match found.get("event"):
            case "active":
                self.is_active = True
            case "stalled":
                self._stalls.begin(found)
            case "resumed":
                self._stalls.end(found)
            case "closed":
                connection = self._connection
                reason = document.text_of(found, "reason", limits.ERROR_MESSAGE_BYTES_MAX, "")
                self.fail(errors.ConsumerClosed(f"the broker closed consumer {self.consumer}: {reason}"))
                if connection is not None:
                    connection.consumers.forget(self._handle)

    # --- as an endpoint of the client ---

    def plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._session.plan(self)

    def flush_on(self, connection: Connection | None) -> None:
        self._is_planned = False
        if connection is None or connection is not self._connection:
            return
        for shard, generation, ranges in self._acks.take_acks():
            self._push(connection, Kind.ACK, shard, generation, 0, ranges)
            self._inbox.acked(shard, generation, ranges)
        for shard, generation, end in self._acks.take_through():
            self._push(connection, Kind.ACK, shard, generation, CUMULATIVE, [(0, end)])
            self._inbox.acked_through(shard, generation, end)
        for shard, generation, delay_ms, ranges in self._acks.take_nacks():
            self._push(connection, Kind.NACK, shard, generation, delay_ms, ranges)
        if count := self._inbox.credit.grant():
            connection.push(frame.encode_frame(Kind.CREDIT, 0, frame.encode_credit(self._handle, count)))

    def _push(
        self, connection: Connection, kind: Kind, shard: int, generation: int, extra: int, ranges: list[tuple[int, int]]
    ) -> None:
        body = frame.encode_ranges(Ranges(self._handle, shard, generation, extra, ranges))
        connection.push(frame.encode_frame(kind, 0, body))

    async def open_on(self, connection: Connection) -> None:
        found = await self._session.ask(connection, "subscribe", self._arguments, undo="close_consumer")
        if connection.is_lost:
            return
        if self._is_closed:
            await self._session.tell(connection, "close_consumer", {"handle": found.get("handle")})
            return
        joined = Joined.of(found)
        self._inbox.credit.drain_ns = int(joined.ack_timeout_ms * 1_000_000 * limits.CLIENT_DRAIN_SHARE)
        self._inbox.begin(joined.generations, is_same=joined.identity == self._identity)
        if joined.identity != self._identity:
            self._acks = AckBook()  # of messages that are gone
            self._identity = joined.identity
        self._handle, self.positions = joined.handle, joined.positions
        self._connection = connection
        self.is_active = self._asked.type != "failover"
        connection.consumers.join(self._handle, self)
        self.plan()

    def move_to(self, session: Session) -> None:
        self._session = session

    def detach(self, error: errors.IcestreamError) -> None:
        """What was not handed out comes again; acks are sent on the next connection."""
        self._leave()
        self._acks.forget_nacks()

    def fail(self, error: errors.IcestreamError) -> None:
        if self.error is None:
            self.error = error
        self._session.forget(self)
        self._leave()
        self._waiters.wake()
