"""ConnectedClient: one connection of a session (ClientSession of client_link.py). What packets do.

    PUBLISH     rights, route, shard. Stored: the messages of a run for one shard are one block; QoS 2 is a block of its
                own with the note of its id in one WAL record (hazards 53, 63). Not stored: offered live (57).
                While the log has no room, messages are parked in order (67); a refusal is the reason code of the ack
    SUBSCRIBE   rules, rights, bounds; the subscription begins where the feeds are, so that retained set and rows join
                without a gap (62). SUBACK leaves when it is durable, then retained messages, then rows

A connection that was taken over ignores everything: the epoch of its session is an older one (hazard 59).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from icestream import errors, limits
from icestream.broker.mqtt.client_link import ClientLink, PublishRoute, ReceivedMessage
from icestream.broker.mqtt.message_routes import TopicRoute
from icestream.broker.mqtt.message_rows import MqttMessage, encode_messages
from icestream.broker.mqtt.mqtt_session import MqttSession, PendingRetained, retained_row
from icestream.broker.mqtt.replay_start import ReplayStart, parse_replay_start
from icestream.broker.mqtt.shard_feed import LiveRow
from icestream.durable import session_changes as changes
from icestream.durable.session_changes import SubscriptionOptions
from icestream.durable.session_log import StoredBlock
from icestream.error_codes import mqtt_reason
from icestream.model.block import BlockHead, decode_block_head
from icestream.model.shard import ShardKey
from icestream.mqtt import packets
from icestream.mqtt.connection import ConnectionEnded, ResumedDelivery
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import encode_properties
from icestream.mqtt.reason_codes import PUBACK_CODES, SUBACK_CODES, ReasonCode, nearest_reason
from icestream.mqtt.topics import TopicFilter, parse_filter
from icestream.observability import metrics
from icestream.security.access_session import AccessSession
from icestream.wal.receipt import Receipt

if TYPE_CHECKING:
    from icestream.broker.mqtt.mqtt_service import MqttService

REPLAY_PROPERTY: Final = "replay-from"
# Topics that are no messages between clients.
_RESERVED_TOPICS: Final = ("$SYS/", "$share/", "$replay/")


class SyncBarrier:
    """Waits until all records of one request are synced."""

    def __init__(self) -> None:
        self._open = 0
        self._waiter: asyncio.Future[None] | None = None

    def add(self) -> Callable[[], None]:
        """Returns what is called when one more part is synced."""
        self._open += 1
        return self._done

    def _done(self) -> None:
        self._open -= 1
        if not self._open and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        if self._open:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def abandon(self) -> None:
        """Ends the wait: the connection is over, and the log may never report."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _StoreJob:
    """Messages of one client for one shard, in their order: a run of QoS 0 and 1, or one of QoS 2."""

    __slots__ = ("is_qos2", "messages", "route")

    def __init__(self, route: TopicRoute, messages: list[ReceivedMessage], is_qos2: bool = False) -> None:
        self.route = route
        self.messages = messages
        self.is_qos2 = is_qos2


