"""ShardFeed: looks at every stored message of a shard once, and offers it to the sessions whose filters match.

    position    everything below was offered and folded. Moves only here, in slices of the loop
    subscriber  an MqttSession or a SharedGroup: takes the row, or notes that it is behind (`offer`)
    live row    a message that is not stored (broker/mqtt/publishing.py): offered behind the offset that the shard had
                been assigned when it arrived, so that order is kept (hazard 57)

A start begins where C stands (durable/session_state.py), or the retained set if that is older: rows below C are folded
into the set and not offered, because the sessions that they matched are listed as owed (hazard 61). The topic of a row
is matched once; the result is cached by topic until a subscription changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Protocol, TypeAlias

from icestream import errors, limits
from icestream.broker.mqtt.feed_marks import FeedMarks
from icestream.broker.mqtt.message_rows import BlockMessages, MqttMessage
from icestream.broker.mqtt.route_generations import NO_FORMER
from icestream.broker.mqtt.seen_topics import SeenTopics
from icestream.broker.storage import ShardStream
from icestream.durable.iterator import section_blocks
from icestream.durable.session_state import Generation
from icestream.model.block import iter_blocks
from icestream.model.filtered_rows import FilteredSection
from icestream.model.shard import ShardKey
from icestream.mqtt.topic_index import TopicIndex
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.wal.tail import SectionRead

_log = get_logger("mqtt")
# As many rows of a run cost about as much as one that is decided by itself.
_ROWS_OF_A_COST: Final = 16


class Subscriber(Protocol):
    """What a feed offers rows to."""

    def offer(self, feed: ShardFeed, offset: int, row: MqttMessage, generations: Sequence[Generation]) -> None:
        """A stored row that matches the filters of these generations. Rows come in the order of their offsets."""

    def offer_run(
        self, feed: ShardFeed, messages: BlockMessages, base: int, start: int, end: int,
        generations: Sequence[Generation],
    ) -> None:  # fmt: skip
        """As `offer`, for the rows from `start` to `end` of a block whose first row has the offset `base`."""

    def offer_live(self, feed: ShardFeed, row: MqttMessage, generations: Sequence[Generation]) -> bool:
        """A row that is not stored; False if it was not sent."""

    def flush(self) -> None:
        """The feed has no more rows now."""

    def __hash__(self) -> int: ...


class LiveRow(NamedTuple):
    """A row that is not stored. `on_offered` gets whether a subscriber took it."""

    row: MqttMessage
    on_offered: Callable[[bool], None]


# Subscribers and those of their generations that match a topic.
Matches: TypeAlias = list[tuple[Subscriber, list[Generation]]]


class SubscriberIndex:
    """The subscribers of a node by filter, and the matches of topics, cached until a subscription changes."""

    def __init__(self) -> None:
        self._index: TopicIndex[Subscriber, Generation] = TopicIndex()
        self._cache: dict[str, Matches] = {}
        self._distinct: dict[tuple[int, ...], Matches] = {}

    def __len__(self) -> int:
        return len(self._index)

    def put(self, topic_filter: str, subscriber: Subscriber, generation: Generation) -> None:
        """Raises PolicyReached if the node has too many subscriptions."""
        self._index.put(topic_filter, subscriber, generation)
        self._forget()

    def remove(self, topic_filter: str, subscriber: Subscriber) -> None:
        if self._index.remove(topic_filter, subscriber):
            self._forget()

    def _forget(self) -> None:
        self._cache.clear()
        self._distinct.clear()

    def match(self, topic: str) -> Matches:
        """Each subscriber with at least one filter that matches, and the generations of these filters. The same object
        for topics with the same matches, until a subscription changes."""
        matches = self._cache.get(topic)
        if matches is None:
            by_subscriber: dict[Subscriber, list[Generation]] = {}
            for subscriber, generation in self._index.match(topic):
                by_subscriber.setdefault(subscriber, []).append(generation)
            # Emptied as a whole: an order of use would have to be updated by every message.
            if len(self._cache) >= limits.MQTT_TOPICS_CACHED:
                self._forget()
            # The lists keep the objects alive that are named here.
            names = tuple(
                id(item) for subscriber, generations in by_subscriber.items() for item in (subscriber, *generations)
            )
            matches = self._cache[topic] = self._distinct.setdefault(names, list(by_subscriber.items()))
        return matches


class SectionRows:
    """Decoded sections, shared by all readers of a range, within a bound of sections."""

    def __init__(self) -> None:
        self._sections: dict[tuple[ShardKey, int, int], list[tuple[int, BlockMessages]]] = {}

    def blocks(self, key: ShardKey, section: SectionRead, native_topic: str) -> list[tuple[int, BlockMessages]]:
        """The blocks of a section with the offset of the first row of each."""
        cached = self._sections.get((key, section.base_offset, section.rows))
        if cached is not None:
            return cached
        offset, blocks = section.base_offset, []
        for block in iter_blocks(section.body):
            times_us = [section.append_time_us] * block.rows
            blocks.append((offset, BlockMessages(block, times_us, native_topic)))
            offset += block.rows
        if len(self._sections) >= limits.MQTT_SECTIONS_CACHED:
            del self._sections[next(iter(self._sections))]
        self._sections[key, section.base_offset, section.rows] = blocks
        return blocks

    def blocks_with_offsets(
        self, key: ShardKey, section: SectionRead | FilteredSection, native_topic: str
    ) -> Iterator[tuple[Sequence[int], BlockMessages]]:
        """The blocks of a section, also of one that was read with filters, with the offset of each of their rows."""
        if isinstance(section, FilteredSection):
            for block, offsets, times_us in section_blocks([section]):
                yield offsets, BlockMessages(block, times_us, native_topic)
        else:
            for base, messages in self.blocks(key, section, native_topic):
                yield range(base, base + len(messages.topics)), messages


class ShardFeed:
    """One shard of a routed topic."""

    def __init__(
        self,
        stream: ShardStream,
        native_topic: str,
        start: int,
        offered_from: int,
        index: SubscriberIndex,
        rows: SectionRows,
        fold: Callable[[ShardFeed, int, MqttMessage], None],
        seen: SeenTopics,
        clock: Clock,
        on_failed: Callable[[errors.IcestreamError], None],
    ) -> None:
        """`offered_from`: C, rows below it are only folded. `fold` takes the retained rows, `seen` all topics.
        `on_failed`: an offer broke a rule, and the feed cannot go on."""
        self.stream = stream
        self.key = stream.key
        self.native_topic = native_topic
        self.position = start
        self._offered_from = offered_from
        self._index = index
        self._rows = rows
        self._fold = fold
        self._seen = seen
        self.marks = FeedMarks()
        self._clock = clock
        self._on_failed = on_failed
        self._live: deque[tuple[int, LiveRow]] = deque()
        self._slice: Iterator[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False
        self.is_caught_up = False  # with what was visible when the node started
        self.former = NO_FORMER  # where former generations of the routes ended
        self.on_moved: Callable[[int], None] = lambda rows: None  # how many offsets it has passed now
        self._moved: list[asyncio.Future[None]] = []

    def start(self) -> None:
        self.stream.follow(self._wake)
        self._wake()

    def close(self) -> None:
        """Offers nothing any more."""
        if not self._is_closed:
            self._is_closed = True
            self.stream.unfollow(self._wake)
            if self._scheduled is not None:
                self._scheduled.cancel()
            if self._reading is not None:
                self._reading.cancel()

    @property
    def offer_start(self) -> int:
        """The first offset that it offers from now on."""
        return max(self.position, self._offered_from)

    async def caught_up(self) -> None:
        """Waits until everything that is visible now was offered."""
        end = self.stream.visible
        while self.position < end and not self._is_closed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._moved.append(waiter)
            await waiter
        self.is_caught_up = True

    async def mark_owed(self, offset: int) -> None:
        """Begins the marks at the oldest row that a session is owed, if the log has it: before `start`."""
        if self.stream.log_start() <= offset < self.stream.visible:
            with contextlib.suppress(errors.IcestreamError):  # without it an age is a lower bound
                for section in (await self.stream.read(offset, 1)).sections[:1]:
                    self.marks.add(section.base_offset, section.rows, len(section.body), section.append_time_us)

    def add_live(self, row: LiveRow) -> None:
        """Offers a row that is not stored, behind all that was submitted to the shard before it."""
        self._live.append((self.stream.visible, row))
        self._wake()

    def _wake(self) -> None:
        if self._scheduled is None and self._reading is None and not self._is_closed:
            self._scheduled = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """One slice: as many rows as fit into about a millisecond, then the loop goes on."""
        self._scheduled = None
        if self._is_closed:
            return
        try:
            self._offer_slice()
        except errors.IcestreamError as error:
            self._on_failed(error)

    def _offer_slice(self) -> None:
        before = self.position
        self._offer_live()
        if self._slice is None:
            if self.position >= self.stream.visible:
                return
            sections = self.stream.read_hot(self.position, limits.MQTT_FEED_READ_BYTES)
            if not sections:
                self._reading = asyncio.get_running_loop().create_task(self._read(), name="mqtt feed")
                return
            self._slice = self._offer_sections(sections)
        # The feed itself is the mark of the end: None is what the generator yields after a slice.
        if next(self._slice, self) is self:
            self._slice = None
        self._offer_live()
        for waiter in self._moved:
            if not waiter.done():
                waiter.set_result(None)
        self._moved.clear()
        self.on_moved(self.position - before)
        if self._slice is not None or self.position < self.stream.visible:
            self._wake()

    async def _read(self) -> None:
        """Reads what is not in memory: after a start, or where the tail was evicted."""
        delay = limits.MQTT_READ_RETRY_SECONDS
        while True:
            try:
                read = await self.stream.read(self.position, limits.MQTT_FEED_READ_BYTES)
            except errors.PositionGone:
                # Nothing can be offered of what retention removed; sessions that were owed it find out by themselves.
                # At least one offset further: a start that does not move would be read for ever.
                start = await self.stream.history_start()
                _log.warning("messages were removed before they were offered", shard=str(self.key), until=start)
                self.position = max(start, self.position + 1)
            except errors.IcestreamError as error:
                _log.warning("a shard cannot be read now", shard=str(self.key), offset=self.position, error=str(error))
                await self._clock.sleep(delay)
                delay = min(2 * delay, limits.MQTT_READ_RETRY_SECONDS_MAX)
            else:
                break
        self._reading = None
        self._slice = self._offer_sections(read.sections, read.next_offset)
        self._wake()

    def _offer_sections(self, sections: Sequence[SectionRead], end: int | None = None) -> Iterator[None]:
        """Offers the rows from `position` on, and yields when a slice of the loop is used up."""
        touched: dict[Subscriber, None] = {}
        count = 0
        for section in sections:
            self.marks.add(section.base_offset, section.rows, len(section.body), section.append_time_us)
            for base, messages in self._rows.blocks(self.key, section, self.native_topic):
                topics = messages.topics
                # A read returns whole sections, so the first blocks may be offered already.
                if base + len(topics) <= self.position:
                    continue
                self._seen.add_stored(self.key, base, topics, section.append_time_us)
                if messages.retained_rows():
                    costs = self._offer_rows(base, messages, touched)
                else:
                    costs = self._offer_runs(base, messages, touched)
                for cost in costs:
                    count += cost
                    if count >= limits.MQTT_FEED_SLICE:
                        for subscriber in touched:
                            subscriber.flush()
                        touched.clear()
                        count = 0
                        yield
        if end is not None:
            self.position = max(self.position, end)
        for subscriber in touched:
            subscriber.flush()

    def _offer_rows(self, base: int, messages: BlockMessages, touched: dict[Subscriber, None]) -> Iterator[int]:
        """Folds and offers the rows of a block one by one; yields what each has cost."""
        retained = set(messages.retained_rows())
        for index in range(max(0, self.position - base), len(messages.topics)):
            offset = base + index
            row = messages.row(index)
            if index in retained:
                self._fold(self, offset, row)
            matches = self._index.match(row.topic) if offset >= self._offered_from else ()
            for subscriber, generations in matches:
                subscriber.offer(self, offset, row, generations)
                touched[subscriber] = None
            self.position = offset + 1
            yield 1 + len(matches)

    def _offer_runs(self, base: int, messages: BlockMessages, touched: dict[Subscriber, None]) -> Iterator[int]:
        """Offers the rows of a block in runs of the same matches; yields what each run has cost.

        Between two runs a subscription may begin or end at the position, so each is matched when its turn comes.
        """
        while (start := max(0, self.position - base)) < len(messages.topics):
            end, matches = self._run_from(messages, start)
            offered = max(start, self._offered_from - base)
            if offered < end:
                for subscriber, generations in matches:
                    subscriber.offer_run(self, messages, base, offered, end, generations)
                    touched[subscriber] = None
            self.position = base + end
            rows = end - start
            yield 1 + len(matches) * (rows if messages.plain is None else 1 + rows // _ROWS_OF_A_COST)

    def _run_from(self, messages: BlockMessages, start: int) -> tuple[int, Matches]:
        """The end of the rows from `start` on with the same matches, and these."""
        spans = messages.topic_spans
        at = bisect_right(spans, start, key=itemgetter(1))
        _, end, topic = spans[at]
        matches = self._index.match(topic)
        if not matches:
            return end, matches
        # Rows of a block that is not plain are decided one by one.
        rows_max = limits.MQTT_BATCH_ROWS if messages.plain is not None else limits.MQTT_FEED_SLICE // len(matches)
        end_max = start + max(1, rows_max)
        while end < end_max and (at := at + 1) < len(spans) and self._index.match(spans[at][2]) is matches:
            end = spans[at][1]
        return min(end, end_max), matches

    def _offer_live(self) -> None:
        while self._live and self._live[0][0] <= self.position:
            _, (row, on_offered) = self._live.popleft()
            self._seen.add_live(self.key, row.topic, row.append_time_us)
            matches = self._index.match(row.topic)
            taken = [subscriber.offer_live(self, row, generations) for subscriber, generations in matches]
            on_offered(any(taken))
