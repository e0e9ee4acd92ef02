"""The budget of a job: CPU seconds and bytes that it may use in an hour. Pure: the caller hands in the time.

What was not used is kept for up to an hour, so that a table that was loaded at once is compacted at once. A step may
exceed the budget by what it took; the next one waits until that is paid back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HOUR_NS: Final = 3_600 * 10**9


@dataclass
class HourlyBudget:
    """Full at the beginning."""

    cpu_seconds: float
    bytes: float
    start_ns: int

    def __post_init__(self) -> None:
        self._cpu_left, self._bytes_left = float(self.cpu_seconds), float(self.bytes)
        self._refilled_ns = self.start_ns

    def wait_seconds(self, now_ns: int) -> float:
        """Returns how long the job has to wait until something of both is left; 0: not at all."""
        share = (now_ns - self._refilled_ns) / _HOUR_NS
        self._refilled_ns = now_ns
        self._cpu_left = min(self.cpu_seconds, self._cpu_left + share * self.cpu_seconds)
        self._bytes_left = min(self.bytes, self._bytes_left + share * self.bytes)
        missing = max(-self._cpu_left / self.cpu_seconds, -self._bytes_left / self.bytes)
        return max(0.0, missing * 3_600)

    def spend(self, cpu_seconds: float, size_bytes: int) -> None:
        self._cpu_left -= cpu_seconds
        self._bytes_left -= size_bytes
