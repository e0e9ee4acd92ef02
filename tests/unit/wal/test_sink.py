"""Sinks: the writes happen in order, a sync covers what it says, and after an error nothing later is written."""

from __future__ import annotations

import errno
import os
import select
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.runtime.clock import SystemClock
from icestream.runtime.files import LocalDirectory, LocalFile
from icestream.runtime.native import native
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal.appender import PlannedWrite
from icestream.wal.sink import InlineSink, NativeSink, Sink, SinkError, SinkProgress, contiguous_runs
from tests.support.hypothesis_effort import QUARTER

WAIT_SECONDS = 60
HOUR_US = 3_600_000_000
needs_native = pytest.mark.skipif(native is None, reason="the native extension is not built (make native)")


def writes_of(
    *sizes: int, number: int = 1, ticket: int = 1, position: int = 0, sync: bool = True
) -> list[PlannedWrite]:
    """Writes that follow each other; the data says which ticket it is."""
    writes = []
    for count, size in enumerate(sizes):
        writes.append(PlannedWrite(ticket + count, number, position, bytes([ticket + count]) * size, sync))
        position += size
    return writes


# --- runs -------------------------------------------------------------------------------------------------------------

PLANS = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=12)


def planned(plan: list[tuple[int, int, int, bool]]) -> list[PlannedWrite]:
    """Writes in two files, some with a hole before them."""
    ends = {1: 0, 2: 0}
    writes = []
    for ticket, (number, hole, size, sync) in enumerate(plan, 1):
        position = ends[number] + hole
        ends[number] = position + size
        writes.append(PlannedWrite(ticket, number, position, bytes([ticket]) * size, sync))
    return writes


@given(PLANS)
def test_runs_are_the_longest_stretches_without_a_hole(plan: list[tuple[int, int, int, bool]]) -> None:
    writes = planned(plan)
    runs = contiguous_runs(writes)
    assert [write for run in runs for write in run] == writes
    for run in runs:
        start = run[0].position
        for write in run:
            assert (write.number, write.position) == (run[0].number, start)
            start += len(write.data)
    for earlier, other in pairwise(runs):
        last, first = earlier[-1], other[0]
        assert (last.number, last.position + len(last.data)) != (first.number, first.position)


# --- inline -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> SimulatedDisk:
    simulated = SimulatedDisk(1)
    for name in ("1", "2"):
        simulated.replace(name, b"")
    simulated.operations.clear()
    return simulated


def test_inline_writes_and_syncs_before_it_returns(disk: SimulatedDisk) -> None:
    sink = InlineSink()
    assert sink.progress() == SinkProgress(0, 0, None)
    assert sink.submit(writes_of(3, 2), {1: disk.open("1")})
    assert sink.progress() == SinkProgress(2, 2, None)
    assert disk.operations == [("write", "1"), ("sync", "1")]  # one write and one sync for both
    disk.power_loss()
    assert disk.content("1") == b"\1\1\1\2\2"
    assert sink.fileno() == -1


def test_inline_reports_no_sync_that_was_not_requested(disk: SimulatedDisk) -> None:
    sink = InlineSink()
    file = disk.open("1")
    sink.submit(writes_of(3, sync=False), {1: file})
    assert sink.progress() == SinkProgress(1, 0, None)
    assert disk.operations == [("write", "1")]
    sink.request_sync(file)
    assert sink.progress() == SinkProgress(1, 1, None)
    assert disk.operations == [("write", "1"), ("sync", "1")]


def test_hazard_05_the_next_file_is_written_only_after_the_previous_is_synced(disk: SimulatedDisk) -> None:
    sink = InlineSink()
    files = {1: disk.open("1"), 2: disk.open("2")}
    footer, seal = writes_of(4, position=4096), writes_of(4, ticket=2, position=512)
    sink.submit([*footer, *seal, *writes_of(4, number=2, ticket=3)], files)
    assert disk.operations == [
        ("write", "1"),
        ("sync", "1"),
        ("write", "1"),
        ("sync", "1"),
        ("write", "2"),
        ("sync", "2"),
    ]
    assert sink.progress() == SinkProgress(3, 3, None)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_hazard_16_nothing_is_written_after_a_failed_write(disk: SimulatedDisk, after: int) -> None:
    sink = InlineSink()
    writes = [write for number in range(4) for write in writes_of(8, ticket=1 + number, position=100 * number)]
    disk.fail("write", errno.ENOSPC, after)
    assert sink.submit(writes, {1: disk.open("1")})
    assert sink.progress() == SinkProgress(after, after, SinkError(after + 1, "write", errno.ENOSPC))
    assert len(disk.content("1")) <= 100 * after + 8
    sink.submit(writes_of(8, ticket=5, position=500), {1: disk.open("1")})
    assert sink.progress() == SinkProgress(after, after, SinkError(after + 1, "write", errno.ENOSPC))
    assert len(disk.content("1")) <= 100 * after + 8


