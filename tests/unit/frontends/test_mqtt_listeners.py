"""MQTT by WebSocket and behind proxies: what is let in, what is refused, and what hostile clients get."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from icestream import errors, limits
from icestream.frontends.mqtt.mqtt_listener import MqttListener
from icestream.frontends.mqtt.websocket_connection import is_allowed_origin
from icestream.mqtt import packets
from icestream.mqtt.codec import PacketDecoder, encode_packet
from icestream.mqtt.reason_codes import ReasonCode
from icestream.runtime.proxy_protocol import ProxyPeers
from tests.support.certificates import Certificates
from tests.support.mqtt_front import V5, MqttFront, client_context, mqtt_front, publish
from tests.support.proxy_header import SIGNATURE, proxy_header
from tests.support.until import until
from tests.unit.frontends.test_mqtt_access import listener_tls

pytestmark = pytest.mark.asyncio
MQTT = [Subprotocol("mqtt")]


def web(
    front: MqttFront, path: str = "/mqtt", *, subprotocols: Sequence[Subprotocol] | None = MQTT, **options: Any
) -> connect:
    scheme = "wss" if "ssl" in options else "ws"
    return connect(f"{scheme}://localhost:{front.listener.port}{path}", subprotocols=subprotocols, **options)


def encoded(*sent: packets.Packet) -> bytes:
    return b"".join(encode_packet(packet, V5) for packet in sent)


class WebPeer:
    """The packets of a WebSocket, however they are divided."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._decoder = PacketDecoder(version=V5)
        self._received: list[packets.Packet] = []

    async def read(self) -> packets.Packet:
        while not self._received:
            data = await asyncio.wait_for(self.socket.recv(), 20)
            assert isinstance(data, bytes)
            self._received += self._decoder.feed(data)
        return self._received.pop(0)


# --- WebSocket --------------------------------------------------------------------------------------------------------


async def test_packets_travel_in_binary_frames() -> None:
    async with mqtt_front(is_web=True) as front, web(front) as socket:
        front.broker.settles = 0
        assert socket.subprotocol == "mqtt"
        client = WebPeer(socket)
        await socket.send(encoded(packets.ConnectPacket("c"), publish(1, b"one")))
        assert isinstance(await client.read(), packets.ConnackPacket)
        assert await client.read() == packets.PubackPacket(1)
        data = encoded(publish(2, b"two" * 1000))
        await socket.send([data[:1], data[1:2], data[2:700], data[700:]])  # fragments of one message
        assert await client.read() == packets.PubackPacket(2)
        for byte in encoded(publish(3, b"three")):
            await socket.send(bytes([byte]))
        assert await client.read() == packets.PubackPacket(3)
        assert front.session.published == [b"one", b"two" * 1000, b"three"]
        front.session.link.send_publish(publish(7, b"out"))
        assert await client.read() == publish(7, b"out")
        await (await socket.ping(b"are you there"))


async def test_the_end_of_a_connection_is_a_close_frame_behind_the_reason() -> None:
    async with mqtt_front(is_web=True) as front, web(front) as socket:
        client = WebPeer(socket)
        await socket.send(encoded(packets.ConnectPacket("c")))
        await client.read()
        front.session.link.disconnect(ReasonCode.SESSION_TAKEN_OVER, "taken over")
        disconnect = await client.read()
        assert isinstance(disconnect, packets.DisconnectPacket)
        assert disconnect.reason_code == ReasonCode.SESSION_TAKEN_OVER
        with pytest.raises(ConnectionClosed):
            await client.read()
        assert socket.close_code == 1000


async def test_a_client_that_closes_is_an_end_without_goodbye() -> None:
    async with mqtt_front(is_web=True) as front:
        async with web(front) as socket:
            await socket.send(encoded(packets.ConnectPacket("c")))
            await WebPeer(socket).read()
            session = front.session
        await until(lambda: session.ended)
        assert session.ended is not None
        assert session.ended.is_will_due
        await until(lambda: not front.connections.unfinished)


async def test_text_frames_are_refused() -> None:
    """MQTT-6.0.0-1; what came before is decided."""
    async with mqtt_front(is_web=True) as front, web(front) as socket:
        front.broker.settles = 0
        client = WebPeer(socket)
        await socket.send(encoded(packets.ConnectPacket("c")))
        await client.read()
        await socket.send(encoded(publish(0, b"m")))
        await socket.send("text")
        with pytest.raises(ConnectionClosed):
            await client.read()
        assert socket.close_code == 1003
        await until(lambda: front.session.ended)
        assert front.session.published == [b"m"]


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/", {}, 404),
        ("/mqtt/", {}, 404),
        ("/mqtt", {"subprotocols": None}, 400),
        ("/mqtt", {"subprotocols": [Subprotocol("stomp")]}, 400),
        ("/mqtt", {"origin": "https://evil.example"}, 403),
        ("/mqtt", {"origin": "null"}, 403),
    ],
    ids=["another path", "a path below", "no subprotocol", "another subprotocol", "a foreign page", "a hidden page"],
)
async def test_an_upgrade_that_is_not_ours_is_refused(path: str, options: dict[str, Any], status: int) -> None:
    async with mqtt_front(is_web=True) as front:
        with pytest.raises(InvalidStatus) as refused:
            async with web(front, path, **options):
                pass
        assert refused.value.response.status_code == status
        await until(lambda: not front.connections.unfinished)


