"""MqttService: the sessions of a node, their subscriptions, and what happens to them over time (ADR 59, ADR 60).

    open      at the first CONNECT, or at a start whose log has sessions: topics of the routes, session log, retained
              set, feeds. A node that never met a client has none of it
    connect   one transaction: new session or next epoch, will, end of what it replaces; durable before CONNACK (59, 65)
    beat      every 10 s and MQTT_BEAT_ROWS, while there is something to record: elapsed time and marks (61, 69),
              retained messages, release of the log, the bound of lag; by time alone, the watchdog
    restore   the log of a backup is appended while nothing is open here; until its end nothing opens (ADR 83)
    timers    wills and expiry, by elapsed node time
    end       of a session: ENDING, will, what shared groups take back, ENDED; a start goes on where it stopped (R28)
    routes    other ones end every connection, close what is open and open it again, as a stop and a start (ADR 82)

If an append of the session log fails, what memory has is not what the log has: every client is disconnected without
acks, and the next CONNECT opens the log again (ADR 60).
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

from icestream import errors, limits
from icestream.broker.alarm import Alarm
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.consumed_offsets import advance_generation
from icestream.broker.mqtt.client_link import ClientLink, ConnectRequest
from icestream.broker.mqtt.connected_client import ConnectedClient, SyncBarrier
from icestream.broker.mqtt.message_routes import RouteTable, RouteTarget
from icestream.broker.mqtt.message_rows import (
    MqttMessage,
    decode_stored_properties,
    delivery_packet,
    encode_messages,
)
from icestream.broker.mqtt.mqtt_options import MqttOptions, ReplayRoute
from icestream.broker.mqtt.mqtt_session import MqttSession
from icestream.broker.mqtt.publish_burst import BurstStore
from icestream.broker.mqtt.replay_start import ReplayStart, StartKind
from icestream.broker.mqtt.retained_log import RetainedLog
from icestream.broker.mqtt.route_generations import RouteGenerations, RouteRecord
from icestream.broker.mqtt.seen_topics import SeenTopics
from icestream.broker.mqtt.shard_feed import LiveRow, SectionRows, ShardFeed, SubscriberIndex
from icestream.broker.mqtt.shared_group import GROUP_PREFIX, SharedGroup, read_row
from icestream.broker.storage import PersistentStorage
from icestream.catalog.topic_bindings import TopicBindings
from icestream.durable import session_changes as changes
from icestream.durable import session_records as rec
from icestream.durable.persistence_filter import PersistenceFilter
from icestream.durable.retained import RetainedSet
from icestream.durable.session_changes import SubscriptionOptions
from icestream.durable.session_log import SessionLog, StoredBlock
from icestream.durable.session_records import EXPIRY_NEVER, NO_OFFSET, AnyRecord, RetainedValue
from icestream.durable.session_state import MAIN_READER, SessionState
from icestream.error_codes import mqtt_reason
from icestream.metadata.store import MetadataStore
from icestream.model.block import NOT_NUMBERED, BlockHead, decode_block_head
from icestream.model.block_group import BlockGroup
from icestream.model.shard import STATE_TOPIC_ID, ShardKey, TopicIdentity
from icestream.model.topic_name import TopicName
from icestream.mqtt.connection import ConnectionEnded, ResumedDelivery
from icestream.mqtt.packets import PublishPacket
from icestream.mqtt.reason_codes import ReasonCode
from icestream.mqtt.topics import TopicFilter
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.words import escaped
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Tasks
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.resource import CLUSTER, mqtt_topic_resource, topic_resource

STATE_TOPIC: Final = TopicIdentity(STATE_TOPIC_ID, "/system/mqtt-state")
# While it exists, the session log has a part of a backup: its value is the id.
RESTORED_SESSIONS: Final = "/restores/mqtt-sessions"
_SESSIONS: Final = ShardKey(STATE_TOPIC_ID, 0)
_RETAINED: Final = ShardKey(STATE_TOPIC_ID, 1)
_BEAT_NS: Final = int(limits.MQTT_BEAT_SECONDS * 1e9)
_log = get_logger("mqtt")
Reader: TypeAlias = MqttSession | SharedGroup


class TopicProvider(Protocol):
    """What the service uses of the broker."""

    async def provide_route_topic(self, name: TopicName, shards: int) -> BrokerTopic:
        """The topic, created if it is missing. Raises TopicElsewhere if another node serves it."""

    def check_mqtt_home(self) -> None:
        """Raises TopicElsewhere if another node serves MQTT."""

    def keep_by_routes(self, replay: Iterable[ReplayRoute]) -> None:
        """Applies what the routes say that their topics keep."""

    def check_batch(self, topic: BrokerTopic, block: bytes, head: BlockHead) -> None:
        """Raises the reason for which the policies of the topic refuse a block."""

    def needs_decisions(self, topics: Iterable[BrokerTopic], largest_bytes: int) -> bool:
        """True if `check_batch` has to look at each message of at most `largest_bytes`."""


def unknown_session(client_id: str) -> errors.UnknownSession:
    return errors.UnknownSession(
        f"there is no MQTT session of client id {client_id[:100]!r} on this node",
        hint="`icestream mqtt sessions` lists them",
    )


class MqttService:
    """MQTT on one node."""

    def __init__(
        self,
        options: MqttOptions,
        topics: TopicProvider,
        storage: PersistentStorage,
        store: MetadataStore,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self.options = options
        self.storage = storage
        self.check_batch = topics.check_batch
        self.needs_decisions = topics.needs_decisions
        self._topics = topics
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._tasks = Tasks(self._task_failed)
        self._alarm = Alarm(clock, self._tasks, self._run_timers)
        self._flush_alarm = Alarm(clock, self._tasks, self._flush)
        self._opening: asyncio.Task[None] | None = None
        self._is_closing = False
        self._placed_replays = 0  # whose subscriptions are not known yet
        self._changing_routes = asyncio.Lock()
        self._generations = RouteGenerations(store)
        # Whether a will may still be published: its owner, client id, topic, and the topic that stores it.
        self.is_will_allowed: Callable[[rec.SessionOwner | None, str, str, TopicName], bool] = lambda *will: True
        self._reset()

    def _reset(self) -> None:
        """Forgets everything that is read from the log."""
        self.routes: RouteTable
        self.log: SessionLog
        self.retained = RetainedSet(self.options.retained_values_max, self.options.retained_bytes_max)
        self._retained_log = RetainedLog(self.storage, _RETAINED, self.retained)
        self.persistence = PersistenceFilter(())
        self.rows = SectionRows()
        self.bursts = BurstStore(self)
        self.index = SubscriberIndex()
        self.seen = SeenTopics()
        self.feeds: dict[ShardKey, ShardFeed] = {}
        self._sessions: dict[int, MqttSession] = {}
        self._groups: dict[str, SharedGroup] = {}
        self._clients: dict[str, ConnectedClient] = {}
        self._next_id = self._ids_end = 0
        self._base_elapsed_ms = 0
        self._base_monotonic_ns = self._clock.monotonic_ns()
        self._base_wall_us = self._clock.wall_us()
        self._timers: list[tuple[int, int]] = []
        self._unmarked_rows = 0  # that feeds have passed since the last beat
        self._marks_due = asyncio.Event()
        self._is_open = False

    # --- time ---

    def elapsed_ms(self) -> int:
        """Elapsed node time: outages do not count (hazard 69)."""
        return self._base_elapsed_ms + (self._clock.monotonic_ns() - self._base_monotonic_ns) // 1_000_000

    def wall_us(self) -> int:
        return self._clock.wall_us()

    def message_age_s(self, row: MqttMessage) -> int:
        """How long ago a row was stored, by a wall clock that does not step while the node runs (hazard 69)."""
        now_us = self._base_wall_us + (self._clock.monotonic_ns() - self._base_monotonic_ns) // 1_000
        return max(0, now_us - row.append_time_us) // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def _monotonic_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    # --- start and stop ---

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.start(work, name)

    def _task_failed(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a background task of MQTT failed", "exception": error}
        )

    async def start(self) -> None:
        """Opens the sessions of an earlier run, so that messages are noted for them before their clients are back."""
        if self.options.is_enabled and self.storage.has_shard(_SESSIONS):
            await self._ensure_open()

    async def stop(self) -> None:
        """Ends the connections with 0x8B, and writes what is staged. Sessions and wills stay (hazard 73)."""
        self._is_closing = True
        if self._opening is not None:
            await asyncio.wait({self._opening})
        await self._close(ReasonCode.SERVER_SHUTTING_DOWN, "the broker is shutting down")
        self._alarm.close()
        await self._tasks.stop()

    async def _close(self, reason_code: ReasonCode, reason: str) -> None:
        """Ends the connections, and writes what is staged. Sessions and wills stay."""
        for client in list(self._clients.values()):
            client.link.disconnect(reason_code, reason)
            if not client.is_over:
                client.close()
                self._leave(client, is_normal=False, keeps_will=True)
        for reader in [*self._sessions.values(), *self._groups.values()]:
            reader.stop()
        for feed in self.feeds.values():
            feed.close()
        if not self._is_open:
            return
        try:
            for key, feed in self.feeds.items():
                self.retained.pass_rows(key, feed.position)
            self._beat()
            self._is_open = False
            await self._retained_log.write()
            await self.log.close()
        except errors.IcestreamError as error:
            self._is_open = False
            _log.warning("the state of MQTT sessions could not be written", error=str(error))

    def begin_route_change(self, replay: tuple[ReplayRoute, ...]) -> None:
        """As `change_routes`, in the background; an error is logged, and the former routes stay in force."""
        if self._is_open or self._opening is not None:
            self._tasks.start(self._try_route_change(replay), "mqtt routes")
        else:
            self._set_routes(replay)

    def _set_routes(self, replay: tuple[ReplayRoute, ...]) -> None:
        self.options = replace(self.options, replay=replay)
        self._topics.keep_by_routes(replay)

    async def _try_route_change(self, replay: tuple[ReplayRoute, ...]) -> None:
        try:
            await self.change_routes(replay)
        except errors.IcestreamError as error:
            _log.error(
                "the routes of MQTT stay as they were", error=str(error), hint=error.hint or "set mqtt.replay again"
            )

    async def change_routes(self, replay: tuple[ReplayRoute, ...]) -> None:
        """Stores messages by other routes from now on. Clients are disconnected, and find their sessions when they
        come back; what former routes stored for a session comes first (hazard 64).

        Raises TopicElsewhere and others if a topic of the routes cannot be had: then the former ones stay in force.
        """
        async with self._changing_routes:
            if self._opening is not None:
                await asyncio.wait({self._opening})
            is_moved = [route.way for route in replay] != [route.way for route in self.options.replay]
            if self._is_open and not self._is_closing and is_moved:
                for route in replay:  # before anything has ended
                    await self._topics.provide_route_topic(TopicName.parse(route.topic), self.options.shards)
                self.options = replace(self.options, replay=replay)
                self._opening = asyncio.get_running_loop().create_task(self._reopen(), name="mqtt routes")
                self._opening.add_done_callback(self._opened)
                await asyncio.shield(self._opening)
            self._set_routes(replay)

    async def _reopen(self) -> None:
        await self._close(ReasonCode.ADMINISTRATIVE_ACTION, "messages are stored elsewhere from now on: connect again")
        if not self._is_closing:
            await self._open()

    async def _ensure_open(self) -> None:
        """Opens once; concurrent callers wait for the same attempt. Raises the reason of a failed one."""
        if self._is_open:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="mqtt open")
            self._opening.add_done_callback(self._opened)
        await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("MQTT could not be opened", error=str(error))

    async def _open(self) -> None:
        if (entry := await self._store.get(RESTORED_SESSIONS)) is not None:
            raise errors.StorageUnavailable(
                f"the MQTT sessions of backup {entry.value.decode()} are being restored",
                hint="connect when `icestream backup restore` has ended; repeat it if it was interrupted",
            )
        self._topics.check_mqtt_home()
        replay = self.options.replay
        targets: dict[TopicName, RouteTarget] = {}
        # The last first: of two nodes whose first clients come at the same time, one gets it, and all topics.
        for name in dict.fromkeys(TopicName.parse(route.topic) for route in reversed(replay)):
            topic = await self._topics.provide_route_topic(name, self.options.shards)
            targets[name] = RouteTarget(topic, tuple(map(topic.shard_key, range(topic.record.shards))))
        routes = [(route, targets[TopicName.parse(route.topic)]) for route in replay]
        await self._generations.load()
        self._reset()
        self.routes = RouteTable(routes)
        self.storage.declare_topic(STATE_TOPIC, 2)
        self.log = await SessionLog.open(self.storage, _SESSIONS)
        self.log.on_failed = self._failed
        self.log.flush_later = self._flush_later
        await self._retained_log.open()
        table = self.log.table
        self._base_elapsed_ms = table.elapsed_ms
        self._base_monotonic_ns = self._clock.monotonic_ns()
        self._base_wall_us = max(self._clock.wall_us(), table.wall_us)
        for target in targets.values():
            for key in target.keys:
                self._add_feed(key, target.native_topic)
        # Shards of routes that the settings do not name any more: sessions are still owed what they hold (hazard 64).
        for state in table.sessions.values():
            for key in state.shards() - self.feeds.keys():
                with contextlib.suppress(errors.UnknownTopic):  # deleted since: nothing of it can be sent
                    self._add_feed(key, "")
        await self._begin_generation(routes)
        self._extend_subscriptions([key for target in targets.values() for key in target.keys])
        await self._begin_views()
        self._restore_sessions()
        self.persistence.require(0)
        self.persistence.applied(0)
        self._is_open = True
        for feed in self.feeds.values():
            feed.start()
        self._tasks.start(self._run_beats(self.log), "mqtt beats")

    async def _begin_generation(self, routes: Sequence[tuple[ReplayRoute, RouteTarget]]) -> None:
        """Records the routes before they store anything, and where former ones ended (hazard 64)."""
        present = [
            RouteRecord(route.filter, route.min_qos, str(target.topic.name), target.topic.record.id, len(target.keys))
            for route, target in routes
        ]
        await self._generations.begin(present, self._end_of, self._is_owed_below)
        for key, feed in self.feeds.items():
            feed.former = self._generations.former_of(key)

    def _end_of(self, key: ShardKey) -> int | None:
        try:
            return self.storage.shard_stream(key).visible
        except errors.UnknownTopic:
            return None

    def _is_owed_below(self, key: ShardKey, offset: int) -> bool:
        """True if a session may be owed a row below an offset."""
        feed = self.feeds.get(key)
        if feed is None:
            return False
        sessions = self.log.table.sessions.values()
        return feed.offer_start < offset or any(
            state.owed(key) != NO_OFFSET and state.owed(key) < offset for state in sessions if key in state.shards()
        )

    def _extend_subscriptions(self, keys: Sequence[ShardKey]) -> None:
        """Subscriptions of earlier runs reach the shards of new routes, before anything is published there."""
        ends = {key: self.feeds[key].offer_start for key in keys}
        for state in self.log.table.sessions.values():
            if not state.is_ending:
                self.log.stage(changes.extend(state, ends))
        self.log.flush()

    def _add_feed(self, key: ShardKey, native_topic: str) -> None:
        table = self.log.table
        stream = self.storage.shard_stream(key)
        mark = table.marks.get(key)
        if mark is None:
            starts = [state.position(key) for state in table.sessions.values() if key in state.shards()]
            mark = min([stream.visible, *starts])
        start = min(mark, self.retained.applied.get(key, mark))
        self.feeds[key] = feed = ShardFeed(
            stream, native_topic, start, mark, self.index, self.rows, self._fold, self.seen, self._clock, self._failed
        )
        feed.on_moved = self._count_moved

    async def _begin_views(self) -> None:
        """What listings know of earlier runs: the topics of retained messages, and the age of what is owed."""
        self.seen.add_retained(self.retained.latest(limits.MQTT_TOPICS_SEEN_MAX))
        owed: dict[ShardKey, int] = {}
        for state in self.log.table.sessions.values():
            for key in state.shards():
                if (offset := state.owed(key)) != NO_OFFSET:
                    owed[key] = min(offset, owed.get(key, offset))
        for key, offset in owed.items():
            if key in self.feeds:
                await self.feeds[key].mark_owed(offset)

    def _restore_sessions(self) -> None:
        table = self.log.table
        if lost := changes.disconnect_all(table):
            self.log.stage(lost)
        for state in list(table.sessions.values()):
            if state.client_id.startswith(GROUP_PREFIX):
                self._groups[state.client_id] = group = SharedGroup(state, self, state.client_id)
                self._restore(group, state)
        for state in list(table.sessions.values()):
            if state.client_id.startswith(GROUP_PREFIX):
                continue
            session = self._new_session(state)
            self._restore(session, state)
            for generation in state.generations.values():
                joined = self._groups.get(generation.record.filter)
                if joined is not None and generation.is_open:
                    joined.join(session)
                    session.on_room = self._pump_groups
            if state.is_ending:
                self._finish_end(session)
            else:
                self._schedule(session)
        if not self.options.has_durable_sessions:
            self._end_restored()

    def _end_restored(self) -> None:
        """Ends the sessions of a run that had durable ones: what they do from now on would not be in the log."""
        ended = [session for session in self._sessions.values() if not session.state.is_ending]
        for session in ended:
            self._end(session)
        if ended:
            _log.warning("sessions of an earlier run have ended: durable sessions are off", sessions=len(ended))

    def _restore(self, reader: MqttSession | SharedGroup, state: SessionState) -> None:
        if state.is_ending:
            return
        shards = state.shards() & self.feeds.keys()
        reader.restore(
            {key: state.owed(key) for key in shards if state.owed(key) != NO_OFFSET},
            {key: state.position(key) for key in shards},
        )
        for generation in state.generations.values():
            record = generation.record
            if generation.is_open and record.reader == MAIN_READER and not record.filter.startswith(GROUP_PREFIX):
                self.index.put(record.filter, reader, generation)
                if record.qos:
                    self.persistence.add(record.filter, state.id)

    def _new_session(self, state: SessionState) -> MqttSession:
        session = MqttSession(state, self)
        self._sessions[state.id] = session
        return session

    def _failed(self, error: errors.IcestreamError) -> None:
        """The session log failed: nothing in memory counts any more."""
        _log.error("the session log failed; clients are disconnected and sessions are read again", error=str(error))
        clients = list(self._clients.values())
        for feed in self.feeds.values():
            feed.close()
        self._is_open = False
        for client in clients:
            client.close()
            client.session.detach_link()
            client.link.abandon(mqtt_reason(error), "the state of sessions could not be stored")
        for reader in [*self._sessions.values(), *self._groups.values()]:
            reader.stop()
        self._clients.clear()

    # --- what durable sessions have not acked ---

    @property
    def is_owing_known(self) -> bool:
        """False while durable sessions may exist that are not read, or a replay is being placed."""
        return not self._placed_replays and (self._is_open or not self.storage.has_shard(_SESSIONS))

    def first_unacked(self, key: ShardKey) -> int | None:
        """The first offset of a shard that a durable session, or a replay of one, has not acked; None if none reads
        the shard."""
        if not self._is_open:
            return None
        offsets: list[int] = []
        table = self.log.table
        for state in table.sessions.values():
            if state.is_ending or not self.log.is_stored(state.id):
                continue
            readers = {item.record.reader for item in state.generations.values() if key in item.bounds}
            offsets += [table.start_of(state, key, reader) for reader in readers]
            for record in state.in_flight.records():
                if (record.topic_id, record.shard) == key:
                    offsets.append(record.spans[0][0] if isinstance(record, rec.InFlightRun) else record.offset)
        return min(offsets, default=None)

    def write_acks(self) -> None:
        """Appends acks and positions that wait for the next write."""
        if self._is_open:
            self.log.flush()

    # --- backup and restore ---

    async def write_state(self) -> None:
        """Writes marks and retained messages now, so that a backup has them beside the messages."""
        if self._is_open:
            await self._write_marks()

    async def restore_state(self, backup_id: str, shard: int, blocks: Sequence[bytes]) -> None:
        """Appends transactions of a backup to a shard of the state topic; repeating them changes nothing.

        Raises AlreadyExists once MQTT was used on this node, Refused while another backup is restored.
        """
        entry = await self._store.get(RESTORED_SESSIONS)
        if entry is None:
            if self._is_open or self._opening is not None or self._has_state():
                raise errors.AlreadyExists(
                    "MQTT sessions exist on this node", hint="restore them into a broker that no MQTT client has met"
                )
            await self._store.put(RESTORED_SESSIONS, backup_id.encode())
        elif entry.value != backup_id.encode():
            raise errors.Refused(
                f"the MQTT sessions of backup {entry.value.decode()} are being restored", hint="complete that restore"
            )
        self.storage.declare_topic(STATE_TOPIC, 2)
        for block in blocks:
            rows = decode_block_head(block).rows
            group = BlockGroup([len(block)], [rows], [NOT_NUMBERED], [0], [NOT_NUMBERED], [1])
            await self.storage.store_group([ShardKey(STATE_TOPIC_ID, shard)], [block], group)

    def _has_state(self) -> bool:
        return any(
            self.storage.has_shard(key) and self.storage.shard_stream(key).visible for key in (_SESSIONS, _RETAINED)
        )

    async def end_restore(self, backup_id: str) -> None:
        """Opens what was restored, if MQTT is on."""
        entry = await self._store.get(RESTORED_SESSIONS)
        if entry is None or entry.value != backup_id.encode():
            return
        await self.storage.wait_durable()
        await self._store.delete(RESTORED_SESSIONS)
        await self.start()

    # --- retained messages ---

    def _fold(self, feed: ShardFeed, offset: int, row: MqttMessage) -> None:
        value = RetainedValue(
            0, 0, row.topic, *feed.key, offset, row.payload, row.qos, row.properties, row.publisher, row.append_time_us
        )
        if not self.retained.fold(value):
            metrics.MQTT_RETAINED_REFUSED.inc()

    # --- CONNECT ---

    async def connect(self, access: AccessSession, request: ConnectRequest, link: ClientLink) -> ConnectedClient:
        """Begins, resumes or takes over the session of a client.

        Raises PacketRefused for a client id that is not allowed, PermissionDenied for a will that is not,
        TopicElsewhere if another node serves MQTT, PolicyReached at the bound of sessions, SessionFenced if a newer
        connection of the same client id came meanwhile.
        """
        self._check_connect(request)
        access.require_mqtt_connect()
        await self._ensure_open()
        await self._until_caught_up()
        client_id = request.client_id or self._assigned_id()
        access.set_mqtt_client(client_id)
        if request.will is not None:
            route = self.routes.route_of(request.will.topic)
            access.require_mqtt_publish(request.will.topic, route.target.topic.name)
        expiry_s = self._expiry(request)
        owner = owner_of(access)
        new_id = await self._new_id()  # before the look at the table: nothing is awaited between look and change
        if not self._is_open:
            raise errors.NotReady("MQTT is opened again", hint="connect again in a moment")
        current = self.log.table.of_client(client_id)
        if current is not None and current.owner is not None and owner is not None:
            self._check_owner(current.owner, owner, access)
        if current is None and len(self._sessions) >= self.options.sessions_max:
            raise errors.PolicyReached(
                f"the node has {len(self._sessions)} MQTT sessions, the most that it may have",
                hint="raise mqtt.sessions_max, or shorten the expiry of sessions",
            )
        # A session without expiry ends with its connection, and a takeover is the end of that connection.
        is_ended_by_takeover = current is not None and current.is_connected and not current.expiry_s
        # The older connection first: what it still sends must not be stored behind the records of the new one.
        if (older := self._clients.pop(client_id, None)) is not None:
            older.close()
            older.session.detach_link()
            older.link.disconnect(ReasonCode.SESSION_TAKEN_OVER, "another client has connected with this client id")
        plan = changes.connect(
            self.log.table, client_id, new_id, self.elapsed_ms(),
            is_clean_start=request.is_clean_start or is_ended_by_takeover, expiry_s=expiry_s, will=request.will,
            owner=owner,
        )  # fmt: skip
        synced = SyncBarrier()
        is_stored = self.options.has_durable_sessions and bool(expiry_s or request.will is not None)
        self._write_connect(plan, is_stored=is_stored, synced=synced)
        if current is not None and current.is_ending:
            self._finish_end(self._sessions[current.id])
        state = self.log.table.sessions[plan.session_id]
        session = self._sessions.get(state.id) or self._new_session(state)
        window = min(request.receive_maximum, self.options.receive_maximum)
        client = ConnectedClient(self, access, session, link, request.version, window=window)
        client.is_present = plan.is_present
        self._clients[client_id] = client
        try:
            await client.until_synced(synced)
            if plan.is_present and not client.is_over:
                # Before anything is sent: a right may have ended while the client was away (hazard 118).
                client.hold_again()
                client.resumed = await self._resumed(session, access)
            if client.is_over:
                raise errors.SessionFenced(
                    f"another connection of client id {client_id[:100]!r} took the session over", hint="connect again"
                )
        except BaseException:  # also a front end that gave up waiting: the client is not connected
            if self._clients.get(client_id) is client and not client.is_over:
                del self._clients[client_id]
                client.close()
                self._leave(client, is_normal=False)
            raise
        return client

    def _check_owner(self, owner: rec.SessionOwner, other: rec.SessionOwner, access: AccessSession) -> None:
        """A session, with its subscriptions and backlog, belongs to its principal (hazard 115). Raises PermissionDenied
        for another one that may not alter the cluster, as one that may not disconnect a client."""
        if owner.principal != other.principal:
            access.require(Action.ALTER, CLUSTER)

    async def _until_caught_up(self) -> None:
        """Waits until the feeds have offered what was stored before a start: a subscription begins where they are.

        Raises NotReady if that takes too long, for example because rows have to come from a table that is away.
        """
        try:
            async with asyncio.timeout(limits.MQTT_CATCH_UP_SECONDS):
                for feed in list(self.feeds.values()):
                    if not feed.is_caught_up:
                        await feed.caught_up()
        except TimeoutError:
            raise errors.NotReady(
                "messages from before the start are still being looked at", hint="connect again in a moment"
            ) from None

    def _check_connect(self, request: ConnectRequest) -> None:
        if self._is_closing or not self.options.is_enabled:
            raise errors.ShuttingDown("the broker is shutting down", hint="reconnect in a moment")
        if request.client_id.startswith(GROUP_PREFIX):
            raise errors.PacketRefused(
                f"client ids may not begin with {GROUP_PREFIX}", reason_code=ReasonCode.CLIENT_IDENTIFIER_INVALID,
                hint="choose another client id",
            )  # fmt: skip

    def _assigned_id(self) -> str:
        return f"icestream-{self._randomness.token(12).hex()}"

    def _expiry(self, request: ConnectRequest) -> int:
        requested_s = self.options.session_expiry_s_default if request.expiry_s is None else request.expiry_s
        bound = self.options.session_expiry_s_max
        return min(requested_s, bound) if bound != EXPIRY_NEVER else requested_s

    async def _new_id(self) -> int:
        if self._next_id >= self._ids_end:
            block = await self._store.allocate_id("mqtt-session")
            self._next_id = block * limits.MQTT_SESSION_ID_BLOCK
            self._ids_end = self._next_id + limits.MQTT_SESSION_ID_BLOCK
        self._next_id += 1
        return self._next_id

    def _write_connect(self, plan: changes.ConnectPlan, *, is_stored: bool, synced: SyncBarrier) -> None:
        """Writes the records of a CONNECT in one transaction, with the will of the former connection if that is due
        (hazard 65)."""
        stored_ids = {record.session_id for record in plan.records if self.log.is_stored(record.session_id)}
        if is_stored:
            stored_ids.add(plan.session_id)
        stored = [record for record in plan.records if record.session_id in stored_ids]
        self.log.table.apply([record for record in plan.records if record.session_id not in stored_ids])
        if plan.fired is not None:
            self._publish_will(plan.fired, stored, synced)
        elif stored:
            self.log.stage(stored, synced.add())

    async def _resumed(self, session: MqttSession, access: AccessSession) -> list[ResumedDelivery]:
        """What a resume sends again, in the order of the first sending. What is gone, or not allowed any more, is
        closed as lost (hazards 52, 118)."""
        resumed: list[ResumedDelivery] = []
        lost: list[int] = []
        for entry in list(changes.resends(session.state)):
            if entry.state is rec.InFlightState.RELEASED:
                resumed.append(ResumedDelivery(entry.packet_id, None))
                continue
            key = rec.shard_of(entry)
            row = await read_row(self, key, entry.offset) if key in self.feeds else None
            if row is None or not self._may_receive(access, row.topic):
                lost.append(entry.packet_id)
                continue
            packet = delivery_packet(
                row, entry.qos, entry.packet_id, is_retained=entry.is_retained, identifiers=entry.identifiers,
                age_s=self.message_age_s(row), is_duplicate=True,
            )  # fmt: skip
            resumed.append(ResumedDelivery(entry.packet_id, packet))
        if lost:
            metrics.MQTT_LOST.inc(len(lost))
            session.write(changes.lose(session.state, lost))
        return resumed

    def _may_receive(self, access: AccessSession, topic: str) -> bool:
        routes = [topic_resource(self.routes.route_of(topic).target.topic.name)]
        resource = mqtt_topic_resource(topic)
        return access.decide(Action.CONSUME, resource, is_recorded=False, routes=routes).is_allowed

    def began(self, client: ConnectedClient) -> None:
        """The client may receive deliveries: shared groups give it its part."""
        for group in self._groups_of(client.session):
            group.pump()

    def _groups_of(self, session: MqttSession) -> list[SharedGroup]:
        return [group for group in self._groups.values() if session in group.members]

    # --- the end of a connection ---

    def ended(self, client: ConnectedClient, ended: ConnectionEnded) -> None:
        """The connection of a client ended by itself."""
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]
            self._leave(client, is_normal=not ended.is_will_due, expiry_s=ended.session_expiry_seconds)

    def _leave(
        self, client: ConnectedClient, *, is_normal: bool, expiry_s: int | None = None, keeps_will: bool = False
    ) -> None:
        session = client.session
        session.detach_link()
        state = session.state
        records = changes.disconnect(state, self.elapsed_ms(), is_normal=is_normal, expiry_s=expiry_s)
        self._write_any(session, records)
        if keeps_will:
            return
        if not state.expiry_s:
            self._end(session)
        else:
            self._check_timers(session, self.elapsed_ms())

    def _write_any(self, session: MqttSession, records: Sequence[AnyRecord]) -> None:
        """Writes records of a session that may be stored only because of its will."""
        if self.log.is_stored(session.state.id):
            self.log.stage(records)
        else:
            self.log.table.apply(records)

    # --- timers ---

    def _schedule(self, session: MqttSession) -> None:
        """Wakes up for the will or the expiry of a session, whichever is due first."""
        due = [at for at in (changes.will_ms(session.state), changes.expiry_ms(session.state)) if at is not None]
        if due:
            self._wake_at(min(due), session.state.id)

    def _wake_at(self, due_ms: int, session_id: int) -> None:
        heapq.heappush(self._timers, (due_ms, session_id))
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._timers and not self._is_closing:
            self._alarm.set(self._monotonic_ms() + self._timers[0][0] - self.elapsed_ms())

    def _flush_later(self, seconds: float) -> None:
        self._flush_alarm.set(self._monotonic_ms() + int(1000 * seconds))

    def _flush(self) -> None:
        if self._is_open:
            self.log.flush()

    def _run_timers(self) -> None:
        now_ms = self.elapsed_ms()
        due: set[int] = set()
        while self._timers and self._timers[0][0] <= now_ms:
            due.add(heapq.heappop(self._timers)[1])
        for session_id in due:
            if self._is_open and (session := self._sessions.get(session_id)) is not None:
                try:
                    self._check_timers(session, now_ms)
                except Exception as error:  # noqa: BLE001 (a fault of one session must not stop the timers of all)
                    _log.error("the will or the expiry of a session failed", session=session_id, error=repr(error))
                    self._task_failed(error)
                    self._wake_at(now_ms + int(1000 * limits.MQTT_BEAT_SECONDS), session_id)
        self._set_alarm()

    def _check_timers(self, session: MqttSession, now_ms: int) -> None:
        """Publishes the will of a session whose delay is over, and ends a session that has expired or is ending."""
        state = session.state
        if state.is_ending:
            self._finish_end(session)
            return
        expiry = changes.expiry_ms(state)
        if expiry is not None and expiry <= now_ms:
            metrics.MQTT_SESSIONS_EXPIRED.inc()
            self._end(session)
            return
        will = changes.will_ms(state)
        if will is not None and will <= now_ms and not self._fire_will(session):
            self._wake_at(now_ms + int(1000 * limits.MQTT_END_RETRY_SECONDS), state.id)
            return
        self._schedule(session)

    # --- what operators do ---

    async def kick(self, client_id: str, *, delete_session: bool) -> bool:
        """Ends the connection of a client with 0x98, and its session if `delete_session`; True if it was connected.

        Durable when it returns. Raises UnknownSession, and InvalidInput for a shared subscription.
        """
        if client_id.startswith(GROUP_PREFIX):
            raise errors.InvalidInput(
                f"{client_id[:100]!r} is a shared subscription, not a client", hint="kick its members instead"
            )
        state = self.log.table.of_client(client_id) if self._is_open else None
        if state is None:
            raise unknown_session(client_id)
        was_connected = self._end_connection(client_id, ReasonCode.ADMINISTRATIVE_ACTION, "ended by an operator")
        session = self._sessions.get(state.id)
        if delete_session and session is not None:
            self._end(session)
        self.log.flush()
        await self.storage.wait_durable()
        return was_connected

    def _end_connection(self, client_id: str, reason_code: ReasonCode, reason: str) -> bool:
        """Ends the connection of a client with a reason; False if it has none. Its will is due."""
        client = self._clients.get(client_id)
        if client is None:
            return False
        client.link.disconnect(reason_code, reason)
        if not client.is_over:
            client.close()
            del self._clients[client_id]
            self._leave(client, is_normal=False)
        return True

    async def clear_retained(self, topics: Sequence[str]) -> None:
        """Clears the retained messages of topics as a client does, by empty ones, which become rows. Durable when it
        returns, and the retained set is without them. Raises Refused."""
        by_shard: dict[ShardKey, list[str]] = {}
        for topic in topics:
            by_shard.setdefault(self.routes.route_of(topic).key, []).append(topic)
        for key, own in by_shard.items():
            route = self.routes.route_of(own[0])
            packets = [PublishPacket(topic, b"", 0, 0, True) for topic in own]
            block = encode_messages(packets, "", self.wall_us())
            head = decode_block_head(block)
            self.check_batch(route.target.topic, block, head)
            await self.storage.wait_for_room(len(block))
            await self.storage.store_messages(key, block, head)
            await self.feeds[key].caught_up()
        await self.storage.wait_durable()

    @property
    def retained_shard(self) -> ShardKey:
        """The shard of the state topic with the retained messages."""
        return _RETAINED

    async def retained_places(self, topic_id: int) -> list[tuple[int, int]]:
        """Shard and offset of the rows of an Icestream topic that are retained messages, in order. Raises the reason
        for which MQTT cannot be opened, if this node has its state."""
        if self._has_state():
            await self._ensure_open()
        return self.retained.places(topic_id) if self._is_open else []

    async def forget_retained(self, topic_id: int, places: AbstractSet[tuple[int, int]]) -> int:
        """Drops the retained messages of erased rows; returns how many. Raises NotReady."""
        return await self._retained_log.forget(topic_id, places) if self._is_open else 0

    async def find_table(self, topic_id: int) -> list[str] | None:
        """The name of the table of a topic in the embedded catalog, by levels; None if it has none there."""
        table = await TopicBindings(self._store).find_table(topic_id)
        return None if table is None else [*table.namespace, table.name]

    # --- wills ---

    def _fire_will(self, session: MqttSession) -> bool:
        """Publishes the will of a session, once; False if the log takes nothing now."""
        will = session.state.will
        if will is None:
            return True
        records = changes.fire_will(session.state)
        is_stored = self.log.is_stored(session.state.id)
        try:
            self._publish_will(will, records if is_stored else ())
        except errors.IcestreamError as error:
            _log.warning("a will could not be published now", session=session.state.id, error=str(error))
            return not isinstance(error, errors.Refused)
        if not is_stored:
            self.log.table.apply(records)
        return True

    def _publish_will(self, will: rec.WillSet, records: Sequence[AnyRecord], synced: SyncBarrier | None = None) -> None:
        """Stores a will and the records that close it, in one WAL record. Raises Refused."""
        on_durable = synced.add() if synced is not None and records else None
        client_id = self.log.table.sessions[will.session_id].client_id
        properties = decode_stored_properties(will.properties)
        packet = PublishPacket(will.topic, will.payload, will.qos, 0, will.is_retained, False, properties)
        route = self.routes.route_of(will.topic)
        owner = self.log.table.sessions[will.session_id].owner
        # Decided when it is published, not at CONNECT: the grant may have ended since (hazard 113).
        if not self.is_will_allowed(owner, client_id, will.topic, route.target.topic.name):
            _log.warning("a will is not published: its client may not publish to the topic any more", topic=will.topic)
            if records:  # closed all the same: it must not fire after the next start
                self.log.stage(records, on_durable)
            return
        metrics.MQTT_WILLS.inc()
        if will.qos >= route.min_qos or will.is_retained or self.persistence.must_store(will.topic, will.qos):
            block = encode_messages([packet], client_id, self.wall_us())
            if records:
                self.log.write(records, StoredBlock(route.key, block), on_durable)
            else:
                self.storage.store_messages(route.key, block)
            return
        if records:
            self.log.stage(records, on_durable)
        row = MqttMessage(will.topic, will.payload, will.qos, False, client_id, will.properties, self.wall_us())
        self.feeds[route.key].add_live(LiveRow(row, lambda is_taken: None))

    # --- the end of a session ---

    def _end(self, session: MqttSession) -> None:
        """Begins the end of a session: its client id may have another one from now on."""
        if not session.state.is_ending:
            self._write_any(session, changes.end_session(session.state))
        self._finish_end(session)

    def _finish_end(self, session: MqttSession) -> None:
        """Goes on with the end of a session; tried again later where it has to wait. Each step may be repeated."""
        state = session.state
        session.stop()
        self._forget_subscriptions(session)
        shared = {text: group for text, group in self._groups.items() if session in group.members}
        for text, group in shared.items():
            numbers = {item.record.number for item in state.generations.values() if item.record.filter == text}
            group.leave(session)
            group.return_entries(state, [entry for entry in state.in_flight.values() if entry.generation in numbers])
            group.store_positions()  # behind it: what is given back holds the position
            self._end_empty_group(group)
        if not self._fire_will(session) or any(group.holds_entries_of(state) for group in self._groups.values()):
            self._wake_at(self.elapsed_ms() + int(1000 * limits.MQTT_END_RETRY_SECONDS), state.id)
            return
        if state.will is None and state.id in self._sessions:
            is_stored = self.log.is_stored(state.id)
            records = changes.forget_session(state)
            del self._sessions[state.id]
            if is_stored:
                self.log.stage(records)
            else:
                self.log.table.apply(records)

    def _forget_subscriptions(self, session: MqttSession) -> None:
        for generation in session.state.generations.values():
            topic_filter = generation.record.filter
            if not topic_filter.startswith(GROUP_PREFIX):
                self.index.remove(topic_filter, session)
                self.persistence.remove(topic_filter, session.state.id)

    # --- subscriptions ---

    def subscription_count(self, session: MqttSession | SharedGroup) -> int:
        """The open subscriptions of a session, shared ones included."""
        generations = session.state.generations.values()
        return sum(1 for generation in generations if generation.is_open and not generation.record.reader)

    def subscribe(
        self,
        session: MqttSession | SharedGroup,
        topic_filter: str,
        options: SubscriptionOptions,
        synced: SyncBarrier,
        replay_starts: Mapping[ShardKey, int] | None = None,
    ) -> None:
        """Subscribes from where the feeds are. `synced` gets a part for what must be durable before SUBACK."""
        state = session.state
        ends = {key: feed.position for key, feed in self.feeds.items()}
        records = changes.subscribe(state, topic_filter, options, ends, replay_starts)
        if not records:
            return
        session.write(records, synced.add())
        generation = state.open_generation(topic_filter)
        assert generation is not None, "it was subscribed a moment ago"
        self.index.put(topic_filter, session, generation)
        # Also for a QoS 0 subscription that was one of QoS 1: what is stored stays a superset until it ends.
        if options.qos and session.is_kept:
            self.persistence.add(topic_filter, state.id)

    @contextlib.asynccontextmanager
    async def placing_replay(self, start: ReplayStart) -> AsyncIterator[dict[ShardKey, int]]:
        """The first offset of a replay in each shard, until it is subscribed: nothing goes meanwhile because all that
        are known have acked it (hazard 87)."""
        self._placed_replays += 1
        try:
            await advance_generation(self._store, [target.topic for target in self.routes.targets])
            yield await self._replay_starts(start)
        finally:
            self._placed_replays -= 1

    async def _replay_starts(self, start: ReplayStart) -> dict[ShardKey, int]:
        """The first offset of a replay in each shard; the time is resolved once (hazard 71)."""
        starts: dict[ShardKey, int] = {}
        for key, feed in self.feeds.items():
            stream = feed.stream
            match start.kind:
                case StartKind.EARLIEST:
                    offset = await stream.history_start()
                case StartKind.AGE_US:
                    offset = await stream.offset_for_time(max(0, self.wall_us() - start.value))
                case StartKind.TIME_US:
                    offset = await stream.offset_for_time(start.value)
                case StartKind.OFFSET:
                    offset = max(start.value, await stream.history_start())
                case StartKind.SNAPSHOT:
                    offset = await stream.offset_after_snapshot(start.value)
            starts[key] = min(offset, feed.position)
        return starts

    def unsubscribe(self, session: MqttSession, parsed: TopicFilter, synced: SyncBarrier | None) -> bool:
        """Ends a subscription; False if there is none. What was stored before is still sent."""
        state = session.state
        if parsed.is_shared:
            return self._leave_group(session, parsed.text, synced)
        ends = {key: feed.position for key, feed in self.feeds.items()}
        if state.open_generation(parsed.filter) is None:
            return False
        session.flush()
        records = changes.unsubscribe(state, parsed.filter, ends)
        self.index.remove(parsed.filter, session)
        self.persistence.remove(parsed.filter, state.id)
        session.write(records, synced.add() if synced is not None else None)
        return True

    def revoke(self, session: MqttSession, parsed: TopicFilter) -> None:
        """Ends a subscription whose right has ended; what was stored before is not sent (hazard 113)."""
        if parsed.is_shared:
            self._leave_group(session, parsed.text, None)
            return
        session.flush()
        if session.state.open_generation(parsed.filter) is not None:
            self.index.remove(parsed.filter, session)
            self.persistence.remove(parsed.filter, session.state.id)
        if records := changes.revoke(session.state, parsed.filter):
            session.write(records, None)

    # --- shared subscriptions ---

    def join_group(
        self, session: MqttSession, parsed: TopicFilter, options: SubscriptionOptions, synced: SyncBarrier
    ) -> None:
        """Makes a session a member of a shared group, which begins with its first member."""
        text = parsed.text
        group = self._groups.get(text)
        if group is None:
            group = self._groups[text] = self._new_group(session, parsed, synced)
        elif session.is_kept and not group.is_kept:
            self._keep_group(group, synced)
        records = changes.subscribe(session.state, text, options, {})
        if records:
            session.write(records, synced.add())
        group.join(session)
        session.on_room = self._pump_groups

    def _pump_groups(self) -> None:
        for group in self._groups.values():
            group.store_positions()
            group.pump()

    def _new_group(self, session: MqttSession, parsed: TopicFilter, synced: SyncBarrier) -> SharedGroup:
        self._next_id += 1
        expiry_s = EXPIRY_NEVER if session.is_kept else 0
        begin = rec.SessionRecord(self._next_id, 1, parsed.text, expiry_s)
        if session.is_durable:
            self.log.stage([begin], synced.add())
        else:
            self.log.table.apply([begin])
        group = SharedGroup(self.log.table.sessions[begin.session_id], self, parsed.text)
        self.subscribe(group, parsed.filter, SubscriptionOptions(2), synced)
        return group

    def _keep_group(self, group: SharedGroup, synced: SyncBarrier) -> None:
        """The first member with an expiry joins a group of members without: a durable group is written whole."""
        group.state.expiry_s = EXPIRY_NEVER
        if group.is_durable:
            self.log.stage(list(group.state.records()), synced.add())
        else:
            self.log.table.apply(list(group.state.records()))
        # The record has replaced the state: the group goes on with the same entries.
        group.state = self.log.table.sessions[group.state.id]
        for generation in group.state.generations.values():
            self.index.put(generation.record.filter, group, generation)
            self.persistence.add(generation.record.filter, group.state.id)

    def _leave_group(self, session: MqttSession, text: str, synced: SyncBarrier | None) -> bool:
        group = self._groups.get(text)
        generation = session.state.open_generation(text)
        if group is None or generation is None:
            return False
        state, number = session.state, generation.record.number
        group.leave(session)
        session.write([rec.GenerationEnded(state.id, state.epoch, number)], synced.add() if synced else None)
        self._end_empty_group(group)
        return True

    def _end_empty_group(self, group: SharedGroup) -> None:
        if group.members or group.has_first():
            return
        group.stop()
        state = group.state
        for generation in state.generations.values():
            self.index.remove(generation.record.filter, group)
            self.persistence.remove(generation.record.filter, state.id)
        self._groups.pop(group.text, None)
        records = [*changes.end_session(state), rec.SessionEnded(state.id, state.epoch)]
        if self.log.is_stored(state.id):
            self.log.stage(records)
        else:
            self.log.table.apply(records)

    # --- beats ---

    async def _run_beats(self, log: SessionLog) -> None:
        """Until `log` has failed: the next one has beats of its own."""
        due_ns = self._clock.monotonic_ns() + _BEAT_NS
        while True:
            await self._until_beat(due_ns)
            if not self._is_open or self.log is not log:
                return
            try:
                is_timed = self._clock.monotonic_ns() >= due_ns
                if is_timed:
                    due_ns = self._clock.monotonic_ns() + _BEAT_NS
                    await self._repair_silent()
                await self._write_marks()
                if is_timed:
                    await self.log.refresh(limits.SESSION_REFRESH_BYTES)
                    await self.log.release()
                    await self._end_lagging()
            except errors.IcestreamError as error:
                _log.warning("the state of MQTT sessions could not be written", error=str(error))
            except Exception as error:  # noqa: BLE001 (without beats the log is never released)
                self._task_failed(error)

    async def _until_beat(self, due_ns: int) -> None:
        """Waits for that time, or for as many rows as a start should not have to look at again."""
        seconds = (due_ns - self._clock.monotonic_ns()) / 1e9
        waits = {asyncio.ensure_future(self._marks_due.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _count_moved(self, rows: int) -> None:
        self._unmarked_rows += rows
        if self._unmarked_rows >= limits.MQTT_BEAT_ROWS:
            self._marks_due.set()

    async def _write_marks(self) -> None:
        """Records how far feeds and retained set are: what is below is not looked at by a start."""
        self._unmarked_rows = 0
        self._marks_due.clear()
        self._beat()
        for key, feed in self.feeds.items():
            self.retained.pass_rows(key, feed.position)
        await self._retained_log.write()

    def _beat(self) -> None:
        """Records elapsed time and marks, if a start would need them."""
        table = self.log.table
        for group in self._groups.values():
            group.store_positions()
        marks = {key: feed.position for key, feed in self.feeds.items()}
        is_stored = any(self.log.is_stored(session_id) for session_id in table.sessions)
        if is_stored or (table.marks and marks != table.marks):
            self.log.stage(changes.beat(table, self.elapsed_ms(), self._clock.wall_us(), marks))

    async def _end_lagging(self) -> None:
        """Ends sessions that are owed more bytes than they may be; a shared group loses its backlog (R15)."""
        bytes_max = self.options.session_lag_bytes_max
        if not bytes_max:
            return
        async for reader in _in_slices([*self._sessions.values(), *self._groups.values()]):
            state = reader.state
            if not reader.is_kept or (owed_bytes := reader.owed_bytes) <= bytes_max or state.is_ending:
                continue
            metrics.MQTT_LAGGED.inc()
            metrics.MQTT_LOST.inc(reader.owed_messages)
            _log.warning(
                "a session lost its backlog, because it lagged too much",
                session=state.id, client_id=escaped(state.client_id[:100]), messages=reader.owed_messages,
                bytes=owed_bytes, hint="raise mqtt.session_lag_bytes_max, or let the client come back earlier",
            )  # fmt: skip
            if isinstance(reader, SharedGroup):
                reader.drop_backlog()
                continue
            self._end_connection(state.client_id, ReasonCode.QUOTA_EXCEEDED, "the session lagged too much")
            self._end(reader)

    async def _repair_silent(self) -> None:
        """The watchdog: a session with room and a backlog that does not come on is started again (hazard 71). A session
        that is away has no room: nothing is done for it."""
        connected = [client.session for client in self._clients.values()]
        async for reader in _in_slices([*connected, *self._groups.values()]):
            if reader.watch():
                metrics.MQTT_REPAIRS.inc()
                _log.error("a session with room did not read what it was owed", session=reader.state.id)
                reader.repair()

    # --- views ---

    def check_home(self) -> None:
        """Raises TopicElsewhere if another node serves MQTT: the sessions are there."""
        self._topics.check_mqtt_home()

    def uses_topic(self, topic: BrokerTopic) -> bool:
        """True if a route stores messages in the topic, or sessions are owed messages of it."""
        if not self._is_open:
            return False
        keys = [key for key in self.feeds if key.topic_id == topic.record.id]
        return any(target.topic.name == topic.name for target in self.routes.targets) or any(map(self._is_owed, keys))

    def _is_owed(self, key: ShardKey) -> bool:
        """True if a session has to read, or to send again, what a shard holds."""
        in_flight = (record for state in self.log.table.sessions.values() for record in state.in_flight.records())
        return self._is_owed_below(key, self.feeds[key].stream.visible) or any(
            (record.topic_id, record.shard) == key for record in in_flight
        )

    @property
    def sessions(self) -> Mapping[int, MqttSession]:
        return self._sessions

    @property
    def groups(self) -> Mapping[str, SharedGroup]:
        return self._groups

    @property
    def clients(self) -> Mapping[str, ConnectedClient]:
        return self._clients

    @property
    def is_open(self) -> bool:
        return self._is_open


async def _in_slices(readers: Sequence[Reader]) -> AsyncIterator[Reader]:
    """The readers; the loop has other turns in between, because a node may have 100,000 sessions (hazard 61)."""
    for number, reader in enumerate(readers, 1):
        yield reader
        if not number % limits.MQTT_BEAT_SLICE:
            await asyncio.sleep(0)


def owner_of(access: AccessSession) -> rec.SessionOwner | None:
    """Whose session a connection has; None while there are no accounts."""
    if access.is_unrestricted:
        return None
    identity = access.identity
    return rec.SessionOwner(str(identity.principal), identity.roles, dict(identity.claims))
