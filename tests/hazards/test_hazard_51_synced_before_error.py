"""Hazard 51: after an error, what was synced before is still reported as such; the rest is unknown, never "failed"."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icestream import errors
from icestream.runtime.clock import SystemClock
from icestream.runtime.files import LocalFile
from icestream.runtime.native import native
from icestream.wal.appender import Placed, PlannedWrite
from icestream.wal.sink import NativeSink, SinkError
from tests.support.held_sink import HeldSink
from tests.support.machine import A, Machine, batch, messages, settle, turn

NATIVE = pytest.mark.skipif(native is None, reason="the native extension is not built (make native)")
WAIT_SECONDS = 30
LARGE = bytes(16 * 1024 * 1024)


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_hazard_51_news_of_a_sync_and_of_an_error_in_one_answer_acks_the_first(operation: str) -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    await settle()
    first = log.submit([batch(log, A, b"synced")])
    await settle()
    sink.step()
    sink.step()  # its write and its sync are done, but the log has not heard of it yet
    second = log.submit([batch(log, A, b"lost")])
    await settle()
    machine.disk.fail(operation, errno.EIO)
    while sink.step():
        pass
    assert not first.done()
    await turn(log, sink, 0)
    log._on_progress()
    await settle()
    assert first.result() == [Placed(0, 1)], "the message is on disk, and its producer must get an ack"
    assert isinstance(second.exception(), errors.OutcomeUnknown)
    assert await messages(log, A) == {0: b"synced"}
    await machine.power_loss()
    log = await machine.start()
    assert (await messages(log, A))[0] == b"synced"


@pytest.fixture
def writer() -> Iterator[Any]:
    assert native is not None
    log_writer = native.LogWriter()
    yield log_writer
    log_writer.close()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def full() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def wait_error(writer: Any) -> Any:
    while (answer := writer.poll())[3] is None:
        readable, _, _ = select.select([writer], [], [], WAIT_SECONDS)
        assert readable, f"no news; the last were {answer}"
    return answer


@NATIVE
def test_hazard_51_the_native_thread_reports_syncs_before_the_error(writer: Any, fd: int, full: int) -> None:
    writer.submit(1, fd, 0, LARGE, True)  # so large that the rest is queued before it is written
    writer.submit(2, full, 0, b"no room", True)
    writer.submit(3, full, 7, b"nor here", True)
    written, synced, _, error = wait_error(writer)
    assert (written, synced) == (1, 1)
    assert error == (2, "write", errno.ENOSPC)
    assert os.fstat(fd).st_size == len(LARGE)
    assert writer.poll()[:2] == (1, 1), "the writer reports the same progress again"


@NATIVE
def test_hazard_51_an_error_is_kept_until_progress_is_read(writer: Any, fd: int, full: int) -> None:
    writer.submit(1, fd, 0, b"one", True)
    writer.submit(2, full, 0, b"no room", True)
    wait_error(writer)
    for _ in range(3):
        assert writer.poll()[3] == (2, "write", errno.ENOSPC)


@NATIVE
def test_hazard_51_the_sink_accepts_and_drops_writes_after_an_error(fd: int, full: int) -> None:
    """The loop may flush another tick before it hears of the error: that tick shares the fate of the failed one."""
    sink = NativeSink(SystemClock(), 0)
    files = {1: LocalFile(os.dup(fd)), 2: LocalFile(os.dup(full))}
    try:
        sink.submit([PlannedWrite(1, 1, 0, b"one", True)], files)
        sink.submit([PlannedWrite(2, 2, 0, b"no room", True)], files)
        readable: list[Any] = []
        while sink._writer.poll()[3] is None:
            readable, _, _ = select.select([sink], [], [], WAIT_SECONDS)
            assert readable
        sink.submit([PlannedWrite(3, 1, 3, b"late", True)], files)
        progress = sink.progress()
        assert (progress.written, progress.synced) == (1, 1)
        assert progress.error == SinkError(2, "write", errno.ENOSPC)
        assert os.fstat(fd).st_size == 3, "after an error nothing later is written"
    finally:
        sink.close()
        for file in files.values():
            file.close()


@NATIVE
def test_hazard_51_a_failed_inline_write_is_reported_the_same_way(writer: Any, fd: int, full: int) -> None:
    writer.write_inline(1, fd, 0, b"one", True)
    with pytest.raises(OSError, match="No space left"):
        writer.write_inline(2, full, 0, b"no room", True)
    written, synced, _, error = writer.poll()
    assert (written, synced, error) == (1, 1, (2, "write", errno.ENOSPC))