@pytest.mark.parametrize("after", [0, 1, 2])
def test_hazard_51_syncs_before_a_failed_one_stay_reported(disk: SimulatedDisk, after: int) -> None:
    sink = InlineSink()
    writes = [write for number in range(4) for write in writes_of(8, ticket=1 + number, position=100 * number)]
    disk.fail("sync", errno.EIO, after)
    sink.submit(writes, {1: disk.open("1")})
    assert sink.progress() == SinkProgress(after + 1, after, SinkError(after + 1, "sync", errno.EIO))


def test_a_requested_sync_that_fails_is_reported_and_the_first_error_counts(disk: SimulatedDisk) -> None:
    sink = InlineSink()
    file = disk.open("1")
    sink.submit(writes_of(8, sync=False), {1: file})
    disk.fail("sync", errno.EIO)
    sink.request_sync(file)
    assert sink.progress() == SinkProgress(1, 0, SinkError(1, "sync", errno.EIO))
    disk.fail("sync", errno.ENOSPC)
    sink.request_sync(file)
    assert sink.progress().error == SinkError(1, "sync", errno.EIO)


def test_inline_continues_after_a_restart(disk: SimulatedDisk) -> None:
    sink = InlineSink()
    disk.fail("write", errno.ENOSPC)
    sink.submit(writes_of(8), {1: disk.open("1")})
    sink.restart()
    sink.submit(writes_of(8, number=2, ticket=2), {2: disk.open("2")})
    assert sink.progress() == SinkProgress(2, 2, None)
    sink.close()
    assert disk.content("2") == b"\2" * 8


# --- native -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LocalDirectory]:
    local_directory = LocalDirectory(tmp_path)
    yield local_directory
    local_directory.close()


@pytest.fixture
def file(directory: LocalDirectory) -> Iterator[LocalFile]:
    created = directory.create("1")
    yield created
    created.close()


@pytest.fixture
def full() -> Iterator[LocalFile]:
    full_file = LocalFile(os.open("/dev/full", os.O_RDWR))
    yield full_file
    full_file.close()


@pytest.fixture
def threaded() -> Iterator[NativeSink]:
    """Never inline."""
    sink = NativeSink(SystemClock(), 0)
    yield sink
    sink.close()


@pytest.fixture
def eager() -> Iterator[NativeSink]:
    """Inline as soon as it may."""
    sink = NativeSink(SystemClock(), HOUR_US)
    yield sink
    sink.close()


def wait(sink: Sink, done: Callable[[SinkProgress], bool]) -> SinkProgress:
    while True:
        progress = sink.progress()
        if done(progress):
            return progress
        readable, _, _ = select.select([sink.fileno()], [], [], WAIT_SECONDS)
        assert readable, f"no news; the last were {progress}"


def wait_synced(sink: Sink, ticket: int) -> SinkProgress:
    return wait(sink, lambda progress: progress.synced >= ticket)


@needs_native
def test_the_thread_writes_and_syncs(threaded: NativeSink, file: LocalFile) -> None:
    assert not threaded.submit(writes_of(3, 2), {1: file})
    assert wait_synced(threaded, 2) == SinkProgress(2, 2, None)
    assert file.read_at(0, 10) == b"\1\1\1\2\2"


@needs_native
def test_the_first_write_uses_the_thread_and_short_syncs_make_the_next_inline(
    eager: NativeSink, file: LocalFile
) -> None:
    """Nothing is known of the disk before the first sync was measured (docs/adr/0004)."""
    assert not eager.submit(writes_of(3), {1: file})
    wait_synced(eager, 1)
    assert eager.submit(writes_of(3, ticket=2, position=3), {1: file})
    assert eager.progress() == SinkProgress(2, 2, None)
    assert file.read_at(0, 10) == b"\1\1\1\2\2\2"


@needs_native
def test_only_a_single_small_write_on_an_idle_disk_is_inline(eager: NativeSink, file: LocalFile) -> None:
    eager.submit(writes_of(3), {1: file})
    wait_synced(eager, 1)
    assert not eager.submit(writes_of(1, 1, ticket=2, position=3), {1: file})  # two
    wait_synced(eager, 3)
    assert eager.submit(writes_of(1, ticket=4, position=5, sync=False), {1: file})
    wait(eager, lambda progress: progress.written == 4)
    assert not eager.submit(writes_of(1, ticket=5, position=6), {1: file})  # one before it is not synced
    wait_synced(eager, 5)
    assert eager.submit(writes_of(1, ticket=6, position=7), {1: file})
    assert file.read_at(0, 10) == b"\1\1\1\2\3\4\5\6"
    wait_synced(eager, 6)
    large = writes_of(limits.INLINE_WRITE_BYTES_MAX + 1, ticket=7, position=8)
    assert not eager.submit(large, {1: file})


@needs_native
def test_no_sync_is_inline_while_the_disk_is_busy(eager: NativeSink, file: LocalFile) -> None:
    eager.submit(writes_of(1), {1: file})
    wait_synced(eager, 1)
    eager.is_disk_busy = True
    assert not eager.submit(writes_of(1, ticket=2, position=1), {1: file})
    wait_synced(eager, 2)
    eager.is_disk_busy = False
    assert eager.submit(writes_of(1, ticket=3, position=2), {1: file})