class ConnectedClient:
    """A connected client and its session."""

    def __init__(
        self, service: MqttService, access: AccessSession, session: MqttSession, link: ClientLink,
        version: ProtocolVersion, *, window: int,
    ) -> None:  # fmt: skip
        self._service = service
        self._access = access
        self.session = session
        self.link = link
        self._version = version
        self._window = window
        self.epoch = session.state.epoch
        self.is_present = False
        self.resumed: Sequence[ResumedDelivery] = ()
        self.is_over = False
        self.connected_ms = service.elapsed_ms()
        self._parked: deque[ReceivedMessage] = deque()
        self._unparking: asyncio.Task[None] | None = None
        self._holds: dict[str, int] = {}  # by filter, as the client wrote it
        self._awaited: SyncBarrier | None = None
        self._burst_token: object = None  # the policy with which routes were resolved last

    @property
    def client_id(self) -> str:
        return self.session.state.client_id

    @property
    def received_ids(self) -> Sequence[int]:
        return list(self.session.state.received)

    @property
    def address(self) -> str:
        return self.link.address

    @property
    def parked_messages(self) -> int:
        """Messages of the client that wait for room in the log."""
        return len(self._parked)

    @property
    def version(self) -> ProtocolVersion:
        return self._version

    def begin(self) -> None:
        """Attaches the connection to its session when CONNACK has left: deliveries begin."""
        if not self.is_over:
            self.session.attach_link(self.link, self._window)
            self._service.began(self)
            self.session.pump()

    def end(self, ended: ConnectionEnded) -> None:
        """Ends the connection for a reason, which decides about the will and the expiry of the session."""
        if not self.is_over:
            self.close()
            self._service.ended(self, ended)

    def close(self) -> None:
        """Detaches the connection from its session: packets are ignored from now on, and its rights are released."""
        self.is_over = True
        self._parked.clear()
        if self._awaited is not None:
            self._awaited.abandon()
        if self._unparking is not None:
            self._unparking.cancel()
        for hold in self._holds.values():
            self._access.release(hold)
        self._holds.clear()

    # --- PUBLISH ---

    def publish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Stores or offers messages; each is settled at its link when its outcome is known."""
        if self.is_over:
            return
        if self._parked:
            self._parked.extend(messages)
        else:
            self._publish(messages)

    def _publish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Stores messages, in each shard in their order; from the first that finds no room on they are parked."""
        jobs: list[_StoreJob] = []
        runs: dict[ShardKey, _StoreJob] = {}  # of QoS 0 and 1, which the next message of the shard joins
        for message in messages:
            packet = message.packet
            try:
                route = self._admit(packet.topic)
            except errors.IcestreamError as error:
                self._refuse([message], error)
                if self._version is not ProtocolVersion.V5:
                    break  # the connection closes: nothing behind it may be stored (hazard 66)
                continue
            if not self._must_store(packet, route):
                self._publish_live(message, route)
            elif packet.qos == 2:
                runs.pop(route.key, None)
                jobs.append(_StoreJob(route, [message], is_qos2=True))
            elif (run := runs.get(route.key)) is not None:
                run.messages.append(message)
            else:
                runs[route.key] = _StoreJob(route, [message])
                jobs.append(runs[route.key])
        self._service.log.flush()  # session records that wait for a write share the record of the log with these blocks
        for index, job in enumerate(jobs):
            waiting = self._store_qos2(job) if job.is_qos2 else self._store_run(job.route, job.messages)
            if waiting:
                self._park([*waiting, *(message for other in jobs[index + 1 :] for message in other.messages)])
                return

    # --- bursts ---

    @property
    def takes_bursts(self) -> bool:
        """False while a message of this client needs a decision of its own (BurstStore)."""
        access = self._access
        return (
            not self.is_over and not self._parked and access.closed is None and access.policy_token is self._burst_token
        )

    def publish_route(self, topic: str) -> PublishRoute | None:
        """Returns the shards to which the wire may send messages of a topic in bursts; None: each is handed over."""
        if self.is_over:
            return None
        service = self._service
        try:
            route = self._admit(topic)
        except errors.IcestreamError:
            return None
        if route.min_qos > 1 or service.needs_decisions((route.target.topic,), 0):
            return None
        self._burst_token = token = self._access.policy_token
        bursts = service.bursts
        if self._access.is_unrestricted and service.routes.has_catch_all:
            return PublishRoute(bursts, bursts.queues_of(route.target), route.min_qos, True, token)
        return PublishRoute(bursts, (bursts.queue_of(route.target.topic, route.key),), route.min_qos, False, token)

    def _admit(self, topic: str) -> TopicRoute:
        """The route of a topic that the client may publish to. Raises PermissionDenied, PacketRefused."""
        if topic.startswith(_RESERVED_TOPICS):
            raise errors.PacketRefused(
                f"topic {topic[:100]!r} is reserved", reason_code=ReasonCode.TOPIC_NAME_INVALID,
                hint="publish to a topic that does not begin with $",
            )  # fmt: skip
        route = self._service.routes.route_of(topic)
        self._access.require_mqtt_publish(topic, route.target.topic.name)
        return route

    def _must_store(self, packet: packets.PublishPacket, route: TopicRoute) -> bool:
        return (
            packet.qos >= route.min_qos
            or packet.is_retained
            or self._service.persistence.must_store(packet.topic, packet.qos)
        )

    def _store_run(self, route: TopicRoute, run: Sequence[ReceivedMessage]) -> Sequence[ReceivedMessage]:
        """Stores messages of QoS 0 and 1 in one shard; returns those for which there is no room now."""
        try:
            block, head = self._encode([message.packet for message in run], route)
            if not self._service.storage.has_room(len(block)):
                return run
            receipt = self._service.storage.store_messages(route.key, block, head)
        except errors.InFlightFull:
            return run
        except errors.IcestreamError as error:
            if len(run) == 1:
                self._refuse(run, error)
                return ()
            # One message is the reason for which the block was refused. Stored one by one, the others get their acks.
            for index in range(len(run)):
                if self._store_run(route, run[index : index + 1]):
                    return run[index:]
            return ()
        self._count(route, head, len(block))
        receipt.add_done_callback(partial(self._stored, run))
        return ()

    def _store_qos2(self, job: _StoreJob) -> Sequence[ReceivedMessage]:
        """Stores a message of QoS 2 with the note of its id; returns it if there is no room now."""
        session, route, (message,) = self.session, job.route, job.messages
        records = changes.receive(session.state, message.packet.packet_id, route.key)
        if not records:  # noted by an earlier connection, whose PUBREC was lost
            self.link.settle(message.number, ReasonCode.SUCCESS)
            return ()
        try:
            block, head = self._encode([message.packet], route)
            if not self._service.storage.has_room(len(block)):
                return [message]
            if session.is_durable:
                receipt = self._service.log.write(records, StoredBlock(route.key, block))
            else:
                receipt = self._service.storage.store_messages(route.key, block, head)
                session.write(records)
        except errors.InFlightFull:
            return [message]
        except errors.IcestreamError as error:
            self._refuse([message], error)
            return ()
        self._count(route, head, len(block))
        receipt.add_done_callback(partial(self._stored, [message]))
        return ()

    def _encode(self, messages: Sequence[packets.PublishPacket], route: TopicRoute) -> tuple[bytes, BlockHead]:
        """The block of messages that the policies of their topic accept."""
        block = encode_messages(messages, self.client_id, self._service.wall_us())
        head = decode_block_head(block)
        self._service.check_batch(route.target.topic, block, head)
        return block, head

    def _count(self, route: TopicRoute, head: BlockHead, size: int) -> None:
        topic = route.target.topic
        topic.published_messages += head.rows
        topic.published_bytes += size
        metrics.PUBLISHED_MESSAGES.value += head.rows
        metrics.PUBLISHED_BYTES.value += size

    def _stored(self, messages: Sequence[ReceivedMessage], receipt: Receipt) -> None:
        # Also when the connection is over: one that the server ends answers what came before its reason (hazard 55).
        error = receipt.exception()
        if error is None and isinstance(result := receipt.result()[0], errors.IcestreamError):
            error = result
        if error is None:
            metrics.PUBLISH_OUTCOMES.add("stored", len(messages))
            if receipt.pause_ms:  # near a quota: the client waits for the ack before it sends more
                self._service.start_task(self._settle_later(receipt.pause_ms, messages), "mqtt slowed acks")
            else:
                self._settle(messages)
        elif isinstance(error, errors.Refused):
            self._refuse(messages, error)
        else:
            metrics.PUBLISH_OUTCOMES.add(error.code, len(messages))
            self.link.abandon(mqtt_reason(error), error.message)

    async def _settle_later(self, pause_ms: int, messages: Sequence[ReceivedMessage]) -> None:
        await self._service.sleep(pause_ms / 1000)
        self._settle(messages)

    def _settle(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            self.link.settle(message.number, ReasonCode.SUCCESS)

    def _refuse(self, messages: Sequence[ReceivedMessage], error: errors.IcestreamError) -> None:
        metrics.PUBLISH_OUTCOMES.add(error.code, len(messages))
        reason = nearest_reason(mqtt_reason(error), PUBACK_CODES)
        for message in messages:
            self.link.settle(message.number, reason)

    def _publish_live(self, message: ReceivedMessage, route: TopicRoute) -> None:
        """Offers a message that is not stored to the clients that are connected (R20)."""
        packet, number = message.packet, message.number
        properties = encode_properties(packet.properties) if packet.properties else b""
        row = MqttMessage(
            packet.topic, packet.payload, packet.qos, False, self.client_id, properties, self._service.wall_us()
        )

        def settle(is_taken: bool) -> None:
            reason = ReasonCode.SUCCESS if is_taken else ReasonCode.NO_MATCHING_SUBSCRIBERS
            self.link.settle(number, reason if self._version is ProtocolVersion.V5 else ReasonCode.SUCCESS)

        def offer() -> None:
            self._service.feeds[route.key].add_live(LiveRow(row, settle))

        if packet.qos < 2:
            offer()
            return
        # Only the id is noted, so that a resend is recognised (hazard 53).
        records = changes.receive(self.session.state, packet.packet_id, None)
        if records:
            self.session.write(records, offer)
        else:
            settle(True)

    # --- parked messages ---

    def _park(self, messages: Sequence[ReceivedMessage]) -> None:
        self._parked.extend(messages)
        if self._parked and self._unparking is None:
            self._unparking = self._service.start_task(self._unpark(), "mqtt parked messages")

    async def _unpark(self) -> None:
        try:
            while self._parked and not self.is_over:
                size = len(self._parked[0].packet.payload) + limits.MQTT_PARKED_OVERHEAD_BYTES
                await self._service.storage.wait_for_room(size)
                messages = list(self._parked)
                self._parked.clear()
                self._publish(messages)
                await asyncio.sleep(0)
        except errors.IcestreamError as error:
            messages = list(self._parked)
            self._parked.clear()
            self._refuse(messages, error)
        finally:
            self._unparking = None

    async def _until_unparked(self) -> None:
        """A SUBSCRIBE keeps its place behind parked messages (hazard 67)."""
        while (task := self._unparking) is not None and not self.is_over:
            await asyncio.wait([task])

    # --- PUBREL, acks ---

    def release(self, packet_id: int) -> None:
        if self.is_over:
            return
        records = changes.pubrel(self.session.state, packet_id)
        if records:
            self.session.write(records, partial(self.link.release_done, packet_id))
        else:
            self.link.release_done(packet_id)

    def delivery_received(self, packet_id: int) -> None:
        if not self.is_over:
            self.session.delivery_received(packet_id)

    def delivery_done(self, packet_id: int, reason_code: int) -> None:
        if not self.is_over:
            self.session.delivery_done(packet_id, reason_code)

    def deliveries_done(self, packet_ids: Sequence[int]) -> None:
        if not self.is_over:
            self.session.deliveries_done(packet_ids)

    def resume_sending(self) -> None:
        if not self.is_over:
            self.session.resume_sending()

    # --- SUBSCRIBE ---

    async def subscribe(self, packet: packets.SubscribePacket) -> None:
        await self._until_unparked()
        identifiers = packet.properties.subscription_identifiers()
        replay_from = dict(packet.properties.user_properties()).get(REPLAY_PROPERTY, "")
        codes: list[int] = []
        reason = ""
        retained: list[PendingRetained] = []
        synced = SyncBarrier()
        for request in packet.subscriptions:
            try:
                codes.append(
                    await self._subscribe(request, identifiers[0] if identifiers else 0, replay_from, synced, retained)
                )
            except errors.IcestreamError as error:
                codes.append(nearest_reason(mqtt_reason(error), SUBACK_CODES))
                reason = reason or error.message
        await self.until_synced(synced)
        if self.is_over:
            return
        self.link.subscribed(packet.packet_id, tuple(codes), reason)
        self.session.send_retained(retained)
        self.session.pump()

    async def until_synced(self, synced: SyncBarrier) -> None:
        """Waits for the records of a request, or the end of the connection."""
        if not self.is_over:
            self._awaited = synced
            await synced.wait()

    async def _subscribe(
        self,
        request: packets.SubscriptionRequest,
        identifier: int,
        replay_from: str,
        synced: SyncBarrier,
        retained: list[PendingRetained],
    ) -> int:
        """Subscribes to one filter; returns the granted QoS. Raises the reason of a refusal."""
        service, session = self._service, self.session
        parsed = parse_filter(request.filter)
        start = parse_replay_start(parsed.replay_from or replay_from) if parsed.is_replay or replay_from else None
        self._check_rules(parsed, start)
        if self.is_over:
            raise errors.SessionFenced("the connection has ended")
        qos = 0 if service.options.qos0_filters.applies_to(parsed.filter) else request.qos
        text = parsed.text if parsed.is_shared else parsed.filter
        is_new = session.state.open_generation(text) is None
        if is_new and service.subscription_count(session) >= service.options.subscriptions_per_session_max:
            raise errors.PolicyReached(
                f"the session has {service.options.subscriptions_per_session_max} subscriptions, the most that it may",
                hint="unsubscribe from some, or use wildcards",
            )
        self._hold(parsed)
        options = SubscriptionOptions(
            qos, identifier, request.is_no_local, request.is_retain_as_published,
            start.text if start is not None else "",
        )  # fmt: skip
        if parsed.is_shared:
            service.join_group(session, parsed, options, synced)
            return qos
        current = session.state.open_generation(text)
        if start is not None and (current is None or current.record.replay_from != start.text):
            async with service.placing_replay(start) as starts:
                service.subscribe(session, parsed.filter, options, synced, starts)
        else:
            service.subscribe(session, parsed.filter, options, synced)
        is_sent = request.retain_handling == 0 or (request.retain_handling == 1 and is_new)
        if is_sent and start is None:
            retained += self._matching_retained(parsed.filter, options)
        return qos

    def _check_rules(self, parsed: TopicFilter, start: ReplayStart | None) -> None:
        """Raises the reason for which the settings do not allow the filter (R16)."""
        options = self._service.options
        if options.refused_filters.applies_to(parsed.filter):
            raise errors.PacketRefused(
                f"subscriptions to {parsed.filter[:100]!r} are refused by the operator",
                reason_code=ReasonCode.UNSPECIFIED_ERROR,
                hint="mqtt.refused_filters lists what is too wide; subscribe to a narrower filter",
            )
        if parsed.is_shared and not options.has_shared_subscriptions:
            raise errors.PacketRefused(
                "shared subscriptions are switched off", reason_code=ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                hint="mqtt.shared_subscriptions",
            )  # fmt: skip
        if parsed.is_shared and start is not None:
            raise errors.PacketRefused(
                "a shared subscription cannot be replayed", reason_code=ReasonCode.IMPLEMENTATION_ERROR,
                hint="subscribe without $share",
            )  # fmt: skip

    def _hold(self, parsed: TopicFilter) -> None:
        """Keeps the right to a subscription: it ends when the right does. Raises PermissionDenied."""
        names = [target.topic.name for target in self._service.routes.targets]
        hold = self._access.hold_mqtt_subscribe(parsed.text, names, partial(self._lose_right, parsed))
        text = parsed.text if parsed.is_shared else parsed.filter
        if (before := self._holds.pop(text, None)) is not None:
            self._access.release(before)
        self._holds[text] = hold

    def hold_again(self) -> None:
        """Holds the rights of a resumed session. Subscriptions that are not allowed any more end, and what was to be
        sent of them; also of those that the client has ended (hazard 118)."""
        for text in dict.fromkeys(item.record.filter for item in self.session.state.generations.values()):
            parsed = parse_filter(text)
            try:
                self._hold(parsed)
            except (errors.PermissionDenied, errors.Unauthenticated):  # recorded by the audit; the others go on
                self._service.revoke(self.session, parsed)

    def _lose_right(self, parsed: TopicFilter, error: errors.IcestreamError) -> None:
        self._holds.pop(parsed.text if parsed.is_shared else parsed.filter, None)
        if not self.is_over:
            self._service.revoke(self.session, parsed)
            self.link.disconnect(mqtt_reason(error), error.message)

    def _matching_retained(self, topic_filter: str, options: SubscriptionOptions) -> list[PendingRetained]:
        values = self._service.retained.matching(topic_filter)
        identifiers = (options.identifier,) if options.identifier else ()
        return [
            PendingRetained(value, min(options.qos, value.qos), identifiers)
            for value in values
            if not (options.is_no_local and value.publisher == self.client_id)
            and not self.session.is_expired(retained_row(value))
        ]

    def _release(self, parsed: TopicFilter) -> None:
        """Forgets the right to a filter, unless messages from before are still to be sent."""
        text = parsed.text if parsed.is_shared else parsed.filter
        if any(generation.record.filter == text for generation in self.session.state.generations.values()):
            return
        if (hold := self._holds.pop(text, None)) is not None:
            self._access.release(hold)

    async def unsubscribe(self, packet: packets.UnsubscribePacket) -> None:
        await self._until_unparked()
        codes: list[int] = []
        synced = SyncBarrier()
        for text in packet.filters:
            try:
                parsed = parse_filter(text)
            except errors.PacketRefused as error:
                codes.append(error.reason_code)
                continue
            is_known = self._service.unsubscribe(self.session, parsed, synced)
            codes.append(ReasonCode.SUCCESS if is_known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
            self._release(parsed)
        await self.until_synced(synced)
        if not self.is_over:
            self.link.unsubscribed(packet.packet_id, tuple(codes), "")
