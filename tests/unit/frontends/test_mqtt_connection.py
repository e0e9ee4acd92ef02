"""MQTT connections on sockets: order, back-pressure, time limits, refusals, stop. The broker behind only records."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.durable.session_changes import WillMessage
from icestream.frontends.mqtt.mqtt_connection import MqttConnection
from icestream.frontends.mqtt.mqtt_wire import WireMqttConnection
from icestream.mqtt import packets
from icestream.mqtt.codec import encode_packet
from icestream.mqtt.connection import ConnectionOptions, ResumedDelivery
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import Properties, PropertyId
from icestream.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_front import (  # noqa: F401 (mqtt_wire is a fixture)
    V3,
    V5,
    MqttFront,
    MqttPeer,
    RecordingSession,
    mqtt_front,
    mqtt_wire,
    publish,
    subscribe,
)
from tests.support.until import until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("mqtt_wire")]
both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


async def opened(front: MqttFront, client: MqttPeer, **fields: Any) -> RecordingSession:
    await client.connect(**fields)
    return front.session


def reason(packet: packets.Packet | None) -> int:
    assert isinstance(packet, packets.DisconnectPacket | packets.ConnackPacket), packet
    return packet.reason_code


def only(front: MqttFront) -> MqttConnection:
    (connection,) = front.connections.unfinished
    return connection


# --- CONNECT --------------------------------------------------------------------------------------------------------


async def test_connect_opens_a_session_with_what_the_packet_asks_for() -> None:
    will_properties = Properties([(PropertyId.WILL_DELAY_INTERVAL, 5), (PropertyId.USER_PROPERTY, ("a", "b"))])
    will = packets.Will("w", b"gone", 1, is_retained=True, properties=will_properties)
    asked = Properties([(PropertyId.RECEIVE_MAXIMUM, 7), (PropertyId.SESSION_EXPIRY_INTERVAL, 500)])
    options = ConnectionOptions(session_expiry_seconds_max=100)
    async with mqtt_front(options=options) as front, await front.client() as client:
        await client.connect("", is_clean_start=False, will=will, properties=asked)
        request = front.session.request
        assert (request.client_id, request.is_clean_start, request.version) == ("", False, V5)
        assert (request.expiry_s, request.receive_maximum) == (100, 7)
        assert request.will == WillMessage("w", b"gone", 1, True, 5, b"\x07\x26\0\1a\0\1b")
        assert front.session.link.address.startswith("127.0.0.1:")


async def test_connack_describes_the_session() -> None:
    async with mqtt_front() as front, await front.client() as client:
        front.broker.is_present = True
        front.broker.resumed = [ResumedDelivery(9, publish(9, b"again")), ResumedDelivery(4, None)]
        front.broker.received_ids = [3]
        connack = await client.connect("", is_clean_start=False)
        assert connack.is_session_present
        assert connack.properties.text(PropertyId.ASSIGNED_CLIENT_IDENTIFIER) == "assigned"
        assert await client.read() == packets.PublishPacket("t", b"again", 1, 9, is_duplicate=True)
        assert await client.read() == packets.PubrelPacket(4)
        await client.send(publish(3, qos=2))
        assert await client.read() == packets.PubrecPacket(3)
        assert front.session.calls == [("begin", None)]


@both_versions
async def test_a_session_that_is_refused_is_refused_in_connack(version: ProtocolVersion) -> None:
    async with mqtt_front() as front, await front.client(version) as client:
        front.broker.refusal = errors.PolicyReached("there are 10 sessions")
        connack = await client.connect()
        assert connack.reason_code == (ReasonCode.QUOTA_EXCEEDED if version is V5 else 3)
        if version is V5:
            assert connack.properties.text(PropertyId.REASON_STRING) == "there are 10 sessions"
        assert await client.read() is None


async def test_an_unexpected_error_while_connecting_is_answered_and_logged() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with mqtt_front() as front, await front.client() as client:
        front.broker.refusal = ZeroDivisionError()
        assert (await client.connect()).reason_code == ReasonCode.UNSPECIFIED_ERROR
        assert await client.read() is None
        await until(lambda: reported)
    assert isinstance(reported[0]["exception"], ZeroDivisionError)


async def test_packets_that_came_with_connect_are_decided_behind_it() -> None:
    async with mqtt_front() as front, await front.client() as client:
        front.broker.settles = 0
        await client.send(packets.ConnectPacket("c"), publish(1, b"m"), packets.DisconnectPacket())
        received = await client.read_all()
        assert received[0] == packets.ConnackPacket(properties=received[0].properties)  # type: ignore[union-attr]
        session = await front.session_number(1)
        await until(lambda: session.ended)
        assert session.published == [b"m"]
        assert session.ended is not None
        assert not session.ended.is_will_due


async def test_a_client_that_is_lost_while_its_session_opens_ends_it() -> None:
    async with mqtt_front() as front:
        client = await front.client()
        front.broker.opening.clear()
        await client.send(packets.ConnectPacket("c"))
        await until(lambda: front.broker.clients)
        connection = only(front)
        client.close()
        connection.abort()  # its socket is not read while CONNECT is decided
        front.broker.opening.set()
        session = await front.session_number(1)
        await until(lambda: session.ended)
        assert session.calls == []
        await until(lambda: not front.connections.unfinished)


async def test_a_client_that_sends_no_connect_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS_MAX", 0.05)
    async with mqtt_front() as front, await front.client() as client:
        client.writer.write(b"\x10")
        assert await client.read() is None


async def test_a_credential_that_is_not_verified_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.secured_access import SecuredAccess

    monkeypatch.setattr(limits, "HELLO_SECONDS_MAX", 0.05)
    access = SecuredAccess({})
    access.names.gate.clear()
    async with mqtt_front(access) as front, await front.client() as client:
        connack = await client.connect(user_name="alice", password=b"password-of-alice")
        assert connack.reason_code == ReasonCode.SERVER_BUSY
        assert await client.read() is None
        access.names.gate.set()
        await until(lambda: not front.connections.unfinished)
        assert front.broker.sessions == []


async def test_all_places_taken_evicts_a_silent_connection_and_never_a_connected_one() -> None:
    async with mqtt_front(connections_max=2) as front:
        async with await front.client() as known, await front.client() as silent:
            await known.connect("known")
            await until(lambda: len(front.connections.unfinished) == 2)
            async with await front.client() as new:
                await new.connect("new")
                assert await silent.read() is None
                async with await front.client() as beyond:
                    assert await beyond.read() is None
                await known.ping()
                await new.ping()
        state = front.listener.room
        assert (state.evicted, state.refused) == (1, 1)


# --- order ------------------------------------------------------------------------------------------------------------


@both_versions
async def test_runs_of_publishes_are_handed_over_together_and_in_order(version: ProtocolVersion) -> None:
    async with mqtt_front() as front, await front.client(version) as client:
        front.broker.settles = 0
        session = await opened(front, client)
        session.link.send_publish(publish(9, b"out"))
        assert await client.read() == publish(9, b"out")
        await client.send(publish(1, b"a"), publish(0, b"b"), packets.PubackPacket(9), publish(2, b"c"), subscribe(3))
        received = [await client.read() for _ in range(3)]
        assert received == [packets.PubackPacket(1), packets.PubackPacket(2), packets.SubackPacket(3, (1,))]
        assert session.calls[1:] == [
            ("publish", [b"a", b"b"]), ("delivery_done", 9), ("publish", [b"c"]), ("subscribe", 3),
        ]  # fmt: skip


async def test_packets_behind_a_subscribe_wait_and_acks_of_deliveries_and_pings_do_not() -> None:
    """Hazard 67."""
    async with mqtt_front() as front, await front.client() as client:
        front.broker.settles = 0
        session = await opened(front, client)
        session.subscribing.clear()
        session.link.send_publish(publish(1, b"one"))
        session.link.send_publish(packets.PublishPacket("t", b"two", 2, 2))
        await client.read(), await client.read()
        await client.send(subscribe(5), publish(6, b"m"), packets.PubackPacket(1), packets.PubrecPacket(2))
        assert await client.read() == packets.PubrelPacket(2)
        await client.ping()
        await client.send(packets.PubcompPacket(2))
        await client.ping()
        assert {call[0] for call in session.calls} == {"begin", "subscribe", "delivery_done", "delivery_received"}
        assert ("delivery_done", 2) in session.calls
        session.subscribing.set()
        assert await client.read() == packets.SubackPacket(5, (1,))
        assert await client.read() == packets.PubackPacket(6)
        assert session.published == [b"m"]


async def test_packets_before_a_disconnect_are_decided_before_it() -> None:
    """Hazard 55, also while a SUBSCRIBE is under way."""
    async with mqtt_front() as front:
        async with await front.client() as client:
            session = await opened(front, client)
            session.subscribing.clear()
            await client.send(subscribe(1), publish(2, b"m"))
            client.writer.write_eof()
            await client.read_all()
        assert session.ended is None
        session.subscribing.set()
        await until(lambda: session.ended)
        assert session.published == [b"m"]
        assert session.ended is not None
        assert session.ended.is_will_due
        await until(lambda: not front.connections.unfinished)


async def test_a_takeover_drops_what_is_not_decided_and_answers_what_is() -> None:
    """Hazard 59."""
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        session.subscribing.clear()
        await client.send(publish(1, b"decided"), subscribe(2), publish(3, b"parked"))
        await client.ping()
        session.link.disconnect(ReasonCode.SESSION_TAKEN_OVER, "taken over")
        assert session.ended is not None
        assert session.ended.reason_code == ReasonCode.SESSION_TAKEN_OVER
        session.settle_all()
        session.subscribing.set()
        received = await client.read_all()
        assert received[:2] == [packets.PubackPacket(1), packets.SubackPacket(2, (1,))]
        assert reason(received[2]) == ReasonCode.SESSION_TAKEN_OVER
        assert session.published == [b"decided"]


async def test_a_takeover_of_a_normally_disconnected_client_removes_its_will() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        session.subscribing.clear()
        await client.send(subscribe(2), packets.DisconnectPacket())
        await client.read_all()
        session.link.disconnect(ReasonCode.SESSION_TAKEN_OVER, "taken over")
        assert session.ended is not None
        assert not session.ended.is_will_due


async def test_a_refused_message_of_3_1_1_ends_the_connection_and_what_is_behind_it() -> None:
    """Hazard 66: it is refused while the run is handed over, and the SUBSCRIBE behind it is not decided."""
    async with mqtt_front() as front, await front.client(V3) as client:
        front.broker.settles = ReasonCode.QUOTA_EXCEEDED
        session = await opened(front, client)
        await client.send(publish(1), subscribe(2), publish(3))
        assert await client.read_all() == []
        assert session.calls[1:] == [("publish", [b""])]
        assert session.ended is not None
        assert session.ended.reason_code == ReasonCode.QUOTA_EXCEEDED


async def test_a_subscribe_that_fails_ends_the_connection_with_the_reason() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        session.subscribe_error = errors.NotReady("no leader")
        await client.send(subscribe(1))
        (disconnect,) = await client.read_all()
        assert reason(disconnect) == ReasonCode.SERVER_BUSY
        assert session.ended is not None
        assert session.ended.reason_code == ReasonCode.SERVER_UNAVAILABLE


async def test_an_unknown_outcome_closes_without_acks() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        await client.send(publish(1), publish(2))
        await until(lambda: session.numbers)
        session.link.abandon(ReasonCode.UNSPECIFIED_ERROR, "unknown")
        session.settle_all()
        assert [reason(packet) for packet in await client.read_all()] == [ReasonCode.UNSPECIFIED_ERROR]


@both_versions
async def test_a_malformed_packet_is_answered_behind_what_was_before_it(version: ProtocolVersion) -> None:
    async with mqtt_front() as front, await front.client(version) as client:
        session = await opened(front, client)
        client.write(publish(1, b"m"), subscribe(2))
        client.writer.write(b"\x36\x00")
        await until(lambda: session.numbers)
        session.settle_all()
        suback, puback, *rest = await client.read_all()
        assert (suback, puback) == (packets.SubackPacket(2, (1,)), packets.PubackPacket(1))
        assert [reason(packet) for packet in rest] == ([ReasonCode.MALFORMED_PACKET] if version is V5 else [])
        assert session.ended is not None
        assert session.ended.is_will_due


CONVERSATION = b"".join(
    encode_packet(packet, V5)
    for packet in (
        packets.ConnectPacket("c"), publish(1, b"a" * 40), publish(2, b"b", 2), packets.PingreqPacket(), subscribe(3),
        publish(0, b"c"), packets.UnsubscribePacket(4, ("a",)), publish(5, b"d"),
    )
)  # fmt: skip


@settings(max_examples=25)
@given(st.lists(st.integers(1, len(CONVERSATION) - 1), unique=True, max_size=12), st.booleans())
async def test_the_same_bytes_make_the_same_calls_however_they_are_cut(cuts: list[int], is_uvloop: bool) -> None:
    def run(cuts: list[int]) -> tuple[list[object], list[packets.Packet]]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if is_uvloop else None) as runner:
            return runner.run(conversation(cuts))

    calls, received = await asyncio.to_thread(run, sorted(cuts))
    assert calls == [
        ("begin", None), b"a" * 40, b"b", ("subscribe", 3), b"c", ("unsubscribe", 4), b"d", ("release", 2),
    ]  # fmt: skip
    assert [packet for packet in received[1:] if packet != packets.PingrespPacket()] == [
        packets.PubackPacket(1), packets.PubrecPacket(2), packets.SubackPacket(3, (1,)),
        packets.UnsubackPacket(4, (0,)), packets.PubackPacket(5), packets.PubcompPacket(2),
    ]  # fmt: skip


async def conversation(cuts: list[int]) -> tuple[list[object], list[packets.Packet]]:
    async with mqtt_front() as front, await front.client() as client:
        front.broker.settles = 0
        for start, end in pairwise([0, *cuts, len(CONVERSATION)]):
            client.writer.write(CONVERSATION[start:end])
            await asyncio.sleep(0)
        received = [await client.read() for _ in range(7)]
        await client.send(packets.PubrelPacket(2))  # behind the PUBREC
        received.append(await client.read())
        await client.send(packets.DisconnectPacket())
        assert await client.read() is None
        session = front.session
        await until(lambda: session.ended)
        calls: list[object] = []
        for name, what in session.calls:
            calls += what if isinstance(what, list) else [(name, what)]
        return calls, [packet for packet in received if packet is not None]


# --- back-pressure ----------------------------------------------------------------------------------------------------


async def test_a_client_is_not_read_while_too_much_is_not_settled_and_pings_before_it_are_answered() -> None:
    async with mqtt_front() as front, await front.client(V3) as client:
        session = await opened(front, client)
        payload = bytes(60_000)
        client.write(packets.PingreqPacket(), *(publish(number, payload) for number in range(1, 100)))
        assert await client.read() == packets.PingrespPacket()
        await until(lambda: not is_read(only(front)))
        taken = len(session.published)
        assert taken < 99
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(session.published) == taken
        while len(session.published) < 99:
            before = len(session.published)
            session.settle_all()
            await until(partial(has_published_more, session, before))
        session.settle_all()
        assert [await client.read() for _ in range(99)] == [packets.PubackPacket(number) for number in range(1, 100)]


async def test_a_client_is_not_read_while_too_much_waits_behind_a_subscribe() -> None:
    """Hazard 67."""
    async with mqtt_front() as front, await front.client() as client:
        front.broker.settles = 0
        session = await opened(front, client)
        session.subscribing.clear()
        client.write(subscribe(1), *(subscribe(number, "a" * 30_000) for number in range(2, 40)))
        await until(lambda: not is_read(only(front)))
        assert only(front)._parked_bytes < limits.MQTT_PARKED_BYTES_MAX + 2 * limits.SOCKET_READ_BYTES
        session.subscribing.set()
        received = [await client.read() for _ in range(39)]
        assert received == [packets.SubackPacket(number, (1,)) for number in range(1, 40)]


async def test_a_client_that_does_not_read_gets_no_more_deliveries_until_it_does() -> None:
    async with mqtt_front() as front, await front.client(receive_buffer=4096) as client:
        session = await opened(front, client)
        narrow(only(front))
        sent = 0
        while session.link.can_send:
            session.link.send_publish(publish(0, bytes(10_000)))
            sent += 1
            await asyncio.sleep(0)
        assert sent * 10_000 < 2_000_000
        session.calls.clear()
        await client.send(publish(1))  # it is read all the same (hazard 67)
        await until(lambda: session.numbers)
        session.settle_all()
        for _ in range(sent):
            await client.read()
        await until(lambda: session.calls[-1] == ("resume_sending", None))
        assert session.link.can_send


def narrow(connection: MqttConnection) -> None:
    """Little of what the client does not read has room in the kernel and in the transport."""
    transport = connection._transport
    assert transport is not None
    if isinstance(connection, WireMqttConnection):
        descriptor = connection._wire.server.inspect(connection.number)[0]
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    else:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection.set_share(20_000)


def has_published_more(session: RecordingSession, before: int) -> bool:
    return len(session.published) > before


def is_read(connection: MqttConnection) -> bool:
    if isinstance(connection, WireMqttConnection):
        return bool(connection._wire.server.inspect(connection.number)[3])
    return connection._is_reading


async def test_many_deliveries_in_a_tick_leave_in_one_write_and_are_bounded() -> None:
    async with mqtt_front() as front, await front.client() as client:
        session = await opened(front, client)
        share = front.connections.budget.share
        while session.link.can_send:
            session.link.send_publish(publish(0, bytes(100_000)))
        assert only(front)._server.output_bytes < share + 200_000
        await client.read()
        await until(lambda: ("resume_sending", None) in session.calls)


async def test_a_client_that_does_not_take_its_answers_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard 73: pings are answered with as many bytes as they have."""
    monkeypatch.setattr(limits, "CONNECTION_ANSWER_BYTES_MAX", 20_000)
    async with mqtt_front() as front, await front.client(receive_buffer=4096) as client:
        await opened(front, client)
        connection = only(front)
        narrow(connection)
        flood = encode_packet(packets.PingreqPacket(), V5) * 1_000
        written = 0
        while is_read(connection):
            client.writer.write(flood)
            written += len(flood)
            await asyncio.sleep(0.0001)
            assert written < 4_000_000
        answers = 0
        while answers < written:
            answers += len(await asyncio.wait_for(client.reader.read(100_000), 20))
        await until(lambda: is_read(connection))


