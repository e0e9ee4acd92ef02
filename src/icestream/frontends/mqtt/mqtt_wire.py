"""Serves MQTT connections by the native wire: one wake-up for a burst of all connections, plain messages as blocks.

`poll` of the server (native/src/wire/mqtt) returns what arrived, in the order in which it is decided:

    packets                        bytes of whole packets, decoded and decided by MqttConnection as those of a socket
    a burst: plain messages of     one append for all of them (BurstPublisher of broker/mqtt/client_link.py). If one of
    any number of connections      them needs a decision of its own, it is taken apart, and each message goes the way of
                                   a packet
    acks of deliveries             PUBACKs that say success, of runs, by connection: one call of its session for all
    answered                       the acks of a closing connection have left

A run of deliveries (DeliveryRun of broker/mqtt/message_rows.py) goes down as spans of rows and ranges of packet ids,
and the server writes its packets from the columns of the block. Where a rule needs each packet (topic aliases, a
maximum packet size below that of the block), they are made one by one, as for a socket.

A plain message is of QoS 0 or 1, not retained and without properties. The first for a topic comes as a packet; then the
broker says where the next ones go (`publish_route`), which is declared to the server. What fits no declaration comes as
a packet again, so each refusal is made by the same code, whichever way a message came.

    owner               state
    -----------------   -----------------------------------------------------------------------------------------------
    the server          the order of all acks of a connection (WireAckOrder), plain messages that are not settled
    ServerConnection    everything else: ids of QoS 2, deliveries, requests, the state of the connection

While a SUBSCRIBE or UNSUBSCRIBE is under way, and while a packet is parked behind one, the connection sees every
PUBLISH (`suspend_rows`): else a plain message would overtake it.
"""

from __future__ import annotations

import socket
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final

from icestream import limits
from icestream.broker.mqtt.client_link import (
    BurstFailure,
    BurstPublisher,
    ClientSession,
    PublishBurst,
    PublishRoute,
    ReceivedMessage,
)
from icestream.broker.mqtt.message_rows import DeliveryRun
from icestream.frontends.mqtt.mqtt_connection import MqttConnection, MqttConnections
from icestream.frontends.wire_driver import (
    CONNECTED,
    GONE,
    PROTOCOL_ROWS,
    ROOM,
    SILENT,
    WireDriver,
    WireTransport,
    transport_of,
)
from icestream.model import envelope
from icestream.model.block import NOT_NUMBERED, Block, iter_blocks
from icestream.model.block_group import BlockGroup
from icestream.mqtt import packets
from icestream.mqtt.ack_order import AckOrder, OwedAck
from icestream.mqtt.connection import ConnectionState, Event, PublishReceived
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import Properties, PropertyId, encode_properties
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.listener_tls import ListenerTls
from icestream.runtime.native import native

# The rows of `poll`: native/src/wire/mqtt/server.rs.
PACKETS, GROUP, ACKS, ANSWERED = range(PROTOCOL_ROWS, PROTOCOL_ROWS + 4)
# After a topic without a route the broker is asked again with this many messages.
_ASK_AGAIN_MESSAGES: Final = 64


def has_mqtt_wire() -> bool:
    return hasattr(native, "MqttServer")


