"""The native protocol on TCP, with the public calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from icestream import limits
from icestream.frontends.front_end import FrontEnd, local_address
from icestream.frontends.native.native_listener import NativeListener
from icestream.frontends.native.public_calls import CALLS, PORTS, Caller, CallTable
from icestream.rpc import handshake
from icestream.rpc.body_compression import Compression
from icestream.runtime.clock import SystemClock
from icestream.runtime.connection_room import RoomState
from icestream.runtime.open_files import connections_allowed
from icestream.settings import Settings


class NativeFrontEnd(FrontEnd):
    name = "native"
    _listener: NativeListener | None = None

    @property
    def listener(self) -> NativeListener:
        assert self._listener is not None, "the native front end does not listen yet"
        return self._listener

    @property
    def port(self) -> int:
        """0 while it does not listen."""
        return self._listener.port if self._listener is not None else 0

    @classmethod
    def configured_ports(cls, settings: Settings) -> Iterator[tuple[str, int]]:
        yield "ports.native", settings.ports.native

    async def listen(self) -> None:
        settings = self._settings
        handshake_server = handshake.HandshakeServer(
            settings.node.name,
            SystemClock().wall_us,
            frame_bytes_max(settings),
            Compression(),
            self._node.instance,
        )
        connections_max = connections_allowed(limits.CONNECTIONS_MAX, limits.OPEN_FILES_MESSAGE_SHARE)
        call_table = CallTable({**CALLS, PORTS: self._ports_call})
        listener = NativeListener(
            self._node.door, handshake_server, call_table, self.name, connections_max=connections_max
        )
        self._listener = listener
        await listener.listen(settings.node.bind_host, settings.ports.native, self._node.tls(self.name))

    async def _ports_call(self, caller: Caller, arguments: dict[str, object]) -> dict[str, object]:
        """The public call `ports`: a client that knows one port finds the others."""
        return self._node.ports()

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()

    @property
    def open_ports(self) -> Mapping[str, int]:
        return {"native_port": self.port}

    @property
    def connections(self) -> Sequence[RoomState]:
        return [self._listener.room] if self._listener is not None else []

    def greeting_lines(self) -> Iterator[str]:
        host = self._settings.node.bind_host
        suffix = "" if self._node.tls(self.name) is None else " (TLS)"
        yield f"native {f'[{host}]' if ':' in host else host}:{self.port}{suffix}"

    def addresses(self) -> dict[str, object]:
        return {"address": local_address(self._settings.node.bind_host, self.port)}


def frame_bytes_max(settings: Settings) -> int:
    """The largest frame of a client; a message of the maximum size always fits."""
    return max(limits.FRAME_BYTES_MAX_DEFAULT, settings.wal.max_message_bytes + limits.FRAME_OVERHEAD_BYTES)
