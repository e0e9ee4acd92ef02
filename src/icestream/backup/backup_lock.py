"""The lock of a backup: a date before which the store keeps every object of it (ADR 107).

A store locks objects, and backups share them; so a run locks whatever its object list names, uploaded now or long ago,
with begin and list, before it writes the root, which is locked from its first moment. Locks are only ever extended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.backup import backup_layout as layout
from icestream.backup.backup_root import BackupRoot, Kind
from icestream.backup.backup_target import BackupTarget
from icestream.backup.file_copy import run_bounded
from icestream.backup.object_list import ObjectRow
from icestream.catalogs.object_lock import LockMode, ObjectLocks, ObjectRetention, retention_date

_DAY_MS: Final = 86_400_000


class LockOptions(msgspec.Struct, frozen=True):
    """How a backup is to be locked, and for how many days from when all its objects are there."""

    mode: LockMode
    days: int

    def retention(self, now_ms: int) -> ObjectRetention:
        return ObjectRetention(self.mode, -(-(now_ms + self.days * _DAY_MS) // 1_000) * 1_000)


def lock_options(mode: str, days: int) -> LockOptions | None:
    """The options by the settings `backup.object_lock`; None if backups are not locked."""
    return None if mode == "off" else LockOptions("governance" if mode == "governance" else "compliance", days)


async def check_lockable(target: BackupTarget, kind: Kind) -> ObjectLocks:
    """Returns the locks of a target. Raises ConfigurationError for one without, and for a reference backup."""
    if kind == "reference":
        raise errors.ConfigurationError(
            "a reference backup cannot be locked: its files are those of the warehouse",
            hint="make a copy, or set backup.object_lock.mode=off",
        )
    if target.locks is None:
        raise errors.ConfigurationError(
            f"backup target {target.location('').rstrip('/')} has no object lock: only buckets of S3 have it",
            hint="name a bucket s3://… with object lock as the target, or set backup.object_lock.mode=off",
        )
    async with target.locks.connect() as requests:
        await requests.check_bucket()
    return target.locks


async def lock_objects(locks: ObjectLocks, names: Iterable[str], retention: ObjectRetention) -> None:
    """Locks objects, several at once; those that are locked as long already stay as they are."""
    async with locks.connect() as requests:
        calls = [partial(requests.extend, name, retention) for name in sorted({*names})]
        await run_bounded(calls, limits.BACKUP_LOCKS_AT_ONCE)


async def put_locked(
    target: BackupTarget, locks: ObjectLocks, name: str, data: bytes, retention: ObjectRetention
) -> None:
    """Writes a small object that is locked from its first moment. Raises AlreadyExists for other bytes of that name."""
    async with locks.connect() as requests:
        if await requests.put_new(name, data, retention):
            return
        if await target.get(name) != data:
            raise errors.AlreadyExists(f"{target.location(name)} already exists")
        await requests.extend(name, retention)


def check_unlocked(root: BackupRoot | None, now_ms: int) -> None:
    """Raises Refused for a backup that is locked: its deletion would hide what the store keeps anyway."""
    if root is not None and root.lock is not None and now_ms < root.lock.until_ms:
        date = retention_date(root.lock.until_ms)
        raise errors.Refused(
            f"backup {root.id} is locked until {date} (object lock, {root.lock.mode})", hint=f"delete it after {date}"
        )


def locked_names(backup_id: str, rows: Iterable[ObjectRow], list_name: str) -> Iterator[str]:
    """The objects of a backup that are locked, but for its root."""
    yield layout.begin_name(backup_id)
    yield list_name
    yield from (row.path for row in rows)


def sampled(names: Iterable[str], count_max: int) -> Sequence[str]:
    """At most so many of the names, spread evenly: those of the same names are always the same."""
    ordered = sorted({*names})
    return ordered[:: -(-len(ordered) // count_max)] if ordered else []
