"""The sink of tests: writes and syncs are performed when the test says so, one at a time, or fail."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from icestream.runtime.files import File
from icestream.wal.appender import PlannedWrite
from icestream.wal.sink import Sink, SinkError, SinkProgress, contiguous_runs
from icestream.wal.write_ahead_log import WriteAheadLog


class HeldSink:
    """Does what the native writer thread does, with its group commit, in steps.

    held           `submit` only queues; `step` performs the next write or sync. False: everything is performed at once
    by_descriptor  performed writes are reported through a descriptor on a later turn of the loop, as the thread does
    replaced       the sink in whose place it was installed: it continues its tickets and closes it

    `is_held` can be changed at any time. While `is_report_held`, `progress` does not show what was performed since: a
    thread that has finished and was not heard of yet. A queue is lost with `close`, as with a process that ends.
    """

    def __init__(self, *, held: bool = True, by_descriptor: bool = False, replaced: Sink | None = None) -> None:
        self.is_held = held
        self.is_report_held = False
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK) if by_descriptor else -1
        self._replaced = replaced
        self._queue: deque[tuple[PlannedWrite, File]] = deque()
        self._steps: deque[tuple[str, list[tuple[PlannedWrite, File]]]] = deque()
        self._written, self._synced, self._error = replaced.progress() if replaced else SinkProgress(0, 0, None)
        self._reported = self._written, self._synced

    def submit(self, writes: Sequence[PlannedWrite], files: Mapping[int, File]) -> bool:
        if self._error is None:
            self._queue.extend((write, files[write.number]) for write in writes)
        if self.is_held:
            return False
        self.step_all()
        if self._descriptor < 0:
            return True
        os.eventfd_write(self._descriptor, 1)
        return False

    @property
    def is_waiting(self) -> bool:
        """True if a write is queued or a step is left."""
        return bool(self._queue or self._steps)

    def step(self) -> bool:
        """Performs the next write or sync of the thread; False if there is nothing to do."""
        if self._error or not self.is_waiting:
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

    def step_all(self) -> None:
        while self.step():
            pass

    def fail_queued(self) -> None:
        """The queued writes fail as on a full disk."""
        if self._queue:
            self._error = SinkError(self._queue[0][0].ticket, "write", errno.ENOSPC)
            self._queue.clear()

    def _plan(self) -> None:
        """Takes everything queued, as the thread does: that is how group commit forms."""
        batch = list(self._queue)
        self._queue.clear()
        start = 0
        for run in contiguous_runs([write for write, _ in batch]):
            members = batch[start : start + len(run)]
            start += len(run)
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
        if self._descriptor >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._descriptor)
        if not self.is_report_held:
            self._reported = self._written, self._synced
        return SinkProgress(*self._reported, self._error)

    def fileno(self) -> int:
        return self._descriptor

    def halt(self) -> SinkProgress:
        return SinkProgress(self._written, self._synced, self._error)

    def restart(self) -> None:
        self._error = None
        self._queue.clear()
        self._steps.clear()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        if self._replaced is not None:
            self._replaced.close()


class LogHold:
    """Holds the writes of a running log, in place of whose sink a HeldSink is installed for good."""

    def __init__(self, log: WriteAheadLog | None) -> None:
        assert log is not None
        self._log = log
        if log._sink.fileno() >= 0:
            log._loop.remove_reader(log._sink.fileno())
        self._sink = log._sink = HeldSink(held=False, replaced=log._sink)
        self.failures = 0

    def hold(self) -> None:
        self._sink.is_held = True

    @property
    def is_waiting(self) -> bool:
        """True if the log wanted to write since it is held."""
        return self._sink.is_waiting

    def release(self) -> None:
        """Performs the held writes and holds none from now on."""
        self._sink.is_held = False
        if self._sink.is_waiting:
            self._sink.step_all()
            self._log._on_progress()

    def fail(self) -> None:
        """The held writes fail because the disk is full; it has space again afterwards."""
        self._sink.is_held = False
        if self._sink.is_waiting:
            self._sink.fail_queued()
            self.failures += 1
            self._log._on_progress()


@contextlib.contextmanager
def held_log(log: WriteAheadLog | None) -> Iterator[LogHold]:
    """Holds the writes of the log until the end of the block, so that the log can be closed after it."""
    hold = LogHold(log)
    hold.hold()
    try:
        yield hold
    finally:
        hold.release()
