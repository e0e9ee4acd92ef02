"""Acks and nacks of one tick, as few ranges as possible. Pure.

They are kept by (shard, generation): those of deliveries before a seek do not count at the broker (hazard 48), and must
not be mixed with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from icestream import errors, limits

Pairs = list[tuple[int, int]]


class Acks(NamedTuple):
    shard: int
    generation: int
    ranges: Pairs


class Nacks(NamedTuple):
    shard: int
    generation: int
    delay_ms: int
    ranges: Pairs


def delay_ms_of(delay_seconds: float) -> int:
    """Of a nack. Raises InvalidInput."""
    if not isinstance(delay_seconds, int | float):
        raise errors.InvalidInput(f"a delay is in seconds, not {type(delay_seconds).__name__}", hint="delay=1.5")
    if not 0 <= delay_seconds * 1000 <= limits.FAILURE_POLICY_VALUE_MAX:
        raise errors.InvalidInput(f"a delay of {delay_seconds} s", hint="0 seconds to a week are allowed")
    return round(delay_seconds * 1000)


class AckBook:
    def __init__(self) -> None:
        self._acks: dict[tuple[int, int], list[int]] = {}  # start, end, start, end, …
        self._nacks: dict[tuple[int, int, int], list[int]] = {}
        self._through: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        return bool(self._acks or self._nacks or self._through)

    def ack(self, shard: int, generation: int, start: int, end: int) -> None:
        flat = self._acks.get((shard, generation))
        if flat is None:
            self._acks[shard, generation] = [start, end]
        elif flat[-1] == start:  # the most frequent case: one after the other
            flat[-1] = end
        else:
            flat += (start, end)

    def ack_through(self, shard: int, generation: int, end: int) -> None:
        """Everything below `end` that was delivered."""
        key = (shard, generation)
        self._through[key] = max(end, self._through.get(key, 0))

    def nack(self, shard: int, generation: int, delay_ms: int, start: int, end: int) -> None:
        self._nacks.setdefault((shard, generation, delay_ms), []).extend((start, end))

    # --- to the broker ---

    def take_acks(self) -> Iterator[Acks]:
        """Each fits one ACK."""
        found, self._acks = self._acks, {}
        for (shard, generation), flat in found.items():
            for ranges in _portions(merged(flat)):
                yield Acks(shard, generation, ranges)

    def take_through(self) -> Iterator[tuple[int, int, int]]:
        """Shard, generation, end."""
        found, self._through = self._through, {}
        for (shard, generation), end in found.items():
            yield shard, generation, end

    def take_nacks(self) -> Iterator[Nacks]:
        found, self._nacks = self._nacks, {}
        for (shard, generation, delay_ms), flat in found.items():
            for ranges in _portions(merged(flat)):
                yield Nacks(shard, generation, delay_ms, ranges)

    def forget_nacks(self) -> None:
        """The connection is lost: what they were about comes again by itself."""
        self._nacks.clear()


def merged(flat: list[int]) -> Pairs:
    """Disjoint and rising, whatever was said twice."""
    if len(flat) == 2:
        return [(flat[0], flat[1])]
    found: Pairs = []
    for start, end in sorted(zip(flat[::2], flat[1::2], strict=True)):
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _portions(ranges: Pairs) -> Iterator[Pairs]:
    for at in range(0, len(ranges), limits.ACK_RANGES_MAX):
        yield ranges[at : at + limits.ACK_RANGES_MAX]
