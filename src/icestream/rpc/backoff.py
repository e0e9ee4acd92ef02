"""RetryBackoff: the wait before the next attempt, doubling up to a bound, with optional jitter."""

from __future__ import annotations

from icestream import limits
from icestream.runtime.randomness import Randomness


class RetryBackoff:
    """With `randomness` each wait lies between half of its step and the whole step, so that clients that lost the same
    broker do not come back at the same moment. Without it each wait is the whole step."""

    def __init__(
        self,
        randomness: Randomness | None = None,
        first_seconds: float = limits.CLIENT_RETRY_SECONDS_MIN,
        last_seconds: float = limits.CLIENT_RETRY_SECONDS_MAX,
    ) -> None:
        self._randomness = randomness
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._step_seconds = first_seconds

    def next_seconds(self) -> float:
        """Returns the wait before the next attempt, and doubles the step."""
        step = self._step_seconds
        self._step_seconds = min(2 * step, self._last_seconds)
        if self._randomness is None:
            return step
        share = int.from_bytes(self._randomness.token(4), "little") / 2**32
        return step * (1 + share) / 2

    def reset(self) -> None:
        """Starts from the first step again: an attempt succeeded."""
        self._step_seconds = self._first_seconds
