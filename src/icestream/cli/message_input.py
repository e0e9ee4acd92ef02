"""Reads messages from a stream of bytes: one per line, as text or as a JSON object. Pure, except for `read_chunks`.

text     the line without its end is the payload; an empty line is an empty message
JSON     {"payload": "text"} or {"payload_base64": "…"}, optionally with "key" (or "key_base64") and "headers";
         empty lines are skipped. The output of `consume --format json` is accepted: topic, shard, offset, times and
         redelivery count are ignored. Any other field is an error.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import IO, Any, Final, NamedTuple

import msgspec

from icestream import errors, limits

CHUNK_BYTES: Final = 64 * limits.KIB
CHUNKS_AHEAD: Final = 2
# The longest JSON line of a message: every byte of the payload escaped as \u0000, plus key and headers.
_JSON_LINE_BYTES_MAX: Final = 6 * limits.MESSAGE_BYTES_MAX + limits.MIB


class MessageDraft(NamedTuple):
    """A message to be sent."""

    payload: bytes
    key: bytes | None = None
    headers: dict[str, str] | None = None


class _JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    payload: str | None = None
    payload_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] | None = None
    topic: Any = None
    shard: Any = None
    offset: Any = None
    publish_time: Any = None
    append_time: Any = None
    redelivery_count: Any = None


_decoder: Final = msgspec.json.Decoder(_JsonLine)


class LineSplitter:
    """Splits chunks into lines. A line that exceeds the size of a message is rejected before it fills the memory."""

    def __init__(self, *, as_json: bool) -> None:
        self._line_bytes_max = _JSON_LINE_BYTES_MAX if as_json else limits.MESSAGE_BYTES_MAX
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            yield self._joined(line)
        if rest:
            self._rest.append(rest)
            self._rest_bytes += len(rest)
            self._check(self._rest_bytes)

    def end(self) -> Iterator[bytes]:
        """The last line, if no line end follows it."""
        if self._rest:
            yield self._joined(b"")

    def _joined(self, line: bytes) -> bytes:
        self._check(self._rest_bytes + len(line))
        if self._rest:
            line = b"".join((*self._rest, line))
            self._rest, self._rest_bytes = [], 0
        return line

    def _check(self, size: int) -> None:
        if size > self._line_bytes_max:
            raise errors.MessageTooLarge(
                f"line exceeds the limit of {self._line_bytes_max} bytes", hint="each line is one message"
            )


def parse_json_line(line: bytes) -> MessageDraft | None:
    """The message of a JSON line; None for an empty line. Raises InvalidInput."""
    if not line.strip():
        return None
    try:
        fields = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.InvalidInput(
            f"not a JSON message: {error}",
            hint='expected a line such as {"payload": "text", "key": "k", "headers": {}}',
        ) from None
    payload = _decode_field("payload", fields.payload, fields.payload_base64)
    if payload is None:
        raise errors.InvalidInput(
            "message without payload", hint='"payload" contains text, "payload_base64" arbitrary bytes'
        )
    return MessageDraft(payload, _decode_field("key", fields.key, fields.key_base64), fields.headers)


def _decode_field(name: str, text: str | None, encoded: str | None) -> bytes | None:
    if text is not None and encoded is not None:
        raise errors.InvalidInput(f"both {name} and {name}_base64 are given", hint="use one of them")
    if encoded is None:
        return None if text is None else text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise errors.InvalidInput(
            f"{name}_base64 is not valid base64: {error}", hint=f"text can be given in {name} without encoding"
        ) from None


async def read_chunks(source: IO[bytes]) -> AsyncIterator[bytes]:
    """Chunks of the source as they become available, without blocking the event loop. Raises InvalidInput if the
    source cannot be read."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    slots = threading.Semaphore(CHUNKS_AHEAD)

    def put(chunk: bytes | OSError) -> None:
        slots.acquire()
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the command has ended
            try:
                while chunk := _read(source):
                    put(chunk)
                put(b"")
            except OSError as error:
                put(error)

    # A read of an idle terminal cannot be interrupted, and must not keep the process from ending: hence a daemon
    # thread, and reads without Python's buffer, whose lock the interpreter would wait for at its end.
    threading.Thread(target=read, name="icestream-input", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise errors.InvalidInput(f"cannot read the input: {chunk}")
        yield chunk
        slots.release()


def _read(source: IO[bytes]) -> bytes:
    if source.closed:  # the command was interrupted
        return b""
    try:
        descriptor = source.fileno()
    except OSError:  # not a file: bytes in memory
        return source.read(CHUNK_BYTES)
    return os.read(descriptor, CHUNK_BYTES)
