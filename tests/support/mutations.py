"""Ways in which bytes go wrong, and the one thing a decoder may do about it: give a value, or say DecodeError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from hypothesis import strategies as st

from icestream import errors

Answer = TypeVar("Answer")


def decoded_or_refused(decode: Callable[[bytes], Answer], data: bytes) -> Answer | None:
    """The decoded value, None when the decoder refuses the bytes. Any other exception fails the test."""
    try:
        return decode(data)
    except (errors.DecodeError, errors.InvalidInput):
        return None


def truncations(data: bytes) -> Iterator[bytes]:
    """Every proper prefix, the empty one included."""
    return (data[:length] for length in range(len(data)))


def bit_flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every single bit of the data flipped, with its number."""
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        yield bit, bytes(flipped)


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with a few stretches overwritten, moved, doubled, taken out or put in."""
    content = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        end = draw(st.integers(at, min(len(content), at + 80)))
        other = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["overwrite", "copy", "remove", "insert", "number"])):
            case "overwrite":
                content[at:end] = draw(st.binary(min_size=end - at, max_size=end - at))
            case "copy":
                stretch = content[at:end]
                content[other : other + len(stretch)] = stretch
            case "remove":
                del content[at:end]
            case "insert":
                content[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "number":
                edge = draw(st.sampled_from([0, 1, 2, 7, 8, 2**15, 2**16 - 1, 2**20, 2**31 - 1, 2**31, 2**32 - 1]))
                content[at : at + 4] = edge.to_bytes(4, "little")
    return bytes(content)
