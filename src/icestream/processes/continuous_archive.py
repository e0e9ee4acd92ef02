"""The archive of a node (ADR 85), run by its pipeline process: a pass in each interval, and its retention."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from icestream import errors, limits
from icestream.backup.archive_run import ArchiveRun
from icestream.backup.backup_target import BackupTarget, open_target
from icestream.backup.encryption import load_key
from icestream.backup.node_client import Call
from icestream.backup.stored_archive import ArchiveBase
from icestream.backup.stored_backups import StoredBackups
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.processes.component_options import store_options
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload
from icestream.settings import Settings

_log = get_logger("backup")
# A target that is down is tried again less often than each interval, so that its log does not fill with warnings.
_RETRY_SECONDS_MAX: Final = 30.0


class ContinuousArchive:
    """Archives one node, without end."""

    def __init__(self, settings: Settings, call: Call, clock: Clock, randomness: Randomness, offload: Offload) -> None:
        """`call`: of the broker. `offload`: a thread for reading, hashing and writing."""
        self._settings = settings
        self._call = call
        self._clock = clock
        self._randomness = randomness
        self._offload = offload
        self._retained_ns: int | None = None

    async def run(self) -> None:
        """Runs until it is cancelled."""
        with tempfile.TemporaryDirectory(prefix="icestream-archive-") as spool:
            failures = 0
            run: ArchiveRun | None = None
            while True:
                try:
                    if run is None:
                        run = self.open_run(self.open_target(self._location, Path(spool)))
                        metrics.ARCHIVE_AGE.set_function(partial(getattr, run, "age_seconds"))
                    await run.run_pass()
                    await self._retain(run, Path(spool))
                    failures = 0
                except (errors.IcestreamError, OSError) as error:
                    failures += 1
                    metrics.ARCHIVE_FAILURES.inc()
                    _log.warning("pass of the archive failed, it is repeated", failures=failures, reason=str(error))
                interval = self._settings.backup.archive.interval_ms / 1_000
                await self._clock.sleep(interval if not failures else max(interval, min(failures, _RETRY_SECONDS_MAX)))

    def open_run(self, target: BackupTarget) -> ArchiveRun:
        options = self._settings.backup
        key = load_key(options.key, os.environ) if options.key else None
        node = self._settings.node.name
        return ArchiveRun(self._call, node, target, key, self._clock, self._randomness, self._offload)

    @property
    def _location(self) -> str:
        return self._settings.backup.archive.target or self._settings.backup.target or ""

    def open_target(self, location: str, spool: Path) -> BackupTarget:
        options = store_options(self._settings)
        return open_target(location, options, self._clock, self._randomness, self._offload, spool)

    async def _retain(self, run: ArchiveRun, spool: Path) -> None:
        """Removes what no backup of this node needs, each ARCHIVE_RETAIN_SECONDS."""
        now_ns = self._clock.monotonic_ns()
        if self._retained_ns is not None and now_ns - self._retained_ns < limits.ARCHIVE_RETAIN_SECONDS * 1e9:
            return
        self._retained_ns = now_ns
        options = self._settings.backup
        if options.target is None:
            return  # nothing tells which backups there are
        stored = StoredBackups(self.open_target(options.target, spool))
        bases = [
            ArchiveBase(node.log_id, node.lsn, backup.root.cut_ms)
            for backup in await stored.backups()
            if backup.root is not None
            for node in backup.root.nodes
        ]
        await run.retain(bases, options.archive.keep_age_ms)
