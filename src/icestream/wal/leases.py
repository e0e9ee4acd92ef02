"""Keeps log files for a round of the pipeline, by number and for a time. A broker frees nothing inside a lease (29).

    held      from `hold` on; again to renew, with the same files or others
    ended     by `hold` with no file, by its time on the monotonic clock, or because a pipeline with a higher epoch came

Whoever reads under a lease that has ended gets nothing: its round was given up, and another one may be under way. A
file whose last lease has ended is freed when it is due, whoever still reads it (hazard 33).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.runtime.clock import Clock
from icestream.wal.summary import FileSummary


class _Lease(NamedTuple):
    epoch: int
    files: frozenset[int]
    until_ns: int


class Leases:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._epoch = 0

    def __len__(self) -> int:
        self._end_old()
        return len(self._leases)

    def hold(self, lease: str, epoch: int, files: Iterable[int], ttl_ms: int) -> None:
        """Raises LeaseLost for a pipeline that was followed by another."""
        self._end_old()
        if epoch < self._epoch:
            raise errors.LeaseLost(
                f"a pipeline with epoch {self._epoch} has taken over from epoch {epoch}",
                hint="this driver is not the active one any more: it stops",
            )
        if epoch > self._epoch:
            self._epoch = epoch
            self._leases = {}
        wanted = frozenset(files)
        if not wanted:
            self._leases.pop(lease, None)
            return
        if lease not in self._leases and len(self._leases) >= limits.LEASES_MAX:
            raise errors.Refused(f"{len(self._leases)} leases are held", hint="end those of rounds that are over")
        self._leases[lease] = _Lease(epoch, wanted, self._clock.monotonic_ns() + ttl_ms * 1_000_000)

    def check(self, lease: str, number: int) -> None:
        """Raises LeaseLost unless the lease holds the file now."""
        self._end_old()
        found = self._leases.get(lease)
        if found is None or number not in found.files:
            raise errors.LeaseLost(
                f"lease {lease!r} does not hold log file {number} any more", hint="the round is planned anew"
            )

    def without_leased(self, files: Sequence[FileSummary]) -> list[FileSummary]:
        """The files up to the first that somebody holds."""
        self._end_old()
        held = {number for lease in self._leases.values() for number in lease.files}
        free: list[FileSummary] = []
        for file in files:
            if file.number in held:
                break
            free.append(file)
        return free

    def _end_old(self) -> None:
        now_ns = self._clock.monotonic_ns()
        for name in [name for name, lease in self._leases.items() if lease.until_ns <= now_ns]:
            del self._leases[name]
