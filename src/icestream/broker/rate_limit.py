"""Rate limits in messages per second: a token bucket that fills with time. Pure: the time is a parameter.

Nothing is discarded. `take` always takes the requested tokens, in advance if needed, and returns how long to wait for
them; so users of a bucket pass in the order in which they asked.

    level    thousandths of a message that may pass at once; each millisecond adds `per_second` of them
             at most 100 ms worth, at least one message: the burst
             below 0: tokens taken in advance

Within T seconds at most `per_second` * T messages and one burst pass.
"""

from __future__ import annotations

from icestream import limits

_MESSAGE = 1000  # one message, in units of the level


class TokenBucket:
    """A rate of 0 per second means no limit."""

    __slots__ = ("_level", "_updated_ms", "per_second")

    def __init__(self, per_second: int = 0) -> None:
        self.per_second = per_second
        self._level = self._burst
        self._updated_ms: int | None = None

    @property
    def _burst(self) -> int:
        return max(_MESSAGE, self.per_second * limits.RATE_BURST_MS)

    def take(self, count: int, now_ms: int) -> int:
        """Takes `count` messages worth; returns the milliseconds from now until they may pass."""
        if not self.per_second:
            return 0
        # The level is brought up to date here and by no timer: a bucket that is not used costs nothing.
        if self._updated_ms is not None:
            passed_ms = max(0, now_ms - self._updated_ms)
            self._level = min(self._burst, self._level + passed_ms * self.per_second)
        self._updated_ms = now_ms
        # Below 0 if needed: refusing would let a large request starve behind small ones that fit.
        self._level -= count * _MESSAGE
        return max(0, -(self._level // self.per_second))

    def wait_ms(self, now_ms: int) -> int:
        """The milliseconds that a request made now waits for the ones before it."""
        return self.take(0, now_ms)

    def refund(self, count: int) -> None:
        """Returns tokens of messages that were taken and did not pass after all."""
        if self.per_second:
            self._level = min(self._burst, self._level + count * _MESSAGE)

    def set_rate(self, per_second: int) -> None:
        """Changes the rate from now on. Tokens taken in advance stay taken, and are paid back at the new rate."""
        self.per_second = per_second
        self._level = min(self._level, self._burst)


class Throttle:
    """One user of a shared bucket: takes tokens for RATE_STEP_MS at a time, and spends them one by one.

    In steps, because the shards of a subscription share a bucket: a shard that lags far behind must not take the tokens
    of the next seconds before the others get any.
    """

    __slots__ = ("_available_ms", "_per_second", "_tokens", "bucket", "wake_ms")

    def __init__(self, bucket: TokenBucket) -> None:
        self.bucket = bucket
        self.wake_ms: int | None = None  # when `allowed` may return more, after it returned 0
        self._tokens = 0  # messages that were taken from the bucket and have not passed yet
        self._available_ms = 0  # when they may pass
        self._per_second = bucket.per_second

    @property
    def is_open(self) -> bool:
        """True if no rate is set."""
        return not self._per_second and not self.bucket.per_second

    def allowed(self, now_ms: int) -> int:
        """The number of messages that may pass now. If it is 0, `wake_ms` is set to when to ask again."""
        if self._per_second != self.bucket.per_second:
            self._apply_new_rate(now_ms)
        if not self._per_second:
            return limits.OFFSET_MAX
        if not self._tokens:
            self._tokens = max(1, self._per_second * limits.RATE_STEP_MS // 1000)
            self._available_ms = now_ms + self.bucket.take(self._tokens, now_ms)
        if now_ms < self._available_ms:
            self.wake_ms = self._available_ms
            return 0
        return self._tokens

    def spend(self, count: int) -> None:
        """Accounts for messages that have passed. Without a rate there are no tokens to account for."""
        if self._tokens:
            self._tokens = max(0, self._tokens - count)

    def _apply_new_rate(self, now_ms: int) -> None:
        # Tokens taken at the old rate go back, so that they do not wait longer than the new rate demands.
        self.bucket.take(-self._tokens, now_ms)
        self._tokens = 0
        self._per_second = self.bucket.per_second
