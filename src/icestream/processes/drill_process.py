"""The process of a drill in intervals (scheduled_backups.py): the newest backup of this node, and its report.

A module of its own: the pipeline process, which starts it, must not import the broker.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from icestream import limits
from icestream.backup.backup_target import open_target
from icestream.backup.drill_report import DrillReport
from icestream.backup.encryption import load_key
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.stored_drills import open_drill_key, put_report
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalogs.object_files import open_files
from icestream.processes.backup_drill import BackupDrill
from icestream.processes.component_options import backed_up_roots, store_options
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import ThreadOffload
from icestream.settings import Settings


async def run_drill(settings: Settings, backup_id: str) -> DrillReport:
    """Makes a drill of a backup, and keeps its report. Raises UnknownBackup without it, Refused without room."""
    options, clock, randomness = settings.backup, SystemClock(), SystemRandomness()
    key = load_key(options.key, os.environ) if options.key else None
    offload = ThreadOffload("drill", limits.RESTORE_FILES_AT_ONCE)
    try:
        with tempfile.TemporaryDirectory(prefix="icestream-drill-spool-") as spool:
            target = open_target(options.target or "", store_options(settings), clock, randomness, offload, Path(spool))
            stored = StoredBackups(target, key)
            roots = backed_up_roots(settings)  # whatever the target was made to say
            source = WarehouseFiles(file_opener(open_files(store_options(settings)), roots), roots).chunks
            drill = BackupDrill(
                stored, source, clock, offload, node=settings.node.name, directory=options.drill.directory
            )
            report = await drill.run(backup_id)
            await put_report(target, report, open_drill_key(settings.data_dir, randomness))
            return report
    finally:
        offload.close()
