"""One consumer of a subscription: the queue of its outgoing messages, between the dispatchers and its front end.

Messages are sent in the order in which they were dispatched. Those in memory are sent at once; for the others one read
is in flight at a time. While the front end is full (its socket takes no more) nothing is read and nothing is sent, and
the credit is withheld, so that nothing more is dispatched to this consumer: it costs a short list of ranges and no
message, further messages go to other consumers, and these never wait for it.

Queued ranges are checked again before they are sent: after a seek, an ack by another consumer or a missed deadline they
no longer belong to this consumer. Credit for messages that are not sent is returned.

If a read fails, the ranges of its shard are suspended in order and retried after a while; other shards of the consumer
continue. The consumer is notified of it, and of a read that takes long. A table that cannot be read at all disconnects
the consumer with the reason (hazard 22).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Protocol

from icestream import errors, limits
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.slow_read_watch import SlowReadWatch
from icestream.broker.storage import ShardRead, ShardStream
from icestream.model.shard import DeclaredGap, GapState
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.spans import now_ns, record, tracing
from icestream.rpc.blocks import pick_rows, select_rows
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.tail import SectionRead

_log = get_logger("delivery")
_base_offset = attrgetter("base_offset")


class ConsumerSink(Protocol):
    """The front end of one consumer: how its messages and events reach the client."""

    @property
    def peer(self) -> str:
        """The address of the client, for descriptions."""

    @property
    def is_full(self) -> bool:
        """True if nothing more should be sent until the front end calls `BrokerConsumer.drained`."""

    def deliver(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None:
        """Sends `rows` messages of a section, from row `first_row` on. The client ignores the other rows."""

    def gap(self, shard: int, generation: int, gap: DeclaredGap) -> None:
        """Notifies the client of offsets without a message."""

    def event(self, event: str, details: dict[str, object]) -> None:
        """Notifies the client: it became active, it was closed, a shard of it is stalled (stall.py)."""


class PickSink(Protocol):
    """How a front end takes several ranges of a section in one frame."""

    def __call__(
        self, shard: int, generation: int, attempt: int, picked: SectionRead, ranges: list[tuple[int, int]]
    ) -> None:
        """`picked`: the rows of `ranges` alone, which are rising ranges of offsets [start, end) that do not touch."""


class DeliverySide(Protocol):
    """The delivery of a shard (shard_delivery.py), as far as a consumer uses it."""

    @property
    def stream(self) -> ShardStream: ...

    @property
    def generation(self) -> int: ...

    @property
    def is_handed_out_singly(self) -> bool:
        """True if consecutive messages go to different consumers, or at different times."""

    def in_flight_ranges(self, consumer_id: int, outgoing: Outgoing) -> list[tuple[int, int]]:
        """The parts of a range that are still in flight with this consumer."""

    def skip_gap(self, gap: DeclaredGap) -> None:
        """Counts offsets without a readable message as acked."""

    def report_unreadable(self, offset: int, error: Exception) -> None:
        """Reports to all consumers of the shard that messages from `offset` on cannot be read now."""

    def report_readable(self, start: int, end: int) -> None:
        """Reports that these offsets were read."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """Offsets [start, end) of a shard that are dispatched to this consumer."""

    delivery: DeliverySide
    generation: int
    start: int
    end: int
    attempt: int


class BrokerConsumer:
    """A connected consumer of a subscription, with its credit and its send queue.

    A range in the queue is in flight for its dispatcher: its ack deadline runs while it waits here.
    """

    def __init__(
        self,
        id_: int,
        name: str,
        sink: ConsumerSink,
        tasks: Tasks,
        clock: Clock,
        key_patterns: tuple[str, ...] = (),
        shard: int | None = None,
    ) -> None:
        """`shard`: the only shard whose messages it takes; None for all."""
        self.id = id_
        self.name = name
        self.shard = shard
        self.sink = sink
        self.key_patterns = key_patterns
        self.credit = Credit(id_)  # what may be dispatched to it
        self.on_credit: Callable[[], None] = lambda: None  # called when credit was returned
        self.pick: PickSink | None = None  # set by a front end that takes several ranges in one frame
        # Called with the reason if its messages cannot be read at all.
        self.on_unreadable: Callable[[str], None] = lambda _: None
        self.on_close: Callable[[], None] = lambda: None  # called when it has left
        self.is_active = False  # failover: it was notified that it is the active one
        self.delivered_messages = 0
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._clock = clock
        self._queue: deque[Outgoing] = deque()
        self._suspended: dict[DeliverySide, deque[Outgoing]] = {}  # of shards that cannot be read now
        self._withheld_credit = 0  # while the front end is full
        self._is_full = False
        self._is_fresh = False  # the whole queue was dispatched in this moment
        self._is_reading = False
        self._slow_read = SlowReadWatch(clock, tasks)
        self._kept: dict[DeliverySide, tuple[int, int]] = {}  # the offsets of its last read that are kept in memory
        self._is_closed = False

    def close(self) -> None:
        """Discards the queue: the dispatchers redeliver what was in it."""
        self._is_closed = True
        self._slow_read.close()
        for delivery in list(self._kept):
            self._drop_kept(delivery)
        self._queue.clear()
        self._suspended.clear()
        self.on_close()

    @property
    def waiting_ranges(self) -> int:
        return len(self._queue) + sum(map(len, self._suspended.values()))

    @property
    def unsent_messages(self) -> int:
        """The number of messages that are dispatched to it and not sent to its client yet."""
        ranges = chain(self._queue, *self._suspended.values())
        return sum(outgoing.end - outgoing.start for outgoing in ranges)

    # --- credit ---

    @property
    def credit_messages(self) -> int:
        """The number of messages that it still takes."""
        return self.credit.messages + self._withheld_credit

    def give_credit(self, count: int) -> None:
        """Raises the credit, up to CREDIT_MAX."""
        count = min(count, limits.CREDIT_MAX - self.credit_messages)
        if self._is_full:
            self._withheld_credit += count
        else:
            self.credit.messages += count

    def _return_credit(self, count: int) -> None:
        """Returns credit for messages that are not sent."""
        if count and not self._is_closed:
            self.give_credit(count)
            # In the next turn of the loop, because the dispatcher may be the caller of this one, and would be entered
            # a second time in the middle of its work.
            self._loop.call_soon(self.on_credit)

    def _update_backpressure(self) -> None:
        """Withholds the credit while the front end is full, and until everything queued before has been sent."""
        # Withheld instead of counted down: to the dispatchers a consumer without credit is one that takes nothing now,
        # so new messages go to other consumers without any further rule.
        if self.sink.is_full and not self._is_full:
            self._is_full = True
            self._withheld_credit, self.credit.messages = self.credit.messages, 0
        elif self._is_full and not self.sink.is_full and not self._queue:
            self._is_full = False
            count, self._withheld_credit = self._withheld_credit, 0
            self._return_credit(count)

    # --- the queue ---

    def add(self, outgoing: Outgoing) -> None:
        """Queues a range. The caller calls `send` after it has added all ranges of the moment."""
        suspended = self._suspended.get(outgoing.delivery)
        if suspended is not None:  # behind the ranges of its shard that cannot be read now: the order of a shard holds
            suspended.append(outgoing)
        elif not self._queue:
            self._queue.append(outgoing)
            self._is_fresh = True
        elif not _extends(self._queue[-1], outgoing):
            self._queue.append(outgoing)

    def send(self) -> None:
        """Sends the queued ranges, as far as possible now."""
        is_fresh, self._is_fresh = self._is_fresh, False
        self._pump(is_fresh=is_fresh)

    def drained(self) -> None:
        """Resumes sending: the front end takes more again."""
        self._pump()

    def _pump(self, *, is_fresh: bool = False) -> None:
        """Sends what is in memory. `is_fresh`: the queue was dispatched just now, and need not be checked again."""
        start_ns, delivered_before = now_ns() if tracing.is_on else 0, self.delivered_messages
        # The sections of the last lookup are used for all ranges that they hold: consecutive ranges are usually rows of
        # one section.
        sections: list[SectionRead] = []
        source: DeliverySide | None = None  # the delivery of these sections
        while self._queue and not self._is_reading and not self.sink.is_full:
            outgoing = self._queue[0]
            # A seek, another consumer's ack or a missed deadline may have taken the range away while it was queued.
            if not is_fresh and not self._is_current(outgoing):
                continue
            if source is not outgoing.delivery or not _holds(sections, outgoing.start):
                source = outgoing.delivery
                sections = source.stream.read_hot(outgoing.start, limits.READ_BYTES_DEFAULT)
            if not sections:
                # Not in memory. Later ranges may be, but they wait too: a consumer gets its messages in the order of
                # dispatch.
                self._is_reading = True
                self._tasks.start(self._read(outgoing), f"consumer-{self.id}-read")
                break
            self._send_next(outgoing, sections, is_fresh=is_fresh)
        self._update_backpressure()
        if start_ns:
            self._trace_delivery(start_ns, delivered_before)

    def _trace_delivery(self, start_ns: int, delivered_before: int) -> None:
        """Records a span for what was sent since then, if anything was."""
        if (messages := self.delivered_messages - delivered_before) > 0:
            record("deliver", start_ns, consumer=self.name, messages=messages)

    def _is_current(self, outgoing: Outgoing) -> bool:
        """True if all of the first range in the queue is still in flight with this consumer.

        Otherwise replaces it in the queue by the parts that are.
        """
        is_old = outgoing.generation != outgoing.delivery.generation
        parts = [] if is_old else outgoing.delivery.in_flight_ranges(self.id, outgoing)
        if parts == [(outgoing.start, outgoing.end)]:
            return True
        self._queue.popleft()
        for start, end in reversed(parts):
            self._queue.appendleft(Outgoing(outgoing.delivery, outgoing.generation, start, end, outgoing.attempt))
        self._return_credit(outgoing.end - outgoing.start - sum(end - start for start, end in parts))
        return False

    # --- reads ---

    async def _read(self, outgoing: Outgoing) -> None:
        """Reads and sends the next part of the first range in the queue, then continues with the queue."""
        start_ns, delivered_before = now_ns() if tracing.is_on else 0, self.delivered_messages
        delivery, start = outgoing.delivery, outgoing.start
        self._drop_kept(delivery)
        try:
            # Worth caching only if the rest of what is read will be needed soon, by this consumer or by another.
            cache = delivery.is_handed_out_singly or outgoing.attempt > 0
            read = await self._slow_read.read(
                delivery.stream, start, lambda error: delivery.report_unreadable(start, error), cache=cache
            )
            delivery.report_readable(start, read.next_offset)
            position = self._send_read(outgoing, read)
            if not cache:
                self._keep_rest(delivery, read.sections, position)
        except errors.StaleRead:
            pass  # the file was recycled during the read: the position is looked up again
        except errors.PositionGone as error:
            self._skip_dropped(outgoing, error)
        except errors.TableUnreadable as error:
            # Retrying cannot help, and skipping would lose rows that an operator can still bring back.
            _log.error(
                "consumer stops: its messages cannot be read",
                where=f"{delivery.stream.key} offset {start}",
                error=str(error),
            )
            self.on_unreadable(str(error))
            delivery.report_unreadable(start, error)
        except (errors.IcestreamError, OSError) as error:
            self._suspend(outgoing, error)
        finally:
            self._is_reading = False
        if start_ns:
            self._trace_delivery(start_ns, delivered_before)
        self._pump()

    def _send_read(self, outgoing: Outgoing, read: ShardRead) -> int:
        """Sends all ranges at the front of the queue that the read holds. Returns the offset up to which that is."""
        delivery, position = outgoing.delivery, outgoing.start
        for gap in read.gaps:
            delivery.skip_gap(gap)
            self._skip(outgoing, gap.end)
        if not read.sections and not read.gaps:
            # Must not happen: without an error the same read would be repeated for ever.
            raise errors.LogError(
                f"offset {outgoing.start} of {delivery.stream.key} is visible, but a read returned nothing",
                hint="`icestream wal inspect` shows the offsets and gaps of the shard",
            )
        # Further ranges too: the read is larger than the range that caused it, and is not kept if it was not cached.
        while self._queue and read.sections and not self.sink.is_full:
            head, first = self._queue[0], read.sections[0]
            if head.delivery is not delivery or not first.base_offset <= head.start < read.next_offset:
                break
            if self._is_current(head):
                self._send_next(head, read.sections)
                position = head.start if self._queue and self._queue[0] is head else head.end
        return position

    def _keep_rest(self, delivery: DeliverySide, sections: Sequence[SectionRead], position: int) -> None:
        """Keeps the sections from `position` on in memory.

        A read is often larger than the credit of the consumer, whose next range begins where this one ended.
        """
        rest = [section for section in sections if section.base_offset + section.rows > position]
        if rest and not self._is_closed:
            delivery.stream.keep_read(rest)
            self._kept[delivery] = rest[0].base_offset, rest[-1].base_offset + rest[-1].rows

    def _drop_kept(self, delivery: DeliverySide) -> None:
        """Drops what is kept of a shard, so that a consumer that catches up takes the room of one read in the cache."""
        if (read := self._kept.pop(delivery, None)) is not None:
            delivery.stream.drop_read(*read)

    def _skip_dropped(self, outgoing: Outgoing, error: errors.PositionGone) -> None:
        """Skips messages that a retention has dropped: the log starts after them."""
        stream = outgoing.delivery.stream
        log_start = stream.log_start()
        if log_start <= outgoing.start:
            # The log has the offset and could not read it: not a retention. Skipping it would lose messages.
            self._suspend(outgoing, error)
            return
        lost = DeclaredGap(stream.key, outgoing.start, log_start, stream.epoch, "no longer in the log", GapState.LOST)
        outgoing.delivery.skip_gap(lost)
        self._skip(outgoing, log_start)

    def _skip(self, outgoing: Outgoing, end: int) -> None:
        """Removes the offsets below `end` from the first range, and returns their credit: nothing is sent for them."""
        count = min(end, outgoing.end) - outgoing.start
        if count > 0 and self._advance(outgoing, outgoing.start + count):
            self._return_credit(count)

    def _suspend(self, outgoing: Outgoing, error: Exception) -> None:
        """Suspends all queued ranges of the shard, in order, and retries them later."""
        delivery = outgoing.delivery
        if self._is_closed or delivery in self._suspended:
            return
        metrics.READ_FAILURES.value += 1
        where = f"{delivery.stream.key} offset {outgoing.start}"
        _log.error("messages cannot be read; retrying", where=where, error=str(error))
        delivery.report_unreadable(outgoing.start, error)
        # All ranges of the shard, not only this one: the messages behind it must not overtake it.
        self._suspended[delivery] = deque(queued for queued in self._queue if queued.delivery is delivery)
        self._queue = deque(queued for queued in self._queue if queued.delivery is not delivery)
        self._tasks.start(self._retry(delivery), f"consumer-{self.id}-retry")

    async def _retry(self, delivery: DeliverySide) -> None:
        """Puts the suspended ranges of a shard back into the queue after a pause."""
        await self._clock.sleep(limits.READ_RETRY_MS / 1000)
        self._queue.extend(self._suspended.pop(delivery, ()))
        self._pump()

    # --- to the front end ---

    def _send_next(self, outgoing: Outgoing, sections: list[SectionRead], *, is_fresh: bool = False) -> None:
        """Sends the first range in the queue as far as `sections` hold it, with further ranges that fit its frame."""
        # A consumer of many keys gets single messages of a large section. One frame with the picked rows is far smaller
        # than a frame with the whole section for each of them. A lone range, or one that continues the last, gains
        # nothing by it.
        if self.pick is None or len(self._queue) == 1 or not outgoing.delivery.is_handed_out_singly:
            self._send_sections(outgoing, sections)
            return
        section = sections[max(bisect_right(sections, outgoing.start, key=_base_offset) - 1, 0)]
        if not _holds([section], outgoing.start):
            self._send_sections(outgoing, sections)
            return
        ranges = self._take_ranges(outgoing, section.base_offset + section.rows, is_fresh=is_fresh)
        if len(ranges) == 1:
            start, end = ranges[0]
            self._send_rows(outgoing, section, start - section.base_offset, end - start)
        else:
            self._send_picked(self.pick, outgoing, section, ranges)

    def _take_ranges(self, outgoing: Outgoing, limit: int, *, is_fresh: bool) -> list[tuple[int, int]]:
        """Removes from the queue the first range, and those behind it that rise up to `limit` and are sent alike."""
        queue, ranges = self._queue, list[tuple[int, int]]()
        delivery, generation, attempt = outgoing.delivery, outgoing.generation, outgoing.attempt
        last, head = -1, outgoing
        while True:
            start, end = head.start, min(head.end, limit)
            if start == last:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
            last = end
            # The section ends within this range: its rest stays at the front of the queue for the next section.
            if end < head.end:
                head.start = end
                return ranges
            queue.popleft()
            # `_is_current` drops or cuts the range at the front until that is one to be sent.
            while queue and not is_fresh and not self._is_current(queue[0]):
                pass
            if not queue:
                return ranges
            head = queue[0]
            # One frame names one generation and one attempt for all of its rows, and its ranges rise.
            is_alike = head.attempt == attempt and head.generation == generation and head.delivery is delivery
            if not is_alike or not last <= head.start < limit:
                return ranges

    def _send_picked(
        self, pick: PickSink, outgoing: Outgoing, section: SectionRead, ranges: list[tuple[int, int]]
    ) -> None:
        """Sends several ranges of one section in one frame, which holds the rows of the ranges alone."""
        base = section.base_offset
        rows = [row for start, end in ranges for row in range(start - base, end - base)]
        body = pick_rows(section.body, rows)
        self._count_sent(outgoing, len(rows), len(body))
        picked = SectionRead(ranges[0][0], len(rows), section.append_time_us, section.epoch, body)
        pick(outgoing.delivery.stream.key.shard, outgoing.generation, outgoing.attempt, picked, ranges)

    def _send_sections(self, outgoing: Outgoing, sections: list[SectionRead]) -> None:
        """Sends a range section by section, until it ends or the front end is full; the rest stays in the queue."""
        offset = outgoing.start
        for section in sections:
            low, high = max(offset, section.base_offset), min(outgoing.end, section.base_offset + section.rows)
            if low < high:
                self._send_rows(outgoing, section, low - section.base_offset, high - low)
            offset = max(offset, high)
            if offset >= outgoing.end or self.sink.is_full:
                break
        self._advance(outgoing, offset)

    def _send_rows(self, outgoing: Outgoing, section: SectionRead, first_row: int, rows: int) -> None:
        """Sends rows of a section. Small sections are sent whole, without a copy; of large ones only the rows."""
        if rows * 2 < section.rows and len(section.body) > limits.DELIVER_WHOLE_BYTES_MAX:
            body = select_rows(section.body, first_row, rows)
            section = SectionRead(section.base_offset + first_row, rows, section.append_time_us, section.epoch, body)
            first_row = 0
        self._count_sent(outgoing, rows, len(section.body))
        shard = outgoing.delivery.stream.key.shard
        self.sink.deliver(shard, outgoing.generation, outgoing.attempt, section, first_row, rows)

    def _count_sent(self, outgoing: Outgoing, rows: int, size_bytes: int) -> None:
        """Counts messages that were handed to the front end."""
        self.delivered_messages += rows
        metrics.DELIVERED_MESSAGES.value += rows
        metrics.DELIVERED_BYTES.value += size_bytes
        if outgoing.attempt:
            metrics.REDELIVERED_MESSAGES.value += rows

    def _advance(self, outgoing: Outgoing, offset: int) -> bool:
        """Removes the first range of the queue up to `offset`. False if it is no longer the first one."""
        if not self._queue or self._queue[0] is not outgoing:
            return False  # closed, or suspended
        if offset >= outgoing.end:
            self._queue.popleft()
        else:
            outgoing.start = offset
        return True


def _holds(sections: list[SectionRead], offset: int) -> bool:
    return bool(sections) and sections[0].base_offset <= offset < sections[-1].base_offset + sections[-1].rows


def _extends(last: Outgoing, more: Outgoing) -> bool:
    """Merges a range into the one before it if it continues it, so that a lagging consumer has few ranges."""
    is_next = last.end == more.start and last.delivery is more.delivery
    if is_next and (last.generation, last.attempt) == (more.generation, more.attempt):
        last.end = more.end
        return True
    return False
