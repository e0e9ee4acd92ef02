"""Keeps a prepared log file behind the active one. Without disk space proposals are refused; it is retried."""

from __future__ import annotations

from collections.abc import Callable

from icestream import errors, limits
from icestream.metadata.log_store import LogStore
from icestream.metadata.proposals import Proposals
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("metadata")


class NextFile:
    def __init__(
        self, log: LogStore, clock: Clock, tasks: Tasks, proposals: Proposals, on_made: Callable[[], None]
    ) -> None:
        self._log_store = log
        self._clock = clock
        self._tasks = tasks
        self._proposals = proposals
        self._on_made = on_made
        self._retry_ns = 0

    def want(self) -> None:
        """Starts preparing a file if the log needs one."""
        log = self._log_store
        if log.preparing or not log.plan.wants_file:
            return
        if self._clock.monotonic_ns() >= self._retry_ns:
            log.preparing = True  # now: a second step may come before the task begins
            self._tasks.start(self._prepare(), "metadata-file")
        elif self._proposals.queue:
            # the present file is full and the disk has no room for another
            self._proposals.refuse_queue(
                errors.DiskFull(f"no room for a log file: {log.prepare_error}", hint="free disk space, retry")
            )

    async def _prepare(self) -> None:
        await self._log_store.prepare()
        if (error := self._log_store.prepare_error) is not None:
            _log.warning("no further log file for the metadata store", error=str(error))
            self._retry_ns = self._clock.monotonic_ns() + int(limits.METADATA_RETRY_SECONDS * 1e9)
        self._on_made()
