"""Carries out the appender's writes: in the native thread, or inline. One order, two ways to wait for the disk.

    InlineSink    write and sync in the caller; where no native build exists, and on the simulated disk
    NativeSink    write and sync in a thread of the native extension, completion by eventfd. When the loop is idle (this
                  is the only write, nothing is queued) and syncs have been short, it writes inline instead: that saves
                  two thread switches (docs/adr/0004, docs/benchmarks.md)

After an error nothing later is written. What was complete before it stays reported (hazard 51).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from icestream import limits
from icestream.runtime.clock import Clock
from icestream.runtime.files import File
from icestream.runtime.native import native
from icestream.wal.appender import Write


class SinkError(NamedTuple):
    ticket: int
    operation: str  # "write" or "sync"
    errno: int


class Progress(NamedTuple):
    written: int
    synced: int
    error: SinkError | None


class Sink(Protocol):
    def submit(self, writes: Sequence[Write], files: Mapping[int, File]) -> bool:
        """Takes the writes; True when `progress` has news already."""

    def request_sync(self, file: File) -> None:
        """Syncs in the background what is written so far."""

    def progress(self) -> Progress: ...

    def fileno(self) -> int:
        """Readable when there is news; -1 when news is there as soon as `submit` returns."""

    def halt(self) -> Progress:
        """Ends what is still under way after a failed write: a sync beside it may have failed too, and that counts."""

    def restart(self) -> None:
        """Goes on after a failed write and `halt`."""

    def close(self) -> None: ...


class InlineSink:
    def __init__(self) -> None:
        self._written = 0
        self._synced = 0
        self._error: SinkError | None = None

    def submit(self, writes: Sequence[Write], files: Mapping[int, File]) -> bool:
        """One write and one sync for each run of writes that touch in one file, as the thread does it."""
        for run in runs(writes) if not self._error else ():
            file = files[run[0].number]
            operation = "write"
            try:
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

    def progress(self) -> Progress:
        return Progress(self._written, self._synced, self._error)

    def fileno(self) -> int:
        return -1

    def halt(self) -> Progress:
        return self.progress()

    def restart(self) -> None:
        self._error = None

    def close(self) -> None:
        """Nothing is ever left to do."""


def runs(writes: Sequence[Write]) -> list[list[Write]]:
    """Writes that follow each other without a hole in one file."""
    found: list[list[Write]] = []
    for write in writes:
        last = found[-1][-1] if found else None
        if last and last.number == write.number and last.position + len(last.data) == write.position:
            found[-1].append(write)
        else:
            found.append([write])
    return found


class NativeSink:
    def __init__(self, clock: Clock, inline_below_us: int) -> None:
        assert native is not None
        self._clock = clock
        self._inline_below_ns = inline_below_us * 1000
        self.is_disk_busy = False  # somebody writes a lot beside: how long syncs were says nothing
        self._writer = native.LogWriter()
        self._submitted = 0
        self._written = 0
        self._synced = 0
        self._sync_ns = 0.0
        self._write_back = (0, 0)

    def submit(self, writes: Sequence[Write], files: Mapping[int, File]) -> bool:
        if self._may_write_inline(writes) and self._write_inline(writes[0], files[writes[0].number]):
            return True
        writer = self._writer
        try:
            for ticket, number, position, data, sync in writes:
                writer.submit(ticket, files[number].fileno(), position, data, sync)
        except RuntimeError:
            return False  # it failed meanwhile and has said so: progress() reports it
        last = writes[-1]
        self._submitted = last.ticket
        if not last.sync:
            self._start_write_back(last, files[last.number])
        return False

    def _may_write_inline(self, writes: Sequence[Write]) -> bool:
        """The only write, small, nothing before it under way; with a sync only while those have been short."""
        if len(writes) != 1 or len(writes[0].data) > limits.INLINE_WRITE_BYTES_MAX or not self._inline_below_ns:
            return False
        if writes[0].sync:
            are_short = 0 < self._sync_ns < self._inline_below_ns and not self.is_disk_busy
            return self._synced == self._submitted and are_short
        return self._written == self._submitted

    def _write_inline(self, write: Write, file: File) -> bool:
        """False when the thread has something to do after all: a sync of what is written may still be under way."""
        try:
            sync_ns = self._writer.write_inline(write.ticket, file.fileno(), write.position, write.data, write.sync)
        except RuntimeError:
            return False
        except OSError:
            self._submitted = write.ticket
            return True  # the writer remembers it; progress() reports it
        self._submitted = write.ticket
        if write.sync:
            self._note_sync(sync_ns)
        else:
            self._start_write_back(write, file)
        return True

    @property
    def sync_seconds(self) -> float:
        """What a sync takes at present."""
        return self._sync_ns / 1e9

    def _note_sync(self, nanoseconds: int) -> None:
        """An average that forgets: one slow sync sends the next ones to the thread until they are short again."""
        self._sync_ns = nanoseconds if not self._sync_ns else max(0.7 * self._sync_ns + 0.3 * nanoseconds, 1.0)

    def _start_write_back(self, write: Write, file: File) -> None:
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

    def progress(self) -> Progress:
        written, synced, sync_ns, error = self._writer.poll()
        if synced > self._synced and sync_ns:
            self._note_sync(sync_ns)
        self._written, self._synced = written, synced
        return Progress(written, synced, SinkError(*error) if error else None)

    def fileno(self) -> int:
        return int(self._writer.fileno())

    def halt(self) -> Progress:
        self._writer.close()
        return self.progress()

    def restart(self) -> None:
        assert native is not None
        self._writer = native.LogWriter()

    def close(self) -> None:
        self._writer.close()
