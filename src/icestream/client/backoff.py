"""How long to wait before the next try: twice as long each time, up to a bound, and never in step with others."""

from __future__ import annotations

from icestream import limits
from icestream.runtime.randomness import Randomness


class Backoff:
    """Each wait is between the half and the whole of its step, by chance: clients that lost one broker spread out."""

    def __init__(
        self,
        randomness: Randomness,
        first_seconds: float = limits.CLIENT_RETRY_SECONDS_MIN,
        last_seconds: float = limits.CLIENT_RETRY_SECONDS_MAX,
    ) -> None:
        self._randomness = randomness
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._step_seconds = first_seconds

    def next_seconds(self) -> float:
        step = self._step_seconds
        self._step_seconds = min(2 * step, self._last_seconds)
        share = int.from_bytes(self._randomness.token(4), "little") / 2**32
        return step * (1 + share) / 2

    def reset(self) -> None:
        """It worked."""
        self._step_seconds = self._first_seconds
