"""MqttSession: the deliveries of one session, connected or not. SessionReader: what it shares with shared groups.

In each shard a reader is in one of two states:

    state          meaning                                              becomes
    ------------   --------------------------------------------------   ----------------------------------------------
    attached       it has seen everything that the feed has offered     detached at the first row that it cannot take:
                                                                        not connected, window used up, socket full
    detached at o  rows from o on are looked at by catching up; a       attached when catching up has reached the feed
                   durable session lists o as owed (hazard 61)

What is sent leaves in this order: retained messages of new subscriptions, then rows by offset in each shard. QoS 1 and
2 of a durable session leave when their entries are synced (hazards 52, 54); what is behind them waits, so that nothing
overtakes. Rows of effective QoS 0 that were stored while the client was away are not sent (hazard 57), those of a
client that is merely slow are.

Rows of a plain block (message_rows.py) with the same matches are decided together: `offer_run`, and a PendingRun until
they leave. What a run cannot say (a retained row, properties, QoS 2, no-local of an own row, a subscription that begins
or ends within it) is decided row by row; both ways send the same packets and keep the same state.

A session without expiry writes no records: its changes are applied in memory. Its messages come from the log as well.
Without durable sessions this is so for all, and those with an expiry are kept in memory until the broker ends.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from icestream import errors, limits
from icestream.broker.mqtt.client_link import ClientLink
from icestream.broker.mqtt.message_rows import (
    BlockMessages,
    DeliveryRun,
    MqttMessage,
    PlainMessages,
    delivery_packet,
    expiry_seconds,
)
from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.broker.mqtt.shard_feed import SectionRows, ShardFeed
from icestream.broker.storage import ShardStream
from icestream.durable import session_changes as changes
from icestream.durable import session_records as rec
from icestream.durable.session_changes import MatchedRow, MatchedRun
from icestream.durable.session_log import SessionLog
from icestream.durable.session_records import NO_OFFSET, AnyRecord
from icestream.durable.session_state import MAIN_READER, Generation, SessionState
from icestream.model.filtered_rows import FilteredSection
from icestream.model.shard import ShardKey
from icestream.mqtt.packets import PublishPacket
from icestream.mqtt.topics import matches
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.wal.tail import SectionRead

_log = get_logger("mqtt")
_FAILURE: Final = 0x80


class SessionHost(Protocol):
    """What sessions use of the service."""

    @property
    def options(self) -> MqttOptions: ...

    @property
    def log(self) -> SessionLog: ...

    @property
    def feeds(self) -> Mapping[ShardKey, ShardFeed]: ...

    @property
    def rows(self) -> SectionRows: ...

    async def sleep(self, seconds: float) -> None: ...

    def message_age_s(self, row: MqttMessage) -> int:
        """How long ago the row was stored."""

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...


class OwedRows:
    """Rows that matched a reader while it was behind: their number and bytes."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0

    def add(self, row: MqttMessage, count: int = 1) -> None:
        """`count`: -1 for one that was sent. Never below zero: rows from before a start are not counted."""
        self.messages = max(0, self.messages + count)
        self.size = max(0, self.size + count * (len(row.payload) + len(row.topic) + len(row.properties)))

    def add_run(self, messages: int, size: int) -> None:
        """`messages`, `size`: negative for those that were sent."""
        self.messages = max(0, self.messages + messages)
        self.size = max(0, self.size + size)


class PendingRow(NamedTuple):
    """A row that is to be sent."""

    row: MqttMessage
    matched: MatchedRow


class PendingRun:
    """Rows of a plain block that are to be sent alike."""

    __slots__ = ("_base", "decision", "messages", "plain", "rows", "spans")

    def __init__(self, messages: BlockMessages, plain: PlainMessages, base: int, decision: MatchedRow) -> None:
        """`base`: the offset of the first row of the block. `decision`: of its first row; it holds for all."""
        self.messages = messages
        self.plain = plain
        self.decision = decision
        self.spans: list[tuple[int, int]] = []  # rows of the block: start and end
        self.rows = 0
        self._base = base

    def add(self, start: int, end: int) -> None:
        if self.spans and self.spans[-1][1] == start:
            self.spans[-1] = (self.spans[-1][0], end)
        else:
            self.spans.append((start, end))
        self.rows += end - start

    @property
    def matched(self) -> MatchedRun:
        spans = [(self._base + start, end - start) for start, end in self.spans]
        decision = self.decision
        return MatchedRun(spans, self.rows, decision.qos, decision.generation, decision.identifiers)

    @property
    def end(self) -> int:
        """The offset behind its last row."""
        return self._base + self.spans[-1][1]

    @property
    def size(self) -> int:
        """The bytes of its topics and payloads."""
        return sum(self.plain.size(start, end) for start, end in self.spans)

    def delivery(self, packet_ids: Sequence[range]) -> DeliveryRun:
        decision = self.decision
        return DeliveryRun(
            self.messages, self.plain, self.spans, self.rows, decision.qos, packet_ids, decision.identifiers
        )


