"""Which backup is due, and which ones end: by schedule and retention. Pure.

    due         the interval has passed since the newest complete backup of this node began. A run that failed is tried
                again after a tenth of the interval, at most an hour
    expired     complete backups beyond the kept count, and those beyond the kept age. The newest complete one always
                stays, and so does what an unfinished run is incremental from. Unfinished ones that recorded nothing
                for BACKUP_ABANDONED_MS: their pins keep files of tables

A node looks at its own backups only: each node of a cluster backs up the topics of its log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from icestream import limits

_RETRY_MS_MAX: Final = 3_600_000


class ScheduledBackup(NamedTuple):
    """A backup of this node in the target."""

    id: str
    begun_ms: int
    is_complete: bool
    parent: str | None = None
    active_ms: int = 0  # of an unfinished one: when it recorded something for the last time


class KeptBackups(NamedTuple):
    """How many backups are kept, and for how long. 0: no limit."""

    backups_max: int = 0
    age_ms: int = 0


def due_in_ms(backups: Sequence[ScheduledBackup], interval_ms: int, now_ms: int) -> int:
    """The ms until the next backup is due; 0 if it is due now."""
    complete = max((backup.begun_ms for backup in backups if backup.is_complete), default=None)
    failed = max((backup.begun_ms for backup in backups if not backup.is_complete), default=None)
    due_ms = now_ms if complete is None else complete + interval_ms
    if failed is not None and (complete is None or failed > complete):
        due_ms = max(due_ms, failed + min(interval_ms // 10, _RETRY_MS_MAX))
    # A clock that was set back must not put backups off for longer than the interval.
    return min(max(0, due_ms - now_ms), interval_ms)


def expired(backups: Sequence[ScheduledBackup], bounds: KeptBackups, now_ms: int) -> list[str]:
    """The ids of the backups to delete, the oldest first."""
    complete = sorted((backup for backup in backups if backup.is_complete), key=lambda backup: backup.begun_ms)
    abandoned_ms = now_ms - limits.BACKUP_ABANDONED_MS
    unfinished = [backup for backup in backups if not backup.is_complete]
    needed = {backup.parent for backup in unfinished if backup.active_ms >= abandoned_ms}
    ids = [backup.id for backup in unfinished if backup.active_ms < abandoned_ms]
    for number, backup in enumerate(complete[:-1]):
        is_surplus = bool(bounds.backups_max) and len(complete) - number > bounds.backups_max
        is_old = bool(bounds.age_ms) and backup.begun_ms < now_ms - bounds.age_ms
        if (is_surplus or is_old) and backup.id not in needed:
            ids.append(backup.id)
    return ids
