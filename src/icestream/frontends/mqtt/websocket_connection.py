"""MQTT by WebSocket (MQTT 5.0, section 6): the frames around the bytes of an MQTT connection.

    upgrade    an HTTP request: path, origin and the subprotocol `mqtt` are checked; else 404, 403 or 400
    open       payloads of binary frames are the bytes of the connection, however they are divided: a packet may have
               several frames, and a frame several packets. What the connection writes in a tick is one frame
    closing    a Close frame was sent; frames that still arrive are discarded until that of the client

A text frame closes with 1003 (MQTT-6.0.0-1). No compression is agreed on. Pings are answered, as long as the client
takes the answers. The places of the listener, the time for CONNECT and all other bounds are those of the MQTT
connection, which is there from the start.

A web page may open a WebSocket to any address that its visitor reaches, and its origin is all that tells it from other
clients: so origins are refused that are not of this machine and not listed (`mqtt.websocket_origins`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import urlsplit

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from icestream import limits
from icestream.frontends.mqtt.mqtt_connection import MqttConnection
from icestream.settings.text import is_loopback

_SUBPROTOCOL: Final = Subprotocol("mqtt")


class WebSocketConnection(asyncio.Protocol):
    """The socket's side. The MQTT connection sees a transport."""

    def __init__(self, connection: MqttConnection, path: str, origins: Collection[str], frame_bytes_max: int) -> None:
        """`origins`: those that are allowed beside this machine's, `*` for all."""
        self._connection = connection
        self._path = path
        self._origins = origins
        # A message may be of any length, because its fragments are passed on as they come.
        self._protocol = ServerProtocol(subprotocols=[_SUBPROTOCOL], max_size=(None, frame_bytes_max))
        self._socket: asyncio.Transport | None = None
        self._is_paused = False
        self._unread_answers = 0  # bytes of pongs that the client may not have read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        self._connection.connection_made(FrameTransport(self, self._socket))

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        received: list[bytes] = []
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")
                break
            elif isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
                received.append(bytes(event.data))
        self.flush()
        if received:
            self._connection.data_received(b"".join(received))

    def _answer(self, request: Request) -> None:
        protocol = self._protocol
        if urlsplit(request.path).path != self._path:
            response = protocol.reject(HTTPStatus.NOT_FOUND, f"MQTT is at {self._path}.\n")
        elif not is_allowed_origin(request.headers.get_all("Origin"), self._origins):
            response = protocol.reject(
                HTTPStatus.FORBIDDEN, "This origin is not allowed: list it in mqtt.websocket_origins.\n"
            )
        else:
            response = protocol.accept(request)
        protocol.send_response(response)

    def flush(self) -> None:
        """Writes what the protocol has to send. Its end closes the socket once that is written."""
        socket = self._socket
        for data in self._protocol.data_to_send():
            if socket is None or socket.is_closing():
                return
            if data == SEND_EOF:
                socket.close()
            else:
                self._unread_answers += len(data) if self._is_paused else 0
                socket.write(data)
        if self._unread_answers >= limits.CONNECTION_ANSWER_BYTES_MAX and socket is not None:
            socket.abort()

    def send(self, data: bytes) -> None:
        """Sends bytes of the connection as one frame; nothing before the upgrade and after the end."""
        if self._protocol.state is State.OPEN:
            unread = self._unread_answers
            self._protocol.send_binary(data)
            self.flush()
            self._unread_answers = unread  # the connection counts its own

    def send_close(self) -> None:
        """Begins the closing handshake; before the upgrade the socket closes at once."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self.flush()
            if self._socket is not None:
                self._socket.resume_reading()
        elif self._socket is not None:
            self._socket.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = None
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._unread_answers = 0
        self._connection.resume_writing()


class FrameTransport(asyncio.Transport):
    """The transport of an MQTT connection inside a WebSocket."""

    def __init__(self, stream: WebSocketConnection, socket: asyncio.Transport) -> None:
        super().__init__()
        self._stream = stream
        self._socket = socket
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._stream.send(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing or self._socket.is_closing()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._stream.send_close()

    def abort(self) -> None:
        self._is_closing = True
        self._socket.abort()

    def is_reading(self) -> bool:
        return self._socket.is_reading()

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)


def is_allowed_origin(origins: Collection[str], allowed: Collection[str]) -> bool:
    """Whether a request with these Origin headers may connect."""
    if not origins or "*" in allowed:
        return True
    if len(origins) > 1:
        return False
    (origin,) = origins
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return False
    return is_loopback(host) or origin in allowed