class RowBatch:
    """Rows and runs that are sent together, in their order; how many rows they have, and how many of QoS 1 or 2."""

    __slots__ = ("count", "numbered", "rows")

    def __init__(self) -> None:
        self.rows: list[PendingRow | PendingRun] = []
        self.count = 0
        self.numbered = 0

    def add(self, row: MqttMessage, matched: MatchedRow) -> None:
        self.rows.append(PendingRow(row, matched))
        self.count += 1
        self.numbered += matched.qos > 0

    def add_run(
        self, messages: BlockMessages, plain: PlainMessages, base: int, start: int, end: int, decision: MatchedRow
    ) -> None:
        """Adds rows of a block, to the run before them if they are to be sent as that."""
        last = self.rows[-1] if self.rows else None
        if not (
            isinstance(last, PendingRun) and last.plain is plain and last.decision[1:] == decision[1:]
        ):  # all but the offset
            last = PendingRun(messages, plain, base, decision)
            self.rows.append(last)
        last.add(start, end)
        self.count += end - start
        self.numbered += end - start if decision.qos else 0

    @property
    def end(self) -> int:
        """The offset behind its last row."""
        last = self.rows[-1]
        return last.end if isinstance(last, PendingRun) else last.matched.offset + 1


class PendingRetained(NamedTuple):
    """A retained message for a new subscription."""

    value: rec.RetainedValue
    qos: int
    identifiers: tuple[int, ...]


class QueuedPackets:
    """Packets and runs that leave together. `is_ready`: their entries are synced."""

    __slots__ = ("is_ready", "packets")

    def __init__(self, packets: Sequence[PublishPacket | DeliveryRun], is_ready: bool) -> None:
        self.packets = packets
        self.is_ready = is_ready


_EMPTY: Final = RowBatch()
_NOT_MATCHED: Final = MatchedRow(NO_OFFSET, 0, 0)


