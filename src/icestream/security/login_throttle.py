"""How long a password login must wait after failures of the same address and name. Pure: the time is an argument.

    failures of the pair     0-2      3        4        5        …   from 9 on
    delay                    none     100 ms   200 ms   400 ms       LOGIN_DELAY_MS_MAX

A pair is (address, name). A success forgets its failures, and so does LOGIN_FORGET_MS without another one. It is a
delay and never a lock: a login with the right password succeeds after at most the largest delay, and failures from one
address do not delay any other (hazard 120). From the third failure on the logins of a pair run one at a time, and
others are refused at once: attempts in parallel would escape the delay.

The table has at most LOGIN_PAIRS_MAX pairs. A new one replaces the pair whose last failure is longest ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from icestream import limits

_FREE_FAILURES: Final = 3
_DELAY_MS: Final = 100


@dataclass(slots=True)
class _Pair:
    failures: int
    last_failure_ms: int
    is_busy: bool = False  # a login waits for the delay, or is verified


class LoginThrottle:
    def __init__(self, pairs_max: int = limits.LOGIN_PAIRS_MAX) -> None:
        self._pairs_max = pairs_max
        self._pairs: dict[tuple[str, str], _Pair] = {}  # by last failure, the oldest first

    @property
    def pairs(self) -> int:
        return len(self._pairs)

    def begin(self, address: str, name: str, now_ms: int) -> int | None:
        """The milliseconds that a login has to wait; None: refuse it, because another one of the pair is under way.

        Then one of `fail`, `succeed` and `abandon` must follow.
        """
        pair = self._pairs.get((address, name))
        if pair is None:
            return 0
        if pair.is_busy:
            return None
        if now_ms - pair.last_failure_ms >= limits.LOGIN_FORGET_MS:
            del self._pairs[address, name]
            return 0
        pair.is_busy = pair.failures >= _FREE_FAILURES
        return max(pair.last_failure_ms + delay_ms(pair.failures) - now_ms, 0)

    def abandon(self, address: str, name: str) -> None:
        """Ends a login whose password was not compared: its connection closed, or the queue was full."""
        pair = self._pairs.get((address, name))
        if pair is not None:
            pair.is_busy = False

    def fail(self, address: str, name: str, now_ms: int) -> None:
        """Counts a failed login."""
        pair = self._pairs.pop((address, name), None)
        if pair is None:
            if len(self._pairs) >= self._pairs_max:
                del self._pairs[next(iter(self._pairs))]
            pair = _Pair(0, now_ms)
        self._pairs[address, name] = _Pair(pair.failures + 1, now_ms)

    def succeed(self, address: str, name: str) -> None:
        """Forgets the failures of the pair."""
        self._pairs.pop((address, name), None)


def delay_ms(failures: int) -> int:
    """The delay after so many failures in a row."""
    if failures < _FREE_FAILURES:
        return 0
    doublings = min(failures - _FREE_FAILURES, 20)
    return min(_DELAY_MS << doublings, limits.LOGIN_DELAY_MS_MAX)
