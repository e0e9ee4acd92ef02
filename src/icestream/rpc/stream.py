"""Turns the bytes of a connection into frames. Sans-IO: somebody else reads the socket.

The socket is read into a chunk of memory (`get_buffer`, `received`, as asyncio.BufferedProtocol has them), and a frame
is copied out of it once, when it is whole. A frame that does not end in its chunk stays where it is; the next chunk
takes the rest, and the pieces are joined when the last one is there. So memory follows what was really sent, never what
a frame only claims to be.

    chunk     SOCKET_READ_BYTES_MIN while little comes; SOCKET_READ_BYTES after a read that filled it, or for the rest
              of a long frame
    pieces    of the one frame under way, at most frame_bytes_max and a third: a chunk is set aside when less than a
              quarter of it is free. They are given back with the frame

The same bytes give the same frames and the same failure, however they are divided: frames are cut off one by one while
the caller takes them, so those in front of a bad one are carried out first, and a bound that the caller changes counts
for the very next frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from icestream import errors, limits
from icestream.rpc.frame import ANY_KIND, COMPRESSED, HEAD, SIZE_FIELD_BYTES, SIZE_MIN, Frame


class FrameStream:
    """`frame_bytes_max` and `kinds` may change at any time: after the handshake they do."""

    def __init__(
        self, frame_bytes_max: int = limits.FRAME_BYTES_MAX_DEFAULT, kinds: Collection[int] = ANY_KIND
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.kinds = kinds
        self._failure: errors.DecodeError | None = None
        self._pieces: list[memoryview] = []  # of the body of the frame under way
        self._head = (0, 0, 0)  # kind, flags and number of that frame
        self._missing = 0  # bytes of that body that are in no piece yet
        self._set_aside_bytes = 0  # of the chunks that the pieces keep
        self._last_read = 0
        self._start = 0  # of what is not a frame yet
        self._end = 0  # of what was received
        self._begin_chunk(limits.SOCKET_READ_BYTES_MIN)

    def get_buffer(self) -> memoryview:
        """Where the next bytes of the socket go; never empty. Raises what made the stream fail."""
        if self._failure is not None:
            raise self._failure
        size = len(self._chunk)
        room = size - self._end
        if self._start == self._end:
            self._start_over(size, room)
        elif room < size // 4 and room < self._rest():
            self._set_aside()
        return self._view[self._end :]

    def received(self, count: int) -> Iterator[Frame]:
        """So many bytes were put there; the frames that they complete, to be taken before the next call.

        The iterator raises DecodeError at the first frame that is none: the stream is lost then.
        """
        self._end += count
        self._last_read = count
        return self._frames()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The same for bytes that are already here."""
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            yield from self.received(count)

    def ended(self) -> None:
        """The other side has closed the connection. Raises DecodeError when that cuts a frame off."""
        if self.held_bytes:
            raise errors.DecodeError("the connection ended inside a frame")

    @property
    def held_bytes(self) -> int:
        """Received, and not yet part of a whole frame."""
        head = HEAD.size if self._pieces else 0
        return head + sum(map(len, self._pieces)) + self._end - self._start

    @property
    def memory_bytes(self) -> int:
        """What the stream has taken, used or not."""
        return len(self._chunk) + self._set_aside_bytes

    # --- frames -------------------------------------------------------------------------------------------------------

    def _frames(self) -> Iterator[Frame]:
        if self._failure is not None:
            raise self._failure
        if self._pieces:
            if self._end - self._start < self._missing:
                return
            yield self._join()
        while self._end - self._start >= HEAD.size:
            view, at = self._view, self._start
            size, kind, flags, zero, number = HEAD.unpack_from(view, at)
            if not SIZE_MIN <= size <= self.frame_bytes_max or kind not in self.kinds or flags & ~COMPRESSED or zero:
                raise self._fail(size, kind)
            end = at + SIZE_FIELD_BYTES + size
            if end > self._end:
                return
            self._start = end
            yield Frame(kind, flags, number, bytes(view[at + HEAD.size : end]))

    def _join(self) -> Frame:
        """The frame under way is whole."""
        end = self._start + self._missing
        body = b"".join((*self._pieces, self._view[self._start : end]))
        self._pieces.clear()
        self._set_aside_bytes = 0
        self._start = end
        return Frame(*self._head, body)

    def _fail(self, size: int, kind: int) -> errors.DecodeError:
        if not SIZE_MIN <= size <= self.frame_bytes_max:
            what = f"a frame of {size} bytes is not between {SIZE_MIN} and {self.frame_bytes_max}"
        elif kind not in self.kinds:
            what = f"a frame of kind {kind} is not expected here"
        else:
            what = "the head of a frame does not add up"
        self._failure = errors.DecodeError(what, hint="is the other side speaking the native protocol?")
        return self._failure

    # --- memory -------------------------------------------------------------------------------------------------------

    def _begin_chunk(self, size: int) -> None:
        self._chunk = bytearray(size)
        self._view = memoryview(self._chunk)
        self._start = self._end = 0

    def _start_over(self, size: int, room: int) -> None:
        """The chunk holds nothing that is still needed: it is used again, or one of a better size."""
        self._start = self._end = 0
        if not room and size < limits.SOCKET_READ_BYTES:
            self._begin_chunk(limits.SOCKET_READ_BYTES)
        elif self._last_read < limits.SOCKET_READ_BYTES_MIN < size:
            self._begin_chunk(limits.SOCKET_READ_BYTES_MIN)

    def _rest(self) -> int:
        """Bytes that are missing to the end of the frame under way, or of its head."""
        held = self._end - self._start
        if self._pieces:
            return self._missing - held
        if held < HEAD.size:
            return HEAD.size - held
        return SIZE_FIELD_BYTES + int(HEAD.unpack_from(self._view, self._start)[0]) - held

    def _set_aside(self) -> None:
        """What is there of the frame under way becomes a piece, and a new chunk takes the rest."""
        held, begun = self._view[self._start : self._end], b""
        is_busy = self._end == len(self._chunk) or self._rest() > limits.SOCKET_READ_BYTES_MIN
        if self._pieces:
            self._pieces.append(held)
            self._missing -= len(held)
        elif len(held) >= HEAD.size:
            size, kind, flags, _, number = HEAD.unpack_from(held)
            self._head = (kind, flags, number)
            self._missing = SIZE_FIELD_BYTES + size - len(held)
            self._pieces.append(held[HEAD.size :])
        else:
            begun = bytes(held)
        if self._pieces:
            self._set_aside_bytes += len(self._chunk)
        self._begin_chunk(limits.SOCKET_READ_BYTES if is_busy else limits.SOCKET_READ_BYTES_MIN)
        self._view[: len(begun)] = begun
        self._end = len(begun)
