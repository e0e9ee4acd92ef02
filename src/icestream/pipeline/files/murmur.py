"""Murmur3, x86 variant, 32 bits, seed 0: what Iceberg's `bucket` is made of. Many values at a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_ADD: Final = np.uint32(0xE6546B64)
Words = NDArray[np.uint32]


def murmur3(data: Any, start: Any, end: Any) -> Words:
    """Of the pieces [start, end) of the bytes."""
    octets = np.frombuffer(data, np.uint8) if len(data) else np.zeros(1, np.uint8)
    size = (end - start).astype(np.int64)
    hashes = np.zeros(len(size), np.uint32)
    which, at = np.arange(len(size)), start.astype(np.int64)
    for number in range(int(size.max(initial=0)) // 4):
        more = size[which] // 4 > number
        which, at = which[more], at[more]
        word = _word(octets, at, 4)
        hashes[which] = _rotated(hashes[which] ^ _mixed(word), 13) * np.uint32(5) + _ADD
        at = at + 4
    tail = size & 3
    for length in (1, 2, 3):
        mine = np.flatnonzero(tail == length)
        word = _word(octets, (end - length)[mine].astype(np.int64), length)
        hashes[mine] ^= _mixed(word)
    return _finished(hashes ^ size.astype(np.uint32))


def _word(octets: NDArray[np.uint8], at: Any, length: int) -> Words:
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
