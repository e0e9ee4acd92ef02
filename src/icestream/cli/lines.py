"""Messages out of a stream of bytes: one per line, as it is or as a JSON object. Pure, but for `read_chunks`.

text     the line without its end is the payload; an empty line is an empty message
JSON     {"payload": "text"} or {"payload_base64": "…"}, with "key" (or "key_base64") and "headers" if wanted;
         empty lines are skipped. What `consume --format json` writes can be read: where a message stood before is
         ignored. Any other field is a mistake.
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
# What JSON may need at most for a message: every byte of the payload as \u0000, and the rest.
_JSON_LINE_BYTES_MAX: Final = 6 * limits.MESSAGE_BYTES_MAX + limits.MIB


class Draft(NamedTuple):
    """A message that is not sent yet."""

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
    """Lines out of chunks. A line longer than a message can be is refused before it fills the memory."""

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
        """The last line, where no line end follows it."""
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
                f"a line of more than {self._line_bytes_max} bytes", hint="each line is one message"
            )


def draft_of_json(line: bytes) -> Draft | None:
    """None: an empty line. Raises InvalidInput."""
    if not line.strip():
        return None
    try:
        found = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.InvalidInput(
            f"not a message in JSON: {error}", hint='a line is like {"payload": "text", "key": "k", "headers": {}}'
        ) from None
    payload = _bytes_of("payload", found.payload, found.payload_base64)
    if payload is None:
        raise errors.InvalidInput("a message without payload", hint='"payload" is text, "payload_base64" any bytes')
    return Draft(payload, _bytes_of("key", found.key, found.key_base64), found.headers)


def _bytes_of(name: str, text: str | None, encoded: str | None) -> bytes | None:
    if text is not None and encoded is not None:
        raise errors.InvalidInput(f"both {name} and {name}_base64", hint="give one of them")
    if encoded is None:
        return None if text is None else text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise errors.InvalidInput(
            f"{name}_base64 is not base64: {error}", hint=f"text may stand in {name} as it is"
        ) from None


async def read_chunks(source: IO[bytes]) -> AsyncIterator[bytes]:
    """What can be read at the moment, again and again, without keeping the loop from turning.

    A thread reads, a little ahead. It is a daemon and reads without Python's buffer: nobody can wake it up
    when a terminal stays silent, and the process must end all the same.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)

    def put(chunk: bytes | OSError) -> None:
        room.acquire()
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            try:
                while chunk := _read(source):
                    put(chunk)
                put(b"")
            except OSError as error:
                put(error)

    threading.Thread(target=read, name="icestream-input", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise errors.InvalidInput(f"the input cannot be read: {chunk}")
        yield chunk
        room.release()


def _read(source: IO[bytes]) -> bytes:
    if source.closed:  # somebody gave up
        return b""
    try:
        number = source.fileno()
    except OSError:  # not a file: bytes in memory
        return source.read(CHUNK_BYTES)
    return os.read(number, CHUNK_BYTES)
