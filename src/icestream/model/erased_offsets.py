"""The erased offsets of a topic, exactly, and the side file that holds them. Pure.

    file     = magic "ICEERASE" (8 bytes) | version (u8, 1) | zlib of MessagePack {shard: [number, …]}
    numbers  of a shard: for each range in rising order, how far it begins behind the end of the one before (from 0
             for the first), and how many offsets it has

A side file never changes: each erasure writes another one, with all offsets so far. The record of the topic names
it with its SHA-256 (catalog/topic_rules/erase_claim.py). Ranges do not touch: neighbours are one range.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from icestream import errors, limits

_MAGIC: Final = b"ICEERASE\x01"
_decoder: Final = msgspec.msgpack.Decoder(dict[int, list[int]])
Range = tuple[int, int]
# What a file may decode to: two numbers of up to nine bytes for each range.
_BYTES_MAX: Final = 18 * limits.ERASED_RANGES_MAX + limits.MIB


class ErasedOffsets:
    """Disjoint ranges [start, end) of each shard, in rising order."""

    __slots__ = ("_shards", "_starts")

    def __init__(self, shards: Mapping[int, Sequence[Range]] = MappingProxyType({})) -> None:
        self._shards = {shard: list(ranges) for shard, ranges in sorted(shards.items()) if ranges}
        self._starts = {shard: [start for start, _ in ranges] for shard, ranges in self._shards.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErasedOffsets) and self._shards == other._shards

    def __hash__(self) -> int:
        return hash(tuple((shard, *ranges) for shard, ranges in self._shards.items()))

    def __bool__(self) -> bool:
        return bool(self._shards)

    @property
    def shards(self) -> Mapping[int, Sequence[Range]]:
        return self._shards

    @property
    def offset_count(self) -> int:
        return sum(end - start for ranges in self._shards.values() for start, end in ranges)

    @property
    def range_count(self) -> int:
        return sum(map(len, self._shards.values()))

    def within(self, shard: int, start: int, end: int) -> list[Range]:
        """The erased parts of the offsets [start, end)."""
        ranges = self._shards.get(shard, [])
        at = max(0, bisect_right(self._starts.get(shard, []), start) - 1)
        parts: list[Range] = []
        for low, high in ranges[at : bisect_right(self._starts.get(shard, []), end)]:
            if max(low, start) < min(high, end):
                parts.append((max(low, start), min(high, end)))
        return parts

    def plus(self, other: ErasedOffsets) -> ErasedOffsets:
        """The offsets of both."""
        return ErasedOffsets(
            {
                shard: _merged([*self._shards.get(shard, ()), *other._shards.get(shard, ())])
                for shard in self._shards.keys() | other._shards.keys()
            }
        )

    def minus(self, other: ErasedOffsets) -> ErasedOffsets:
        """The offsets of this that are not in the other."""
        shards: dict[int, list[Range]] = {}
        for shard, ranges in self._shards.items():
            rest = shards.setdefault(shard, [])
            for start, end in ranges:
                at = start
                for low, high in other.within(shard, start, end):
                    if at < low:
                        rest.append((at, low))
                    at = high
                if at < end:
                    rest.append((at, end))
        return ErasedOffsets(shards)

    def below(self, ends: Mapping[int, int]) -> ErasedOffsets:
        """The offsets below the end of their shard."""
        return ErasedOffsets({shard: self.within(shard, 0, ends.get(shard, 0)) for shard in self._shards})


NOTHING_ERASED: Final = ErasedOffsets()


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    """The ranges of single offsets."""
    return _merged([(offset, offset + 1) for offset in offsets])


def _merged(ranges: list[Range]) -> list[Range]:
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def encode_erased(erased: ErasedOffsets) -> bytes:
    shards: dict[int, list[int]] = {}
    for shard, ranges in erased.shards.items():
        numbers, position = shards.setdefault(shard, []), 0
        for start, end in ranges:
            numbers += (start - position, end - start)
            position = end
    return _MAGIC + zlib.compress(msgspec.msgpack.encode(shards))


def decode_erased(data: bytes) -> ErasedOffsets:
    """Raises DecodeError for what is no side file of this version."""
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("no side file of erased offsets")
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(data[len(_MAGIC) :], _BYTES_MAX)
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("cut off, or too large")
        shards: dict[int, list[Range]] = {}
        for shard, numbers in _decoder.decode(content).items():
            shards[shard] = _decode_ranges(shard, numbers)
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise errors.DecodeError(f"erased offsets cannot be read: {error}") from None
    return ErasedOffsets(shards)


def _decode_ranges(shard: int, numbers: Sequence[int]) -> list[Range]:
    if not 0 <= shard < limits.SHARDS_PER_TOPIC_MAX or len(numbers) % 2:
        raise ValueError(f"shard {shard} with {len(numbers)} numbers")
    ranges: list[Range] = []
    position = 0
    for gap, rows in zip(numbers[::2], numbers[1::2], strict=True):
        # Only the first range may begin where the one before ends: at 0.
        if rows < 1 or gap < (1 if ranges else 0) or position + gap + rows > limits.OFFSET_MAX:
            raise ValueError(f"a range of {rows} offsets, {gap} behind {position}")
        ranges.append((position + gap, position + gap + rows))
        position += gap + rows
    return ranges
