"""Native frames over TLS, on both wires, with real clients: what gets in, what does not, and what it costs others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import icestream
from icestream import errors, limits
from icestream.frontends.native.native_connection import NativeConnection
from icestream.runtime.listener_tls import ListenerTls, TlsFiles
from icestream.testing import TestBroker
from tests.support.certificates import Certificates
from tests.support.until import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]
TOPIC = "/default/orders"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@contextlib.asynccontextmanager
async def serving(section: dict[str, Any]) -> AsyncIterator[TestBroker]:
    async with icestream.testing.broker(settings={"tls": section}) as broker:
        yield broker


def connection_of(broker: TestBroker) -> NativeConnection:
    (only,) = broker.node.native._connections
    return only


def port_of(broker: TestBroker) -> int:
    return broker.node.native.port


@pytest.mark.parametrize("seed", range(3))
async def test_messages_of_all_sizes_pass_unchanged(native_wire: str, pem: Certificates, seed: int) -> None:
    choice = random.Random(seed)
    sizes = [choice.choice((0, 1, 100, 16_000, 16_384, 20_000, 70_000, 400_000)) for _ in range(30)]
    payloads = [choice.randbytes(size) for size in sizes]
    async with serving(pem.settings()) as broker, icestream.connect(broker.address, tls=pem.client_tls()) as client:
        async with client.producer(TOPIC) as producer:
            for sent in [producer.send(payload) for payload in payloads]:
                await sent
        received = []
        async with client.subscribe(TOPIC, "s", start="earliest") as messages:
            async for message in messages:
                received.append(bytes(message.payload))
                message.ack()
                if len(received) == len(payloads):
                    break
    assert received == payloads


async def test_a_client_certificate_reaches_the_connection(native_wire: str, pem: Certificates) -> None:
    der = ssl.PEM_cert_to_DER_cert(pem.client.read_text())
    async with serving(pem.settings("optional")) as broker:
        async with icestream.connect(broker.address, tls=pem.client_tls(pem.client)):
            assert connection_of(broker).peer_certificate == der
        await until(lambda: not len(broker.node.native._connections))
        async with icestream.connect(broker.address, tls=pem.client_tls()):
            assert connection_of(broker).peer_certificate is None


@pytest.mark.parametrize("shown", ["none", "stranger", "expired"])
async def test_without_a_valid_certificate_no_frame_is_answered(
    native_wire: str, pem: Certificates, shown: str
) -> None:
    certificate = {"none": None, "stranger": pem.stranger, "expired": pem.expired}[shown]
    async with serving(pem.settings("required")) as broker:
        async with icestream.connect(broker.address, tls=pem.client_tls(pem.client)):
            pass
        with pytest.raises((errors.ConnectionLost, errors.TlsFailed)):
            await icestream.connect(broker.address, tls=pem.client_tls(certificate))
        assert not len(broker.node.native._connections)


async def test_a_client_does_not_accept_a_broker_that_it_cannot_prove(
    native_wire: str, pem: Certificates, tmp_path: Path
) -> None:
    async with serving(pem.settings()) as broker:
        with pytest.raises(errors.TlsFailed, match="certificate is not accepted"):
            await icestream.connect(broker.address, tls=pem.client_tls(ca=pem.client_ca))
        with pytest.raises(errors.TlsFailed, match="certificate is not accepted"):
            await icestream.connect(broker.address, tls=pem.client_tls(server_name="elsewhere.test"))
        # OpenSSL closes a connection that begins with plain text without an alert.
        refusal = errors.WrongPort if native_wire == "wire" else errors.ConnectionLost
        with pytest.raises(refusal) as refused:
            await icestream.connect(broker.address)
        assert native_wire == "asyncio" or "tls=" in refused.value.hint
        async with icestream.connect(broker.address, tls=pem.client_tls(server_name="localhost")) as client:
            assert client.is_connected
    async with icestream.testing.broker() as plain:
        with pytest.raises((errors.TlsFailed, errors.ConnectionLost)):
            await icestream.connect(plain.address, tls=pem.client_tls())


async def test_tls_1_2_is_the_oldest_version_and_1_3_by_setting(native_wire: str, pem: Certificates) -> None:
    def shake_hands(port: int) -> str | None:
        context = ssl.create_default_context(cafile=str(pem.ca))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            return secured.version()

    async with serving(pem.settings()) as broker:
        assert await asyncio.to_thread(shake_hands, port_of(broker)) == "TLSv1.2"
        tls = broker.node.certificates.listeners["native"]
        assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
    async with serving(pem.settings(min_version="1.3")) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(shake_hands, port_of(broker))


# --- hostile ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70_000), os.urandom(5000)]
)
async def test_bytes_other_than_tls_close_the_socket_before_a_connection(
    native_wire: str, pem: Certificates, garbage: bytes
) -> None:
    async with serving(pem.settings()) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
        with contextlib.suppress(ConnectionError):
            writer.write(garbage)
            await writer.drain()
            assert len(await reader.read()) < 100, "an alert at most"
        writer.close()
        assert not len(broker.node.native._connections)
        async with raw_tls_client(broker, pem):
            pass


@contextlib.asynccontextmanager
async def raw_tls_client(broker: TestBroker, pem: Certificates) -> AsyncIterator[None]:
    async with icestream.connect(broker.address, tls=pem.client_tls()) as client:
        assert await client.list_topics() is not None
        yield


async def test_hazard_120_half_open_connections_evict_only_each_other(
    native_wire: str, pem: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of half-open connections: clients that are connected stay, and a new one gets in."""
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_SECONDS_MAX", 60.0)  # none is closed because it is slow
    async with serving(pem.settings()) as broker, icestream.connect(broker.address, tls=pem.client_tls()) as client:
        floods = [await asyncio.open_connection("127.0.0.1", port_of(broker)) for _ in range(2_000)]
        for index, (_, writer) in enumerate(floods):
            writer.write(b"\x16\x03\x01\x02\x00\x01"[: index % 7])  # a hello that never ends
        closed = [asyncio.ensure_future(reader.read()) for reader, _ in floods]
        async with asyncio.timeout(20), raw_tls_client(broker, pem):
            await until(lambda: sum(task.done() for task in closed) >= len(floods) - limits.TLS_HALF_OPEN_MAX)
        assert client.connections == 1
        assert await client.list_topics() == []
        for task in closed:
            task.cancel()
        await asyncio.gather(*closed, return_exceptions=True)
        for _, writer in floods:
            writer.close()


