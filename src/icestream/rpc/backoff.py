"""Exponential backoff: the wait before the next attempt doubles with each failure, up to a bound."""

from __future__ import annotations

from typing import Final

from icestream import limits
from icestream.runtime.randomness import Randomness

# Beyond any bound in use; without it a long outage would compute powers of two without end.
_DOUBLINGS_MAX: Final = 32


def backoff_seconds(failures: int, first_seconds: float, last_seconds: float) -> float:
    """Returns the wait after this many consecutive failures, from 1."""
    return min(first_seconds * (1 << min(failures - 1, _DOUBLINGS_MAX)), last_seconds)


def with_jitter(seconds: float, randomness: Randomness) -> float:
    """Returns a random wait between half of `seconds` and `seconds`: what failed together is not retried together."""
    share = int.from_bytes(randomness.token(4), "little") / 2**32
    return seconds * (1 + share) / 2


class RetryBackoff:
    """Counts the failures of one operation.

    With `randomness` each wait has jitter, so that clients that lost the same broker do not reconnect at the same
    moment.
    """

    def __init__(
        self,
        randomness: Randomness | None = None,
        first_seconds: float = limits.CLIENT_RETRY_SECONDS_MIN,
        last_seconds: float = limits.CLIENT_RETRY_SECONDS_MAX,
    ) -> None:
        self._randomness = randomness
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._failures = 0

    def next_seconds(self) -> float:
        """Counts a failure, and returns the wait before the next attempt."""
        self._failures += 1
        seconds = backoff_seconds(self._failures, self._first_seconds, self._last_seconds)
        return seconds if self._randomness is None else with_jitter(seconds, self._randomness)

    def reset(self) -> None:
        """An attempt succeeded: the next wait is the first one again."""
        self._failures = 0
