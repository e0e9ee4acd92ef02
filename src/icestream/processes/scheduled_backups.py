"""Scheduled backups: the pipeline process of a node backs it up in intervals, and deletes what retention does not keep.

Each backup is incremental from the newest complete one of the node. What is due is decided by the target alone
(backup/backup_schedule.py): a restart changes nothing, and a backup that an operator made counts as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from icestream import errors, limits
from icestream.backup.backup_layout import new_backup_id
from icestream.backup.backup_root import BackupRoot
from icestream.backup.backup_run import BackupPlan, BackupRun, release_pin
from icestream.backup.backup_schedule import KeptBackups, ScheduledBackup, due_in_ms, expired
from icestream.backup.backup_target import open_target
from icestream.backup.encryption import load_key
from icestream.backup.inventory_table import update_inventory
from icestream.backup.node_client import Call, NodeClient
from icestream.backup.object_upload import ObjectUpload, WriteRate
from icestream.backup.seed_manifest import SeedOptions
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.identifier import Identifier
from icestream.observability.log import get_logger
from icestream.processes.component_options import store_options, table_roots
from icestream.processes.copy_tasks import CopyTasks
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload
from icestream.settings import Settings

_RETRY_SECONDS: Final = 60.0
_log = get_logger("backup")


class ScheduledBackups:
    """Makes and deletes the scheduled backups of one node."""

    def __init__(
        self,
        settings: Settings,
        call: Call,
        catalog: TableCatalog,
        files: TableFiles,
        clock: Clock,
        randomness: Randomness,
        offload: Offload,
        tasks: CopyTasks | None = None,
    ) -> None:
        """`call`: of the broker. `offload`: threads for reading, hashing and writing. `tasks`: copy large backups."""
        self._settings = settings
        self._call = call
        self._catalog = catalog
        self._source = WarehouseFiles(file_opener(files, table_roots(settings)))
        self._clock = clock
        self._randomness = randomness
        self._offload = offload
        self._tasks = tasks

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            seconds = _RETRY_SECONDS
            try:
                seconds = await self.run_pass() / 1_000
            except (errors.IcestreamError, OSError) as error:
                _log.error("scheduled backup failed, it is retried", reason=str(error))
            await self._clock.sleep(max(1.0, min(seconds, limits.BACKUP_SCHEDULE_LOOK_SECONDS)))

    async def run_pass(self) -> int:
        """Makes the backup that is due, and deletes those that are not kept; returns the ms until the next is due."""
        options = self._settings.backup
        key = load_key(options.key, os.environ) if options.key else None
        with tempfile.TemporaryDirectory(prefix="icestream-backup-") as spool:
            target = open_target(
                options.target or "",
                store_options(self._settings),
                self._clock,
                self._randomness,
                self._offload,
                Path(spool),
            )
            stored = StoredBackups(target, key)
            backups = await self._own(stored)
            wait_ms = due_in_ms(backups, options.schedule.interval_ms, self._now_ms)
            if wait_ms == 0:
                await self._back_up(stored, backups)
                backups = await self._own(stored)
            kept = KeptBackups(options.schedule.keep_count, options.schedule.keep_age_ms)
            for backup_id in expired(backups, kept, self._now_ms):
                await self._delete(stored, backup_id)
            return due_in_ms(backups, options.schedule.interval_ms, self._now_ms)

    @property
    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1_000

    async def _own(self, stored: StoredBackups) -> list[ScheduledBackup]:
        """The backups of this node, by its log: a node of another cluster may have the same name, and so has the one
        that a restore has replaced. Retention must not delete theirs (hazard 79)."""
        log_id = await NodeClient(self._call, "").log_id()
        own = []
        for backup in await stored.backups():
            begin = await stored.begin(backup.id)
            if begin.log_id == log_id:
                active_ms = await stored.active_ms(begin) if backup.root is None else 0
                own.append(ScheduledBackup(backup.id, begin.begun_ms, backup.root is not None, begin.parent, active_ms))
        return own

    async def _back_up(self, stored: StoredBackups, backups: list[ScheduledBackup]) -> BackupRoot:
        options = self._settings.backup
        complete = [backup.id for backup in sorted(backups, key=lambda backup: backup.begun_ms) if backup.is_complete]
        plan = BackupPlan(
            new_backup_id(self._now_ms, self._randomness.token(4)),
            "reference" if options.schedule.reference else "copy",
            parent=complete[-1] if complete else None,
        )
        node = NodeClient(self._call, plan.id)
        seed = SeedOptions(**await node.options())
        upload = ObjectUpload(
            stored.target,
            self._offload,
            self._clock,
            self._randomness,
            stored.key,
            WriteRate(options.rate_bytes),
        )
        bulk = None if self._tasks is None else self._tasks.bulk_copy(self._settings, options.target or "", upload)
        is_foreign = not self._settings.catalog_embedded
        run = BackupRun(
            node, self._catalog, self._source, upload, self._clock, plan, seed, bulk=bulk, is_foreign=is_foreign
        )
        return await run.run()

    async def _delete(self, stored: StoredBackups, backup_id: str) -> None:
        """Deletes a backup with its pins."""
        node = NodeClient(self._call, backup_id)
        async for table in node.tables():
            identifier = Identifier(table.namespace, table.name)
            await release_pin(node, self._catalog, backup_id, identifier, table.uuid)
        deleted = await stored.delete(backup_id)
        await update_inventory(stored.target, stored, self._now_ms)
        _log.info("backup deleted by retention", id=backup_id, objects=deleted.removed, bytes=deleted.removed_bytes)


def broker_call(call: Callable[..., object]) -> Call:
    """The calls of a link, whose arguments are one document, as a backup makes them."""

    async def send(method: str, /, **arguments: object) -> dict[str, object]:
        answer: dict[str, object] = await call(method, arguments)  # type: ignore[misc]
        return answer

    return send
