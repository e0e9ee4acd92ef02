"""A client of gRPC over one connection of HTTP/2 that does what a benchmark needs, and costs little.

Calls are numbered by their streams. Headers that were sent once are sent as their place in the table of the peer, as
real clients do. What comes in header frames is not read: a call that failed is one that ended without a message.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW_MAX: Final = 2**31 - 1
WINDOW_FIRST: Final = 65_535
# Bytes that come before the window of the connection is opened again.
WINDOW_STEP: Final = 2**24
READ_BYTES: Final = 2**18
FIRST_PLACE: Final = 62  # of the table that both sides keep, behind those that everybody has
METHOD_POST, SCHEME_HTTP = b"\x83", b"\x86"
NAME_PLACES: Final = {":authority": 1, ":path": 4, "content-type": 31}


class Failed(Exception):
    """The peer closed the connection, or refused a call."""


class Refused(Failed):
    """The peer answered a call, with a status and no message."""


class Came(NamedTuple):
    """What came for a call: a piece of its answer, or its end."""

    stream: int
    data: bytes
    is_over: bool


class Headers:
    """The header block of a call to one path."""

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._places: dict[tuple[str, str], int] = {}

    def block(self, path: str) -> bytes:
        named = ((":path", path), (":authority", self._authority), ("content-type", "application/grpc"))
        return METHOD_POST + SCHEME_HTTP + b"".join(self._field(*one) for one in (*named, ("te", "trailers")))

    def _field(self, name: str, value: str) -> bytes:
        known = self._places.get((name, value))
        if known is not None:
            return bytes([0x80 | FIRST_PLACE + len(self._places) - 1 - known])
        self._places[name, value] = len(self._places)
        place = NAME_PLACES.get(name, 0)
        begin = bytes([0x40 | place]) if place else b"\x40" + _text(name)
        return begin + _text(value)


def _text(value: str) -> bytes:
    raw = value.encode()
    assert len(raw) < 127
    return bytes([len(raw)]) + raw


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">IBI", len(body) << 8 | kind, flags, stream) + body


class Connection:
    def __init__(self, address: str, seconds_max: float) -> None:
        """`seconds_max`: so long the peer may say nothing."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=seconds_max)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = Headers(address)
        self._next = 1
        self._in = b""
        self._read = 0  # bytes since the window was opened
        self._window = WINDOW_FIRST
        settings = struct.pack(">HIHI", 2, 0, 4, WINDOW_MAX)  # no push; the window of a stream
        self._out = [PREFACE, frame(SETTINGS, 0, 0, settings), _more(WINDOW_MAX - WINDOW_FIRST)]

    def call(self, path: str, message: bytes) -> int:
        """Its number. It leaves with the next `flush`."""
        stream, self._next = self._next, self._next + 2
        body = b"\0" + struct.pack(">I", len(message)) + message
        self._window -= len(body)
        if self._window < 0:
            raise Failed("more is under way than the window of the peer holds")
        self._out += [
            frame(HEADERS, END_HEADERS, stream, self._headers.block(path)),
            frame(DATA, END_STREAM, stream, body),
        ]
        return stream

    def flush(self) -> None:
        out, self._out = b"".join(self._out), []
        if out:
            self._socket.sendall(out)

    def answer(self, path: str, message: bytes) -> bytes:
        """One call, while nothing else is under way."""
        stream, found = self.call(path, message), b""
        self.flush()
        while True:
            for came in self.come():
                found += came.data
                if came.stream == stream and came.is_over:
                    if len(found) < 5:
                        raise Refused(f"{path} was refused")
                    return found[5:]

    def come(self) -> Iterator[Came]:
        """Waits for bytes, and says what was in them."""
        try:
            more = self._socket.recv(READ_BYTES)
        except TimeoutError:
            raise Failed("nothing came any more") from None
        if not more:
            raise Failed("the connection was closed")
        raw, at = self._in + more, 0
        while len(raw) - at >= 9 and len(raw) - at >= 9 + (size := int.from_bytes(raw[at : at + 3])):
            kind, flags, stream = raw[at + 3], raw[at + 4], int.from_bytes(raw[at + 5 : at + 9])
            body = raw[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == DATA:
                self._count(size)
                yield Came(stream, body, bool(flags & END_STREAM))
            elif kind == HEADERS:
                if flags & END_STREAM:
                    yield Came(stream, b"", True)
            else:
                self._control(kind, flags, stream, body)
        self._in = raw[at:]

    def _control(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind in (SETTINGS, PING) and not flags & ACK:
            self._out.append(frame(kind, ACK, 0, body if kind == PING else b""))
        elif kind == WINDOW and not stream:
            self._window += int.from_bytes(body)
        elif kind in (RESET, GOAWAY):
            raise Failed(f"the peer ended it: {body[-200:]!r}")

    def _count(self, size: int) -> None:
        self._read += size
        if self._read > WINDOW_STEP:
            self._out.append(_more(self._read))
            self._read = 0

    def close(self) -> None:
        self._socket.close()


def _more(count: int) -> bytes:
    return frame(WINDOW, 0, 0, struct.pack(">I", count))
