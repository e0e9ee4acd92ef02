"""Which files may go: only the oldest, only what is covered, never one that a floor has not passed.

That both kept checkpoints must cover them, and know the floors, is shown on a whole log at the end.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal.file_states import NEXT_STATES, FileState, freeable, shards_above_floor
from icestream.wal.file_summary import FileSummary
from icestream.wal.index import FileIndex
from icestream.wal.log_file import Seal
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink
from tests.support.hypothesis_effort import QUARTER

KEYS = [ShardKey(1, 0), ShardKey(1, 1), ShardKey(2, 0)]


@st.composite
def logs(draw: st.DrawFn) -> list[FileSummary]:
    """Sealed files in order, LSNs without a hole, offsets of each shard rising."""
    files: list[FileSummary] = []
    lsn, ends = draw(st.integers(0, 50)), dict.fromkeys(KEYS, 0)
    for number in range(draw(st.integers(0, 6))):
        index = FileIndex()
        for key in draw(st.lists(st.sampled_from(KEYS), unique=True)):
            rows = draw(st.integers(1, 10))
            index.add(key, ends[key], rows, 1, 0, 4160, 8)
            ends[key] += rows
        first, lsn = lsn + 1, lsn + draw(st.integers(1, 5))
        files.append(FileSummary.of(Seal(10 + number, first, lsn, 8192, 0, 0), 8192, index))
    return files


FLOORS = st.fixed_dictionaries({key: st.integers(0, 60) for key in KEYS})


@given(logs(), FLOORS, st.integers(0, 90))
def test_hazard_04_the_longest_unneeded_prefix_is_freeable(
    files: list[FileSummary], floors: dict[ShardKey, int], covered: int
) -> None:
    expected = []
    for file in files:
        if file.seal.last_lsn > covered or any(summary.end > floors[key] for key, summary in file.ranges()):
            break
        expected.append(file)
    assert freeable(files, covered, floors.__getitem__) == expected


@QUARTER
@given(logs(), FLOORS)
def test_shards_above_their_floor_are_named(files: list[FileSummary], floors: dict[ShardKey, int]) -> None:
    for file in files:
        expected = {key for key, summary in file.ranges() if summary.end > floors[key]}
        assert set(shards_above_floor(file, floors.__getitem__)) == expected


def file_of(number: int, last_lsn: int, end: int) -> FileSummary:
    index = FileIndex()
    index.add(KEYS[0], end - 1, 1, 1, 0, 4160, 8)
    return FileSummary.of(Seal(number, last_lsn, last_lsn, 8192, 0, 0), 8192, index)


def test_the_bounds_are_exact() -> None:
    """A file goes when its last offset is below the floor and its last LSN is covered."""
    file = file_of(1, 5, 10)
    assert freeable([file], 5, lambda _: 10) == [file]
    assert freeable([file], 5, lambda _: 9) == []
    assert freeable([file], 4, lambda _: 10) == []


def test_a_held_file_keeps_all_later_ones() -> None:
    files = [file_of(1, 1, 10), file_of(2, 2, 20), file_of(3, 3, 30)]
    assert freeable(files, 9, lambda _: 30) == files
    assert freeable(files, 9, lambda _: 15) == files[:1]
    assert freeable(files, 9, lambda _: 5) == []


def test_the_table_of_states_is_closed() -> None:
    assert set(NEXT_STATES) == set(FileState)
    assert {state for following in NEXT_STATES.values() for state in following} == set(FileState)


def test_records_are_added_only_to_prepared_files_and_freed_after_the_seal() -> None:
    assert [state for state, following in NEXT_STATES.items() if FileState.ACTIVE in following] == [FileState.PREPARED]
    assert NEXT_STATES[FileState.ACTIVE] == (FileState.SEALED,)
    assert FileState.ACTIVE not in NEXT_STATES[FileState.FREE]
    for state, following in NEXT_STATES.items():
        assert state not in following
        assert len(set(following)) == len(following)


@pytest.mark.asyncio
async def test_hazard_04_no_file_is_freed_before_both_checkpoints_cover_it_and_know_its_floor() -> None:
    """A whole log: one checkpoint frees nothing, the second frees all; losing the newest loses no state."""
    disk = SimulatedDisk(1)
    options = LogOptions(file_bytes=64 * 1024, quota_bytes=2**30, spare_files=0)
    log = await open_log_on(disk, options, {}, SimulatedClock(), SeededRandomness(1), InlineSink())
    log.declare_topic(TopicIdentity(1, "/default/a"))
    block = encode_block(1, {envelope.PAYLOAD: [bytes(8_000)]})
    for _ in range(20):
        await log.append([log.batch(log.shard(1, 0), block)])
    sealed = list(log.lifecycle.files)
    assert len(sealed) >= 2
    await log.checkpoint()
    await log.lifecycle.free_files()
    log.shard(1, 0).floor = 20  # the floor moved after the first checkpoint was written
    await log.checkpoint()
    await log.lifecycle.free_files()
    assert log.lifecycle.files == sealed  # both cover the records, but only one knows the floor
    await log.checkpoint()
    await log.lifecycle.free_files()
    assert log.lifecycle.files == []
    newest = max(name for name in disk.names() if name.startswith("checkpoint-"))
    disk.kill()
    disk.flip(newest, 8 * 100)
    again = await open_log_on(disk, options, {}, SimulatedClock(), SeededRandomness(2), InlineSink())
    assert (again.shard(1, 0).floor, again.shard(1, 0).synced) == (20, 20)
    assert again.report.bad_checkpoints == [newest]
    await again.close()
