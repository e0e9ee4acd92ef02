"""MqttRelay: passes connections of MQTT clients on to the node that serves MQTT, byte by byte (ADR 81).

    client ── accepted socket ── RelayEnd ═══ RelayEnd ── dialled socket ── the node that serves MQTT

Nothing is read into: TLS and WebSocket end at the other node, which decides about credentials, rights and bounds. So a
relay holds no secret, and a client sees one broker, whichever node it connects to.

    dial      before anything is read of the client, but for the header of a load balancer; a node that cannot be
              reached closes the connection, and clients try again
    address   of the client is told by a PROXY header, if the other node takes headers from this one: all nodes have the
              same mqtt.proxy_protocol_from, so this one looks whether its own address is on the list
    pace      what one side does not take stops the reading of the other; nothing else is buffered
    end       an end of one side is the end of the other, after what was sent before it
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from icestream import limits
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.connection_room import RoomState
from icestream.runtime.keep_alive import keep_alive
from icestream.runtime.proxy_protocol import ProxyPeers, encode_header
from icestream.runtime.tls_server import NewProtocol

_log = get_logger("mqtt")


class RelayEnd(asyncio.Protocol):
    """One of the two sockets of a relayed connection."""

    def __init__(self, on_closed: Callable[[RelayEnd], None]) -> None:
        self.other: RelayEnd | None = None
        self.transport: asyncio.Transport | None = None
        self.is_closed = False
        self._on_closed = on_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        keep_alive(transport, limits.KEEP_ALIVE_SECONDS)
        if self.other is None:
            self.transport.pause_reading()  # until the other side is there
        elif self.other.transport is None:
            self.transport.close()  # the other side has ended meanwhile
        else:
            self.other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport, self.is_closed = None, True
        self._on_closed(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()  # what it has not taken yet is sent first

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class MqttRelay:
    """The relayed connections of one listener."""

    def __init__(self, listener: str, home: Callable[[], str], proxies: ProxyPeers, connections_max: int) -> None:
        """`listener`: its name in metrics. `home`: `host:port` of the node that serves MQTT, or empty."""
        self._listener = listener
        self._home = home
        self._proxies = proxies
        self._connections_max = connections_max
        self._ends: set[RelayEnd] = set()  # the sides of the other node
        self._refused = 0
        self._is_failing = False  # the last dial; logged once

    @property
    def state(self) -> RoomState:
        count = len(self._ends)
        return RoomState(self._listener, self._connections_max, count, count, 0, self._refused)

    async def join(self, accepted: socket.socket) -> NewProtocol:
        """Dials for a connection that was accepted; returns what makes its protocol.

        Raises OSError if there is no place or no way to the node, DecodeError and EOFError as ProxyPeers.read.
        """
        if len(self._ends) >= self._connections_max:
            self._refused += 1
            raise ConnectionRefusedError
        client = accepted.getpeername()[:2]
        if address := await self._proxies.read(accepted):
            host, _, port = address.rpartition(":")
            client = host.strip("[]"), int(port)
        far = await self._dial()
        local = far.get_extra_info("sockname")
        if local[0] in self._proxies:
            far.write(encode_header(client, far.get_extra_info("peername")[:2]))
        return partial(self._near_end, cast("RelayEnd", far.get_protocol()))

    async def _dial(self) -> asyncio.Transport:
        host, _, port = self._home().rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limits.MQTT_RELAY_DIAL_SECONDS):
                transport, end = await loop.create_connection(
                    lambda: RelayEnd(self._ends.discard), host.strip("[]"), int(port)
                )
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            metrics.MQTT_RELAYED.add("failed")
            if not self._is_failing:
                self._is_failing = True
                _log.warning("the node that serves MQTT cannot be reached", address=self._home(), error=str(error))
            raise OSError(str(error)) from error
        self._is_failing = False
        metrics.MQTT_RELAYED.add("relayed")
        self._ends.add(end)
        # Closes it if the accepted connection is gone before its protocol is made.
        loop.call_later(limits.MQTT_RELAY_DIAL_SECONDS, _abort_alone, end)
        return transport

    def _near_end(self, far: RelayEnd) -> RelayEnd:
        near = RelayEnd(lambda end: None)
        near.other, far.other = far, near
        return near

    async def close(self) -> None:
        """Ends all connections: clients connect again, to this node or another one."""
        for end in list(self._ends):
            if end.transport is not None:
                end.transport.close()
        await asyncio.sleep(0)
        for end in list(self._ends):
            end.abort()


def _abort_alone(end: RelayEnd) -> None:
    if end.other is None or (end.other.transport is None and not end.other.is_closed):
        end.abort()
