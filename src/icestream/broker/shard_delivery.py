"""The delivery of one shard of a subscription: the I/O shell around the pure dispatcher (dispatch/).

Events come from the shard (more to read), the consumers (credit, acks, nacks), the clock (one alarm, set to when the
dispatcher is next due) and the dead letters. Each is passed to the dispatcher, and its instructions are applied.

    open      events are processed
    closed    events are ignored; the cursor has its last value
    deleted   closed, and the cursor is not written any more

Nothing awaits between an event and its instructions, so an event always meets the state that the one before it has
left. What takes longer runs in tasks and comes back as an event: reads (broker_consumer.py, key_lookahead.py), dead
letters. A seek may have happened meanwhile, so their results are compared with the generation first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from icestream import errors, limits
from icestream.broker.alarm import Alarm
from icestream.broker.broker_consumer import BrokerConsumer, Outgoing
from icestream.broker.delivery_health import DeliveryHealth
from icestream.broker.dispatch.best_effort import BestEffortDispatcher, KeySharedBestEffortDispatcher
from icestream.broker.dispatch.delivery_ledger import NACK
from icestream.broker.dispatch.dispatcher import Dispatcher
from icestream.broker.dispatch.hash_ring import KeyFilter
from icestream.broker.dispatch.instruction import DeadLetter, Deliver, Dropped, Instruction
from icestream.broker.dispatch.key_shared import KeySharedDispatcher
from icestream.broker.key_lookahead import KeyLookahead
from icestream.broker.lag_monitor import LagMonitor
from icestream.broker.records import CursorRecord, as_steps
from icestream.broker.stall import DeliveryStall, DeliveryStalls, StallKind
from icestream.broker.stall_detector import StallDetector
from icestream.broker.stalled_readers import StalledReaders
from icestream.broker.storage import PersistentStorage, ShardStream
from icestream.model.shard import DeclaredGap, GapState
from icestream.model.subscription_options import FailurePolicy, SubscriptionType
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.words import counted
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("delivery")


class DeadLetters(Protocol):
    """How dead letters are stored (dead_letter_writer.py)."""

    async def write(self, stream: ShardStream, policy: FailurePolicy, letter: DeadLetter, generation: int) -> int:
        """Stores the first messages of the range in the dead-letter topic; returns the offset after them, once they are
        durable. Raises if that is not possible now."""


class DeliveryName(NamedTuple):
    """Identifies a shard of a subscription."""

    topic: str
    subscription: str
    shard: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.subscription}:{self.shard}"


class ShardDelivery:
    """Delivers one shard to the consumers of one subscription; the source of its cursor (CursorSource)."""

    def __init__(
        self,
        name: DeliveryName,
        cursor_key: str,
        stream: ShardStream,
        dispatcher: Dispatcher,
        storage: PersistentStorage,
        dead_letters: DeadLetters,
        clock: Clock,
        tasks: Tasks,
        on_dropped: Callable[[Dropped], None],
        health: DeliveryHealth,
        stalled_readers: StalledReaders,
    ) -> None:
        self._identity = name
        self.name = str(name)
        self.cursor_key = cursor_key
        self.stream = stream
        self.dispatcher = dispatcher
        self.is_deleted = False
        self._is_reliable = not isinstance(dispatcher, BestEffortDispatcher | KeySharedBestEffortDispatcher)
        self._storage = storage
        self._dead_letters = dead_letters
        self._clock = clock
        self._tasks = tasks
        self._on_dropped = on_dropped
        self._stalled_readers = stalled_readers
        self._is_probing = False
        self._consumers: dict[int, BrokerConsumer] = {}
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(clock, tasks, self.resume)
        self._lookahead = KeyLookahead(self, clock, tasks) if isinstance(dispatcher, KeySharedDispatcher) else None
        self._stall_detector = StallDetector(self.name, stream, dispatcher, clock, tasks)
        self._stalls = DeliveryStalls(
            stream.key.shard, clock.wall_us, lambda: [consumer.sink for consumer in self._consumers.values()]
        )
        self._lag_monitor = LagMonitor(self.name, dispatcher, clock, tasks, self._report_health)
        self._health = health
        self._failures = dispatcher.failures  # the count at the last mark of the cursor
        self._letters: deque[tuple[DeadLetter, int]] = deque()  # to be written, with their generation
        self._is_wakeup_scheduled = False
        self._is_writing_letters = False
        self.is_closed = False

    # --- lifecycle ---

    def start(self) -> None:
        """Follows the shard from now on, beginning with what is stored already."""
        self.stream.follow(self._on_visible)
        self._on_visible()

    def close(self) -> None:
        """Ignores all events from now on, also that of a dead letter being written: a start finds that letter."""
        if not self.is_closed:
            self.is_closed = True
            self.stream.unfollow(self._on_visible)
            self._alarm.close()
            self._stall_detector.close()
            self._stalls.clear()
            self._lag_monitor.close()
            self._health.forget(self.name)
            self._stalled_readers.end(self.name)
            if self._lookahead is not None:
                self._lookahead.close()
            self._consumers.clear()

    def now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    @property
    def generation(self) -> int:
        return self.dispatcher.generation

    @property
    def is_handed_out_singly(self) -> bool:
        """True if consecutive messages go to different consumers, or at different times: reads are worth caching."""
        return self.dispatcher.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)

    @property
    def lag(self) -> int:
        """The number of unacked messages, delivered or not; offsets in gaps do not count."""
        acked, visible = self.dispatcher.acked, self.stream.visible
        gaps = ((max(gap.start, acked.position), min(gap.end, visible)) for gap in self.stream.gaps())
        empty = sum(high - low for start, end in gaps if start < end for low, high in acked.missing(start, end))
        return sum(end - start for start, end in acked.missing(acked.position, visible)) - empty

    def cursor(self) -> CursorRecord:
        """The cursor to store; never beyond the synced offset.

        A message that a power loss removes and that is published again must be delivered again (hazard 3).
        """
        acked = self.dispatcher.acked.below(self.stream.synced)
        row = self.stream.table_row(acked.position - 1)
        # Failure counts are cut to a bound: losing some costs further deliveries of poison messages, no message.
        return CursorRecord(
            updated_ms=self._clock.wall_us() // 1000,
            offset=acked.position,
            topic_id=self.stream.key.topic_id,
            epoch=self.stream.epoch,
            generation=self.generation,
            acked=as_steps(acked.position, acked.ranges),
            attempts=as_steps(acked.position, self.dispatcher.attempts[: limits.STORED_ATTEMPTS_MAX]),
            snapshot_id=row.snapshot_id if row else None,
            file_path=row.file_path if row else None,
            row_offset=row.row_offset if row else None,
            kept_below=self.dispatcher.kept_below,
        )

    @property
    def is_partial(self) -> bool:
        """True if `cursor` leaves out acks of messages that are not synced yet: it is written again then."""
        return self.dispatcher.acked.end > self.stream.synced

    def _mark_cursor(self) -> None:
        if not self.is_deleted:
            self._storage.update_subscription_cursor(self)

    # --- consumers ---

    def join(self, consumer: BrokerConsumer) -> None:
        """Adds a consumer, notifies it of stalls and gaps, and dispatches to it."""
        self._consumers[consumer.id] = consumer
        self._stalls.notify(consumer.sink)
        # Before the dispatcher knows the consumer: it hears of gaps before it gets messages behind them.
        for gap in self.stream.gaps():
            acked = self.dispatcher.acked
            # A gap that was skipped before: `skip_gap` below would not report it to this consumer again.
            if gap.end > acked.position and acked.first_missing(gap.start, gap.end) is None:
                consumer.sink.gap(self.stream.key.shard, self.generation, gap)
        self._skip_gaps()
        if isinstance(self.dispatcher, KeySharedDispatcher):
            keys = KeyFilter(consumer.key_patterns)
            self.apply(self.dispatcher.join_with(consumer.credit, keys, self.now_ms()))
        else:
            self.apply(self.dispatcher.join(consumer.credit, self.now_ms()))

    def leave(self, consumer: BrokerConsumer) -> None:
        """Removes a consumer; its messages in flight are redelivered."""
        if self._consumers.pop(consumer.id, None) is not None:
            self.apply(self.dispatcher.leave(consumer.id, self.now_ms()))

    def has_unacked(self, consumer: BrokerConsumer) -> bool:
        """True if the consumer has unacked messages that were sent to its client."""
        # To the dispatcher a message is in flight from its dispatch on, also while it waits in the send queue.
        member = self.dispatcher.consumers.get(consumer.id)
        return member is not None and member.unacked > consumer.unsent_messages

    def resume(self) -> None:
        """Dispatches after time has passed, or a consumer has more credit."""
        if not self.is_closed:
            self.apply(self.dispatcher.tick(self.now_ms()))

    def set_policy(self, policy: FailurePolicy) -> None:
        self.apply(self.dispatcher.set_policy(policy, self.now_ms()))

    def set_unacked_max(self, messages: int) -> None:
        self.dispatcher.unacked_max = messages
        self.resume()

    def set_rate(self, messages_per_second: int) -> None:
        self.apply(self.dispatcher.set_rate(messages_per_second, self.now_ms()))

    def ack(self, ranges: Sequence[tuple[int, int]], generation: int) -> None:
        if not self.is_closed:
            metrics.ACKED_MESSAGES.value += self._count_delivered(ranges, generation)
            instructions = self.dispatcher.ack(ranges, generation, self.now_ms())
            if instructions or not self._is_idle:
                self.apply(instructions)
            self._mark_cursor()

    @property
    def _is_idle(self) -> bool:
        """True if nothing waits for anything but acks: then an ack makes nothing due earlier, and changes no stall."""
        dispatcher = self.dispatcher
        return not (
            dispatcher.next < dispatcher.end
            or self._lookahead is not None
            or self._letters
            or self._failures != dispatcher.failures
            or dispatcher.throttle.wake_ms is not None
            or dispatcher.blocked.size
            or self._stalls
        )

    def ack_through(self, offset: int, generation: int) -> None:
        if not self.is_closed:
            before = self.dispatcher.acked.position  # a cumulative ack moves it by what it has acked
            self.apply(self.dispatcher.ack_through(offset, generation, self.now_ms()))
            metrics.ACKED_MESSAGES.value += self.dispatcher.acked.position - before
            self._mark_cursor()

    def nack(
        self,
        ranges: Sequence[tuple[int, int]],
        generation: int,
        delay_ms: int,
        consumer_id: int | None = None,
        reason: str = "",
    ) -> None:
        """Returns messages for redelivery. `consumer_id`: only those in flight with this consumer; None for any."""
        if not self.is_closed:
            metrics.NACKED_MESSAGES.value += self._count_delivered(ranges, generation)
            # A client's text, which is kept until the message is acked and becomes a header of its dead letter.
            bounded_reason = reason[: limits.NACK_REASON_CHARACTERS_MAX] or NACK
            self.apply(self.dispatcher.nack(ranges, generation, self.now_ms(), delay_ms, consumer_id, bounded_reason))
            self._mark_cursor()

    def _count_delivered(self, ranges: Sequence[tuple[int, int]], generation: int) -> int:
        """The number of messages in the ranges that can have been delivered; an estimate for metrics."""
        low, high = self.dispatcher.acked.position, self.dispatcher.next
        return sum([max(min(end, high) - max(start, low), 0) for start, end in ranges if generation == self.generation])

    def seek(self, position: int) -> None:
        """Moves to a position. The caller writes the cursor before it replies."""
        # The dispatcher may not have been told of the newest messages yet; a seek to the end must not land before them.
        self.dispatcher.end = max(self.dispatcher.end, self.stream.visible)
        # The instructions are applied last: everything that belongs to the old position is gone before new deliveries.
        instructions = self.dispatcher.seek(position, self.now_ms())
        self._end_unreadable()  # the next read is at another position
        if self._lookahead is not None:
            self._lookahead.on_seek()
        self._mark_cursor()
        self.apply(instructions)
        if self._consumers:  # without consumers the gaps wait for the first one that joins
            self._skip_gaps()

    # --- events of the shard ---

    def _on_visible(self) -> None:
        # In the next turn of the loop: one dispatch for all batches that become visible in this one, and after their
        # acks have left. The log calls this while it releases a record.
        if not self._is_wakeup_scheduled and not self.is_closed:
            self._is_wakeup_scheduled = True
            self._loop.call_soon(self._wake_up)

    def _wake_up(self) -> None:
        self._is_wakeup_scheduled = False
        if not self.is_closed:
            self.apply(self.dispatcher.readable(self.stream.visible, self.now_ms()))

    def _skip_gaps(self) -> None:
        """Skips all gaps ahead. Only with consumers, which are notified: until then the cursor stays before a gap."""
        for gap in self.stream.gaps():
            if gap.end > self.dispatcher.acked.position:
                self.skip_gap(gap)

    def skip_gap(self, gap: DeclaredGap) -> None:
        """Skips a gap; notifies all consumers of it unless all of its offsets are acked already."""
        if self.is_closed:
            return
        is_new = self.dispatcher.acked.first_missing(gap.start, gap.end) is not None
        self.report_readable(gap.start, gap.end)
        self.apply(self.dispatcher.skip(gap.start, gap.end, self.now_ms()))
        if is_new:
            for consumer in list(self._consumers.values()):
                consumer.sink.gap(self.stream.key.shard, self.generation, gap)
            self._mark_cursor()

    def disconnect_all(self, start: int, error: errors.TableUnreadable) -> None:
        """Disconnects all consumers with the reason, because the next messages cannot be read at all."""
        _log.error(
            "consumers stop: their messages cannot be read", where=f"{self.stream.key} offset {start}", error=str(error)
        )
        for consumer in list(self._consumers.values()):
            consumer.on_unreadable(str(error))
        self.report_unreadable(start, error)

    # --- stalls ---

    @property
    def stalls(self) -> list[DeliveryStall]:
        """The present reasons why messages of this shard are not delivered."""
        return list(self._stalls)

    def _begin_stall(self, kind: StallKind, offset: int, reason: str, hint: str = "") -> None:
        """Reports that delivery is stalled at `offset`, until `_end_stall`."""
        if not self.is_closed:
            self._stalls.begin(kind, offset, reason, hint)
            self._report_health()

    def _report_health(self) -> None:
        self._health.report(self.name, self._stalls, self._lag_monitor)

    def _end_stall(self, kind: StallKind) -> None:
        self._stalls.end(kind)

    def _check_blocked(self) -> None:
        """Begins, updates or ends the stall of a blocked message."""
        blocked = self.dispatcher.blocked
        if not blocked.size:
            self._end_stall(StallKind.BLOCKED)
            return
        first, identity = blocked.first(), self._identity
        is_keyed = isinstance(self.dispatcher, KeySharedDispatcher)
        effect = "messages of its key are not delivered" if is_keyed else "nothing new is delivered"
        failures = counted(first.value.attempt, "time")
        self._begin_stall(
            StallKind.BLOCKED,
            first.start,
            f"message {first.start} in shard {identity.shard} of {identity.topic} failed {failures} "
            f"({first.value.reason}), "
            f"and the failure policy of subscription {identity.subscription} is poison=block: {effect}",
            "send failed messages to a dead-letter topic: `icestream sub policy "
            f"{identity.topic} {identity.subscription} "
            "poison=dead-letter dead_letter_topic=/NAMESPACE/TOPIC`; or ack the message, or seek behind it",
        )

    def report_unreadable(self, offset: int, error: Exception) -> None:
        """Reports a stall because messages from `offset` on cannot be read now, until `report_readable`."""
        if self.is_closed:
            return
        hint = error.hint if isinstance(error, errors.IcestreamError) else ""
        reason = error.message if isinstance(error, errors.IcestreamError) else str(error)
        self._begin_stall(StallKind.UNREADABLE, offset, reason, hint)
        self._stalled_readers.begin(self.name, self.stream.key, offset, error)
        # The consumers that retry the read may all leave: without the probe the stall would be shown for ever.
        if not self._is_probing:
            self._is_probing = True
            self._tasks.start(self._probe(), f"{self.name}-probe")

    def report_readable(self, start: int, end: int) -> None:
        """Offsets [start, end) were read. Ends the stall if its offset is among them, or is acked by now."""
        stall = self._stalls.get(StallKind.UNREADABLE)
        if stall is not None and (start <= stall.offset < end or stall.offset < self.dispatcher.acked.position):
            self._end_unreadable()

    def _end_unreadable(self) -> None:
        self._end_stall(StallKind.UNREADABLE)
        self._stalled_readers.end(self.name)

    async def _probe(self) -> None:
        """Retries the failed read periodically while no consumer does, so that the stall ends by itself."""
        try:
            while True:
                await self._clock.sleep(limits.READ_PROBE_MS / 1000)
                stall = self._stalls.get(StallKind.UNREADABLE)
                if stall is None or self.is_closed:
                    return
                if not self._consumers:
                    await self._try_read(stall.offset)
                else:
                    self.report_readable(stall.offset, stall.offset)  # it may be acked by now
        finally:
            self._is_probing = False

    async def _try_read(self, offset: int) -> None:
        """Reads at the offset of a stall, to find out whether it can be read again; the messages are discarded."""
        try:
            read = await self.stream.read(offset, limits.READ_BYTES_DEFAULT)
        except errors.PositionGone:  # a retention has dropped it: the next consumer is notified of the gap
            self._end_unreadable()
        except (errors.IcestreamError, OSError) as error:
            self.report_unreadable(offset, error)
        else:
            self.report_readable(offset, max(read.next_offset, offset + 1))

    # --- instructions ---

    def apply(self, instructions: list[Instruction]) -> None:
        """Applies the instructions of the dispatcher, then updates everything that depends on its state."""
        to_send: dict[BrokerConsumer, None] = {}
        for instruction in instructions:
            if isinstance(instruction, Deliver):  # nearly all of them
                # Queued first, sent below: ranges of one moment share reads and frames.
                consumer = self._consumers[instruction.consumer]
                consumer.add(Outgoing(self, self.generation, instruction.start, instruction.end, instruction.attempt))
                to_send[consumer] = None
            elif isinstance(instruction, DeadLetter):
                self._letters.append((instruction, self.generation))
            else:
                self._on_dropped(instruction)
                self._mark_cursor()
        for consumer in to_send:
            consumer.send()
        if to_send and not self._is_reliable:  # a best-effort delivery counts as acked
            self._mark_cursor()
        if self._failures != self.dispatcher.failures:  # the cursor stores failure counts too (hazard 17)
            self._failures = self.dispatcher.failures
            self._mark_cursor()
        if self._letters and not self._is_writing_letters:
            self._is_writing_letters = True
            self._tasks.start(self._write_letters(), f"{self.name}-dead-letters")
        if self._lookahead is not None:
            self._lookahead.advance()
        if (wake_ms := self.dispatcher.wake_ms) is not None:
            self._alarm.set(wake_ms)
        if self._is_reliable:
            self._stall_detector.check()
            if self._consumers and self.dispatcher.undelivered:
                self._lag_monitor.start()
        if self.dispatcher.blocked.size or self._stalls:
            self._check_blocked()

    def in_flight_ranges(self, consumer_id: int, outgoing: Outgoing) -> list[tuple[int, int]]:
        """The parts of an outgoing range that are still in flight with this consumer, in order."""
        if not self._is_reliable:  # nothing is in flight: a delivery counts as acked at once
            return [(outgoing.start, outgoing.end)]
        ranges: list[tuple[int, int]] = []
        for start, end, delivery in self.dispatcher.in_flight.within(outgoing.start, outgoing.end):
            # The same consumer may have the offsets again, as a redelivery with a range of its own.
            if (delivery.consumer, delivery.attempt) != (consumer_id, outgoing.attempt):
                continue
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        return ranges

    # --- dead letters ---

    async def _write_letters(self) -> None:
        """Writes dead letters one after another, each followed by its cursor: a crash duplicates none (hazard 41)."""
        try:
            while self._letters and not self.is_closed:
                letter, generation = self._letters.popleft()
                while letter.start < letter.end and generation == self.generation and not self.is_closed:
                    letter = letter._replace(start=await self._write_letter(letter, generation))
        finally:
            self._is_writing_letters = False

    async def _write_letter(self, letter: DeadLetter, generation: int) -> int:
        """Writes the first messages of the range; returns the offset after those that are handled."""
        try:
            end = await self._dead_letters.write(self.stream, self.dispatcher.policy, letter, generation)
        except errors.PositionGone:
            return self._skip_dropped(letter)
        except (errors.IcestreamError, OSError) as error:
            return self._postpone_letter(letter, generation, error)
        self._end_stall(StallKind.FORBIDDEN)
        if generation == self.generation and not self.is_closed:
            self.apply(self.dispatcher.settled(letter.start, end, self.now_ms()))
            # Before the next letter: a start can find the last group of letters only (dead_letter_writer.py).
            await self._write_cursor()
        return end

    def _postpone_letter(self, letter: DeadLetter, generation: int, error: Exception) -> int:
        """Returns the rest of the range to the dispatcher, which retries it later. Returns its end: it is handled."""
        _log.warning("dead letter could not be stored; retrying later", where=self.name, error=str(error))
        if isinstance(error, errors.PermissionDenied):
            self._begin_stall(StallKind.FORBIDDEN, letter.start, error.message, error.hint)
        # After a seek the letter is obsolete: its messages are delivered anew, or lie before the new position.
        if generation == self.generation and not self.is_closed:
            self.apply(self.dispatcher.not_settled(letter.start, letter.end, self.now_ms()))
        return letter.end

    def _skip_dropped(self, letter: DeadLetter) -> int:
        """Skips messages that a retention has dropped before their dead letters were written."""
        # At least one offset: the loop of the caller must advance.
        end = max(self.stream.log_start(), letter.start + 1)
        lost = DeclaredGap(self.stream.key, letter.start, end, self.stream.epoch, "no longer in the log", GapState.LOST)
        self.skip_gap(lost)
        return end

    async def _write_cursor(self) -> None:
        """Writes the cursor, with retries: the next dead letter must not be written before it."""
        while not self.is_closed:
            try:
                await self._storage.write_cursors([self])
                return
            except errors.IcestreamError as error:
                _log.warning("cursor could not be written; retrying", where=self.name, error=str(error))
                await self._clock.sleep(limits.DEAD_LETTER_RETRY_MS_MIN / 1000)
