"""The PROXY protocol, version 2: a load balancer names the address of the client at the start of a connection.

    head      signature (12 bytes), version 2 and command (4 bits each), family and transport (4 bits each), u16 length
    body      as many bytes: source and destination address, then extensions, which are skipped

    command   LOCAL: the balancer itself, such as a health check: the address of the socket counts
              PROXY: a client; its source address counts. TCP by IPv4 or IPv6 only
    version   1, a line of text, is refused

The sender of a header could claim any address, so it is read from listed peers only, and they must send it
(ProxyPeers).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from struct import Struct
from typing import Final

from icestream import errors, limits

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD: Final = Struct("!12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_UNSPECIFIED, _TCP_4, _TCP_6 = 0x00, 0x11, 0x21
_ADDRESSES: Final = {_TCP_4: Struct("!4s4sHH"), _TCP_6: Struct("!16s16sHH")}


class ProxyPeers:
    """The peers that begin their connections with a PROXY header."""

    def __init__(self, networks: Iterable[str]) -> None:
        """`networks`: addresses or networks, as the setting has them."""
        self._networks = [ip_network(network) for network in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address):  # a socket of both families shows an IPv4 peer as ::ffff:10.1.2.3
            address = address.ipv4_mapped or address
        return any(address in network for network in self._networks)

    async def read(self, connection: socket.socket) -> str:
        """The address `host:port` of the client behind the peer; empty if the peer's own address counts.

        Reads exactly the header: what follows stays in the socket. Raises DecodeError for a peer that sends none, and
        EOFError for one that closes.
        """
        if connection.getpeername()[0] not in self:
            return ""
        head = await _receive(connection, _HEAD.size)
        return decode_address(head, await _receive(connection, body_length(head)))


def body_length(head: bytes) -> int:
    """The length of what follows the head. Raises DecodeError."""
    signature, command, _, length = _HEAD.unpack(head)
    if signature != _SIGNATURE:
        raise errors.DecodeError(
            "a peer of mqtt.proxy_protocol_from sent no PROXY header of version 2",
            hint="let the load balancer send it (HAProxy: send-proxy-v2), or take the peer off the list",
        )
    if command not in (_LOCAL, _PROXY):
        raise errors.DecodeError(f"a PROXY header has the version and command 0x{command:02x}, not 0x20 or 0x21")
    if length > limits.PROXY_HEADER_BYTES_MAX:
        raise errors.DecodeError(f"a PROXY header of {length} bytes is larger than {limits.PROXY_HEADER_BYTES_MAX}")
    return int(length)


def decode_address(head: bytes, body: bytes) -> str:
    """The address of the client; empty for that of the socket. `head` is valid. Raises DecodeError."""
    _, command, family, _ = _HEAD.unpack(head)
    if command == _LOCAL or family == _UNSPECIFIED:
        return ""
    form = _ADDRESSES.get(family)
    if form is None:
        raise errors.DecodeError(f"a PROXY header has the family and transport 0x{family:02x}, which is not TCP")
    if len(body) < form.size:
        raise errors.DecodeError(f"a PROXY header has {len(body)} bytes of addresses instead of {form.size}")
    source, _, port, _ = form.unpack_from(body)
    return f"{IPv4Address(source)}:{port}" if family == _TCP_4 else f"[{IPv6Address(source)}]:{port}"


def encode_header(client: tuple[str, int], server: tuple[str, int]) -> bytes:
    """The header for a connection of a client, by IPv4 or IPv6 addresses of one family or of both."""
    source, target = ip_address(client[0].partition("%")[0]), ip_address(server[0].partition("%")[0])
    family = _TCP_4
    if source.version == 6 or target.version == 6:
        family = _TCP_6
        source, target = _as_ipv6(source), _as_ipv6(target)
    body = _ADDRESSES[family].pack(source.packed, target.packed, client[1], server[1])
    return _HEAD.pack(_SIGNATURE, _PROXY, family, len(body)) + body


def _as_ipv6(address: IPv4Address | IPv6Address) -> IPv6Address:
    return address if isinstance(address, IPv6Address) else IPv6Address(f"::ffff:{address}")


async def _receive(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    received = b""
    while len(received) < size:
        piece = await loop.sock_recv(connection, size - len(received))
        if not piece:
            raise EOFError("the connection closed within the PROXY header")
        received += piece
    return received
