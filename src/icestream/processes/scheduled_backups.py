"""Backups and drills in intervals, of one node, by its pipeline process.

    backup   incremental from the newest complete one of the node; those that retention does not keep are deleted
    drill    of the newest complete backup of the node, in a process of its own:
             parent   child_main.py drill, settings on its stdin, one line of JSON from its stdout: {"drill": outcome}
             child    drill_process.py: the scratch broker, the report into the target

What is due is decided by the target alone (backup/backup_schedule.py, backup/drill_report.py): a restart changes
nothing, and what an operator made counts as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from icestream import errors, limits
from icestream.backup.backup_layout import new_backup_id
from icestream.backup.backup_lock import lock_options
from icestream.backup.backup_root import BackupRoot
from icestream.backup.backup_run import BackupPlan, BackupRun, release_pins
from icestream.backup.backup_schedule import KeptBackups, ScheduledBackup, due_in_ms, expired
from icestream.backup.backup_target import BackupTarget, open_target
from icestream.backup.drill_report import drill_due_in_ms
from icestream.backup.encryption import load_key
from icestream.backup.inventory_table import update_inventory
from icestream.backup.node_client import Call, NodeClient
from icestream.backup.object_upload import ObjectUpload, WriteRate
from icestream.backup.seed_manifest import SeedOptions
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.stored_drills import LastDrills, drill_key_id, last_drills
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.file_io import TableFiles
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.processes.child_settings import child_command, child_line
from icestream.processes.component_options import store_options, table_roots
from icestream.processes.copy_tasks import CopyTasks
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload
from icestream.settings import Settings

_RETRY_SECONDS: Final = 60.0
_log = get_logger("backup")
Outcome = str


class TargetWork(ABC):
    """Work of one node with its backup target that comes in intervals. What is due the target alone decides."""

    _subject: ClassVar[str]

    def __init__(self, settings: Settings, clock: Clock, randomness: Randomness, offload: Offload) -> None:
        """`offload`: threads for reading, hashing and writing."""
        self._settings = settings
        self._clock = clock
        self._randomness = randomness
        self._offload = offload

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            seconds = _RETRY_SECONDS
            try:
                seconds = await self.run_pass() / 1_000
            except (errors.IcestreamError, OSError) as error:
                _log.error("scheduled work with backups failed, it is retried", work=self._subject, reason=str(error))
            await self._clock.sleep(max(1.0, min(seconds, limits.BACKUP_SCHEDULE_LOOK_SECONDS)))

    @abstractmethod
    async def run_pass(self) -> int:
        """Does what is due; returns the ms until the next look."""

    @contextmanager
    def _stored(self) -> Iterator[StoredBackups]:
        """The backups of the target, opened for one pass."""
        options = self._settings.backup
        key = load_key(options.key, os.environ) if options.key else None
        with tempfile.TemporaryDirectory(prefix="icestream-backup-") as spool:
            target = open_target(
                options.target or "", store_options(self._settings), self._clock, self._randomness, self._offload,
                Path(spool),
            )  # fmt: skip
            yield StoredBackups(target, key)

    @property
    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1_000


class ScheduledBackups(TargetWork):
    """Makes and deletes the scheduled backups of one node, each incremental from the newest complete one."""

    _subject = "backups"

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
        super().__init__(settings, clock, randomness, offload)
        self._call = call
        self._catalog = catalog
        self._source = WarehouseFiles(file_opener(files, table_roots(settings)))
        self._tasks = tasks

    async def run_pass(self) -> int:
        """Makes the backup that is due, and deletes those that are not kept; returns the ms until the next is due."""
        options = self._settings.backup
        with self._stored() as stored:
            backups = await self._own(stored)
            wait_ms = due_in_ms(backups, options.schedule.interval_ms, self._now_ms)
            if wait_ms == 0:
                await self._back_up(stored, backups)
                backups = await self._own(stored)
            kept = KeptBackups(options.schedule.keep_count, options.schedule.keep_age_ms)
            for backup_id in expired(backups, kept, self._now_ms):
                await self._delete(stored, backup_id)
            return due_in_ms(backups, options.schedule.interval_ms, self._now_ms)

    async def _own(self, stored: StoredBackups) -> list[ScheduledBackup]:
        """The backups of this node, by its log: a node of another cluster may have the same name, and so has the one
        that a restore has replaced. Retention must not delete theirs (hazard 79)."""
        log_id = await NodeClient(self._call, "").log_id()
        own = []
        for backup in await stored.readable():
            try:
                begin = await stored.begin(backup.id)
            except errors.BackupDamaged as error:
                _log.warning("backup left out: its begin is damaged", id=backup.id, reason=str(error))
                continue
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
            lock=lock_options(options.object_lock.mode, options.object_lock.days),
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
        """Deletes a backup with its pins, unless it is locked."""
        try:
            await stored.check_deletable(backup_id, self._now_ms)
        except errors.Refused as error:
            _log.info("backup not deleted by retention", id=backup_id, reason=str(error))
            return
        node = NodeClient(self._call, backup_id)
        await release_pins(node, self._catalog, backup_id)
        deleted = await stored.delete(backup_id, now_ms=self._now_ms)
        await update_inventory(stored.target, stored, self._now_ms)
        _log.info("backup deleted by retention", id=backup_id, objects=deleted.removed, bytes=deleted.removed_bytes)


class ScheduledDrills(TargetWork):
    """Makes the drills of one node, and measures when one passed.

    A drill has a process of its own: the scratch broker has metrics, memory and a disk of its own, and may be killed
    without the pipeline.
    """

    _subject = "drills"

    def __init__(
        self,
        settings: Settings,
        call: Call,
        clock: Clock,
        randomness: Randomness,
        offload: Offload,
        drill: Callable[[str], Awaitable[Outcome]] | None = None,
    ) -> None:
        """`call`: of the broker. `drill`: makes one of a backup and returns its outcome; None: in a process of its
        own."""
        super().__init__(settings, clock, randomness, offload)
        self._call = call
        self._drill = drill or self._drill_in_child
        self._failed_ms: int | None = None  # when the last drill could not run

    async def run_pass(self) -> int:
        """Makes the drill that is due; returns the ms until the next look."""
        interval_ms = self._settings.backup.drill.interval_ms
        with self._stored() as stored:
            wait_ms = await self._look(stored.target)
            if not interval_ms:
                return int(limits.BACKUP_SCHEDULE_LOOK_SECONDS * 1_000)
            if wait_ms == 0 and (backup_id := await self._newest_backup(stored)) is not None:
                await self._make(backup_id)
                wait_ms = await self._look(stored.target)
        return max(wait_ms, 1_000)

    async def _look(self, target: BackupTarget) -> int:
        """Sets the metric; returns the ms until the next drill is due."""
        key_id = await self._offload.run(lambda: drill_key_id(self._settings.data_dir))
        last = await last_drills(target, self._settings.node.name, key_id) if key_id else LastDrills()
        metrics.BACKUP_DRILL_TIME.set((last.passed_ms or 0) / 1_000)
        interval_ms = self._settings.backup.drill.interval_ms
        wait_ms = drill_due_in_ms(last.started_ms, interval_ms, self._now_ms)
        if self._failed_ms is not None:
            retry_ms = self._failed_ms + min(interval_ms // 10, limits.BACKUP_DRILL_RETRY_MS_MAX)
            wait_ms = max(wait_ms, min(max(0, retry_ms - self._now_ms), interval_ms))
        return wait_ms

    async def _newest_backup(self, stored: StoredBackups) -> str | None:
        """The newest complete backup of this node, by its log, as `_own` of the schedule; None without one."""
        log_id, newest = await NodeClient(self._call, "").log_id(), None
        for backup in await stored.backups():
            if backup.root is not None and (await stored.begin(backup.id)).log_id == log_id:
                newest = backup.id
        return newest

    async def _make(self, backup_id: str) -> None:
        try:
            outcome = await self._drill(backup_id)
        except (errors.IcestreamError, OSError) as error:
            self._failed_ms = self._now_ms
            metrics.BACKUP_DRILLS.labels("error").inc()
            _log.error("a drill could not run, it is tried again", reason=str(error))
            return
        self._failed_ms = None
        metrics.BACKUP_DRILLS.labels(outcome).inc()
        if outcome != "passed":
            _log.error("the drill failed: a backup cannot be restored as it is", hint="`icestream backup drills`")

    async def _drill_in_child(self, backup_id: str) -> Outcome:
        """Raises EngineFailed if the process ended without a report."""
        process = await asyncio.create_subprocess_exec(
            *child_command("drill"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            output, _ = await process.communicate(child_line(self._settings, backup_id=backup_id))
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for line in output.splitlines():
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if isinstance(document, dict) and isinstance(document.get("drill"), str):
                    return str(document["drill"])
        raise errors.EngineFailed(
            f"the process of a drill ended with code {process.returncode} and without a report",
            hint="its reason is in the log before",
        )


def broker_call(call: Callable[..., object]) -> Call:
    """The calls of a link, whose arguments are one document, as a backup makes them."""

    async def send(method: str, /, **arguments: object) -> dict[str, object]:
        answer: dict[str, object] = await call(method, arguments)  # type: ignore[misc]
        return answer

    return send
