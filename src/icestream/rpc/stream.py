"""FrameStream: turns the bytes of a connection into frames. Sans-IO: the caller reads the socket.

The socket is read into a chunk of memory (`get_buffer`, `received`, as asyncio.BufferedProtocol has them), and a frame
is copied out of it once, when it is complete. A frame that does not end in its chunk stays there; the next chunk takes
the rest, and the pieces are joined when the last one has arrived. So memory is bounded by the bytes received, never by
the size that a frame only declares.

    chunk     SOCKET_READ_BYTES_MIN while little arrives; SOCKET_READ_BYTES after a read that filled it, or for the rest
              of a long frame
    pieces    of the incomplete frame, at most frame_bytes_max and a third: a chunk is set aside when less than a
              quarter of it is free. They are released with the frame

The same bytes give the same frames and the same error, however they are divided: frames are cut off one by one while
the caller iterates, so the frames before an invalid one are handled first, and a bound that the caller changes applies
to the very next frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from icestream import errors, limits
from icestream.rpc.frame import ANY_KIND, COMPRESSED, HEAD, SIZE_FIELD_BYTES, SIZE_MIN, Frame


class FrameStream:
    """`frame_bytes_max` and `kinds` (the kinds that are accepted) may be changed at any time, as the handshake does."""

    def __init__(
        self, frame_bytes_max: int = limits.FRAME_BYTES_MAX_DEFAULT, kinds: Collection[int] = ANY_KIND
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.kinds = kinds
        self._failure: errors.DecodeError | None = None
        self._pieces: list[memoryview] = []  # of the body of the incomplete frame
        self._head = (0, 0, 0)  # kind, flags and number of that frame
        self._missing = 0  # bytes of that body that are in no piece yet
        self._set_aside_bytes = 0  # of the chunks that the pieces refer to
        self._last_read = 0
        self._start = 0  # in the chunk: of the bytes that are not part of a complete frame
        self._end = 0  # in the chunk: of the bytes received
        self._begin_chunk(limits.SOCKET_READ_BYTES_MIN)

    def get_buffer(self) -> memoryview:
        """Returns the buffer for the next bytes of the socket, never empty. Raises the error of a failed stream."""
        if self._failure is not None:
            raise self._failure
        size = len(self._chunk)
        room = size - self._end
        if self._start == self._end:
            self._start_over(size, room)
        elif room < size // 4 and room < self._missing_bytes():
            self._set_aside()
        return self._view[self._end :]

    def received(self, count: int) -> Iterator[Frame]:
        """`count` bytes were read into the buffer. Returns the frames that they complete; iterate before the next call.

        The iterator raises DecodeError at the first invalid frame: the stream has failed then.
        """
        self._end += count
        self._last_read = count
        return self._frames()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """`received` for bytes that are in memory already."""
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            yield from self.received(count)

    def ended(self) -> None:
        """The other side has closed the connection. Raises DecodeError if that cuts a frame off."""
        if self.incomplete_bytes:
            raise errors.DecodeError("the connection ended inside a frame")

    @property
    def incomplete_bytes(self) -> int:
        """Bytes received that are not part of a complete frame yet."""
        head = HEAD.size if self._pieces else 0
        return head + sum(map(len, self._pieces)) + self._end - self._start

    @property
    def memory_bytes(self) -> int:
        """Memory that the stream has allocated, used or not."""
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
            # Checked on the head alone, before the body arrives: a declared size never makes the stream wait or
            # allocate for it.
            if not SIZE_MIN <= size <= self.frame_bytes_max or kind not in self.kinds or flags & ~COMPRESSED or zero:
                raise self._fail(size, kind)
            end = at + SIZE_FIELD_BYTES + size
            if end > self._end:
                return
            # Before the yield: the caller may change bounds, or abandon the iterator, and the frame must not be seen
            # again.
            self._start = end
            yield Frame(kind, flags, number, bytes(view[at + HEAD.size : end]))

    def _join(self) -> Frame:
        """Returns the frame that is complete now."""
        end = self._start + self._missing
        body = b"".join((*self._pieces, self._view[self._start : end]))
        self._pieces.clear()
        self._set_aside_bytes = 0
        self._start = end
        return Frame(*self._head, body)

    def _fail(self, size: int, kind: int) -> errors.DecodeError:
        self._failure = head_error(size, kind, self.frame_bytes_max, self.kinds)
        return self._failure

    # --- memory -------------------------------------------------------------------------------------------------------

    def _begin_chunk(self, size: int) -> None:
        self._chunk = bytearray(size)
        self._view = memoryview(self._chunk)
        self._start = self._end = 0

    def _start_over(self, size: int, room: int) -> None:
        """Reuses the chunk, which holds no unread bytes, or replaces it by one of a better size."""
        self._start = self._end = 0
        if not room and size < limits.SOCKET_READ_BYTES:
            self._begin_chunk(limits.SOCKET_READ_BYTES)
        elif self._last_read < limits.SOCKET_READ_BYTES_MIN < size:
            self._begin_chunk(limits.SOCKET_READ_BYTES_MIN)

    def _missing_bytes(self) -> int:
        """Returns how many bytes are missing to the end of the incomplete frame, or of its head."""
        unread = self._end - self._start
        if self._pieces:
            return self._missing - unread
        if unread < HEAD.size:
            return HEAD.size - unread
        return SIZE_FIELD_BYTES + int(HEAD.unpack_from(self._view, self._start)[0]) - unread

    def _set_aside(self) -> None:
        """Keeps the received bytes of the incomplete frame as a piece, and begins a new chunk for the rest."""
        unread, partial_head = self._view[self._start : self._end], b""
        is_busy = self._end == len(self._chunk) or self._missing_bytes() > limits.SOCKET_READ_BYTES_MIN
        if self._pieces:
            self._pieces.append(unread)
            self._missing -= len(unread)
        elif len(unread) >= HEAD.size:
            size, kind, flags, _, number = HEAD.unpack_from(unread)
            self._head = (kind, flags, number)
            self._missing = SIZE_FIELD_BYTES + size - len(unread)
            self._pieces.append(unread[HEAD.size :])
        else:
            partial_head = bytes(unread)
        if self._pieces:
            self._set_aside_bytes += len(self._chunk)
        self._begin_chunk(limits.SOCKET_READ_BYTES if is_busy else limits.SOCKET_READ_BYTES_MIN)
        self._view[: len(partial_head)] = partial_head
        self._end = len(partial_head)


def head_error(size: int, kind: int, frame_bytes_max: int, kinds: Collection[int]) -> errors.DecodeError:
    """Returns the error for a head that no frame can have."""
    if not SIZE_MIN <= size <= frame_bytes_max:
        reason = f"frame of {size} bytes: the size is not between {SIZE_MIN} and {frame_bytes_max}"
    elif kind not in kinds:
        reason = f"frame of kind {kind} is not expected here"
    else:
        reason = "frame head has unknown flags or a nonzero reserved field"
    return errors.DecodeError(reason, hint="is the other side speaking the native protocol?")
