"""How long to wait before what failed is tried again: twice as long each time, up to a bound. Pure."""

from __future__ import annotations

from typing import Final

from icestream.runtime.randomness import Randomness

# Beyond any bound that is used; a power of two of a long outage would be no number any more.
_DOUBLINGS_MAX: Final = 32


def retry_pause_seconds(failures: int, first: float, most: float) -> float:
    """After so many failures in a row, from 1."""
    return min(first * (1 << min(failures - 1, _DOUBLINGS_MAX)), most)


def with_jitter(seconds: float, randomness: Randomness) -> float:
    """Half of it to all of it, by chance: what failed together does not come again together."""
    share = int.from_bytes(randomness.token(4), "little") / 2**32
    return seconds * (1 + share) / 2
