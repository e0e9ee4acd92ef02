"""Murmur3, x86 variant, 32 bits, seed 0: what Iceberg's `bucket` is made of.

Many values at a time: the first word of each, then the second, …. That pays while many have such a word. Of few that
are long, the rest is chained one by one: what of a word does not depend on those before it is made for all at once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_ADD: Final = 0xE6546B64
# A step over all values costs about as much as so many words that are chained (measured: 10 us, 0.1 us); and to begin a
# chain as much as a few steps, so it is not worth while for what is short.
_FEW: Final = 100
_SHORT_WORDS: Final = 64
# Of one long value at a time: numbers of Python take ten times the bytes.
_CHAINED_BYTES: Final = 1 << 18
Octets = NDArray[np.uint8]
Words = NDArray[np.uint32]


def murmur3(data: Any, start: Any, end: Any) -> Words:
    """Of the pieces [start, end) of the bytes."""
    octets = np.frombuffer(data, np.uint8) if len(data) else np.zeros(1, np.uint8)
    size = (end - start).astype(np.int64)
    hashes = np.zeros(len(size), np.uint32)
    at, whole = start.astype(np.int64), (start + (size & ~3)).astype(np.int64)
    which, steps = np.flatnonzero(at < whole), 0
    while len(which) > _FEW or (len(which) and steps < _SHORT_WORDS):
        word = _word(octets, at[which], 4)
        hashes[which] = _rotated(hashes[which] ^ _mixed(word), 13) * np.uint32(5) + np.uint32(_ADD)
        at[which] += 4
        steps += 1
        which = which[at[which] < whole[which]]
    for one in which.tolist():
        hashes[one] = _chained(int(hashes[one]), octets[at[one] : whole[one]])
    _add_tails(hashes, octets, end, size & 3)
    return _finished(hashes ^ size.astype(np.uint32))


def _chained(value: int, octets: Octets) -> int:
    for begin in range(0, len(octets), _CHAINED_BYTES):
        for word in _mixed(octets[begin : begin + _CHAINED_BYTES].view("<u4")).tolist():
            value ^= word
            value = ((value << 13 | value >> 19) * 5 + _ADD) & 0xFFFF_FFFF
    return value


def _add_tails(hashes: Words, octets: Octets, end: Any, tail: Any) -> None:
    """The bytes behind the last whole word."""
    for length in (1, 2, 3):
        mine = np.flatnonzero(tail == length)
        hashes[mine] ^= _mixed(_word(octets, (end - length)[mine].astype(np.int64), length))


def _word(octets: Octets, at: Any, length: int) -> Words:
    word: Words = octets[at].astype(np.uint32)
    for byte in range(1, length):
        word |= octets[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _rotated(value: Words, bits: int) -> Words:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


def _mixed(word: Words) -> Words:
    return _rotated(word * _C1, 15) * _C2


def _finished(value: Words) -> Words:
    value = (value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    value = (value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return value ^ (value >> np.uint32(16))
