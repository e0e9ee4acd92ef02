"""The thread that writes and syncs: order, group commit, and its errors."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

native = pytest.importorskip("icestream_native", reason="the native extension is not built (make native)")

WAIT_SECONDS = 60
# So large that everything submitted after it is queued before it is written.
LARGE = bytes(32 * 1024 * 1024)


@pytest.fixture
def writer() -> Iterator[Any]:
    log_writer = native.LogWriter()
    yield log_writer
    log_writer.close()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    yield from opened(tmp_path / "log", os.O_RDWR | os.O_CREAT)


@pytest.fixture
def full() -> Iterator[int]:
    yield from opened(Path("/dev/full"), os.O_RDWR)


@pytest.fixture
def unsyncable() -> Iterator[int]:
    """Writes succeed; fdatasync answers EINVAL."""
    yield from opened(Path("/dev/null"), os.O_RDWR)


def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    yield descriptor
    os.close(descriptor)


def wait(writer: Any, done: Callable[[Any], bool]) -> Any:
    """The first answer of `poll` that is what the test waits for."""
    while True:
        answer = writer.poll()
        if done(answer):
            return answer
        readable, _, _ = select.select([writer], [], [], WAIT_SECONDS)
        assert readable, f"no news; the last were {answer}"


def wait_written(writer: Any, ticket: int) -> Any:
    return wait(writer, lambda answer: answer[0] >= ticket)


def wait_synced(writer: Any, ticket: int) -> Any:
    return wait(writer, lambda answer: answer[1] >= ticket)


def wait_error(writer: Any) -> Any:
    return wait(writer, lambda answer: answer[3] is not None)


def content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


# --- writing and syncing ----------------------------------------------------------------------------------------------


def test_a_new_writer_has_no_progress(writer: Any) -> None:
    assert writer.poll() == (0, 0, 0, None)
    assert (writer.queued_bytes(), writer.sync_count()) == (0, 0)


def test_the_descriptor_can_be_watched(writer: Any, fd: int) -> None:
    assert fcntl.fcntl(writer.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(writer.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert select.select([writer], [], [], 0) == ([], [], [])
    writer.submit(1, fd, 0, b"x", True)
    assert select.select([writer], [], [], WAIT_SECONDS) == ([writer], [], [])
    assert writer.poll()[:2] == (1, 1)
    assert select.select([writer], [], [], 0) == ([], [], [])


def test_a_written_ticket_is_in_the_file(writer: Any, fd: int) -> None:
    writer.submit(1, fd, 8, b"abc", False)
    written, synced, sync_ns, error = wait_written(writer, 1)
    assert (written, synced, sync_ns, error) == (1, 0, 0, None)
    assert content(fd) == bytes(8) + b"abc"
    assert writer.sync_count() == 0


def test_a_synced_ticket_was_synced(writer: Any, fd: int) -> None:
    writer.submit(5, fd, 0, b"abc", True)
    written, synced, sync_ns, error = wait_synced(writer, 5)
    assert (written, synced, error) == (5, 5, None)
    assert sync_ns > 0
    assert writer.sync_count() == 1


def test_a_sync_covers_all_earlier_writes(writer: Any, fd: int) -> None:
    writer.submit(1, fd, 0, b"abc", False)
    writer.submit(2, fd, 3, b"def", False)
    writer.submit(3, fd, 100, b"", True)
    assert wait_synced(writer, 3)[:2] == (3, 3)
    assert content(fd) == b"abcdef"


WRITES = st.lists(st.tuples(st.integers(0, 600), st.binary(max_size=200), st.booleans()), min_size=1, max_size=30)


@given(WRITES)
def test_writes_in_order(writes: list[tuple[int, bytes, bool]]) -> None:
    """Later submissions write over earlier ones, contiguous or not: the file ends as if each was written alone."""
    expected = bytearray(800)
    with tempfile.TemporaryFile() as file:
        writer = native.LogWriter()
        file.write(expected)
        file.flush()
        for ticket, (position, data, sync) in enumerate(writes, 1):
            writer.submit(ticket, file.fileno(), position, data, sync)
            expected[position : position + len(data)] = data
        last_sync = max([ticket for ticket, (_, _, sync) in enumerate(writes, 1) if sync], default=0)
        answer = wait(writer, lambda answer: answer[0] == len(writes) and answer[1] >= last_sync)
        assert answer[3] is None
        assert content(file.fileno()) == expected
        writer.close()


def test_a_burst_shares_writes_and_syncs(writer: Any, fd: int) -> None:
    """More pieces than one pwritev takes, behind a write that takes a while."""
    pieces = [number.to_bytes(4, "little") for number in range(5000)]
    position = len(LARGE)
    writer.submit(1, fd, 0, LARGE, True)
    for ticket, piece in enumerate(pieces, 2):
        writer.submit(ticket, fd, position, piece, True)
        position += len(piece)
    assert wait_synced(writer, len(pieces) + 1)[:2] == (len(pieces) + 1, len(pieces) + 1)
    assert 1 <= writer.sync_count() < 100
    assert os.pread(fd, position, len(LARGE)) == b"".join(pieces)
    assert writer.queued_bytes() == 0


def test_progress_never_goes_back(writer: Any, fd: int) -> None:
    seen = [(0, 0)]
    for ticket in range(1, 500):
        writer.submit(ticket, fd, 10 * ticket, b"0123456789", ticket % 7 == 0)
        seen.append(writer.poll()[:2])
    seen.append(wait(writer, lambda answer: answer[0] == 499 and answer[1] >= 497)[:2])
    assert all(synced <= written for written, synced in seen)
    assert [max(pair) for pair in zip(*seen, strict=True)] == list(seen[-1])
    assert seen == sorted(seen)


def test_queued_writes_are_counted(writer: Any, fd: int) -> None:
    writer.submit(1, fd, 0, LARGE, False)
    assert writer.queued_bytes() in {len(LARGE), 0}
    wait_written(writer, 1)
    assert writer.queued_bytes() == 0


def test_files_follow_each_other(writer: Any, fd: int, tmp_path: Path) -> None:
    for other in opened(tmp_path / "next", os.O_RDWR | os.O_CREAT):
        writer.submit(1, fd, 0, b"first", False)
        writer.submit(2, fd, 5, b"seal", True)
        writer.submit(3, other, 0, b"second", True)
        assert wait_synced(writer, 3)[:2] == (3, 3)
        assert (content(fd), content(other)) == (b"firstseal", b"second")
        assert writer.sync_count() == 2


def test_a_file_is_written_after_the_previous_one_is_synced(writer: Any, fd: int, unsyncable: int) -> None:
    """hazard 5: `synced` is one number, so a file left unsynced would be claimed by the sync of the next."""
    writer.submit(1, fd, 0, b"first", False)
    with pytest.raises(ValueError, match="without a sync"):
        writer.submit(2, unsyncable, 0, b"second", True)
    with pytest.raises((ValueError, RuntimeError)):
        writer.write_inline(2, unsyncable, 0, b"second", True)
    wait_written(writer, 1)
    writer.request_sync(fd)
    wait_synced(writer, 1)
    writer.submit(2, unsyncable, 0, b"second", False)
    assert wait_written(writer, 2)[:2] == (2, 1)


def test_the_thread_needs_no_gil(writer: Any, fd: int) -> None:
    """While this thread keeps the GIL and only looks at memory, the bytes arrive."""
    os.ftruncate(fd, 4096)
    interval = sys.getswitchinterval()
    with mmap.mmap(fd, 4096) as view:
        sys.setswitchinterval(1000)
        try:
            writer.submit(1, fd, 0, b"x", True)
            limit = time.monotonic() + WAIT_SECONDS
            while view[0] == 0 and time.monotonic() < limit:
                pass
            assert view[0] == ord("x")
        finally:
            sys.setswitchinterval(interval)
    wait_synced(writer, 1)


def test_buffers_are_held_until_they_are_written(writer: Any, fd: int) -> None:
    data = os.urandom(1000)
    before = sys.getrefcount(data)
    writer.submit(1, fd, 0, data, True)
    assert sys.getrefcount(data) == before + 1
    wait_synced(writer, 1)
    assert sys.getrefcount(data) == before
    assert content(fd) == data


def test_only_bytes_are_accepted(writer: Any, fd: int) -> None:
    for data in (bytearray(b"x"), memoryview(b"x"), "x", None):
        with pytest.raises(TypeError):
            writer.submit(1, fd, 0, data, True)
        with pytest.raises(TypeError):
            writer.write_inline(1, fd, 0, data, True)


def test_tickets_rise(writer: Any, fd: int) -> None:
    with pytest.raises(ValueError, match="rise"):
        writer.submit(0, fd, 0, b"x", False)
    writer.submit(4, fd, 0, b"x", False)
    for ticket in (4, 3, 1):
        with pytest.raises(ValueError, match="rise"):
            writer.submit(ticket, fd, 1, b"y", False)
    wait_written(writer, 4)
    with pytest.raises(ValueError, match="rise"):
        writer.write_inline(4, fd, 1, b"y", False)
    writer.submit(6, fd, 1, b"z", False)
    assert wait_written(writer, 6)[0] == 6
    assert content(fd) == b"xz"


def test_positions_are_positions(writer: Any, fd: int) -> None:
    for position in (-1, 2**63 - 1, 2**63):
        with pytest.raises(OverflowError):
            writer.submit(1, fd, position, b"xy", False)
    assert writer.poll() == (0, 0, 0, None)


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_full_disk(writer: Any, full: int) -> None:
    writer.submit(1, full, 0, b"x", True)
    assert wait_error(writer) == (0, 0, 0, (1, "write", errno.ENOSPC))


def test_a_file_that_is_not_open_for_writing(writer: Any, fd: int, tmp_path: Path) -> None:
    for readonly in opened(tmp_path / "log", os.O_RDONLY):
        writer.submit(1, readonly, 0, b"x", True)
        assert wait_error(writer) == (0, 0, 0, (1, "write", errno.EBADF))
    assert content(fd) == b""


def test_a_sync_that_fails(writer: Any, unsyncable: int) -> None:
    writer.submit(1, unsyncable, 0, b"x", False)
    writer.submit(2, unsyncable, 1, b"y", True)
    assert wait_error(writer) == (2, 0, 0, (1, "sync", errno.EINVAL))
    assert writer.sync_count() == 0


def test_progress_before_an_error_is_still_reported(writer: Any, fd: int, full: int) -> None:
    """hazard 51: those producers get their ack, not an error."""
    data = os.urandom(100)
    before = sys.getrefcount(data)
    writer.submit(1, fd, 0, b"abc", True)
    writer.submit(2, fd, 3, LARGE, True)
    writer.submit(3, full, 0, data, True)
    writer.submit(4, full, 100, data, True)
    for _ in range(3):
        written, synced, sync_ns, error = wait_error(writer)
        assert (written, synced, error) == (2, 2, (3, "write", errno.ENOSPC))
        assert sync_ns > 0
    assert sys.getrefcount(data) == before
    assert writer.queued_bytes() == 0


def test_nothing_is_written_after_an_error(writer: Any, fd: int, full: int) -> None:
    """hazard 16: a hole in the log would be worse than its end."""
    writer.submit(1, fd, 0, LARGE, True)
    writer.submit(2, full, 0, b"x", True)
    writer.submit(3, fd, len(LARGE), b"later", True)
    assert wait_error(writer)[3] == (2, "write", errno.ENOSPC)
    writer.close()
    assert os.fstat(fd).st_size == len(LARGE)
    assert writer.poll()[:2] == (1, 1)


def test_a_failed_writer_accepts_nothing_more(writer: Any, fd: int, full: int) -> None:
    writer.submit(1, full, 0, b"x", True)
    wait_error(writer)
    for refused in (
        lambda: writer.submit(2, fd, 0, b"y", True),
        lambda: writer.write_inline(2, fd, 0, b"y", True),
        lambda: writer.request_sync(fd),
    ):
        with pytest.raises(RuntimeError, match="ticket 1 failed"):
            refused()
    writer.start_write_back(fd, 0, 1)
    assert content(fd) == b""


SHORT_WRITE = """
import os, resource, select, signal, sys
import icestream_native
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
large, size = 32 << 20, 1000
start = large + 8
resource.setrlimit(resource.RLIMIT_FSIZE, (start + 2500, resource.RLIM_INFINITY))
writer = icestream_native.LogWriter()
writer.submit(1, fd, 0, bytes(large), True)
for number in range(5):
    writer.submit(number + 2, fd, start + number * size, bytes([65 + number]) * size, True)