class WireAckOrder(AckOrder):
    """The acks of one connection, whose order the native server keeps, with those of its plain messages."""

    def __init__(self, server: Any, number: int, take_output: Callable[[], bytes]) -> None:
        """`take_output`: takes what the connection has to send before its next ack."""
        super().__init__()
        self._server = server
        self._number = number
        self._take_output = take_output
        self._places: dict[OwedAck, list[int]] = {}
        self._refusals: list[OwedAck] = []  # the first ends the connection when the acks before it have left

    @property
    def is_empty(self) -> bool:
        return not self._refusals and self._server.owed(self._number)[0] == 0

    @property
    def qos1_count(self) -> int:
        count: int = self._server.owed(self._number)[1]
        return count

    def expect(self, owed: OwedAck) -> None:
        self.adopt(owed, self._server.expect(self._number, owed.packet_id, owed.qos == 1))

    def adopt(self, owed: OwedAck, place: int) -> None:
        """The ack has a place already."""
        self._places.setdefault(owed, []).append(place)

    def settled(self, owed: OwedAck) -> None:
        for place in self._places.pop(owed, ()):
            if owed.is_refusal:
                self._refusals.append(owed)
                self._server.stop_acks(self._number, place)
            else:
                self._server.answer(self._number, place, owed.ack, self._take_output())

    def take(self) -> Iterator[OwedAck]:
        if self._refusals and self._server.owed(self._number)[0] == 0:
            yield self._refusals.pop(0)

    def clear(self) -> None:
        self._places.clear()
        self._refusals.clear()
        self._server.stop_acks(self._number, 0)

    def cut(self, undecided: Collection[OwedAck]) -> None:
        places = [place for owed in undecided for place in self._places.pop(owed, ())]
        if places:
            self._server.stop_acks(self._number, min(places))

    def close(self) -> None:
        self._server.stop_acks(self._number)


