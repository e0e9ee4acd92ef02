"""One consumer of a subscription: the front end's end of it, and what is on its way there.

Deliveries are sent in the order in which they were decided. What is in memory goes out at once; for the rest one read
is under way at a time. While the front end is full (its socket does not take more) nothing is read and nothing is
sent, and the credit is kept back, so that nothing more is decided for this consumer: it costs a short list of ranges
and no message, what comes next goes to others, and its neighbours never wait for it.

What waited is looked at again before it is sent: after a seek, an ack of somebody else or a missed deadline it is not
this consumer's any more. Credit for what does not come is given back.

A read that fails takes the ranges of its shard aside, in order, and is tried again after a while: the other shards of
the consumer go on. The consumer is told of it, and of a read that has no answer for long. A table that nobody here can
read ends the consumer, with the reason (hazard 22).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Protocol

from icestream import errors, limits
from icestream.broker.dispatch.consumer_rotation import Credit
from icestream.broker.slow_read_watch import SlowReadWatch
from icestream.broker.storage import ShardRead, ShardStream
from icestream.model.shard import Gap, GapState
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.rpc.blocks import pick_rows, select_rows
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.tail import SectionRead

_log = get_logger("delivery")
_base_offset = attrgetter("base_offset")


class ConsumerSink(Protocol):
    """What a front end gives the broker for each consumer."""

    @property
    def peer(self) -> str:
        """Who it is, for people."""

    @property
    def is_full(self) -> bool:
        """Nothing more should be sent until the consumer's `drained` is called."""

    def deliver(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None: ...

    def gap(self, shard: int, generation: int, gap: Gap) -> None: ...

    def event(self, event: str, details: dict[str, object]) -> None:
        """Something happened to the consumer: it became active, it was closed, a shard of it is stalled (stall.py)."""


class PickSink(Protocol):
    """How a front end takes messages of a section that do not follow one another."""

    def __call__(
        self, shard: int, generation: int, attempt: int, picked: SectionRead, ranges: list[tuple[int, int]]
    ) -> None:
        """`picked`: the rows of the ranges [start, end) of offsets alone, which rise and do not touch."""


class DeliverySide(Protocol):
    """What a consumer needs of the shard that it gets messages from (shard_delivery.py)."""

    @property
    def stream(self) -> ShardStream: ...

    @property
    def generation(self) -> int: ...

    @property
    def is_handed_out_singly(self) -> bool:
        """Neighbouring messages go to different consumers, or at different times."""

    def still_out(self, consumer_id: int, outgoing: Outgoing) -> list[tuple[int, int]]:
        """Which parts of it are still this consumer's to get."""

    def nothing_there(self, gap: Gap) -> None:
        """These offsets hold no message that can be read: they count as acked."""

    def cannot_read(self, offset: int, error: Exception) -> None:
        """Messages from `offset` on cannot be read now: all consumers of the shard are told, until `can_read`."""

    def can_read(self, start: int, end: int) -> None:
        """Messages of these offsets were read."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """Offsets [start, end) of a shard that go to this consumer."""

    delivery: DeliverySide
    generation: int
    start: int
    end: int
    attempt: int


class Consumer:
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
        """`shard`: the only one that it wants messages of."""
        self.id = id_
        self.name = name
        self.shard = shard
        self.sink = sink
        self.key_patterns = key_patterns
        self.credit = Credit(id_)  # what may be decided for it
        self.on_credit: Callable[[], None] = lambda: None  # there is credit that nobody was told of
        self.pick: PickSink | None = None  # where the front end takes messages that do not follow one another
        self.on_unreadable: Callable[[str], None] = lambda _: None  # what it wants cannot be read by anybody: why
        self.is_active = False  # failover: it was told that it gets the messages
        self.delivered_messages = 0
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._clock = clock
        self._queue: deque[Outgoing] = deque()
        self._aside: dict[DeliverySide, deque[Outgoing]] = {}  # of shards that cannot be read now
        self._kept_back = 0  # credit, while the front end is full
        self._is_full = False
        self._is_fresh = False  # all of the queue was decided in this moment
        self._is_reading = False
        self._slow_read = SlowReadWatch(clock, tasks)
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._slow_read.close()
        self._queue.clear()
        self._aside.clear()

    @property
    def waiting_ranges(self) -> int:
        return len(self._queue) + sum(map(len, self._aside.values()))

    @property
    def unsent_messages(self) -> int:
        """Messages that are in flight with it and have not left for its client."""
        ranges = chain(self._queue, *self._aside.values())
        return sum(outgoing.end - outgoing.start for outgoing in ranges)

    # --- credit ---

    @property
    def credit_messages(self) -> int:
        """How many messages it still takes."""
        return self.credit.messages + self._kept_back

    def give_credit(self, count: int) -> None:
        count = min(count, limits.CREDIT_MAX - self.credit_messages)
        if self._is_full:
            self._kept_back += count
        else:
            self.credit.messages += count

    def _give_back(self, count: int) -> None:
        """Credit was taken for messages that do not come. Whoever decides hears of it in the next turn of the loop."""
        if count and not self._is_closed:
            self.give_credit(count)
            self._loop.call_soon(self.on_credit)

    def _look_at_the_sink(self) -> None:
        """Keeps the credit back while the front end is full and until everything that waited for it has left."""
        if self.sink.is_full and not self._is_full:
            self._is_full = True
            self._kept_back, self.credit.messages = self.credit.messages, 0
        elif self._is_full and not self.sink.is_full and not self._queue:
            self._is_full = False
            count, self._kept_back = self._kept_back, 0
            self._give_back(count)

    # --- the queue ---

    def add(self, outgoing: Outgoing) -> None:
        """Puts it at the end of the queue; `send` follows when everything of this moment is there."""
        aside = self._aside.get(outgoing.delivery)
        if aside is not None:
            aside.append(outgoing)
        elif not self._queue:
            self._queue.append(outgoing)
            self._is_fresh = True
        elif not _extends(self._queue[-1], outgoing):
            self._queue.append(outgoing)

    def send(self) -> None:
        """Sends what was added, as far as that is possible now."""
        is_fresh, self._is_fresh = self._is_fresh, False
        self._pump(is_fresh=is_fresh)

    def drained(self) -> None:
        """The front end takes more again."""
        self._pump()

    def _pump(self, *, is_fresh: bool = False) -> None:
        """Sends what can be sent now. `is_fresh`: all of it was decided just now, and need not be looked at again."""
        sections: list[SectionRead] = []
        near: DeliverySide | None = None  # whose sections these are
        while self._queue and not self._is_reading and not self.sink.is_full:
            outgoing = self._queue[0]
            if not is_fresh and not self._is_wanted(outgoing):
                continue
            if near is not outgoing.delivery or not _holds(sections, outgoing.start):
                near = outgoing.delivery
                sections = near.stream.read_hot(outgoing.start, limits.READ_BYTES_DEFAULT)
            if not sections:
                self._is_reading = True
                self._tasks.start(self._read(outgoing), f"consumer-{self.id}-read")
                break
            self._send_next(outgoing, sections, is_fresh=is_fresh)
        self._look_at_the_sink()

    def _is_wanted(self, outgoing: Outgoing) -> bool:
        """False: it is not what stands first in the queue any more."""
        is_old = outgoing.generation != outgoing.delivery.generation
        parts = [] if is_old else outgoing.delivery.still_out(self.id, outgoing)
        if parts == [(outgoing.start, outgoing.end)]:
            return True
        self._queue.popleft()
        for start, end in reversed(parts):
            self._queue.appendleft(Outgoing(outgoing.delivery, outgoing.generation, start, end, outgoing.attempt))
        self._give_back(outgoing.end - outgoing.start - sum(end - start for start, end in parts))
        return False

    # --- reads ---

    async def _read(self, outgoing: Outgoing) -> None:
        """Fetches the next part of what stands first in the queue, sends it, and goes on."""
        delivery, start = outgoing.delivery, outgoing.start
        try:
            keep = delivery.is_handed_out_singly or outgoing.attempt > 0
            found = await self._slow_read.read(
                delivery.stream, start, lambda error: delivery.cannot_read(start, error), cache=keep
            )
            delivery.can_read(start, found.next_offset)
            self._take(outgoing, found)
        except errors.StaleRead:
            pass  # the file was recycled under the read: the position is looked up again
        except errors.PositionGone as error:
            self._step_over_gone(outgoing, error)
        except errors.TableUnreadable as error:
            _log.error("a reader stops", where=f"{delivery.stream.key} offset {start}", error=str(error))
            self.on_unreadable(str(error))
            delivery.cannot_read(start, error)
        except (errors.IcestreamError, OSError) as error:
            self._set_aside(outgoing, error)
        finally:
            self._is_reading = False
        self._pump()

    def _take(self, outgoing: Outgoing, found: ShardRead) -> None:
        """What was read serves everything in the queue that it holds."""
        delivery = outgoing.delivery
        for gap in found.gaps:
            delivery.nothing_there(gap)
            self._step_over(outgoing, gap.end)
        if not found.sections and not found.gaps:
            raise errors.LogError(f"offset {outgoing.start} of {delivery.stream.key} can be seen and not be read")
        while self._queue and found.sections and not self.sink.is_full:
            head, first = self._queue[0], found.sections[0]
            if head.delivery is not delivery or not first.base_offset <= head.start < found.next_offset:
                return
            if self._is_wanted(head):
                self._send_next(head, found.sections)

    def _step_over_gone(self, outgoing: Outgoing, error: errors.PositionGone) -> None:
        """The log begins behind it by now: a retention took it."""
        stream = outgoing.delivery.stream
        earliest = stream.log_start()
        if earliest <= outgoing.start:
            self._set_aside(outgoing, error)
            return
        lost = Gap(stream.key, outgoing.start, earliest, stream.epoch, "no longer in the log", GapState.LOST)
        outgoing.delivery.nothing_there(lost)
        self._step_over(outgoing, earliest)

    def _step_over(self, outgoing: Outgoing, end: int) -> None:
        count = min(end, outgoing.end) - outgoing.start
        if count > 0 and self._advance(outgoing, outgoing.start + count):
            self._give_back(count)

    def _set_aside(self, outgoing: Outgoing, error: Exception) -> None:
        """Everything of that shard waits behind it, so that nothing overtakes."""
        delivery = outgoing.delivery
        if self._is_closed or delivery in self._aside:
            return
        metrics.READ_FAILURES.value += 1
        where = f"{delivery.stream.key} offset {outgoing.start}"
        _log.error("messages cannot be read; they are tried again", where=where, error=str(error))
        delivery.cannot_read(outgoing.start, error)
        self._aside[delivery] = deque(one for one in self._queue if one.delivery is delivery)
        self._queue = deque(one for one in self._queue if one.delivery is not delivery)
        self._tasks.start(self._try_again(delivery), f"consumer-{self.id}-retry")

    async def _try_again(self, delivery: DeliverySide) -> None:
        await self._clock.sleep(limits.READ_RETRY_MS / 1000)
        self._queue.extend(self._aside.pop(delivery, ()))
        self._pump()

    # --- to the front end ---

    def _send_next(self, outgoing: Outgoing, sections: list[SectionRead], *, is_fresh: bool = False) -> None:
        """Sends what stands first in the queue as far as `sections` hold it, with others that can go in its frame."""
        if self.pick is None or len(self._queue) == 1 or not outgoing.delivery.is_handed_out_singly:
            self._send_sections(outgoing, sections)
            return
        section = sections[max(bisect_right(sections, outgoing.start, key=_base_offset) - 1, 0)]
        if not _holds([section], outgoing.start):
            self._send_sections(outgoing, sections)
            return
        ranges = self._gather(outgoing, section.base_offset + section.rows, is_fresh=is_fresh)
        if len(ranges) == 1:
            start, end = ranges[0]
            self._send_rows(outgoing, section, start - section.base_offset, end - start)
        else:
            self._send_picked(self.pick, outgoing, section, ranges)

    def _gather(self, outgoing: Outgoing, limit: int, *, is_fresh: bool) -> list[tuple[int, int]]:
        """Takes what stands first from the queue, and what rises behind it up to `limit` and is sent like it."""
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
            if end < head.end:
                head.start = end
                return ranges
            queue.popleft()
            while queue and not is_fresh and not self._is_wanted(queue[0]):
                pass
            if not queue:
                return ranges
            head = queue[0]
            is_alike = head.attempt == attempt and head.generation == generation and head.delivery is delivery
            if not is_alike or not last <= head.start < limit:
                return ranges

    def _send_picked(
        self, pick: PickSink, outgoing: Outgoing, section: SectionRead, ranges: list[tuple[int, int]]
    ) -> None:
        base = section.base_offset
        rows = [row for start, end in ranges for row in range(start - base, end - base)]
        body = pick_rows(section.body, rows)
        self._count(outgoing, len(rows), len(body))
        picked = SectionRead(ranges[0][0], len(rows), section.append_time_us, section.epoch, body)
        pick(outgoing.delivery.stream.key.shard, outgoing.generation, outgoing.attempt, picked, ranges)

    def _send_sections(self, outgoing: Outgoing, sections: list[SectionRead]) -> None:
        at = outgoing.start
        for section in sections:
            low, high = max(at, section.base_offset), min(outgoing.end, section.base_offset + section.rows)
            if low < high:
                self._send_rows(outgoing, section, low - section.base_offset, high - low)
            at = max(at, high)
            if at >= outgoing.end or self.sink.is_full:
                break
        self._advance(outgoing, at)

    def _send_rows(self, outgoing: Outgoing, section: SectionRead, first_row: int, rows: int) -> None:
        """Whole sections are sent from where they stand; of a large one only the rows that are meant."""
        if rows * 2 < section.rows and len(section.body) > limits.DELIVER_WHOLE_BYTES_MAX:
            body = select_rows(section.body, first_row, rows)
            section = SectionRead(section.base_offset + first_row, rows, section.append_time_us, section.epoch, body)
            first_row = 0
        self._count(outgoing, rows, len(section.body))
        shard = outgoing.delivery.stream.key.shard
        self.sink.deliver(shard, outgoing.generation, outgoing.attempt, section, first_row, rows)

    def _count(self, outgoing: Outgoing, rows: int, size_bytes: int) -> None:
        self.delivered_messages += rows
        metrics.DELIVERED_MESSAGES.value += rows
        metrics.DELIVERED_BYTES.value += size_bytes
        if outgoing.attempt:
            metrics.REDELIVERED_MESSAGES.value += rows

    def _advance(self, outgoing: Outgoing, at: int) -> bool:
        """What stands first in the queue is done with up to `at`. False: it does not stand there any more."""
        if not self._queue or self._queue[0] is not outgoing:
            return False  # closed, or set aside
        if at >= outgoing.end:
            self._queue.popleft()
        else:
            outgoing.start = at
        return True


def _holds(sections: list[SectionRead], offset: int) -> bool:
    return bool(sections) and sections[0].base_offset <= offset < sections[-1].base_offset + sections[-1].rows


def _extends(last: Outgoing, more: Outgoing) -> bool:
    """Adds a range to the one before it where it continues it, so that a consumer that lags has few of them."""
    is_next = last.end == more.start and last.delivery is more.delivery
    if is_next and (last.generation, last.attempt) == (more.generation, more.attempt):
        last.end = more.end
        return True
    return False
