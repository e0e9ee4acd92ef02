"""How many messages may pass in a second: a bucket that fills with time. Pure: the time comes in.

Nothing is ever discarded. `take` takes what is asked for, in advance where needed, and says how long to wait for it; so
those who share a bucket pass in the order in which they asked.

    level    thousandths of a message that may pass at once; one millisecond adds `per_second` of them
             at most 100 ms worth, at least one message: so much may pass in a burst
             below 0: taken in advance

Between two moments that are T seconds apart no more than `per_second` * T and one burst pass.
"""

from __future__ import annotations

from icestream import limits

_WHOLE = 1000


class TokenBucket:
    """0 per second: no bound."""

    __slots__ = ("_at_ms", "_level", "per_second")

    def __init__(self, per_second: int = 0) -> None:
        self.per_second = per_second
        self._level = self._burst
        self._at_ms: int | None = None

    @property
    def _burst(self) -> int:
        return max(_WHOLE, self.per_second * limits.RATE_BURST_MS)

    def take(self, count: int, now_ms: int) -> int:
        """How many milliseconds from now the `count` messages may pass."""
        if not self.per_second:
            return 0
        if self._at_ms is not None:
            passed = max(0, now_ms - self._at_ms)
            self._level = min(self._burst, self._level + passed * self.per_second)
        self._at_ms = now_ms
        self._level -= count * _WHOLE
        return max(0, -(self._level // self.per_second))

    def late_ms(self, now_ms: int) -> int:
        """How long somebody who asks now waits for those who asked before."""
        return self.take(0, now_ms)

    def give_back(self, count: int) -> None:
        """They were taken and did not pass after all."""
        if self.per_second:
            self._level = min(self._burst, self._level + count * _WHOLE)

    def set_rate(self, per_second: int) -> None:
        """Counts from now on. What was taken in advance stays taken, and is paid at the new rate."""
        self.per_second = per_second
        self._level = min(self._level, self._burst)


class Throttle:
    """One of those who share a bucket: takes a few messages worth at a time, and uses them up one by one."""

    __slots__ = ("_from_ms", "_held", "_per_second", "bucket", "wake_ms")

    def __init__(self, bucket: TokenBucket) -> None:
        self.bucket = bucket
        self.wake_ms: int | None = None  # when more may pass, for one who was stopped
        self._held = 0  # messages that were taken from the bucket and did not pass yet
        self._from_ms = 0  # from then on they may
        self._per_second = bucket.per_second

    @property
    def is_open(self) -> bool:
        """No rate is set."""
        return not self._per_second and not self.bucket.per_second

    def allowed(self, now_ms: int) -> int:
        """How many messages may pass now. 0: `wake_ms` says when to ask again."""
        if self._per_second != self.bucket.per_second:
            self._give_back(now_ms)
        if not self._per_second:
            return limits.OFFSET_MAX
        if not self._held:
            self._held = max(1, self._per_second * limits.RATE_STEP_MS // 1000)
            self._from_ms = now_ms + self.bucket.take(self._held, now_ms)
        if now_ms < self._from_ms:
            self.wake_ms = self._from_ms
            return 0
        return self._held

    def spend(self, count: int) -> None:
        if self._held:
            self._held = max(0, self._held - count)

    def _give_back(self, now_ms: int) -> None:
        """The rate has changed: what was taken at the old one waits no longer than the new one asks."""
        self.bucket.take(-self._held, now_ms)
        self._held = 0
        self._per_second = self.bucket.per_second
