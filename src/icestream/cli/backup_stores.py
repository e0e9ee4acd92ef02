"""The target of a command about backups: its options, how it is opened, and ids in it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from icestream import errors, limits

if TYPE_CHECKING:
    from icestream.backup.backup_target import BackupTarget
    from icestream.backup.encryption import BackupKey
    from icestream.backup.stored_backups import StoredBackups
    from icestream.backup.warehouse_files import WarehouseFiles
    from icestream.settings import Settings

Result = TypeVar("Result")
TargetOption = Annotated[
    str | None,
    typer.Option("--to", metavar="URI", help="Directory or bucket of the backups; default: `backup.target`."),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="SOURCE", help="file:PATH, env:NAME or command:…; default: `backup.key`."),
]
BackupId = Annotated[str, typer.Argument(metavar="ID", help="Id of a backup, as `list` shows it; `latest`.")]


def with_target(
    settings: Settings, location: str, key_source: str | None, call: Callable[[StoredBackups], Awaitable[Result]]
) -> Result:
    """Opens the target, runs the call, closes it."""
    from icestream.backup.backup_target import open_target
    from icestream.backup.encryption import load_key
    from icestream.backup.stored_backups import StoredBackups
    from icestream.processes.component_options import store_options
    from icestream.runtime.clock import SystemClock
    from icestream.runtime.randomness import SystemRandomness
    from icestream.runtime.tasks import ThreadOffload

    key: BackupKey | None = load_key(key_source, os.environ) if key_source else None
    offload = ThreadOffload("backup-target", limits.BACKUP_UPLOADS_AT_ONCE)

    async def run(spool: Path) -> Result:
        target: BackupTarget = open_target(
            location, store_options(settings), SystemClock(), SystemRandomness(), offload, spool
        )
        return await call(StoredBackups(target, key))

    try:
        with tempfile.TemporaryDirectory(prefix="icestream-backup-") as spool:
            return asyncio.run(run(Path(spool)))
    finally:
        offload.close()


def location_of(to: str | None, settings: Settings) -> str:
    """The location of the target. Raises InvalidInput without one."""
    location = to or settings.backup.target
    if not location:
        raise errors.InvalidInput("no backup target", hint="--to URI, or set backup.target")
    return location


def key_source_of(settings: Settings) -> str | None:
    return settings.backup.key or None


def rate_of(rate: str | None, settings: Settings) -> float:
    from icestream.settings import units

    if rate is None:
        return float(settings.backup.rate_bytes)
    try:
        return float(units.size(1).read(rate))
    except ValueError as error:
        raise errors.InvalidInput(f"--rate {error}", hint="such as 50MiB") from None


async def resolve_backup(stored: StoredBackups, backup_id: str, *, is_complete: bool = True) -> str:
    """The id that `latest` means: of the newest complete backup. Raises UnknownBackup if there is none."""
    from icestream.backup.backup_layout import check_backup_id

    if backup_id != "latest":
        return check_backup_id(backup_id)
    if is_complete:
        root = await stored.latest()
        newest = None if root is None else root.id
    else:
        newest = next((backup.id for backup in reversed(await stored.backups())), None)
    if newest is None:
        raise errors.UnknownBackup("the target has no backup", hint="`icestream backup create` makes one")
    return newest


def warehouse_source(settings: Settings) -> Callable[[str], Iterator[bytes]]:
    """Reads the files that a backup names: those of the warehouse only, whatever the target was made to say."""
    return warehouse_files(settings, is_bounded=True).chunks


def warehouse_files(settings: Settings, *, is_bounded: bool = False) -> WarehouseFiles:
    from icestream.backup.warehouse_files import WarehouseFiles
    from icestream.catalogs.object_files import open_files
    from icestream.processes.component_options import backed_up_roots, store_options, table_roots
    from icestream.readers.lazy_scanner import file_opener

    roots = backed_up_roots(settings) if is_bounded else table_roots(settings)
    return WarehouseFiles(file_opener(open_files(store_options(settings)), roots), roots if is_bounded else None)
