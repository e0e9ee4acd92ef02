"""One subscription in one shard: carries out what its dispatcher decides. The shell around dispatch/.

Events come from the shard (more to read), the consumers (credit, acks, nacks), the clock (one alarm, set to when the
dispatcher next cares) and the dead letters. Each is handed to the dispatcher, and what it answers is carried out.

    open      events count
    closed    nothing happens any more; the cursor has its last value
    deleted   closed, and the cursor is not written any more
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from icestream import errors, limits
from icestream.broker.alarm import Alarm
from icestream.broker.consumer import Consumer, Outgoing
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
from icestream.model.shard import Gap, GapState
from icestream.model.subscription import FailurePolicy, SubscriptionType
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.words import counted
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("delivery")


class DeadLetters(Protocol):
    async def bury(self, stream: ShardStream, policy: FailurePolicy, letter: DeadLetter, generation: int) -> int:
        """Stores the first messages of the letter in the dead-letter topic; behind which of them, when they are
        durable. Raises when that is not possible now."""


class DeliveryName(NamedTuple):
    """Which shard of which subscription it is."""

    topic: str
    subscription: str
    shard: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.subscription}:{self.shard}"


class ShardDelivery:
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
        self._title = name
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
        self._consumers: dict[int, Consumer] = {}
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(clock, tasks, self.go_on)
        self._sight = KeyLookahead(self, clock, tasks) if isinstance(dispatcher, KeySharedDispatcher) else None
        self._standstill = StallDetector(self.name, stream, dispatcher, clock, tasks)
        self._stalls = DeliveryStalls(
            stream.key.shard, clock.wall_us, lambda: [one.sink for one in self._consumers.values()]
        )
        self._falling_behind = LagMonitor(self.name, dispatcher, clock, tasks, self._report_health)
        self._health = health
        self._failures = dispatcher.failures  # that the cursor to be written knows
        self._letters: deque[tuple[DeadLetter, int]] = deque()  # with the generation that they are of
        self._wakeup_planned = False
        self._is_burying = False
        self.is_closed = False

    # --- life ---

    def start(self) -> None:
        self.stream.follow(self._on_visible)
        self._on_visible()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.stream.unfollow(self._on_visible)
            self._alarm.close()
            self._standstill.close()
            self._stalls.clear()
            self._falling_behind.close()
            self._health.forget(self.name)
            self._stalled_readers.end(self.name)
            if self._sight is not None:
                self._sight.close()
            self._consumers.clear()

    def now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    @property
    def generation(self) -> int:
        return self.dispatcher.generation

    @property
    def is_handed_out_singly(self) -> bool:
        """Neighbouring messages go to different consumers, or at different times: what is read is used again."""
        return self.dispatcher.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)

    @property
    def lag(self) -> int:
        """Messages that are not acked."""
        acked, visible = self.dispatcher.acked, self.stream.visible
        gaps = ((max(gap.start, acked.position), min(gap.end, visible)) for gap in self.stream.gaps())
        empty = sum(high - low for start, end in gaps if start < end for low, high in acked.missing(start, end))
        return sum(end - start for start, end in acked.missing(acked.position, visible)) - empty

    def cursor(self) -> CursorRecord:
        """Never beyond what is synced: a message that a power loss takes back must be delivered again (hazard 3)."""
        acked = self.dispatcher.acked.below(self.stream.synced)
        return CursorRecord(
            updated_ms=self._clock.wall_us() // 1000,
            offset=acked.position,
            topic_id=self.stream.key.topic_id,
            epoch=self.stream.epoch,
            generation=self.generation,
            acked=as_steps(acked.position, acked.ranges),
            attempts=as_steps(acked.position, self.dispatcher.attempts[: limits.STORED_ATTEMPTS_MAX]),
            kept_below=self.dispatcher.kept_below,
        )

    @property
    def is_partial(self) -> bool:
        return self.dispatcher.acked.end > self.stream.synced

    def _mark(self) -> None:
        if not self.is_deleted:
            self._storage.update_subscription_cursor(self)

    # --- consumers ---

    def join(self, consumer: Consumer) -> None:
        self._consumers[consumer.id] = consumer
        self._stalls.tell(consumer.sink)
        for gap in self.stream.gaps():
            known = self.dispatcher.acked
            if gap.end > known.position and known.first_missing(gap.start, gap.end) is None:
                consumer.sink.gap(self.stream.key.shard, self.generation, gap)
        self._step_over_gaps()
        if isinstance(self.dispatcher, KeySharedDispatcher):
            keys = KeyFilter(consumer.key_patterns)
            self.carry_out(self.dispatcher.join_with(consumer.credit, keys, self.now_ms()))
        else:
            self.carry_out(self.dispatcher.join(consumer.credit, self.now_ms()))

    def leave(self, consumer: Consumer) -> None:
        if self._consumers.pop(consumer.id, None) is not None:
            self.carry_out(self.dispatcher.leave(consumer.id, self.now_ms()))

    def is_holding(self, consumer: Consumer) -> bool:
        """Whether the consumer has unacked messages that left for its client."""
        member = self.dispatcher.consumers.get(consumer.id)
        return member is not None and member.held > consumer.unsent_messages

    def go_on(self) -> None:
        """Time has passed, or a consumer has more credit."""
        if not self.is_closed:
            self.carry_out(self.dispatcher.tick(self.now_ms()))

    def set_policy(self, policy: FailurePolicy) -> None:
        self.carry_out(self.dispatcher.set_policy(policy, self.now_ms()))

    def set_unacked_max(self, messages: int) -> None:
        self.dispatcher.unacked_max = messages
        self.go_on()

    def set_rate(self, messages_per_second: int) -> None:
        self.carry_out(self.dispatcher.set_rate(messages_per_second, self.now_ms()))

    def ack(self, ranges: Sequence[tuple[int, int]], generation: int) -> None:
        if not self.is_closed:
            metrics.ACKED_MESSAGES.value += self._count(ranges, generation)
            self.carry_out(self.dispatcher.ack(ranges, generation, self.now_ms()))
            self._mark()

    def ack_through(self, offset: int, generation: int) -> None:
        if not self.is_closed:
            before = self.dispatcher.acked.position
            self.carry_out(self.dispatcher.ack_through(offset, generation, self.now_ms()))
            metrics.ACKED_MESSAGES.value += self.dispatcher.acked.position - before
            self._mark()

    def nack(
        self,
        ranges: Sequence[tuple[int, int]],
        generation: int,
        delay_ms: int,
        consumer_id: int | None = None,
        reason: str = "",
    ) -> None:
        """`consumer_id`: who gives them back. What is with another one by now is not its to give. `reason`: why."""
        if not self.is_closed:
            metrics.NACKED_MESSAGES.value += self._count(ranges, generation)
            why = reason[: limits.NACK_REASON_CHARACTERS_MAX] or NACK
            self.carry_out(self.dispatcher.nack(ranges, generation, self.now_ms(), delay_ms, consumer_id, why))
            self._mark()

    def _count(self, ranges: Sequence[tuple[int, int]], generation: int) -> int:
        """Messages, as far as they can have been delivered."""
        low, high = self.dispatcher.acked.position, self.dispatcher.next
        return sum([max(min(end, high) - max(start, low), 0) for start, end in ranges if generation == self.generation])

    def seek(self, position: int) -> None:
        """From now on it stands there; whoever asked for it writes the cursor before he is answered."""
        self.dispatcher.end = max(self.dispatcher.end, self.stream.visible)
        out = self.dispatcher.seek(position, self.now_ms())
        self._reads_again()  # what it reads now lies elsewhere
        if self._sight is not None:
            self._sight.look_elsewhere()
        self._mark()
        self.carry_out(out)
        if self._consumers:
            self._step_over_gaps()

    # --- what happens by itself ---

    def _on_visible(self) -> None:
        if not self._wakeup_planned and not self.is_closed:
            self._wakeup_planned = True
            self._loop.call_soon(self._wake_up)

    def _wake_up(self) -> None:
        self._wakeup_planned = False
        if not self.is_closed:
            self.carry_out(self.dispatcher.readable(self.stream.visible, self.now_ms()))

    def _step_over_gaps(self) -> None:
        """Only while somebody is there who can be told: until then the cursor stays before them."""
        for gap in self.stream.gaps():
            if gap.end > self.dispatcher.acked.position:
                self.nothing_there(gap)

    def nothing_there(self, gap: Gap) -> None:
        if self.is_closed:
            return
        is_news = self.dispatcher.acked.first_missing(gap.start, gap.end) is not None
        self.can_read(gap.start, gap.end)
        self.carry_out(self.dispatcher.skip(gap.start, gap.end, self.now_ms()))
        if is_news:
            for consumer in list(self._consumers.values()):
                consumer.sink.gap(self.stream.key.shard, self.generation, gap)
            self._mark()

    def unreadable(self, start: int, error: errors.TableUnreadable) -> None:
        """Nobody can read what comes next: all of them end, with the reason. Whoever comes again is told again."""
        _log.error("readers stop", where=f"{self.stream.key} offset {start}", error=str(error))
        for consumer in list(self._consumers.values()):
            consumer.on_unreadable(str(error))
        self.cannot_read(start, error)

    # --- stalls ---

    @property
    def stalls(self) -> list[DeliveryStall]:
        """The lasting reasons for which messages of this shard are not delivered."""
        return list(self._stalls)

    def stalled(self, kind: StallKind, offset: int, reason: str, hint: str = "") -> None:
        """Delivery does not go on at `offset`: its consumers are told, and it is shown until `resumed`."""
        if not self.is_closed:
            self._stalls.begin(kind, offset, reason, hint)
            self._report_health()

    def _report_health(self) -> None:
        self._health.report(self.name, self._stalls, self._falling_behind)

    def resumed(self, kind: StallKind) -> None:
        """What `stalled` reported is over."""
        self._stalls.end(kind)

    def _look_for_blocked(self) -> None:
        blocked = self.dispatcher.blocked
        if not blocked.size:
            self.resumed(StallKind.BLOCKED)
            return
        first, title = blocked.first(), self._title
        is_keyed = isinstance(self.dispatcher, KeySharedDispatcher)
        effect = "messages of its key are not delivered" if is_keyed else "nothing new is delivered"
        failures = counted(first.value.attempt, "time")
        self.stalled(
            StallKind.BLOCKED,
            first.start,
            f"message {first.start} in shard {title.shard} of {title.topic} failed {failures} ({first.value.reason}), "
            f"and the failure policy of subscription {title.subscription} is poison=block: {effect}",
            f"let failed messages go to a topic of their own: `icestream sub policy {title.topic} {title.subscription} "
            "poison=dead-letter dead_letter_topic=/NAMESPACE/TOPIC`; or ack the message, or seek behind it",
        )

    def cannot_read(self, offset: int, error: Exception) -> None:
        """Messages from `offset` on cannot be read now: its consumers are told, and it is shown until `can_read`."""
        if self.is_closed:
            return
        hint = error.hint if isinstance(error, errors.IcestreamError) else ""
        reason = error.message if isinstance(error, errors.IcestreamError) else str(error)
        self.stalled(StallKind.UNREADABLE, offset, reason, hint)
        self._stalled_readers.begin(self.name, self.stream.key, offset, error)
        if not self._is_probing:
            self._is_probing = True
            self._tasks.start(self._probe(), f"{self.name}-probe")

    def can_read(self, start: int, end: int) -> None:
        """Messages of the offsets [start, end) were read. Ends the stall when its offset is among them, or is acked."""
        stall = self._stalls.get(StallKind.UNREADABLE)
        if stall is not None and (start <= stall.offset < end or stall.offset < self.dispatcher.acked.position):
            self._reads_again()

    def _reads_again(self) -> None:
        self.resumed(StallKind.UNREADABLE)
        self._stalled_readers.end(self.name)

    async def _probe(self) -> None:
        """While no consumer is there to try: whether what could not be read can be read by now."""
        try:
            while True:
                await self._clock.sleep(limits.READ_PROBE_MS / 1000)
                stall = self._stalls.get(StallKind.UNREADABLE)
                if stall is None or self.is_closed:
                    return
                if not self._consumers:
                    await self._try_read(stall.offset)
                else:
                    self.can_read(stall.offset, stall.offset)  # it may be acked by now
        finally:
            self._is_probing = False

    async def _try_read(self, offset: int) -> None:
        try:
            found = await self.stream.read(offset, limits.READ_BYTES_DEFAULT)
        except errors.PositionGone:  # a retention took it: a consumer is told of the gap
            self._reads_again()
        except (errors.IcestreamError, OSError) as error:
            self.cannot_read(offset, error)
        else:
            self.can_read(offset, max(found.next_offset, offset + 1))

    # --- instructions ---

    def carry_out(self, instructions: list[Instruction]) -> None:
        to_send: dict[Consumer, None] = {}
        for one in instructions:
            match one:
                case Deliver(consumer_id, start, end, attempt):
                    consumer = self._consumers[consumer_id]
                    consumer.add(Outgoing(self, self.generation, start, end, attempt))
                    to_send[consumer] = None
                case DeadLetter():
                    self._letters.append((one, self.generation))
                case Dropped():
                    self._on_dropped(one)
                    self._mark()
        for consumer in to_send:
            consumer.send()
        if to_send and not self._is_reliable:
            self._mark()
        if self._failures != self.dispatcher.failures:
            self._failures = self.dispatcher.failures
            self._mark()
        if self._letters and not self._is_burying:
            self._is_burying = True
            self._tasks.start(self._bury_all(), f"{self.name}-dead-letters")
        if self._sight is not None:
            self._sight.look()
        if (wake_ms := self.dispatcher.wake_ms) is not None:
            self._alarm.set(wake_ms)
        if self._is_reliable:
            self._standstill.look()
            if self._consumers and self.dispatcher.undelivered:
                self._falling_behind.watch()
        if self.dispatcher.blocked.size or self._stalls:
            self._look_for_blocked()

    def still_out(self, consumer_id: int, outgoing: Outgoing) -> list[tuple[int, int]]:
        if not self._is_reliable:
            return [(outgoing.start, outgoing.end)]
        found: list[tuple[int, int]] = []
        for start, end, delivery in self.dispatcher.in_flight.within(outgoing.start, outgoing.end):
            if (delivery.consumer, delivery.attempt) != (consumer_id, outgoing.attempt):
                continue
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found

    # --- dead letters ---

    async def _bury_all(self) -> None:
        """One after the other, each with the cursor that knows of it: a crash doubles none (hazard 41)."""
        try:
            while self._letters and not self.is_closed:
                letter, generation = self._letters.popleft()
                while letter.start < letter.end and generation == self.generation and not self.is_closed:
                    letter = letter._replace(start=await self._bury(letter, generation))
        finally:
            self._is_burying = False

    async def _bury(self, letter: DeadLetter, generation: int) -> int:
        """Buries the first of the messages; behind which."""
        try:
            end = await self._dead_letters.bury(self.stream, self.dispatcher.policy, letter, generation)
        except errors.PositionGone:
            return self._step_over_gone(letter)
        except (errors.IcestreamError, OSError) as error:
            return self._bury_later(letter, generation, error)
        if generation == self.generation and not self.is_closed:
            self.carry_out(self.dispatcher.settled(letter.start, end, self.now_ms()))
            await self._write_cursor()
        return end

    def _bury_later(self, letter: DeadLetter, generation: int, error: Exception) -> int:
        _log.warning("a dead letter could not be stored; it is tried again", where=self.name, error=str(error))
        if generation == self.generation and not self.is_closed:
            self.carry_out(self.dispatcher.not_settled(letter.start, letter.end, self.now_ms()))
        return letter.end

    def _step_over_gone(self, letter: DeadLetter) -> int:
        """A retention took the message before it could be buried."""
        end = max(self.stream.log_start(), letter.start + 1)
        lost = Gap(self.stream.key, letter.start, end, self.stream.epoch, "no longer in the log", GapState.LOST)
        self.nothing_there(lost)
        return end

    async def _write_cursor(self) -> None:
        """The next letter waits until this one is known to be done with."""
        while not self.is_closed:
            try:
                await self._storage.write_cursors([self])
                return
            except errors.IcestreamError as error:
                _log.warning("a cursor could not be written; it is tried again", where=self.name, error=str(error))
                await self._clock.sleep(limits.DEAD_LETTER_RETRY_MS_MIN / 1000)
