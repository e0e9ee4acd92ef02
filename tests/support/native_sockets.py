"""The server's end of a native connection, whether an asyncio transport or the native wire reads it."""

from __future__ import annotations

import os
import socket

from icestream.frontends.native.native_connection import NativeConnection


def set_send_buffer(connection: NativeConnection, size: int) -> None:
    """Bounds how much of what the client does not read waits in the kernel."""
    if connection._wire is None:
        assert connection._transport is not None
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        return
    with socket.socket(fileno=os.dup(_state(connection)[0])) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def unsent_bytes(connection: NativeConnection) -> int:
    """Bytes that the broker has queued and the kernel has not taken."""
    if connection._wire is None:
        assert connection._transport is not None
        return connection._transport.get_write_buffer_size()
    return _state(connection)[2]


def incomplete_bytes(connection: NativeConnection) -> int:
    """Bytes received that are not part of a complete frame yet."""
    return _state(connection)[1] if connection._stream is None else connection._stream.incomplete_bytes


def is_stopped(connection: NativeConnection) -> bool:
    """True while the socket is not read, because something that came from it has to wait."""
    return connection._is_waiting if connection._wire is None else not _state(connection)[3]


def _state(connection: NativeConnection) -> tuple[int, int, int, bool]:
    assert connection._wire is not None
    state: tuple[int, int, int, bool] | None = connection._wire._server.inspect(connection._wire.number)
    return state or (-1, 0, 0, True)