class SessionReader:
    """Reads shards for a session or a shared group: attached to the feeds, or catching up."""

    def __init__(self, state: SessionState, host: SessionHost) -> None:
        self.state = state
        self._host = host
        self._detached: dict[ShardKey, int] = {}
        self._not_before: dict[ShardKey, int] = {}
        self._counts_owed = host.options.session_lag_bytes_max > 0
        self._owed: dict[ShardKey, OwedRows] = {}
        self._batch = RowBatch()
        self._batch_key: ShardKey | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._turn = 0
        self.wait_reason = ""  # why catching up waits, as people should see it
        self._progress: Mapping[ShardKey, int] | None = None  # at the last beat
        self._silent_beats = 0
        self._silent_beats_max = limits.MQTT_SILENT_BEATS

    # --- what subclasses decide ---

    @property
    def is_durable(self) -> bool:
        """True if changes are records of the log."""
        return self.is_kept and self._host.options.has_durable_sessions

    @property
    def is_kept(self) -> bool:
        """True if it outlives its connections: what matches while no client is there is owed."""
        return self.state.expiry_s > 0 and not self.state.is_ending

    @property
    def is_online(self) -> bool:
        """True while rows can be sent to a client."""
        raise NotImplementedError

    def has_room(self, qos: int, batch: RowBatch) -> bool:
        """True if one more row of this QoS can be sent now, with those of the batch."""
        raise NotImplementedError

    def room_for(self, qos: int, batch: RowBatch) -> int:
        """How many more rows of this QoS can be sent now, with those of the batch. 0 or 1 where runs are not taken."""
        return int(self.has_room(qos, batch))

    @property
    def takes_runs(self) -> bool:
        """False if each row is decided by itself."""
        return False

    def send_rows(
        self,
        key: ShardKey,
        rows: Sequence[PendingRow | PendingRun],
        position: int,
        indexed_end: int,
        reader: int = MAIN_READER,
    ) -> None:
        """Sends rows and runs, and moves the position of a reader in a shard."""
        raise NotImplementedError

    def was_offline_at(self, key: ShardKey, offset: int) -> bool:
        """True if the row was stored before the client connected."""
        return False

    def is_own(self, row: MqttMessage) -> bool:
        """True if the client published it."""
        return False

    async def send_first(self) -> bool:
        """Sends what goes before rows; False if there is no room for all of it."""
        return True

    # --- from the feed ---

    def offer(self, feed: ShardFeed, offset: int, row: MqttMessage, generations: Sequence[Generation]) -> None:
        key = feed.key
        # A detached session gets its rows by catching up: one that is taken here would overtake those that it is owed.
        if key in self._detached:
            if self._counts_owed:
                self._owe(key, row)
            return
        if self._not_before and offset < self._not_before.get(key, 0):
            return
        matched = changes.merge_generations(
            generations, key, offset, row.qos, is_own=self.is_own(row), is_retained=row.is_retained
        )
        if matched is None:
            return
        if not self.is_online:
            # Only QoS 1 and 2 are owed to a client that is away (hazard 57): QoS 0 does not make a session fall behind.
            if matched.qos and self.is_kept:
                self.detach(key, offset)
                self._owe(key, row)
            return
        if self.is_expired(row):
            return
        if self._batch_key != key:
            self.flush()
        # Rows of former routes come first (hazard 64): while the session is behind in one, later rows wait as well.
        if not self.has_room(matched.qos, self._batch) or (self._detached and self._former_jobs()):
            self.detach(key, offset)
            self._owe(key, row)
            return
        self._batch_key = key
        self._batch.add(row, matched)

    def offer_run(
        self, feed: ShardFeed, messages: BlockMessages, base: int, start: int, end: int,
        generations: Sequence[Generation],
    ) -> None:  # fmt: skip
        """As `offer`, for the rows [start, end) of the block that begins at the offset `base`."""
        key, plain = feed.key, messages.plain
        if key in self._detached:
            if not self._counts_owed:
                return
        elif self._not_before:
            start = min(end, max(start, self._not_before.get(key, 0) - base))
        if start == end:
            return
        decision = None
        if plain is not None and self.takes_runs:
            decision = self._decide_run(plain, key, base + start, base + end, generations)
        if plain is None or decision is None:
            for index in range(start, end):
                self.offer(feed, base + index, messages.row(index), generations)
            return
        if key in self._detached:
            self._owe_run(key, plain, start, end)
            return
        if not decision.generation:
            return
        if not self.is_online:
            if decision.qos and self.is_kept:
                self.detach(key, base + start)
                self._owe_run(key, plain, start, end)
            return
        if self._batch_key != key:
            self.flush()
        while start < end:
            rows = 0 if self._detached and self._former_jobs() else self.room_for(decision.qos, self._batch)
            if not rows and self._batch.count >= limits.MQTT_BATCH_ROWS:
                self.flush()
                continue
            if not rows:
                self.detach(key, base + start)
                self._owe_run(key, plain, start, end)
                return
            run_end = min(end, start + rows)
            self._batch_key = key
            self._batch.add_run(messages, plain, base, start, run_end, decision)
            start = run_end

    def _decide_run(
        self, plain: PlainMessages, key: ShardKey, start: int, end: int, generations: Sequence[Generation]
    ) -> MatchedRow | None:
        """What holds for all rows with offsets from `start` to `end` of a plain block; generation 0: none is for this
        reader. None if rows differ, or need more than a run can say."""
        in_force = []
        for generation in generations:
            bound = generation.bounds.get(key)
            if bound is None or bound[0] >= end or NO_OFFSET != bound[1] <= start:
                continue
            if bound[0] > start or NO_OFFSET != bound[1] < end:
                return None
            if generation.record.is_no_local and plain.has_publisher(self.state.client_id):
                return None
            in_force.append(generation)
        if not in_force:
            return _NOT_MATCHED
        decision = changes.merge_generations(in_force, key, start, plain.qos)
        return decision if decision is not None and decision.qos < 2 else None

    def offer_live(self, feed: ShardFeed, row: MqttMessage, generations: Sequence[Generation]) -> bool:
        """Sends a row that is not stored, with QoS 0: nothing could send it again. False if the client is not there."""
        matched = changes.merge_generations(
            generations, feed.key, feed.position, row.qos, is_own=self.is_own(row), is_retained=row.is_retained
        )
        if matched is None or not self.is_online or feed.key in self._detached:
            return False
        self.flush()
        if not self.has_room(0, self._batch):
            return False
        self.send_rows(feed.key, [PendingRow(row, matched._replace(qos=0))], feed.position, feed.position)
        return True

    def is_expired(self, row: MqttMessage) -> bool:
        """True, and counted, if the expiry of the message has passed."""
        seconds = expiry_seconds(row)
        if seconds is None or self._host.message_age_s(row) < seconds:
            return False
        metrics.MQTT_EXPIRED.inc()
        return True

    def flush(self) -> None:
        """Sends the rows that were offered."""
        key, rows = self._batch_key, self._batch.rows
        if key is not None and rows:
            end = self._batch.end
            self._batch, self._batch_key = RowBatch(), None
            self.send_rows(key, rows, end, end)

    def detach(self, key: ShardKey, offset: int) -> None:
        """Rows of the shard from `offset` on are looked at by catching up."""
        self.flush()  # first: its position would take back what is listed as owed
        self._detached[key] = offset
        if self.is_durable:
            # C passes the row with a later record only: until then a start looks at the row again.
            self._host.log.stage(changes.list_owed(self.state, key, offset), is_lazy=True)
        self.pump()

    def _owe(self, key: ShardKey, row: MqttMessage) -> None:
        """Counts a row that matched, where a bound of the lag needs it."""
        if self._counts_owed:
            owed = self._owed.get(key)
            if owed is None:
                owed = self._owed[key] = OwedRows()
            owed.add(row)

    def _owe_run(self, key: ShardKey, plain: PlainMessages, start: int, end: int) -> None:
        if self._counts_owed:
            self._owed.setdefault(key, OwedRows()).add_run(end - start, plain.size(start, end))

    @property
    def owed_messages(self) -> int:
        """Messages that matched since it fell behind, or since the start of the node; 0 if they are not counted."""
        return sum(owed.messages for owed in self._owed.values())

    @property
    def owed_bytes(self) -> int:
        """Their bytes."""
        return sum(owed.size for owed in self._owed.values())

    def drop_backlog(self) -> None:
        """Goes on behind what it has not looked at: the rest is lost."""
        for key in list(self._detached):
            if (feed := self._host.feeds.get(key)) is not None:
                self._reach_feed(MAIN_READER, key, feed)

    def restore(self, owed: Mapping[ShardKey, int], positions: Mapping[ShardKey, int]) -> None:
        """After a start of the node: the first owed offset, and where the session was, by shard.

        The feeds begin where the session that is furthest behind was: rows below the position of another one are not
        for it.
        """
        self._detached = dict(owed)
        self._not_before = dict(positions)

    @property
    def detached(self) -> Mapping[ShardKey, int]:
        """Where catching up goes on, by shard."""
        return self._detached

    @property
    def behind(self) -> Mapping[ShardKey, int]:
        """The lowest offset of each shard that it, or a replay of it, has not looked at; only shards that have one."""
        positions = dict(self._detached)
        for replay in self._replays():
            for key, (_, end) in replay.bounds.items():
                if end == NO_OFFSET:
                    position = self.state.position(key, replay.record.number)
                    positions[key] = min(position, positions.get(key, position))
        return positions

    # --- catching up ---

    def pump(self) -> None:
        """Goes on catching up, if there is something to do and it does not run."""
        if not self._is_catching_up and self.is_online and (self._detached or self._replays() or self.has_first()):
            self._catching_up = self._host.start_task(self._catch_up(), f"mqtt session {self.state.id}")

    def has_first(self) -> bool:
        """True if something goes before rows."""
        return False

    @property
    def _is_catching_up(self) -> bool:
        return self._catching_up is not None and not self._catching_up.done()

    def watch(self) -> bool:
        """Called at each beat. True if it has room and something to read, and does not read it, or has not come on for
        MQTT_SILENT_BEATS without a reason: a fault that the watchdog repairs."""
        has_work = bool(self._jobs() or self.has_first())
        if not has_work or self.wait_reason or not self.is_online or not self.has_room(1, _EMPTY):
            self._progress, self._silent_beats_max = None, limits.MQTT_SILENT_BEATS
            return False
        if not self._is_catching_up:
            return True
        progress = self.behind
        if progress != self._progress:
            self._progress, self._silent_beats = progress, 0
            return False
        self._silent_beats += 1
        return self._silent_beats >= self._silent_beats_max

    def repair(self) -> None:
        """Begins catching up again, from the same positions. A read that is only slow has twice the time then."""
        self.flush()
        self.stop()
        self._silent_beats = 0
        self._silent_beats_max *= 2
        self.pump()

    def stop(self) -> None:
        """Catches up no more."""
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None
        self._batch, self._batch_key = RowBatch(), None

    def _replays(self) -> list[Generation]:
        return [generation for generation in self.state.generations.values() if generation.record.reader]

    async def _catch_up(self) -> None:
        delay = limits.MQTT_READ_RETRY_SECONDS
        try:
            while self.is_online and await self.send_first() and self.has_room(1, _EMPTY):
                job = self._next_job()
                if job is None:
                    return
                try:
                    await self._read_part(*job)
                    self.wait_reason, delay = "", limits.MQTT_READ_RETRY_SECONDS
                except errors.PositionGone:
                    await self._skip_lost(*job)
                except errors.IcestreamError as error:
                    # A wait, and never a skip: the rows exist and cannot be read at the moment (hazard 71).
                    if not self.wait_reason:
                        _log.warning(
                            "a session waits for messages that cannot be read now",
                            session=self.state.id, shard=str(job[1]), error=str(error),
                        )  # fmt: skip
                    self.wait_reason = str(error)
                    await self._host.sleep(delay)
                    delay = min(2 * delay, limits.MQTT_READ_RETRY_SECONDS_MAX)
        finally:
            if self._catching_up is asyncio.current_task():
                self._catching_up = None

    def _next_job(self) -> tuple[int, ShardKey] | None:
        """The reader and shard that is read next, in turns."""
        jobs = self._jobs()
        if not jobs:
            return None
        self._turn += 1
        return jobs[self._turn % len(jobs)]

    def _jobs(self) -> list[tuple[int, ShardKey]]:
        """The readers and shards that have something to read. A shard without a feed is that of a deleted topic."""
        jobs = self._former_jobs() or [(MAIN_READER, key) for key in self._detached]
        for replay in self._replays():
            jobs += [(replay.record.number, key) for key, (_, end) in replay.bounds.items() if end == NO_OFFSET]
        return [job for job in jobs if job[1] in self._host.feeds]

    def _former_jobs(self) -> list[tuple[int, ShardKey]]:
        """Shards with rows of the oldest former generation of the routes: what came later waits (hazard 64)."""
        feeds = self._host.feeds
        former = {
            key: generation
            for key, offset in self._detached.items()
            if key in feeds and (generation := feeds[key].former.generation_at(offset))
        }
        oldest = min(former.values(), default=0)
        return [(MAIN_READER, key) for key, generation in former.items() if generation == oldest]

    def _reader_position(self, reader: int, key: ShardKey) -> int:
        return self._detached[key] if reader == MAIN_READER else self.state.position(key, reader)

    async def _read_part(self, reader: int, key: ShardKey) -> None:
        feed = self._host.feeds[key]
        position = self._reader_position(reader, key)
        if position >= feed.position:
            self._reach_feed(reader, key, feed)
            return
        sections: Sequence[SectionRead | FilteredSection]
        hot = feed.stream.read_hot(position, limits.MQTT_FEED_READ_BYTES)
        if not hot:
            sections, end = await self._read_cold(reader, feed.stream, position)
            if not self.is_online or not self._has_job(reader, key) or self._reader_position(reader, key) != position:
                return
        else:
            sections, end = hot, hot[-1].base_offset + hot[-1].rows
            await asyncio.sleep(0)  # others have their turn between two parts
            if not self.is_online or not self._has_job(reader, key):
                return
        end = min(end, feed.position)  # the rest is the feed's
        if reader == MAIN_READER:
            end = feed.former.end_after(position, end)
        batch = RowBatch()
        position = self._select(reader, feed, sections, position, end, batch)
        if reader == MAIN_READER and (owed := self._owed.get(key)) is not None:
            for pending in batch.rows:
                if isinstance(pending, PendingRun):
                    owed.add_run(-pending.rows, -pending.size)
                else:
                    owed.add(pending.row, -1)
        self.send_rows(key, batch.rows, position, feed.position, reader)
        if position >= feed.position:
            self._reach_feed(reader, key, feed)
        elif reader == MAIN_READER:
            self._detached[key] = position

    async def _read_cold(
        self, reader: int, stream: ShardStream, position: int
    ) -> tuple[Sequence[SectionRead | FilteredSection], int]:
        """Sections from a position that is not in memory, and where they end."""
        filters = self._reader_filters(reader)
        # What only the table has is read where it can match (ADR 61). What the log has is kept for other sessions.
        if position < stream.log_start() and filters:
            matching = await stream.read_matching(position, limits.MQTT_FEED_READ_BYTES, filters)
            return matching.sections, matching.next_offset
        read = await stream.read(position, limits.MQTT_FEED_READ_BYTES, cache=True)
        return read.sections, read.next_offset

    def _reader_filters(self, reader: int) -> list[str]:
        """The filters that a reader reads for; none if it needs about everything."""
        records = (generation.record for generation in self.state.generations.values())
        filters = sorted({record.filter for record in records if record.reader == reader})
        return [] if "#" in filters or len(filters) > limits.SCAN_FILTERS_MAX else filters

    def _has_job(self, reader: int, key: ShardKey) -> bool:
        return key in self._detached if reader == MAIN_READER else reader in self.state.generations

    def _select(
        self,
        reader: int,
        feed: ShardFeed,
        sections: Iterable[SectionRead | FilteredSection],
        position: int,
        end: int,
        batch: RowBatch,
    ) -> int:
        """Adds the rows below `end` that are to be sent, as long as there is room; returns where to go on."""
        key, looked_at = feed.key, 0
        by_topic: dict[str, list[Generation]] = {}
        for section in sections:
            for offsets, messages in self._host.rows.blocks_with_offsets(key, section, feed.native_topic):
                topics = messages.topics
                first = bisect_left(offsets, position)
                if isinstance(offsets, range) and self.takes_runs and messages.plain is not None:
                    runs_end = self._select_runs(reader, key, messages, offsets, first, end, batch, by_topic)
                    if runs_end == len(offsets):
                        continue
                    first = runs_end
                for index in range(first, bisect_left(offsets, end)):
                    offset, topic = offsets[index], topics[index]
                    # Rows that match nothing fill no batch: this bound ends the turn when few of many match.
                    looked_at += 1
                    if looked_at > limits.MQTT_CATCH_UP_ROWS:
                        return offset
                    generations = by_topic.get(topic)
                    if generations is None:
                        generations = by_topic[topic] = self._matching(topic, reader)
                    if not generations:
                        continue
                    row = messages.row(index)
                    matched = changes.merge_generations(
                        generations, key, offset, row.qos, is_own=self.is_own(row), is_retained=row.is_retained
                    )
                    if matched is None or self.is_expired(row):
                        continue
                    if not matched.qos and reader == MAIN_READER and self.was_offline_at(key, offset):
                        continue
                    if not self.has_room(matched.qos, batch):
                        return offset
                    batch.add(row, matched)
        return end

    def _select_runs(
        self,
        reader: int,
        key: ShardKey,
        messages: BlockMessages,
        offsets: range,
        first: int,
        end: int,
        batch: RowBatch,
        by_topic: dict[str, list[Generation]],
    ) -> int:
        """Adds rows of a plain block from row `first` on, of which all can be decided as runs. Returns the row from
        which on rows are looked at one by one: the first for which there is no room is among them."""
        plain, base = messages.plain, offsets.start
        assert plain is not None
        rows_end = min(len(offsets), max(first, end - base))
        spans = messages.topic_spans
        for span_start, span_end, topic in islice(spans, bisect_right(spans, first, key=itemgetter(1)), None):
            start, run_end = max(span_start, first), min(span_end, rows_end)
            if start >= run_end:
                break
            generations = by_topic.get(topic)
            if generations is None:
                generations = by_topic[topic] = self._matching(topic, reader)
            if not generations:
                continue
            decision = self._decide_run(plain, key, base + start, base + run_end, generations)
            if decision is None:
                return start
            if not decision.generation:
                continue
            if not decision.qos and reader == MAIN_READER and self.was_offline_at(key, base + start):
                return start
            room = self.room_for(decision.qos, batch)
            if room:
                # A part of the run is taken where the window ends; the rest is looked at again from its first row on.
                batch.add_run(messages, plain, base, start, min(run_end, start + room), decision)
            if room < run_end - start:
                return start + room
        return rows_end

    def _matching(self, topic: str, reader: int) -> list[Generation]:
        return [
            generation
            for generation in self.state.generations.values()
            if generation.record.reader == reader and matches(generation.record.filter, topic)
        ]

    def _reach_feed(self, reader: int, key: ShardKey, feed: ShardFeed) -> None:
        if reader == MAIN_READER:
            del self._detached[key]
            self._owed.pop(key, None)
            if self.is_durable and self.state.owed(key) != NO_OFFSET:
                self.store_position(key, max(feed.position, self.state.position(key)))
            return
        replay = self.state.generations.get(reader)
        if replay is not None:
            self.write(changes.join_replay(self.state, replay, key, feed.position))

    def store_position(self, key: ShardKey, position: int) -> None:
        """Records that nothing below the position is owed in a shard."""
        self._host.log.stage(changes.send_rows(self.state, key, (), position, position), is_lazy=True)

    async def _skip_lost(self, reader: int, key: ShardKey) -> None:
        """Retention removed what the session was owed: counted, and the reader goes on where history begins (R27)."""
        feed = self._host.feeds[key]
        position = self._reader_position(reader, key)
        start = min(max(position + 1, await feed.stream.history_start()), feed.position)
        if not self._has_job(reader, key) or self._reader_position(reader, key) != position:
            return
        metrics.MQTT_LOST.inc(start - position)
        _log.warning(
            "messages that a session was owed are gone",
            session=self.state.id, shard=str(key), start=position, end=start,
        )  # fmt: skip
        self.send_rows(key, (), start, feed.position, reader)
        if reader == MAIN_READER:
            self._detached[key] = start
            self._owed.pop(key, None)  # how much of it is lost is not known: rather too little than too much

    def write(
        self, records: Sequence[AnyRecord], on_durable: Callable[[], None] | None = None, *, is_lazy: bool = False
    ) -> None:
        """Applies records of this session; a durable one also stores them (SessionLog.stage)."""
        if self.is_durable and records:
            self._host.log.stage(records, on_durable, is_lazy=is_lazy)
            return
        self._host.log.table.apply(records)
        if on_durable is not None:
            on_durable()