# --- keep alive -------------------------------------------------------------------------------------------------------


async def test_a_silent_client_is_disconnected_after_one_and_a_half_times_its_keep_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MQTT_SILENCE_GRACE_SECONDS", 0.0)
    async with mqtt_front() as front, await front.client() as client:
        began = asyncio.get_running_loop().time()
        session = await opened(front, client, keep_alive_seconds=1)
        assert reason(await client.read()) == ReasonCode.KEEP_ALIVE_TIMEOUT
        assert asyncio.get_running_loop().time() - began >= 1.5
        assert session.ended is not None
        assert session.ended.is_will_due


async def test_the_keep_alive_of_a_client_that_is_not_read_is_suspended() -> None:
    """Hazard 67: the client may have sent its ping long ago."""
    async with mqtt_front() as front, await front.client() as client:
        await opened(front, client, keep_alive_seconds=1)
        connection = only(front)
        connection._is_yielding = True
        connection._update_reading()
        connection._last_read -= 1_000
        connection._watch_silence(is_late=True)
        connection._stop_yielding()
        connection._watch_silence(is_late=True)
        await client.ping()
        connection._last_read -= 1_000
        connection._watch_silence(is_late=True)
        assert reason(await client.read()) == ReasonCode.KEEP_ALIVE_TIMEOUT


