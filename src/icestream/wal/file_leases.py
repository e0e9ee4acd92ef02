"""Leases on log files for rounds of the pipeline: the broker frees no leased file (hazard 29).

    active    from `hold` on; `hold` again renews it, with the same files or others
    ended     by `hold` without files, by its time to live on the monotonic clock, or by a pipeline with a higher epoch

A read under an ended lease is refused: its round was abandoned, and another may be running. A file whose last lease has
ended is freed when it is due, even while it is being read (hazard 33).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.runtime.clock import Clock
from icestream.wal.file_summary import FileSummary


class _Lease(NamedTuple):
    """The files that a round of the pipeline with this epoch, or a backup, holds until `until_ns`."""

    epoch: int | None  # None: of a backup, which no takeover of the pipeline ends
    files: frozenset[int]
    until_ns: int


class FileLeases:
    """All leases of one log, by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._epoch = 0

    def __len__(self) -> int:
        self._drop_expired()
        return len(self._leases)

    def hold(self, lease: str, epoch: int, files: Iterable[int], ttl_ms: int) -> None:
        """Grants or renews a lease; no files: ends it. Raises LeaseLost for a pipeline with an outdated epoch."""
        self._drop_expired()
        if epoch < self._epoch:
            raise errors.LeaseLost(
                f"a pipeline with epoch {self._epoch} has taken over from epoch {epoch}",
                hint="this driver is no longer the active one: it stops",
            )
        # A pipeline that took over ends all leases of its predecessor at once: the old driver may be alive and must not
        # go on reading files that nothing protects any more.
        if epoch > self._epoch:
            self._epoch = epoch
            self._leases = {name: active for name, active in self._leases.items() if active.epoch is None}
        self._hold(lease, epoch, files, ttl_ms)

    def hold_for_backup(self, lease: str, files: Iterable[int], ttl_ms: int) -> None:
        """Grants or renews a lease that is not of the pipeline; no files: ends it."""
        self._drop_expired()
        self._hold(lease, None, files, ttl_ms)

    def is_active(self, lease: str) -> bool:
        self._drop_expired()
        return lease in self._leases

    def _hold(self, lease: str, epoch: int | None, files: Iterable[int], ttl_ms: int) -> None:
        numbers = frozenset(files)
        if not numbers:
            self._leases.pop(lease, None)
            return
        if lease not in self._leases and len(self._leases) >= limits.LEASES_MAX:
            raise errors.Refused(
                f"too many leases: {len(self._leases)} are active", hint="end the leases of finished rounds"
            )
        # Monotonic: a step of the wall clock must neither end a lease early nor keep files for hours (hazard 32).
        self._leases[lease] = _Lease(epoch, numbers, self._clock.monotonic_ns() + ttl_ms * 1_000_000)

    def check(self, lease: str, number: int) -> None:
        """Raises LeaseLost unless the lease is active and contains the file."""
        self._drop_expired()
        active = self._leases.get(lease)
        if active is None or number not in active.files:
            raise errors.LeaseLost(
                f"lease {lease!r} no longer holds log file {number}", hint="the round is planned again"
            )

    def unleased_prefix(self, files: Sequence[FileSummary]) -> list[FileSummary]:
        """The files up to the first one under a lease: files are freed strictly from the oldest on."""
        self._drop_expired()
        leased = {number for lease in self._leases.values() for number in lease.files}
        free: list[FileSummary] = []
        for file in files:
            if file.number in leased:
                break
            free.append(file)
        return free

    def _drop_expired(self) -> None:
        now_ns = self._clock.monotonic_ns()
        for name in [name for name, lease in self._leases.items() if lease.until_ns <= now_ns]:
            del self._leases[name]
