"""The sink of a running log whose disk stands still, or fails, when the test says so."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from icestream.runtime.files import File
from icestream.wal.appender import PlannedWrite
from icestream.wal.sink import SinkError, SinkProgress
from icestream.wal.write_ahead_log import WriteAheadLog


class HeldSink:
    def __init__(self, log: WriteAheadLog) -> None:
        self._log = log
        self._sink = log._sink
        self._held: list[tuple[list[PlannedWrite], dict[int, File]]] = []
        self._is_held = False
        self._error: SinkError | None = None
        self.failures = 0
        log._sink = self

    def hold(self) -> None:
        self._is_held = True

    def let_go(self) -> None:
        self._is_held = False
        held, self._held = self._held, []
        for writes, files in held:
            if self._sink.submit(writes, files):
                self._log._on_progress()

    @property
    def waits(self) -> bool:
        """Something was to be written since it holds."""
        return bool(self._held)

    def fail(self) -> None:
        """What is held is not written: the disk is full. Afterwards it has room again."""
        held, self._held, self._is_held = self._held, [], False
        if held:
            self._error = SinkError(held[0][0][0].ticket, "write", errno.ENOSPC)
            self.failures += 1
            self._log._on_progress()

    def submit(self, writes: Sequence[PlannedWrite], files: Mapping[int, File]) -> bool:
        if self._is_held:
            self._held.append((list(writes), dict(files)))
            return False
        return self._sink.submit(writes, files)

    def request_sync(self, file: File) -> None:
        self._sink.request_sync(file)

    def progress(self) -> SinkProgress:
        written, synced, error = self._sink.progress()
        return SinkProgress(written, synced, self._error or error)

    def fileno(self) -> int:
        return self._sink.fileno()

    def halt(self) -> SinkProgress:
        return self._sink.halt()

    def restart(self) -> None:
        self._error = None
        self._sink.restart()

    def close(self) -> None:
        self._sink.close()


@contextmanager
def held_sink(log: WriteAheadLog | None) -> Iterator[HeldSink]:
    """It holds from the start; at the end the disk works again, so that the log can be closed."""
    assert log is not None
    sink = HeldSink(log)
    sink.hold()
    try:
        yield sink
    finally:
        sink.let_go()
