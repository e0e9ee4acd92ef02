"""One connection of an MQTT client, between its socket, the state machine (mqtt/connection.py) and its session.

    state        what happens                                 ends
    ----------   ------------------------------------------   ---------------------------------------------------------
    waiting      bytes are read up to CONNECT                 CONNECT; a timeout, or anything else, closes
    deciding     nothing is read; the credential is           the session is there: CONNACK, open
                 verified, the session is connected           refused: CONNACK with the reason, closing
    open         events go to the session, in the order of    DISCONNECT, the end of the socket, silence, a packet that
                 the packets                                  breaks the protocol, `disconnect`, a stop
    closing      nothing is read; `ClientSession.end` was     everything before is answered, at most CLOSE_SECONDS_MAX:
                 called; acks that are owed leave             DISCONNECT (5.0), and the socket closes

Order (hazards 55, 67): while a SUBSCRIBE or UNSUBSCRIBE is under way, packets behind it are parked, up to
MQTT_PARKED_BYTES_MAX; acks of deliveries and PINGREQ are not. What the client sent before its end is decided before
`end`; what the server ends (takeover, a credential that ended) drops what is parked, unacked.

Reading stops while too much is not settled or parked, or while the client does not take its answers; never because it
does not take deliveries: it may be waiting for us to read first. The clock of its keep alive stands while we do not
read. Deliveries stop (`can_send`) while the connection's share of the send budget waits for the socket.

At a stop nothing more is read; what was taken is decided and answered, then DISCONNECT 0x8B (hazard 73).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

from icestream import errors, limits
from icestream.broker.guarded_broker import BrokerDoor, GuardedBroker
from icestream.broker.mqtt.client_link import ClientLink, ClientSession, ConnectRequest, ReceivedMessage
from icestream.broker.mqtt.message_rows import DeliveryRun
from icestream.error_codes import mqtt_reason
from icestream.frontends.mqtt.connect_request import credential_of, request_of
from icestream.frontends.send_budget import SendBudget
from icestream.mqtt import packets
from icestream.mqtt.ack_order import AckOrder
from icestream.mqtt.connection import (
    ConnectionEnded,
    ConnectionOptions,
    ConnectReceived,
    DeliveriesDone,
    DeliveryDone,
    DeliveryReceived,
    Event,
    PublishReceived,
    ReleaseReceived,
    ServerConnection,
    SubscribeReceived,
    UnsubscribeReceived,
)
from icestream.mqtt.reason_codes import FAILURE, ReasonCode, reason_name
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.connection_room import Standing
from icestream.runtime.keep_alive import keep_alive
from icestream.runtime.listener_tls import peer_certificate
from icestream.runtime.tasks import Tasks

_log = get_logger("mqtt")
_OVERHEAD: Final = limits.MQTT_PACKET_OVERHEAD_BYTES

# Connects a client's session: `GuardedBroker.connect_mqtt`.
OpenSession: TypeAlias = Callable[[GuardedBroker, ConnectRequest, ClientLink], Awaitable[ClientSession]]


class MqttConnections:
    """The connections of one listener, and what all of them use."""

    def __init__(
        self,
        listener: str,
        door: BrokerDoor,
        open_session: OpenSession,
        options: ConnectionOptions,
        connections_max: int = limits.CONNECTIONS_MAX,
    ) -> None:
        """`listener`: its name in metrics, readiness checks and sessions."""
        self.listener = listener
        self.door = door
        self.open_session = open_session
        self.options = options
        self.budget: SendBudget[MqttConnection] = SendBudget(listener, connections_max)
        self.unfinished: set[MqttConnection] = set()  # open, or with packets that are not decided
        self.tasks = Tasks(self._task_failed)
        self.loop = asyncio.get_running_loop()

    def _task_failed(self, error: BaseException) -> None:
        self.loop.call_exception_handler({"message": "a task of an MQTT connection failed", "exception": error})

    async def leave(self) -> None:
        """Ends every connection in order; those that take longer than CLOSE_SECONDS_MAX are cut off."""
        departures = [asyncio.ensure_future(connection.leave()) for connection in self.unfinished]
        if departures:
            await asyncio.wait(departures, timeout=limits.CLOSE_SECONDS_MAX)
        for connection in list(self.unfinished):
            connection.abort()
        for departure in departures:
            departure.cancel()
        await asyncio.gather(*departures, return_exceptions=True)
        await self.tasks.stop()


class MqttConnection(asyncio.Protocol):
    """The link of a client (ClientLink), driven by an asyncio transport."""

    __slots__ = (
        "_answer_bytes",
        "_client",
        "_client_id",
        "_deadline",
        "_delivery_bytes",
        "_ended",
        "_events",
        "_is_awaiting",
        "_is_discarding",
        "_is_leaving",
        "_is_paused",
        "_is_pumping",
        "_is_reading",
        "_is_write_scheduled",
        "_is_yielding",
        "_last_read",
        "_loop",
        "_parked_bytes",
        "_server",
        "_session",
        "_shared",
        "_silence",
        "_transport",
        "_waiter",
        "_was_full",
        "address",
    )

    def __init__(self, connections: MqttConnections, address: str = "", acks: AckOrder | None = None) -> None:
        """`address`: where the client is, if it is known; else that of the socket. `acks`: of the state machine."""
        self._shared = connections
        self._loop = connections.loop
        self.address = address
        self._server = ServerConnection(connections.options, acks)
        self._transport: asyncio.Transport | None = None
        self._client: GuardedBroker | None = None  # None until it is authenticated, and after the end
        self._session: ClientSession | None = None  # None before CONNACK, and after the end
        self._client_id = ""
        self._ended: ConnectionEnded | None = None
        self._waiter: asyncio.Future[None] | None = None  # of a stop, for the next change of state
        # --- in
        self._events: deque[Event] = deque()  # not decided yet
        self._parked_bytes = 0  # of them
        self._is_pumping = False
        self._is_awaiting = False  # CONNECT, SUBSCRIBE or UNSUBSCRIBE is under way
        self._is_reading = True
        self._is_yielding = False  # to other connections, for a tick
        self._is_discarding = False
        self._is_leaving = False
        self._last_read = 0.0
        self._silence: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None  # for CONNECT; later for the end of the connection
        # --- out
        self._is_write_scheduled = False
        self._is_paused = False  # the socket has not taken its share
        self._delivery_bytes = 0  # of what is not written yet
        self._was_full = False  # since the last write: deliveries may wait for this one
        self._answer_bytes = 0  # that the socket may not have taken

    # --- the socket -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the methods, not the base class
        self.address = self.address or address_text(transport.get_extra_info("peername"))
        budget = self._shared.budget
        admission = budget.room.admit(self, is_stranger=self._shared.door.is_secured)
        if admission.evicted is not None:
            admission.evicted.make_room()
        if not admission.is_admitted:
            places = budget.room.state.capacity
            _log.info(
                "refused a connection, all are in use",
                listener=self._shared.listener, peer=self.address, places=places,
            )  # fmt: skip
            self._is_discarding = True
            self._transport.close()  # a reason can be told to a client that has sent CONNECT only
            return
        budget.add(self)
        self._shared.unfinished.add(self)
        self._deadline = self._loop.call_later(limits.HELLO_SECONDS_MAX, self._on_connect_timeout)
        # A machine that died closes nothing, and a client may choose no keep alive.
        keep_alive(transport, limits.KEEP_ALIVE_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            return
        self._last_read = self._loop.time()
        if len(data) >= limits.SOCKET_READ_BYTES and self._transport is not None:
            # uvloop would read the same socket up to 32 times in one tick, while other connections wait (hazard 35).
            self._is_yielding = True
            self._loop.call_soon(self._stop_yielding)
        self._take(self._server.receive_data(data))

    def _stop_yielding(self) -> None:
        self._is_yielding = False
        self._update_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._is_discarding = True
        self._shared.budget.discard(self)
        self._stop_timers()
        self._take(self._server.end_of_stream())
        self._changed()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._answer_bytes = 0
        self._update_reading()
        if self._session is not None and self.can_send:
            self._session.resume_sending()

    def set_share(self, share_bytes: int) -> None:
        """Sets how many bytes may wait for the socket."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=share_bytes)

    def make_room(self) -> None:
        """Closes this connection, whose client is not known yet, in favour of a new one."""
        _log.info("closed a connection without CONNECT to make room for a new one", peer=self.address)
        self.abort()

    def abort(self) -> None:
        """Closes the socket at once; the client may lose what it has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    def _stop_timers(self) -> None:
        for timer in (self._deadline, self._silence):
            if timer is not None:
                timer.cancel()
        self._deadline = self._silence = None

    def _abort_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self.abort)

    # --- out --------------------------------------------------------------------------------------------------------

    def _schedule_write(self) -> None:
        """All that a loop tick sends leaves in one write at its end."""
        if not self._is_write_scheduled:
            self._is_write_scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_write_scheduled = False
        data = self._take_output()
        was_full, self._was_full = self._was_full, False
        if self._transport is None:
            return
        if data and not self._transport.is_closing():
            self._transport.write(data)
        if not self._is_paused:
            self._answer_bytes = 0
            if was_full and self._session is not None:
                self._session.resume_sending()
        if self._server.is_finished:
            self._finish()
        self._update_reading()

    def _take_output(self) -> bytes:
        self._was_full |= not self.can_send
        data = self._server.data_to_send()
        self._answer_bytes += len(data) - self._delivery_bytes
        self._delivery_bytes = 0
        return data

    def _finish(self) -> None:
        """Closes the socket, once everything is written. Bytes that still arrive are read and discarded: closing a
        socket with unread bytes resets the connection, and the client might lose the reason."""
        if self._is_discarding or self._transport is None:
            return
        self._is_discarding = True
        self._abort_after(limits.CLOSE_SECONDS_MAX if self._client_id else limits.REFUSED_SECONDS_MAX)
        has_reason = self._ended is not None and self._ended.reason_code >= FAILURE
        if not has_reason or not self._transport.can_write_eof() or self._transport.is_closing():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
            self._transport.resume_reading()
        except OSError:  # the client has reset the connection, and the transport has not seen it yet
            self._transport.abort()

    # --- in ---------------------------------------------------------------------------------------------------------

    def _take(self, events: list[Event]) -> None:
        """Hands events over in their order, or parks them behind the one that is under way."""
        self._events.extend(events)
        self._parked_bytes += sum(map(_cost, events))
        self._pump()
        if self._is_awaiting and events:
            self._pass_acks()
        self._schedule_write()
        self._update_reading()

    def _pump(self) -> None:
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._events and not self._is_awaiting:
                event = self._events.popleft()
                self._parked_bytes -= _cost(event)
                self._decide(event)
        finally:
            self._is_pumping = False

    def _pass_acks(self) -> None:
        """Hands over the acks of deliveries among what is parked: a window must not wait for a SUBSCRIBE."""
        parked = list(self._events)
        self._events.clear()
        for event in parked:
            if isinstance(event, DeliveryReceived | DeliveryDone | DeliveriesDone):
                self._parked_bytes -= _cost(event)
                self._decide(event)
            else:
                self._events.append(event)

    def _decide(self, event: Event) -> None:
        if isinstance(event, ConnectReceived):
            self._await(self._connect(event.packet))
            return
        if isinstance(event, ConnectionEnded):
            self._end(event)
            return
        session = self._session
        if session is None:
            return  # it ended before its turn came
        try:
            match event:
                case PublishReceived():
                    self._publish(session, self._run_of_publishes(event))
                case DeliveryDone():
                    session.delivery_done(event.packet_id, event.reason_code)
                case DeliveriesDone():
                    session.deliveries_done(event.packet_ids)
                case DeliveryReceived():
                    session.delivery_received(event.packet_id)
                case ReleaseReceived():
                    session.release(event.packet_id)
                case SubscribeReceived():
                    self._await(self._request(session.subscribe(event.packet)))
                case UnsubscribeReceived():
                    self._await(self._request(session.unsubscribe(event.packet)))
        except errors.IcestreamError as error:
            self._fail(error)
        except Exception:
            self._fail(errors.IcestreamError("an internal error", hint="see the broker's log"))
            raise

    def _publish(self, session: ClientSession, messages: list[ReceivedMessage]) -> None:
        session.publish(messages)

    def _run_of_publishes(self, first: PublishReceived) -> list[ReceivedMessage]:
        """This one and those directly behind it."""
        messages = [ReceivedMessage(first.number, first.packet)]
        while self._events and isinstance(event := self._events[0], PublishReceived):
            del self._events[0]
            self._parked_bytes -= _cost(event)
            messages.append(ReceivedMessage(event.number, event.packet))
        return messages

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        """Parks what follows until the work is done."""
        self._is_awaiting = True
        self._shared.tasks.start(self._resume_after(work), "mqtt-request")

    async def _resume_after(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._is_awaiting = False
            self._take(self._server.receive_data(b""))  # what came with CONNECT
            self._changed()

    async def _request(self, request: Awaitable[None]) -> None:
        try:
            await request
        except errors.IcestreamError as error:
            self._fail(error)
        except Exception:
            self._fail(errors.IcestreamError("an internal error", hint="see the broker's log"))
            raise

    def _fail(self, error: errors.IcestreamError) -> None:
        """The outcome of what was handed over is not known: closes without answering it or what is behind it (66)."""
        self.abandon(mqtt_reason(error), error.message)

    def _update_reading(self) -> None:
        """Reads while there is room for what would arrive."""
        if self._transport is None or self._is_discarding:
            return
        is_wanted = (
            not (self._is_leaving or self._is_yielding)
            and self._server.wants_data
            and self._parked_bytes < limits.MQTT_PARKED_BYTES_MAX
            and self._answer_bytes < limits.CONNECTION_ANSWER_BYTES_MAX
        )
        if is_wanted == self._is_reading:
            return
        self._is_reading = is_wanted
        if is_wanted:
            self._last_read = self._loop.time()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # --- CONNECT ----------------------------------------------------------------------------------------------------

    def _on_connect_timeout(self) -> None:
        self._deadline = None
        reason = "the credential was not verified in time" if self._is_awaiting else "no CONNECT arrived in time"
        self._apply_command(self._server.disconnect(ReasonCode.SERVER_BUSY, reason))

    async def _connect(self, packet: packets.ConnectPacket) -> None:
        self._shared.budget.room.move(self, Standing.RECEIVING)
        try:
            session = await self._open_session(packet)
        except errors.IcestreamError as error:
            self._refuse(error)
            return
        except Exception:
            self._refuse(errors.IcestreamError("an internal error", hint="see the broker's log"))
            raise
        metrics.MQTT_CONNECTS.add(reason_name(ReasonCode.SUCCESS))
        if self._ended is not None:
            session.end(self._ended)
            self._leave_door()
            return
        self._session, self._client_id = session, session.client_id
        if self._server.is_finished:
            return  # it was lost meanwhile: its end is parked, and comes next
        self._server.accept(
            is_session_present=session.is_present,
            assigned_client_id="" if packet.client_id else session.client_id,
            received_ids=session.received_ids,
            resumed=session.resumed,
        )
        self._shared.budget.room.move(self, Standing.BUSY)
        self._on_accepted(session)
        session.begin()

    def _on_accepted(self, session: ClientSession) -> None:
        """CONNACK is written: packets are read from now on."""
        self._last_read = self._loop.time()
        self._watch_silence()

    def _refuse(self, error: errors.IcestreamError) -> None:
        metrics.MQTT_CONNECTS.add(reason_name(mqtt_reason(error)))
        self._leave_door()
        reference = error.details.get("mqtt", "") if isinstance(error, errors.TopicElsewhere) else ""
        self._apply_command(self._server.refuse(mqtt_reason(error), error.message, reference))

    async def _open_session(self, packet: packets.ConnectPacket) -> ClientSession:
        """Raises Unauthenticated, and what the broker refuses the session with."""
        shared, transport = self._shared, self._transport
        certificate = None if transport is None else peer_certificate(transport)
        credential = credential_of(packet, certificate)
        self._client = client = await shared.door.authenticate(credential, self.address, shared.listener)
        if self._ended is not None:
            raise errors.ConnectionLost("the client disconnected")
        if self._deadline is not None:
            self._deadline.cancel()
        client.session.on_end = self._on_access_ended
        if not client.session.is_anonymous and (evicted := shared.budget.room.recognise(self)) is not None:
            evicted.make_room()
        return await shared.open_session(client, request_of(packet, self._server), self)

    def _on_access_ended(self, reason: errors.IcestreamError) -> None:
        """Its credential is not valid any more, or it has to send one."""
        self.disconnect(mqtt_reason(reason), reason.message)

    def _leave_door(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.session.on_end = None
            self._shared.door.leave(client)

    # --- keep alive ---------------------------------------------------------------------------------------------------

    def _watch_silence(self, *, is_late: bool = False) -> None:
        """`is_late`: the client was silent too long when it was looked at last."""
        seconds = self._server.silence_seconds_max
        if seconds is None or self._transport is None or self._ended is not None:
            return
        seconds_left = self._last_read + seconds - self._loop.time() if self._is_reading else seconds
        if seconds_left > 0:
            self._silence = self._loop.call_later(seconds_left, self._watch_silence)
        elif not is_late:
            # The loop may be late, and packets of the client wait in the socket: they are read first.
            again = partial(self._watch_silence, is_late=True)
            self._silence = self._loop.call_later(limits.MQTT_SILENCE_GRACE_SECONDS, again)
        else:
            self._take(self._server.keep_alive_expired())

    # --- the end ------------------------------------------------------------------------------------------------------

    def _apply_command(self, events: list[Event]) -> None:
        """Decides the events of a command to the state machine: an end among them comes before all that is parked."""
        if events:
            self._drop_parked()
            for event in events:
                self._decide(event)
        self._schedule_write()

    def _drop_parked(self) -> None:
        """Drops the events that were not decided, except for an end that the client has sent."""
        parked = list(self._events)
        self._events.clear()
        self._parked_bytes = 0
        for event in parked:
            if isinstance(event, ConnectionEnded):
                self._end(event)

    def _end(self, ended: ConnectionEnded) -> None:
        if self._ended is not None:
            return
        self._ended = ended
        metrics.MQTT_DISCONNECTS.add(reason_name(ended.reason_code))
        is_lost = self._transport is None
        report = _log.debug if is_lost or ended.reason_code < FAILURE else _log.info
        report("an MQTT connection ended", peer=self.address, client_id=self._client_id[:100], reason=ended.reason)
        self._stop_timers()
        if not is_lost:
            self._abort_after(limits.CLOSE_SECONDS_MAX)
        self._schedule_write()
        session, self._session = self._session, None
        if session is not None:
            try:
                session.end(ended)
            finally:
                self._leave_door()

    async def leave(self) -> None:
        """Stops reading, decides and answers what was taken, and ends the connection: the broker stops. Returns when
        the socket is closed and nothing is under way."""
        self._is_leaving = True
        self._update_reading()
        while self._events or self._is_awaiting:
            await self._wait_for_change()
        self._apply_command(self._server.disconnect(ReasonCode.SERVER_SHUTTING_DOWN, "the broker is shutting down"))
        while self._transport is not None:
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter

    def _changed(self) -> None:
        """The socket closed, or a request is done."""
        if self._transport is None and not self._events and not self._is_awaiting:
            self._shared.unfinished.discard(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- commands of the session (ClientLink) -----------------------------------------------------------------------

    @property
    def can_send(self) -> bool:
        return not self._is_paused and self._server.output_bytes < self._shared.budget.share

    def settle(self, number: int, reason_code: int) -> None:
        self._apply_command(self._server.settle(number, reason_code))

    def abandon(self, reason_code: int, reason: str) -> None:
        self._apply_command(self._server.abandon(reason_code, reason))

    def release_done(self, packet_id: int) -> None:
        self._server.release_done(packet_id)
        self._schedule_write()

    def subscribed(self, packet_id: int, reason_codes: tuple[int, ...], reason: str) -> None:
        self._server.subscribed(packet_id, reason_codes, reason)
        self._schedule_write()

    def unsubscribed(self, packet_id: int, reason_codes: tuple[int, ...], reason: str) -> None:
        self._server.unsubscribed(packet_id, reason_codes, reason)
        self._schedule_write()

    def send_publish(self, packet: packets.PublishPacket) -> bool:
        before = self._server.output_bytes
        is_sent = self._server.send_publish(packet)
        self._delivery_bytes += self._server.output_bytes - before
        self._schedule_write()
        return is_sent

    def send_run(self, run: DeliveryRun) -> Sequence[int]:
        return [packet.packet_id for packet in run.packets() if not self.send_publish(packet) and packet.packet_id]

    def send_release(self, packet_id: int) -> None:
        self._server.send_release(packet_id)
        self._schedule_write()

    def disconnect(self, reason_code: int, reason: str) -> None:
        undecided = [event for event in self._events if not isinstance(event, ConnectionEnded)]
        events = self._server.disconnect(reason_code, reason, undecided)
        self._drop_parked()
        self._apply_command(events)


def _cost(event: Event) -> int:
    """What a parked event holds; an ack of a delivery is never parked for long."""
    match event:
        case PublishReceived():
            return len(event.packet.payload) + len(event.packet.topic) + _OVERHEAD
        case SubscribeReceived():
            return sum(len(request.filter) + _OVERHEAD for request in event.packet.subscriptions) + _OVERHEAD
        case UnsubscribeReceived():
            return sum(len(topic_filter) + _OVERHEAD for topic_filter in event.packet.filters) + _OVERHEAD
        case _:
            return _OVERHEAD


def address_text(address: tuple[Any, ...] | None) -> str:
    """`host:port` of a TCP address; empty for none."""
    if not address:
        return ""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
