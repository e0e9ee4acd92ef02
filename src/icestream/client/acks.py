"""PendingAcks: acks and nacks of one tick, merged to as few ranges as possible. Pure.

They are collected by (shard, generation): acks of deliveries before a seek do not count at the broker (hazard 48), and
must not be merged with later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from icestream import errors, limits

Pairs = list[tuple[int, int]]


class Acks(NamedTuple):
    """The content of one ACK frame."""

    shard: int
    generation: int
    ranges: Pairs


class Nacks(NamedTuple):
    """The content of one NACK frame."""

    shard: int
    generation: int
    delay_ms: int
    ranges: Pairs


def check_delay_ms(delay_seconds: float) -> int:
    """Returns the delay of a nack in milliseconds. Raises InvalidInput."""
    if not isinstance(delay_seconds, int | float):
        raise errors.InvalidInput(
            f"delay must be a number in seconds, got {type(delay_seconds).__name__}", hint="delay=1.5"
        )
    if not 0 <= delay_seconds * 1000 <= limits.FAILURE_POLICY_VALUE_MAX:
        raise errors.InvalidInput(f"delay of {delay_seconds} s is out of range", hint="use 0 seconds to a week")
    return round(delay_seconds * 1000)


class PendingAcks:
    """The acks and nacks that wait for the end of the tick, or for the next connection."""

    def __init__(self) -> None:
        self._acks: dict[tuple[int, int], list[int]] = {}  # flat ranges: start, end, start, end, …
        self._nacks: dict[tuple[int, int, int], list[int]] = {}
        self._cumulative: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        return bool(self._acks or self._nacks or self._cumulative)

    def ack(self, shard: int, generation: int, start: int, end: int) -> None:
        """Acks the messages [start, end) of a shard."""
        flat = self._acks.get((shard, generation))
        if flat is None:
            self._acks[shard, generation] = [start, end]
        elif flat[-1] == start:  # the most frequent case: messages are acked in order
            flat[-1] = end
        else:
            flat += (start, end)

    def ack_through(self, shard: int, generation: int, end: int) -> None:
        """Acks everything below `end` that was delivered."""
        key = (shard, generation)
        self._cumulative[key] = max(end, self._cumulative.get(key, 0))

    def nack(self, shard: int, generation: int, delay_ms: int, start: int, end: int) -> None:
        """Nacks the messages [start, end) of a shard."""
        self._nacks.setdefault((shard, generation, delay_ms), []).extend((start, end))

    # --- to the broker ---

    def take_acks(self) -> Iterator[Acks]:
        """Removes the acks, and yields the content of each ACK frame."""
        acks, self._acks = self._acks, {}
        for (shard, generation), flat in acks.items():
            for ranges in _frame_portions(merge_ranges(flat)):
                yield Acks(shard, generation, ranges)

    def take_cumulative(self) -> Iterator[tuple[int, int, int]]:
        """Removes the cumulative acks, and yields (shard, generation, end) of each."""
        cumulative, self._cumulative = self._cumulative, {}
        for (shard, generation), end in cumulative.items():
            yield shard, generation, end

    def take_nacks(self) -> Iterator[Nacks]:
        """Removes the nacks, and yields the content of each NACK frame."""
        nacks, self._nacks = self._nacks, {}
        for (shard, generation, delay_ms), flat in nacks.items():
            for ranges in _frame_portions(merge_ranges(flat)):
                yield Nacks(shard, generation, delay_ms, ranges)

    def discard_nacks(self) -> None:
        """Discards the nacks of a lost connection: unacked messages are redelivered without them."""
        self._nacks.clear()


def merge_ranges(flat: list[int]) -> Pairs:
    """Returns disjoint, rising ranges from a flat list of ranges that may overlap."""
    if len(flat) == 2:
        return [(flat[0], flat[1])]
    ranges: Pairs = []
    for start, end in sorted(zip(flat[::2], flat[1::2], strict=True)):
        if ranges and start <= ranges[-1][1]:
            if end > ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


def _frame_portions(ranges: Pairs) -> Iterator[Pairs]:
    """Yields the ranges in portions that fit one frame each."""
    for at in range(0, len(ranges), limits.ACK_RANGES_MAX):
        yield ranges[at : at + limits.ACK_RANGES_MAX]
