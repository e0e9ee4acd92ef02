"""Drills in intervals: the pipeline process of a node looks what is due, and a process of its own makes the drill.

    parent    child_main.py drill, settings on its stdin, one line of JSON from its stdout: {"drill": outcome}
    child     drill_process.py: the newest complete backup of this node, the scratch broker, the report into the target

What is due, and when a drill passed for the last time, is said by the reports in the target: a restart changes nothing,
and a drill that an operator made counts as well. A process of its own, because the scratch broker has metrics, memory
and a disk of its own, and because it may be killed without the pipeline.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from icestream import errors, limits
from icestream.backup.backup_target import BackupTarget, open_target
from icestream.backup.drill_report import drill_due_in_ms
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.stored_drills import LastDrills, drill_key_id, last_drills
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.processes.child_settings import child_command, child_line
from icestream.processes.component_options import store_options
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload
from icestream.settings import Settings

_RETRY_SECONDS: Final = 60.0
_log = get_logger("backup")
Outcome = str


class ScheduledDrills:
    """Looks after the drills of one node."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        randomness: Randomness,
        offload: Offload,
        drill: Callable[[], Awaitable[Outcome]] | None = None,
    ) -> None:
        """`drill`: makes one and returns its outcome; None: in a process of its own."""
        self._settings = settings
        self._clock = clock
        self._randomness = randomness
        self._offload = offload
        self._drill = drill or self._drill_in_child
        self._failed_ms: int | None = None  # when the last drill could not run

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            seconds = _RETRY_SECONDS
            try:
                seconds = await self.run_pass() / 1_000
            except (errors.IcestreamError, OSError) as error:
                _log.error("drills cannot be looked after, it is tried again", reason=str(error))
            await self._clock.sleep(max(1.0, min(seconds, limits.BACKUP_SCHEDULE_LOOK_SECONDS)))

    async def run_pass(self) -> int:
        """Makes the drill that is due; returns the ms until the next look."""
        interval_ms = self._settings.backup.drill.interval_ms
        with tempfile.TemporaryDirectory(prefix="icestream-drill-look-") as spool:
            target = open_target(
                self._settings.backup.target or "", store_options(self._settings), self._clock, self._randomness,
                self._offload, Path(spool),
            )  # fmt: skip
            wait_ms = await self._look(target)
            if not interval_ms:
                return int(limits.BACKUP_SCHEDULE_LOOK_SECONDS * 1_000)
            if wait_ms == 0 and await newest_backup(StoredBackups(target), self._settings.node.name) is not None:
                await self._make()
                wait_ms = await self._look(target)
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

    async def _make(self) -> None:
        try:
            outcome = await self._drill()
        except (errors.IcestreamError, OSError) as error:
            self._failed_ms = self._now_ms
            metrics.BACKUP_DRILLS.labels("error").inc()
            _log.error("a drill could not run, it is tried again", reason=str(error))
            return
        self._failed_ms = None
        metrics.BACKUP_DRILLS.labels(outcome).inc()
        if outcome != "passed":
            _log.error("the drill failed: a backup cannot be restored as it is", hint="`icestream backup drills`")

    @property
    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1_000

    async def _drill_in_child(self) -> Outcome:
        """Raises EngineFailed if the process ended without a report."""
        process = await asyncio.create_subprocess_exec(
            *child_command("drill"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            output, _ = await process.communicate(child_line(self._settings))
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


async def newest_backup(stored: StoredBackups, node: str) -> str | None:
    """The newest complete backup that a node has made; None without one."""
    newest = None
    for backup in await stored.backups():
        if backup.root is not None and (await stored.begin(backup.id)).node == node:
            newest = backup.id
    return newest