class WireMqttConnection(MqttConnection):
    """A connection of the native wire."""

    __slots__ = (
        "_acks", "_ask_after", "_has_route_for_all", "_held", "_is_suspended", "_route_token", "_routed", "_run_bytes",
        "_wire", "number", "wire_transport",
    )  # fmt: skip

    def __init__(self, connections: MqttConnections, wire: MqttWire, number: int, address: str) -> None:
        self._acks = WireAckOrder(wire.server, number, self._take_output)
        super().__init__(connections, address, self._acks)
        self._wire = wire
        self.number = number
        self._is_suspended = False
        self._held = 0  # QoS 2 ids, as the server knows them
        self.wire_transport: MqttTransport | None = None
        self._routed: set[str] = set()  # topics with a declared route
        self._has_route_for_all = False
        self._route_token: object = None
        self._ask_after = 0  # messages
        self._run_bytes = 0  # of runs that leave at the end of this tick

    @property
    def publishing_session(self) -> ClientSession | None:
        """The session of plain messages that have arrived; None if the connection has ended."""
        return self._session

    # --- the socket ---

    def data_received(self, data: bytes) -> None:
        if not self._is_discarding:
            self._take(self._server.receive_data(data))

    def _watch_silence(self, *, is_late: bool = False) -> None:
        """The server watches it, by the bytes that it reads."""
        if (seconds := self._server.silence_seconds_max) is not None:
            self._wire.server.set_silence_max(self.number, seconds)

    def silence_received(self) -> None:
        self._take(self._server.keep_alive_expired())

    def acks_left(self) -> None:
        """The acks up to the stop of their order have left."""
        self._apply_command(self._server.acks_left())

    def _on_accepted(self, session: ClientSession) -> None:
        super()._on_accepted(session)
        self._write()  # CONNACK: the server answers from now on, and must not be before it
        server, version = self._wire.server, self._server.version
        # 3.1.1 knows no Receive Maximum: QoS 1 is slowed down by the bound of bytes.
        receive_maximum = self._shared.options.receive_maximum if version is ProtocolVersion.V5 else 1 << 32
        server.allow_rows(self.number, session.client_id.encode(), receive_maximum)
        server.open(self.number, version)

    def _take(self, events: list[Event]) -> None:
        super()._take(events)
        self._update_rows()

    def _update_rows(self) -> None:
        is_suspended = self._is_awaiting or bool(self._events)
        if is_suspended != self._is_suspended:
            self._is_suspended = is_suspended
            self._wire.server.suspend_rows(self.number, is_suspended)

    def _schedule_write(self) -> None:
        if not self._is_write_scheduled:
            self._is_write_scheduled = True
            self._wire.write_later(self)

    def write_now(self) -> None:
        """Called at the end of a tick in which there was something to write."""
        if self._is_write_scheduled:
            self._write()

    def _write(self) -> None:
        self._was_full |= not self.can_send
        self._run_bytes = 0
        if self.wire_transport is not None:
            self.wire_transport.flush()
        super()._write()
        if (held_ids := self._server.held_ids) != self._held:
            self._held = held_ids
            self._wire.server.set_held(self.number, held_ids)

    # --- deliveries ---

    @property
    def can_send(self) -> bool:
        waiting_bytes = self._server.output_bytes + self._run_bytes
        return not self._is_paused and waiting_bytes < self._shared.budget.share

    def send_run(self, run: DeliveryRun) -> Sequence[int]:
        server, plain = self._server, run.plain
        if server.state is not ConnectionState.OPEN:
            return ()
        properties = self._run_properties(run.identifiers)
        if not server.takes_runs(plain.packet_bytes_max + len(properties)):
            return super().send_run(run)
        if plain.wire_rows is None:
            assert native is not None
            plain.wire_rows = native.MqttRows(*plain.columns())
        packet_ids = [(ids.start, len(ids)) for ids in run.packet_ids]
        server.run_sent(run.packet_ids)
        self._run_bytes += self._wire.server.deliver(
            self.number, self._take_output(), plain.wire_rows, run.spans, packet_ids, run.qos, properties
        )
        self._schedule_write()
        return ()

    def _run_properties(self, identifiers: Sequence[int]) -> bytes:
        """The properties of a run as they stand in its packets; 3.1.1 has none."""
        if self._server.version is not ProtocolVersion.V5:
            return b""
        return encode_properties(Properties([(PropertyId.SUBSCRIPTION_IDENTIFIER, item) for item in identifiers]))

    def acks_received(self, packet_ids: Sequence[int]) -> None:
        """PUBACKs of runs arrived, that say success."""
        if not self._is_discarding:
            self._take(self._server.receive_acks(packet_ids))

    # --- plain messages ---

    def _publish(self, session: ClientSession, messages: list[ReceivedMessage]) -> None:
        super()._publish(session, messages)
        for message in messages:
            packet = message.packet
            if self._has_route_for_all:
                return
            if packet.qos < 2 and not packet.is_retained and not packet.properties and packet.topic not in self._routed:
                self._ask_after -= 1
                if self._ask_after <= 0:
                    self._declare(packet.topic, session.publish_route(packet.topic))

    def _declare(self, topic: str, route: PublishRoute | None) -> None:
        if route is None:
            self._ask_after = _ASK_AGAIN_MESSAGES
            return
        if route.token is not self._route_token:
            self.forget_routes()
            self._route_token = route.token
        server = self._wire.server
        self._wire.publisher = route.publisher
        if route.is_for_all:
            self._has_route_for_all = True
            server.declare_all(self.number, route.queues, route.min_qos)
        elif len(topic) <= limits.MQTT_DECISION_TOPIC_MAX:
            if len(self._routed) >= limits.MQTT_DECISIONS_MAX:
                self.forget_routes()
            self._routed.add(topic)
            server.declare(self.number, topic.encode(), route.queues[0], route.min_qos)

    def forget_routes(self) -> None:
        """From now on the first message for each topic comes as a packet again."""
        self._has_route_for_all = False
        self._routed.clear()
        self._wire.server.forget_topics(self.number)

    def take_apart(self, messages: Sequence[tuple[int | None, packets.PublishPacket]]) -> None:
        """Takes messages of a burst as if they had come as packets; each with the place of its ack."""
        if self._ended is not None:
            places = [place for place, _ in messages if place is not None]
            if places:  # they are not decided any more, so their acks never leave (hazard 59)
                self._wire.server.stop_acks(self.number, min(places))
            return
        self._take([self._adopt(place, packet) for place, packet in messages])

    def refuse_messages(self, messages: Sequence[tuple[int | None, packets.PublishPacket]], reason_code: int) -> None:
        """Refuses messages of a burst, each with the place of its ack."""
        for place, packet in messages:
            event = self._adopt(place, packet)
            self.settle(event.number, reason_code)

    def _adopt(self, place: int | None, packet: packets.PublishPacket) -> PublishReceived:
        cost = len(packet.payload) + len(packet.topic) + limits.MQTT_PACKET_OVERHEAD_BYTES
        owed = OwedAck(packet.packet_id, packet.qos, cost)
        if place is not None:
            self._acks.adopt(owed, place)
        return self._server.adopt(packet, owed)