@pytest.mark.parametrize("path", ["/mqtt", "/mqtt?client=7"])
async def test_an_upgrade_of_this_machine_or_a_listed_page_is_accepted(path: str) -> None:
    async with mqtt_front(is_web=True, origins=["https://console.example"]) as front:
        for origin in ("http://localhost:3000", "http://127.0.0.1", "https://console.example", None):
            async with web(front, path, origin=origin) as socket:
                assert socket.subprotocol == "mqtt"


async def test_origins_are_compared_whole() -> None:
    allowed = ["https://console.example"]
    for origins in (
        ["https://console.example.evil"], ["http://console.example"], ["https://localhost.evil"], ["https://[::1"],
        ["https://console.example", "https://evil.example"], [""],
    ):  # fmt: skip
        assert not is_allowed_origin(origins, allowed)
    assert is_allowed_origin(["https://evil.example"], ["*"])


async def test_websockets_by_tls(tmp_path: Path) -> None:
    pem = Certificates(tmp_path)
    tls = client_context(pem.ca)
    async with mqtt_front(tls=listener_tls(pem, "none"), is_web=True) as front, web(front, ssl=tls) as socket:
        await socket.send(encoded(packets.ConnectPacket("c")))
        assert isinstance(await WebPeer(socket).read(), packets.ConnackPacket)


HANDSHAKE = (
    "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
).encode()


