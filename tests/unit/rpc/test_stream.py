"""Bytes to frames: the same frames and the same failure, however the bytes are divided, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.rpc import frame
from icestream.rpc.frame import Frame, FrameKind, encode_frame
from icestream.rpc.stream import FrameStream
from tests.support.hypothesis_effort import QUARTER
from tests.support.mutations import bit_flips, mutated, truncations

SMALL, LARGE = limits.SOCKET_READ_BYTES_MIN, limits.SOCKET_READ_BYTES
# Around the two sizes of a chunk, and of a quarter of one.
SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(SMALL // 4 - 40, SMALL // 4 + 40),
    st.integers(SMALL - 40, SMALL + 40),
    st.integers(LARGE - 40, LARGE + 40),
    st.integers(0, 3 * LARGE),
)
FRAMES = st.builds(
    lambda kind, flags, number, size: Frame(kind, flags, number, pattern(size)),
    st.sampled_from(FrameKind), st.integers(0, 1), st.integers(0, 2**64 - 1), SIZES,
)  # fmt: skip
SMALL_FRAMES = st.builds(
    Frame, st.sampled_from(FrameKind), st.integers(0, 1), st.integers(0, 99), st.binary(max_size=30)
)
FAILURE = "failure"


def pattern(size: int) -> bytes:
    """Bytes of which no two stretches are alike."""
    return b"".join(struct.pack("<I", number) for number in range(size // 4 + 1))[:size]


def encoded(frames: list[Frame]) -> bytes:
    return b"".join(encode_frame(received.kind, received.number, received.body, received.flags) for received in frames)


def outcome_of(stream: FrameStream, chunks: Iterator[bytes]) -> list[Frame | str]:
    """The frames, and at the end what made the stream fail, if anything did."""
    received: list[Frame | str] = []
    for chunk in chunks:
        try:
            received.extend(stream.feed(chunk))
        except errors.DecodeError as error:
            return [*received, str(error)]
    return received


def one_by_one(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


@st.composite
def divided(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# --- any division -----------------------------------------------------------------------------------------------------


@given(st.lists(FRAMES, max_size=6), st.data())
def test_any_division_of_the_bytes_gives_the_same_frames(frames: list[Frame], data: st.DataObject) -> None:
    stream, other = FrameStream(), FrameStream()
    whole = encoded(frames)
    assert outcome_of(stream, iter([whole])) == frames
    assert outcome_of(other, iter(data.draw(divided(whole)))) == frames
    assert stream.incomplete_bytes == other.incomplete_bytes == 0


@given(st.lists(SMALL_FRAMES, max_size=6))
def test_byte_by_byte(frames: list[Frame]) -> None:
    assert outcome_of(FrameStream(), one_by_one(encoded(frames))) == frames


@QUARTER
@given(st.lists(FRAMES, min_size=1, max_size=6), st.lists(st.integers(1, LARGE), min_size=1, max_size=5))
def test_any_reads_of_a_socket(frames: list[Frame], reads: list[int]) -> None:
    """Through `get_buffer` and `received`, as an event loop does it: no read is larger than its buffer."""
    stream, rest = FrameStream(), memoryview(encoded(frames))
    received: list[Frame] = []
    turn = 0
    while rest:
        buffer = stream.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(rest), reads[turn % len(reads)])
        buffer[:count] = rest[:count]
        rest = rest[count:]
        received += stream.received(count)
        turn += 1
    assert received == frames
    stream.ended()


@given(st.lists(SMALL_FRAMES, min_size=1, max_size=4).flatmap(lambda frames: mutated(encoded(frames))), st.data())
def test_mutated_streams_fail_at_the_same_position_for_any_division(data: bytes, draw: st.DataObject) -> None:
    expected = outcome_of(FrameStream(1000), iter([data]))
    assert outcome_of(FrameStream(1000), one_by_one(data)) == expected
    assert outcome_of(FrameStream(1000), iter(draw.draw(divided(data)))) == expected


@given(st.binary(max_size=200), st.data())
def test_random_bytes_become_frames_or_a_failure(data: bytes, draw: st.DataObject) -> None:
    expected = outcome_of(FrameStream(64), iter([data]))
    assert outcome_of(FrameStream(64), one_by_one(data)) == expected


def test_every_flip_of_two_frames() -> None:
    frames = [Frame(FrameKind.PING, 0, 7, b"ping"), Frame(FrameKind.CREDIT, 0, 8, bytes(8))]
    seen = set()
    for _, flipped in bit_flips(encoded(frames)):
        expected = outcome_of(FrameStream(1000), iter([flipped]))
        assert outcome_of(FrameStream(1000), one_by_one(flipped)) == expected
        seen.add(len(expected))
    assert {1, 2} <= seen


def test_every_truncation_leaves_an_unfinished_frame() -> None:
    whole = encoded([Frame(FrameKind.PING, 0, 7, b"ping")])
    for cut in truncations(whole):
        stream = FrameStream()
        assert list(stream.feed(cut)) == []
        assert stream.incomplete_bytes == len(cut)
        if cut:
            with pytest.raises(errors.DecodeError, match="ended inside a frame"):
                stream.ended()


def test_a_truncated_long_frame_is_detected() -> None:
    stream = FrameStream()
    assert list(stream.feed(encode_frame(FrameKind.CALL, 1, bytes(2 * LARGE))[:-1])) == []
    assert stream.incomplete_bytes == 2 * LARGE + 15
    with pytest.raises(errors.DecodeError):
        stream.ended()


# --- refusals ---------------------------------------------------------------------------------------------------------

GOOD = encode_frame(FrameKind.PING, 1, b"good")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (struct.pack("<IBBHQ", 11, FrameKind.PING, 0, 0, 0), "11 bytes"),
        (struct.pack("<IBBHQ", 0, FrameKind.PING, 0, 0, 0), "0 bytes"),
        (struct.pack("<IBBHQ", 2**32 - 1, FrameKind.PING, 0, 0, 0), "4294967295 bytes"),
        (struct.pack("<IBBHQ", 12, 0, 0, 0, 0), "kind 0"),
        (struct.pack("<IBBHQ", 12, 255, 0, 0, 0), "kind 255"),
        (struct.pack("<IBBHQ", 12, FrameKind.PING, 2, 0, 0), "unknown flags or a nonzero"),
        (struct.pack("<IBBHQ", 12, FrameKind.PING, 0, 1, 0), "unknown flags or a nonzero"),
        (b"GET / HTTP/1.1\r\n", "native protocol"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(8), "native protocol"),  # TLS
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00\x00", "native protocol"),
    ],
)
def test_a_bad_header_ends_the_stream_after_the_frames_before_it(bad: bytes, words: str) -> None:
    stream = FrameStream()
    frames = stream.feed(GOOD + bad + GOOD)
    assert next(frames) == Frame(FrameKind.PING, 0, 1, b"good")
    with pytest.raises(errors.DecodeError, match=words):
        next(frames)
    with pytest.raises(errors.DecodeError, match=words):
        stream.get_buffer()
    with pytest.raises(errors.DecodeError, match=words):
        list(stream.feed(GOOD))
    with pytest.raises(errors.DecodeError, match=words):
        list(stream.received(0))


def test_the_largest_frame_and_one_byte_more() -> None:
    body = bytes(1000 - frame.SIZE_MIN)
    assert list(FrameStream(1000).feed(encode_frame(FrameKind.CALL, 1, body))) == [Frame(FrameKind.CALL, 0, 1, body)]
    with pytest.raises(errors.DecodeError, match="1001 bytes"):
        list(FrameStream(1000).feed(encode_frame(FrameKind.CALL, 1, body + b"x")))


def test_an_oversized_frame_is_detected_by_its_header() -> None:
    with pytest.raises(errors.DecodeError):
        list(FrameStream(1000).feed(encode_frame(FrameKind.CALL, 1, bytes(2000))[: frame.HEAD.size]))


def test_kinds_that_are_not_the_other_side_s_are_refused() -> None:
    for kind in FrameKind:
        stream = FrameStream(kinds=frame.FROM_CLIENT)
        if kind in frame.FROM_CLIENT:
            assert [received.kind for received in stream.feed(encode_frame(kind, 1))] == [kind]
        else:
            with pytest.raises(errors.DecodeError, match=f"kind {kind.value} "):
                list(stream.feed(encode_frame(kind, 1)))


@pytest.mark.parametrize("in_one_read", [True, False])
def test_a_bound_that_is_raised_by_a_frame_counts_for_the_next(in_one_read: bool) -> None:
    """The handshake: the frame behind HELLO may come in the same read."""
    stream = FrameStream(limits.HELLO_BYTES_MAX, frame.FIRST_FROM_CLIENT)
    data = encode_frame(FrameKind.HELLO, 1, b"hello") + encode_frame(
        FrameKind.PUBLISH, 2, pattern(3 * limits.HELLO_BYTES_MAX)
    )
    numbers = []
    for chunk in [data] if in_one_read else one_by_one(data):
        for received in stream.feed(chunk):
            numbers.append(received.number)
            stream.frame_bytes_max, stream.kinds = limits.FRAME_BYTES_MIN, frame.FROM_CLIENT
    assert numbers == [1, 2]


def test_without_that_the_same_frame_is_refused() -> None:
    stream = FrameStream(limits.HELLO_BYTES_MAX)
    frames = stream.feed(
        encode_frame(FrameKind.HELLO, 1) + encode_frame(FrameKind.PUBLISH, 2, bytes(limits.HELLO_BYTES_MAX))
    )
    assert next(frames).kind == FrameKind.HELLO
    with pytest.raises(errors.DecodeError, match="is not between"):
        next(frames)


# --- memory (hazard 35) -----------------------------------------------------------------------------------------------


def read_all(stream: FrameStream, data: bytes, read_bytes: int) -> tuple[list[Frame], int]:
    """In reads of this size; the frames, and the most memory that the stream held."""
    rest, most = memoryview(data), 0
    received: list[Frame] = []
    while rest:
        buffer = stream.get_buffer()
        count = min(len(buffer), len(rest), read_bytes)
        buffer[:count] = rest[:count]
        rest = rest[count:]
        most = max(most, stream.memory_bytes)
        received += stream.received(count)
    return received, most


@pytest.mark.parametrize("read_bytes", [1000, SMALL, LARGE, 1 << 20])
def test_hazard_35_memory_follows_the_received_bytes_and_is_released(read_bytes: int) -> None:
    stream = FrameStream()
    body = pattern(5_000_000)
    frames, most = read_all(stream, encode_frame(FrameKind.PUBLISH, 1, body), read_bytes)
    assert frames == [Frame(FrameKind.PUBLISH, 0, 1, body)]
    assert most <= len(body) * 4 // 3 + 2 * LARGE
    frames, _ = read_all(stream, encode_frame(FrameKind.PING, 2) * 3, 16)
    assert len(frames) == 3
    assert len(stream.get_buffer()) == stream.memory_bytes == SMALL


def test_hazard_35_an_announced_length_allocates_nothing() -> None:
    stream = FrameStream()
    assert list(stream.feed(struct.pack("<IBBHQ", limits.FRAME_BYTES_MAX_DEFAULT, FrameKind.PUBLISH, 0, 0, 1))) == []
    stream.get_buffer()
    assert stream.memory_bytes == SMALL


def test_a_frame_is_copied_once() -> None:
    """The frame itself and what was received of it: a further copy would show in the peak."""
    body = pattern(8_000_000)
    data = encode_frame(FrameKind.PUBLISH, 1, body)
    stream = FrameStream()
    tracemalloc.start()
    try:
        frames, _ = read_all(stream, data, LARGE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert frames[0].body == body
    assert peak < 2.2 * len(body)


def test_a_busy_connection_gets_a_large_buffer() -> None:
    stream = FrameStream()
    data = encode_frame(FrameKind.PUBLISH, 1, bytes(1000 - frame.HEAD.size)) * 1000
    sizes = []
    rest = memoryview(data)
    while rest:
        buffer = stream.get_buffer()
        sizes.append(stream.memory_bytes)
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        rest = rest[count:]
        assert all(len(received.body) == 984 for received in stream.received(count))
    assert sizes[0] == SMALL
    assert LARGE <= max(sizes) <= 2 * LARGE


def test_no_read_is_small_while_much_is_missing() -> None:
    stream = FrameStream()
    data = encode_frame(FrameKind.PUBLISH, 1, pattern(100_000))
    assert list(stream.feed(data[: SMALL - 10])) == []
    assert len(stream.get_buffer()) >= SMALL
    assert [received.body for received in stream.feed(data[SMALL - 10 :])] == [data[frame.HEAD.size :]]
    assert list(stream.feed(GOOD[:-1])) == []
    assert len(stream.get_buffer()) > 0
    assert [received.body for received in stream.feed(GOOD[-1:])] == [b"good"]


def test_frames_do_not_change_when_the_buffer_is_used_again() -> None:
    """hazard 15, for sockets: a frame is a copy."""
    stream = FrameStream()
    (first,) = stream.feed(encode_frame(FrameKind.PING, 1, b"first"))
    list(stream.feed(encode_frame(FrameKind.PING, 2, b"other")))
    assert first.body == b"first"
