"""Compressed bodies round-trip, and no small body becomes a large one (hazard 35)."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.rpc.body_compression import Compression
from icestream.rpc.frame import COMPRESSED
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

BOUND = 100_000
ROOM = 1 << 20
TEXT = b"the same words again and again, " * 100
PACKED = zstandard.ZstdCompressor(level=1).compress(TEXT)
SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"skip"


def unpack(body: bytes, bytes_max: int = BOUND) -> bytes:
    return Compression().decompress(body, bytes_max)


@given(st.one_of(st.binary(max_size=3000), st.binary(max_size=30).map(lambda data: data * 200)))
def test_a_body_round_trips(body: bytes) -> None:
    compression = Compression()
    flags, packed = compression.compress(body)
    assert len(packed) <= len(body)
    assert (compression.decompress(packed, BOUND) if flags else packed) == body


def test_one_compression_serves_many_bodies() -> None:
    compression = Compression()
    for number in range(50):
        body = random.Random(number).choice([b"a", b"bc", b"def"]) * 5_000
        flags, packed = compression.compress(body)
        assert flags == COMPRESSED
        assert compression.decompress(packed, BOUND) == body
        with pytest.raises(errors.DecodeError):
            compression.decompress(packed[:-1], BOUND)


def test_an_incompressible_body_is_sent_uncompressed() -> None:
    noise = random.Random(7).randbytes(5_000)
    assert Compression().compress(noise) == (0, noise)
    short = bytes(limits.COMPRESS_BYTES_MIN - 1)
    assert Compression().compress(short) == (0, short)
    assert Compression().compress(bytes(limits.COMPRESS_BYTES_MIN))[0] == COMPRESSED


def test_the_size_is_bounded() -> None:
    assert unpack(PACKED, len(TEXT)) == TEXT
    with pytest.raises(errors.DecodeError, match="at most"):
        unpack(PACKED, len(TEXT) - 1)


def streamed(content: bytes) -> bytes:
    """A frame that does not say how large its content is."""
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    return packer.compress(content) + packer.flush()


def test_hazard_35_a_decompression_bomb_is_refused_early() -> None:
    bombs = [
        zstandard.ZstdCompressor(level=1).compress(bytes(200 * ROOM)),
        streamed(bytes(200 * ROOM)),
        claiming(2**62),
        claiming(2**64 - 1),
        claiming(2**32),
    ]
    compression = Compression()
    tracemalloc.start()
    try:
        for bomb in bombs:
            assert len(bomb) < 64 * 1024
            with pytest.raises(errors.DecodeError):
                compression.decompress(bomb, ROOM)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * ROOM


def claiming(size: int) -> bytes:
    """A frame whose head claims this size: one segment, a size of eight bytes, a block of one repeated byte."""
    block = struct.pack("<I", 1 | 1 << 1 | (128 * 1024) << 3)[:3] + b"x"
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", size) + block


def test_the_forged_size_is_accepted_when_it_is_true() -> None:
    assert unpack(claiming(128 * 1024), ROOM) == b"x" * 128 * 1024
    for lie in (128 * 1024 - 1, 128 * 1024 + 1, 0, ROOM):
        with pytest.raises(errors.DecodeError):
            unpack(claiming(lie), ROOM)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"not packed at all", id="plain"),
        pytest.param(PACKED[:4], id="only the magic"),
        pytest.param(PACKED + b"x", id="bytes behind"),
        pytest.param(PACKED + PACKED, id="two frames"),
        pytest.param(PACKED + SKIPPABLE, id="a skippable frame behind"),
        pytest.param(SKIPPABLE + PACKED, id="a skippable frame in front"),
        pytest.param(SKIPPABLE, id="a skippable frame alone"),
        pytest.param(streamed(TEXT), id="no size"),
        pytest.param(zstandard.ZstdCompressor().compress(b""), id="empty"),
        pytest.param(zstandard.ZstdCompressor(dict_data=zstandard.ZstdCompressionDict(TEXT[:64])).compress(TEXT[:64]),
                     id="a dictionary"),
    ],
)  # fmt: skip
def test_anything_but_one_plain_zstd_frame_is_refused(body: bytes) -> None:
    with pytest.raises(errors.DecodeError, match="compressed body"):
        unpack(body)


def test_every_truncation_is_refused() -> None:
    for cut in truncations(PACKED):
        with pytest.raises(errors.DecodeError):
            unpack(cut)


def test_every_flip_is_read_or_refused() -> None:
    for _, flipped in bit_flips(PACKED):
        unpacked = decoded_or_refused(unpack, flipped)
        assert unpacked is None or len(unpacked) <= BOUND


@given(st.one_of(mutated(PACKED), st.binary(max_size=60).map(lambda data: b"\x28\xb5\x2f\xfd" + data)))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    unpacked = decoded_or_refused(unpack, body)
    assert unpacked is None or len(unpacked) <= BOUND