class MqttTransport(WireTransport):
    """The transport of a connection of the native wire."""

    def __init__(self, wire: MqttWire, number: int, peer: str, certificate: bytes | None) -> None:
        super().__init__(wire.server, number, peer, certificate)
        self._wire = wire

    def flush(self) -> None:
        """Sends acks that wait for other bytes."""
        if self._server.flush(self.number) > self._high_bytes:
            self.filled()

    def close(self) -> None:
        self._is_closing = True
        self._server.close_soon(self.number)

    def abort(self) -> None:
        super().abort()
        self._wire.forget_soon(self.number)


class MqttWire(WireDriver):
    def __init__(
        self,
        connections: MqttConnections,
        listener: socket.socket,
        tls: ListenerTls | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`listener` is given away. `tls`: None for plain text. `clock`: tells when messages arrived."""
        assert native is not None
        packet_bytes_max = connections.options.packet_bytes_max
        self.server: Any = native.MqttServer(
            connect_bytes_max=min(packet_bytes_max, limits.MQTT_CONNECT_BYTES_MAX),
            packet_bytes_max=packet_bytes_max,
            levels_max=limits.MQTT_TOPIC_LEVELS_MAX,
            connection_bytes_max=limits.MQTT_UNSETTLED_BYTES_MAX,
            pending_bytes_max=limits.WIRE_PENDING_BYTES_MAX,
            answer_bytes_max=limits.CONNECTION_ANSWER_BYTES_MAX,
            row_bytes_max=limits.MQTT_BURST_BYTES_MAX,
            group_bytes_max=limits.MQTT_BURST_BYTES_MAX,
        )
        super().__init__(self.server, listener, tls)
        self._shared = connections
        self._clock = clock or SystemClock()
        self._connections: dict[int, tuple[WireMqttConnection, MqttTransport]] = {}
        self.publisher: BurstPublisher | None = None  # that of every route
        self._unwritten: list[WireMqttConnection] = []  # with something to write at the end of this tick
        self._handlers |= {
            CONNECTED: self._on_connected,
            GONE: self._on_gone,
            ROOM: self._on_room,
            SILENT: self._on_silent,
            PACKETS: self._on_packets,
            ACKS: self._on_acks,
            GROUP: self._on_group,
            ANSWERED: self._on_answered,
        }

    def _poll(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.server.poll(self._clock.wall_us())
        return rows

    # --- connections ---

    def _on_connected(self, number: int, peer: str, certificate: bytes | None) -> None:
        transport = MqttTransport(self, number, peer, certificate)
        connection = WireMqttConnection(self._shared, self, number, peer)
        connection.wire_transport = transport
        transport.on_full, transport.on_drained = connection.pause_writing, connection.resume_writing
        self._connections[number] = (connection, transport)
        connection.connection_made(transport_of(transport))

    def forget_soon(self, number: int) -> None:
        """The connection was aborted: it hears of its end in the next tick, as that of an asyncio transport."""
        self._loop.call_soon(self._on_gone, number)

    def _on_gone(self, number: int) -> None:
        if (entry := self._connections.pop(number, None)) is not None:
            connection, transport = entry
            transport.lost()
            connection.connection_lost(None)

    def _on_room(self, number: int) -> None:
        if (entry := self._connections.get(number)) is not None:
            entry[1].drained()

    def _on_silent(self, number: int) -> None:
        if (entry := self._connections.get(number)) is not None:
            entry[0].silence_received()

    def _on_packets(self, number: int, data: bytes) -> None:
        if (entry := self._connections.get(number)) is not None:
            entry[0].data_received(data)

    def _on_acks(self, acks: list[tuple[int, bytes]]) -> None:
        for number, packet_ids in acks:
            if (entry := self._connections.get(number)) is not None:
                try:
                    entry[0].acks_received(array("H", packet_ids))
                except Exception as error:  # noqa: BLE001 (it must not lose those of other connections)
                    self._report(error)

    def _on_answered(self, number: int) -> None:
        if (entry := self._connections.get(number)) is not None:
            entry[0].acks_left()

    # --- writing ---

    def write_later(self, connection: WireMqttConnection) -> None:
        if not self._unwritten:
            self._loop.call_soon(self._write_all)
        self._unwritten.append(connection)

    def _write_all(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for connection in unwritten:
            try:
                connection.write_now()
            except Exception as error:  # noqa: BLE001 (it must not lose what others have to write)
                self._report(error)

    # --- bursts ---

    def _on_group(
        self, batch: int, queues: bytes, ends: bytes, rows: bytes, numbers: bytes, blocks: bytes, largest: int
    ) -> None:
        connections = [self._connections.get(number) for number in array("Q", numbers)]
        group = block_group(array("I", ends), array("I", rows))
        burst = PublishBurst(
            [None if entry is None else entry[0].publishing_session for entry in connections],
            array("I", queues),
            group,
            blocks,
            sum(group.rows),
            largest,
        )
        on_done = partial(self._on_burst_done, batch, blocks)
        if self.publisher is None or not self.publisher.publish_burst(burst, on_done):
            for entry in connections:
                if entry is not None:
                    entry[0].forget_routes()
            self._take_apart(batch, blocks, WireMqttConnection.take_apart)

    def _on_burst_done(self, batch: int, blocks: bytes, failure: BurstFailure | None) -> None:
        if failure is None:
            self._write_all()  # what connections have to say before these acks
            self.server.settle(batch)
        elif failure.is_unknown:
            self._take_apart(batch, blocks, lambda link, _: link.abandon(failure.reason_code, failure.reason))
        else:
            self._take_apart(
                batch, blocks, partial(WireMqttConnection.refuse_messages, reason_code=failure.reason_code)
            )

    def _take_apart(
        self,
        batch: int,
        blocks: bytes,
        handle: Callable[[WireMqttConnection, Sequence[tuple[int | None, packets.PublishPacket]]], None],
    ) -> None:
        """Hands the messages of a batch to their connections, in the order of receipt."""
        by_number: dict[int, list[tuple[int | None, packets.PublishPacket]]] = {}
        placed = self.server.release(batch)
        for (number, place, packet_id), (topic, payload, qos) in zip(placed, messages_of(blocks), strict=True):
            message = (place, packets.PublishPacket(topic, payload, qos, packet_id))
            by_number.setdefault(number, []).append(message)
        for number, messages in by_number.items():
            if (entry := self._connections.get(number)) is None:
                continue
            # The messages of a batch stand shard by shard.
            messages.sort(key=lambda message: -1 if message[0] is None else message[0])
            try:
                handle(entry[0], messages)
            except Exception as error:  # noqa: BLE001 (it must not lose those of other connections)
                self._report(error)

    # --- end ---

    def close(self) -> None:
        """Closes every connection that is left."""
        self._loop.remove_reader(self.server.fileno())
        for number in list(self._connections):
            self._on_gone(number)
        self.server.close()


def block_group(ends: Sequence[int], rows: Sequence[int]) -> BlockGroup:
    """A group of one block for each shard, none of them numbered."""
    count = len(ends)
    return BlockGroup(ends, rows, (NOT_NUMBERED,) * count, (0,) * count, (NOT_NUMBERED,) * count, range(1, count + 1))


def messages_of(blocks: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Topic, payload and QoS of each message of blocks that the wire has made."""
    block: Block
    for block in iter_blocks(blocks):
        columns = (block.values(column) for column in (envelope.KEY, envelope.PAYLOAD, envelope.QOS))
        for key, payload, qos in zip(*columns, strict=True):
            assert isinstance(key, bytes) and isinstance(payload, bytes) and isinstance(qos, int)  # noqa: PT018
            yield key.decode(), payload, qos
