"""Sinks perform the appender's planned writes in order: in a native thread, or inline on the event loop.

    InlineSink    writes and syncs in the caller; used without a native build and on the simulated disk
    NativeSink    writes and syncs in a thread of the native extension and reports completion by eventfd. If the loop is
                  idle (this is the only write, nothing is queued) and syncs have been short, it writes inline instead,
                  which saves two thread switches (docs/adr/0004, docs/benchmarks.md)

After an error nothing more is written. Writes that completed before it are still reported (hazard 51).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from icestream import limits
from icestream.runtime.clock import Clock
from icestream.runtime.files import File
from icestream.runtime.native import native
from icestream.wal.appender import PlannedWrite


class SinkError(NamedTuple):
    """The first failed operation: from ticket `ticket` on nothing was performed."""

    ticket: int
    operation: str  # "write" or "sync"
    errno: int


class SinkProgress(NamedTuple):
    """The highest tickets that are written and synced, and the first error."""

    written: int
    synced: int
    error: SinkError | None


class Sink(Protocol):
    """Performs planned writes in order; see the module."""

    def submit(self, writes: Sequence[PlannedWrite], files: Mapping[int, File]) -> bool:
        """Accepts the writes; True if `progress` reports something new already."""

    def request_sync(self, file: File) -> None:
        """Starts a sync of everything written so far, in the background."""

    def progress(self) -> SinkProgress: ...

    def fileno(self) -> int:
        """A descriptor that is readable when `progress` has changed; -1 if every `submit` completes at once."""

    def halt(self) -> SinkProgress:
        """After a failed write: waits for concurrent operations and returns the final progress.

        A sync that ran at the same time may have failed too, which is the more serious error.
        """

    def restart(self) -> None:
        """Accepts writes again after a failed write and `halt`."""

    def close(self) -> None: ...


class InlineSink:
    """Writes and syncs in the caller, and has completed everything when `submit` returns."""

    def __init__(self) -> None:
        self._written = 0
        self._synced = 0
        self._error: SinkError | None = None

    def submit(self, writes: Sequence[PlannedWrite], files: Mapping[int, File]) -> bool:
        """Performs one write and one sync for each contiguous run of writes, like the native thread."""
        for run in contiguous_runs(writes) if not self._error else ():
            file = files[run[0].number]
            operation = "write"
            try:
                # One write for a contiguous run, as the native thread does it: tests on the simulated disk see the same
                # torn writes.
                file.write_at(run[0].position, b"".join(write.data for write in run))
                self._written = run[-1].ticket
                if any(write.sync for write in run):
                    operation = "sync"
                    file.sync()
                    self._synced = self._written
            except OSError as error:
                self._error = SinkError(run[0].ticket, operation, error.errno or 0)
                break
        return True

    def request_sync(self, file: File) -> None:
        if self._error:
            return
        try:
            file.sync()
            self._synced = self._written
        except OSError as error:
            self._error = SinkError(self._written, "sync", error.errno or 0)

    def progress(self) -> SinkProgress:
        return SinkProgress(self._written, self._synced, self._error)

    def fileno(self) -> int:
        return -1

    def halt(self) -> SinkProgress:
        return self.progress()

    def restart(self) -> None:
        self._error = None

    def close(self) -> None:
        """Does nothing: every write has completed already."""


def contiguous_runs(writes: Sequence[PlannedWrite]) -> list[list[PlannedWrite]]:
    """Groups writes that follow each other without a hole in one file."""
    groups: list[list[PlannedWrite]] = []
    for write in writes:
        last = groups[-1][-1] if groups else None
        if last and last.number == write.number and last.position + len(last.data) == write.position:
            groups[-1].append(write)
        else:
            groups.append([write])
    return groups


class NativeSink:
    """Hands writes to a native thread, which never takes the interpreter lock (hazard 18)."""

    def __init__(self, clock: Clock, inline_below_us: int) -> None:
        assert native is not None
        self._clock = clock
        self._inline_below_ns = inline_below_us * 1000
        self.is_disk_busy = False  # another writer loads the disk: measured sync times do not predict the next one
        self._writer = native.LogWriter()
        self._submitted = 0
        self._written = 0
        self._synced = 0
        self._sync_ns = 0.0
        self._write_back = (0, 0)
        self._inline_progress: SinkProgress | None = None  # of an inline write, not reported yet

    def set_inline_below_us(self, inline_below_us: int) -> None:
        """Changes up to which average sync time the loop syncs inline; 0: never."""
        self._inline_below_ns = inline_below_us * 1000

    def submit(self, writes: Sequence[PlannedWrite], files: Mapping[int, File]) -> bool:
        if self._can_write_inline(writes) and self._write_inline(writes[0], files[writes[0].number]):
            return True
        writer = self._writer
        try:
            for ticket, number, position, data, sync in writes:
                writer.submit(ticket, files[number].fileno(), position, data, sync)
        except RuntimeError:
            return False  # an earlier write failed meanwhile: progress() reports it
        last = writes[-1]
        self._submitted = last.ticket
        if not last.sync:
            self._start_write_back(last, files[last.number])
        return False

    def _can_write_inline(self, writes: Sequence[PlannedWrite]) -> bool:
        """True for a single small write with nothing in flight before it; with a sync only while syncs are short."""
        if len(writes) != 1 or len(writes[0].data) > limits.INLINE_WRITE_BYTES_MAX or not self._inline_below_ns:
            return False
        # A sync on the loop blocks every connection, so it must have been short lately. A write into the page cache is
        # short anyway.
        if writes[0].sync:
            are_short = 0 < self._sync_ns < self._inline_below_ns and not self.is_disk_busy
            return self._synced == self._submitted and are_short
        return self._written == self._submitted

    def _write_inline(self, write: PlannedWrite, file: File) -> bool:
        """False if the thread is busy after all: a sync of earlier writes may still be running."""
        try:
            sync_ns = self._writer.write_inline(write.ticket, file.fileno(), write.position, write.data, write.sync)
        except RuntimeError:
            return False
        except OSError:
            self._submitted = write.ticket
            return True  # the writer remembers it; progress() reports it
        self._submitted = self._written = write.ticket
        if write.sync:
            self._synced = write.ticket
            self._record_sync_time(sync_ns)
        else:
            self._start_write_back(write, file)
        # Known without asking the writer: nothing else was in flight. A failed sync in the background, if there is one,
        # is signalled by the descriptor.
        self._inline_progress = SinkProgress(self._written, self._synced, None)
        return True

    @property
    def sync_seconds(self) -> float:
        """The moving average of sync times."""
        return self._sync_ns / 1e9

    def _record_sync_time(self, nanoseconds: int) -> None:
        # Exponential moving average: one slow sync moves the next ones to the thread until they are short again.
        # At least 1 ns: 0 means that no sync was measured yet, and the first one always runs in the thread.
        self._sync_ns = nanoseconds if not self._sync_ns else max(0.7 * self._sync_ns + 0.3 * nanoseconds, 1.0)

    def _start_write_back(self, write: PlannedWrite, file: File) -> None:
        """Lets the kernel write out dirty pages early, so that the next periodic sync is short."""
        number, start = self._write_back
        if number != write.number:
            number, start = write.number, write.position
        end = write.position + len(write.data)
        if end - start >= limits.WRITE_BACK_BYTES:
            self._writer.start_write_back(file.fileno(), start, end - start)
            start = end
        self._write_back = (number, start)

    def request_sync(self, file: File) -> None:
        self._writer.request_sync(file.fileno())

    def progress(self) -> SinkProgress:
        if (inline_progress := self._inline_progress) is not None:
            self._inline_progress = None
            return inline_progress
        written, synced, sync_ns, error = self._writer.poll()
        # Several syncs may have completed since the last poll; the writer reports the time of the last one.
        if synced > self._synced and sync_ns:
            self._record_sync_time(sync_ns)
        self._written, self._synced = written, synced
        return SinkProgress(written, synced, SinkError(*error) if error else None)

    def fileno(self) -> int:
        return int(self._writer.fileno())

    def halt(self) -> SinkProgress:
        self._writer.close()
        self._inline_progress = None
        return self.progress()

    def restart(self) -> None:
        assert native is not None
        self._writer = native.LogWriter()

    def close(self) -> None:
        self._writer.close()
