"""The PROXY protocol: which peers are believed, what is read, and what is refused."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.runtime.proxy_protocol import ProxyPeers, body_length, decode_address
from tests.support.proxy_header import SIGNATURE, proxy_header


def decode(data: bytes) -> str:
    return decode_address(data[:16], data[16 : 16 + body_length(data[:16])])


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (proxy_header("192.0.2.7", 4711), "192.0.2.7:4711"),
        (proxy_header("2001:db8::7", 4711), "[2001:db8::7]:4711"),
        (proxy_header("192.0.2.7", 4711, extensions=b"\x04\x00\x02ab"), "192.0.2.7:4711"),
        (SIGNATURE + b"\x20\x00\x00\x00", ""),
        (SIGNATURE + b"\x20\x11\x00\x02ab", ""),
        (SIGNATURE + b"\x21\x00\x00\x00", ""),
    ],
    ids=["IPv4", "IPv6", "with extensions", "LOCAL", "LOCAL with a body", "unspecified"],
)
def test_the_address_of_the_client_is_the_source(data: bytes, address: str) -> None:
    assert decode(data) == address


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 1883\r\n",
        b"\x10\x0c\0\4MQTT\5\2\0\0\0\0\0\0",
        SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x12\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216),
        SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),
        SIGNATURE + b"\x21\x21\x00\x23" + bytes(35),
        SIGNATURE + b"\x21\x11" + struct.pack("!H", limits.PROXY_HEADER_BYTES_MAX + 1) + bytes(3_000),
        SIGNATURE[:-1] + b"\r\x21\x11\x00\x0c" + bytes(12),
    ],
    ids=[
        "version 1",
        "MQTT",
        "version 1 in binary",
        "command 2",
        "UDP",
        "unix",
        "short IPv4",
        "short IPv6",
        "too long",
        "another signature",
    ],
)
def test_bytes_other_than_a_tcp_header_are_refused(data: bytes) -> None:
    with pytest.raises(errors.DecodeError):
        decode(data)


@given(
    st.binary(min_size=16, max_size=600) | st.binary(max_size=600).map(lambda tail: SIGNATURE + tail.ljust(4, b"\0"))
)
def test_any_bytes_are_an_address_or_our_error(data: bytes) -> None:
    try:
        address = decode(data)
    except errors.DecodeError:
        return
    assert address == "" or address.rpartition(":")[2].isdigit()


def test_only_listed_peers_are_believed() -> None:
    peers = ProxyPeers(["10.1.0.0/16", "192.0.2.1", "2001:db8::/32"])
    for host in ("10.1.2.3", "192.0.2.1", "2001:db8::5", "::ffff:10.1.2.3"):
        assert host in peers
    for host in ("10.2.0.1", "192.0.2.2", "2001:db9::5", "::ffff:10.2.0.1", "localhost", ""):
        assert host not in peers
    assert not ProxyPeers([])


@pytest.mark.asyncio
async def test_a_header_in_pieces_is_read_and_nothing_behind_it() -> None:
    """What follows may be the beginning of a TLS handshake."""
    listening = socket.create_server(("127.0.0.1", 0))
    sending = socket.create_connection(listening.getsockname())
    accepted, _ = listening.accept()
    accepted.setblocking(False)
    with listening, sending, accepted:
        data = proxy_header("192.0.2.7", 4711, extensions=b"\x04\x00\x01a")
        reading = asyncio.ensure_future(ProxyPeers(["127.0.0.1"]).read(accepted))
        for byte in data:
            sending.sendall(bytes([byte]))
            await asyncio.sleep(0)
        sending.sendall(b"behind")
        assert await reading == "192.0.2.7:4711"
        assert accepted.recv(100) == b"behind"


@pytest.mark.asyncio
async def test_a_peer_that_closes_within_the_header_is_its_own_error() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    sending = socket.create_connection(listening.getsockname())
    accepted, _ = listening.accept()
    accepted.setblocking(False)
    with listening, accepted:
        sending.sendall(SIGNATURE)
        sending.close()
        with pytest.raises(EOFError):
            await ProxyPeers(["127.0.0.0/8"]).read(accepted)