async def raw(front: MqttFront, *pieces: bytes) -> bytes:
    """All that a client receives that sends these bytes and does not close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.listener.port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def masked(data: bytes, opcode: Opcode = Opcode.BINARY, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (Frame(Opcode.BINARY, b"x").serialize(mask=False), 1002),
        (b"\xc2\x80\0\0\0\0", 1002),
        (b"\x83\x80\0\0\0\0", 1002),
        (masked(b"x", Opcode.CONT), 1002),
        (masked(b"x", fin=False) + masked(b"y"), 1002),
        (b"\x89\xfe\x00\x7e\0\0\0\0" + bytes(126), 1002),
        (b"\x82\xff" + (1 << 40).to_bytes(8) + bytes(4), 1009),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1009),
        (masked(b"x", Opcode.TEXT), 1003),
    ],
    ids=["unmasked", "reserved bit", "unknown opcode", "continuation of nothing", "message in a message", "long ping",
         "a terabyte", "a negative length", "text"],
)  # fmt: skip
async def test_frames_that_break_the_protocol_close_with_its_code(frames: bytes, code: int) -> None:
    async with mqtt_front(is_web=True) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.listener.port)
        writer.write(HANDSHAKE)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        writer.write(frames)
        close = await asyncio.wait_for(reader.read(), 20)
        assert close[:1] == b"\x88"
        assert int.from_bytes(close[2:4]) == code
        writer.transport.abort()
        await until(lambda: not front.connections.unfinished)


async def test_a_wrong_frame_that_comes_with_the_upgrade_closes() -> None:
    async with mqtt_front(is_web=True) as front:
        assert await raw(front, HANDSHAKE + b"\xc2\x80\0\0\0\0") == b""
        await until(lambda: not front.connections.unfinished)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"\x10\x0c\0\4MQTT\5\2\0\0\0\0\0\r\n\r\n", b""),
        (b"POST /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 405"),
        (b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 426"),
        (HANDSHAKE.replace(b"Version: 13", b"Version: 12"), b"HTTP/1.1 400"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n", b"HTTP/1.1 414"),
        (b"GET /mqtt HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"HTTP/1.1 431"),
    ],
    ids=["MQTT", "POST", "no upgrade", "an old version", "a long path", "many headers"],
)
async def test_requests_that_are_no_upgrade_are_answered_and_closed(request_: bytes, answer: bytes) -> None:
    async with mqtt_front(is_web=True) as front:
        assert (await raw(front, request_)).startswith(answer)


async def test_a_slow_upgrade_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS_MAX", 0.05)
    async with mqtt_front(is_web=True) as front:
        assert await raw(front, b"GET /mqtt HTTP/1.1\r\n") == b""
        assert (await raw(front, HANDSHAKE)).startswith(b"HTTP/1.1 101")  # and no CONNECT


async def test_a_client_that_does_not_read_its_pongs_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_ANSWER_BYTES_MAX", 50_000)
    async with mqtt_front(is_web=True) as front, await front.client(receive_buffer=4096) as client:
        client.writer.write(HANDSHAKE + masked(encoded(packets.ConnectPacket("c"))))
        await until(lambda: front.broker.sessions)
        ping = masked(bytes(125), Opcode.PING) * 100
        async with asyncio.timeout(20):
            while front.connections.unfinished:
                client.writer.write(ping)
                await asyncio.sleep(0)
        assert front.session.ended is not None


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=200) | st.binary(max_size=60).map(masked), max_size=8), st.booleans())
async def test_any_bytes_in_a_websocket_end_in_order(pieces: list[bytes], is_upgraded: bool) -> None:
    reported: list[dict[str, Any]] = []

    async def conversation() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with mqtt_front(is_web=True) as front:
            _, writer = await asyncio.open_connection("127.0.0.1", front.listener.port)
            for piece in [HANDSHAKE, *pieces] if is_upgraded else pieces:
                if not writer.transport.is_closing():
                    writer.write(piece)
                await asyncio.sleep(0)
            writer.transport.abort()
            await until(lambda: not front.connections.unfinished)

    await asyncio.to_thread(asyncio.run, conversation())
    assert not reported


# --- the PROXY protocol -----------------------------------------------------------------------------------------------


async def test_a_listed_proxy_states_the_address_of_the_client() -> None:
    async with mqtt_front(proxies=["127.0.0.0/8"]) as front, await front.client() as client:
        client.writer.write(proxy_header("192.0.2.7", 4711))
        await client.connect()
        assert front.session.link.address == "192.0.2.7:4711"
        assert front.broker.clients[-1].session.address == "192.0.2.7:4711"


async def test_the_header_comes_before_tls_and_before_the_upgrade(tmp_path: Path) -> None:
    pem = Certificates(tmp_path)
    async with mqtt_front(tls=listener_tls(pem, "none"), proxies=["127.0.0.1"], is_web=True) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.listener.port)
        writer.write(proxy_header("2001:db8::7", 4711))
        await writer.start_tls(client_context(pem.ca), server_hostname="localhost")
        writer.write(HANDSHAKE + masked(encoded(packets.ConnectPacket("c"))))
        session = await front.session_number(1)
        assert session.link.address == "[2001:db8::7]:4711"
        assert (await reader.readline()).startswith(b"HTTP/1.1 101")
        writer.transport.abort()


@pytest.mark.parametrize(
    "data",
    [
        encoded(packets.ConnectPacket("c")),
        b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 1883\r\n" + encoded(packets.ConnectPacket("c")),
        SIGNATURE + b"\x21\x11\xff\xff",
        SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
        os.urandom(64),
    ],
    ids=["no header", "version 1", "too long", "a later version", "noise"],
)
async def test_a_listed_proxy_without_a_valid_header_is_refused(data: bytes) -> None:
    async with mqtt_front(proxies=["127.0.0.1"]) as front:
        assert await raw(front, data) == b""
        assert front.broker.sessions == []


async def test_a_slow_header_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_SECONDS_MAX", 0.05)
    async with mqtt_front(proxies=["127.0.0.1"]) as front:
        assert await raw(front, SIGNATURE) == b""


async def test_a_header_of_another_peer_is_not_believed() -> None:
    async with mqtt_front(proxies=["192.0.2.1"]) as front:
        assert await raw(front, proxy_header("198.51.100.1", 1) + encoded(packets.ConnectPacket("c"))) == b""
        assert front.broker.sessions == []
        async with await front.client() as client:
            await client.connect()
            assert front.session.link.address.startswith("127.0.0.1:")


async def test_the_listener_without_proxies_refuses_a_header() -> None:
    async with mqtt_front() as front:
        assert await raw(front, proxy_header("198.51.100.1", 1) + encoded(packets.ConnectPacket("c"))) == b""
        assert front.broker.sessions == []


async def test_a_port_in_use_names_its_setting() -> None:
    async with mqtt_front() as front:
        other = MqttListener("ports.mqtt", front.connections, ProxyPeers([]))
        with pytest.raises(errors.ConfigurationError) as caught:
            await other.listen("127.0.0.1", front.listener.port, None)
        assert "ports.mqtt=0" in caught.value.hint


# --- hostile bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x10",
        b"\x10\xff\xff\xff\xff\x01",
        b"\x10\xff\xff\xff\x7f",
        b"\x10\x0c\0\4MQTT\5\2\0\0\0\0\0"[:9],
        b"\x30\x05\0\1tab",
        b"\xc0\x00",
        b"\x00\x00",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x10\x80\x80\x80\x00",
    ],
    ids=["a type", "five length bytes", "256 MiB", "half a CONNECT", "PUBLISH first", "PINGREQ first", "type 0", "HTTP",
         "TLS", "a length of too many bytes"],
)  # fmt: skip
async def test_a_first_packet_other_than_connect_closes_the_connection(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-21888: a remaining length of five bytes."""
    monkeypatch.setattr(limits, "HELLO_SECONDS_MAX", 0.1)
    async with mqtt_front() as front:
        received = await raw(front, data)
        assert received[:1] in (b"", b"\x20")
        assert front.broker.sessions == []
        await until(lambda: not front.connections.unfinished)
