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

A session without expiry writes no records: its changes are applied in memory. Its messages come from the log as well.
Without durable sessions this is so for all, and those with an expiry are kept in memory until the broker ends.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from icestream import errors, limits
from icestream.broker.mqtt.client_link import ClientLink
from icestream.broker.mqtt.message_rows import MqttMessage, delivery_packet, expiry_seconds
from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.broker.mqtt.shard_feed import SectionRows, ShardFeed
from icestream.broker.storage import ShardStream
from icestream.durable import session_changes as changes
from icestream.durable import session_records as rec
from icestream.durable.session_changes import MatchedRow
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


class PendingRow(NamedTuple):
    """A row that is to be sent."""

    row: MqttMessage
    matched: MatchedRow


class RowBatch:
    """Rows that are sent together, and how many of them have QoS 1 or 2."""

    __slots__ = ("numbered", "rows")

    def __init__(self) -> None:
        self.rows: list[PendingRow] = []
        self.numbered = 0

    def add(self, row: MqttMessage, matched: MatchedRow) -> None:
        self.rows.append(PendingRow(row, matched))
        self.numbered += matched.qos > 0


class PendingRetained(NamedTuple):
    """A retained message for a new subscription."""

    value: rec.RetainedValue
    qos: int
    identifiers: tuple[int, ...]


class QueuedPackets:
    """Packets that leave together. `is_ready`: their entries are synced."""

    __slots__ = ("is_ready", "packets")

    def __init__(self, packets: Sequence[PublishPacket], is_ready: bool) -> None:
        self.packets = packets
        self.is_ready = is_ready


_EMPTY: Final = RowBatch()


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

    def send_rows(
        self, key: ShardKey, rows: Sequence[PendingRow], position: int, indexed_end: int, reader: int = MAIN_READER
    ) -> None:
        """Sends rows, and moves the position of a reader in a shard."""
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
            if matched.qos and self.is_kept:
                self.detach(key, offset)
                self._owe(key, row)
            return
        if self.is_expired(row):
            return
        if self._batch_key != key:
            self.flush()
        if not self.has_room(matched.qos, self._batch) or (self._detached and self._former_jobs()):
            self.detach(key, offset)
            self._owe(key, row)
            return
        self._batch_key = key
        self._batch.add(row, matched)

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
            self._batch, self._batch_key = RowBatch(), None
            end = rows[-1].matched.offset + 1
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
        """Shards of the oldest former route that it has not read to the end: what came later waits (hazard 64)."""
        feeds = self._host.feeds
        former = [key for key in self._detached if key in feeds and feeds[key].is_former]
        oldest = min((key.topic_id for key in former), default=0)
        return [(MAIN_READER, key) for key in former if key.topic_id == oldest]

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
        batch = RowBatch()
        position = self._select(reader, feed, sections, position, end, batch)
        if reader == MAIN_READER and (owed := self._owed.get(key)) is not None:
            for pending in batch.rows:
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
                for index in range(bisect_left(offsets, position), bisect_left(offsets, end)):
                    offset, topic = offsets[index], topics[index]
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
        if self._link is None or not self._link.can_send or len(batch.rows) >= limits.MQTT_BATCH_ROWS:
            return False
        return not qos or batch.numbered < self.room

    def was_offline_at(self, key: ShardKey, offset: int) -> bool:
        return offset < self._online_from.get(key, 0)

    def is_own(self, row: MqttMessage) -> bool:
        return row.publisher == self.state.client_id

    # --- sending ---

    def send_rows(
        self, key: ShardKey, rows: Sequence[PendingRow], position: int, indexed_end: int, reader: int = MAIN_READER
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

    def queue_rows(self, rows: Sequence[PendingRow], records: Sequence[AnyRecord], *, waits: bool) -> QueuedPackets:
        """Queues rows whose entries of this session stand in `records`, in order. `waits`: until `mark_ready`."""
        own = (record for record in records if record.session_id == self.state.id)
        packet_ids = (record.packet_id for record in own if isinstance(record, rec.InFlightEntry))
        packets = [
            delivery_packet(
                row,
                matched.qos,
                next(packet_ids) if matched.qos else 0,
                is_retained=matched.is_retained,
                identifiers=matched.identifiers,
                age_s=self._host.message_age_s(row),
            )
            for row, matched in rows
        ]
        return self._queue(packets, waits=waits)

    def _queue(self, packets: Sequence[PublishPacket], *, waits: bool) -> QueuedPackets:
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
                self.sent_messages += 1
                if not link.send_publish(packet) and packet.packet_id:
                    # Too large for the client: it counts as delivered (MQTT-3.1.2-25).
                    closed = rec.InFlightClosed(self.state.id, self.state.epoch, (packet.packet_id,))
                    self.write([closed])

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

    def resume_sending(self) -> None:
        """The socket takes bytes again."""
        self.pump()
        self.on_room()


def retained_row(value: rec.RetainedValue) -> MqttMessage:
    """The message of a retained value."""
    return MqttMessage(
        value.topic, value.payload, value.qos, True, value.publisher, value.properties, value.append_time_us
    )
