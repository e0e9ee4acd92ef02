"""A sink whose disk works only when the test lets it: the native thread's behaviour, one operation at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from icestream.runtime.files import File
from icestream.wal.appender import PlannedWrite
from icestream.wal.sink import SinkError, SinkProgress, contiguous_runs


class SteppedSink:
    def __init__(self) -> None:
        self._queue: deque[tuple[PlannedWrite, File]] = deque()
        self._steps: deque[tuple[str, list[tuple[PlannedWrite, File]]]] = deque()
        self._written = 0
        self._synced = 0
        self._error: SinkError | None = None

    def submit(self, writes: Sequence[PlannedWrite], files: Mapping[int, File]) -> bool:
        if self._error is None:
            self._queue.extend((write, files[write.number]) for write in writes)
        return False

    def step(self) -> bool:
        """One write or one sync of what the thread would do next; False when there is nothing to do."""
        if self._error or not (self._steps or self._queue):
            return False
        if not self._steps:
            self._plan()
        operation, run = self._steps.popleft()
        try:
            if operation == "write":
                run[0][1].write_at(run[0][0].position, b"".join(write.data for write, _ in run))
                self._written = run[-1][0].ticket
            else:
                run[0][1].sync()
                self._synced = run[-1][0].ticket
        except OSError as error:
            self._error = SinkError(run[0][0].ticket, operation, error.errno or 0)
        return True

    def _plan(self) -> None:
        """Takes everything queued, as the thread does: that is how group commit forms."""
        batch = list(self._queue)
        self._queue.clear()
        at = 0
        for run in contiguous_runs([write for write, _ in batch]):
            members = batch[at : at + len(run)]
            at += len(run)
            self._steps.append(("write", members))
            if any(write.sync for write in run):
                self._steps.append(("sync", members))

    def request_sync(self, file: File) -> None:
        try:
            file.sync()
            self._synced = max(self._synced, self._written)
        except OSError as error:
            self._error = self._error or SinkError(self._written, "sync", error.errno or 0)

    def progress(self) -> SinkProgress:
        return SinkProgress(self._written, self._synced, self._error)

    def fileno(self) -> int:
        return -1

    def halt(self) -> SinkProgress:
        return self.progress()

    def restart(self) -> None:
        self._error = None
        self._queue.clear()
        self._steps.clear()

    def close(self) -> None:
        """What is queued is lost, as with a process that ends."""