async def test_a_client_without_keep_alive_has_no_timer() -> None:
    async with mqtt_front() as front, await front.client() as client:
        await opened(front, client)
        assert only(front)._silence is None


# --- stop -------------------------------------------------------------------------------------------------------------


@both_versions
async def test_a_stop_answers_accepted_packets_and_sends_the_reason(version: ProtocolVersion) -> None:
    """Hazard 73."""
    async with mqtt_front() as front, await front.client(version) as client:
        session = await opened(front, client)
        session.subscribing.clear()
        await client.send(publish(1, b"a"), subscribe(2), publish(3, b"b"))
        await client.ping()
        stop = asyncio.ensure_future(front.listener.close())
        await until(lambda: not is_read(only(front)))
        await client.send(publish(4, b"not read"))
        session.subscribing.set()
        await until(lambda: len(session.numbers) == 2)
        await until(lambda: session.ended)
        assert session.ended is not None
        assert session.ended.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        session.settle_all()
        received = await client.read_all()
        client.close()
        await stop
        assert received[:3] == [packets.SubackPacket(2, (1,)), packets.PubackPacket(1), packets.PubackPacket(3)]
        assert [reason(packet) for packet in received[3:]] == (
            [ReasonCode.SERVER_SHUTTING_DOWN] if version is V5 else []
        )
        assert session.published == [b"a", b"b"]


async def test_a_stop_does_not_wait_long_for_what_is_never_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLOSE_SECONDS_MAX", 0.05)
    async with mqtt_front() as front, await front.client() as client, await front.client() as other:
        session = await opened(front, client)
        await client.send(publish(1))
        await client.ping()
        await other.send(packets.ConnectPacket("other"))
        await other.read()
        front.session.subscribing.clear()
        await other.send(subscribe(1), publish(2))
        await other.ping()
        await front.listener.close()
        assert await client.read_all() == []
        assert session.ended is not None
        assert front.session.ended is not None
        assert not front.connections.unfinished


async def test_a_stop_ends_connections_without_connect() -> None:
    async with mqtt_front() as front, await front.client() as client:
        await until(lambda: front.connections.unfinished)
        await front.listener.close()
        assert await client.read() is None