class MqttSession(SessionReader):
    """The session of one client id."""

    def __init__(self, state: SessionState, host: SessionHost) -> None:
        super().__init__(state, host)
        self._link: ClientLink | None = None
        self._window = 0
        self._outgoing: deque[QueuedPackets] = deque()
        self._retained: deque[PendingRetained] = deque()
        self._online_from: dict[ShardKey, int] = {}
        self.on_room: Callable[[], None] = lambda: None  # shared groups wait for it
        self.sent_messages = 0

    # --- connection ---

    @property
    def link(self) -> ClientLink | None:
        return self._link

    def attach_link(self, link: ClientLink, window: int) -> None:
        """The client is connected; `window`: QoS 1 and 2 messages that may be in flight to it."""
        self._link = link
        self._window = window
        self._progress, self._silent_beats_max = None, limits.MQTT_SILENT_BEATS
        self._online_from = {key: feed.position for key, feed in self._host.feeds.items()}

    def detach_link(self) -> None:
        """The connection has ended. What was not sent stays in flight, or is owed."""
        self.stop()
        self._link = None
        self._outgoing.clear()
        self._retained.clear()

    # --- decisions ---

    @property
    def is_online(self) -> bool:
        return self._link is not None

    @property
    def room(self) -> int:
        """How many more QoS 1 and 2 messages may be in flight."""
        return self._window - len(self.state.in_flight)

    def has_room(self, qos: int, batch: RowBatch) -> bool:
        return self.room_for(qos, batch) > 0

    def room_for(self, qos: int, batch: RowBatch) -> int:
        if self._link is None or not self._link.can_send:
            return 0
        rows = limits.MQTT_BATCH_ROWS - batch.count
        return max(0, min(rows, self.room - batch.numbered) if qos else rows)

    @property
    def takes_runs(self) -> bool:
        return True

    def was_offline_at(self, key: ShardKey, offset: int) -> bool:
        return offset < self._online_from.get(key, 0)

    def is_own(self, row: MqttMessage) -> bool:
        return row.publisher == self.state.client_id

    # --- sending ---

    def send_rows(
        self,
        key: ShardKey,
        rows: Sequence[PendingRow | PendingRun],
        position: int,
        indexed_end: int,
        reader: int = MAIN_READER,
    ) -> None:
        has_entries = any(pending.matched.qos for pending in rows)
        is_behind = position < indexed_end or self.state.owed(key, reader) != NO_OFFSET or reader != MAIN_READER
        records: list[AnyRecord] = []
        # QoS 0 at the end of a shard moves nothing that a start would need: C is enough.
        if has_entries or is_behind:
            matched = [pending.matched for pending in rows]
            records = changes.send_rows(self.state, key, matched, position, indexed_end, reader)
        # Entries are applied before anything leaves: an ack that comes back at once must find them.
        waits = has_entries and self.is_durable
        if not waits:
            self.write(records, is_lazy=True)
        outgoing = self.queue_rows(rows, records, waits=waits)
        if waits:
            self.write(records, partial(self.mark_ready, outgoing))

    def queue_rows(
        self, rows: Sequence[PendingRow | PendingRun], records: Sequence[AnyRecord], *, waits: bool
    ) -> QueuedPackets:
        """Queues rows and runs whose entries of this session stand in `records`, in order. `waits`: until
        `mark_ready`."""
        own = (record for record in records if record.session_id == self.state.id)
        entries = (record for record in own if isinstance(record, rec.InFlightEntry | rec.InFlightRun))
        packets: list[PublishPacket | DeliveryRun] = []
        for pending in rows:
            if isinstance(pending, PendingRun):
                packet_ids: list[range] = []
                rows_left = pending.rows if pending.decision.qos else 0
                while rows_left:
                    packet_ids.append(_packet_ids_of(next(entries)))
                    rows_left -= len(packet_ids[-1])
                packets.append(pending.delivery(packet_ids))
                continue
            row, matched = pending
            packets.append(
                delivery_packet(
                    row,
                    matched.qos,
                    _packet_ids_of(next(entries)).start if matched.qos else 0,
                    is_retained=matched.is_retained,
                    identifiers=matched.identifiers,
                    age_s=self._host.message_age_s(row),
                )
            )
        return self._queue(packets, waits=waits)

    def _queue(self, packets: Sequence[PublishPacket | DeliveryRun], *, waits: bool) -> QueuedPackets:
        outgoing = QueuedPackets(packets, is_ready=not waits)
        if packets:
            self._outgoing.append(outgoing)
        if not waits:
            self._send_ready()
        return outgoing

    def mark_ready(self, outgoing: QueuedPackets) -> None:
        """The entries of what was queued are synced."""
        outgoing.is_ready = True
        self._send_ready()

    def _send_ready(self) -> None:
        link = self._link
        while link is not None and self._outgoing and self._outgoing[0].is_ready:
            for packet in self._outgoing.popleft().packets:
                too_large: Sequence[int] = ()
                if isinstance(packet, DeliveryRun):
                    self.sent_messages += packet.rows
                    too_large = link.send_run(packet)
                else:
                    self.sent_messages += 1
                    if not link.send_publish(packet) and packet.packet_id:
                        too_large = (packet.packet_id,)
                if too_large:
                    # Too large for the client: they count as delivered (MQTT-3.1.2-25).
                    self.write([rec.InFlightClosed(self.state.id, self.state.epoch, tuple(too_large))])

    def send_retained(self, values: Iterable[PendingRetained]) -> None:
        """Sends retained messages of a new subscription, in front of rows."""
        self._retained.extend(values)
        self.pump()

    def has_first(self) -> bool:
        return bool(self._retained)

    async def send_first(self) -> bool:
        rows: list[tuple[PendingRetained, rec.InFlightEntry | None]] = []
        room = self.room
        packet_ids = iter(changes.free_packet_ids(self.state, min(room, len(self._retained))) if room > 0 else [])
        while self._retained and len(rows) < limits.MQTT_BATCH_ROWS and self._link is not None and self._link.can_send:
            pending = self._retained[0]
            entry = None
            if pending.qos:
                packet_id = next(packet_ids, 0)
                if not packet_id:
                    break
                value = pending.value
                entry = rec.InFlightEntry(
                    self.state.id, self.state.epoch, packet_id, value.topic_id, value.shard, value.offset, pending.qos,
                    0, rec.InFlightState.SENT, True, pending.identifiers,
                )  # fmt: skip
            rows.append((self._retained.popleft(), entry))
        packets = [self._retained_packet(pending, entry) for pending, entry in rows]
        entries = [entry for _, entry in rows if entry is not None]
        waits = bool(entries) and self.is_durable
        if not waits:
            self.write(entries)
        outgoing = self._queue(packets, waits=waits)
        if waits:
            self.write(entries, partial(self.mark_ready, outgoing))
        return not self._retained

    def _retained_packet(self, pending: PendingRetained, entry: rec.InFlightEntry | None) -> PublishPacket:
        value = pending.value
        row = retained_row(value)
        return delivery_packet(
            row,
            pending.qos,
            entry.packet_id if entry is not None else 0,
            is_retained=True,
            identifiers=pending.identifiers,
            age_s=self._host.message_age_s(row),
        )

    # --- acks ---

    def delivery_received(self, packet_id: int) -> None:
        """PUBREC: PUBREL leaves when it is durable (hazard 54)."""
        link = self._link
        records = changes.pubrec(self.state, packet_id)
        if records and link is not None:
            self.write(records, partial(link.send_release, packet_id))
        elif link is not None:
            link.send_release(packet_id)

    def delivery_done(self, packet_id: int, reason_code: int) -> None:
        """PUBACK, PUBCOMP, or a PUBREC that refuses: the id is free."""
        entry = self.state.in_flight.get(packet_id)
        if entry is None:
            return
        is_refused = reason_code >= _FAILURE and entry.state is rec.InFlightState.SENT and entry.qos == 2
        reason = rec.ClosedReason.REFUSED if is_refused else rec.ClosedReason.ACKED
        self.write([rec.InFlightClosed(self.state.id, self.state.epoch, (packet_id,), reason)], is_lazy=True)
        self.pump()
        self.on_room()

    def deliveries_done(self, packet_ids: Sequence[int]) -> None:
        """PUBACKs with success, in the order in which they came."""
        records = changes.pubacks(self.state, packet_ids)
        if records:
            self.write(records, is_lazy=True)
            self.pump()
            self.on_room()

    def resume_sending(self) -> None:
        """The socket takes bytes again."""
        self.pump()
        self.on_room()


def _packet_ids_of(record: rec.InFlightEntry | rec.InFlightRun) -> range:
    if isinstance(record, rec.InFlightRun):
        return record.packet_ids
    return range(record.packet_id, record.packet_id + 1)


def retained_row(value: rec.RetainedValue) -> MqttMessage:
    """The message of a retained value."""
    return MqttMessage(
        value.topic, value.payload, value.qos, True, value.publisher, value.properties, value.append_time_us
    )