while writer.poll()[3] is None:
    select.select([writer], [], [], 60)
written, synced, _, error = writer.poll()
print(written, synced, *error, os.pread(fd, 10_000, start).decode())
"""


def test_a_short_write_is_continued_and_counted(tmp_path: Path) -> None:
    """The third of five joined pieces ends beyond the limit: the kernel takes a part of it, then refuses the rest."""
    command = [sys.executable, "-c", SHORT_WRITE, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_SECONDS)
    written, synced, ticket, step, number, rest = done.stdout.split()
    assert (int(written), int(synced)) == (3, 1)
    assert (int(ticket), step, int(number)) == (4, "write", errno.EFBIG)
    assert rest == "A" * 1000 + "B" * 1000 + "C" * 500


# --- inline -----------------------------------------------------------------------------------------------------------


def test_inline_writes_in_the_calling_thread(writer: Any, fd: int) -> None:
    assert writer.write_inline(1, fd, 0, b"abc", False) == 0
    assert writer.poll() == (1, 0, 0, None)
    sync_ns = writer.write_inline(2, fd, 3, b"def", True)
    assert sync_ns > 0
    assert writer.poll() == (2, 2, sync_ns, None)
    assert content(fd) == b"abcdef"
    assert writer.sync_count() == 1
    assert select.select([writer], [], [], 0) == ([], [], [])


def test_inline_alternates_with_the_thread(writer: Any, fd: int) -> None:
    """A caller that sees all writes done may write inline at once: the thread no longer holds the file."""
    for ticket in range(1, 400, 2):
        writer.submit(ticket, fd, ticket, b"a", ticket % 4 == 1)
        wait(writer, lambda answer, ticket=ticket: answer[ticket % 4 == 1] >= ticket)
        writer.write_inline(ticket + 1, fd, ticket + 1, b"b", False)
    assert writer.poll()[0] == 400
    assert content(fd) == b"\0" + b"ab" * 200


def test_inline_may_not_overtake(writer: Any, fd: int) -> None:
    writer.submit(1, fd, 0, LARGE, True)
    with pytest.raises(RuntimeError, match="under way"):
        writer.write_inline(2, fd, len(LARGE), b"x", True)
    wait_synced(writer, 1)
    writer.write_inline(2, fd, len(LARGE), b"x", True)
    assert writer.poll()[:2] == (2, 2)


def test_inline_failures_are_remembered(writer: Any, fd: int, full: int) -> None:
    writer.write_inline(1, fd, 0, b"x", True)
    with pytest.raises(OSError, match="No space left") as caught:
        writer.write_inline(2, full, 0, b"x", True)
    assert caught.value.errno == errno.ENOSPC
    written, synced, _, error = writer.poll()
    assert (written, synced, error) == (1, 1, (2, "write", errno.ENOSPC))
    with pytest.raises(RuntimeError, match="ticket 2 failed"):
        writer.submit(3, fd, 1, b"y", True)


def test_inline_syncs_that_fail_are_remembered(writer: Any, unsyncable: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        writer.write_inline(1, unsyncable, 0, b"x", True)
    assert writer.poll() == (1, 0, 0, (1, "sync", errno.EINVAL))


# --- syncs beside the writes ------------------------------------------------------------------------------------------


def test_a_requested_sync_covers_all_writes(writer: Any, fd: int) -> None:
    writer.submit(1, fd, 0, b"abc", False)
    wait_written(writer, 1)
    writer.request_sync(fd)
    written, synced, sync_ns, error = wait_synced(writer, 1)
    assert (written, synced, error) == (1, 1, None)
    assert sync_ns > 0
    assert writer.sync_count() == 1


def test_requested_syncs_run_beside_writes(writer: Any, fd: int) -> None:
    data = bytes(4096)
    for ticket in range(1, 1001):
        writer.submit(ticket, fd, ticket * len(data), data, False)
        if ticket % 50 == 0:
            writer.request_sync(fd)
            written, synced, _, error = writer.poll()
            assert synced <= written <= ticket
            assert error is None
    wait_written(writer, 1000)
    writer.request_sync(fd)
    assert wait_synced(writer, 1000)[:2] == (1000, 1000)
    assert 1 <= writer.sync_count() <= 21


def test_a_sync_of_another_file_claims_nothing(writer: Any, fd: int, tmp_path: Path) -> None:
    writer.submit(1, fd, 0, b"abc", False)
    wait_written(writer, 1)
    for other in opened(tmp_path / "other", os.O_RDWR | os.O_CREAT):
        writer.request_sync(other)
        writer.close()
    assert writer.poll() == (1, 0, 0, None)


def test_a_requested_sync_that_fails(writer: Any, unsyncable: int) -> None:
    writer.submit(3, unsyncable, 0, b"abc", False)
    wait_written(writer, 3)
    writer.request_sync(unsyncable)
    assert wait_error(writer) == (3, 0, 0, (3, "sync", errno.EINVAL))
    with pytest.raises(RuntimeError):
        writer.submit(4, unsyncable, 3, b"def", False)


def test_write_back_is_only_a_hint(writer: Any, fd: int, unsyncable: int) -> None:
    writer.start_write_back(10**6, 0, 100)
    writer.submit(1, fd, 0, LARGE, True)
    writer.start_write_back(fd, 0, len(LARGE))
    writer.start_write_back(unsyncable, 0, -5)
    assert wait_synced(writer, 1)[3] is None


# --- the end ----------------------------------------------------------------------------------------------------------


def test_close_finishes_queued_writes(writer: Any, fd: int) -> None:
    data = os.urandom(100)
    before = sys.getrefcount(data)
    writer.submit(1, fd, 0, LARGE, True)
    for ticket in range(2, 102):
        writer.submit(ticket, fd, len(LARGE) + 100 * ticket, data, True)
    writer.close()
    assert writer.poll()[:2] == (101, 101)
    assert os.pread(fd, 100, len(LARGE) + 10_100) == data
    assert sys.getrefcount(data) == before


def test_close_may_be_repeated(writer: Any, fd: int) -> None:
    writer.close()
    writer.close()
    writer.start_write_back(fd, 0, 1)
    for refused in (
        lambda: writer.submit(1, fd, 0, b"x", False),
        lambda: writer.write_inline(1, fd, 0, b"x", False),
        lambda: writer.request_sync(fd),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            refused()


def test_a_forgotten_writer_finishes_too(fd: int) -> None:
    writer = native.LogWriter()
    writer.submit(1, fd, 0, LARGE, False)
    writer.submit(2, fd, len(LARGE), b"last", True)
    del writer
    assert os.pread(fd, 10, len(LARGE)) == b"last"