async def test_a_slow_handshake_is_closed(native_wire: str, pem: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_SECONDS_MAX", 0.2)
    async with serving(pem.settings()) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_a_client_may_send_behind_its_handshake_and_end_at_any_byte(native_wire: str, pem: Certificates) -> None:
    """Frames in the same packet as the end of the handshake are not lost; a connection that is cut is no hang."""
    from icestream.rpc import frame, handshake
    from icestream.rpc.frame import FrameKind

    hello = frame.encode_frame(FrameKind.HELLO, 1, handshake.encode_hello(handshake.Hello()))
    ping = frame.encode_frame(FrameKind.PING, 2, b"")

    def speak(port: int) -> bytes:
        to_broker, from_broker = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(pem.ca))
        session = context.wrap_bio(from_broker, to_broker, server_hostname="127.0.0.1")
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            while True:
                try:
                    session.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(to_broker.read())
                    from_broker.write(plain.recv(65536))
            session.write(hello + ping)
            plain.sendall(to_broker.read())  # the end of the handshake, HELLO and PING in one piece
            received = b""
            while len(received) < 24 or received[-12:-8] != ping[4:8].replace(b"\x06", b"\x07", 1):
                try:
                    received += session.read(65536)
                except ssl.SSLWantReadError:
                    more = plain.recv(65536)
                    assert more, received
                    from_broker.write(more)
            return received

    async with serving(pem.settings()) as broker:
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(speak, port_of(broker))
        await until(lambda: not len(broker.node.native._connections))


# --- certificates that change -----------------------------------------------------------------------------------------


def replace(target: Path, source: Path) -> None:
    for suffix in (".pem", ".key"):
        copy = target.with_suffix(f"{suffix}.new")
        shutil.copy2(source.with_suffix(suffix), copy)
        copy.replace(target.with_suffix(suffix))


async def test_hazard_124_a_half_written_certificate_keeps_the_old_one(
    native_wire: str, pem: Certificates, tmp_path: Path
) -> None:
    server = tmp_path / "live.pem"
    replace(server, pem.server)
    section = pem.settings(certificate=str(server), key=str(server.with_suffix(".key")))
    async with serving(section) as broker:
        certificates = broker.node.certificates
        tls = certificates.listeners["native"]

        async def served_by() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker), ssl=pem.client_tls().context())
            shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            del reader
            return shown

        first = await served_by()
        whole = server.read_bytes()
        async with icestream.connect(broker.address, tls=pem.client_tls()) as client:
            for broken in (whole[: len(whole) // 2], b"", pem.client.read_bytes()):  # half, empty, another key's
                server.write_bytes(broken)
                assert tls.refresh()
                assert tls.fault
                assert await served_by() == first
                check = certificates.check(datetime.now(UTC))
                assert check is not None
                assert not check.ok
                assert not check.is_needed
                assert b'icestream_certificate_stale{listener="native"} 1.0' in await broker.node.services.exposition()
            replace(server, pem.issue("renewed", pem.authority, "127.0.0.1"))
            assert tls.refresh()
            assert not tls.fault
            renewed = await served_by()
            assert renewed == ssl.PEM_cert_to_DER_cert((pem.folder / "renewed.pem").read_text()) != first
            assert await client.list_topics() == [], "an open connection goes on"
        exposition = await broker.node.services.exposition()
        assert b'icestream_certificate_stale{listener="native"} 0.0' in exposition
        assert b'icestream_certificate_end_timestamp_seconds{setting="tls.certificate"}' in exposition


async def test_a_key_that_others_can_read_is_refused_with_the_fix(pem: Certificates, tmp_path: Path) -> None:
    server = tmp_path / "open.pem"
    replace(server, pem.server)
    key = server.with_suffix(".key")
    key.chmod(0o640)
    with pytest.raises(errors.ConfigurationError, match="mode 0640") as refused:
        ListenerTls("native", TlsFiles("tls.certificate", server, key))
    assert refused.value.hint == f"chmod 600 {key}"
    with pytest.raises(errors.ConfigurationError, match="mode 0640"):
        pem.client_tls(certificate=None, key=None).__class__(pem.ca, server, key).context()