@needs_native
def test_a_slow_sync_moves_the_next_ones_to_the_thread(file: LocalFile) -> None:
    sink = NativeSink(SystemClock(), 0)
    try:
        for number in range(3):
            assert not sink.submit(writes_of(1, ticket=1 + number, position=number), {1: file})
            wait_synced(sink, 1 + number)
    finally:
        sink.close()
    assert file.read_at(0, 10) == b"\1\2\3"


@needs_native
def test_a_requested_sync_is_done_in_the_background(threaded: NativeSink, file: LocalFile) -> None:
    threaded.submit(writes_of(3, sync=False), {1: file})
    wait(threaded, lambda progress: progress.written == 1)
    threaded.request_sync(file)
    assert wait_synced(threaded, 1) == SinkProgress(1, 1, None)


@needs_native
def test_large_unsynced_writes_start_their_write_back(threaded: NativeSink, file: LocalFile) -> None:
    """In `periodic` and `none`: requesting write-back does not change the written bytes."""
    size, position = 3 * 1024 * 1024, 0
    for ticket in range(1, 5):
        threaded.submit(writes_of(size, ticket=ticket, position=position, sync=False), {1: file})
        position += size
    wait(threaded, lambda progress: progress.written == 4)
    assert [file.read_at(number * size, 1) for number in range(4)] == [b"\1", b"\2", b"\3", b"\4"]


@needs_native
@pytest.mark.parametrize("inline_below_us", [0, HOUR_US], ids=["thread", "inline"])
def test_hazard_16_a_failed_write_is_reported_and_a_restart_continues(
    inline_below_us: int, file: LocalFile, full: LocalFile
) -> None:
    sink = NativeSink(SystemClock(), inline_below_us)
    try:
        sink.submit(writes_of(3), {1: file})
        wait_synced(sink, 1)
        assert sink.submit(writes_of(8, number=2, ticket=2), {2: full}) == bool(inline_below_us)
        progress = wait(sink, lambda progress: progress.error is not None)
        assert progress == SinkProgress(1, 1, SinkError(2, "write", errno.ENOSPC))
        sink.restart()
        assert sink.progress().error is None
        sink.submit(writes_of(2, ticket=9, position=3), {1: file})
        assert wait_synced(sink, 9) == SinkProgress(9, 9, None)
    finally:
        sink.close()
    assert file.read_at(0, 10) == b"\1\1\1\t\t"


@needs_native
def test_hazard_16_writes_submitted_before_the_error_was_noticed_are_dropped(
    threaded: NativeSink, file: LocalFile, full: LocalFile
) -> None:
    """The thread fails while the loop plans the next tick: that tick is dropped, as InlineSink does it, and told."""
    threaded.submit(writes_of(3), {1: file})
    wait_synced(threaded, 1)
    threaded.submit(writes_of(8, number=2, ticket=2), {2: full})
    readable, _, _ = select.select([threaded.fileno()], [], [], WAIT_SECONDS)
    assert readable  # it has failed; the loop has not looked yet
    threaded.submit(writes_of(8, number=2, ticket=3), {2: full})
    threaded.submit(writes_of(1, ticket=4, position=50), {1: file})
    assert threaded.progress() == SinkProgress(1, 1, SinkError(2, "write", errno.ENOSPC))
    assert file.size() == 3


@needs_native
def test_a_failed_sync_is_distinguished_from_a_failed_write(threaded: NativeSink, file: LocalFile) -> None:
    """/dev/null takes every write and no sync."""
    null = LocalFile(os.open("/dev/null", os.O_RDWR))
    try:
        threaded.submit(writes_of(8), {1: null})
        progress = wait(threaded, lambda progress: progress.error is not None)
    finally:
        null.close()
    assert progress == SinkProgress(1, 0, SinkError(1, "sync", errno.EINVAL))


@needs_native
def test_close_finishes_submitted_writes(file: LocalFile) -> None:
    sink = NativeSink(SystemClock(), 0)
    sink.submit(writes_of(5), {1: file})
    sink.close()
    assert file.read_at(0, 10) == b"\1" * 5


@needs_native
@QUARTER
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=5))
def test_both_sinks_write_the_same_bytes(groups: list[list[int]]) -> None:
    contents = []
    for kind in ("inline", "thread", "eager"):
        sink: Sink = InlineSink() if kind == "inline" else NativeSink(SystemClock(), HOUR_US * (kind == "eager"))
        with tempfile.TemporaryDirectory() as path:
            directory = LocalDirectory(Path(path))
            file = directory.create("1")
            ticket = position = 0
            for sizes in groups:
                writes = writes_of(*sizes, ticket=ticket + 1, position=position)
                ticket, position = writes[-1].ticket, position + sum(sizes)
                sink.submit(writes, {1: file})
                assert wait_synced(sink, ticket) == SinkProgress(ticket, ticket, None)
            contents.append(file.read_at(0, 1_000))
            file.close()
            directory.close()
        sink.close()
    assert contents[0] == contents[1] == contents[2]
    assert len(contents[0]) == sum(map(sum, groups))
